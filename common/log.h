/* log.h - one line per event on standard error: time, role, rank, level, text.
 *
 *     2026-12-01 00:14:37.123 worker 1 warn waiting for server 0
 *
 * The time is UTC, so that the lines of several machines sort. Lines are written whole with one
 * write, cut with "..." at 1500 bytes, and control characters in them (a newline too) become '?',
 * because parts of a line come from peers. Any thread may log; errno is left as it was, and a closed
 * standard error raises no SIGPIPE. Each role sets the level from BYTEPS_LOG_LEVEL; a context of the
 * library may bring its own sink. */
#ifndef TLY_LOG_H
#define TLY_LOG_H

#include "common/status.h"

/* Where lines go and what stands at their head. Immutable while in use. */
typedef struct tly_log {
    tally_log_level level; /* lines above it are dropped */
    tally_log_fn sink;     /* NULL: standard error */
    void *sink_arg;
    char who[64];          /* "worker 1", "server 0", "scheduler" */
} tly_log;

/* Write one line if level is wanted. log may be NULL: a default of warnings to standard error. */
void tly_log_line(const tly_log *log, tally_log_level level, const char *format, ...)
    TLY_PRINTF(3, 4);

/* Replace control characters by '?', in place, in a text that came from outside. */
void tly_log_clean(char *text);

#define tly_log_error(log, ...) tly_log_line(log, TALLY_LOG_ERROR, __VA_ARGS__)
#define tly_log_warn(log, ...) tly_log_line(log, TALLY_LOG_WARN, __VA_ARGS__)
#define tly_log_info(log, ...) tly_log_line(log, TALLY_LOG_INFO, __VA_ARGS__)
#define tly_log_debug(log, ...) tly_log_line(log, TALLY_LOG_DEBUG, __VA_ARGS__)

#endif
