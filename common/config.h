/* config.h - every setting, in one typed table; the only place that reads the environment.
 *
 * A setting has a name, a type, a default, a range, the roles that need it and a help text. Names
 * that BytePS has keep their BytePS name and meaning; names that only Tally has begin with TALLY_.
 * tly_config_load parses and validates all of it, and warns of an unknown TALLY_, BYTEPS_ or DMLC_
 * name with the nearest known one. Names that BytePS documents and that have no effect here are
 * known too, and said to be without effect; those that would change results are refused.
 *
 * Values are read strictly: a number is decimal digits and nothing else, a switch is 0 or 1. An empty
 * value is an error where the setting is required, and otherwise the same as none. */
#ifndef TLY_CONFIG_H
#define TLY_CONFIG_H

#include <stdbool.h>
#include <stdio.h>

#include "common/log.h"

typedef enum tly_role {
    TLY_ROLE_NONE = -1,
    TLY_ROLE_SCHEDULER = 0,
    TLY_ROLE_SERVER = 1,
    TLY_ROLE_WORKER = 2
} tly_role;

/* Defaults that are tuned; plain numbers, because they also stand in the help. */
#define TLY_DEFAULT_PARTITION_BYTES 1048576
#define TLY_DEFAULT_CREDIT 8
#define TLY_DEFAULT_ENGINE_THREADS 0
#define TLY_ENGINE_THREADS_MAX 64

/* "scheduler", "server", "worker"; "none" for anything else */
const char *tly_role_name(tly_role role);

/* All settings after parsing. Strings are empty when unset. Numbers are within their range. */
typedef struct tly_config {
    tly_role role;         /* DMLC_ROLE */
    char root_uri[256];    /* DMLC_PS_ROOT_URI: the scheduler's host name or address, brackets removed */
    int root_port;         /* DMLC_PS_ROOT_PORT 1..65535; 0 too for the scheduler, which picks a free one */
    int num_worker;        /* DMLC_NUM_WORKER 1..4096 */
    int num_server;        /* DMLC_NUM_SERVER 1..1024; 0 too for a worker without scheduler */
    int worker_id;         /* DMLC_WORKER_ID 0..num_worker-1 */
    char interface[64];    /* DMLC_INTERFACE, e.g. eth0; unset: source of the route to the scheduler */
    char node_host[256];   /* DMLC_NODE_HOST: address or name to advertise, wins over DMLC_INTERFACE */
    int local_rank;        /* BYTEPS_LOCAL_RANK 0..local_size-1, default 0 */
    int local_size;        /* BYTEPS_LOCAL_SIZE 1..1024, default 1 */
    bool force_distributed; /* BYTEPS_FORCE_DISTRIBUTED, default 0 */
    int partition_bytes;   /* BYTEPS_PARTITION_BYTES 4096..1073741824 */
    int credit;            /* BYTEPS_SCHEDULING_CREDIT 0..65536: partitions in flight per server shard, 0: no limit */
    int engine_threads;    /* BYTEPS_SERVER_ENGINE_THREAD 0..64: shards of a server, 0: by processors */
    tally_log_level log_level; /* BYTEPS_LOG_LEVEL: FATAL, ERROR, WARNING, INFO, DEBUG, TRACE in any
                                  case, or 0..4 as tally_log_level; default WARNING */
    bool deterministic;    /* TALLY_DETERMINISTIC, default 0 */
    int death_limit_ms;    /* TALLY_DEATH_LIMIT_MS 200..3600000, default 10000 */
    int start_limit_ms;    /* TALLY_START_LIMIT_MS 100..86400000, default 120000 */
    int stall_warn_ms;     /* TALLY_STALL_WARN_MS 100..86400000, default 10000 */
    int stall_limit_ms;    /* TALLY_STALL_LIMIT_MS 200..86400000, default 600000 */
    int close_limit_ms;    /* TALLY_CLOSE_LIMIT_MS 0..3600000, default 5000 */
    int io_threads;        /* TALLY_IO_THREADS 1..16, default 1 */
} tly_config;

/* Read all settings for a role.
 *
 * role:     the role whose required settings must be there; TLY_ROLE_NONE takes it from DMLC_ROLE.
 * settings: "NAME=value" strings that take the place of the environment's, ended by NULL; or NULL.
 *           Of a name given twice the last counts. An unknown name there is an error, in the
 *           environment only a warning.
 * log:      for the warnings about unknown names and names without effect, which come before an
 *           error does; at the level of BYTEPS_LOG_LEVEL where that is set. NULL as in tly_log_line.
 * Threads:  any, as long as none changes the environment.
 * DMLC_ROLE, where set, must be the given role.
 * A worker with DMLC_NUM_WORKER=1 and without BYTEPS_FORCE_DISTRIBUTED=1 needs no scheduler
 * settings, and DMLC_NUM_WORKER itself defaults to 1 for a worker when unset and no other DMLC_
 * setting but DMLC_ROLE is there (a program run by hand, alone).
 * DMLC_WORKER_ID is required when there are two or more workers.
 * Returns: TALLY_OK       *config is complete
 *          TALLY_ECONFIG  the sentence names the setting, its value and what it may be; config is
 *                         not written */
tally_status tly_config_load(tly_config *config, tly_role role, const char *const *settings,
                             const tly_log *log);

/* Print the settings as help for the role's --help (TLY_ROLE_NONE: all), or as the README's
 * Markdown table. */
void tly_config_help(FILE *out, tly_role role);
void tly_config_markdown(FILE *out);

/* One "name value" line at level info per setting that matters to the role: the effective values. */
void tly_config_log(const tly_config *config, const tly_log *log);

#endif
