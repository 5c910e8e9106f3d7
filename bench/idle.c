/* tally-bench idle: what a job costs that has nothing to do.
 *
 * All roles are up, all connections are made and have been used. Every worker but rank 0 waits in a
 * barrier; rank 0 waits for time to pass, and looks at all processes before and after. */
#include <argp.h>
#include <stdlib.h>

#include "bench/command.h"
#include "bench/job.h"
#include "bench/options.h"
#include "bench/values.h"

#define TENSOR_COUNT ((size_t)4 << 20) /* elements: some for each shard of each server */

typedef struct arguments {
    int seconds;
    const char *json;
} arguments;

enum { KEY_JSON = 256 };

static const struct argp_option options[] = {
    { "seconds", 's', "N", 0, "how long to look, default 5", 0 },
    { "json", KEY_JSON, "FILE", 0, "rank 0 writes the figures there", 0 },
    { 0 },
};

static const tly_option option_values[] = {
    { KEY_JSON, TLY_OPTION_TEXT, offsetof(arguments, json), NULL, 0, 0 },
    { 's', TLY_OPTION_INT, offsetof(arguments, seconds), "--seconds from 1 to 86400", 1, 86400 },
    { 0 },
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    return tly_option_parse(option_values, key, text, state);
}

typedef struct run {
    const arguments *arguments;
    tly_bench_job job;
    tly_processes before, after; /* on rank 0 */
    float *data;
    tally_tensor *tensor;
    tally_request *request;
    double seconds;              /* between the looks */
} run;

/* Use every connection once. */
static tally_status exchange(run *r)
{
    tly_values values;
    tly_values_wrong first;
    r->data = malloc(TENSOR_COUNT * sizeof(float));
    if (!r->data)
        return tly_error_memory(TENSOR_COUNT * sizeof(float), "a tensor");
    tly_values_init(&values, TALLY_DTYPE_F32, TALLY_OP_SUM, r->job.rank, r->job.workers);
    tly_values_fill(&values, 0, 0, r->data, TENSOR_COUNT);
    tally_status status =
        tally_declare(r->job.ctx, "idle", TALLY_DTYPE_F32, TENSOR_COUNT, NULL, &r->tensor);
    if (!status)
        status = tally_push_pull(r->tensor, r->data, r->data, TALLY_PRIORITY_DEFAULT, &r->request);
    if (!status)
        status = tally_wait(&r->request, -1);
    if (!status && tly_values_check(&values, 0, 0, 0, r->data, TENSOR_COUNT, &first))
        status = tly_error(TALLY_EFAILED, "element %zu is %.9g, expected %.9g", first.index, first.found,
                           first.right);
    return status;
}

static tally_status watch(run *r)
{
    int64_t from_ns = tly_measure_now_ns();
    tally_status status = tly_processes_look(&r->before);
    if (status)
        return status;
    tly_measure_compute_until(from_ns + r->arguments->seconds * INT64_C(1000000000));
    r->seconds = (double)(tly_measure_now_ns() - from_ns) * 1e-9;
    return tly_processes_look(&r->after);
}

static void report(const run *r)
{
    const tly_bench_job *job = &r->job;
    tly_bench_say(job, "# idle     %.1f s\n# core: processor time per time, 100 %% is one processor",
                  r->seconds);
    if (r->after.count == 0)
        tly_bench_say(job, "# not all processes of the job are on this machine: their cost is not known");
    tly_bench_say(job, "#\n# %-16s %8s %8s", "process", "pid", "core");
    tly_bench_say(job, "# %-16s %8s %8s", "", "", "(%)");
    for (size_t i = 0; i < r->after.count; i++) {
        const tly_process *p = &r->after.items[i];
        double share = (p->cpu_s - r->before.items[i].cpu_s) / r->seconds;
        tly_bench_say(job, "  %-16s %8d %8.3f", p->name, (int)p->pid, 100 * share);
        tly_json_enter_row(job->json, "processes");
        tly_json_text(job->json, "name", p->name);
        tly_json_number(job->json, "cores", share);
        tly_json_leave(job->json);
    }
    tly_json_number(job->json, "seconds", r->seconds);
}

static tally_status run_in_job(run *r)
{
    tally_status status = exchange(r);
    if (!status && r->job.rank == 0)
        status = tly_processes_find(r->job.workers, r->job.servers, &r->before);
    if (!status && r->job.rank == 0)
        status = tly_processes_find(r->job.workers, r->job.servers, &r->after);
    if (!status)
        status = tally_barrier(r->job.ctx, -1);
    if (!status && r->job.rank == 0)
        status = watch(r);
    if (!status)
        report(r);
    return status; /* the others wait in the barrier with which a job is left */
}

tally_status tly_command_idle(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "Measure the processor time of all processes of a job on this machine while nothing is to be "
               "done.",
    };
    arguments a = { .seconds = 5 };
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    run r = { .arguments = &a };
    tally_status status = tly_bench_job_open(&r.job, "idle", a.json);
    if (!status)
        status = tly_bench_job_close(&r.job, run_in_job(&r));
    tly_bench_error error;
    tly_bench_error_keep(&error, status);
    if (r.request)
        tally_wait(&r.request, 0);
    if (r.tensor)
        tally_undeclare(&r.tensor);
    tly_processes_fini(&r.before);
    tly_processes_fini(&r.after);
    free(r.data);
    return tly_bench_error_restore(&error);
}
