#include "worker/tally.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[TALLY_DTYPE_COUNT] = {
    [TALLY_DTYPE_F16] = { "float16", 2 },  [TALLY_DTYPE_BF16] = { "bfloat16", 2 },
    [TALLY_DTYPE_F32] = { "float32", 4 },  [TALLY_DTYPE_F64] = { "float64", 8 },
    [TALLY_DTYPE_I8] = { "int8", 1 },      [TALLY_DTYPE_U8] = { "uint8", 1 },
    [TALLY_DTYPE_I32] = { "int32", 4 },    [TALLY_DTYPE_I64] = { "int64", 8 },
};

static const char *const ops[TALLY_OP_COUNT] = {
    [TALLY_OP_SUM] = "sum",
    [TALLY_OP_AVERAGE] = "average",
    [TALLY_OP_MIN] = "min",
    [TALLY_OP_MAX] = "max",
};

/* The value may come from a peer or a user, so any number must be safe to ask about; an enum may be
 * signed or not, hence the conversion. */

size_t tally_dtype_size(tally_dtype dtype)
{
    return (unsigned)dtype < TALLY_DTYPE_COUNT ? dtypes[dtype].size : 0;
}

const char *tally_dtype_name(tally_dtype dtype)
{
    return (unsigned)dtype < TALLY_DTYPE_COUNT ? dtypes[dtype].name : NULL;
}

const char *tally_op_name(tally_op op)
{
    return (unsigned)op < TALLY_OP_COUNT ? ops[op] : NULL;
}
