#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/config.h"

#define SETTINGS(...) ((const char *const[]){ __VA_ARGS__, NULL })

/* A complete worker, server or scheduler; what a test adds comes later and wins. */
#define JOB "DMLC_PS_ROOT_URI=10.0.0.1", "DMLC_PS_ROOT_PORT=9000", "DMLC_NUM_WORKER=4", "DMLC_NUM_SERVER=2"
#define WORKER JOB, "DMLC_WORKER_ID=3"

#define LINE_COUNT 16

typedef struct captured {
    int count;
    tally_log_level level[LINE_COUNT];
    char line[LINE_COUNT][512];
} captured;

static captured lines;

/* Keeps what follows "... test warn " or the like. */
static void capture(void *arg, tally_log_level level, const char *line)
{
    captured *c = arg;
    assert_true(c->count < LINE_COUNT);
    const char *text = strchr(strstr(line, " test ") + 6, ' ') + 1;
    snprintf(c->line[c->count], sizeof c->line[0], "%s", text);
    c->level[c->count++] = level;
}

static const tly_log test_log = { TALLY_LOG_INFO, capture, &lines, "test" };

/* Each test begins without any of our names in the environment. */
static int clean(void **state)
{
    (void)state;
    static const char *const prefixes[] = { "TALLY_", "BYTEPS_", "DMLC_" };
    for (char **entry = environ; *entry;) {
        char name[512]; /* longer than any that a test sets */
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
        bool ours = false;
        for (int i = 0; i < 3; i++)
            ours = ours || strncmp(name, prefixes[i], strlen(prefixes[i])) == 0;
        if (ours)
            unsetenv(name); /* moves the rest up */
        else
            entry++;
    }
    memset(&lines, 0, sizeof lines);
    return 0;
}

static tly_config loaded(tly_role role, const char *const *settings)
{
    tly_config config;
    if (tly_config_load(&config, role, settings, &test_log) != TALLY_OK)
        fail_msg("%s", tly_error_text());
    return config;
}

static void refused(tly_role role, const char *const *settings, const char *sentence)
{
    tly_config config, untouched;
    memset(&config, 0x5a, sizeof config);
    memset(&untouched, 0x5a, sizeof untouched);
    assert_int_equal(tly_config_load(&config, role, settings, &test_log), TALLY_ECONFIG);
    assert_string_equal(tly_error_text(), sentence);
    assert_memory_equal(&config, &untouched, sizeof config);
}

static void every_setting_reaches_its_field(void **state)
{
    (void)state;
    tly_config c =
        loaded(TLY_ROLE_NONE,
               SETTINGS("DMLC_ROLE=worker", "DMLC_PS_ROOT_URI=head-0.example", "DMLC_PS_ROOT_PORT=65535",
                        "DMLC_NUM_WORKER=4096", "DMLC_NUM_SERVER=1024", "DMLC_WORKER_ID=4095",
                        "DMLC_INTERFACE=eth7", "DMLC_NODE_HOST=10.9.8.7", "BYTEPS_LOCAL_RANK=2",
                        "BYTEPS_LOCAL_SIZE=3", "BYTEPS_FORCE_DISTRIBUTED=1", "BYTEPS_PARTITION_BYTES=4096",
                        "BYTEPS_SCHEDULING_CREDIT=65536", "BYTEPS_SERVER_ENGINE_THREAD=64",
                        "BYTEPS_LOG_LEVEL=trace", "TALLY_DETERMINISTIC=1", "TALLY_DEATH_LIMIT_MS=200",
                        "TALLY_START_LIMIT_MS=101", "TALLY_STALL_WARN_MS=102", "TALLY_STALL_LIMIT_MS=203",
                        "TALLY_CLOSE_LIMIT_MS=0", "TALLY_IO_THREADS=16"));
    assert_int_equal(c.role, TLY_ROLE_WORKER);
    assert_string_equal(c.root_uri, "head-0.example");
    assert_int_equal(c.root_port, 65535);
    assert_int_equal(c.num_worker, 4096);
    assert_int_equal(c.num_server, 1024);
    assert_int_equal(c.worker_id, 4095);
    assert_string_equal(c.interface, "eth7");
    assert_string_equal(c.node_host, "10.9.8.7");
    assert_int_equal(c.local_rank, 2);
    assert_int_equal(c.local_size, 3);
    assert_true(c.force_distributed);
    assert_int_equal(c.partition_bytes, 4096);
    assert_int_equal(c.credit, 65536);
    assert_int_equal(c.engine_threads, 64);
    assert_int_equal(c.log_level, TALLY_LOG_TRACE);
    assert_true(c.deterministic);
    assert_int_equal(c.death_limit_ms, 200);
    assert_int_equal(c.start_limit_ms, 101);
    assert_int_equal(c.stall_warn_ms, 102);
    assert_int_equal(c.stall_limit_ms, 203);
    assert_int_equal(c.close_limit_ms, 0);
    assert_int_equal(c.io_threads, 16);
    assert_int_equal(lines.count, 0);
}

static void defaults(const tly_config *c)
{
    assert_string_equal(c->interface, "");
    assert_string_equal(c->node_host, "");
    assert_int_equal(c->local_rank, 0);
    assert_int_equal(c->local_size, 1);
    assert_false(c->force_distributed);
    assert_int_equal(c->partition_bytes, TLY_DEFAULT_PARTITION_BYTES);
    assert_int_equal(c->credit, TLY_DEFAULT_CREDIT);
    assert_int_equal(c->engine_threads, TLY_DEFAULT_ENGINE_THREADS);
    assert_int_equal(c->log_level, TALLY_LOG_WARN);
    assert_false(c->deterministic);
    assert_int_equal(c->death_limit_ms, 10000);
    assert_int_equal(c->start_limit_ms, 120000);
    assert_int_equal(c->stall_warn_ms, 10000);
    assert_int_equal(c->stall_limit_ms, 600000);
    assert_int_equal(c->close_limit_ms, 5000);
    assert_int_equal(c->io_threads, 1);
}

static void what_is_unset_or_empty_takes_its_default(void **state)
{
    (void)state;
    tly_config c = loaded(TLY_ROLE_WORKER, SETTINGS(WORKER));
    defaults(&c);
    setenv("BYTEPS_LOCAL_SIZE", "7", 1);
    setenv("TALLY_IO_THREADS", "", 1);
    c = loaded(TLY_ROLE_WORKER,
               SETTINGS(WORKER, "DMLC_INTERFACE=", "DMLC_NODE_HOST=", "BYTEPS_LOCAL_RANK=",
                        "BYTEPS_LOCAL_SIZE=", "BYTEPS_FORCE_DISTRIBUTED=", "BYTEPS_PARTITION_BYTES=",
                        "BYTEPS_LOG_LEVEL=", "BYTEPS_ENABLE_ASYNC=", "DMLC_ENABLE_RDMA="));
    defaults(&c);
    assert_int_equal(lines.count, 0);
}

static void settings_win_over_the_environment_and_the_last_over_earlier(void **state)
{
    (void)state;
    setenv("DMLC_NUM_SERVER", "7", 1);
    setenv("DMLC_NUM_WORKER", "8", 1);
    tly_config c = loaded(TLY_ROLE_SERVER, SETTINGS("DMLC_PS_ROOT_URI=::1", "DMLC_PS_ROOT_PORT=9000",
                                                    "DMLC_NUM_WORKER=3", "DMLC_NUM_WORKER=5"));
    assert_int_equal(c.num_server, 7);
    assert_int_equal(c.num_worker, 5);
}

static void the_environment_alone_is_enough(void **state)
{
    (void)state;
    setenv("DMLC_ROLE", "scheduler", 1);
    setenv("DMLC_PS_ROOT_URI", "127.0.0.1", 1);
    setenv("DMLC_PS_ROOT_PORT", "0", 1);
    setenv("DMLC_NUM_WORKER", "2", 1);
    setenv("DMLC_NUM_SERVER", "1", 1);
    tly_config c = loaded(TLY_ROLE_NONE, NULL);
    assert_int_equal(c.role, TLY_ROLE_SCHEDULER);
    assert_int_equal(c.root_port, 0);
    assert_int_equal(c.num_worker, 2);
    assert_int_equal(c.worker_id, 0);
}

static void the_role_is_checked(void **state)
{
    (void)state;
    refused(TLY_ROLE_NONE, NULL, "DMLC_ROLE is not set; it must be scheduler, server or worker");
    refused(TLY_ROLE_NONE, SETTINGS("DMLC_ROLE="),
            "DMLC_ROLE is empty; it must be scheduler, server or worker");
    refused(TLY_ROLE_SERVER, SETTINGS("DMLC_ROLE="),
            "DMLC_ROLE is empty; it must be scheduler, server or worker");
    refused(TLY_ROLE_NONE, SETTINGS("DMLC_ROLE=schedular"),
            "DMLC_ROLE=\"schedular\" is not a role; the roles are scheduler, server and worker; "
            "did you mean scheduler?");
    refused(TLY_ROLE_SERVER, SETTINGS("DMLC_ROLE=Worker"),
            "DMLC_ROLE=\"Worker\" is not a role; the roles are scheduler, server and worker; "
            "did you mean worker?");
    refused(TLY_ROLE_NONE, SETTINGS("DMLC_ROLE=chauffeur"),
            "DMLC_ROLE=\"chauffeur\" is not a role; the roles are scheduler, server and worker");
    refused(TLY_ROLE_SERVER, SETTINGS(JOB, "DMLC_ROLE=worker"),
            "DMLC_ROLE=\"worker\", but this process is a server");
}

static void each_required_setting_is_missed_by_its_name(void **state)
{
    (void)state;
    static const struct {
        const char *name, *needs;
        int roles; /* as bits */
    } required[] = {
        { "DMLC_PS_ROOT_URI", "the scheduler's host (a host name, IPv4 or IPv6 address)", 7 },
        { "DMLC_PS_ROOT_PORT", "the scheduler's port (1 to 65535)", 6 },
        { "DMLC_PS_ROOT_PORT", "the scheduler's port (0 to 65535)", 1 },
        { "DMLC_NUM_WORKER", "the number of workers (1 to 4096)", 7 },
        { "DMLC_NUM_SERVER", "the number of servers (1 to 1024)", 7 },
        { "DMLC_WORKER_ID", "its own number among the workers (0 to 4095)", 4 },
    };
    static const char *const all[] = { WORKER };
    for (size_t i = 0; i < sizeof required / sizeof *required; i++) {
        for (int role = TLY_ROLE_SCHEDULER; role <= TLY_ROLE_WORKER; role++) {
            if (!(required[i].roles & 1 << role))
                continue;
            const char *settings[8];
            char empty_setting[64], sentence[256];
            size_t count = 0, len = strlen(required[i].name);
            for (size_t j = 0; j < sizeof all / sizeof *all; j++)
                if (strncmp(all[j], required[i].name, len) != 0)
                    settings[count++] = all[j];
            settings[count] = NULL;
            snprintf(sentence, sizeof sentence, "%s is not set; a %s needs %s", required[i].name,
                     tly_role_name((tly_role)role), required[i].needs);
            refused((tly_role)role, settings, sentence);

            snprintf(empty_setting, sizeof empty_setting, "%s=", required[i].name);
            settings[count++] = empty_setting;
            settings[count] = NULL;
            snprintf(sentence, sizeof sentence, "%s is empty; a %s needs %s", required[i].name,
                     tly_role_name((tly_role)role), required[i].needs);
            refused((tly_role)role, settings, sentence);
        }
    }
}

static void a_worker_alone_needs_no_job(void **state)
{
    (void)state;
    tly_config c = loaded(TLY_ROLE_WORKER, NULL);
    assert_int_equal(c.num_worker, 1);
    assert_int_equal(c.worker_id, 0);
    assert_string_equal(c.root_uri, "");
    assert_int_equal(c.num_server, 0);
    c = loaded(TLY_ROLE_NONE, SETTINGS("DMLC_ROLE=worker", "BYTEPS_LOCAL_SIZE=8"));
    assert_int_equal(c.num_worker, 1);
    c = loaded(TLY_ROLE_WORKER, SETTINGS("DMLC_NUM_WORKER=1"));
    assert_int_equal(c.num_worker, 1);
    /* as BytePS job files of one worker have it */
    c = loaded(TLY_ROLE_WORKER, SETTINGS("DMLC_NUM_WORKER=1", "DMLC_NUM_SERVER=0", "DMLC_WORKER_ID=0"));
    assert_int_equal(c.num_server, 0);

    refused(TLY_ROLE_WORKER, SETTINGS("DMLC_WORKER_ID=0"),
            "DMLC_NUM_WORKER is not set; a worker needs the number of workers (1 to 4096)");
    refused(TLY_ROLE_WORKER, SETTINGS("DMLC_NUM_WORKER="),
            "DMLC_NUM_WORKER is empty; a worker needs the number of workers (1 to 4096)");
    refused(TLY_ROLE_WORKER, SETTINGS("DMLC_NUM_WORKER=1", "DMLC_PS_ROOT_PORT=x"),
            "DMLC_PS_ROOT_PORT=\"x\" is not a whole number from 0 to 65535");
}

static void a_single_worker_that_is_forced_needs_a_job_but_no_id(void **state)
{
    (void)state;
    refused(TLY_ROLE_WORKER, SETTINGS("DMLC_NUM_WORKER=1", "BYTEPS_FORCE_DISTRIBUTED=1"),
            "DMLC_PS_ROOT_URI is not set; a worker needs the scheduler's host (a host name, IPv4 or IPv6 "
            "address)");
    refused(TLY_ROLE_WORKER,
            SETTINGS(JOB, "DMLC_NUM_WORKER=1", "DMLC_NUM_SERVER=0", "BYTEPS_FORCE_DISTRIBUTED=1"),
            "DMLC_NUM_SERVER=\"0\" is not a whole number from 1 to 1024");
    tly_config c = loaded(TLY_ROLE_WORKER, SETTINGS(JOB, "DMLC_NUM_WORKER=1", "BYTEPS_FORCE_DISTRIBUTED=1"));
    assert_int_equal(c.worker_id, 0);
    assert_int_equal(c.num_server, 2);
}

static void numbers_are_read_strictly(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "-3", "0", "4097", "abc", "4x", "x4", " 4", "4 ", "+4", "0x4", "4.0", "1e2", "-",
        "99999999999999999999", "-99999999999999999999", "4294967300",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char setting[64], sentence[128];
        snprintf(setting, sizeof setting, "DMLC_NUM_WORKER=%s", wrong[i]);
        snprintf(sentence, sizeof sentence, "DMLC_NUM_WORKER=\"%s\" is not a whole number from 1 to 4096",
                 wrong[i]);
        for (int role = TLY_ROLE_SCHEDULER; role <= TLY_ROLE_WORKER; role++)
            refused((tly_role)role, SETTINGS(WORKER, setting), sentence);
    }
    assert_int_equal(loaded(TLY_ROLE_SERVER, SETTINGS(JOB, "DMLC_NUM_WORKER=0012")).num_worker, 12);
}

static void each_number_keeps_its_range(void **state)
{
    (void)state;
    static const struct {
        const char *name, *range;
        long low, high; /* the first values outside */
    } ranges[] = {
        { "DMLC_PS_ROOT_PORT", "1 to 65535", 0, 65536 },
        { "DMLC_NUM_SERVER", "1 to 1024", 0, 1025 },
        { "DMLC_WORKER_ID", "0 to 4095", -1, 4096 },
        { "BYTEPS_LOCAL_RANK", "0 to 1023", -1, 1024 },
        { "BYTEPS_LOCAL_SIZE", "1 to 1024", 0, 1025 },
        { "BYTEPS_PARTITION_BYTES", "4096 to 1073741824 bytes", 4095, 1073741825 },
        { "BYTEPS_SCHEDULING_CREDIT", "0 to 65536", -1, 65537 },
        { "BYTEPS_SERVER_ENGINE_THREAD", "0 to 64", -1, 65 },
        { "TALLY_DEATH_LIMIT_MS", "200 to 3600000 ms", 199, 3600001 },
        { "TALLY_START_LIMIT_MS", "100 to 86400000 ms", 99, 86400001 },
        { "TALLY_STALL_WARN_MS", "100 to 86400000 ms", 99, 86400001 },
        { "TALLY_STALL_LIMIT_MS", "200 to 86400000 ms", 199, 86400001 },
        { "TALLY_CLOSE_LIMIT_MS", "0 to 3600000 ms", -1, 3600001 },
        { "TALLY_IO_THREADS", "1 to 16", 0, 17 },
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        for (int side = 0; side < 2; side++) {
            char setting[64], sentence[128];
            long value = side ? ranges[i].high : ranges[i].low;
            snprintf(setting, sizeof setting, "%s=%ld", ranges[i].name, value);
            snprintf(sentence, sizeof sentence, "%s=\"%ld\" is not a whole number from %s", ranges[i].name,
                     value, ranges[i].range);
            refused(TLY_ROLE_WORKER, SETTINGS(WORKER, setting), sentence);
        }
    }
    refused(TLY_ROLE_SCHEDULER, SETTINGS(JOB, "DMLC_PS_ROOT_PORT=-1"),
            "DMLC_PS_ROOT_PORT=\"-1\" is not a whole number from 0 to 65535");
    refused(TLY_ROLE_SERVER, SETTINGS(JOB, "DMLC_PS_ROOT_PORT=0"),
            "DMLC_PS_ROOT_PORT=\"0\" is not a whole number from 1 to 65535");
}

static void switches_are_zero_or_one(void **state)
{
    (void)state;
    refused(TLY_ROLE_SERVER, SETTINGS(JOB, "TALLY_DETERMINISTIC=yes"),
            "TALLY_DETERMINISTIC=\"yes\" is neither 0 nor 1");
    refused(TLY_ROLE_WORKER, SETTINGS(WORKER, "BYTEPS_FORCE_DISTRIBUTED=2"),
            "BYTEPS_FORCE_DISTRIBUTED=\"2\" is neither 0 nor 1");
}

static void log_levels_have_names_and_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *setting;
        tally_log_level level;
    } levels[] = {
        { "BYTEPS_LOG_LEVEL=FATAL", TALLY_LOG_ERROR },  { "BYTEPS_LOG_LEVEL=error", TALLY_LOG_ERROR },
        { "BYTEPS_LOG_LEVEL=Warning", TALLY_LOG_WARN }, { "BYTEPS_LOG_LEVEL=WARN", TALLY_LOG_WARN },
        { "BYTEPS_LOG_LEVEL=info", TALLY_LOG_INFO },    { "BYTEPS_LOG_LEVEL=DEBUG", TALLY_LOG_DEBUG },
        { "BYTEPS_LOG_LEVEL=TRACE", TALLY_LOG_TRACE },  { "BYTEPS_LOG_LEVEL=0", TALLY_LOG_ERROR },
        { "BYTEPS_LOG_LEVEL=4", TALLY_LOG_TRACE },
    };
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        assert_int_equal(loaded(TLY_ROLE_SERVER, SETTINGS(JOB, levels[i].setting)).log_level,
                         levels[i].level);
    refused(
        TLY_ROLE_SERVER, SETTINGS(JOB, "BYTEPS_LOG_LEVEL=loud"),
        "BYTEPS_LOG_LEVEL=\"loud\" is not a log level; it may be FATAL, ERROR, WARNING, INFO, DEBUG, TRACE "
        "or 0 to 4");
    refused(
        TLY_ROLE_SERVER, SETTINGS(JOB, "BYTEPS_LOG_LEVEL=5"),
        "BYTEPS_LOG_LEVEL=\"5\" is not a log level; it may be FATAL, ERROR, WARNING, INFO, DEBUG, TRACE or 0 "
        "to 4");
}

static void hosts_are_names_or_addresses(void **state)
{
    (void)state;
    static const struct {
        const char *setting, *root_uri;
    } good[] = {
        { "DMLC_PS_ROOT_URI=localhost", "localhost" },
        { "DMLC_PS_ROOT_URI=node_1-a.example.org", "node_1-a.example.org" },
        { "DMLC_PS_ROOT_URI=10.255.0.9", "10.255.0.9" },
        { "DMLC_PS_ROOT_URI=::1", "::1" },
        { "DMLC_PS_ROOT_URI=[::1]", "::1" },
        { "DMLC_PS_ROOT_URI=[fe80::1%eth0]", "fe80::1%eth0" },
        { "DMLC_PS_ROOT_URI=2001:db8::10.0.0.1", "2001:db8::10.0.0.1" },
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_string_equal(loaded(TLY_ROLE_SERVER, SETTINGS(JOB, good[i].setting)).root_uri,
                            good[i].root_uri);

    static const char *const bad[] = {
        "10.0.0", "10.0.0.256", "[::1", "[]",       "[10.0.0.1]",
        "[::1]x", ":9000",      "a b",  "1:2:3",    "fe80::1%",
        "tcp://", "a/b",        "::1]", "user@host",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char setting[64], sentence[128];
        snprintf(setting, sizeof setting, "DMLC_PS_ROOT_URI=%s", bad[i]);
        snprintf(sentence, sizeof sentence,
                 "DMLC_PS_ROOT_URI=\"%s\" is not a host name, IPv4 or IPv6 address", bad[i]);
        refused(TLY_ROLE_SERVER, SETTINGS(JOB, setting), sentence);
    }
}

static void a_host_with_scheme_or_port_is_refused_with_a_hint(void **state)
{
    (void)state;
    refused(TLY_ROLE_WORKER, SETTINGS(WORKER, "DMLC_PS_ROOT_URI=tcp://10.0.0.1"),
            "DMLC_PS_ROOT_URI=\"tcp://10.0.0.1\" must be a host without \"tcp://\" or another scheme; "
            "write 10.0.0.1");
    refused(
        TLY_ROLE_WORKER, SETTINGS(WORKER, "DMLC_PS_ROOT_URI=10.0.0.1:9000"),
        "DMLC_PS_ROOT_URI=\"10.0.0.1:9000\" must be a host without a port; write 10.0.0.1 (the scheduler's "
        "port is DMLC_PS_ROOT_PORT)");
    refused(TLY_ROLE_WORKER, SETTINGS(WORKER, "DMLC_NODE_HOST=[::1]:9000"),
            "DMLC_NODE_HOST=\"[::1]:9000\" must be a host without a port; write ::1 (the scheduler's port is "
            "DMLC_PS_ROOT_PORT)");
    refused(
        TLY_ROLE_WORKER, SETTINGS(WORKER, "DMLC_PS_ROOT_URI=http://head:80"),
        "DMLC_PS_ROOT_URI=\"http://head:80\" must be a host without \"tcp://\" or another scheme and without "
        "a port; write head (the scheduler's port is DMLC_PS_ROOT_PORT)");
}

static void long_values_are_refused_and_quoted_in_part(void **state)
{
    (void)state;
    char name[400], setting[512], sentence[512];
    memset(name, 'h', sizeof name - 1);
    name[256] = 0;
    snprintf(setting, sizeof setting, "DMLC_NODE_HOST=%s", name);
    snprintf(sentence, sizeof sentence, "DMLC_NODE_HOST=\"%.120s...\" is longer than 255 bytes", name);
    refused(TLY_ROLE_SERVER, SETTINGS(JOB, setting), sentence);
    name[64] = 0;
    snprintf(setting, sizeof setting, "DMLC_INTERFACE=%s", name);
    snprintf(sentence, sizeof sentence, "DMLC_INTERFACE=\"%s\" is longer than 63 bytes", name);
    refused(TLY_ROLE_SERVER, SETTINGS(JOB, setting), sentence);
    refused(TLY_ROLE_SERVER, SETTINGS(JOB, "DMLC_NUM_WORKER=4\n\033[2J"),
            "DMLC_NUM_WORKER=\"4??[2J\" is not a whole number from 1 to 4096");
}

static void ids_and_ranks_stay_below_their_counts(void **state)
{
    (void)state;
    refused(TLY_ROLE_WORKER, SETTINGS(WORKER, "DMLC_WORKER_ID=4"),
            "DMLC_WORKER_ID=\"4\" is not below DMLC_NUM_WORKER=\"4\"; ids go from 0 to 3");
    refused(TLY_ROLE_WORKER, SETTINGS("DMLC_NUM_WORKER=1", "DMLC_WORKER_ID=1"),
            "DMLC_WORKER_ID=\"1\" is not below DMLC_NUM_WORKER=\"1\"; ids go from 0 to 0");
    refused(TLY_ROLE_WORKER, SETTINGS(WORKER, "BYTEPS_LOCAL_RANK=8", "BYTEPS_LOCAL_SIZE=8"),
            "BYTEPS_LOCAL_RANK=\"8\" is not below BYTEPS_LOCAL_SIZE=\"8\"; ranks go from 0 to 7");
    refused(TLY_ROLE_WORKER, SETTINGS(WORKER, "BYTEPS_LOCAL_RANK=1"),
            "BYTEPS_LOCAL_RANK=\"1\" is not below BYTEPS_LOCAL_SIZE=\"1\"; ranks go from 0 to 0");
    /* job files give one id to all roles of a machine */
    assert_int_equal(loaded(TLY_ROLE_SERVER, SETTINGS(JOB, "DMLC_WORKER_ID=9")).worker_id, 9);
}

static void settings_must_be_known_and_have_a_value(void **state)
{
    (void)state;
    refused(TLY_ROLE_SERVER, SETTINGS(JOB, "DMLC_NUM_WORKER"),
            "setting \"DMLC_NUM_WORKER\" has no \"=\"; it must read NAME=value");
    refused(TLY_ROLE_SERVER, SETTINGS(JOB, ""), "setting \"\" has no \"=\"; it must read NAME=value");
    refused(TLY_ROLE_SERVER, SETTINGS(JOB, "=4"), "setting \"\" is not known");
    refused(TLY_ROLE_SERVER, SETTINGS(JOB, "DMLC_NUM_WORKERS=4"),
            "setting \"DMLC_NUM_WORKERS\" is not known; did you mean DMLC_NUM_WORKER?");
    refused(TLY_ROLE_SERVER, SETTINGS(JOB, "PATH=/bin"), "setting \"PATH\" is not known");
}

static void an_unknown_name_in_the_environment_is_a_warning_with_the_nearest(void **state)
{
    (void)state;
    static const struct {
        const char *name, *warning;
    } unknown[] = {
        { "DMLC_NUM_WORKERS", "unknown setting DMLC_NUM_WORKERS is ignored; did you mean DMLC_NUM_WORKER?" },
        { "BYTEPS_PARTITON_BYTES",
          "unknown setting BYTEPS_PARTITON_BYTES is ignored; did you mean BYTEPS_PARTITION_BYTES?" },
        { "TALLY_LOG_LEVEL", "unknown setting TALLY_LOG_LEVEL is ignored; did you mean BYTEPS_LOG_LEVEL?" },
        { "DMLC_PS_ROOT_URL", "unknown setting DMLC_PS_ROOT_URL is ignored; did you mean DMLC_PS_ROOT_URI?" },
        { "TALLY_FROBNICATE", "unknown setting TALLY_FROBNICATE is ignored; unset it or correct its name" },
        { "BYTEPS_", "unknown setting BYTEPS_ is ignored; unset it or correct its name" },
    };
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        clean(NULL);
        setenv(unknown[i].name, "1", 1);
        setenv("MY_DMLC_ROLE", "ours not", 1);
        loaded(TLY_ROLE_WORKER, SETTINGS(WORKER));
        assert_int_equal(lines.count, 1);
        assert_int_equal(lines.level[0], TALLY_LOG_WARN);
        assert_string_equal(lines.line[0], unknown[i].warning);
    }
}

static void a_warning_comes_before_the_error_that_it_explains(void **state)
{
    (void)state;
    setenv("DMLC_NUM_SERVERS", "2", 1);
    refused(TLY_ROLE_SERVER, SETTINGS("DMLC_PS_ROOT_URI=::1", "DMLC_PS_ROOT_PORT=1", "DMLC_NUM_WORKER=1"),
            "DMLC_NUM_SERVER is not set; a server needs the number of servers (1 to 1024)");
    assert_int_equal(lines.count, 1);
    assert_string_equal(lines.line[0],
                        "unknown setting DMLC_NUM_SERVERS is ignored; did you mean DMLC_NUM_SERVER?");
}

static void a_long_unknown_name_is_cut(void **state)
{
    (void)state;
    char name[300] = "BYTEPS_", expected[400];
    memset(name + 7, 'X', 250);
    setenv(name, "1", 1);
    loaded(TLY_ROLE_WORKER, SETTINGS(WORKER));
    snprintf(expected, sizeof expected, "unknown setting %.63s is ignored; unset it or correct its name",
             name);
    assert_string_equal(lines.line[0], expected);
}

static void names_of_byteps_without_effect_are_said_at_info(void **state)
{
    (void)state;
    setenv("BYTEPS_NCCL_GROUP_SIZE", "16", 1);
    setenv("DMLC_USE_KUBERNETES", "0", 1);
    loaded(TLY_ROLE_WORKER, SETTINGS(WORKER, "BYTEPS_TRACE_ON=1"));
    assert_int_equal(lines.count, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(lines.level[i], TALLY_LOG_INFO);
    assert_string_equal(lines.line[0], "BYTEPS_NCCL_GROUP_SIZE has no effect in this version");
    assert_string_equal(lines.line[1], "BYTEPS_TRACE_ON has no effect in this version");
    assert_string_equal(lines.line[2], "DMLC_USE_KUBERNETES has no effect in this version");
}

static void another_transport_is_a_warning_when_on(void **state)
{
    (void)state;
    setenv("DMLC_ENABLE_RDMA", "0", 1);
    loaded(TLY_ROLE_WORKER, SETTINGS(WORKER));
    assert_int_equal(lines.count, 0);
    setenv("DMLC_ENABLE_RDMA", "ibverbs", 1);
    setenv("DMLC_ENABLE_UCX", "1", 1);
    loaded(TLY_ROLE_WORKER, SETTINGS(WORKER));
    assert_int_equal(lines.count, 2);
    assert_int_equal(lines.level[0], TALLY_LOG_WARN);
    assert_string_equal(lines.line[0],
                        "DMLC_ENABLE_RDMA=\"ibverbs\" has no effect, the transport of this version "
                        "is TCP; set it to 0");
    assert_string_equal(
        lines.line[1],
        "DMLC_ENABLE_UCX=\"1\" has no effect, the transport of this version is TCP; set it to 0");
}

static void asynchronous_training_is_refused(void **state)
{
    (void)state;
    loaded(TLY_ROLE_WORKER, SETTINGS(WORKER, "BYTEPS_ENABLE_ASYNC=0"));
    setenv("BYTEPS_ENABLE_ASYNC", "1", 1);
    for (int role = TLY_ROLE_SCHEDULER; role <= TLY_ROLE_WORKER; role++)
        refused((tly_role)role, SETTINGS(WORKER),
                "BYTEPS_ENABLE_ASYNC=\"1\" asks for asynchronous training, which this version does not have; "
                "set it to 0");
}

static void warnings_follow_the_level_that_is_set(void **state)
{
    (void)state;
    setenv("TALLY_FROBNICATE", "1", 1);
    setenv("BYTEPS_TRACE_ON", "1", 1);
    loaded(TLY_ROLE_WORKER, SETTINGS(WORKER, "BYTEPS_LOG_LEVEL=ERROR"));
    assert_int_equal(lines.count, 0);
    loaded(TLY_ROLE_WORKER, SETTINGS(WORKER, "BYTEPS_LOG_LEVEL=WARNING"));
    assert_int_equal(lines.count, 1);
    loaded(TLY_ROLE_WORKER, SETTINGS(WORKER, "BYTEPS_LOG_LEVEL=INFO"));
    assert_int_equal(lines.count, 3);
}

/* The text that a function prints; for free(). */
static char *printed(void (*print)(FILE *out, tly_role role), tly_role role)
{
    char *text = NULL;
    size_t len;
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    print(out, role);
    fclose(out);
    return text;
}

static void help_names_what_a_role_uses(void **state)
{
    (void)state;
    char *worker = printed(tly_config_help, TLY_ROLE_WORKER);
    char *server = printed(tly_config_help, TLY_ROLE_SERVER);
    char *scheduler = printed(tly_config_help, TLY_ROLE_SCHEDULER);
    char *all = printed(tly_config_help, TLY_ROLE_NONE);
    assert_non_null(
        strstr(worker, "\n  DMLC_PS_ROOT_PORT\n      the scheduler's port\n      1 to 65535; required\n"));
    assert_non_null(strstr(scheduler, "\n      0 to 65535; required\n"));
    assert_non_null(strstr(worker, "\n  TALLY_CLOSE_LIMIT_MS\n      the time that leaving the job may take\n"
                                   "      0 to 3600000 ms; default 5000\n"));
    assert_non_null(
        strstr(worker, "\n  DMLC_INTERFACE\n      the network interface to use\n      a name; unset\n"));
    assert_non_null(strstr(worker, "BYTEPS_SCHEDULING_CREDIT"));
    assert_null(strstr(server, "BYTEPS_SCHEDULING_CREDIT"));
    assert_non_null(strstr(server, "BYTEPS_SERVER_ENGINE_THREAD"));
    assert_null(strstr(worker, "BYTEPS_SERVER_ENGINE_THREAD"));
    assert_non_null(strstr(all, "BYTEPS_SERVER_ENGINE_THREAD"));
    assert_non_null(strstr(all, "BYTEPS_SCHEDULING_CREDIT"));
    assert_non_null(strstr(all, "\n  DMLC_USE_KUBERNETES\n"));
    assert_non_null(strstr(all, "refused unless 0:\n  BYTEPS_ENABLE_ASYNC\n"));
    free(worker);
    free(server);
    free(scheduler);
    free(all);
}

static void print_markdown(FILE *out, tly_role role)
{
    (void)role;
    tly_config_markdown(out);
}

static void the_markdown_table_has_a_row_per_setting(void **state)
{
    (void)state;
    char *text = printed(print_markdown, TLY_ROLE_NONE);
    assert_memory_equal(text, "| name | meaning | default | range | roles |\n|---|---|---|---|---|\n", 66);
    assert_non_null(strstr(text, "\n| `DMLC_NUM_SERVER` | the number of servers | required | 1 to 1024 | "
                                 "scheduler, server, worker |\n"));
    assert_non_null(strstr(text,
                           "\n| `TALLY_IO_THREADS` | the number of network threads | 1 | 1 to 16 | server, "
                           "worker |\n"));
    assert_non_null(
        strstr(text, "without effect in this version: `DMLC_ENABLE_RDMA`, `DMLC_ENABLE_UCX`, `BYTEPS_"));
    assert_non_null(strstr(text, ". Refused unless 0: `BYTEPS_ENABLE_ASYNC`.\n"));
    int rows = 0;
    for (const char *at = text; (at = strstr(at, "\n| `")) != NULL; at++)
        rows++;
    assert_int_equal(rows, 22);
    free(text);
}

static void the_effective_values_are_logged_for_the_role(void **state)
{
    (void)state;
    tly_config c =
        loaded(TLY_ROLE_SCHEDULER, SETTINGS(JOB, "DMLC_PS_ROOT_URI=[::1]", "TALLY_DEATH_LIMIT_MS=300"));
    tly_config_log(&c, &test_log);
    static const char *const expected[] = {
        "DMLC_ROLE scheduler",         "DMLC_PS_ROOT_URI ::1",      "DMLC_PS_ROOT_PORT 9000",
        "DMLC_NUM_WORKER 4",           "DMLC_NUM_SERVER 2",         "DMLC_INTERFACE (unset)",
        "DMLC_NODE_HOST (unset)",      "BYTEPS_LOG_LEVEL WARNING",  "TALLY_DEATH_LIMIT_MS 300",
        "TALLY_START_LIMIT_MS 120000", "TALLY_STALL_WARN_MS 10000", "TALLY_STALL_LIMIT_MS 600000",
    };
    assert_int_equal(lines.count, sizeof expected / sizeof *expected);
    for (int i = 0; i < lines.count; i++) {
        assert_string_equal(lines.line[i], expected[i]);
        assert_int_equal(lines.level[i], TALLY_LOG_INFO);
    }
}

static void roles_have_names(void **state)
{
    (void)state;
    assert_string_equal(tly_role_name(TLY_ROLE_SCHEDULER), "scheduler");
    assert_string_equal(tly_role_name(TLY_ROLE_SERVER), "server");
    assert_string_equal(tly_role_name(TLY_ROLE_WORKER), "worker");
    assert_string_equal(tly_role_name(TLY_ROLE_NONE), "none");
    assert_string_equal(tly_role_name((tly_role)3), "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(every_setting_reaches_its_field, clean),
        cmocka_unit_test_setup(what_is_unset_or_empty_takes_its_default, clean),
        cmocka_unit_test_setup(settings_win_over_the_environment_and_the_last_over_earlier, clean),
        cmocka_unit_test_setup(the_environment_alone_is_enough, clean),
        cmocka_unit_test_setup(the_role_is_checked, clean),
        cmocka_unit_test_setup(each_required_setting_is_missed_by_its_name, clean),
        cmocka_unit_test_setup(a_worker_alone_needs_no_job, clean),
        cmocka_unit_test_setup(a_single_worker_that_is_forced_needs_a_job_but_no_id, clean),
        cmocka_unit_test_setup(numbers_are_read_strictly, clean),
        cmocka_unit_test_setup(each_number_keeps_its_range, clean),
        cmocka_unit_test_setup(switches_are_zero_or_one, clean),
        cmocka_unit_test_setup(log_levels_have_names_and_numbers, clean),
        cmocka_unit_test_setup(hosts_are_names_or_addresses, clean),
        cmocka_unit_test_setup(a_host_with_scheme_or_port_is_refused_with_a_hint, clean),
        cmocka_unit_test_setup(long_values_are_refused_and_quoted_in_part, clean),
        cmocka_unit_test_setup(ids_and_ranks_stay_below_their_counts, clean),
        cmocka_unit_test_setup(settings_must_be_known_and_have_a_value, clean),
        cmocka_unit_test_setup(an_unknown_name_in_the_environment_is_a_warning_with_the_nearest, clean),
        cmocka_unit_test_setup(a_warning_comes_before_the_error_that_it_explains, clean),
        cmocka_unit_test_setup(a_long_unknown_name_is_cut, clean),
        cmocka_unit_test_setup(names_of_byteps_without_effect_are_said_at_info, clean),
        cmocka_unit_test_setup(another_transport_is_a_warning_when_on, clean),
        cmocka_unit_test_setup(asynchronous_training_is_refused, clean),
        cmocka_unit_test_setup(warnings_follow_the_level_that_is_set, clean),
        cmocka_unit_test_setup(help_names_what_a_role_uses, clean),
        cmocka_unit_test_setup(the_markdown_table_has_a_row_per_setting, clean),
        cmocka_unit_test_setup(the_effective_values_are_logged_for_the_role, clean),
        cmocka_unit_test_setup(roles_have_names, clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
