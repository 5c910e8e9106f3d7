/* What every processor of the target has: on x86-64 that is SSE2, so 16-byte vectors. */
#define KERNEL_TABLE tly_reduce_ops_base
#define KERNEL_NAME "baseline"
#define KERNEL_VECTOR_BYTES 16
#include "common/reduce_kernels.h"
