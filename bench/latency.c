/* tally-bench latency: the round trip of one push_pull of one element.
 *
 * The iterations follow each other without a barrier: an exchange ends only when every worker has
 * contributed, so they keep themselves in step. */
#include <argp.h>
#include <stdio.h>

#include "bench/command.h"
#include "bench/job.h"
#include "bench/options.h"
#include "bench/values.h"

typedef struct arguments {
    int iterations, warmup;
    const char *json;
} arguments;

enum { KEY_JSON = 256 };

static const struct argp_option options[] = {
    { "iters", 'n', "N", 0, "timed iterations, default 5000", 0 },
    { "warmup", 'w', "N", 0, "iterations before them, default 500", 0 },
    { "json", KEY_JSON, "FILE", 0, "rank 0 writes every sample there", 0 },
    { 0 },
};

static const tly_option option_values[] = {
    { KEY_JSON, TLY_OPTION_TEXT, offsetof(arguments, json), NULL, 0, 0 },
    { 'n', TLY_OPTION_INT, offsetof(arguments, iterations), "--iters from 1 to 10000000", 1, 10000000 },
    { 'w', TLY_OPTION_INT, offsetof(arguments, warmup), "--warmup from 0 to 10000000", 0, 10000000 },
    { 0 },
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    return tly_option_parse(option_values, key, text, state);
}

typedef struct run {
    const arguments *arguments;
    tly_bench_job job;
    tly_values values;
    tally_tensor *tensor;
    tally_request *request;
    float input, output;
    tly_samples times_us;
    size_t wrong;
} run;

/* One iteration; every result is checked, after its time is taken. */
static tally_status exchange(run *r, unsigned iteration, tly_samples *times_us)
{
    tly_values_wrong first;
    tly_values_stamp(&r->values, 0, iteration, &r->input, 1);
    int64_t from_ns = tly_measure_now_ns();
    tally_status status =
        tally_push_pull(r->tensor, &r->input, &r->output, TALLY_PRIORITY_DEFAULT, &r->request);
    if (!status)
        status = tally_wait(&r->request, -1);
    int64_t to_ns = tly_measure_now_ns();
    if (status)
        return tly_error_context(status, "iteration %u", iteration);
    if (times_us)
        tly_samples_add(times_us, (double)(to_ns - from_ns) * 1e-3);
    if (tly_values_check(&r->values, 0, iteration, iteration, &r->output, 1, &first) && r->wrong++ == 0)
        fprintf(stderr, "tally-bench: iteration %u: the sum is %.9g, expected %.9g\n", iteration,
                first.found, first.right);
    return TALLY_OK;
}

static tally_status report(const run *r)
{
    const tly_bench_job *job = &r->job;
    tly_summary time;
    tally_status status = tly_samples_summary(&r->times_us, &time);
    if (status)
        return status;
    tly_bench_say(job, "# time: from push_pull to the end of wait on this worker\n#");
    tly_bench_say(job, "# %8s %10s %10s %10s %10s %10s %7s", "size", "iters", "p50", "p99", "min", "max",
                  "#wrong");
    tly_bench_say(job, "# %8s %10s %10s %10s %10s %10s", "(B)", "", "(us)", "(us)", "(us)", "(us)");
    tly_bench_say(job, "  %8zu %10zu %10.1f %10.1f %10.1f %10.1f %7zu", sizeof(r->input), r->times_us.count,
                  time.median, time.p99, time.min, time.max, r->wrong);
    tly_json_integer(job->json, "size_bytes", sizeof(r->input));
    tly_json_number(job->json, "p50_us", time.median);
    tly_json_number(job->json, "p99_us", time.p99);
    tly_json_number(job->json, "min_us", time.min);
    tly_json_number(job->json, "max_us", time.max);
    tly_json_integer(job->json, "wrong", (int64_t)r->wrong);
    tly_json_samples(job->json, "samples_us", &r->times_us);
    return TALLY_OK;
}

static tally_status run_in_job(run *r)
{
    unsigned warmup = (unsigned)r->arguments->warmup, all = warmup + (unsigned)r->arguments->iterations;
    tly_values_init(&r->values, TALLY_DTYPE_F32, TALLY_OP_SUM, r->job.rank, r->job.workers);
    tally_status status = tally_declare(r->job.ctx, "latency", TALLY_DTYPE_F32, 1, NULL, &r->tensor);
    if (!status)
        status = tally_barrier(r->job.ctx, -1);
    for (unsigned i = 0; i < all && !status; i++)
        status = exchange(r, i, i < warmup ? NULL : &r->times_us);
    return status ? status : report(r);
}

tally_status tly_command_latency(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "Time the round trip of one push_pull of 4 bytes, and check the results.",
    };
    arguments a = { .iterations = 5000, .warmup = 500 };
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    run r = { .arguments = &a };
    tally_status status = tly_samples_init(&r.times_us, (size_t)a.iterations);
    if (!status)
        status = tly_bench_job_open(&r.job, "latency", a.json);
    if (!status)
        status = tly_bench_job_close(&r.job, run_in_job(&r));
    if (!status && r.wrong)
        status = tly_error(TALLY_EFAILED, "values that are wrong: %zu", r.wrong);
    tly_bench_error error;
    tly_bench_error_keep(&error, status);
    if (r.request)
        tally_wait(&r.request, 0);
    if (r.tensor)
        tally_undeclare(&r.tensor);
    tly_samples_fini(&r.times_us);
    return tly_bench_error_restore(&error);
}
