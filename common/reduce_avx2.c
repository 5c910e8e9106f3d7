/* The Makefile compiles this file for AVX2, FMA and F16C on x86 only; elsewhere the table has no name
 * and is never chosen. It holds no code that could run before the choice. */
#if defined(__AVX2__) && defined(__F16C__)
#define KERNEL_TABLE tly_reduce_ops_avx2
#define KERNEL_NAME "avx2"
#define KERNEL_VECTOR_BYTES 32
#endif
#include "common/reduce_kernels.h"

#ifndef KERNEL_TABLE
const tly_reduce_ops tly_reduce_ops_avx2 = { .name = NULL };
#endif
