#include "bench/job.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "bench/machine.h"

void tly_bench_say(const tly_bench_job *job, const char *format, ...)
{
    if (job->rank != 0)
        return;
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

static void say_configuration(const tly_bench_job *job)
{
    const tly_config *c = &job->config;
    char shards[24] = "by processors";
    if (c->engine_threads)
        snprintf(shards, sizeof(shards), "%d", c->engine_threads);
    tly_bench_say(job, "# job      workers %d  servers %d  partition_bytes %d  credit %d  shards %s  "
                       "io_threads %d  deterministic %d",
                  job->workers, job->servers, c->partition_bytes, c->credit, shards, c->io_threads,
                  (int)c->deterministic);
    tly_json_integer(job->json, "workers", job->workers);
    tly_json_integer(job->json, "servers", job->servers);
    tly_json_enter(job->json, "config");
    tly_json_integer(job->json, "partition_bytes", c->partition_bytes);
    tly_json_integer(job->json, "credit", c->credit);
    tly_json_integer(job->json, "engine_threads", c->engine_threads);
    tly_json_integer(job->json, "io_threads", c->io_threads);
    tly_json_integer(job->json, "deterministic", c->deterministic);
    tly_json_leave(job->json);
}

static void say_machine(const tly_bench_job *job)
{
    tly_machine m;
    tly_machine_look(&m);
    tly_bench_say(job, "# machine  %s  processors %d  last cache %zu KiB  kernel %s  congestion control %s",
                  m.processor, m.processors, m.cache_bytes / 1024, m.kernel, m.congestion_control);
    tly_json_enter(job->json, "machine");
    tly_json_text(job->json, "processor", m.processor);
    tly_json_integer(job->json, "processors", m.processors);
    tly_json_integer(job->json, "cache_bytes", (int64_t)m.cache_bytes);
    tly_json_text(job->json, "kernel", m.kernel);
    tly_json_text(job->json, "congestion_control", m.congestion_control);
    tly_json_leave(job->json);
}

static void say_version(const tly_bench_job *job, const char *command)
{
    tly_bench_say(job, "# tally-bench %s  %s", tally_version(), command);
    tly_json_text(job->json, "benchmark", command);
    tly_json_text(job->json, "version", tally_version());
}

tally_status tly_bench_job_open(tly_bench_job *job, const char *command, const char *json_path)
{
    *job = (tly_bench_job){ 0 };
    tally_status status = tally_open(NULL, &job->ctx);
    if (status)
        return status;
    job->rank = tally_rank(job->ctx);
    job->workers = tally_size(job->ctx);
    job->servers = tally_server_count(job->ctx);
    /* Only to print it: tally_open has read the same settings, and warned of what it does not know. */
    const tly_log quiet = { .level = TALLY_LOG_ERROR };
    status = tly_config_load(&job->config, TLY_ROLE_WORKER, NULL, &quiet);
    if (!status)
        status = tly_json_open(job->rank == 0 ? json_path : NULL, &job->json);
    if (status) {
        tally_close(job->ctx);
        return status;
    }
    say_version(job, command);
    say_configuration(job);
    say_machine(job);
    return TALLY_OK;
}

tally_status tly_bench_job_open_alone(tly_bench_job *job, const char *command, const char *json_path)
{
    *job = (tly_bench_job){ .workers = 1 };
    tally_status status = tly_json_open(json_path, &job->json);
    if (status)
        return status;
    say_version(job, command);
    say_machine(job);
    return TALLY_OK;
}

void tly_bench_error_keep(tly_bench_error *error, tally_status status)
{
    error->status = status;
    snprintf(error->sentence, sizeof(error->sentence), "%s", status ? tly_error_text() : "");
}

tally_status tly_bench_error_restore(const tly_bench_error *error)
{
    return error->status ? tly_error(error->status, "%s", error->sentence) : TALLY_OK;
}

tally_status tly_bench_job_close(tly_bench_job *job, tally_status status)
{
    /* Nobody leaves while another still works: leaving early would be an error for that one. */
    if (!status && job->ctx)
        status = tally_barrier(job->ctx, -1);
    if (status) {
        tly_bench_error error;
        tly_bench_error_keep(&error, status);
        tly_json_discard(job->json);
        if (job->ctx)
            tally_close(job->ctx);
        return tly_bench_error_restore(&error);
    }
    status = tly_json_close(job->json);
    tally_status closed = job->ctx ? tally_close(job->ctx) : TALLY_OK;
    return status ? status : closed;
}

tally_status tly_bench_look(const tly_bench_job *job, tly_processes *processes)
{
    tally_status status = tally_barrier(job->ctx, -1);
    if (!status && job->rank == 0)
        status = tly_processes_look(processes);
    return status ? status : tally_barrier(job->ctx, -1);
}

const char *tly_bench_number(char text[TLY_NUMBER_ROOM], int decimals, double value)
{
    if (isfinite(value))
        snprintf(text, TLY_NUMBER_ROOM, "%.*f", decimals, value);
    else
        snprintf(text, TLY_NUMBER_ROOM, "n/a");
    return text;
}

uint64_t tly_bench_moved_bytes(const tly_bench_job *job)
{
    uint64_t sum = 0;
    for (int i = 0; i < job->servers; i++) {
        tally_server_stats stats;
        if (tally_server_stats_get(job->ctx, i, &stats) == TALLY_OK)
            sum += stats.pushed_bytes + stats.pulled_bytes;
    }
    return sum;
}

/* The greatest and the sum of one counter over the servers. */
typedef struct spread {
    uint64_t most, sum;
} spread;

static void spread_add(spread *s, uint64_t value)
{
    s->most = value > s->most ? value : s->most;
    s->sum += value;
}

static double spread_ratio(const spread *s, int servers)
{
    return s->sum ? (double)s->most * servers / (double)s->sum : (double)NAN;
}

void tly_bench_report_servers(const tly_bench_job *job)
{
    if (job->servers == 0) {
        tly_bench_say(job, "# no servers: one worker alone");
        return;
    }
    spread placed = { 0 }, pushed = { 0 }, pulled = { 0 };
    tly_bench_say(job, "#\n# %-8s %16s %16s %16s", "server", "placed", "pushed", "pulled");
    tly_bench_say(job, "# %-8s %16s %16s %16s", "", "(B)", "(B)", "(B)");
    for (int i = 0; i < job->servers; i++) {
        tally_server_stats stats;
        if (tally_server_stats_get(job->ctx, i, &stats) != TALLY_OK)
            continue;
        tly_bench_say(job, "# %-8d %16llu %16llu %16llu", i, (unsigned long long)stats.placed_bytes,
                      (unsigned long long)stats.pushed_bytes, (unsigned long long)stats.pulled_bytes);
        tly_json_enter_row(job->json, "server_bytes");
        tly_json_integer(job->json, "placed", (int64_t)stats.placed_bytes);
        tly_json_integer(job->json, "pushed", (int64_t)stats.pushed_bytes);
        tly_json_integer(job->json, "pulled", (int64_t)stats.pulled_bytes);
        tly_json_leave(job->json);
        spread_add(&placed, stats.placed_bytes);
        spread_add(&pushed, stats.pushed_bytes);
        spread_add(&pulled, stats.pulled_bytes);
    }
    double ratios[] = { spread_ratio(&placed, job->servers), spread_ratio(&pushed, job->servers),
                        spread_ratio(&pulled, job->servers) };
    tly_bench_say(job, "# %-8s %16.4f %16.4f %16.4f", "max/mean", ratios[0], ratios[1], ratios[2]);
    tly_json_enter(job->json, "max_over_mean");
    tly_json_number(job->json, "placed", ratios[0]);
    tly_json_number(job->json, "pushed", ratios[1]);
    tly_json_number(job->json, "pulled", ratios[2]);
    tly_json_leave(job->json);
}
