#include "common/config.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "common/setting.h"

#define STRING(text) #text
#define EXPANDED(macro) STRING(macro)

/* What a node is, as far as it decides which settings it needs. */
enum {
    KIND_SCHEDULER = 1,
    KIND_SERVER = 2,
    KIND_WORKER = 4, /* one of several */
    KIND_SINGLE = 8, /* the only worker, with servers all the same */
    KIND_ALONE = 16, /* the only worker, without scheduler and server */
    KIND_WORKERS = KIND_WORKER | KIND_SINGLE | KIND_ALONE,
    KIND_IN_JOB = KIND_SCHEDULER | KIND_SERVER | KIND_WORKER | KIND_SINGLE,
    KIND_ALL = KIND_IN_JOB | KIND_ALONE
};

const char *tly_role_name(tly_role role)
{
    static const char *const names[] = { "scheduler", "server", "worker" };
    return role >= TLY_ROLE_SCHEDULER && role <= TLY_ROLE_WORKER ? names[role] : "none";
}

#define FIELD(field) .offset = offsetof(tly_config, field), .size = sizeof(((tly_config *)0)->field)
#define INERT(text) { .name = text, .type = &tly_type_inert }

/* Every name that is known, in the order in which help shows them. */
static const tly_setting rows[] = {
    { .name = "DMLC_ROLE", .type = &tly_type_role, FIELD(role), .needed = KIND_ALL, .used = KIND_ALL,
      .what = "the role of this process", .more = "Programs with one role know it without" },
    { .name = "DMLC_PS_ROOT_URI", .type = &tly_type_host, FIELD(root_uri), .needed = KIND_IN_JOB,
      .used = KIND_ALL, .what = "the scheduler's host" },
    { .name = "DMLC_PS_ROOT_PORT", .type = &tly_type_int, FIELD(root_port), .min = 1, .max = 65535,
      .zero = KIND_SCHEDULER | KIND_ALONE, .needed = KIND_IN_JOB, .used = KIND_ALL,
      .what = "the scheduler's port", .more = "The scheduler takes a free one for 0" },
    { .name = "DMLC_NUM_WORKER", .type = &tly_type_int, FIELD(num_worker), .min = 1, .max = 4096,
      .needed = KIND_IN_JOB, .used = KIND_ALL, .fallback = "1", .what = "the number of workers",
      .more = "1 for a worker that has no other DMLC_ setting; a single worker needs no scheduler and no "
              "server" },
    { .name = "DMLC_NUM_SERVER", .type = &tly_type_int, FIELD(num_server), .min = 1, .max = 1024,
      .zero = KIND_ALONE, .needed = KIND_IN_JOB, .used = KIND_ALL, .what = "the number of servers" },
    { .name = "DMLC_WORKER_ID", .type = &tly_type_int, FIELD(worker_id), .min = 0, .max = 4095,
      .needed = KIND_WORKER, .used = KIND_WORKERS, .fallback = "0",
      .what = "its own number among the workers",
      .more = "Below DMLC_NUM_WORKER, and another one on each worker" },
    { .name = "DMLC_INTERFACE", .type = &tly_type_text, FIELD(interface), .used = KIND_ALL,
      .what = "the network interface to use",
      .more = "Unset: the source address of the route to the scheduler" },
    { .name = "DMLC_NODE_HOST", .type = &tly_type_host, FIELD(node_host), .used = KIND_ALL,
      .what = "the address to tell the others", .more = "Wins over DMLC_INTERFACE" },
    { .name = "BYTEPS_LOCAL_RANK", .type = &tly_type_int, FIELD(local_rank), .min = 0, .max = 1023,
      .used = KIND_WORKERS, .fallback = "0", .what = "the number of this process on its machine",
      .more = "Below BYTEPS_LOCAL_SIZE" },
    { .name = "BYTEPS_LOCAL_SIZE", .type = &tly_type_int, FIELD(local_size), .min = 1, .max = 1024,
      .used = KIND_WORKERS, .fallback = "1", .what = "the number of processes on this machine" },
    { .name = "BYTEPS_FORCE_DISTRIBUTED", .type = &tly_type_bool, FIELD(force_distributed),
      .used = KIND_WORKERS,
      .fallback = "0", .what = "1 to use servers even for a single worker" },
    { .name = "BYTEPS_PARTITION_BYTES", .type = &tly_type_int, FIELD(partition_bytes), .min = 4096,
      .max = 1073741824, .used = KIND_WORKERS, .fallback = EXPANDED(TLY_DEFAULT_PARTITION_BYTES),
      .unit = "bytes", .what = "the size into which tensors are cut" },
    { .name = "BYTEPS_SCHEDULING_CREDIT", .type = &tly_type_int, FIELD(credit), .min = 0, .max = 65536,
      .used = KIND_WORKERS, .fallback = EXPANDED(TLY_DEFAULT_CREDIT),
      .what = "the number of partitions in flight per server shard",
      .more = "More fills a slow link, less lets high priority overtake sooner; 0 is no limit" },
    { .name = "BYTEPS_SERVER_ENGINE_THREAD", .type = &tly_type_int, FIELD(engine_threads), .min = 0,
      .max = TLY_ENGINE_THREADS_MAX,
      .used = KIND_SERVER, .fallback = EXPANDED(TLY_DEFAULT_ENGINE_THREADS),
      .what = "the number of summing threads (shards) of a server",
      .more = "0 is one for every two processors, at most 4" },
    { .name = "BYTEPS_LOG_LEVEL", .type = &tly_type_level, FIELD(log_level), .used = KIND_ALL,
      .fallback = "WARNING", .what = "the log level", .more = "In any case of letters" },
    { .name = "TALLY_DETERMINISTIC", .type = &tly_type_bool, FIELD(deterministic), .used = KIND_SERVER,
      .fallback = "0", .what = "1 to add in the order of workers, for the same bits in every run" },
    { .name = "TALLY_DEATH_LIMIT_MS", .type = &tly_type_int, FIELD(death_limit_ms), .min = 200,
      .max = 3600000,
      .used = KIND_ALL, .fallback = "10000", .unit = "ms",
      .what = "the silence after which a node counts as dead" },
    { .name = "TALLY_START_LIMIT_MS", .type = &tly_type_int, FIELD(start_limit_ms), .min = 100,
      .max = 86400000,
      .used = KIND_ALL, .fallback = "120000", .unit = "ms",
      .what = "the time within which everybody must have come" },
    { .name = "TALLY_STALL_WARN_MS", .type = &tly_type_int, FIELD(stall_warn_ms), .min = 100, .max = 86400000,
      .used = KIND_ALL, .fallback = "10000", .unit = "ms",
      .what = "the wait for a worker's part of a tensor after which a warning names both" },
    { .name = "TALLY_STALL_LIMIT_MS", .type = &tly_type_int, FIELD(stall_limit_ms), .min = 200,
      .max = 86400000,
      .used = KIND_ALL, .fallback = "600000", .unit = "ms",
      .what = "the same wait, after which the job fails" },
    { .name = "TALLY_CLOSE_LIMIT_MS", .type = &tly_type_int, FIELD(close_limit_ms), .min = 0, .max = 3600000,
      .used = KIND_WORKERS, .fallback = "5000", .unit = "ms",
      .what = "the time that leaving the job may take" },
    { .name = "TALLY_IO_THREADS", .type = &tly_type_int, FIELD(io_threads), .min = 1, .max = 16,
      .used = KIND_SERVER | KIND_WORKERS, .fallback = "1", .what = "the number of network threads" },

    { .name = "BYTEPS_ENABLE_ASYNC", .type = &tly_type_refused, .what = "asynchronous training" },

    { .name = "DMLC_ENABLE_RDMA", .type = &tly_type_transport },
    { .name = "DMLC_ENABLE_UCX", .type = &tly_type_transport },

    INERT("BYTEPS_BUILT_IN_HASH_COEF"),
    INERT("BYTEPS_CPU_BLACKLIST"),
    INERT("BYTEPS_DEBUG_SAMPLE_TENSOR"),
    INERT("BYTEPS_DISABLE_CPU_ALLREDUCE"),
    INERT("BYTEPS_DISABLE_GPU_ALLREDUCE"),
    INERT("BYTEPS_DISABLE_P2P"),
    INERT("BYTEPS_ENABLE_GDB"),
    INERT("BYTEPS_ENABLE_IPC"),
    INERT("BYTEPS_ENABLE_MIXED_MODE"),
    INERT("BYTEPS_ENCODING_SCHEME_VERSION"),
    INERT("BYTEPS_JOB_ID"),
    INERT("BYTEPS_KEY_HASH_FN"),
    INERT("BYTEPS_LOG_HIDE_TIME"),
    INERT("BYTEPS_MIN_COMPRESS_BYTES"),
    INERT("BYTEPS_MIXED_MODE_BOUND"),
    INERT("BYTEPS_MULTITHREADED_CPU"),
    INERT("BYTEPS_NCCL_GROUP_SIZE"),
    INERT("BYTEPS_NCCL_NUM_RINGS"),
    INERT("BYTEPS_NUMA_DEFAULT_QUOTA"),
    INERT("BYTEPS_NUMA_ON"),
    INERT("BYTEPS_OMP_THREAD_PER_GPU"),
    INERT("BYTEPS_PCIE_SWITCH_SIZE"),
    INERT("BYTEPS_REDUCE_ROOTS"),
    INERT("BYTEPS_SERVER_DEBUG"),
    INERT("BYTEPS_SERVER_DEBUG_KEY"),
    INERT("BYTEPS_SERVER_ENABLE_SCHEDULE"),
    INERT("BYTEPS_SERVER_ENGINE_BLOCKING"),
    INERT("BYTEPS_SOCKET_PATH"),
    INERT("BYTEPS_TELEMETRY_INTERVAL"),
    INERT("BYTEPS_TELEMETRY_ON"),
    INERT("BYTEPS_THREADPOOL_SIZE"),
    INERT("BYTEPS_TRACE_DIR"),
    INERT("BYTEPS_TRACE_END_STEP"),
    INERT("BYTEPS_TRACE_ON"),
    INERT("BYTEPS_TRACE_START_STEP"),
    INERT("BYTEPS_UCX_SHORT_THRESH"),
    INERT("BYTEPS_USE_HASH_KEY"),
    INERT("BYTEPS_VISIBLE_CPU_CORES"),
    INERT("DMLC_GROUP_SIZE"),
    INERT("DMLC_LOCAL"),
    INERT("DMLC_NODE_RANK"),
    INERT("DMLC_NUM_PORTS"),
    INERT("DMLC_PS_VAN_TYPE"),
    INERT("DMLC_PS_WATER_MARK"),
    INERT("DMLC_RANK"),
    INERT("DMLC_USE_KUBERNETES"),
};
#define ROW_COUNT (sizeof rows / sizeof *rows)

/* The text of each row's value, or NULL when it is not set. */
typedef struct setting_values {
    const char *text[ROW_COUNT];
} setting_values;

static const tly_setting *row_find(const char *name, size_t len)
{
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (strncmp(rows[i].name, name, len) == 0 && rows[i].name[len] == 0)
            return &rows[i];
    return NULL;
}

static const char *row_value(const setting_values *values, const char *name)
{
    return values->text[row_find(name, strlen(name)) - rows];
}

static const char *const prefixes[] = { "TALLY_", "BYTEPS_", "DMLC_" };

/* What follows the prefix, or the whole name. */
static const char *name_stem(const char *name)
{
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (strncasecmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return name + strlen(prefixes[i]);
    return name;
}

/* The known name that was probably meant, or NULL. Another prefix is one change: which settings
 * carry whose name is the easiest thing to forget. */
static const char *name_nearest(const char *name)
{
    const char *stem = name_stem(name), *nearest = NULL;
    int limit = (int)strlen(stem) / 3;
    int least = (limit > 3 ? 3 : limit) + 1;
    for (size_t i = 0; i < ROW_COUNT; i++) {
        int whole = tly_edit_distance(name, rows[i].name);
        int other = tly_edit_distance(stem, name_stem(rows[i].name)) + 1;
        int distance = whole < other ? whole : other;
        if (distance < least) {
            least = distance;
            nearest = rows[i].name;
        }
    }
    return nearest;
}

static void environment_warn(const tly_log *log)
{
    for (char **entry = environ; entry && *entry; entry++) {
        size_t len = strcspn(*entry, "=");
        bool ours = false;
        for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
            ours = ours || strncmp(*entry, prefixes[i], strlen(prefixes[i])) == 0;
        if (!ours || row_find(*entry, len))
            continue;
        char name[TLY_NAME_MAX];
        snprintf(name, sizeof name, "%.*s", (int)(len < sizeof name ? len : sizeof name - 1), *entry);
        const char *nearest = len < sizeof name ? name_nearest(name) : NULL;
        if (nearest)
            tly_log_warn(log, "unknown setting %s is ignored; did you mean %s?", name, nearest);
        else
            tly_log_warn(log, "unknown setting %s is ignored; unset it or correct its name", name);
    }
}

static tally_status values_collect(setting_values *values, const char *const *settings)
{
    for (size_t i = 0; i < ROW_COUNT; i++)
        values->text[i] = getenv(rows[i].name);
    for (; settings && *settings; settings++) {
        char text[TLY_QUOTED_MAX], name[TLY_NAME_MAX];
        size_t len = strcspn(*settings, "=");
        if (!(*settings)[len])
            return tly_error(TALLY_ECONFIG, "setting %s has no \"=\"; it must read NAME=value",
                             tly_setting_quote(*settings, text));
        const tly_setting *row = row_find(*settings, len);
        if (row) {
            values->text[row - rows] = *settings + len + 1;
            continue;
        }
        snprintf(name, sizeof name, "%.*s", (int)(len < sizeof name ? len : sizeof name - 1), *settings);
        const char *nearest = name_nearest(name);
        return tly_error(TALLY_ECONFIG, "setting %s is not known%s%s%s", tly_setting_quote(name, text),
                         nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
    }
    return TALLY_OK;
}

/* The caller's log, at the level that is about to become its level. */
static tly_log notice_log(const setting_values *values, const tly_log *log)
{
    tly_log notices = { .level = TALLY_LOG_WARN };
    if (log)
        notices = *log;
    const char *level = row_value(values, "BYTEPS_LOG_LEVEL");
    if (level)
        tly_setting_level(level, &notices.level); /* a bad one is reported when its turn comes */
    return notices;
}

static tally_status role_load(const setting_values *values, tly_role *role)
{
    const tly_setting *row = row_find("DMLC_ROLE", strlen("DMLC_ROLE"));
    const char *value = values->text[row - rows];
    if (!value || !*value) {
        if (*role != TLY_ROLE_NONE && !value)
            return TALLY_OK;
        return tly_error(TALLY_ECONFIG, "%s is %s; it must be scheduler, server or worker", row->name,
                         value ? "empty" : "not set");
    }
    tly_role named;
    tally_status status = tly_setting_role(row, KIND_ALL, value, &named);
    if (status)
        return status;
    if (*role != TLY_ROLE_NONE && *role != named)
        return tly_error(TALLY_ECONFIG, "%s=\"%s\", but this process is a %s", row->name, value,
                         tly_role_name(*role));
    *role = named;
    return TALLY_OK;
}

/* Whether a program runs by hand, alone: nothing tells it of a job. */
static bool outside_job(const setting_values *values)
{
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (values->text[i] && rows[i].used && strncmp(rows[i].name, "DMLC_", 5) == 0
            && strcmp(rows[i].name, "DMLC_ROLE") != 0)
            return false;
    return true;
}

static tally_status setting_load(const tly_setting *row, unsigned kind, const char *value, tly_config *config)
{
    if (!row->type->parse)
        return TALLY_OK;
    if (!value || !*value) {
        if (row->needed & kind) {
            char range[TLY_RANGE_MAX];
            row->type->range(row, kind, range, sizeof range);
            return tly_error(TALLY_ECONFIG, "%s is %s; a %s needs %s (%s)", row->name,
                             value ? "empty" : "not set", tly_role_name(config->role), row->what, range);
        }
        value = row->fallback;
        if (!value)
            return TALLY_OK;
    }
    return row->type->parse(row, kind, value, (char *)config + row->offset);
}

/* Which kind a node is, from its role and the two settings that decide about servers. */
static tally_status kind_load(const setting_values *values, tly_config *config, unsigned *kind)
{
    static const char *const deciding[] = { "DMLC_NUM_WORKER", "BYTEPS_FORCE_DISTRIBUTED" };
    *kind = config->role == TLY_ROLE_SCHEDULER ? KIND_SCHEDULER : KIND_SERVER;
    if (config->role != TLY_ROLE_WORKER)
        return TALLY_OK;
    *kind = outside_job(values) ? KIND_ALONE : KIND_WORKER;
    for (size_t i = 0; i < sizeof deciding / sizeof *deciding; i++) {
        const tly_setting *row = row_find(deciding[i], strlen(deciding[i]));
        tally_status status = setting_load(row, *kind, values->text[row - rows], config);
        if (status)
            return status;
    }
    if (config->num_worker > 1)
        *kind = KIND_WORKER;
    else
        *kind = config->force_distributed ? KIND_SINGLE : KIND_ALONE;
    return TALLY_OK;
}

/* The rules between two settings. */
static tally_status config_check(const tly_config *config)
{
    if (config->role != TLY_ROLE_WORKER)
        return TALLY_OK;
    if (config->worker_id >= config->num_worker)
        return tly_error(TALLY_ECONFIG,
                         "DMLC_WORKER_ID=\"%d\" is not below DMLC_NUM_WORKER=\"%d\"; ids go from 0 to %d",
                         config->worker_id, config->num_worker, config->num_worker - 1);
    if (config->local_rank >= config->local_size)
        return tly_error(TALLY_ECONFIG,
                         "BYTEPS_LOCAL_RANK=\"%d\" is not below BYTEPS_LOCAL_SIZE=\"%d\"; ranks go "
                         "from 0 to %d",
                         config->local_rank, config->local_size, config->local_size - 1);
    return TALLY_OK;
}

tally_status tly_config_load(tly_config *config, tly_role role, const char *const *settings,
                             const tly_log *log)
{
    setting_values values;
    tally_status status = values_collect(&values, settings);
    if (status)
        return status;

    /* Before any error: a misspelt name is often why another one is missing. */
    tly_log notices = notice_log(&values, log);
    environment_warn(&notices);
    for (size_t i = 0; i < ROW_COUNT; i++)
        if (rows[i].type->notice && values.text[i])
            rows[i].type->notice(&rows[i], values.text[i], &notices);

    tly_config loaded = { .role = role };
    unsigned kind = 0;
    status = role_load(&values, &loaded.role);
    if (!status)
        status = kind_load(&values, &loaded, &kind);
    for (size_t i = 0; i < ROW_COUNT && !status; i++)
        if (rows[i].type != &tly_type_role)
            status = setting_load(&rows[i], kind, values.text[i], &loaded);
    if (!status)
        status = config_check(&loaded);
    if (!status)
        *config = loaded;
    return status;
}

static unsigned role_kinds(tly_role role)
{
    static const unsigned kinds[] = { KIND_SCHEDULER, KIND_SERVER, KIND_WORKERS };
    return role == TLY_ROLE_NONE ? KIND_ALL : kinds[role];
}

static const char *row_default(const tly_setting *row)
{
    if (row->needed)
        return "required";
    return row->fallback ? row->fallback : "unset";
}

/* The names of rows of one type, as a list. */
static void names_print(FILE *out, const tly_setting_type *type, const char *quote)
{
    const char *separator = "";
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (rows[i].type == type) {
            fprintf(out, "%s%s%s%s", separator, quote, rows[i].name, quote);
            separator = *quote ? ", " : "\n  ";
        }
    }
}

void tly_config_help(FILE *out, tly_role role)
{
    fprintf(out, "Settings, taken from the environment:\n");
    for (size_t i = 0; i < ROW_COUNT; i++) {
        const tly_setting *row = &rows[i];
        if (!(row->used & role_kinds(role)))
            continue;
        char range[TLY_RANGE_MAX];
        row->type->range(row, role == TLY_ROLE_SCHEDULER ? KIND_SCHEDULER : 0, range, sizeof range);
        fprintf(out, "\n  %s\n      %s\n      %s; %s%s\n", row->name, row->what, range,
                row->needed || !row->fallback ? "" : "default ", row_default(row));
        if (row->more)
            fprintf(out, "      %s\n", row->more);
    }
    fprintf(out, "\nKnown from BytePS, without effect in this version:\n  ");
    names_print(out, &tly_type_transport, "");
    fprintf(out, "\n  ");
    names_print(out, &tly_type_inert, "");
    fprintf(out, "\n\nKnown from BytePS, refused unless 0:\n  ");
    names_print(out, &tly_type_refused, "");
    fprintf(out, "\n");
}

void tly_config_markdown(FILE *out)
{
    fprintf(out, "| name | meaning | default | range | roles |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < ROW_COUNT; i++) {
        const tly_setting *row = &rows[i];
        if (!row->used)
            continue;
        char range[TLY_RANGE_MAX];
        row->type->range(row, 0, range, sizeof range);
        fprintf(out, "| `%s` | %s%s%s | %s | %s | ", row->name, row->what, row->more ? ". " : "",
                row->more ? row->more : "", row_default(row), range);
        const char *separator = "";
        for (int role = TLY_ROLE_SCHEDULER; role <= TLY_ROLE_WORKER; role++) {
            if (row->used & role_kinds(role)) {
                fprintf(out, "%s%s", separator, tly_role_name(role));
                separator = ", ";
            }
        }
        fprintf(out, " |\n");
    }
    fprintf(out, "\nKnown from BytePS, without effect in this version: ");
    names_print(out, &tly_type_transport, "`");
    fprintf(out, ", ");
    names_print(out, &tly_type_inert, "`");
    fprintf(out, ". Refused unless 0: ");
    names_print(out, &tly_type_refused, "`");
    fprintf(out, ".\n");
}

void tly_config_log(const tly_config *config, const tly_log *log)
{
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (!(rows[i].used & role_kinds(config->role)))
            continue;
        char text[256];
        rows[i].type->show((const char *)config + rows[i].offset, text, sizeof text);
        tly_log_info(log, "%s %s", rows[i].name, text);
    }
}
