/* tally-bench small: many small tensors a step, beside one tensor of the same size.
 *
 * What differs between the two is the cost per tensor. They take turns, some steps each, so that what
 * else the machine does meets both. */
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/command.h"
#include "bench/job.h"
#include "bench/options.h"
#include "bench/parse.h"
#include "bench/values.h"

#define COUNTS_MAX 16

typedef struct arguments {
    size_t tensor_bytes;
    int counts[COUNTS_MAX], count_count; /* tensors of a step, for each row of the table */
    int steps, rounds;
    const char *json;
} arguments;

enum { KEY_JSON = 256 };

static const struct argp_option options[] = {
    { "tensors", 'c', "N,N,...", 0, "tensors a step, default 100,1000,10000", 0 },
    { "size", 'b', "SIZE", 0, "bytes of each, at least 4; default 2000", 0 },
    { "steps", 'n', "N", 0, "timed steps of each kind in a round, default 10", 0 },
    { "rounds", 'r', "N", 0, "rounds, each with both kinds; default 5", 0 },
    { "json", KEY_JSON, "FILE", 0, "rank 0 writes every sample there", 0 },
    { 0 },
};

static bool parse_counts(const char *text, arguments *a)
{
    int n = 0;
    for (const char *comma = text; comma; text = comma + 1) {
        char word[16];
        comma = strchr(text, ',');
        size_t len = comma ? (size_t)(comma - text) : strlen(text);
        if (n == COUNTS_MAX || len >= sizeof(word))
            return false;
        memcpy(word, text, len);
        word[len] = 0;
        if (!tly_parse_int(word, 1, 100000, &a->counts[n++]))
            return false;
        if (!comma)
            break;
    }
    a->count_count = n;
    return true;
}

static const tly_option option_values[] = {
    { KEY_JSON, TLY_OPTION_TEXT, offsetof(arguments, json), NULL, 0, 0 },
    { 'b', TLY_OPTION_SIZE, offsetof(arguments, tensor_bytes),
      "--size in bytes, from 4 to 1G", sizeof(float), INT64_C(1) << 30 },
    { 'n', TLY_OPTION_INT, offsetof(arguments, steps), "--steps from 1 to 100000", 1, 100000 },
    { 'r', TLY_OPTION_INT, offsetof(arguments, rounds), "--rounds from 1 to 1000", 1, 1000 },
    { 0 },
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    if (key != 'c')
        return tly_option_parse(option_values, key, text, state);
    if (!parse_counts(text, state->input))
        argp_error(state, "expected --tensors as up to 16 numbers from 1 to 100000, such as 100,1000, found '%s'",
                   text);
    return 0;
}

typedef struct run {
    const arguments *arguments;
    tly_bench_job job;
    tly_processes processes; /* on rank 0 */
    tly_values values;
    size_t wrong;            /* elements */
} run;

/* Tensors that are exchanged together, in place: one kind of step. */
typedef struct group {
    run *run;
    size_t tensor_count, elements; /* of one tensor */
    float *data;
    tally_tensor **tensors;
    tally_request **requests;
    unsigned steps;                     /* taken */
    tly_samples step_s;                 /* of each timed step */
    tly_samples worker_cpu_s, all_cpu_s; /* of a step, for each round */
} group;

static float *data_of(const group *g, size_t tensor)
{
    return g->data + tensor * g->elements;
}

static tally_status group_init(group *g, run *r, size_t tensor_count, size_t elements)
{
    size_t rounds = (size_t)r->arguments->rounds, timed = rounds * (size_t)r->arguments->steps;
    *g = (group){ .run = r, .tensor_count = tensor_count, .elements = elements };
    g->data = malloc(tensor_count * elements * sizeof(float));
    g->tensors = calloc(tensor_count, sizeof(*g->tensors));
    g->requests = calloc(tensor_count, sizeof(*g->requests));
    if (!g->data || !g->tensors || !g->requests)
        return tly_error_memory(tensor_count * elements * sizeof(float), "the tensors");
    tally_status status = tly_samples_init(&g->step_s, timed);
    if (!status)
        status = tly_samples_init(&g->worker_cpu_s, rounds);
    if (!status)
        status = tly_samples_init(&g->all_cpu_s, rounds);
    tally_tensor_options average = TALLY_TENSOR_OPTIONS_INIT;
    average.op = TALLY_OP_AVERAGE;
    for (size_t i = 0; i < tensor_count && !status; i++) {
        char name[64];
        snprintf(name, sizeof(name), "small.%zu.%zu.%zu", tensor_count, elements, i);
        tly_values_fill(&r->values, (unsigned)i, 0, data_of(g, i), elements);
        status = tally_declare(r->job.ctx, name, TALLY_DTYPE_F32, elements, &average, &g->tensors[i]);
    }
    return status;
}

static void group_fini(group *g)
{
    for (size_t i = 0; g->tensors && g->requests && i < g->tensor_count; i++) {
        if (g->requests[i])
            tally_wait(&g->requests[i], 0);
        if (g->tensors[i])
            tally_undeclare(&g->tensors[i]);
    }
    free(g->data);
    free(g->tensors);
    free(g->requests);
    tly_samples_fini(&g->step_s);
    tly_samples_fini(&g->worker_cpu_s);
    tly_samples_fini(&g->all_cpu_s);
}

static tally_status group_step(group *g, tly_samples *step_s)
{
    tally_status status = TALLY_OK;
    for (size_t i = 0; i < g->tensor_count; i++)
        tly_values_stamp(&g->run->values, (unsigned)i, g->steps, data_of(g, i), g->elements);
    int64_t from_ns = tly_measure_now_ns();
    for (size_t i = 0; i < g->tensor_count && !status; i++)
        status = tally_push_pull(g->tensors[i], data_of(g, i), data_of(g, i), TALLY_PRIORITY_DEFAULT,
                                 &g->requests[i]);
    for (size_t i = 0; i < g->tensor_count && !status; i++)
        status = tally_wait(&g->requests[i], -1);
    if (status)
        return tly_error_context(status, "step %u of %zu tensors", g->steps, g->tensor_count);
    g->steps++;
    if (step_s)
        tly_samples_add(step_s, (double)(tly_measure_now_ns() - from_ns) * 1e-9);
    return TALLY_OK;
}

static void group_check(group *g)
{
    for (size_t i = 0; i < g->tensor_count; i++) {
        tly_values_wrong first;
        size_t wrong = tly_values_check(&g->run->values, (unsigned)i, 0, g->steps - 1, data_of(g, i),
                                        g->elements, &first);
        if (wrong && g->run->wrong == 0)
            fprintf(stderr, "tally-bench: step %u, tensor %zu of %zu: element %zu is %.9g, expected %.9g\n",
                    g->steps - 1, i, g->tensor_count, first.index, first.found, first.right);
        g->run->wrong += wrong;
    }
}

/* Some steps, and what they cost. */
static tally_status group_round(group *g)
{
    run *r = g->run;
    int steps = r->arguments->steps;
    tally_status status = group_step(g, NULL); /* brings memory and processors back from the other kind */
    if (!status)
        status = tly_bench_look(&r->job, &r->processes);
    double all_before = tly_processes_cpu_s(&r->processes), worker_before = tly_measure_cpu_s();
    for (int i = 0; i < steps && !status; i++)
        status = group_step(g, &g->step_s);
    double worker_cpu_s = tly_measure_cpu_s() - worker_before;
    if (!status)
        status = tly_bench_look(&r->job, &r->processes);
    if (status)
        return status;
    tly_samples_add(&g->worker_cpu_s, worker_cpu_s / steps);
    tly_samples_add(&g->all_cpu_s, (tly_processes_cpu_s(&r->processes) - all_before) / steps);
    return TALLY_OK;
}

static tally_status report(const group *g)
{
    const tly_bench_job *job = &g->run->job;
    tly_summary step, worker, all;
    tally_status status = tly_samples_summary(&g->step_s, &step);
    if (!status)
        status = tly_samples_summary(&g->worker_cpu_s, &worker);
    if (!status)
        status = tly_samples_summary(&g->all_cpu_s, &all);
    if (status)
        return status;
    char text[TLY_NUMBER_ROOM];
    tly_bench_say(job, "  %8zu %10zu %10.3f %10.3f %10.3f %10.3f %10s %7zu", g->tensor_count,
                  g->elements * sizeof(float), step.median * 1e3, step.min * 1e3, step.p95 * 1e3,
                  worker.median * 1e3, tly_bench_number(text, 3, all.median * 1e3), g->run->wrong);
    tly_json_enter_row(job->json, "rows");
    tly_json_integer(job->json, "tensors", (int64_t)g->tensor_count);
    tly_json_integer(job->json, "tensor_bytes", (int64_t)(g->elements * sizeof(float)));
    tly_json_number(job->json, "step_s", step.median);
    tly_json_number(job->json, "worker_cpu_s", worker.median);
    tly_json_number(job->json, "all_cpu_s", all.median);
    tly_json_samples(job->json, "step_samples_s", &g->step_s);
    tly_json_samples(job->json, "worker_cpu_samples_s", &g->worker_cpu_s);
    tly_json_samples(job->json, "all_cpu_samples_s", &g->all_cpu_s);
    tly_json_leave(job->json);
    return TALLY_OK;
}

static tally_status run_pair(run *r, group *many, group *one, size_t count)
{
    size_t elements = r->arguments->tensor_bytes / sizeof(float);
    tally_status status = group_init(many, r, count, elements);
    if (!status)
        status = group_init(one, r, 1, count * elements);
    for (int i = 0; i < r->arguments->rounds && !status; i++) {
        status = group_round(many);
        if (!status)
            status = group_round(one);
    }
    if (status)
        return status;
    group_check(many);
    status = report(many);
    if (status)
        return status;
    group_check(one);
    return report(one);
}

static void say_head(const run *r)
{
    const tly_bench_job *job = &r->job;
    tly_bench_say(job, "# small    float32  average  in place  rounds %d  timed steps %d of each kind",
                  r->arguments->rounds, r->arguments->steps);
    tly_bench_say(job,
                  "# step: from the first tensor's issue to the last one's result on this worker, median\n"
                  "# worker, all: processor time of a step, user and system, of this worker and of all\n"
                  "#              processes of the job; median of the rounds");
    if (job->rank == 0 && r->processes.count == 0)
        tly_bench_say(job, "# not all processes of the job are on this machine: their cost is not known");
    tly_bench_say(job, "#\n# %8s %10s %10s %10s %10s %10s %10s %7s", "tensors", "size", "step", "min", "p95",
                  "worker", "all", "#wrong");
    tly_bench_say(job, "# %8s %10s %10s %10s %10s %10s %10s", "", "(B)", "(ms)", "(ms)", "(ms)", "(ms)",
                  "(ms)");
}

/* many, one: what an error left unfinished, for the end of the run. */
static tally_status run_in_job(run *r, group *many, group *one)
{
    tally_status status = TALLY_OK;
    if (r->job.rank == 0)
        status = tly_processes_find(r->job.workers, r->job.servers, &r->processes);
    if (status)
        return status;
    tly_values_init(&r->values, TALLY_DTYPE_F32, TALLY_OP_AVERAGE, r->job.rank, r->job.workers);
    say_head(r);
    for (int i = 0; i < r->arguments->count_count && !status; i++) {
        status = run_pair(r, many, one, (size_t)r->arguments->counts[i]);
        if (status)
            return status;
        group_fini(many);
        group_fini(one);
        *many = *one = (group){ 0 };
    }
    tly_json_integer(r->job.json, "wrong", (int64_t)r->wrong);
    return TALLY_OK;
}

tally_status tly_command_small(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "Exchange many small tensors a step, beside one tensor of the same size, and check the "
               "results.",
    };
    arguments a = {
        .tensor_bytes = 2000, .counts = { 100, 1000, 10000 }, .count_count = 3, .steps = 10, .rounds = 5,
    };
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    run r = { .arguments = &a };
    group many = { 0 }, one = { 0 };
    tally_status status = tly_bench_job_open(&r.job, "small", a.json);
    if (!status)
        status = tly_bench_job_close(&r.job, run_in_job(&r, &many, &one));
    if (!status && r.wrong)
        status = tly_error(TALLY_EFAILED, "values that are wrong: %zu", r.wrong);
    tly_bench_error error;
    tly_bench_error_keep(&error, status);
    group_fini(&many);
    group_fini(&one);
    tly_processes_fini(&r.processes);
    return tly_bench_error_restore(&error);
}
