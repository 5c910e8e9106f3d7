/* json.h - the file of --json, written member by member. The only user of jansson.
 *
 * A NULL tly_json stands for "no file wanted": every function accepts it and does nothing. A failed
 * allocation is remembered and reported by tly_json_close. One thread. */
#ifndef TLY_BENCH_JSON_H
#define TLY_BENCH_JSON_H

#include <stdint.h>

#include "bench/measure.h"

typedef struct tly_json tly_json;

/* Open path for writing now, so that a long run does not end at a file that cannot be written.
 * path: NULL gives *json NULL.
 * Memory:  *json is the caller's; tly_json_close ends it.
 * Returns: TALLY_OK, TALLY_ESYSTEM (path and the system's text), TALLY_ENOMEM */
tally_status tly_json_open(const char *path, tly_json **json);

/* Members of the object that is open. A number that is not finite becomes null; so does a NULL text. */
void tly_json_text(tly_json *json, const char *key, const char *value);
void tly_json_integer(tly_json *json, const char *key, int64_t value);
void tly_json_number(tly_json *json, const char *key, double value);
void tly_json_samples(tly_json *json, const char *key, const tly_samples *samples);

/* Open an object as a member (of its own, or as the next element of an array), until it is left. */
void tly_json_enter(tly_json *json, const char *key);
void tly_json_enter_row(tly_json *json, const char *array_key);
void tly_json_leave(tly_json *json);

/* Write the file and free json.
 * Returns: TALLY_OK, TALLY_ESYSTEM (path and the system's text), TALLY_ENOMEM */
tally_status tly_json_close(tly_json *json);

/* Free json after a failed run; the file stays empty, so that nobody takes an older run's for it. */
void tly_json_discard(tly_json *json);

#endif
