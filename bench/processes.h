/* processes.h - what the processes of a job cost, when all of them run on this machine.
 *
 * tally-launch --local starts scheduler, servers and workers as children of one process. So a worker
 * finds the job's processes among its parent's children, by their names: the scheduler's, the
 * servers' and its own. One thread. */
#ifndef TLY_BENCH_PROCESSES_H
#define TLY_BENCH_PROCESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/status.h"

#define TLY_PROCESS_NAME_ROOM 16 /* what the kernel keeps of a program's name */

typedef struct tly_process {
    pid_t pid;
    char name[TLY_PROCESS_NAME_ROOM];
    double cpu_s;        /* user and system, of all threads so far, those that have ended included */
    uint64_t peak_bytes; /* of resident memory so far */
} tly_process;

typedef struct tly_processes {
    tly_process *items; /* in the order of pid */
    size_t count;       /* this process included */
} tly_processes;

/* Find the job's processes: workers + servers + scheduler of them.
 *
 * Memory:  tly_processes_fini ends *processes.
 * Returns: TALLY_OK       all are here, or count is 0: some run elsewhere, and nothing can be said
 *          TALLY_ENOMEM, TALLY_ESYSTEM */
tally_status tly_processes_find(int workers, int servers, tly_processes *processes);

/* Accepts a zeroed object. */
void tly_processes_fini(tly_processes *processes);

/* Look at all of them now.
 * Returns: TALLY_OK; TALLY_ESYSTEM when one has ended */
tally_status tly_processes_look(tly_processes *processes);

/* Processor time of all together at the last look; NaN for none. */
double tly_processes_cpu_s(const tly_processes *processes);

/* Of /proc/PID/stat: the name in its parentheses (which may hold anything) and the parent.
 * Returns false when the text is not such a line. */
typedef struct tly_process_stat {
    char name[TLY_PROCESS_NAME_ROOM];
    pid_t parent;
} tly_process_stat;
bool tly_processes_parse_stat(const char *text, tly_process_stat *stat);

/* Of /proc/PID/status: the most resident memory so far, in bytes; 0 when it says none. */
uint64_t tly_processes_parse_peak(const char *text);

#endif
