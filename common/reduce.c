#include "common/reduce.h"

#include <assert.h>
#include <stdatomic.h>

#include "common/reduce_kernels.h"

#if defined(__x86_64__)

#include <cpuid.h>

/* __builtin_cpu_supports asks the operating system's part too: whether it saves the wide registers. */
static bool has_avx2(void)
{
    unsigned a, b, c, d;
    __builtin_cpu_init();
    /* F16C by hand, for clang 14 does not know it by name */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#else

static bool has_avx2(void)
{
    return false;
}

static bool has_avx512(void)
{
    return false;
}

#endif

static bool has_base(void)
{
    return true;
}

/* In rising order of speed. */
static const struct {
    const tly_reduce_ops *ops;
    bool (*supported)(void);
} sets[TLY_REDUCE_SET_COUNT] = {
    [TLY_REDUCE_BASE] = { &tly_reduce_ops_base, has_base },
    [TLY_REDUCE_AVX2] = { &tly_reduce_ops_avx2, has_avx2 },
    [TLY_REDUCE_AVX512] = { &tly_reduce_ops_avx512, has_avx512 },
};

const tly_reduce_ops *tly_reduce_ops_of(tly_reduce_set set)
{
    return sets[set].ops->name != NULL && sets[set].supported() ? sets[set].ops : NULL;
}

static const tly_reduce_ops *chosen(void)
{
    /* Threads that come first together all find the same set, so nothing needs to be held back. */
    static _Atomic(const tly_reduce_ops *) cached;
    const tly_reduce_ops *ops = atomic_load_explicit(&cached, memory_order_relaxed);
    for (int set = TLY_REDUCE_SET_COUNT - 1; ops == NULL; set--)
        ops = tly_reduce_ops_of((tly_reduce_set)set);
    atomic_store_explicit(&cached, ops, memory_order_relaxed);
    return ops;
}

static const tly_reduce_row *row_of(tally_dtype dtype)
{
    assert((unsigned)dtype < TALLY_DTYPE_COUNT);
    return &chosen()->rows[dtype];
}

void tly_reduce(void *acc, const void *in, size_t count, tally_dtype dtype, tally_op op, int divisor)
{
    assert((unsigned)op < TALLY_OP_COUNT);
    row_of(dtype)->op[op](acc, in, count, divisor);
}

bool tly_reduce_is_wide(tally_dtype dtype, tally_op op, int n)
{
    const bool half = dtype == TALLY_DTYPE_F16 || dtype == TALLY_DTYPE_BF16;
    const bool real = half || dtype == TALLY_DTYPE_F32 || dtype == TALLY_DTYPE_F64;
    return n > 2 && ((half && op == TALLY_OP_SUM) || ((half || !real) && op == TALLY_OP_AVERAGE));
}

size_t tly_reduce_wide_size(tally_dtype dtype)
{
    static const size_t sizes[TALLY_DTYPE_COUNT] = {
        [TALLY_DTYPE_F16] = 4, [TALLY_DTYPE_BF16] = 4, [TALLY_DTYPE_F32] = 4, [TALLY_DTYPE_F64] = 8,
        [TALLY_DTYPE_I8] = 4,  [TALLY_DTYPE_U8] = 4,   [TALLY_DTYPE_I32] = 8, [TALLY_DTYPE_I64] = 16,
    };
    assert((unsigned)dtype < TALLY_DTYPE_COUNT);
    return sizes[dtype];
}

void tly_reduce_widen(void *wide, const void *a, const void *b, size_t count, tally_dtype dtype)
{
    row_of(dtype)->widen(wide, a, b, count);
}

void tly_reduce_wide_add(void *wide, const void *in, size_t count, tally_dtype dtype)
{
    row_of(dtype)->wide_add(wide, in, count);
}

void tly_reduce_narrow(void *out, const void *wide, const void *in, size_t count, tally_dtype dtype,
                       int divisor)
{
    row_of(dtype)->narrow(out, wide, in, count, divisor);
}

const char *tly_reduce_isa(void)
{
    return chosen()->name;
}
