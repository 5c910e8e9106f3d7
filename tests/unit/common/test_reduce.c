/* Every kernel set that this machine has, against a slow reference that works on one element at a time:
 * 16-bit floats through ldexp and frexp, binary32 through binary64 (whose double rounding is innocent for
 * one addition or division), integers through __int128. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/reduce.h"
#include "common/reduce_kernels.h"

enum { MAX_COUNT = 4913, GUARD_BYTES = 80, CANARY = 0xa5, MAX_PARTS = 8 };

static const int divisors[] = { 1, 2, 3, 7, 8 };
static const size_t counts[] = { 0, 1, 3, 7, 8, 15, 16, 17, 31, 33, MAX_COUNT };
#define COUNT_OF(array) (sizeof(array) / sizeof(array)[0])

/* ---- bits of one element ---- */

static uint64_t get_bits(const void *array, size_t i, size_t size)
{
    uint64_t bits = 0;
    for (size_t byte = size; byte-- > 0;)
        bits = bits << 8 | ((const uint8_t *)array)[i * size + byte];
    return bits;
}

static void set_bits(void *array, size_t i, size_t size, uint64_t bits)
{
    for (size_t byte = 0; byte < size; byte++, bits >>= 8)
        ((uint8_t *)array)[i * size + byte] = (uint8_t)bits;
}

static uint64_t rng_state = 88172645463325252;

static uint64_t random_bits(void)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return rng_state * 0x2545f4914f6cdd1d;
}

/* Fraction bits and exponent bias of the float types. */
static const struct format {
    int fraction, exponent;
} formats[] = {
    [TALLY_DTYPE_F16] = { 10, 5 },
    [TALLY_DTYPE_BF16] = { 7, 8 },
    [TALLY_DTYPE_F32] = { 23, 8 },
    [TALLY_DTYPE_F64] = { 52, 11 },
};

static bool is_float(tally_dtype dtype)
{
    return dtype <= TALLY_DTYPE_F64;
}

static double decode(uint64_t bits, tally_dtype dtype)
{
    const struct format f = formats[dtype];
    const int bias = (1 << (f.exponent - 1)) - 1;
    const int exponent = (int)(bits >> f.fraction) & ((1 << f.exponent) - 1);
    const uint64_t fraction = bits & (((uint64_t)1 << f.fraction) - 1);
    const bool negative = bits >> (f.fraction + f.exponent) & 1;
    double value;
    if (exponent == (1 << f.exponent) - 1)
        value = fraction ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        value = ldexp((double)fraction, 1 - bias - f.fraction);
    else
        value = ldexp((double)(fraction | (uint64_t)1 << f.fraction), exponent - bias - f.fraction);
    return negative ? -value : value;
}

/* To nearest, ties to even; a NaN becomes the positive quiet one. */
static uint64_t encode(double value, tally_dtype dtype)
{
    const struct format f = formats[dtype];
    const int bias = (1 << (f.exponent - 1)) - 1;
    const uint64_t infinity = (((uint64_t)1 << f.exponent) - 1) << f.fraction;
    const uint64_t sign = signbit(value) ? (uint64_t)1 << (f.fraction + f.exponent) : 0;
    if (isnan(value))
        return infinity | (uint64_t)1 << (f.fraction - 1);
    if (isinf(value))
        return sign | infinity;
    if (value == 0)
        return sign;
    int exponent;
    frexp(value, &exponent); /* value = [0.5, 1) * 2^exponent */
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    const double units = nearbyint(ldexp(fabs(value), f.fraction - exponent));
    /* units has the hidden bit or is subnormal, and may have been rounded up to the next power */
    const uint64_t bits = (uint64_t)units + ((uint64_t)(exponent + bias - 1) << f.fraction);
    return sign | (bits > infinity ? infinity : bits);
}

static bool is_nan(uint64_t bits, tally_dtype dtype)
{
    return is_float(dtype) && isnan(decode(bits, dtype));
}

static bool is_quiet(uint64_t bits, tally_dtype dtype)
{
    return bits >> (formats[dtype].fraction - 1) & 1;
}

static __int128 decode_integer(uint64_t bits, tally_dtype dtype)
{
    switch (dtype) {
    case TALLY_DTYPE_I8: return (int8_t)bits;
    case TALLY_DTYPE_U8: return (uint8_t)bits;
    case TALLY_DTYPE_I32: return (int32_t)bits;
    default: return (int64_t)bits;
    }
}

static uint64_t truncate_bits(uint64_t bits, tally_dtype dtype)
{
    const size_t size = tally_dtype_size(dtype);
    return size == 8 ? bits : bits & (((uint64_t)1 << size * 8) - 1);
}

/* ---- the reference ---- */

static double round_work(double value, tally_dtype dtype)
{
    return dtype == TALLY_DTYPE_F64 ? value : (double)(float)value;
}

/* parts added from left to right, as contributions arrive, and divided */
static uint64_t expect_sum(const uint64_t *parts, int n, tally_dtype dtype, int divisor)
{
    if (is_float(dtype)) {
        volatile double sum = decode(parts[0], dtype);
        for (int i = 1; i < n; i++)
            sum = round_work(sum + decode(parts[i], dtype), dtype);
        return encode(divisor > 1 ? round_work(sum / divisor, dtype) : sum, dtype);
    }
    __int128 sum = 0;
    for (int i = 0; i < n; i++)
        sum += decode_integer(parts[i], dtype);
    return truncate_bits((uint64_t)(divisor > 1 ? sum / divisor : sum), dtype);
}

static uint64_t expect_extreme(uint64_t a, uint64_t b, tally_dtype dtype, bool want_max)
{
    bool a_less;
    if (is_float(dtype)) {
        const double x = decode(a, dtype), y = decode(b, dtype);
        if (isnan(x) || isnan(y))
            return encode((double)NAN, dtype);
        a_less = x < y || (x == y && signbit(x) && !signbit(y));
    } else {
        a_less = decode_integer(a, dtype) < decode_integer(b, dtype);
    }
    return a_less != want_max ? a : b;
}

static uint64_t expect(uint64_t a, uint64_t b, tally_dtype dtype, tally_op op, int divisor)
{
    if (op == TALLY_OP_MIN || op == TALLY_OP_MAX)
        return expect_extreme(a, b, dtype, op == TALLY_OP_MAX);
    return expect_sum((uint64_t[]){ a, b }, 2, dtype, op == TALLY_OP_AVERAGE ? divisor : 1);
}

static void check_element(uint64_t got, uint64_t want, tally_dtype dtype, const char *set, const char *what,
                          int divisor, size_t i)
{
    if (is_nan(want, dtype) ? is_nan(got, dtype) && is_quiet(got, dtype) : got == want)
        return;
    fail_msg("%s %s of %s, divisor %d, element %zu: 0x%llx instead of 0x%llx", set, what,
             tally_dtype_name(dtype), divisor, i, (unsigned long long)got, (unsigned long long)want);
}

/* ---- buffers between canaries ---- */

typedef struct fenced {
    uint8_t *block;
    uint8_t *data;
    size_t len_bytes;
} fenced;

/* misalignment in bytes from a 64-byte boundary; content NULL leaves the canary's value */
static fenced fence(const void *content, size_t len_bytes, size_t misalignment)
{
    fenced f = { .len_bytes = len_bytes };
    const size_t total = (GUARD_BYTES + len_bytes + GUARD_BYTES + 64 + 63) / 64 * 64;
    f.block = aligned_alloc(64, total);
    assert_non_null(f.block);
    memset(f.block, CANARY, total);
    f.data = f.block + 64 + misalignment;
    if (content != NULL)
        memcpy(f.data, content, len_bytes);
    return f;
}

static void unfence(fenced f)
{
    for (const uint8_t *p = f.block; p < f.data; p++)
        assert_int_equal(*p, CANARY);
    for (int i = 0; i < GUARD_BYTES; i++)
        assert_int_equal(f.data[f.len_bytes + (size_t)i], CANARY);
    free(f.block);
}

/* ---- inputs ---- */

static const uint64_t float_edges[][14] = {
    [TALLY_DTYPE_F16] = { 0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x3c00, 0xbc00, 0x7bff, 0xfbff, 0x7c00, 0xfc00,
                          0x7c01, 0xfe12 },
    [TALLY_DTYPE_BF16] = { 0, 0x8000, 1, 0x8001, 0x7f, 0x80, 0x3f80, 0xbf80, 0x7f7f, 0xff7f, 0x7f80, 0xff80,
                           0x7f81, 0xffc1 },
    [TALLY_DTYPE_F32] = { 0, 0x80000000, 1, 0x80000001, 0x7fffff, 0x800000, 0x3f800000, 0xbf800000,
                          0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7f800001, 0xffc12345 },
    [TALLY_DTYPE_F64] = { 0, 0x8000000000000000, 1, 0x8000000000000001, 0xfffffffffffff, 0x10000000000000,
                          0x3ff0000000000000, 0xbff0000000000000, 0x7fefffffffffffff, 0xffefffffffffffff,
                          0x7ff0000000000000, 0xfff0000000000000, 0x7ff0000000000001, 0xfff8123456789abc },
};
static const int64_t integer_edges[14] = { 0, 1, -1, 2, -2, 3, -3, 7, -8, 100, 0, 0, 0, 0 };

static uint64_t edge(tally_dtype dtype, size_t i)
{
    if (is_float(dtype))
        return float_edges[dtype][i];
    const uint64_t top = (uint64_t)1 << (tally_dtype_size(dtype) * 8 - 1);
    const uint64_t extremes[] = { top, top + 1, top - 1, top - 2 };
    return truncate_bits(i < 10 ? (uint64_t)integer_edges[i] : extremes[i - 10], dtype);
}

/* Pairs of all edges first when a and b are made with stride 1 and 14, then any bits, every other
 * one a float of moderate size so that rounding is met more often than infinity. */
static void fill(void *array, size_t count, tally_dtype dtype, size_t stride)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = random_bits();
        if (i < 14 * 14)
            bits = edge(dtype, i / stride % 14);
        else if (is_float(dtype) && i % 2)
            bits = encode(ldexp((double)(int64_t)bits, -64 + (int)(bits & 7)), dtype);
        set_bits(array, i, tally_dtype_size(dtype), truncate_bits(bits, dtype));
    }
}

/* ---- tests ---- */

#define FOR_EACH_SET(ops)                                                               \
    for (int set_ = 0; set_ < TLY_REDUCE_SET_COUNT; set_++)                              \
        for (const tly_reduce_ops *ops = tly_reduce_ops_of((tly_reduce_set)set_); ops != NULL; ops = NULL)

static void check_reduce(const tly_reduce_ops *ops, tally_dtype dtype, tally_op op, int divisor,
                         size_t count, size_t misalign_acc, size_t misalign_in, const void *a, const void *b,
                         const void *want)
{
    const size_t size = tally_dtype_size(dtype);
    fenced acc = fence(a, count * size, misalign_acc), in = fence(b, count * size, misalign_in);
    ops->rows[dtype].op[op](acc.data, in.data, count, divisor);
    for (size_t i = 0; i < count; i++)
        check_element(get_bits(acc.data, i, size), get_bits(want, i, size), dtype, ops->name,
                      tally_op_name(op), divisor, i);
    assert_memory_equal(in.data, b, count * size);
    unfence(acc);
    unfence(in);
}

static void every_kernel_gives_the_reference_value_at_any_length_and_alignment(void **state)
{
    (void)state;
    static uint8_t a[MAX_COUNT * 8], b[MAX_COUNT * 8], want[MAX_COUNT * 8];
    for (int t = 0; t < TALLY_DTYPE_COUNT; t++) {
        const tally_dtype dtype = (tally_dtype)t;
        const size_t size = tally_dtype_size(dtype);
        fill(a, MAX_COUNT, dtype, 1);
        fill(b, MAX_COUNT, dtype, 14);
        for (int op = 0; op < TALLY_OP_COUNT; op++) {
            for (size_t d = 0; d < COUNT_OF(divisors); d++) {
                for (size_t i = 0; i < MAX_COUNT; i++)
                    set_bits(want, i, size, expect(get_bits(a, i, size), get_bits(b, i, size), dtype,
                                                   (tally_op)op, divisors[d]));
                for (size_t c = 0; c < COUNT_OF(counts); c++)
                    for (size_t m = 0; m < 16; m++) /* the longest with each misalignment once */
                        if (counts[c] < MAX_COUNT || m % 5 == 0)
                            FOR_EACH_SET(ops)
                                check_reduce(ops, dtype, (tally_op)op, divisors[d], counts[c], m % 4, m / 4,
                                             a, b, want);
            }
        }
    }
}

static void an_array_may_be_reduced_with_itself(void **state)
{
    (void)state;
    static uint8_t a[MAX_COUNT * 8];
    for (int t = 0; t < TALLY_DTYPE_COUNT; t++) {
        const tally_dtype dtype = (tally_dtype)t;
        const size_t size = tally_dtype_size(dtype);
        fill(a, MAX_COUNT, dtype, 1);
        for (int op = 0; op < TALLY_OP_COUNT; op++)
            for (size_t d = 0; d < COUNT_OF(divisors); d++)
                FOR_EACH_SET(ops) {
                    fenced acc = fence(a, MAX_COUNT * size, d % 4);
                    ops->rows[dtype].op[op](acc.data, acc.data, MAX_COUNT, divisors[d]);
                    for (size_t i = 0; i < MAX_COUNT; i++) {
                        const uint64_t x = get_bits(a, i, size);
                        check_element(get_bits(acc.data, i, size),
                                      expect(x, x, dtype, (tally_op)op, divisors[d]), dtype, ops->name,
                                      tally_op_name((tally_op)op), divisors[d], i);
                    }
                    unfence(acc);
                }
    }
}

static void check_wide(const tly_reduce_ops *ops, tally_dtype dtype, int n, int divisor, size_t count,
                       size_t misalignment, bool in_place, const uint8_t (*parts)[MAX_COUNT * 8],
                       const void *want)
{
    const tly_reduce_row *row = &ops->rows[dtype];
    const size_t size = tally_dtype_size(dtype);
    fenced wide = fence(NULL, count * tly_reduce_wide_size(dtype), 0);
    fenced in[MAX_PARTS], out = fence(NULL, count * size, 3 - misalignment);
    for (int i = 0; i < n; i++)
        in[i] = fence(parts[i], count * size, (misalignment + (size_t)i) % 4);

    row->widen(wide.data, in[0].data, in[1].data, count);
    for (int i = 2; i < n - 1; i++)
        row->wide_add(wide.data, in[i].data, count);
    uint8_t *target = in_place ? in[n - 1].data : out.data;
    row->narrow(target, wide.data, in[n - 1].data, count, divisor);

    for (size_t i = 0; i < count; i++)
        check_element(get_bits(target, i, size), get_bits(want, i, size), dtype, ops->name, "wide sum",
                      divisor, i);
    for (int i = 0; i < n; i++) {
        if (i < n - 1 || !in_place)
            assert_memory_equal(in[i].data, parts[i], count * size);
        unfence(in[i]);
    }
    unfence(wide);
    unfence(out);
}

static void wide_sums_of_three_and_eight_are_rounded_once(void **state)
{
    (void)state;
    static uint8_t parts[MAX_PARTS][MAX_COUNT * 8], want[MAX_COUNT * 8];
    for (int t = 0; t < TALLY_DTYPE_COUNT; t++) {
        const tally_dtype dtype = (tally_dtype)t;
        const size_t size = tally_dtype_size(dtype);
        for (size_t p = 0; p < MAX_PARTS; p++)
            fill(parts[p], MAX_COUNT, dtype, p % 2 ? 14 : 1);
        for (int n = 3; n <= MAX_PARTS; n += 5) {
            for (size_t d = 0; d < COUNT_OF(divisors); d++) {
                for (size_t i = 0; i < MAX_COUNT; i++) {
                    uint64_t bits[MAX_PARTS];
                    for (int p = 0; p < n; p++)
                        bits[p] = get_bits(parts[p], i, size);
                    set_bits(want, i, size, expect_sum(bits, n, dtype, divisors[d]));
                }
                for (size_t c = 0; c < COUNT_OF(counts); c++)
                    for (size_t m = 0; m < 4; m++)
                        FOR_EACH_SET(ops) {
                            check_wide(ops, dtype, n, divisors[d], counts[c], m, false, parts, want);
                            check_wide(ops, dtype, n, divisors[d], counts[c], m, true, parts, want);
                        }
            }
        }
    }
}

enum { PATTERNS = 65536 };

static void all_65536_patterns_widen_exactly(void **state)
{
    (void)state;
    static uint16_t h[PATTERNS], minus_zero[PATTERNS];
    static float wide[PATTERNS];
    for (int i = 0; i < PATTERNS; i++) {
        h[i] = (uint16_t)i;
        minus_zero[i] = 0x8000; /* adds nothing, not even a sign */
    }
    for (int t = TALLY_DTYPE_F16; t <= TALLY_DTYPE_BF16; t++)
        FOR_EACH_SET(ops) {
            ops->rows[t].widen(wide, h, minus_zero, PATTERNS);
            for (size_t i = 0; i < PATTERNS; i++)
                check_element(get_bits(wide, i, 4), encode(decode(i, (tally_dtype)t), TALLY_DTYPE_F32),
                              TALLY_DTYPE_F32, ops->name, tally_dtype_name((tally_dtype)t), 1, i);
        }
}

/* From each pattern: its value, the middle between it and the next, the two binary32 numbers beside the
 * middle, and the two beside the value. */
static size_t values_around(uint64_t pattern, tally_dtype dtype, float *values)
{
    const float v = (float)decode(pattern, dtype);
    if (!isfinite(v)) {
        values[0] = v;
        return 1;
    }
    const uint64_t exponent_bit = (uint64_t)1 << formats[dtype].fraction;
    double next = decode(pattern + 1, dtype);
    if (isinf(next)) /* where the next one would be if there were another exponent */
        next = 4 * decode(pattern + 1 - 2 * exponent_bit, dtype);
    const float middle = (float)((double)v + (next - (double)v) / 2);
    const float around[] = { v, middle, nextafterf(middle, -INFINITY), nextafterf(middle, INFINITY),
                             nextafterf(v, -INFINITY), nextafterf(v, INFINITY) };
    memcpy(values, around, sizeof around);
    return COUNT_OF(around);
}

static void all_65536_patterns_and_the_values_between_narrow_to_nearest_even(void **state)
{
    (void)state;
    enum { MORE = 100000 }; /* any bits */
    static float values[6 * PATTERNS + MORE];
    static uint16_t minus_zero[COUNT_OF(values)], out[COUNT_OF(values)];
    memset(minus_zero, 0, sizeof minus_zero);
    for (size_t i = 0; i < COUNT_OF(values); i++)
        minus_zero[i] = 0x8000;
    for (int t = TALLY_DTYPE_F16; t <= TALLY_DTYPE_BF16; t++) {
        size_t count = 0;
        for (uint64_t h = 0; h < PATTERNS; h++)
            count += values_around(h, (tally_dtype)t, values + count);
        for (int i = 0; i < MORE; i++)
            set_bits(values, count++, 4, random_bits());
        FOR_EACH_SET(ops) {
            ops->rows[t].narrow(out, values, minus_zero, count, 1);
            for (size_t i = 0; i < count; i++)
                check_element(out[i], encode((double)values[i], (tally_dtype)t), (tally_dtype)t, ops->name,
                              "narrowing", 1, i);
        }
    }
}

static void all_pairs_of_bytes_average_as_c_divides(void **state)
{
    (void)state;
    static uint8_t acc[PATTERNS], in[PATTERNS];
    static const int by[] = { 2, 3, 4, 5, 7, 8, 64, 100, 127, 128, 255, 256, 1000, 65536, INT32_MAX };
    for (int t = TALLY_DTYPE_I8; t <= TALLY_DTYPE_U8; t++)
        for (size_t d = 0; d < COUNT_OF(by); d++)
            FOR_EACH_SET(ops) {
                for (size_t i = 0; i < PATTERNS; i++) {
                    acc[i] = (uint8_t)i;
                    in[i] = (uint8_t)(i >> 8);
                }
                ops->rows[t].op[TALLY_OP_AVERAGE](acc, in, PATTERNS, by[d]);
                for (size_t i = 0; i < PATTERNS; i++)
                    check_element(acc[i],
                                  expect(i & 255, i >> 8, (tally_dtype)t, TALLY_OP_AVERAGE, by[d]),
                                  (tally_dtype)t, ops->name, "average", by[d], i);
            }
}

/* n equal contributions through the public functions, on 35 elements */
static uint64_t reduce_equal(uint64_t bits, int n, tally_dtype dtype, tally_op op)
{
    enum { COUNT = 35 };
    const size_t size = tally_dtype_size(dtype);
    _Alignas(16) uint8_t wide[COUNT * 16];
    uint8_t in[COUNT * 8], out[COUNT * 8];
    for (size_t i = 0; i < COUNT; i++)
        set_bits(in, i, size, bits);
    memcpy(out, in, sizeof out);
    if (tly_reduce_is_wide(dtype, op, n)) {
        tly_reduce_widen(wide, in, in, COUNT, dtype);
        for (int i = 3; i < n; i++)
            tly_reduce_wide_add(wide, in, COUNT, dtype);
        tly_reduce_narrow(out, wide, in, COUNT, dtype, op == TALLY_OP_AVERAGE ? n : 1);
    } else {
        for (int i = 1; i < n; i++)
            tly_reduce(out, in, COUNT, dtype, op, i == n - 1 ? n : 1);
    }
    for (size_t i = 1; i < COUNT; i++)
        assert_int_equal(get_bits(out, i, size), get_bits(out, 0, size));
    return get_bits(out, 0, size);
}

static void eight_float16_20000_average_to_20000_and_sum_to_infinity(void **state)
{
    (void)state;
    assert_int_equal(reduce_equal(0x74e2, 8, TALLY_DTYPE_F16, TALLY_OP_AVERAGE), 0x74e2);
    assert_int_equal(reduce_equal(0x74e2, 8, TALLY_DTYPE_F16, TALLY_OP_SUM), 0x7c00);
    /* 2^-24, the smallest: the sum of eight is exact, their average is 2^-24 again */
    assert_int_equal(reduce_equal(1, 8, TALLY_DTYPE_F16, TALLY_OP_SUM), 8);
    assert_int_equal(reduce_equal(1, 8, TALLY_DTYPE_F16, TALLY_OP_AVERAGE), 1);
}

static void bfloat16_ones_average_to_one_and_sum_to_their_number(void **state)
{
    (void)state;
    for (int n = 2; n <= 600; n++) {
        assert_int_equal(reduce_equal(0x3f80, n, TALLY_DTYPE_BF16, TALLY_OP_AVERAGE), 0x3f80);
        assert_int_equal(reduce_equal(0x3f80, n, TALLY_DTYPE_BF16, TALLY_OP_SUM),
                         encode(n, TALLY_DTYPE_BF16));
    }
}

static void equal_integers_average_to_themselves_at_the_extremes(void **state)
{
    (void)state;
    assert_int_equal(reduce_equal(100, 8, TALLY_DTYPE_I8, TALLY_OP_AVERAGE), 100);
    for (int n = 2; n <= 9; n++) {
        assert_int_equal(reduce_equal(0x80, n, TALLY_DTYPE_I8, TALLY_OP_AVERAGE), 0x80);
        assert_int_equal(reduce_equal(0xff, n, TALLY_DTYPE_U8, TALLY_OP_AVERAGE), 0xff);
        assert_int_equal(reduce_equal(0x80000000, n, TALLY_DTYPE_I32, TALLY_OP_AVERAGE), 0x80000000);
        assert_int_equal(reduce_equal(0x7fffffff, n, TALLY_DTYPE_I32, TALLY_OP_AVERAGE), 0x7fffffff);
        assert_true(reduce_equal((uint64_t)INT64_MIN, n, TALLY_DTYPE_I64, TALLY_OP_AVERAGE) ==
                    (uint64_t)INT64_MIN);
        assert_true(reduce_equal(INT64_MAX, n, TALLY_DTYPE_I64, TALLY_OP_AVERAGE) == INT64_MAX);
    }
}

static void integer_sums_wrap(void **state)
{
    (void)state;
    assert_int_equal(reduce_equal(100, 3, TALLY_DTYPE_I8, TALLY_OP_SUM), 300 - 256);
    assert_int_equal(reduce_equal(200, 2, TALLY_DTYPE_U8, TALLY_OP_SUM), 400 - 256);
    assert_int_equal(reduce_equal(0x7fffffff, 2, TALLY_DTYPE_I32, TALLY_OP_SUM), 0xfffffffe);
    assert_true(reduce_equal(INT64_MAX, 3, TALLY_DTYPE_I64, TALLY_OP_SUM) == (uint64_t)INT64_MAX - 2);
}

static void wide_integer_averages_hold_for_any_divisor_and_any_accumulator(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    static const int by[] = { 2, 3, 5, 7, 10, 641, 4096, 65537, 1000003, 1 << 30, INT32_MAX - 1, INT32_MAX };
    static int32_t in32[COUNT], wide8[COUNT], out32[COUNT];
    static int64_t in64[COUNT], wide32[COUNT], out64[COUNT];
    static int8_t in8[COUNT], out8[COUNT];
    _Alignas(16) static __int128 wide64[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        wide8[i] = (int32_t)random_bits() / 2;
        wide32[i] = (int64_t)random_bits() >> (random_bits() & 63);
        const unsigned __int128 any = (unsigned __int128)random_bits() << 64 | random_bits();
        wide64[i] = (__int128)any >> (1 + random_bits() % 127);
        in8[i] = (int8_t)random_bits();
        in32[i] = (int32_t)random_bits();
        in64[i] = (int64_t)random_bits();
    }
    wide8[0] = INT32_MIN, in8[0] = 0;
    wide8[1] = INT32_MAX, in8[1] = 0;
    wide32[0] = INT64_MIN, in32[0] = 0;
    wide32[1] = INT64_MAX, in32[1] = 0;
    for (size_t d = 0; d < COUNT_OF(by); d++)
        FOR_EACH_SET(ops) {
            ops->rows[TALLY_DTYPE_I8].narrow(out8, wide8, in8, COUNT, by[d]);
            ops->rows[TALLY_DTYPE_I32].narrow(out32, wide32, in32, COUNT, by[d]);
            ops->rows[TALLY_DTYPE_I64].narrow(out64, wide64, in64, COUNT, by[d]);
            for (size_t i = 0; i < COUNT; i++) {
                const int64_t sum = (int64_t)((uint64_t)wide32[i] + (uint64_t)(int64_t)in32[i]);
                assert_int_equal(out8[i], (int8_t)((wide8[i] + in8[i]) / by[d]));
                assert_int_equal(out32[i], (int32_t)(sum / by[d]));
                assert_true(out64[i] == (int64_t)((wide64[i] + in64[i]) / by[d]));
            }
        }
}

static void minimum_and_maximum_do_not_depend_on_the_order(void **state)
{
    (void)state;
    for (int t = TALLY_DTYPE_F16; t <= TALLY_DTYPE_F64; t++) {
        const size_t size = tally_dtype_size((tally_dtype)t);
        for (int op = TALLY_OP_MIN; op <= TALLY_OP_MAX; op++)
            FOR_EACH_SET(ops)
                for (size_t i = 0; i < 14; i++)
                    for (size_t j = 0; j < 14; j++) {
                        uint8_t x[8], y[8], z[8];
                        set_bits(x, 0, size, edge((tally_dtype)t, i));
                        set_bits(y, 0, size, edge((tally_dtype)t, j));
                        memcpy(z, x, size);
                        ops->rows[t].op[op](x, y, 1, 1);
                        ops->rows[t].op[op](y, z, 1, 1);
                        assert_memory_equal(x, y, size); /* NaN's bits too */
                    }
    }
}

static void no_element_needs_no_memory(void **state)
{
    (void)state;
    for (int t = 0; t < TALLY_DTYPE_COUNT; t++) {
        for (int op = 0; op < TALLY_OP_COUNT; op++)
            for (int divisor = 0; divisor <= 3; divisor++)
                tly_reduce(NULL, NULL, 0, (tally_dtype)t, (tally_op)op, divisor);
        tly_reduce_widen(NULL, NULL, NULL, 0, (tally_dtype)t);
        tly_reduce_wide_add(NULL, NULL, 0, (tally_dtype)t);
        tly_reduce_narrow(NULL, NULL, NULL, 0, (tally_dtype)t, 3);
    }
}

static void a_divisor_of_zero_only_adds(void **state)
{
    (void)state;
    float acc[9] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    const float in[9] = { 9, 8, 7, 6, 5, 4, 3, 2, 1 };
    tly_reduce(acc, in, 9, TALLY_DTYPE_F32, TALLY_OP_AVERAGE, 0);
    for (int i = 0; i < 9; i++)
        assert_true(acc[i] == 10);
    tly_reduce(acc, in, 9, TALLY_DTYPE_F32, TALLY_OP_AVERAGE, 3);
    for (int i = 0; i < 9; i++)
        assert_true(acc[i] == (10 + in[i]) / 3);
}

static void the_fastest_set_is_in_use(void **state)
{
    (void)state;
    const char *fastest = NULL;
    FOR_EACH_SET(ops) {
        print_message("kernel set %s is tested\n", ops->name);
        fastest = ops->name;
    }
    assert_string_equal(tly_reduce_ops_of(TLY_REDUCE_BASE)->name, "baseline");
    assert_string_equal(tly_reduce_isa(), fastest);
}

static void wide_accumulators_are_for_halves_and_integer_averages_of_more_than_two(void **state)
{
    (void)state;
    for (int t = 0; t < TALLY_DTYPE_COUNT; t++) {
        const bool half = t == TALLY_DTYPE_F16 || t == TALLY_DTYPE_BF16;
        const bool integer = t >= TALLY_DTYPE_I8;
        for (int n = 1; n <= 4; n++) {
            assert_int_equal(tly_reduce_is_wide((tally_dtype)t, TALLY_OP_SUM, n), half && n > 2);
            assert_int_equal(tly_reduce_is_wide((tally_dtype)t, TALLY_OP_AVERAGE, n),
                             (half || integer) && n > 2);
            assert_false(tly_reduce_is_wide((tally_dtype)t, TALLY_OP_MIN, n));
            assert_false(tly_reduce_is_wide((tally_dtype)t, TALLY_OP_MAX, n));
        }
    }
    static const size_t sizes[] = { 4, 4, 4, 8, 4, 4, 8, 16 };
    for (int t = 0; t < TALLY_DTYPE_COUNT; t++)
        assert_int_equal(tly_reduce_wide_size((tally_dtype)t), sizes[t]);
}

static void data_types_and_operations_have_names_and_sizes(void **state)
{
    (void)state;
    static const char *const dtypes[] = { "float16", "bfloat16", "float32", "float64",
                                          "int8",    "uint8",    "int32",   "int64" };
    static const size_t sizes[] = { 2, 2, 4, 8, 1, 1, 4, 8 };
    static const char *const ops[] = { "sum", "average", "min", "max" };
    for (int t = 0; t < TALLY_DTYPE_COUNT; t++) {
        assert_string_equal(tally_dtype_name((tally_dtype)t), dtypes[t]);
        assert_int_equal(tally_dtype_size((tally_dtype)t), sizes[t]);
    }
    for (int op = 0; op < TALLY_OP_COUNT; op++)
        assert_string_equal(tally_op_name((tally_op)op), ops[op]);
    static const int strangers[] = { -1, 8, 255, INT32_MIN, INT32_MAX };
    for (size_t i = 0; i < COUNT_OF(strangers); i++) {
        /* through memory: a peer's number may be none of the enumerators */
        tally_dtype dtype;
        tally_op op;
        memcpy(&dtype, &strangers[i], sizeof dtype);
        memcpy(&op, &strangers[i], sizeof op);
        assert_null(tally_dtype_name(dtype));
        assert_int_equal(tally_dtype_size(dtype), 0);
        assert_null(tally_op_name(op));
    }
    tally_op op = TALLY_OP_COUNT;
    assert_null(tally_op_name(op));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_set_is_in_use),
        cmocka_unit_test(data_types_and_operations_have_names_and_sizes),
        cmocka_unit_test(wide_accumulators_are_for_halves_and_integer_averages_of_more_than_two),
        cmocka_unit_test(all_65536_patterns_widen_exactly),
        cmocka_unit_test(all_65536_patterns_and_the_values_between_narrow_to_nearest_even),
        cmocka_unit_test(every_kernel_gives_the_reference_value_at_any_length_and_alignment),
        cmocka_unit_test(an_array_may_be_reduced_with_itself),
        cmocka_unit_test(all_pairs_of_bytes_average_as_c_divides),
        cmocka_unit_test(wide_sums_of_three_and_eight_are_rounded_once),
        cmocka_unit_test(wide_integer_averages_hold_for_any_divisor_and_any_accumulator),
        cmocka_unit_test(eight_float16_20000_average_to_20000_and_sum_to_infinity),
        cmocka_unit_test(bfloat16_ones_average_to_one_and_sum_to_their_number),
        cmocka_unit_test(equal_integers_average_to_themselves_at_the_extremes),
        cmocka_unit_test(integer_sums_wrap),
        cmocka_unit_test(minimum_and_maximum_do_not_depend_on_the_order),
        cmocka_unit_test(a_divisor_of_zero_only_adds),
        cmocka_unit_test(no_element_needs_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
