/* plan.h - what a seed means: the cluster, the tensors, the programs, the network, the faults. Made once,
 * then only read. */
#ifndef SIM_PLAN_H
#define SIM_PLAN_H

#include "common/wire.h"
#include "tests/sim/network.h"

#define SIM_TENSORS_MAX 640
#define SIM_DISAGREEMENTS_MAX 4
#define SIM_LEAVERS_MAX 2
#define SIM_NOBODY UINT32_MAX

typedef enum sim_end {
    SIM_END_GOOD,   /* every worker leaves, every process ends well */
    SIM_END_FAILED, /* the job fails, with one sentence on all nodes */
    SIM_END_EITHER, /* one or the other */
} sim_end;

typedef struct sim_tensor_plan {
    char name[24];
    tally_dtype dtype;
    tally_op op;
    uint32_t count;
    uint64_t seed;
} sim_tensor_plan;

/* In one round of one tensor one worker calls something else than the others. */
typedef struct sim_disagreement {
    uint32_t tensor, round, worker;
    bool other_kind; /* else another root */
} sim_disagreement;

typedef struct sim_plan sim_plan;

typedef struct sim_scenario {
    const char *name;
    uint32_t weight;
    void (*shape)(sim_plan *p, sim_random *r); /* changes a plain plan */
} sim_scenario;

typedef enum sim_victim { SIM_NO_VICTIM, SIM_WORKER, SIM_SERVER, SIM_SCHEDULER } sim_victim;

struct sim_plan {
    uint64_t seed;
    const sim_scenario *scenario;
    /* the cluster */
    uint32_t workers, servers, shards[SIM_SERVERS_MAX];
    int partition_bytes[SIM_WORKERS_MAX], credit[SIM_WORKERS_MAX];
    bool deterministic;
    int death_limit_ms, start_limit_ms, stall_warn_ms, stall_limit_ms, close_limit_ms;
    int64_t start_spread_us; /* processes start within this time */
    /* the programs */
    uint32_t tensor_count;
    sim_tensor_plan tensors[SIM_TENSORS_MAX];
    uint32_t rounds;
    bool exact;              /* values whose sums are exact; else only equality is checked */
    uint32_t window;         /* a tensor is at most so many rounds ahead of the slowest, 0: no limit */
    uint32_t barrier_every;  /* rounds; 0: none */
    uint32_t broadcast_permille, in_place_permille;
    uint32_t burst;          /* requests issued in one go, at most */
    int64_t think_us[SIM_WORKERS_MAX];
    uint16_t declare_after[SIM_WORKERS_MAX][SIM_TENSORS_MAX]; /* requests issued before */
    int priorities;          /* are drawn from 0 to this */
    bool gather;             /* issue only when all tensors are declared everywhere (a barrier) */
    bool quiesce;            /* when all is done, wait until nothing is kept before closing */
    /* the network and its faults */
    sim_weather weather;
    uint32_t breaks, control_breaks, pauses;
    int64_t fault_gap_us, pause_us;
    bool lossy;              /* payload may be sent again */
    /* special */
    uint32_t disagreement_count;
    sim_disagreement disagreements[SIM_DISAGREEMENTS_MAX];
    uint32_t conflict_tensor, conflict_worker, conflict_what; /* what: 0 dtype, 1 count, 2 op */
    uint32_t leaver_count, leavers[SIM_LEAVERS_MAX], leave_after[SIM_LEAVERS_MAX]; /* requests issued */
    sim_victim victim;
    uint32_t victim_index;
    int64_t death_us;
    bool second_death;       /* a server dies with it, nearly */
    bool mute_death;         /* the host vanishes; else the process */
    uint32_t slow_worker;    /* 30 s late: its program, its process or one of its links */
    uint32_t slow_what;
    uint32_t stalled_worker, stalled_after; /* issues no more, and never leaves */
    uint32_t cut_worker, cut_server;        /* the one cannot reach the other */
    int64_t cut_us;
    uint32_t absent_worker;  /* never starts */
    uint32_t closers_permille; /* closes with work in flight */
    sim_end end;
    bool fails_at_once;      /* the failure is bounded by the death limit */
    const char *sentence;    /* part of the failure's sentence */
    sim_time limit_us;       /* a run that is not over then is stuck */
    bool twice;              /* run again in other weather: the same bits */
};

extern const sim_scenario sim_scenarios[];
extern const uint32_t sim_scenario_count;
const sim_scenario *sim_scenario_find(const char *name); /* NULL: unknown */

/* scenario: NULL draws one. */
void sim_plan_make(sim_plan *p, uint64_t seed, const sim_scenario *scenario);

/* What worker calls in a round (from 1) of a tensor; and what all but one of them call. */
tly_kind sim_plan_kind(const sim_plan *p, uint32_t tensor, uint64_t round, uint32_t worker);
uint32_t sim_plan_root(const sim_plan *p, uint32_t tensor, uint64_t round, uint32_t worker);
tly_kind sim_plan_common_kind(const sim_plan *p, uint32_t tensor, uint64_t round);
uint32_t sim_plan_common_root(const sim_plan *p, uint32_t tensor, uint64_t round);
const sim_disagreement *sim_plan_disagreement(const sim_plan *p, uint32_t tensor, uint64_t round);

#endif
