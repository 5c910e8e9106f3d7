/* tally-bench traffic: a model's gradients, one training step after another.
 *
 * Order of a run: step 0, whose values are all checked; a few steps without compute, one at a time,
 * which give the time of communication alone; warm-up; the timed steps, which overlap as in training;
 * then all values are checked again. */
#include <argp.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bench/command.h"
#include "bench/job.h"
#include "bench/options.h"
#include "bench/training.h"

#define ALONE_STEPS 2

typedef struct arguments {
    const char *model, *json;
    int steps, warmup;
    int batch;           /* 0: the model's */
    double images_per_s; /* 0: the model's */
    double dilate;
    int progress_s;      /* 0: none */
    bool compute;
    bool barrier, out_of_place;
    tally_dtype dtype;
} arguments;

enum { KEY_BATCH = 256, KEY_IMAGES, KEY_DILATE, KEY_COMPUTE, KEY_BARRIER, KEY_OUT, KEY_JSON, KEY_PROGRESS };

static const struct argp_option options[] = {
    { "model", 'm', "NAME|FILE", 0, "a built-in model (`tally-bench models`) or a file; default vgg16", 0 },
    { "steps", 'n', "N", 0, "timed steps, default 10", 0 },
    { "warmup", 'w', "N", 0, "steps before them that are not timed, default 1", 0 },
    { "batch", KEY_BATCH, "N", 0, "images of a step on one worker, default the model's", 0 },
    { "images-per-s", KEY_IMAGES, "X", 0, "images per second of one worker alone, default the model's", 0 },
    { "dilate", KEY_DILATE, "X", 0, "multiply the compute times, to match a slower network; default 1", 0 },
    { "compute", KEY_COMPUTE, "model|none", 0, "none: communication only; default model", 0 },
    { "barrier", KEY_BARRIER, NULL, 0, "each step waits for all tensors before its forward pass", 0 },
    { "dtype", 't', "NAME", 0, "element type, default float32", 0 },
    { "out-of-place", KEY_OUT, NULL, 0, "results go to buffers of their own", 0 },
    { "progress", KEY_PROGRESS, "SECONDS", 0, "at most one line in so many seconds, default 1; 0: none", 0 },
    { "json", KEY_JSON, "FILE", 0, "rank 0 writes every sample there", 0 },
    { 0 },
};

static const tly_option option_values[] = {
    { 'm', TLY_OPTION_TEXT, offsetof(arguments, model), NULL, 0, 0 },
    { KEY_JSON, TLY_OPTION_TEXT, offsetof(arguments, json), NULL, 0, 0 },
    { KEY_BARRIER, TLY_OPTION_FLAG, offsetof(arguments, barrier), NULL, 0, 0 },
    { KEY_OUT, TLY_OPTION_FLAG, offsetof(arguments, out_of_place), NULL, 0, 0 },
    { 'n', TLY_OPTION_INT, offsetof(arguments, steps), "--steps from 1 to 1000000", 1, 1000000 },
    { 'w', TLY_OPTION_INT, offsetof(arguments, warmup), "--warmup from 0 to 1000000", 0, 1000000 },
    { KEY_BATCH, TLY_OPTION_INT, offsetof(arguments, batch), "--batch from 1 to 1000000", 1, 1000000 },
    { KEY_IMAGES, TLY_OPTION_POSITIVE, offsetof(arguments, images_per_s), "--images-per-s above 0", 0, 0 },
    { KEY_DILATE, TLY_OPTION_POSITIVE, offsetof(arguments, dilate), "--dilate above 0", 0, 0 },
    { KEY_PROGRESS, TLY_OPTION_INT, offsetof(arguments, progress_s),
      "--progress from 0 to 1000000 seconds", 0, 1000000 },
    { 't', TLY_OPTION_DTYPE, offsetof(arguments, dtype), NULL, 0, 0 },
    { 0 },
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    arguments *a = state->input;
    if (key != KEY_COMPUTE)
        return tly_option_parse(option_values, key, text, state);
    a->compute = strcmp(text, "model") == 0;
    if (!a->compute && strcmp(text, "none") != 0)
        argp_error(state, "expected --compute model or none, found '%s'", text);
    return 0;
}

/* One run, from joining the job to the report. */
typedef struct run {
    const arguments *arguments;
    tly_bench_job job;
    tly_model *model;
    tly_training *training;
    int batch;
    double compute_s;         /* of a step, dilated; 0 for none */
    tly_samples steps, waits; /* of the timed steps, in seconds */
    tly_samples alone;        /* communication alone, in seconds */
    double cpu_s;             /* of the timed steps */
    uint64_t moved_bytes;     /* by the timed steps, both ways */
    size_t wrong;             /* elements */
    int64_t said_ns;          /* when progress was last printed */
} run;

/* Steps are numbered from 0, through all phases of the run. */
static size_t first_timed_step(const arguments *a)
{
    return 1 + ALONE_STEPS + (size_t)a->warmup;
}

static uint64_t model_bytes(const run *r)
{
    return r->model->params * tally_dtype_size(r->arguments->dtype);
}

static void say_head(const run *r)
{
    const arguments *a = r->arguments;
    const tly_bench_job *job = &r->job;
    tly_bench_say(job, "# model    %s  layers %zu  tensors %zu  parameters %llu  %s  %s%s", r->model->name,
                  r->model->layer_count, r->model->tensor_count, (unsigned long long)r->model->params,
                  tally_dtype_name(a->dtype), a->out_of_place ? "out of place" : "in place",
                  a->barrier ? "  barrier after each step" : "");
    if (a->compute)
        tly_bench_say(job, "# compute  %.4f s a step: batch %d at %g images/s, times %g", r->compute_s,
                      r->batch, a->images_per_s > 0 ? a->images_per_s : r->model->images_per_s, a->dilate);
    else
        tly_bench_say(job, "# compute  none");
    size_t timed = first_timed_step(a);
    tly_bench_say(job, "# steps    0 checked  1..%d communication alone  then warm-up %d  %zu..%zu timed",
                  ALONE_STEPS, a->warmup, timed, timed + (size_t)a->steps - 1);
    tly_bench_say(job,
                  "# bytes: one worker's gradients, sent and received once a step\n"
                  "# step: from the end of a backward pass to the end of the next one\n"
                  "# images/s: of all workers, at the median step\n"
                  "# efficiency: compute / step, 1 when communication costs nothing\n"
                  "# alone: the exchange of all tensors without compute, median of %d\n"
                  "# overlap: 1 - (step - compute) / alone, 0 to 1: the part of communication that hides\n"
                  "# waited: time that a step waited for tensors, median\n"
                  "# cpu: processor seconds of this worker per 10^9 bytes sent and received",
                  ALONE_STEPS);
}

static void count_wrong(run *r)
{
    size_t wrong = tly_training_check(r->training);
    r->wrong += wrong;
    if (!wrong)
        tly_bench_say(&r->job, "# all values of all %zu tensors are right", r->model->tensor_count);
}

static tally_status checked_step(run *r)
{
    tly_bench_say(&r->job, "#\n# step 0");
    tally_status status = tly_training_step(r->training, false);
    if (!status)
        status = tly_training_drain(r->training);
    if (!status)
        count_wrong(r);
    return status;
}

static tally_status alone_steps(run *r)
{
    for (int i = 0; i < ALONE_STEPS; i++) {
        tally_status status = tally_barrier(r->job.ctx, -1);
        int64_t from_ns = tly_measure_now_ns();
        if (!status)
            status = tly_training_step(r->training, false);
        if (!status)
            status = tly_training_drain(r->training);
        if (status)
            return status;
        tly_samples_add(&r->alone, (double)(tly_measure_now_ns() - from_ns) * 1e-9);
        tly_bench_say(&r->job, "# communication alone  %.4f s", r->alone.values[i]);
    }
    return tally_barrier(r->job.ctx, -1);
}

static void say_progress(run *r, int64_t now_ns)
{
    int64_t interval_ns = r->arguments->progress_s * INT64_C(1000000000);
    if (interval_ns == 0 || now_ns - r->said_ns < interval_ns)
        return;
    r->said_ns = now_ns;
    double step_s = r->steps.values[r->steps.count - 1];
    tly_bench_say(&r->job, "# step %zu (%zu of %d)  %.4f s  %.1f images/s",
                  first_timed_step(r->arguments) + r->steps.count - 1, r->steps.count, r->arguments->steps,
                  step_s, r->job.workers * r->batch / step_s);
}

static tally_status timed_steps(run *r)
{
    for (int i = 0; i < r->arguments->warmup; i++) {
        tally_status status = tly_training_step(r->training, r->arguments->compute);
        if (status)
            return status;
    }
    uint64_t moved_before = tly_bench_moved_bytes(&r->job);
    double cpu_before = tly_measure_cpu_s();
    double waited_before = tly_training_waited_s(r->training);
    int64_t from_ns = tly_measure_now_ns();
    r->said_ns = from_ns;
    for (int i = 0; i < r->arguments->steps; i++) {
        tally_status status = tly_training_step(r->training, r->arguments->compute);
        if (status)
            return status;
        int64_t now_ns = tly_measure_now_ns();
        double waited = tly_training_waited_s(r->training);
        tly_samples_add(&r->steps, (double)(now_ns - from_ns) * 1e-9);
        tly_samples_add(&r->waits, waited - waited_before);
        from_ns = now_ns;
        waited_before = waited;
        say_progress(r, now_ns);
    }
    r->cpu_s = tly_measure_cpu_s() - cpu_before;
    r->moved_bytes = tly_bench_moved_bytes(&r->job) - moved_before;
    return TALLY_OK;
}

static tally_status run_steps(run *r)
{
    tally_status status = checked_step(r);
    if (!status)
        status = alone_steps(r);
    if (!status)
        status = timed_steps(r);
    if (!status)
        status = tly_training_drain(r->training);
    if (!status)
        count_wrong(r);
    return status;
}

static double within_0_1(double value)
{
    return value < 0 ? 0 : value > 1 ? 1 : value; /* NaN stays */
}

/* What a run comes to; NaN where a number has no meaning. */
typedef struct results {
    tly_summary step, wait, alone;
    double images_per_s, efficiency, overlap, cpu_s_per_gb;
} results;

static tally_status evaluate(const run *r, results *out)
{
    results x;
    tally_status status = tly_samples_summary(&r->steps, &x.step);
    if (!status)
        status = tly_samples_summary(&r->waits, &x.wait);
    if (!status)
        status = tly_samples_summary(&r->alone, &x.alone);
    if (status)
        return status;
    bool computes = r->compute_s > 0;
    x.images_per_s = r->job.workers * r->batch / x.step.median;
    x.efficiency = computes ? r->compute_s / x.step.median : (double)NAN;
    /* One worker alone has no communication to hide. */
    x.overlap = computes && r->job.servers
                    ? within_0_1(1 - (x.step.median - r->compute_s) / x.alone.median)
                    : (double)NAN;
    x.cpu_s_per_gb = r->moved_bytes ? r->cpu_s / ((double)r->moved_bytes * 1e-9) : (double)NAN;
    *out = x;
    return TALLY_OK;
}

static void print_table(const run *r, const results *x)
{
    const tly_bench_job *job = &r->job;
    static const char *const heads[][15] = {
        { "model", "workers", "servers", "bytes", "step", "min", "max", "p95", "images/s", "efficiency",
          "overlap", "alone", "waited", "cpu", "#wrong" },
        { "", "", "", "(B)", "(s)", "(s)", "(s)", "(s)", "", "", "", "(s)", "(s)", "(s/GB)", "" },
    };
    tly_bench_say(job, "#");
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        const char *const *h = heads[i];
        tly_bench_say(job, "# %-10s %7s %7s %11s %8s %8s %8s %8s %9s %10s %7s %8s %8s %7s %7s", h[0], h[1],
                      h[2], h[3], h[4], h[5], h[6], h[7], h[8], h[9], h[10], h[11], h[12], h[13], h[14]);
    }
    char efficiency[TLY_NUMBER_ROOM], overlap[TLY_NUMBER_ROOM], cpu[TLY_NUMBER_ROOM];
    tly_bench_say(job, "  %-10s %7d %7d %11llu %8.4f %8.4f %8.4f %8.4f %9.1f %10s %7s %8.4f %8.4f %7s %7zu",
                  r->model->name, job->workers, job->servers, (unsigned long long)model_bytes(r),
                  x->step.median, x->step.min, x->step.max, x->step.p95, x->images_per_s,
                  tly_bench_number(efficiency, 4, x->efficiency), tly_bench_number(overlap, 3, x->overlap),
                  x->alone.median, x->wait.median, tly_bench_number(cpu, 3, x->cpu_s_per_gb), r->wrong);
}

static void write_json(const run *r, const results *x)
{
    tly_json *json = r->job.json;
    tly_json_text(json, "model", r->model->name);
    tly_json_text(json, "dtype", tally_dtype_name(r->arguments->dtype));
    tly_json_integer(json, "tensors", (int64_t)r->model->tensor_count);
    tly_json_integer(json, "bytes", (int64_t)model_bytes(r));
    tly_json_integer(json, "batch", r->batch);
    tly_json_number(json, "dilate", r->arguments->dilate);
    tly_json_integer(json, "barrier", r->arguments->barrier);
    tly_json_integer(json, "out_of_place", r->arguments->out_of_place);
    tly_json_number(json, "compute_time_s", r->compute_s);
    tly_json_number(json, "step_time_s", x->step.median);
    tly_json_number(json, "images_per_s", x->images_per_s);
    tly_json_number(json, "efficiency", x->efficiency);
    tly_json_number(json, "overlap", x->overlap);
    tly_json_number(json, "alone_s", x->alone.median);
    tly_json_number(json, "waited_s", x->wait.median);
    tly_json_number(json, "cpu_s_per_gb", x->cpu_s_per_gb);
    tly_json_integer(json, "moved_bytes", (int64_t)r->moved_bytes);
    tly_json_integer(json, "wrong", (int64_t)r->wrong);
    tly_json_samples(json, "step_samples_s", &r->steps);
    tly_json_samples(json, "waited_samples_s", &r->waits);
    tly_json_samples(json, "alone_samples_s", &r->alone);
}

static tally_status report(const run *r)
{
    results x;
    tally_status status = evaluate(r, &x);
    if (status)
        return status;
    print_table(r, &x);
    tly_bench_report_servers(&r->job);
    write_json(r, &x);
    return TALLY_OK;
}

/* Everything between joining the job and leaving it. */
static tally_status run_in_job(run *r)
{
    const arguments *a = r->arguments;
    double rate = a->images_per_s > 0 ? a->images_per_s : r->model->images_per_s;
    r->batch = a->batch ? a->batch : r->model->batch;
    r->compute_s = a->compute ? r->batch / rate * a->dilate : 0;
    say_head(r);
    const tly_training_options training_options = {
        .dtype = a->dtype,
        .out_of_place = a->out_of_place,
        .barrier = a->barrier,
        .compute_s = r->compute_s,
    };
    tally_status status = tly_training_create(r->job.ctx, r->model, &training_options, &r->training);
    if (!status)
        status = run_steps(r);
    return status ? status : report(r);
}

static tally_status run_samples(run *r)
{
    tally_status status = tly_samples_init(&r->steps, (size_t)r->arguments->steps);
    if (!status)
        status = tly_samples_init(&r->waits, (size_t)r->arguments->steps);
    return status ? status : tly_samples_init(&r->alone, ALONE_STEPS);
}

tally_status tly_command_traffic(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "Exchange a model's gradients as data-parallel training does: the backward pass issues each "
               "layer's tensors when their time has come, the next forward pass of a layer waits for that "
               "layer's tensors. Computing is modelled by waiting; the values are real and are checked.",
    };
    arguments a = {
        .model = "vgg16", .steps = 10, .warmup = 1, .dilate = 1, .progress_s = 1, .compute = true,
        .dtype = TALLY_DTYPE_F32,
    };
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    run r = { .arguments = &a };
    tally_status status = run_samples(&r);
    if (!status)
        status = tly_model_load(a.model, &r.model);
    if (!status)
        status = tly_bench_job_open(&r.job, "traffic", a.json);
    if (!status) {
        status = run_in_job(&r);
        status = tly_bench_job_close(&r.job, status);
    }
    if (!status && r.wrong)
        status = tly_error(TALLY_EFAILED, "values that are wrong: %zu", r.wrong);
    tly_bench_error error;
    tly_bench_error_keep(&error, status);
    tly_training_destroy(r.training);
    tly_model_destroy(r.model);
    tly_samples_fini(&r.steps);
    tly_samples_fini(&r.waits);
    tly_samples_fini(&r.alone);
    return tly_bench_error_restore(&error);
}
