/* cluster.h - the processes of a simulated job: each is one of the real cores in a shell that does what
 * the real shell does. */
#ifndef SIM_CLUSTER_H
#define SIM_CLUSTER_H

#include "scheduler/roster.h"
#include "server/round.h"
#include "tests/sim/plan.h"
#include "worker/pipeline.h"

typedef struct sim_cluster sim_cluster;

/* ---- control.c: a node's connection to the scheduler ---- */

typedef struct sim_control {
    sim_cluster *cluster;
    sim_thread *owner;
    tly_membership membership;
    sim_link link;
    bool open;
    void (*on_control)(void *arg, const tly_ctl *message, tly_time now);
    void *arg;
} sim_control;

void sim_control_init(sim_control *c, sim_cluster *cluster, sim_thread *owner, const tly_config *config,
                      const tly_log *log, tly_role role, uint64_t nonce, uint32_t endpoint_count,
                      const char *const *endpoints);
void sim_control_fini(sim_control *c);
void sim_control_close(sim_control *c, int linger_ms);
void sim_control_flush(sim_control *c);
tly_time sim_control_run(sim_control *c, tly_time now, bool *renewed);

/* Take messages and events. Returns: whether more messages wait. */
bool sim_control_handle(sim_control *c, tly_time now);

/* ---- scheduler.c ---- */

typedef struct sim_scheduler {
    sim_thread thread;
    sim_cluster *cluster;
    tly_config config;
    tly_log log;
    sim_listener listener;
    tly_roster *roster;
    bool started, over;
    int exit_status;
    char failure[TLY_SENTENCE_MAX];
} sim_scheduler;

void sim_scheduler_init(sim_scheduler *d, sim_cluster *cluster);
void sim_scheduler_start(sim_scheduler *d);
void sim_scheduler_fini(sim_scheduler *d);

/* ---- server.c ---- */

typedef struct sim_server sim_server;

typedef struct sim_shard {
    sim_thread thread;
    sim_server *server;
    uint32_t index;
    sim_listener listener;
    tly_rounds *rounds; /* NULL before the first epoch */
    int letters[SIM_WORKERS_MAX + 8]; /* SIM_INSTALL, or the rank of a worker that left */
    uint32_t letter_count;
    struct {
        uint32_t session, pushes;
    } seen[SIM_WORKERS_MAX]; /* of each worker: its newest session, and its PUSH records that came */
} sim_shard;

#define SIM_INSTALL (-1)

struct sim_server {
    sim_thread thread;
    sim_cluster *cluster;
    uint32_t index; /* of the process; its place in the epoch may be another */
    tly_config config;
    tly_log log;
    sim_control control;
    sim_shard shards[SIM_SHARDS_MAX];
    uint32_t shard_count;
    bool started, installed, over, killed;
    int exit_status;
};

void sim_server_init(sim_server *v, sim_cluster *cluster, uint32_t index);
void sim_server_start(sim_server *v);
void sim_server_kill(sim_server *v, bool mute);
void sim_server_fini(sim_server *v);

/* The listener of an endpoint, as the epoch names it. */
sim_listener *sim_server_find(sim_cluster *c, const char *endpoint);

/* ---- wiretap.c: what the messages themselves show ---- */

typedef struct sim_tap {
    uint64_t pushed_bytes, needed_push_bytes, needed_result_bytes;
} sim_tap;

typedef struct sim_worker sim_worker;

/* A worker sends; all that it sends in one turn, then turn_end. */
void sim_tap_push(sim_worker *w, const tly_out *out);
void sim_tap_turn_end(sim_worker *w);
/* A worker receives. */
void sim_tap_received(sim_worker *w, uint32_t link, const sim_message *m);
/* A shard receives, and sends. */
void sim_tap_taken(sim_shard *d, const sim_message *m);
void sim_tap_shard(sim_shard *d, const tly_out *out);
/* For the trace. */
void sim_tap_trace(const sim *s, const char *who, const char *what, uint32_t conn, const void *head,
                   size_t len_bytes, const tly_buf *body);

/* ---- worker.c ---- */

typedef struct sim_request {
    tly_exchange exchange;
    struct sim_app_tensor *tensor;
    uint64_t round;
    bool ended;
} sim_request;

typedef struct sim_letter {
    int type; /* as in worker/context.h */
    void *what;
} sim_letter;

typedef enum sim_phase {
    SIM_JOINING,
    SIM_IN,
    SIM_SETTLING,
    SIM_LEAVING,
    SIM_LET_GO,
    SIM_GONE, /* the engine has ended */
} sim_phase;

typedef enum sim_context {
    SIM_CONTEXT_JOINING,
    SIM_CONTEXT_IN,
    SIM_CONTEXT_FAILED,
    SIM_CONTEXT_CLOSING,
} sim_context;

typedef struct sim_app_tensor {
    tly_tensor core;
    uint32_t index;
    bool declared;
    uint64_t issued;      /* rounds */
    bool in_flight;
    sim_request request;
    uint8_t *input, *output; /* the same in place */
} sim_app_tensor;

/* The credit of one link, as the messages show it. */
typedef struct sim_meter {
    uint32_t session;
    uint64_t used_bytes;
    uint32_t pushed, arrived, room; /* PUSH records of the session */
    tly_record *pushes;
    const tly_part *last; /* the newest PUSH of this turn */
} sim_meter;

struct sim_worker {
    sim_thread engine;
    sim_cluster *cluster;
    uint32_t rank;
    tly_config config;
    tly_log log;
    sim_control control;
    tly_pipeline *pipeline;
    sim_link *links;
    sim_meter *meters;
    uint32_t link_count;
    sim_phase phase;
    bool started, closing, killed;
    tly_time close_by;
    sim_letter *letters; /* the mailbox */
    uint32_t letter_count, letter_room;
    bool settled_in_time;
    /* the context: what calls see */
    sim_context context;
    tally_status failure_status;
    char failure[TLY_SENTENCE_MAX];
    sim_time failed_at, closed_at, gone_at;
    int left_rank;
    uint64_t barrier_seq, barrier_released;
    sim_request **ended; /* for the program */
    uint32_t ended_count, ended_room;
    /* the program */
    sim_thread app;
    sim_random dice;
    sim_app_tensor *tensors;
    uint32_t issued;       /* requests */
    uint32_t open;
    uint64_t barriers_done;
    uint32_t leave_after;  /* requests issued; UINT32_MAX: when all is done */
    bool in_barrier, gathered, done, close_said;
    sim_time close_at;     /* when all is done */
    sim_tap tap;
};

void sim_worker_init(sim_worker *w, sim_cluster *cluster, uint32_t rank);
void sim_worker_start(sim_worker *w);
void sim_worker_kill(sim_worker *w, bool mute);
void sim_worker_fini(sim_worker *w);

/* The calls of the library: as tally.h says. */
tally_status sim_call_usable(const sim_worker *w, const char **sentence);
void sim_call_declare(sim_worker *w, sim_app_tensor *t);
void sim_call_issue(sim_worker *w, sim_app_tensor *t);
void sim_call_barrier(sim_worker *w);
void sim_call_close(sim_worker *w);

/* ---- app.c ---- */

void sim_app_init(sim_worker *w);
void sim_app_fini(sim_worker *w);
void sim_app_run(sim_thread *thread, tly_time now);
void sim_app_describe(const sim_worker *w, char *text, size_t room);

/* ---- cluster.c ---- */

/* How one round of one tensor ended, on the workers that have seen its end. */
typedef struct sim_outcome {
    uint8_t *value; /* of an inexact round: the first worker's */
    uint64_t hash;
    uint32_t good, bad;
    char *sentence; /* of the first bad end */
} sim_outcome;

struct sim_cluster {
    sim s;
    sim_net net;
    const sim_plan *plan;
    sim_scheduler scheduler;
    sim_server servers[SIM_SERVERS_MAX];
    sim_worker workers[SIM_WORKERS_MAX];
    sim_outcome *outcomes[SIM_TENSORS_MAX];
    uint32_t outcome_room[SIM_TENSORS_MAX];
    uint32_t apps_done;
    bool quiet; /* everything has settled: programs may close */
    sim_time quiet_by;
    uint32_t breaks, control_breaks, pauses; /* left to do */
    uint64_t result_bytes;
    sim_time failing_at;   /* what makes the job fail has happened */
    char sentence[TLY_SENTENCE_MAX]; /* of the failure, the first that a node knew */
    uint64_t hash; /* of all results */
};

/* A node learnt that the job has failed. */
/* A node that the dead scheduler had never answered cannot know more than that. */
bool sim_cluster_unheard(const sim_cluster *c, const char *sentence);
void sim_cluster_failure(sim_cluster *c, const char *who, const char *sentence);
sim_outcome *sim_cluster_outcome(sim_cluster *c, uint32_t tensor, uint64_t round);

typedef struct sim_report {
    bool failed;
    char reason[2048];
    uint64_t hash, events;
    sim_time virtual_us;
} sim_report;

/* Run the plan. weather: another seed for delays and faults. */
void sim_run(const sim_plan *plan, uint64_t weather, bool verbose, sim_report *report);

#endif
