/* The Makefile compiles this file for AVX-512 F, BW, DQ and VL on x86 only; elsewhere the table has no
 * name and is never chosen. It holds no code that could run before the choice. */
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define KERNEL_TABLE tly_reduce_ops_avx512
#define KERNEL_NAME "avx512"
#define KERNEL_VECTOR_BYTES 64
#endif
#include "common/reduce_kernels.h"

#ifndef KERNEL_TABLE
const tly_reduce_ops tly_reduce_ops_avx512 = { .name = NULL };
#endif
