/* tally-bench exchange: all tensors of a model, ready at once, one step after another.
 *
 * Between steps every worker waits for the others and rank 0 looks at the processor time of all
 * processes of the job, so a step's cost is exact, and nothing but the exchange is in it. */
#include <argp.h>
#include <math.h>
#include <stdlib.h>

#include "bench/command.h"
#include "bench/job.h"
#include "bench/options.h"
#include "bench/training.h"

typedef struct arguments {
    const char *model, *json;
    int steps, warmup;
    bool out_of_place;
    tally_dtype dtype;
} arguments;

enum { KEY_OUT = 256, KEY_JSON };

static const struct argp_option options[] = {
    { "model", 'm', "NAME|FILE", 0, "a built-in model (`tally-bench models`) or a file; default vgg16", 0 },
    { "steps", 'n', "N", 0, "timed steps, default 10", 0 },
    { "warmup", 'w', "N", 0, "steps before them, at least 1; default 2", 0 },
    { "dtype", 't', "NAME", 0, "element type, default float32", 0 },
    { "out-of-place", KEY_OUT, NULL, 0, "results go to buffers of their own", 0 },
    { "json", KEY_JSON, "FILE", 0, "rank 0 writes every sample there", 0 },
    { 0 },
};

static const tly_option option_values[] = {
    { 'm', TLY_OPTION_TEXT, offsetof(arguments, model), NULL, 0, 0 },
    { KEY_JSON, TLY_OPTION_TEXT, offsetof(arguments, json), NULL, 0, 0 },
    { KEY_OUT, TLY_OPTION_FLAG, offsetof(arguments, out_of_place), NULL, 0, 0 },
    { 'n', TLY_OPTION_INT, offsetof(arguments, steps), "--steps from 1 to 1000000", 1, 1000000 },
    { 'w', TLY_OPTION_INT, offsetof(arguments, warmup), "--warmup from 1 to 1000000", 1, 1000000 },
    { 't', TLY_OPTION_DTYPE, offsetof(arguments, dtype), NULL, 0, 0 },
    { 0 },
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    return tly_option_parse(option_values, key, text, state);
}

typedef struct run {
    const arguments *arguments;
    tly_bench_job job;
    tly_model *model;
    tly_training *training;
    tly_processes processes;    /* on rank 0 */
    double *process_cpu_s;      /* of each in the timed steps */
    tly_samples steps, cpu;     /* seconds, and processor seconds of all processes, of each step */
    size_t wrong;               /* elements */
} run;

static uint64_t model_bytes(const run *r)
{
    return r->model->params * tally_dtype_size(r->arguments->dtype);
}

static void say_head(const run *r)
{
    const tly_bench_job *job = &r->job;
    tly_bench_say(job, "# model    %s  tensors %zu  parameters %llu  %s  %s", r->model->name,
                  r->model->tensor_count, (unsigned long long)r->model->params,
                  tally_dtype_name(r->arguments->dtype),
                  r->arguments->out_of_place ? "out of place" : "in place");
    tly_bench_say(job, "# steps    %d after %d, each after a barrier; all tensors are ready at once",
                  r->arguments->steps, r->arguments->warmup);
    tly_bench_say(job,
                  "# bytes: one worker's gradients, sent and received once a step\n"
                  "# step: from the first tensor's issue to the last one's result on this worker, median\n"
                  "# cpu: processor seconds of a step, user and system, of all processes of the job; median\n"
                  "# cores: cpu / step, processors busy\n"
                  "# peak: most resident memory, from the start of the process");
    if (job->rank == 0 && r->processes.count == 0)
        tly_bench_say(job, "# not all processes of the job are on this machine: their cost is not known");
}

static void count_wrong(run *r)
{
    size_t wrong = tly_training_check(r->training);
    r->wrong += wrong;
    if (!wrong)
        tly_bench_say(&r->job, "# all values of all %zu tensors are right", r->model->tensor_count);
}

/* The last look's processor times, kept while the next one is taken. */
static tally_status timed_step(run *r)
{
    double before = tly_processes_cpu_s(&r->processes);
    for (size_t i = 0; i < r->processes.count; i++)
        r->process_cpu_s[i] -= r->processes.items[i].cpu_s;
    int64_t from_ns = tly_measure_now_ns();
    tally_status status = tly_training_exchange(r->training);
    int64_t to_ns = tly_measure_now_ns();
    if (!status)
        status = tly_bench_look(&r->job, &r->processes);
    if (status)
        return status;
    for (size_t i = 0; i < r->processes.count; i++)
        r->process_cpu_s[i] += r->processes.items[i].cpu_s;
    tly_samples_add(&r->steps, (double)(to_ns - from_ns) * 1e-9);
    tly_samples_add(&r->cpu, tly_processes_cpu_s(&r->processes) - before);
    return TALLY_OK;
}

static tally_status run_steps(run *r)
{
    tally_status status = TALLY_OK;
    for (int i = 0; i < r->arguments->warmup && !status; i++) {
        tly_training_stamp(r->training);
        status = tly_training_exchange(r->training);
        if (!status && i == 0)
            count_wrong(r);
    }
    for (int i = 0; i < r->arguments->steps && !status; i++) {
        tly_training_stamp(r->training);
        status = tly_bench_look(&r->job, &r->processes);
        if (!status)
            status = timed_step(r);
    }
    if (!status)
        count_wrong(r);
    return status;
}

static void report_processes(const run *r)
{
    const tly_bench_job *job = &r->job;
    tly_bench_say(job, "#\n# %-16s %8s %8s %10s", "process", "pid", "cpu", "peak");
    tly_bench_say(job, "# %-16s %8s %8s %10s", "", "", "(s)", "(MB)");
    for (size_t i = 0; i < r->processes.count; i++) {
        const tly_process *p = &r->processes.items[i];
        double cpu_s = r->process_cpu_s[i] / r->arguments->steps;
        tly_bench_say(job, "  %-16s %8d %8.4f %10.1f", p->name, (int)p->pid, cpu_s,
                      (double)p->peak_bytes * 1e-6);
        tly_json_enter_row(job->json, "processes");
        tly_json_text(job->json, "name", p->name);
        tly_json_number(job->json, "cpu_s", cpu_s);
        tly_json_integer(job->json, "peak_bytes", (int64_t)p->peak_bytes);
        tly_json_leave(job->json);
    }
}

static tally_status report(const run *r)
{
    const tly_bench_job *job = &r->job;
    tly_summary step, cpu;
    tally_status status = tly_samples_summary(&r->steps, &step);
    if (!status)
        status = tly_samples_summary(&r->cpu, &cpu);
    if (status)
        return status;
    char cpu_text[TLY_NUMBER_ROOM], cores_text[TLY_NUMBER_ROOM];
    tly_bench_say(job, "#\n# %-10s %11s %8s %8s %8s %8s %8s %8s %7s", "model", "bytes", "step", "min", "max",
                  "p95", "cpu", "cores", "#wrong");
    tly_bench_say(job, "# %-10s %11s %8s %8s %8s %8s %8s %8s %7s", "", "(B)", "(s)", "(s)", "(s)", "(s)",
                  "(s)", "", "");
    tly_bench_say(job, "  %-10s %11llu %8.4f %8.4f %8.4f %8.4f %8s %8s %7zu", r->model->name,
                  (unsigned long long)model_bytes(r), step.median, step.min, step.max, step.p95,
                  tly_bench_number(cpu_text, 4, cpu.median),
                  tly_bench_number(cores_text, 2, cpu.median / step.median), r->wrong);
    if (r->processes.count)
        report_processes(r);
    tly_bench_report_servers(job);
    tly_json_text(job->json, "model", r->model->name);
    tly_json_integer(job->json, "bytes", (int64_t)model_bytes(r));
    tly_json_number(job->json, "step_s", step.median);
    tly_json_number(job->json, "cpu_s", cpu.median);
    tly_json_integer(job->json, "wrong", (int64_t)r->wrong);
    tly_json_samples(job->json, "step_samples_s", &r->steps);
    tly_json_samples(job->json, "cpu_samples_s", &r->cpu);
    return TALLY_OK;
}

/* Everything between joining the job and leaving it. */
static tally_status run_in_job(run *r)
{
    tally_status status = TALLY_OK;
    if (r->job.rank == 0)
        status = tly_processes_find(r->job.workers, r->job.servers, &r->processes);
    if (status)
        return status;
    r->process_cpu_s = calloc(r->processes.count + 1, sizeof(double));
    if (!r->process_cpu_s)
        return tly_error_memory((r->processes.count + 1) * sizeof(double), "processor times");
    say_head(r);
    const tly_training_options training_options = {
        .dtype = r->arguments->dtype,
        .out_of_place = r->arguments->out_of_place,
    };
    status = tly_training_create(r->job.ctx, r->model, &training_options, &r->training);
    if (!status)
        status = run_steps(r);
    return status ? status : report(r);
}

tally_status tly_command_exchange(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "Exchange a model's gradients, all ready at once, without compute, one step at a time; where "
               "all processes of the job are on this machine, as under tally-launch --local, say what they "
               "cost.",
    };
    arguments a = { .model = "vgg16", .steps = 10, .warmup = 2, .dtype = TALLY_DTYPE_F32 };
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    run r = { .arguments = &a };
    tally_status status = tly_samples_init(&r.steps, (size_t)a.steps);
    if (!status)
        status = tly_samples_init(&r.cpu, (size_t)a.steps);
    if (!status)
        status = tly_model_load(a.model, &r.model);
    if (!status)
        status = tly_bench_job_open(&r.job, "exchange", a.json);
    if (!status)
        status = tly_bench_job_close(&r.job, run_in_job(&r));
    if (!status && r.wrong)
        status = tly_error(TALLY_EFAILED, "values that are wrong: %zu", r.wrong);
    tly_bench_error error;
    tly_bench_error_keep(&error, status);
    tly_training_destroy(r.training);
    tly_model_destroy(r.model);
    tly_processes_fini(&r.processes);
    free(r.process_cpu_s);
    tly_samples_fini(&r.steps);
    tly_samples_fini(&r.cpu);
    return tly_bench_error_restore(&error);
}
