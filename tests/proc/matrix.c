/* Every data type with every operation, in place and not, with counts around nothing, around the vector
 * lengths and around a partition, at aligned and at odd addresses: every byte of every output, of the
 * inputs that must not change, and around both. Two rounds, each with values of its own. */
#include "tests/proc/host.h"

#define PARTITION_BYTES 4096 /* as BYTEPS_PARTITION_BYTES must say */
#define GUARD 64
#define GUARD_BYTE 0xa5
#define ROUNDS 2

static const int counts[] = { 0, 1, 3, 17, 4913, -1, -2, -3 }; /* below 0: a partition -1, +0, +1 */
#define COUNTS (sizeof counts / sizeof *counts)
#define CASES (TALLY_OP_COUNT * 2 * 2 * COUNTS)

typedef struct test_case {
    int number;
    tally_dtype dtype;
    tally_op op;
    bool in_place;
    size_t count, bytes;
    unsigned char *block, *input, *output; /* input and output are in block */
    size_t block_bytes;
    tally_tensor *tensor;
    tally_request *request;
} test_case;

static tally *ctx;

/* What a worker contributes. Sums of floating types are whole multiples of the number of workers, so
 * that averages are exact too; integers also wrap and leave a rest. */
static int contribution(const test_case *c, int rank, int round, size_t element)
{
    int n = tally_size(ctx);
    int base = (int)((element * 5 + (size_t)c->number * 3 + (size_t)round * 7) % 23) - 8;
    if (c->dtype > TALLY_DTYPE_F64)
        return 9 * base + rank * rank;
    if (rank < n - 1)
        return base + rank;
    return base + (n - (n - 1) * (n - 2) / 2 % n);
}

static void expected(const test_case *c, int round, size_t element, unsigned char *at)
{
    int64_t sum = 0, low = INT64_MAX, high = INT64_MIN;
    int n = tally_size(ctx);
    for (int rank = 0; rank < n; rank++) {
        unsigned char stored[8];
        host_store(c->dtype, stored, contribution(c, rank, round, element));
        int64_t value = (int64_t)host_load(c->dtype, stored);
        sum += value;
        low = value < low ? value : low;
        high = value > high ? value : high;
    }
    int64_t values[] = { sum, sum / n, low, high };
    host_store(c->dtype, at, (int)values[c->op]);
}

/* Buffers with guards around them; an odd address is one byte off, and the two differ. */
static void place(test_case *c, bool odd)
{
    size_t gap = (c->bytes + 2 * GUARD + 63) / 64 * 64;
    c->block_bytes = 2 * gap + GUARD;
    c->block = aligned_alloc(64, (c->block_bytes + 63) / 64 * 64);
    c->input = c->block + GUARD + (odd ? 1 : 0);
    c->output = c->in_place ? c->input : c->block + gap + GUARD + (odd ? 3 : 0);
}

static void start(test_case *c, int round)
{
    size_t size = tally_dtype_size(c->dtype);
    memset(c->block, GUARD_BYTE, c->block_bytes);
    for (size_t i = 0; i < c->count; i++)
        host_store(c->dtype, c->input + i * size, contribution(c, tally_rank(ctx), round, i));
    host_must(tally_push_pull(c->tensor, c->input, c->output, TALLY_PRIORITY_DEFAULT, &c->request),
              "push_pull");
}

static void wrong(const test_case *c, int round, const char *what, size_t element, double found,
                  double wanted)
{
    say("wrong %s: round %d %s %s %s count %zu at %p, element %zu is %g instead of %g", what, round,
        tally_dtype_name(c->dtype), tally_op_name(c->op), c->in_place ? "in place" : "apart", c->count,
        (void *)c->input, element, found, wanted);
    exit(1);
}

static void check(test_case *c, int round)
{
    size_t size = tally_dtype_size(c->dtype);
    host_must(tally_wait(&c->request, -1), "wait");
    for (size_t i = 0; i < c->count; i++) {
        unsigned char wanted[8];
        expected(c, round, i, wanted);
        if (memcmp(wanted, c->output + i * size, size) != 0)
            wrong(c, round, "output", i, host_load(c->dtype, c->output + i * size),
                  host_load(c->dtype, wanted));
        host_store(c->dtype, wanted, contribution(c, tally_rank(ctx), round, i));
        if (!c->in_place && memcmp(wanted, c->input + i * size, size) != 0)
            wrong(c, round, "input", i, host_load(c->dtype, c->input + i * size),
                  host_load(c->dtype, wanted));
    }
    for (size_t i = 0; i < c->block_bytes; i++) {
        const unsigned char *at = c->block + i;
        bool inside = (at >= c->input && at < c->input + c->bytes) ||
                      (at >= c->output && at < c->output + c->bytes);
        if (!inside && *at != GUARD_BYTE)
            wrong(c, round, "byte outside", i, *at, GUARD_BYTE);
    }
}

static void declare_case(test_case *c, int number, tally_dtype dtype)
{
    char name[64];
    size_t partition = PARTITION_BYTES / tally_dtype_size(dtype);
    int count = counts[number % COUNTS];
    int kind = number / (int)COUNTS;
    *c = (test_case){ .number = number, .dtype = dtype, .op = (tally_op)(kind / 4), .in_place = kind & 1 };
    c->count = count >= 0 ? (size_t)count : partition - 2 + (size_t)-count;
    c->bytes = c->count * tally_dtype_size(dtype);
    snprintf(name, sizeof name, "%s %d", tally_dtype_name(dtype), number);
    tally_tensor_options options = TALLY_TENSOR_OPTIONS_INIT;
    options.op = c->op;
    host_must(tally_declare(ctx, name, dtype, c->count, &options, &c->tensor), "declare");
    place(c, kind & 2);
}

int main(void)
{
    static test_case cases[CASES];
    int exact = 0;
    host_must(tally_open(NULL, &ctx), "open");
    for (int dtype = 0; dtype < TALLY_DTYPE_COUNT; dtype++) {
        for (int i = 0; i < (int)CASES; i++)
            declare_case(&cases[i], i, (tally_dtype)dtype);
        for (int round = 0; round < ROUNDS; round++) {
            for (int i = 0; i < (int)CASES; i++)
                start(&cases[i], round);
            for (int i = 0; i < (int)CASES; i++, exact++)
                check(&cases[i], round);
        }
        for (int i = 0; i < (int)CASES; i++) {
            host_must(tally_undeclare(&cases[i].tensor), "undeclare");
            free(cases[i].block);
        }
    }
    host_must(tally_close(ctx), "close");
    say("exact %d", exact);
    return 0;
}
