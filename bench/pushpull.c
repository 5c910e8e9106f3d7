/* tally-bench pushpull: the time of one push_pull, over a range of sizes.
 *
 * The iterations follow each other without a barrier: an exchange ends only when every worker has
 * contributed, so they keep themselves in step. */
#include <argp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/command.h"
#include "bench/job.h"
#include "bench/options.h"
#include "bench/values.h"

typedef struct arguments {
    size_t min_bytes, max_bytes;
    int factor, iterations, warmup;
    tally_dtype dtype;
    tally_op op;
    bool in_place;
    const char *json;
} arguments;

enum { KEY_IN_PLACE = 256, KEY_JSON };

static const struct argp_option options[] = {
    { "min", 'b', "SIZE", 0, "the first size in bytes, with K, M or G; 0 is allowed; default 4", 0 },
    { "max", 'e', "SIZE", 0, "the last size, default 64M", 0 },
    { "factor", 'f', "N", 0, "from one size to the next, default 4", 0 },
    { "iters", 'n', "N", 0, "timed iterations of each size, default 20", 0 },
    { "warmup", 'w', "N", 0, "iterations before them, default 5", 0 },
    { "dtype", 't', "NAME", 0, "element type, default float32", 0 },
    { "op", 'o', "NAME", 0, "sum, average, min or max; default sum", 0 },
    { "in-place", KEY_IN_PLACE, NULL, 0, "the result replaces the input, rewritten each time", 0 },
    { "json", KEY_JSON, "FILE", 0, "rank 0 writes every sample there", 0 },
    { 0 },
};

static const tly_option option_values[] = {
    { KEY_JSON, TLY_OPTION_TEXT, offsetof(arguments, json), NULL, 0, 0 },
    { KEY_IN_PLACE, TLY_OPTION_FLAG, offsetof(arguments, in_place), NULL, 0, 0 },
    { 'b', TLY_OPTION_SIZE, offsetof(arguments, min_bytes), "--min in bytes, such as 64K", 0, INT64_MAX },
    { 'e', TLY_OPTION_SIZE, offsetof(arguments, max_bytes), "--max in bytes, such as 64M", 0, INT64_MAX },
    { 'f', TLY_OPTION_INT, offsetof(arguments, factor), "--factor from 2 to 1048576", 2, 1048576 },
    { 'n', TLY_OPTION_INT, offsetof(arguments, iterations), "--iters from 1 to 1000000", 1, 1000000 },
    { 'w', TLY_OPTION_INT, offsetof(arguments, warmup), "--warmup from 0 to 1000000", 0, 1000000 },
    { 't', TLY_OPTION_DTYPE, offsetof(arguments, dtype), NULL, 0, 0 },
    { 'o', TLY_OPTION_OP, offsetof(arguments, op), NULL, 0, 0 },
    { 0 },
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    const arguments *a = state->input;
    if (key != ARGP_KEY_END)
        return tly_option_parse(option_values, key, text, state);
    if (a->min_bytes > a->max_bytes)
        argp_error(state, "--min is %zu bytes, above --max, %zu", a->min_bytes, a->max_bytes);
    return 0;
}

typedef struct run {
    const arguments *arguments;
    tly_bench_job job;
    tly_values values;
    void *input, *output; /* of the largest size; equal in place */
    size_t wrong;         /* elements, of all sizes */
} run;

/* One size: a line of the table. */
typedef struct row {
    run *run;
    char name[64];
    size_t count, len_bytes;
    tally_tensor *tensor;
    tally_request *request;
    unsigned iteration;    /* the next one, warm-up included */
    tly_samples times_us;
    double cpu_s;          /* of the timed iterations */
    size_t wrong;
} row;

/* Give the input what the next iteration must contribute, outside the timing. */
static tally_status prepare(row *w)
{
    run *r = w->run;
    if (!r->arguments->in_place) {
        tly_values_stamp(&r->values, 0, w->iteration, r->input, w->count);
        return TALLY_OK;
    }
    tly_values_fill(&r->values, 0, w->iteration, r->input, w->count);
    return tally_barrier(r->job.ctx, -1); /* writing takes each worker another time */
}

static tally_status exchange(row *w, tly_samples *times_us)
{
    run *r = w->run;
    tally_status status = prepare(w);
    if (status)
        return status;
    double cpu_before = tly_measure_cpu_s();
    int64_t from_ns = tly_measure_now_ns();
    status = tally_push_pull(w->tensor, r->input, r->output, TALLY_PRIORITY_DEFAULT, &w->request);
    if (!status)
        status = tally_wait(&w->request, -1);
    int64_t to_ns = tly_measure_now_ns();
    if (status)
        return tly_error_context(status, "tensor %s, iteration %u", w->name, w->iteration);
    w->iteration++;
    if (times_us) {
        w->cpu_s += tly_measure_cpu_s() - cpu_before;
        tly_samples_add(times_us, (double)(to_ns - from_ns) * 1e-3);
    }
    return TALLY_OK;
}

/* Check the result of the iteration before. */
static void check(row *w)
{
    const run *r = w->run;
    unsigned last = w->iteration - 1;
    tly_values_wrong first;
    unsigned filled = r->arguments->in_place ? last : 0;
    size_t wrong = tly_values_check(&r->values, 0, filled, last, r->output, w->count, &first);
    if (wrong)
        fprintf(stderr, "tally-bench: tensor %s, iteration %u: element %zu is %.9g, expected %.9g "
                        "(%zu of %zu elements are wrong)\n",
                w->name, last, first.index, first.found, first.right, wrong, w->count);
    w->wrong += wrong;
}

static tally_status iterate(row *w)
{
    const arguments *a = w->run->arguments;
    tly_values_fill(&w->run->values, 0, 0, w->run->input, w->count);
    tally_status status = tally_barrier(w->run->job.ctx, -1);
    for (int i = 0; i < a->warmup && !status; i++)
        status = exchange(w, NULL);
    if (!status && a->warmup)
        check(w);
    for (int i = 0; i < a->iterations && !status; i++)
        status = exchange(w, &w->times_us);
    if (!status)
        check(w);
    return status;
}

static void say_head(const run *r)
{
    const tly_bench_job *job = &r->job;
    tly_bench_say(job, "# range    %zu to %zu bytes, factor %d  iterations %d after %d  %s",
                  r->arguments->min_bytes, r->arguments->max_bytes, r->arguments->factor,
                  r->arguments->iterations, r->arguments->warmup,
                  r->arguments->in_place ? "in place" : "out of place");
    tly_bench_say(job,
                  "# time: of one push_pull on this worker, median; min, max, p95 likewise\n"
                  "# algbw: size / time\n"
                  "# busbw: algbw * max(1, workers / servers): what the busiest node moves each way, to\n"
                  "#        compare with its network's rate when each node has a machine of its own\n"
                  "# cpu: processor seconds of this worker per 10^9 bytes sent and received\n"
                  "# #wrong: elements of this worker, after the warm-up and after the last iteration\n#");
    static const char *const heads[][12] = {
        { "size", "count", "dtype", "op", "time", "min", "max", "p95", "algbw", "busbw", "cpu", "#wrong" },
        { "(B)", "", "", "", "(us)", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "(s/GB)", "" },
    };
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        const char *const *h = heads[i];
        tly_bench_say(job, "# %12s %12s %9s %8s %10s %10s %10s %10s %8s %8s %8s %7s", h[0], h[1], h[2], h[3],
                      h[4], h[5], h[6], h[7], h[8], h[9], h[10], h[11]);
    }
}

static tally_status report(const row *w)
{
    const run *r = w->run;
    const tly_bench_job *job = &r->job;
    const char *dtype = tally_dtype_name(r->arguments->dtype), *op = tally_op_name(r->arguments->op);
    tly_summary time;
    tally_status status = tly_samples_summary(&w->times_us, &time);
    if (status)
        return status;
    double algbw = (double)w->len_bytes / time.median * 1e-3;
    double share = job->servers ? (double)job->workers / job->servers : 1;
    double busbw = algbw * (share > 1 ? share : 1);
    double moved_gb = 2e-9 * (double)w->len_bytes * (double)w->times_us.count;
    double cpu_s_per_gb = moved_gb > 0 ? w->cpu_s / moved_gb : 0;
    tly_bench_say(job, "  %12zu %12zu %9s %8s %10.1f %10.1f %10.1f %10.1f %8.3f %8.3f %8.3f %7zu",
                  w->len_bytes, w->count, dtype, op, time.median, time.min, time.max, time.p95, algbw, busbw,
                  cpu_s_per_gb, w->wrong);
    tly_json *json = job->json;
    tly_json_enter_row(json, "rows");
    tly_json_integer(json, "size_bytes", (int64_t)w->len_bytes);
    tly_json_integer(json, "count", (int64_t)w->count);
    tly_json_text(json, "dtype", dtype);
    tly_json_text(json, "op", op);
    tly_json_number(json, "time_us", time.median);
    tly_json_number(json, "min_us", time.min);
    tly_json_number(json, "max_us", time.max);
    tly_json_number(json, "p95_us", time.p95);
    tly_json_number(json, "algbw_gb_per_s", algbw);
    tly_json_number(json, "busbw_gb_per_s", busbw);
    tly_json_number(json, "cpu_s_per_gb", cpu_s_per_gb);
    tly_json_integer(json, "wrong", (int64_t)w->wrong);
    tly_json_samples(json, "samples_us", &w->times_us);
    tly_json_leave(json);
    return TALLY_OK;
}

static tally_status run_size(run *r, size_t len_bytes, row *w)
{
    const arguments *a = r->arguments;
    w->run = r;
    w->count = len_bytes / r->values.element_bytes;
    w->len_bytes = w->count * r->values.element_bytes;
    snprintf(w->name, sizeof(w->name), "pushpull.%s.%s.%zu", tally_dtype_name(a->dtype), tally_op_name(a->op),
             w->count);
    tally_status status = tly_samples_init(&w->times_us, (size_t)a->iterations);
    if (status)
        return status;
    tally_tensor_options tensor_options = TALLY_TENSOR_OPTIONS_INIT;
    tensor_options.op = a->op;
    status = tally_declare(r->job.ctx, w->name, a->dtype, w->count, &tensor_options, &w->tensor);
    if (!status)
        status = iterate(w);
    if (!status)
        status = report(w);
    r->wrong += w->wrong;
    return status;
}

/* Give up the handles; a request of a closed context ends here. */
static void row_fini(row *w)
{
    if (w->request)
        tally_wait(&w->request, 0);
    if (w->tensor)
        tally_undeclare(&w->tensor);
    tly_samples_fini(&w->times_us);
}

static size_t next_size(const arguments *a, size_t size)
{
    if (size == 0)
        return tally_dtype_size(a->dtype);
    return size > SIZE_MAX / (size_t)a->factor ? SIZE_MAX : size * (size_t)a->factor;
}

/* w: the row that an error left unfinished, for the end of the run. */
static tally_status run_sizes(run *r, row *w)
{
    const arguments *a = r->arguments;
    say_head(r);
    for (size_t size = a->min_bytes; size <= a->max_bytes; size = next_size(a, size)) {
        tally_status status = run_size(r, size, w);
        if (status)
            return status;
        row_fini(w);
        *w = (row){ 0 };
        if (size == SIZE_MAX)
            break;
    }
    tly_bench_report_servers(&r->job);
    tly_json_integer(r->job.json, "wrong", (int64_t)r->wrong);
    return TALLY_OK;
}

static tally_status run_buffers(run *r)
{
    size_t len_bytes = r->arguments->max_bytes ? r->arguments->max_bytes : 1;
    r->input = malloc(len_bytes);
    r->output = r->arguments->in_place ? r->input : malloc(len_bytes);
    return r->input && r->output ? TALLY_OK : tly_error_memory(len_bytes, "the tensors of --max");
}

tally_status tly_command_pushpull(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "Time push_pull over a range of sizes, and check the results.",
    };
    arguments a = {
        .min_bytes = 4, .max_bytes = 64u << 20, .factor = 4, .iterations = 20, .warmup = 5,
        .dtype = TALLY_DTYPE_F32, .op = TALLY_OP_SUM,
    };
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    run r = { .arguments = &a };
    row last = { 0 };
    tally_status status = run_buffers(&r);
    if (!status)
        status = tly_bench_job_open(&r.job, "pushpull", a.json);
    if (!status) {
        tly_values_init(&r.values, a.dtype, a.op, r.job.rank, r.job.workers);
        status = tly_bench_job_close(&r.job, run_sizes(&r, &last));
    }
    if (!status && r.wrong)
        status = tly_error(TALLY_EFAILED, "values that are wrong: %zu", r.wrong);
    tly_bench_error error;
    tly_bench_error_keep(&error, status);
    row_fini(&last);
    if (r.output != r.input)
        free(r.output);
    free(r.input);
    return tly_bench_error_restore(&error);
}
