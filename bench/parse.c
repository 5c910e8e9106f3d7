#include "bench/parse.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    char letter;
    unsigned shift;
} suffixes[] = { { 'G', 30 }, { 'M', 20 }, { 'K', 10 } };
#define SUFFIX_COUNT (sizeof(suffixes) / sizeof(suffixes[0]))

bool tly_parse_size(const char *text, size_t *value)
{
    /* strtoull would take blanks and a sign */
    if (!isdigit((unsigned char)*text))
        return false;
    char *rest;
    errno = 0;
    unsigned long long number = strtoull(text, &rest, 10);
    if (errno)
        return false;
    unsigned shift = 0;
    for (size_t i = 0; i < SUFFIX_COUNT; i++)
        if (toupper((unsigned char)*rest) == suffixes[i].letter)
            shift = suffixes[i].shift;
    if (shift)
        rest++;
    if (*rest || number > SIZE_MAX >> shift)
        return false;
    *value = (size_t)number << shift;
    return true;
}

bool tly_parse_int(const char *text, int min, int max, int *value)
{
    char *rest;
    errno = 0;
    long number = strtol(text, &rest, 10);
    if (errno || rest == text || *rest || isspace((unsigned char)*text) || number < min || number > max)
        return false;
    *value = (int)number;
    return true;
}

bool tly_parse_positive(const char *text, double *value)
{
    char *rest;
    double number = strtod(text, &rest);
    if (rest == text || *rest || isspace((unsigned char)*text) || !isfinite(number) || number <= 0)
        return false;
    *value = number;
    return true;
}

bool tly_parse_dtype(const char *text, tally_dtype *value)
{
    for (int i = 0; i < TALLY_DTYPE_COUNT; i++)
        if (strcmp(text, tally_dtype_name((tally_dtype)i)) == 0) {
            *value = (tally_dtype)i;
            return true;
        }
    return false;
}

bool tly_parse_op(const char *text, tally_op *value)
{
    for (int i = 0; i < TALLY_OP_COUNT; i++)
        if (strcmp(text, tally_op_name((tally_op)i)) == 0) {
            *value = (tally_op)i;
            return true;
        }
    return false;
}

static const char *dtype_name(int index)
{
    return tally_dtype_name((tally_dtype)index);
}

static const char *op_name(int index)
{
    return tally_op_name((tally_op)index);
}

static void list(char *out, size_t room, int count, const char *(*name)(int index))
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < count && used < room; i++) {
        int n = snprintf(out + used, room - used, "%s%s", i ? ", " : "", name(i));
        used += n > 0 ? (size_t)n : 0;
    }
}

void tly_parse_list_dtypes(char *out, size_t room)
{
    list(out, room, TALLY_DTYPE_COUNT, dtype_name);
}

void tly_parse_list_ops(char *out, size_t room)
{
    list(out, room, TALLY_OP_COUNT, op_name);
}
