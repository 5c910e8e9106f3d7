/* parse.h - what tally-bench's options take: numbers, sizes and names. Pure functions.
 *
 * Each returns true and sets *value, or returns false and leaves *value as it was. */
#ifndef TLY_BENCH_PARSE_H
#define TLY_BENCH_PARSE_H

#include <stdbool.h>
#include <stddef.h>

#include "worker/tally.h"

/* A size in bytes: decimal digits, then nothing or one of K, M, G (powers of 1024, any case). */
bool tly_parse_size(const char *text, size_t *value);

/* A whole number from min to max. */
bool tly_parse_int(const char *text, int min, int max, int *value);

/* A finite number above 0. */
bool tly_parse_positive(const char *text, double *value);

/* A name such as "float16"; "average". */
bool tly_parse_dtype(const char *text, tally_dtype *value);
bool tly_parse_op(const char *text, tally_op *value);

/* All names, "float16, bfloat16, ...", for help and errors; out always ends with 0. */
void tly_parse_list_dtypes(char *out, size_t room);
void tly_parse_list_ops(char *out, size_t room);

#endif
