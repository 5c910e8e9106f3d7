/* tally-bench limits: what this machine does without Tally, the denominators of everything else.
 *
 * Copies and additions in this process, blocks and round trips over the loopback between two others. */
#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "bench/command.h"
#include "bench/job.h"
#include "bench/machine.h"
#include "bench/options.h"
#include "bench/plain.h"
#include "bench/transport.h"

typedef struct arguments {
    int samples, blocks, trips;
    const char *json;
} arguments;

enum { KEY_TRIPS = 256, KEY_JSON };

static const struct argp_option options[] = {
    { "samples", 'n', "N", 0, "of each rate, default 7", 0 },
    { "blocks", 'b', "N", 0, "of 1 MiB in a sample of a transport, default 256", 0 },
    { "trips", KEY_TRIPS, "N", 0, "round trips, default 5000", 0 },
    { "json", KEY_JSON, "FILE", 0, "write every sample of the rates there", 0 },
    { 0 },
};

static const tly_option option_values[] = {
    { KEY_JSON, TLY_OPTION_TEXT, offsetof(arguments, json), NULL, 0, 0 },
    { 'n', TLY_OPTION_INT, offsetof(arguments, samples), "--samples from 1 to 1000", 1, 1000 },
    { 'b', TLY_OPTION_INT, offsetof(arguments, blocks), "--blocks from 1 to 65536", 1, 65536 },
    { KEY_TRIPS, TLY_OPTION_INT, offsetof(arguments, trips), "--trips from 1 to 10000000", 1, 10000000 },
    { 0 },
};

static error_t parse(int key, char *text, struct argp_state *state)
{
    return tly_option_parse(option_values, key, text, state);
}

/* One measured thing: what it took, and how many bytes each sample moved. */
typedef struct rate {
    tly_samples gb_per_s; /* of one direction */
    tly_samples cpu_s_per_gb;
} rate;

static tally_status rate_init(rate *r, size_t samples)
{
    *r = (rate){ 0 };
    tally_status status = tly_samples_init(&r->gb_per_s, samples);
    return status ? status : tly_samples_init(&r->cpu_s_per_gb, samples);
}

static void rate_fini(rate *r)
{
    tly_samples_fini(&r->gb_per_s);
    tly_samples_fini(&r->cpu_s_per_gb);
}

static void rate_add(rate *r, double bytes, int ways, double seconds, double cpu_s)
{
    tly_samples_add(&r->gb_per_s, bytes / seconds * 1e-9);
    tly_samples_add(&r->cpu_s_per_gb, cpu_s / (bytes * ways * 1e-9));
}

static tally_status report_rate(const tly_bench_job *job, const char *what, int ways, const rate *r)
{
    tly_summary speed, cpu;
    tally_status status = tly_samples_summary(&r->gb_per_s, &speed);
    if (!status)
        status = tly_samples_summary(&r->cpu_s_per_gb, &cpu);
    if (status)
        return status;
    tly_bench_say(job, "  %-10s %5d %8.3f %8.3f %8.3f %8.3f %8.3f", what, ways, speed.median, speed.min,
                  speed.max, speed.median * ways, cpu.median);
    tly_json_enter_row(job->json, "rates");
    tly_json_text(job->json, "what", what);
    tly_json_integer(job->json, "ways", ways);
    tly_json_number(job->json, "gb_per_s", speed.median);
    tly_json_number(job->json, "cpu_s_per_gb", cpu.median);
    tly_json_samples(job->json, "samples_gb_per_s", &r->gb_per_s);
    tly_json_samples(job->json, "samples_cpu_s_per_gb", &r->cpu_s_per_gb);
    tly_json_leave(job->json);
    return TALLY_OK;
}

/* ---- memory ---- */

typedef void (*memory_fn)(void *to, const void *from, size_t len_bytes);

static void copy(void *to, const void *from, size_t len_bytes)
{
    memcpy(to, from, len_bytes);
}

static void add(void *to, const void *from, size_t len_bytes)
{
    tly_plain_add_f32(to, from, len_bytes / sizeof(float));
}

/* One pass over buffers that no cache holds. */
static void pass(memory_fn fn, unsigned char *to, const unsigned char *from, size_t len_bytes)
{
    for (size_t at = 0; at + TLY_BLOCK_BYTES <= len_bytes; at += TLY_BLOCK_BYTES)
        fn(to + at, from + at, TLY_BLOCK_BYTES);
}

static tally_status measure_memory(const tly_bench_job *job, int samples, const char *what, memory_fn fn,
                                   unsigned char *to, const unsigned char *from, size_t len_bytes)
{
    rate r;
    tally_status status = rate_init(&r, (size_t)samples);
    if (!status) {
        pass(fn, to, from, len_bytes);
        for (int i = 0; i < samples; i++) {
            double cpu_before = tly_measure_cpu_s();
            int64_t from_ns = tly_measure_now_ns();
            pass(fn, to, from, len_bytes);
            int64_t to_ns = tly_measure_now_ns();
            rate_add(&r, (double)len_bytes, 1, (double)(to_ns - from_ns) * 1e-9,
                     tly_measure_cpu_s() - cpu_before);
        }
        status = report_rate(job, what, 1, &r);
    }
    rate_fini(&r);
    return status;
}

static tally_status run_memory(const tly_bench_job *job, const arguments *a)
{
    static const struct {
        const char *what;
        memory_fn fn;
    } rows[] = { { "memcpy", copy }, { "add f32", add } };
    tly_machine machine;
    tly_machine_look(&machine);
    size_t len_bytes = tly_machine_exceeding_bytes(machine.cache_bytes);
    unsigned char *to = aligned_alloc(4096, len_bytes), *from = aligned_alloc(4096, len_bytes);
    tally_status status = TALLY_OK;
    if (!to || !from)
        status = tly_error_memory(len_bytes, "the buffers of memcpy and add");
    else { /* zero is a number whose sums stay in range */
        memset(to, 0, len_bytes);
        memset(from, 0, len_bytes);
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && !status; i++)
        status = measure_memory(job, a->samples, rows[i].what, rows[i].fn, to, from, len_bytes);
    free(to);
    free(from);
    return status;
}

/* ---- transports ---- */

typedef struct measurement {
    const tly_transport *transport;
    const arguments *arguments;
    bool both_ways;
} measurement;

/* A side's values: for each sample its seconds and its processor seconds. */
static tally_status move_samples(const tly_pair_side *side, const measurement *m, void *link)
{
    size_t blocks = (size_t)m->arguments->blocks;
    size_t to_send = side->index == 1 || m->both_ways ? blocks : 0;
    size_t to_receive = side->index == 0 || m->both_ways ? blocks : 0;
    tally_status status = m->transport->move(link, to_send, to_receive);
    for (int i = 0; i < m->arguments->samples && !status; i++) {
        status = tly_pair_meet(side);
        double cpu_before = tly_measure_cpu_s();
        int64_t from_ns = tly_measure_now_ns();
        if (!status)
            status = m->transport->move(link, to_send, to_receive);
        if (!status)
            status = tly_pair_meet(side); /* all has arrived there */
        side->values[2 * i] = (double)(tly_measure_now_ns() - from_ns) * 1e-9;
        side->values[2 * i + 1] = tly_measure_cpu_s() - cpu_before;
    }
    return status;
}

/* The values of the side that asks: microseconds of each trip. The first tenth is not kept. */
static tally_status trip_samples(const tly_pair_side *side, const measurement *m, void *link)
{
    int trips = m->arguments->trips, warmup = trips / 10;
    tally_status status = TALLY_OK;
    for (int i = -warmup; i < trips && !status; i++) {
        int64_t from_ns = tly_measure_now_ns();
        status = side->index == 1 ? m->transport->ask(link) : m->transport->answer(link);
        if (i >= 0)
            side->values[i] = (double)(tly_measure_now_ns() - from_ns) * 1e-3;
    }
    return status;
}

static tally_status with_link(tly_pair_side *side, const measurement *m,
                              tally_status (*samples)(const tly_pair_side *, const measurement *, void *))
{
    void *link = calloc(1, m->transport->link_bytes);
    if (!link)
        return tly_error_memory(m->transport->link_bytes, m->transport->name);
    tally_status status = m->transport->open(side, link);
    if (!status)
        status = samples(side, m, link);
    if (!status)
        status = tly_pair_meet(side); /* nobody closes while the other still needs it */
    tly_bench_error error;
    tly_bench_error_keep(&error, status);
    m->transport->close(link);
    free(link);
    return tly_bench_error_restore(&error);
}

static tally_status move_side(tly_pair_side *side, void *arg)
{
    return with_link(side, arg, move_samples);
}

static tally_status trip_side(tly_pair_side *side, void *arg)
{
    return with_link(side, arg, trip_samples);
}

static tally_status measure_move(const tly_bench_job *job, measurement *m)
{
    int samples = m->arguments->samples, ways = m->both_ways ? 2 : 1;
    size_t room = 2 * (size_t)samples;
    double *values = calloc(2 * room, sizeof(double)), *other = values + room;
    if (!values)
        return tly_error_memory(2 * room * sizeof(double), "samples");
    rate r;
    tally_status status = rate_init(&r, (size_t)samples);
    if (!status)
        status = tly_pair_run(move_side, m, values, room);
    for (int i = 0; i < samples && !status; i++) {
        double seconds = values[2 * i] > other[2 * i] ? values[2 * i] : other[2 * i];
        rate_add(&r, (double)m->arguments->blocks * TLY_BLOCK_BYTES, ways, seconds,
                 values[2 * i + 1] + other[2 * i + 1]);
    }
    if (!status)
        status = report_rate(job, m->transport->name, ways, &r);
    rate_fini(&r);
    free(values);
    return status;
}

static tally_status measure_trips(const tly_bench_job *job, measurement *m)
{
    size_t trips = (size_t)m->arguments->trips;
    double *values = calloc(2 * trips, sizeof(double));
    if (!values)
        return tly_error_memory(2 * trips * sizeof(double), "samples");
    tly_summary time;
    tally_status status = tly_pair_run(trip_side, m, values, trips);
    const tly_samples asked = { .values = values + trips, .count = trips };
    if (!status)
        status = tly_samples_summary(&asked, &time);
    if (!status) {
        tly_bench_say(job, "  %-10s %5d %8.1f %8.1f %8.1f", m->transport->name, TLY_TRIP_BYTES, time.median,
                      time.p99, time.min);
        tly_json_enter_row(job->json, "trips");
        tly_json_text(job->json, "what", m->transport->name);
        tly_json_integer(job->json, "bytes", TLY_TRIP_BYTES);
        tly_json_number(job->json, "p50_us", time.median);
        tly_json_number(job->json, "p99_us", time.p99);
        tly_json_number(job->json, "min_us", time.min);
        tly_json_leave(job->json);
    }
    free(values);
    return status;
}

static const tly_transport *const transports[] = { &tly_transport_tcp, &tly_transport_zmq };
#define TRANSPORT_COUNT (sizeof(transports) / sizeof(transports[0]))

static tally_status run_transports(const tly_bench_job *job, const arguments *a)
{
    tally_status status = TALLY_OK;
    for (size_t i = 0; i < TRANSPORT_COUNT && !status; i++) {
        measurement m = { .transport = transports[i], .arguments = a };
        status = measure_move(job, &m);
        m.both_ways = true;
        if (!status)
            status = measure_move(job, &m);
    }
    tly_bench_say(job, "#\n# %-10s %5s %8s %8s %8s", "trip", "size", "p50", "p99", "min");
    tly_bench_say(job, "# %-10s %5s %8s %8s %8s", "", "(B)", "(us)", "(us)", "(us)");
    for (size_t i = 0; i < TRANSPORT_COUNT && !status; i++) {
        measurement m = { .transport = transports[i], .arguments = a };
        status = measure_trips(job, &m);
    }
    return status;
}

static tally_status run(const tly_bench_job *job, const arguments *a)
{
    tly_machine machine;
    tly_machine_look(&machine);
    tly_bench_say(job, "# limits   blocks of 1 MiB  samples %d  memory: passes over %zu MiB, in this process",
                  a->samples, tly_machine_exceeding_bytes(machine.cache_bytes) >> 20);
    tly_bench_say(job,
                  "# tcp, zmq: %d blocks a sample, over the loopback, between two processes; tcp polls,\n"
                  "#           at most 256 KiB a call; zmq is DEALER to ROUTER, without copies on sending\n"
                  "# ways: 2 when both processes send and receive at the same time\n"
                  "# rate: of one way, median; min, max likewise; all: of all ways\n"
                  "# cpu: processor seconds, user and system, of all processes per 10^9 bytes of all ways\n"
                  "# trip: there and back again\n#",
                  a->blocks);
    tly_bench_say(job, "# %-10s %5s %8s %8s %8s %8s %8s", "what", "ways", "rate", "min", "max", "all",
                  "cpu");
    tly_bench_say(job, "# %-10s %5s %8s %8s %8s %8s %8s", "", "", "(GB/s)", "(GB/s)", "(GB/s)", "(GB/s)",
                  "(s/GB)");
    tally_status status = run_memory(job, a);
    return status ? status : run_transports(job, a);
}

tally_status tly_command_limits(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "Measure this machine's copies, additions, TCP and ZeroMQ, without Tally.",
    };
    arguments a = { .samples = 7, .blocks = 256, .trips = 5000 };
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    tly_bench_job job;
    tally_status status = tly_bench_job_open_alone(&job, "limits", a.json);
    return status ? status : tly_bench_job_close(&job, run(&job, &a));
}
