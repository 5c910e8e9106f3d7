/* status.h - error codes and the sentence that goes with them.
 *
 * Who decides an error words it once, with the values that make it true; callers pass the status on.
 * The sentence is kept per thread; what must cross threads is copied out of it. */
#ifndef TLY_STATUS_H
#define TLY_STATUS_H

#include <stdarg.h>

#include "worker/tally.h"

/* The longest sentence, with its final 0. Longer ones are cut. */
#define TLY_SENTENCE_MAX 1024

#define TLY_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Set this thread's sentence and return status. */
tally_status tly_error(tally_status status, const char *format, ...) TLY_PRINTF(2, 3);

/* Put context in front of this thread's sentence ("context: sentence") and return status. */
tally_status tly_error_context(tally_status status, const char *format, ...) TLY_PRINTF(2, 3);

/* The sentence for "out of memory" with the size and purpose that were asked for. */
tally_status tly_error_memory(size_t len_bytes, const char *purpose);

/* This thread's sentence; never NULL. */
const char *tly_error_text(void);

#endif
