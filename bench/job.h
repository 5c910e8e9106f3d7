/* job.h - what every command that runs in a job shares: joining, the head of the output, counters.
 *
 * Rank 0 speaks, on standard output; every worker reports its errors. One thread. */
#ifndef TLY_BENCH_JOB_H
#define TLY_BENCH_JOB_H

#include "bench/json.h"
#include "bench/processes.h"
#include "common/config.h"

typedef struct tly_bench_job {
    tally *ctx;
    int rank, workers, servers;
    tly_config config;
    tly_json *json; /* on rank 0 with --json; otherwise NULL */
} tly_bench_job; /* ctx is NULL outside a job */

/* Join the job from the environment and print version, configuration and machine.
 *
 * command: the command's name. json_path: NULL for none.
 * Blocks:  as tally_open.
 * Memory:  on success tly_bench_job_close ends it; on failure there is nothing to end.
 * Returns: TALLY_OK, or what tally_open, tly_config_load or tly_json_open return */
tally_status tly_bench_job_open(tly_bench_job *job, const char *command, const char *json_path);

/* The same for a command that needs no job: it speaks as rank 0 of one worker, with ctx NULL.
 * Returns: TALLY_OK, or what tly_json_open returns */
tally_status tly_bench_job_open_alone(tly_bench_job *job, const char *command, const char *json_path);

/* Leave the job. With status TALLY_OK all workers are waited for first, and the JSON file is
 * written; otherwise neither. What is still in flight ends; its buffers may be freed afterwards.
 * Returns: status, or the first error on the way. */
tally_status tly_bench_job_close(tly_bench_job *job, tally_status status);

/* An error, kept while cleaning up makes calls that fail too (a request that ends with its context). */
typedef struct tly_bench_error {
    tally_status status;
    char sentence[TLY_SENTENCE_MAX];
} tly_bench_error;

/* Keep this thread's sentence for a status; TALLY_OK needs none. Then make it this thread's again. */
void tly_bench_error_keep(tly_bench_error *error, tally_status status);
tally_status tly_bench_error_restore(const tly_bench_error *error);

/* A line of output, on rank 0. */
void tly_bench_say(const tly_bench_job *job, const char *format, ...) TLY_PRINTF(2, 3);

/* Look at the job's processes while no worker has anything in flight, on rank 0; all workers call it
 * at the same point.
 * Blocks:  until every worker is there, and again until rank 0 has looked.
 * Returns: TALLY_OK, or what tally_barrier or tly_processes_look return */
tally_status tly_bench_look(const tly_bench_job *job, tly_processes *processes);

/* "n/a" where a number has no meaning. */
#define TLY_NUMBER_ROOM 24
const char *tly_bench_number(char text[TLY_NUMBER_ROOM], int decimals, double value);

/* Payload bytes that this worker has sent to and received from all servers so far. */
uint64_t tly_bench_moved_bytes(const tly_bench_job *job);

/* One line (and one JSON row) per server, and the ratio of the fullest to the mean. */
void tly_bench_report_servers(const tly_bench_job *job);

#endif
