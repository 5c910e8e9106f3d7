/* reduce.h - elementwise sums, averages, minima and maxima of all data types.
 *
 * Pure functions over memory at any alignment; no element is read or written outside [0, count).
 * The fastest kernel that the processor has (baseline, AVX2+F16C, AVX-512) is chosen once.
 *
 * 16-bit floats are added in binary32 and rounded once (to nearest, ties to even; NaN stays NaN).
 * Integer sums wrap. Integer averages add wide and truncate toward zero. An average is a true
 * division by the number of contributions, rounded once. Minimum and maximum give NaN if either
 * element is NaN. */
#ifndef TLY_REDUCE_H
#define TLY_REDUCE_H

#include <stdbool.h>

#include "worker/tally.h"

/* acc = (acc op in), then / divisor for an average when divisor > 1.
 *
 * For sum, min, max: divisor is ignored. For average: divisor 0 or 1 adds only (a later call
 * divides), which is exact only where tly_reduce_is_wide says false. With divisor > 1 integers and
 * 16-bit floats add wide and divide before rounding. acc and in do not overlap, or are equal. */
void tly_reduce(void *acc, const void *in, size_t count, tally_dtype dtype, tally_op op, int divisor);

/* Do n contributions need a wide accumulator between the first and the last addition? True for the
 * sum and average of 16-bit floats and the average of integers, when n > 2. */
bool tly_reduce_is_wide(tally_dtype dtype, tally_op op, int n);

/* Bytes of one wide element: 4 (binary32) for f16 and bf16, 4 for i8 and u8, 8 for i32, 16 for i64,
 * and the type's own size for f32 and f64. A wide array is at least 16-byte aligned. */
size_t tly_reduce_wide_size(tally_dtype dtype);

/* wide = a + b; wide += in; out = (wide + in) / divisor, narrowed once (divisor 0 or 1: no division;
 * out may equal in). */
void tly_reduce_widen(void *wide, const void *a, const void *b, size_t count, tally_dtype dtype);
void tly_reduce_wide_add(void *wide, const void *in, size_t count, tally_dtype dtype);
void tly_reduce_narrow(void *out, const void *wide, const void *in, size_t count, tally_dtype dtype,
                       int divisor);

/* The kernel set in use: "baseline", "avx2", "avx512". */
const char *tly_reduce_isa(void);

#endif
