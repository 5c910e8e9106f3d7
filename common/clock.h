/* clock.h - the shells' clock. The cores never call it: they are told the time. */
#ifndef TLY_CLOCK_H
#define TLY_CLOCK_H

#include <stdint.h>

/* Milliseconds of a clock that only moves forward. */
typedef int64_t tly_time;

/* "never": later than any time. */
#define TLY_NEVER INT64_MAX

tly_time tly_clock_now(void);

/* Milliseconds from now to then for a poll: 0 when past, -1 for TLY_NEVER, at most an hour. */
int tly_clock_timeout(tly_time then, tly_time now);

#endif
