/* plain.h - what this machine does by itself: the plainest addition that its vectors can do.
 *
 * The measure of common/reduce.h, so nothing of it is used here. */
#ifndef TLY_BENCH_PLAIN_H
#define TLY_BENCH_PLAIN_H

#include <stddef.h>

/* acc[i] += in[i], of count binary32 at any alignment, with the widest vectors that the processor has.
 * The two do not overlap. */
void tly_plain_add_f32(void *acc, const void *in, size_t count);

#endif
