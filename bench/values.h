/* values.h - gradients whose combination over all workers is known exactly.
 *
 * Element i of worker r is a small whole number, base(i) + offset(r). The offsets cancel over all
 * workers and every value is positive, so the right average is base(i), the right sum
 * workers * base(i), and a contribution that is missing or counted twice always shows. base has the
 * period 29, which no power of two is a multiple of, so partitions or tensors that changed places
 * show too; it also depends on the step, so that an old result shows.
 *
 * Writing a whole model anew each step would cost the processor what a GPU's copy engine does for
 * nothing. So a step rewrites only its stamps: the first element of every 4096 bytes and the last
 * element, at least one in every partition. The other elements keep what they have: in place, the
 * average of the step before, whose average is itself.
 *
 * Immutable after init. */
#ifndef TLY_BENCH_VALUES_H
#define TLY_BENCH_VALUES_H

#include <stddef.h>
#include <stdint.h>

#include "worker/tally.h"

#define TLY_VALUES_PERIOD 29
#define TLY_VALUES_CELL_BYTES 4096

typedef struct tly_values {
    tally_dtype dtype;
    size_t element_bytes;
    uint8_t mine[TLY_VALUES_CELL_BYTES + TLY_VALUES_PERIOD * 8];  /* this worker's, from base 0 on */
    uint8_t right[TLY_VALUES_CELL_BYTES + TLY_VALUES_PERIOD * 8]; /* what must come back */
} tly_values;

void tly_values_init(tly_values *values, tally_dtype dtype, tally_op op, int rank, int workers);

/* Write this worker's contribution to a step. tensor: any number; tensors differ in their values.
 * data: count elements at any alignment. */
void tly_values_fill(const tly_values *values, unsigned tensor, unsigned step, void *data, size_t count);

/* Rewrite the stamps only. */
void tly_values_stamp(const tly_values *values, unsigned tensor, unsigned step, void *data, size_t count);

/* The first wrong element. */
typedef struct tly_values_wrong {
    size_t index;
    double found, right;
} tly_values_wrong;

/* Count the wrong elements of a result whose elements were filled at one step and stamped at a later
 * one (or the same). *first is set when there are any. */
size_t tly_values_check(const tly_values *values, unsigned tensor, unsigned fill_step, unsigned stamp_step,
                        const void *data, size_t count, tly_values_wrong *first);

#endif
