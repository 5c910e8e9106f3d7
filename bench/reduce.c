/* tally-bench reduce: the kernels that add, of every data type, operation and instruction set.
 *
 * In buffers that a cache holds the arithmetic shows; in buffers that none holds the memory does, and
 * a kernel can be no faster than the machine's own addition, which takes turns with it. */
#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/command.h"
#include "bench/job.h"
#include "bench/machine.h"
#include "bench/options.h"
#include "bench/plain.h"
#include "bench/values.h"
#include "common/reduce_kernels.h"

#define CACHED_BYTES ((size_t)128 << 10) /* of one buffer: two of them fit in a second-level cache */
#define MEMORY_CHUNK ((size_t)1 << 20)   /* of one call: a partition */
#define DIVISOR 2                        /* of an average: two workers, and the checked values are theirs */
#define OFFSET_MAX 64

typedef struct arguments {
    int offset, samples;
    size_t memory_bytes; /* 0: by the machine's cache */
    bool has_dtype, has_op, only_chosen;
    tally_dtype dtype;
    tally_op op;
    const char *json;
} arguments;

enum { KEY_OFFSET = 256, KEY_MEMORY, KEY_CHOSEN, KEY_JSON };

static const struct argp_option options[] = {
    { "dtype", 't', "NAME", 0, "one element type only", 0 },
    { "op", 'o', "NAME", 0, "one operation only", 0 },
    { "chosen", KEY_CHOSEN, NULL, 0, "only the instruction set that the service would use here", 0 },
    { "offset", KEY_OFFSET, "BYTES", 0, "of misaligned buffers from a cache line, 1 to 63; default 1", 0 },
    { "memory", KEY_MEMORY, "SIZE", 0, "of each cache-exceeding buffer, default by the machine's cache", 0 },
    { "samples", 'n', "N", 0, "of each rate, default 5", 0 },
    { "json", KEY_JSON, "FILE", 0, "write the figures there", 0 },
    { 0 },
};

static const tly_option option_values[] = {
    { KEY_JSON, TLY_OPTION_TEXT, offsetof(arguments, json), NULL, 0, 0 },
    { KEY_CHOSEN, TLY_OPTION_FLAG, offsetof(arguments, only_chosen), NULL, 0, 0 },
    { 't', TLY_OPTION_DTYPE, offsetof(arguments, dtype), NULL, 0, 0 },
    { 'o', TLY_OPTION_OP, offsetof(arguments, op), NULL, 0, 0 },
    { KEY_OFFSET, TLY_OPTION_INT, offsetof(arguments, offset), "--offset from 1 to 63", 1, OFFSET_MAX - 1 },
    { KEY_MEMORY, TLY_OPTION_SIZE, offsetof(arguments, memory_bytes),
      "--memory from 1M to 64G", MEMORY_CHUNK, INT64_C(64) << 30 },
    { 'n', TLY_OPTION_INT, offsetof(arguments, samples), "--samples from 1 to 1000", 1, 1000 },
    { 0 },
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    arguments *a = state->input;
    a->has_dtype |= key == 't';
    a->has_op |= key == 'o';
    return tly_option_parse(option_values, key, text, state);
}

/* Two buffers; the kernels read one and write the other. */
typedef struct run {
    const arguments *arguments;
    tly_bench_job job;
    uint8_t *acc, *in;   /* of memory_bytes and an offset */
    size_t memory_bytes;
    size_t wrong;        /* elements */
} run;

typedef void (*kernel_fn)(void *acc, const void *in, size_t count, int divisor);

static void plain_add(void *acc, const void *in, size_t count, int divisor)
{
    (void)divisor;
    tly_plain_add_f32(acc, in, count);
}

/* A kernel over the first len_bytes of both buffers, from an offset on. */
typedef struct subject {
    kernel_fn fn;
    tally_dtype dtype;
    size_t len_bytes, offset;
} subject;

static void pass(const run *r, const subject *s)
{
    size_t element = tally_dtype_size(s->dtype);
    size_t chunk = s->len_bytes < MEMORY_CHUNK ? s->len_bytes : MEMORY_CHUNK;
    for (size_t at = 0; at < s->len_bytes; at += chunk)
        s->fn(r->acc + s->offset + at, r->in + s->offset + at, chunk / element, DIVISOR);
}

/* Give the buffers two workers' gradients, combine them, and look at every element. */
static size_t check(const run *r, const subject *s, tally_op op)
{
    size_t count = s->len_bytes / tally_dtype_size(s->dtype);
    tly_values first, second;
    tly_values_wrong wrong_one = { 0 };
    tly_values_init(&first, s->dtype, op, 0, DIVISOR);
    tly_values_init(&second, s->dtype, op, 1, DIVISOR);
    tly_values_fill(&first, 0, 0, r->acc + s->offset, count);
    tly_values_fill(&second, 0, 0, r->in + s->offset, count);
    pass(r, s);
    size_t wrong = tly_values_check(&first, 0, 0, 0, r->acc + s->offset, count, &wrong_one);
    if (wrong)
        fprintf(stderr, "tally-bench: %s %s, offset %zu: element %zu is %.9g, expected %.9g\n",
                tally_dtype_name(s->dtype), tally_op_name(op), s->offset, wrong_one.index, wrong_one.found,
                wrong_one.right);
    return wrong;
}

/* 10^9 bytes of one buffer per second, over as many passes as a short time takes. */
static double rate(const run *r, const subject *s)
{
    const int64_t least_ns = 2000000;
    int64_t from_ns = tly_measure_now_ns(), now_ns;
    size_t passes = 0;
    do {
        pass(r, s);
        passes++;
        now_ns = tly_measure_now_ns();
    } while (now_ns - from_ns < least_ns);
    return (double)passes * (double)s->len_bytes / (double)(now_ns - from_ns);
}

typedef struct figures {
    double cached, cached_misaligned, memory, memory_misaligned; /* GB/s */
    double add;                                                  /* the machine's own, meanwhile */
    double share, share_misaligned;                              /* of it; medians of the samples' ratios */
    size_t wrong;
} figures;

/* The median of one kernel's rates; and, beside it, what share of the machine's own addition each is. */
static tally_status measure(const run *r, const subject *s, bool beside_add, double *speed, double *add,
                            double *share)
{
    const subject own = { .fn = plain_add, .dtype = TALLY_DTYPE_F32, .len_bytes = s->len_bytes };
    size_t samples = (size_t)r->arguments->samples;
    tly_samples all[3];
    tly_summary summaries[3];
    tally_status status = TALLY_OK;
    memset(all, 0, sizeof(all));
    for (int i = 0; i < 3 && !status; i++)
        status = tly_samples_init(&all[i], samples);
    for (size_t i = 0; i < samples && !status; i++) {
        /* who comes second finds other memory in the cache: each does half of the time */
        double others = beside_add && i % 2 ? rate(r, &own) : (double)NAN, mine = rate(r, s);
        if (beside_add && i % 2 == 0)
            others = rate(r, &own);
        tly_samples_add(&all[0], mine);
        tly_samples_add(&all[1], others);
        tly_samples_add(&all[2], mine / others);
    }
    for (int i = 0; i < 3 && !status; i++)
        status = tly_samples_summary(&all[i], &summaries[i]);
    for (int i = 0; i < 3; i++)
        tly_samples_fini(&all[i]);
    if (status)
        return status;
    *speed = summaries[0].median;
    *add = summaries[1].median;
    *share = summaries[2].median;
    return TALLY_OK;
}

static tally_status measure_kernel(const run *r, kernel_fn fn, tally_dtype dtype, tally_op op, figures *out)
{
    figures f = { 0 };
    double *const speeds[] = { &f.cached, &f.cached_misaligned, &f.memory, &f.memory_misaligned };
    double no_add, no_share, add_misaligned;
    double *const adds[] = { &no_add, &no_add, &f.add, &add_misaligned };
    double *const shares[] = { &no_share, &no_share, &f.share, &f.share_misaligned };
    for (int i = 0; i < 4; i++) {
        bool in_memory = i >= 2;
        const subject s = {
            .fn = fn,
            .dtype = dtype,
            .len_bytes = in_memory ? r->memory_bytes : CACHED_BYTES,
            .offset = i % 2 ? (size_t)r->arguments->offset : 0,
        };
        f.wrong += check(r, &s, op);
        tally_status status = measure(r, &s, in_memory, speeds[i], adds[i], shares[i]);
        if (status)
            return status;
    }
    *out = f;
    return TALLY_OK;
}

static void report(const tly_bench_job *job, const char *isa, tally_dtype dtype, tally_op op,
                   const figures *f)
{
    tly_bench_say(job, "  %-9s %-8s %-8s %8.2f %8.2f %8.2f %8.2f %8.2f %8.3f %8.3f %7zu",
                  tally_dtype_name(dtype), tally_op_name(op), isa, f->cached, f->cached_misaligned, f->memory,
                  f->memory_misaligned, f->add, f->share, f->share_misaligned, f->wrong);
    tly_json_enter_row(job->json, "rows");
    tly_json_text(job->json, "dtype", tally_dtype_name(dtype));
    tly_json_text(job->json, "op", tally_op_name(op));
    tly_json_text(job->json, "isa", isa);
    tly_json_number(job->json, "cached_gb_per_s", f->cached);
    tly_json_number(job->json, "cached_misaligned_gb_per_s", f->cached_misaligned);
    tly_json_number(job->json, "memory_gb_per_s", f->memory);
    tly_json_number(job->json, "memory_misaligned_gb_per_s", f->memory_misaligned);
    tly_json_number(job->json, "add_gb_per_s", f->add);
    tly_json_number(job->json, "share", f->share);
    tly_json_number(job->json, "share_misaligned", f->share_misaligned);
    tly_json_integer(job->json, "wrong", (int64_t)f->wrong);
    tly_json_leave(job->json);
}

static tally_status run_kernel(run *r, const tly_reduce_ops *ops, tally_dtype dtype, tally_op op)
{
    figures f;
    tally_status status = measure_kernel(r, ops->rows[dtype].op[op], dtype, op, &f);
    if (status)
        return status;
    r->wrong += f.wrong;
    report(&r->job, ops->name, dtype, op, &f);
    return TALLY_OK;
}

static void say_head(const run *r)
{
    const tly_bench_job *job = &r->job;
    tly_bench_say(job,
                  "# reduce   cached: buffers of %zu KiB  memory: of %zu MiB, 1 MiB a call  chosen here: %s",
                  CACHED_BYTES >> 10, r->memory_bytes >> 20, tly_reduce_isa());
    tly_bench_say(job,
                  "# rates: 10^9 bytes of a contribution per second, median of %d; an average divides by %d\n"
                  "# +%d: both buffers begin %d bytes after a cache line, otherwise at one\n"
                  "# add: the machine's own, of float32 in memory, taken in turns; share: memory / add\n"
                  "# #wrong: elements, of all four buffers\n#",
                  r->arguments->samples, DIVISOR, r->arguments->offset, r->arguments->offset);
    char offset[8];
    snprintf(offset, sizeof(offset), "+%d", r->arguments->offset);
    tly_bench_say(job, "# %-9s %-8s %-8s %8s %8s %8s %8s %8s %8s %8s %7s", "dtype", "op", "set", "cached",
                  offset, "memory", offset, "add", "share", offset, "#wrong");
    tly_bench_say(job, "# %-9s %-8s %-8s %8s %8s %8s %8s %8s", "", "", "", "(GB/s)", "(GB/s)", "(GB/s)",
                  "(GB/s)", "(GB/s)");
    tly_json_text(job->json, "chosen", tly_reduce_isa());
    tly_json_integer(job->json, "memory_bytes", (int64_t)r->memory_bytes);
    tly_json_integer(job->json, "offset", r->arguments->offset);
}

static bool is_wanted(const arguments *a, const tly_reduce_ops *ops, tally_dtype dtype, tally_op op)
{
    return ops && (!a->only_chosen || strcmp(ops->name, tly_reduce_isa()) == 0)
           && (!a->has_dtype || dtype == a->dtype) && (!a->has_op || op == a->op);
}

static tally_status run_kernels(run *r)
{
    say_head(r);
    for (int dtype = 0; dtype < TALLY_DTYPE_COUNT; dtype++)
        for (int op = 0; op < TALLY_OP_COUNT; op++)
            for (int set = 0; set < TLY_REDUCE_SET_COUNT; set++) {
                const tly_reduce_ops *ops = tly_reduce_ops_of((tly_reduce_set)set);
                if (!is_wanted(r->arguments, ops, (tally_dtype)dtype, (tally_op)op))
                    continue;
                tally_status status = run_kernel(r, ops, (tally_dtype)dtype, (tally_op)op);
                if (status)
                    return status;
            }
    tly_json_integer(r->job.json, "wrong", (int64_t)r->wrong);
    return TALLY_OK;
}

static tally_status run_buffers(run *r)
{
    tly_machine machine;
    tly_machine_look(&machine);
    size_t memory_bytes = r->arguments->memory_bytes;
    if (!memory_bytes)
        memory_bytes = tly_machine_exceeding_bytes(machine.cache_bytes);
    r->memory_bytes = memory_bytes / MEMORY_CHUNK * MEMORY_CHUNK;
    r->acc = aligned_alloc(OFFSET_MAX, r->memory_bytes + OFFSET_MAX);
    r->in = aligned_alloc(OFFSET_MAX, r->memory_bytes + OFFSET_MAX);
    return r->acc && r->in ? TALLY_OK : tly_error_memory(r->memory_bytes, "the buffers");
}

tally_status tly_command_reduce(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "Measure the kernels that add, beside the machine's own addition, and check their results.",
    };
    arguments a = { .offset = 1, .samples = 5 };
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    run r = { .arguments = &a };
    tally_status status = run_buffers(&r);
    if (!status)
        status = tly_bench_job_open_alone(&r.job, "reduce", a.json);
    if (!status)
        status = tly_bench_job_close(&r.job, run_kernels(&r));
    if (!status && r.wrong)
        status = tly_error(TALLY_EFAILED, "values that are wrong: %zu", r.wrong);
    free(r.acc);
    free(r.in);
    return status;
}
