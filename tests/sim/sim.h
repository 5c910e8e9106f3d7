/* sim.h - whole clusters of the real cores on a virtual clock: what the files of the simulation share.
 *
 *     base.c       random numbers, events, threads, failures, the trace
 *     network.c    connections: delay, order, loss with a connection, repetition
 *     plan.c       what a seed means: the cluster, the tensors, the programs, the faults
 *     values.c     what the workers contribute, and what must come out
 *     control.c    a node's connection to the scheduler, as common/registrar.c
 *     scheduler.c  the scheduler's shell, as scheduler/main.c
 *     server.c     a server's shell, as server/main.c and server/shard.c
 *     worker.c     a worker's shell, as worker/engine.c and the calls of the library
 *     app.c        the program that each worker runs
 *     wiretap.c    checks of the messages themselves: payload, order, credit
 *     cluster.c    a run: start, faults, end, what must hold then
 *     main.c       seeds, scenarios, the report
 *
 * Nothing here knows a real clock, a socket or a thread; a run is a pure function of its seed. Time
 * is in microseconds; the cores are told milliseconds. */
#ifndef SIM_H
#define SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/clock.h"
#include "common/status.h"

#define SIM_WORKERS_MAX 16
#define SIM_SERVERS_MAX 8
#define SIM_SHARDS_MAX 3
#define SIM_NEVER INT64_MAX
#define SIM_MS 1000

typedef int64_t sim_time; /* microseconds of virtual time, from the start of the run */

typedef struct sim_random {
    uint64_t state;
} sim_random;

uint64_t sim_mix(uint64_t x);
uint64_t sim_next(sim_random *r);
uint32_t sim_below(sim_random *r, uint32_t bound);           /* 0 .. bound-1; 0 for bound 0 */
int64_t sim_between(sim_random *r, int64_t low, int64_t high); /* both included */
bool sim_chance(sim_random *r, uint32_t permille);

typedef struct sim sim;
typedef void (*sim_event_fn)(sim *s, void *arg);

typedef struct sim_event {
    sim_time at;
    uint64_t order;
    sim_event_fn fn;
    void *arg;
} sim_event;

struct sim {
    sim_time now;
    sim_random weather; /* delays and faults; never what the programs do */
    sim_event *events;  /* a heap */
    size_t event_count, event_room;
    uint64_t order, events_done;
    bool verbose;
    bool failed;
    char reason[2048];
};

void sim_at(sim *s, sim_time at, sim_event_fn fn, void *arg);

/* Take the next event and do it. Returns: false when there is none. */
bool sim_step(sim *s);
void sim_fini(sim *s);

/* The time as the cores are told it. */
tly_time sim_clock(const sim *s);

/* The run has shown a mistake: the first reason counts, and the run ends. */
void sim_fail(sim *s, const char *format, ...) TLY_PRINTF(2, 3);
void sim_trace(const sim *s, const char *format, ...) TLY_PRINTF(2, 3);

/* Something that runs, handles what has come, and waits for the next thing or its deadline. */
typedef struct sim_thread {
    sim *s;
    void (*run)(struct sim_thread *t, tly_time now);
    char name[40];
    bool dead;
    sim_time wake_at, deadline, timer_at, paused_until;
    tly_time spin_at; /* spinning: many turns in one millisecond that nothing but a deadline caused */
    int spins;
} sim_thread;

void sim_thread_init(sim_thread *t, sim *s, void (*run)(sim_thread *t, tly_time now));

/* Run it at this time at the latest. */
void sim_wake(sim_thread *t, sim_time at);

/* Something came for it: run it after a short random while, in which more may come. */
void sim_notify(sim_thread *t);

/* It waits until then (in the cores' time) if nothing comes. */
void sim_sleep(sim_thread *t, tly_time until);

/* Nothing of it runs for this long. */
void sim_pause(sim_thread *t, sim_time length);

#endif
