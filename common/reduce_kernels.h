/* reduce_kernels.h - the kernels behind reduce.h, written once and compiled per instruction set.
 *
 * Two readers. reduce.c and the tests use the table types and tly_reduce_ops_of(). The files
 * reduce_base.c, reduce_avx2.c and reduce_avx512.c define KERNEL_TABLE and KERNEL_VECTOR_BYTES first
 * and get the kernels themselves, as static functions, and the table that names them.
 *
 * Every set gives the same bits (which NaN apart): the kernels use only operations that IEEE 754
 * rounds exactly, element by element, and are compiled without contraction. They are pure, and
 * expect the default rounding mode. */
#ifndef TLY_REDUCE_KERNELS_H
#define TLY_REDUCE_KERNELS_H

#include "common/reduce.h"

typedef struct tly_reduce_row {
    void (*op[TALLY_OP_COUNT])(void *acc, const void *in, size_t count, int divisor);
    void (*widen)(void *wide, const void *a, const void *b, size_t count);
    void (*wide_add)(void *wide, const void *in, size_t count);
    void (*narrow)(void *out, const void *wide, const void *in, size_t count, int divisor);
} tly_reduce_row;

typedef struct tly_reduce_ops {
    const char *name; /* NULL: the compiler did not target this instruction set */
    tly_reduce_row rows[TALLY_DTYPE_COUNT];
} tly_reduce_ops;

typedef enum tly_reduce_set {
    TLY_REDUCE_BASE,
    TLY_REDUCE_AVX2,
    TLY_REDUCE_AVX512,
    TLY_REDUCE_SET_COUNT
} tly_reduce_set;

extern const tly_reduce_ops tly_reduce_ops_base, tly_reduce_ops_avx2, tly_reduce_ops_avx512;

/* One kernel set, or NULL when this build or this processor lacks it. The base set is always there. */
const tly_reduce_ops *tly_reduce_ops_of(tly_reduce_set set);

#endif

#if defined(KERNEL_TABLE) && !defined(KERNEL_TEMPLATE)
#define KERNEL_TEMPLATE

#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

/* ---- vectors ---- */

/* Full vectors, and those that hold as many 16-bit elements as a full one holds 32-bit ones. */
#define VECTOR(bytes) __attribute__((vector_size(bytes)))
typedef int8_t vi8 VECTOR(KERNEL_VECTOR_BYTES);
typedef uint8_t vu8 VECTOR(KERNEL_VECTOR_BYTES);
typedef int16_t vi16 VECTOR(KERNEL_VECTOR_BYTES);
typedef uint16_t vu16 VECTOR(KERNEL_VECTOR_BYTES);
typedef int32_t vi32 VECTOR(KERNEL_VECTOR_BYTES);
typedef uint32_t vu32 VECTOR(KERNEL_VECTOR_BYTES);
typedef int64_t vi64 VECTOR(KERNEL_VECTOR_BYTES);
typedef uint64_t vu64 VECTOR(KERNEL_VECTOR_BYTES);
typedef float vf32 VECTOR(KERNEL_VECTOR_BYTES);
typedef double vf64 VECTOR(KERNEL_VECTOR_BYTES);
typedef uint16_t vhalf VECTOR(KERNEL_VECTOR_BYTES / 2);

#define LANES(scalar) (KERNEL_VECTOR_BYTES / sizeof(scalar))

/* out[i] = value, an expression in the vectors x and y, for count elements, lanes at a time. The rest
 * goes through vectors on the stack, so that no byte outside is touched and the arithmetic is written
 * once. Every vector is loaded before the store to the same place: out may equal either input. */
#define MAP(lanes, count, otype, out, xtype, xs, ytype, ys, value)          \
    do {                                                                    \
        unsigned char *op_ = (out);                                         \
        const unsigned char *xp_ = (xs), *yp_ = (ys);                       \
        size_t left_ = (count);                                             \
        for (; left_ >= (lanes); left_ -= (lanes)) {                        \
            xtype x;                                                        \
            ytype y;                                                        \
            memcpy(&x, xp_, sizeof x);                                      \
            memcpy(&y, yp_, sizeof y);                                      \
            const otype o_ = (value);                                       \
            memcpy(op_, &o_, sizeof o_);                                    \
            op_ += sizeof o_;                                               \
            xp_ += sizeof x;                                                \
            yp_ += sizeof y;                                                \
        }                                                                   \
        if (left_ > 0) {                                                    \
            xtype x = { 0 };                                                \
            ytype y = { 0 };                                                \
            memcpy(&x, xp_, left_ * (sizeof x / (lanes)));                  \
            memcpy(&y, yp_, left_ * (sizeof y / (lanes)));                  \
            const otype o_ = (value);                                       \
            memcpy(op_, &o_, left_ * (sizeof o_ / (lanes)));                \
        }                                                                   \
    } while (0)

/* mask has all or no bits set in each lane, as a comparison gives. */
#define SELECT(type, mask, yes, no) (((type)(mask) & (yes)) | (~(type)(mask) & (no)))

static inline bool is_power_of_two(int divisor)
{
    return (divisor & (divisor - 1)) == 0;
}

/* ---- 16-bit floats ---- */

/* 16-bit lanes into 32-bit ones, and the low halves of lanes whose high halves are zero back again; by
 * hand where gcc 12 shuffles too much. */
#if defined(__AVX2__) && KERNEL_VECTOR_BYTES == 32

static inline vu32 extend(vhalf h)
{
    return (vu32)_mm256_cvtepu16_epi32((__m128i)h);
}

static inline vhalf pack(vu32 v)
{
    const __m256i lanes = (__m256i)v;
    return (vhalf)_mm_packus_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
}

#else

static inline vu32 extend(vhalf h)
{
    return __builtin_convertvector(h, vu32);
}

static inline vhalf pack(vu32 v)
{
    return __builtin_convertvector(v, vhalf);
}

#endif

#if defined(__AVX512F__) && KERNEL_VECTOR_BYTES == 64

static inline vf32 widen_f16(vhalf h)
{
    return (vf32)_mm512_cvtph_ps((__m256i)h);
}

static inline vhalf narrow_f16(vf32 f)
{
    return (vhalf)_mm512_cvtps_ph((__m512)f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

#elif defined(__F16C__) && KERNEL_VECTOR_BYTES == 32

static inline vf32 widen_f16(vhalf h)
{
    return (vf32)_mm256_cvtph_ps((__m128i)h);
}

static inline vhalf narrow_f16(vf32 f)
{
    return (vhalf)_mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT);
}

#else

static inline vf32 widen_f16(vhalf h)
{
    const vu32 v = extend(h);
    const vu32 magnitude = (v & 0x7fff) << 13; /* its exponent is 112 too small for binary32 */
    const vu32 exponent = magnitude & 0x0f800000;
    const vu32 normal = magnitude + (112u << 23);
    const vu32 special = normal + (112u << 23); /* infinity and NaN */
    /* 2^-14 + fraction * 2^-24 as a normal number, and 2^-14 taken off again: exact */
    const vu32 tiny = (vu32)((vf32)(magnitude + (113u << 23)) - 0x1p-14f);
    const vu32 finite = SELECT(vu32, exponent == 0, tiny, normal);
    return (vf32)(SELECT(vu32, exponent == 0x0f800000, special, finite) | (v & 0x8000) << 16);
}

static inline vhalf narrow_f16(vf32 f)
{
    const vu32 v = (vu32)f;
    const vu32 magnitude = v & 0x7fffffff;
    const vi32 ordered = (vi32)magnitude; /* signed comparisons are what SSE2 has */
    /* A carry out of the fraction goes on into the exponent, at the largest value into infinity. */
    const vu32 normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    /* One unit in the last place of 0.5 is one of binary16's subnormals: the addition rounds. */
    const vu32 tiny = (vu32)((vf32)magnitude + 0.5f) - 0x3f000000;
    const vu32 nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    const vu32 infinity = { 0 };
    vu32 h = SELECT(vu32, ordered < (113 << 23), tiny, normal);
    h = SELECT(vu32, ordered >= 0x47800000, infinity + 0x7c00, h);
    h = SELECT(vu32, ordered > 0x7f800000, nan, h);
    return pack(h | (v >> 16 & 0x8000));
}

#endif

static inline vf32 widen_bf16(vhalf h)
{
    return (vf32)(extend(h) << 16);
}

/* The upper half of each lane is the rounded number. Only for the result of an operation: its NaN is
 * quiet and stays one without rounding, which could carry it into infinity or zero. */
static inline vu32 round_bf16(vf32 f)
{
    const vu32 v = (vu32)f;
    return v + ((0x7fff + (v >> 16 & 1)) & (vu32)(f == f));
}

static inline vhalf narrow_bf16(vf32 f)
{
    return pack(round_bf16(f) >> 16);
}

/* Two bfloat16 in each lane, as binary32: no shuffle is needed when in and out are both 16 bits wide. */
static inline vf32 low_bf16(vu32 pair)
{
    return (vf32)(pair << 16);
}

static inline vf32 high_bf16(vu32 pair)
{
    return (vf32)(pair & 0xffff0000);
}

static inline vu32 join_bf16(vf32 low, vf32 high)
{
    return round_bf16(low) >> 16 | (round_bf16(high) & 0xffff0000);
}

/* ---- minimum and maximum of floats ----
 *
 * -0 counts as less than +0 and every NaN becomes the same quiet one, so that the value does not
 * depend on the order in which contributions arrive. */

/* Equal elements differ at most in the sign of zero, which OR keeps for the minimum and AND drops for
 * the maximum; unordered ones leave nothing, or all ones, of which the NaN is made. */
#define FLOAT_MIN_MAX(name, vec, bits, quiet_nan)                                               \
    static inline vec name##_min_of(vec x, vec y)                                               \
    {                                                                                           \
        const bits le = (bits)(x <= y), ge = (bits)(x >= y);                                    \
        return (vec)((le & (bits)x) | (ge & (bits)y) | (~(le | ge) & (quiet_nan)));             \
    }                                                                                           \
    static inline vec name##_max_of(vec x, vec y)                                               \
    {                                                                                           \
        const bits le = (bits)(x <= y), ge = (bits)(x >= y);                                    \
        return (vec)(((bits)x | ~ge) & ((bits)y | ~le) & (le | ge | (quiet_nan)));              \
    }

/* 16-bit floats compare as integers once the magnitude of negative ones is turned around. */
static inline vi16 half_order(vi16 h)
{
    return h ^ (h >> 15 & 0x7fff);
}

#define HALF_MIN_MAX(name, infinity, quiet_nan)                                                 \
    static inline vi16 name##_or_nan(vi16 x, vi16 y, vi16 ordered)                              \
    {                                                                                           \
        const vi16 nan = ((x & 0x7fff) > (infinity)) | ((y & 0x7fff) > (infinity));             \
        return SELECT(vi16, nan, quiet_nan, half_order(ordered));                               \
    }                                                                                           \
    static inline vi16 name##_min_of(vi16 x, vi16 y)                                            \
    {                                                                                           \
        const vi16 a = half_order(x), b = half_order(y);                                        \
        return name##_or_nan(x, y, SELECT(vi16, a < b, a, b));                                  \
    }                                                                                           \
    static inline vi16 name##_max_of(vi16 x, vi16 y)                                            \
    {                                                                                           \
        const vi16 a = half_order(x), b = half_order(y);                                        \
        return name##_or_nan(x, y, SELECT(vi16, a > b, a, b));                                  \
    }

/* ---- float kernels ---- */

/* As MAP, of value(scale), a macro that puts scale behind its sum. The reciprocal of a power of two is
 * exact, and so multiplying by it is the same division, only faster. */
#define MAP_MEAN(lanes, count, otype, out, xtype, xs, ytype, ys, scalar, divisor, value)        \
    do {                                                                                        \
        if ((divisor) <= 1) {                                                                   \
            MAP(lanes, count, otype, out, xtype, xs, ytype, ys, value());                       \
        } else if (is_power_of_two(divisor)) {                                                  \
            const scalar factor = 1 / (scalar)(divisor);                                        \
            MAP(lanes, count, otype, out, xtype, xs, ytype, ys, value(*factor));                \
        } else {                                                                                \
            const scalar by = (scalar)(divisor);                                                \
            MAP(lanes, count, otype, out, xtype, xs, ytype, ys, value(/ by));                   \
        }                                                                                       \
    } while (0)

/* Sum and average load vectors of vec, lanes elements each; minimum and maximum full ones of order,
 * whose elements are as large as elem. */
#define FLOAT_KERNELS(name, elem, vec, lanes, order, scalar, sum)                               \
    static void name##_sum(void *acc, const void *in, size_t count, int divisor)                \
    {                                                                                           \
        (void)divisor;                                                                          \
        MAP(lanes, count, vec, acc, vec, acc, vec, in, sum());                                  \
    }                                                                                           \
    static void name##_average(void *acc, const void *in, size_t count, int divisor)            \
    {                                                                                           \
        MAP_MEAN(lanes, count, vec, acc, vec, acc, vec, in, scalar, divisor, sum);              \
    }                                                                                           \
    static void name##_min(void *acc, const void *in, size_t count, int divisor)                \
    {                                                                                           \
        (void)divisor;                                                                          \
        MAP(LANES(elem), count, order, acc, order, acc, order, in, name##_min_of(x, y));        \
    }                                                                                           \
    static void name##_max(void *acc, const void *in, size_t count, int divisor)                \
    {                                                                                           \
        (void)divisor;                                                                          \
        MAP(LANES(elem), count, order, acc, order, acc, order, in, name##_max_of(x, y));        \
    }

/* vec: elements in memory; work: as many wide ones, of scalar. */
#define FLOAT_WIDE_KERNELS(name, vec, work, scalar, widen_vec, narrow_sum)                      \
    static void name##_widen(void *wide, const void *a, const void *b, size_t count)            \
    {                                                                                           \
        MAP(LANES(scalar), count, work, wide, vec, a, vec, b, widen_vec(x) + widen_vec(y));     \
    }                                                                                           \
    static void name##_wide_add(void *wide, const void *in, size_t count)                       \
    {                                                                                           \
        MAP(LANES(scalar), count, work, wide, work, wide, vec, in, x + widen_vec(y));           \
    }                                                                                           \
    static void name##_narrow(void *out, const void *wide, const void *in, size_t count,        \
                              int divisor)                                                      \
    {                                                                                           \
        MAP_MEAN(LANES(scalar), count, vec, out, work, wide, vec, in, scalar, divisor, narrow_sum); \
    }

#define AS_IS(v) (v)
#define SUM(scale) ((x + y) scale)
#define SUM_F16(scale) narrow_f16((widen_f16(x) + widen_f16(y)) scale)
#define SUM_BF16(scale) join_bf16((low_bf16(x) + low_bf16(y)) scale, (high_bf16(x) + high_bf16(y)) scale)
#define NARROW_F16(scale) narrow_f16((x + widen_f16(y)) scale)
#define NARROW_BF16(scale) narrow_bf16((x + widen_bf16(y)) scale)

HALF_MIN_MAX(f16, 0x7c00, 0x7e00)
HALF_MIN_MAX(bf16, 0x7f80, 0x7fc0)
FLOAT_MIN_MAX(f32, vf32, vu32, 0x7fc00000)
FLOAT_MIN_MAX(f64, vf64, vu64, 0x7ff8000000000000)

FLOAT_KERNELS(f16, uint16_t, vhalf, LANES(float), vi16, float, SUM_F16)
FLOAT_KERNELS(bf16, uint16_t, vu32, LANES(uint16_t), vi16, float, SUM_BF16)
FLOAT_KERNELS(f32, float, vf32, LANES(float), vf32, float, SUM)
FLOAT_KERNELS(f64, double, vf64, LANES(double), vf64, double, SUM)

FLOAT_WIDE_KERNELS(f16, vhalf, vf32, float, widen_f16, NARROW_F16)
FLOAT_WIDE_KERNELS(bf16, vhalf, vf32, float, widen_bf16, NARROW_BF16)
FLOAT_WIDE_KERNELS(f32, vf32, vf32, float, AS_IS, SUM)
FLOAT_WIDE_KERNELS(f64, vf64, vf64, double, AS_IS, SUM)

/* ---- integer kernels ---- */

/* Loops whose vectors the compiler finds better than MAP, for they change the width of elements. It
 * must be told that an output which equals an input is no obstacle: elements stay in their place. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed" /* of 128-bit integers it makes no vectors, rightly */
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

typedef __int128 int128_t;
typedef unsigned __int128 uint128_t;

/* Division of magnitudes up to 2^63 by an invariant divisor of 2 to 2^31 - 1, truncating, by
 * multiplication (Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994,
 * theorem 4.2): with 2^(l-1) < d <= 2^l and m = floor(2^(63+l) / d) + 1, which fits in 64 bits,
 * n / d = n m / 2^(63+l) rounded down. */
typedef struct divider {
    uint64_t multiplier;
    unsigned shift; /* beyond 64 */
    uint32_t divisor;
} divider;

static inline divider divider_of(int divisor)
{
    unsigned l = 1;
    while ((uint64_t)1 << l < (uint64_t)divisor)
        l++;
    const uint128_t power = (uint128_t)1 << (63 + l);
    return (divider){ (uint64_t)(power / (unsigned)divisor) + 1, l - 1, (uint32_t)divisor };
}

static inline uint64_t divide_magnitude(uint64_t n, divider by)
{
    return (uint64_t)((uint128_t)n * by.multiplier >> 64) >> by.shift;
}

static inline int64_t divide_i64(int64_t s, divider by)
{
    const uint64_t sign = s < 0 ? UINT64_MAX : 0;
    const uint64_t q = divide_magnitude(((uint64_t)s ^ sign) - sign, by);
    return (int64_t)((q ^ sign) - sign);
}

/* The low 64 bits of s / divisor, in 32-bit digits: each remainder is under 2^31, so that remainder and
 * next digit together stay under 2^63. */
static inline int64_t divide_i128(int128_t s, divider by)
{
    const uint64_t sign = s < 0 ? UINT64_MAX : 0;
    const uint128_t signs = (uint128_t)sign << 64 | sign, n = ((uint128_t)s ^ signs) - signs;
    uint64_t rest = (uint64_t)(n >> 64);
    if (rest >= by.divisor) /* only when more contributions were added than are divided by */
        rest -= divide_magnitude(rest, by) * by.divisor;
    rest = rest << 32 | (uint32_t)(n >> 32);
    const uint64_t high = divide_magnitude(rest, by);
    rest = (rest - high * by.divisor) << 32 | (uint32_t)n;
    const uint64_t q = high << 32 | divide_magnitude(rest, by);
    return (int64_t)((q ^ sign) - sign);
}

/* s / divisor, truncating: half a unit away from zero keeps the product from the integers on both
 * sides by 0.5 / divisor, far more than two roundings of binary64 can move it. */
static inline int32_t divide_i32(int32_t s, double reciprocal)
{
    return (int32_t)(((double)s + (s < 0 ? -0.5 : 0.5)) * reciprocal);
}

/* Elements at any alignment. */
#define LOAD(type, array, i) load_##type((const unsigned char *)(array) + (i) * sizeof(type))
#define STORE(type, array, i, value)                                                            \
    do {                                                                                        \
        const type v_ = (type)(value);                                                          \
        memcpy((unsigned char *)(array) + (i) * sizeof v_, &v_, sizeof v_);                     \
    } while (0)
#define DEFINE_LOAD(type)                                                                       \
    static inline type load_##type(const void *from)                                            \
    {                                                                                           \
        type value;                                                                             \
        memcpy(&value, from, sizeof value);                                                     \
        return value;                                                                           \
    }

DEFINE_LOAD(int8_t)
DEFINE_LOAD(uint8_t)
DEFINE_LOAD(int32_t)
DEFINE_LOAD(int64_t)
DEFINE_LOAD(uint32_t)
DEFINE_LOAD(uint64_t)
DEFINE_LOAD(uint128_t)

/* The average of two in lanes of their own width, for a divisor of 2^shift: floor of each, plus floor of
 * the two remainders, and one more where that is below zero and not exact. Neither arithmetic shifts of
 * 64 bits nor any of 8 exist in SSE2 and AVX2: so lowest, the least value's bits, is added around a
 * logical shift of the wider shifted, whose bits from the neighbour are masked. */
#define AVERAGE_BY_SHIFT(name, vec, bits, unsigned_scalar, shifted, lowest)                     \
    static inline bits name##_shift_right(bits v, int shift)                                    \
    {                                                                                           \
        const unsigned_scalar mask = (unsigned_scalar)((unsigned_scalar)-1 >> shift);           \
        return (bits)((shifted)v >> shift) & mask;                                              \
    }                                                                                           \
    static inline vec name##_average_by_shift(vec x, vec y, int shift)                          \
    {                                                                                           \
        const unsigned_scalar low = (unsigned_scalar)(((unsigned_scalar)1 << shift) - 1);       \
        const unsigned_scalar least = (unsigned_scalar)(lowest), twice = least >> (shift - 1);  \
        const bits rest = ((bits)x & low) + ((bits)y & low);                                    \
        const vec floor = (vec)(name##_shift_right((bits)x ^ least, shift) +                    \
                                name##_shift_right((bits)y ^ least, shift) - twice +            \
                                name##_shift_right(rest, shift));                               \
        const bits up = (bits)(floor < 0) & (bits)((rest & low) != 0);                          \
        return (vec)((bits)floor - up);                                                         \
    }

/* Sums are of the unsigned type, in which they wrap. divide(s, by) takes the wide sum; the average of two
 * takes that way only for a divisor other than 2, 4, ... 64, which two contributions do not have. */
#define INTEGER_KERNELS(name, scalar, vec, bits, wide_t, by_t, by_of, divide)                   \
    static void name##_sum(void *acc, const void *in, size_t count, int divisor)                \
    {                                                                                           \
        (void)divisor;                                                                          \
        MAP(LANES(scalar), count, bits, acc, bits, acc, bits, in, x + y);                       \
    }                                                                                           \
    static void name##_average(void *acc, const void *in, size_t count, int divisor)            \
    {                                                                                           \
        if (divisor <= 1) {                                                                     \
            name##_sum(acc, in, count, 1);                                                      \
        } else if (is_power_of_two(divisor) && divisor <= 64) {                                 \
            const int shift = __builtin_ctz((unsigned)divisor);                                 \
            MAP(LANES(scalar), count, vec, acc, vec, acc, vec, in,                              \
                name##_average_by_shift(x, y, shift));                                          \
        } else {                                                                                \
            const by_t by = by_of(divisor);                                                     \
            INDEPENDENT                                                                         \
            for (size_t i = 0; i < count; i++) {                                                \
                const wide_t s = (wide_t)LOAD(scalar, acc, i) + (wide_t)LOAD(scalar, in, i);    \
                STORE(scalar, acc, i, divide(s, by));                                           \
            }                                                                                   \
        }                                                                                       \
    }                                                                                           \
    static void name##_min(void *acc, const void *in, size_t count, int divisor)                \
    {                                                                                           \
        (void)divisor;                                                                          \
        MAP(LANES(scalar), count, vec, acc, vec, acc, vec, in, SELECT(vec, x < y, x, y));       \
    }                                                                                           \
    static void name##_max(void *acc, const void *in, size_t count, int divisor)                \
    {                                                                                           \
        (void)divisor;                                                                          \
        MAP(LANES(scalar), count, vec, acc, vec, acc, vec, in, SELECT(vec, x > y, x, y));       \
    }                                                                                           \
    static void name##_widen(void *wide, const void *a, const void *b, size_t count)            \
    {                                                                                           \
        INDEPENDENT                                                                             \
        for (size_t i = 0; i < count; i++)                                                      \
            STORE(wide_t, wide, i, (wide_t)LOAD(scalar, a, i) + (wide_t)LOAD(scalar, b, i));    \
    }                                                                                           \
    static inline u##wide_t name##_wide_sum(const void *wide, const void *in, size_t i)         \
    {                                                                                           \
        return LOAD(u##wide_t, wide, i) + (u##wide_t)LOAD(scalar, in, i);                       \
    }                                                                                           \
    static void name##_wide_add(void *wide, const void *in, size_t count)                       \
    {                                                                                           \
        INDEPENDENT                                                                             \
        for (size_t i = 0; i < count; i++)                                                      \
            STORE(u##wide_t, wide, i, name##_wide_sum(wide, in, i));                            \
    }                                                                                           \
    static void name##_narrow(void *out, const void *wide, const void *in, size_t count,        \
                              int divisor)                                                      \
    {                                                                                           \
        if (divisor <= 1) {                                                                     \
            INDEPENDENT                                                                         \
            for (size_t i = 0; i < count; i++)                                                  \
                STORE(scalar, out, i, name##_wide_sum(wide, in, i));                            \
            return;                                                                             \
        }                                                                                       \
        const by_t by = by_of(divisor);                                                         \
        INDEPENDENT                                                                             \
        for (size_t i = 0; i < count; i++)                                                      \
            STORE(scalar, out, i, divide((wide_t)name##_wide_sum(wide, in, i), by));            \
    }

#define RECIPROCAL(divisor) (1 / (double)(divisor))

AVERAGE_BY_SHIFT(i8, vi8, vu8, uint8_t, vu16, INT8_MIN)
AVERAGE_BY_SHIFT(u8, vu8, vu8, uint8_t, vu16, 0)
AVERAGE_BY_SHIFT(i32, vi32, vu32, uint32_t, vu32, INT32_MIN)
AVERAGE_BY_SHIFT(i64, vi64, vu64, uint64_t, vu64, INT64_MIN)

INTEGER_KERNELS(i8, int8_t, vi8, vu8, int32_t, double, RECIPROCAL, divide_i32)
INTEGER_KERNELS(u8, uint8_t, vu8, vu8, int32_t, double, RECIPROCAL, divide_i32)
INTEGER_KERNELS(i32, int32_t, vi32, vu32, int64_t, divider, divider_of, divide_i64)
INTEGER_KERNELS(i64, int64_t, vi64, vu64, int128_t, divider, divider_of, divide_i128)

/* ---- the table ---- */

#define ROW(name)                                                   \
    {                                                               \
        .op = { [TALLY_OP_SUM] = name##_sum,                        \
                [TALLY_OP_AVERAGE] = name##_average,                \
                [TALLY_OP_MIN] = name##_min,                        \
                [TALLY_OP_MAX] = name##_max },                      \
        .widen = name##_widen, .wide_add = name##_wide_add, .narrow = name##_narrow \
    }

const tly_reduce_ops KERNEL_TABLE = {
    .name = KERNEL_NAME,
    .rows = {
        [TALLY_DTYPE_F16] = ROW(f16),
        [TALLY_DTYPE_BF16] = ROW(bf16),
        [TALLY_DTYPE_F32] = ROW(f32),
        [TALLY_DTYPE_F64] = ROW(f64),
        [TALLY_DTYPE_I8] = ROW(i8),
        [TALLY_DTYPE_U8] = ROW(u8),
        [TALLY_DTYPE_I32] = ROW(i32),
        [TALLY_DTYPE_I64] = ROW(i64),
    },
};

#endif
