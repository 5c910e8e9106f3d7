/* pair.h - two processes that measure something together.
 *
 * The one that asks forks both and waits, so it must have no threads; what they find comes back
 * through shared memory. Neither outlives it. */
#ifndef TLY_BENCH_PAIR_H
#define TLY_BENCH_PAIR_H

#include <stddef.h>

#include "common/status.h"

typedef struct tly_pair_side {
    int index;      /* 0 or 1 */
    int other_fd;   /* to the other side; tly_pair_tell and tly_pair_hear use it */
    double *values; /* for the one that asked */
} tly_pair_side;

/* What a side does, with a processor time of its own from the start. */
typedef tally_status (*tly_pair_fn)(tly_pair_side *side, void *arg);

/* Run fn in two processes.
 *
 * values:  room of them for side 0, then as many for side 1; 0 where a side left one out. NULL when
 *          room is 0.
 * Blocks:  until both have ended.
 * Returns: TALLY_OK when both did; the status and sentence of the side that failed first; TALLY_EFAILED
 *          when one ended without saying why; TALLY_ESYSTEM, TALLY_ENOMEM */
tally_status tly_pair_run(tly_pair_fn fn, void *arg, double *values, size_t room);

/* For a side: tell the other len bytes; hear as many from it; wait until the other does the same.
 * Blocks:  hear and meet, until the other side does its part or ends.
 * Returns: TALLY_OK; TALLY_ELEFT when the other side has ended */
tally_status tly_pair_tell(const tly_pair_side *side, const void *data, size_t len);
tally_status tly_pair_hear(const tly_pair_side *side, void *data, size_t len);
tally_status tly_pair_meet(const tly_pair_side *side);

#endif
