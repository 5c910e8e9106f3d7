/* sim - run simulated clusters, one for each seed.
 *
 *     sim [--seeds N] [--first S] [--scenario NAME] [--keep-going]   N seeds from S on
 *     sim --seed S [--scenario NAME] [--quiet]                       one seed, with a trace
 *
 * A run is a pure function of its seed (and of the scenario, where one is forced). Exit status: 0 all
 * went well, 1 a seed failed, 2 the command line is wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/sim/cluster.h"

typedef struct options {
    uint64_t first, count;
    const sim_scenario *scenario;
    bool one, quiet, keep_going;
} options;

/* Seeds that show a mistake which was made once, each with its scenario. They are found again by making
 * the mistake again, whenever the plans change. */
static const struct {
    uint64_t seed;
    const char *scenario;
} regressions[] = {
    { 441, "control-breaks" },   /* a server that was away was not told again who had left */
    { 895, "control-breaks" },   /* a late REGISTER turned the scheduler's answers to a dead connection, */
    { 18669, "control-breaks" }, /* and what went there meanwhile was not said again */
    { 940, "losses" },           /* a PUSH lost without a word on a link that goes on talking */
    { 566, "late-death" },       /* the engine slept over the failure that it had just found */
    { 55, "closers" },           /* a shard heard of a leaver before it heard of the epoch */
};

static int usage(const char *why, const char *what)
{
    fprintf(stderr, "sim: %s%s\n", why, what);
    fputs("usage: sim [--seeds N] [--first S] [--seed S] [--scenario NAME] [--keep-going] [--quiet]\n",
          stderr);
    fputs("scenarios:", stderr);
    for (uint32_t i = 0; i < sim_scenario_count; i++)
        fprintf(stderr, " %s", sim_scenarios[i].name);
    fputc('\n', stderr);
    return 2;
}

static bool number(const char *text, uint64_t *value)
{
    char *end;
    *value = strtoull(text, &end, 10);
    return end != text && !*end;
}

static int parse(int argc, char **argv, options *o)
{
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        bool good = true;
        if (strcmp(name, "--keep-going") == 0) {
            o->keep_going = true;
            continue;
        }
        if (strcmp(name, "--quiet") == 0) {
            o->quiet = true;
            continue;
        }
        i++;
        if (strcmp(name, "--seeds") == 0)
            good = number(value, &o->count);
        else if (strcmp(name, "--first") == 0)
            good = number(value, &o->first);
        else if (strcmp(name, "--seed") == 0)
            good = o->one = number(value, &o->first);
        else if (strcmp(name, "--scenario") == 0)
            good = (o->scenario = sim_scenario_find(value)) != NULL;
        else
            return usage("unknown option ", name);
        if (!good)
            return usage("this does not do: ", value);
    }
    return 0;
}

static void report_failure(const sim_plan *plan, const char *program, const char *reason)
{
    unsigned long long seed = plan->seed;
    printf("seed %llu scenario %s failed: %s\n", seed, plan->scenario->name, reason);
    printf("replay: %s --seed %llu --scenario %s\n", program, seed, plan->scenario->name);
    fflush(stdout);
}

/* Returns: whether the seed did well. */
static bool run_seed(uint64_t seed, const sim_scenario *scenario, const options *o, const char *program,
                     sim_report *report)
{
    sim_plan plan;
    sim_plan_make(&plan, seed, scenario);
    sim_run(&plan, 1, o->one && !o->quiet, report);
    if (!report->failed && plan.twice) {
        uint64_t hash = report->hash;
        sim_run(&plan, 2, false, report);
        if (!report->failed && report->hash != hash) {
            report->failed = true;
            snprintf(report->reason, sizeof report->reason, "other weather gives other bits");
        }
    }
    if (report->failed)
        report_failure(&plan, program, report->reason);
    return !report->failed;
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    options o = { .first = 1, .count = 20000 };
    sim_report report;
    int status = parse(argc, argv, &o);
    if (status != 0)
        return status;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (o.one)
        return run_seed(o.first, o.scenario, &o, argv[0], &report) ? 0 : 1;
    double start = seconds(), said = start;
    uint64_t failures = 0, events = 0, done = 0;
    for (size_t i = 0; !o.scenario && i < sizeof regressions / sizeof *regressions; i++)
        failures += !run_seed(regressions[i].seed, sim_scenario_find(regressions[i].scenario), &o, argv[0],
                              &report);
    for (; done < o.count && (failures == 0 || o.keep_going); done++) {
        failures += !run_seed(o.first + done, o.scenario, &o, argv[0], &report);
        events += report.events;
        if (seconds() - said >= 10) {
            said = seconds();
            printf("%llu of %llu seeds, %llu failed, %.0f s\n", (unsigned long long)done + 1,
                   (unsigned long long)o.count, (unsigned long long)failures, said - start);
        }
    }
    printf("%llu seeds, %llu failed, %.1f million events, %.1f s\n", (unsigned long long)done,
           (unsigned long long)failures, (double)events / 1e6, seconds() - start);
    return failures ? 1 : 0;
}
