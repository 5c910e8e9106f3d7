/* host.h - what the host programs of the process tests have in common: elements of any type from
 * whole numbers and back, without the code that is being tested; names; time. Each program is one file,
 * so everything here is static. */
#ifndef TESTS_PROC_HOST_H
#define TESTS_PROC_HOST_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "worker/tally.h"

/* A line on standard output, at once and whole also when two threads write. */
#define say(...) (flockfile(stdout), printf(__VA_ARGS__), putchar('\n'), fflush(stdout), funlockfile(stdout))

static inline int64_t host_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The bits of a whole number in binary32, binary16 or bfloat16; it must fit without rounding. */
static inline uint32_t host_bits32(int value)
{
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline uint16_t host_bits16(tally_dtype dtype, int value)
{
    uint32_t bits = host_bits32(value);
    if (dtype == TALLY_DTYPE_BF16 || value == 0)
        return (uint16_t)(bits >> 16);
    return (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) | (bits >> 13 & 0x3ff));
}

static inline void host_store(tally_dtype dtype, void *at, int value)
{
    union {
        uint8_t u8;
        uint16_t u16;
        uint32_t u32;
        uint64_t u64;
        double f64;
    } v;
    switch (dtype) {
    case TALLY_DTYPE_F16:
    case TALLY_DTYPE_BF16:
        v.u16 = host_bits16(dtype, value);
        break;
    case TALLY_DTYPE_F32:
        v.u32 = host_bits32(value);
        break;
    case TALLY_DTYPE_F64:
        v.f64 = value;
        break;
    case TALLY_DTYPE_I8:
    case TALLY_DTYPE_U8:
        v.u8 = (uint8_t)value;
        break;
    case TALLY_DTYPE_I32:
        v.u32 = (uint32_t)value;
        break;
    default:
        v.u64 = (uint64_t)(int64_t)value;
        break;
    }
    memcpy(at, &v, tally_dtype_size(dtype));
}

/* Any element as a double, which is exact for the whole numbers that the tests use. */
static inline double host_load(tally_dtype dtype, const void *at)
{
    uint64_t bits = 0;
    memcpy(&bits, at, tally_dtype_size(dtype));
    uint32_t bits32 = (uint32_t)bits;
    float f;
    double d;
    switch (dtype) {
    case TALLY_DTYPE_F16:
        if ((bits & 0x7c00) == 0x7c00) /* as large as a bfloat16 infinity or NaN */
            bits32 = (bits32 & 0x8000) << 16 | 0x7f800000 | (bits32 & 0x3ff) << 13;
        else if (bits & 0x7fff)
            bits32 = (bits32 & 0x8000) << 16 | ((bits32 >> 10 & 31) + 112) << 23 | (bits32 & 0x3ff) << 13;
        else
            bits32 = 0;
        memcpy(&f, &bits32, sizeof f);
        return f;
    case TALLY_DTYPE_BF16:
        bits32 <<= 16;
        memcpy(&f, &bits32, sizeof f);
        return f;
    case TALLY_DTYPE_F32:
        memcpy(&f, &bits32, sizeof f);
        return f;
    case TALLY_DTYPE_F64:
        memcpy(&d, &bits, sizeof d);
        return d;
    case TALLY_DTYPE_I8:
        return (int8_t)bits;
    case TALLY_DTYPE_U8:
        return (uint8_t)bits;
    case TALLY_DTYPE_I32:
        return (int32_t)bits32;
    default:
        return (double)(int64_t)bits;
    }
}

static inline tally_dtype host_dtype(const char *name)
{
    int dtype = 0;
    while (dtype < TALLY_DTYPE_COUNT && strcmp(tally_dtype_name((tally_dtype)dtype), name) != 0)
        dtype++;
    return (tally_dtype)dtype;
}

static inline tally_op host_op(const char *name)
{
    int op = 0;
    while (op < TALLY_OP_COUNT && strcmp(tally_op_name((tally_op)op), name) != 0)
        op++;
    return (tally_op)op;
}

/* End the program when a call does not do what this program is not about. */
static inline void host_must(tally_status status, const char *call)
{
    if (status == TALLY_OK)
        return;
    say("%s %s %s", call, tally_status_name(status), tally_last_error());
    exit(4);
}

#endif
