#include "tests/sim/plan.h"

#include <stdio.h>
#include <string.h>

/* ---- what the programs call ---- */

static uint64_t draw(const sim_plan *p, uint32_t tensor, uint64_t round, uint32_t what)
{
    return sim_mix(p->tensors[tensor].seed + round * 1000003 + what);
}

tly_kind sim_plan_common_kind(const sim_plan *p, uint32_t tensor, uint64_t round)
{
    return draw(p, tensor, round, 1) % 1000 < p->broadcast_permille ? TLY_KIND_BROADCAST : TLY_KIND_PUSH_PULL;
}

uint32_t sim_plan_common_root(const sim_plan *p, uint32_t tensor, uint64_t round)
{
    return (uint32_t)(draw(p, tensor, round, 2) % p->workers);
}

const sim_disagreement *sim_plan_disagreement(const sim_plan *p, uint32_t tensor, uint64_t round)
{
    for (uint32_t i = 0; i < p->disagreement_count; i++)
        if (p->disagreements[i].tensor == tensor && p->disagreements[i].round == round)
            return &p->disagreements[i];
    return NULL;
}

tly_kind sim_plan_kind(const sim_plan *p, uint32_t tensor, uint64_t round, uint32_t worker)
{
    const sim_disagreement *d = sim_plan_disagreement(p, tensor, round);
    if (!d)
        return sim_plan_common_kind(p, tensor, round);
    if (!d->other_kind)
        return TLY_KIND_BROADCAST;
    tly_kind kind = sim_plan_common_kind(p, tensor, round);
    return d->worker != worker ? kind : kind == TLY_KIND_BROADCAST ? TLY_KIND_PUSH_PULL : TLY_KIND_BROADCAST;
}

uint32_t sim_plan_root(const sim_plan *p, uint32_t tensor, uint64_t round, uint32_t worker)
{
    const sim_disagreement *d = sim_plan_disagreement(p, tensor, round);
    uint32_t root = sim_plan_common_root(p, tensor, round);
    return d && !d->other_kind && d->worker == worker ? (root + 1) % p->workers : root;
}

/* ---- a plain plan ---- */

static void draw_cluster(sim_plan *p, sim_random *r)
{
    static const uint32_t worker_bounds[] = { 2, 3, 3, 4, 4, 5, 8, 16 };
    static const uint32_t server_bounds[] = { 1, 2, 2, 3, 4, 8 };
    p->workers = 1 + sim_below(r, worker_bounds[sim_below(r, 8)]);
    if (p->workers == 1 && !sim_chance(r, 100))
        p->workers = 2;
    p->servers = 1 + sim_below(r, server_bounds[sim_below(r, 6)]);
    if (p->workers > 8 && p->servers > 3 && !sim_chance(r, 100))
        p->servers = 1 + sim_below(r, 3);
    uint32_t shard_bound = 1 + sim_below(r, p->workers * p->servers > 24 ? 1 : SIM_SHARDS_MAX);
    for (uint32_t i = 0; i < p->servers; i++)
        p->shards[i] = 1 + sim_below(r, shard_bound);
    static const int partitions[] = { 4096, 4096, 4096, 5000, 8192, 20000, 32768 };
    static const int credits[] = { 1, 2, 4, 8, 8, 0 };
    int partition_bytes = partitions[sim_below(r, 7)], credit = credits[sim_below(r, 6)];
    bool differ = sim_chance(r, 100);
    for (uint32_t i = 0; i < p->workers; i++) {
        p->partition_bytes[i] = differ ? partitions[sim_below(r, 7)] : partition_bytes;
        p->credit[i] = differ ? credits[sim_below(r, 6)] : credit;
    }
    p->deterministic = sim_chance(r, 200);
    p->death_limit_ms = 10000;
    p->start_limit_ms = 60000;
    p->stall_warn_ms = 10000;
    p->stall_limit_ms = 600000;
    p->close_limit_ms = 5000;
    p->start_spread_us = sim_chance(r, 100) ? 3000000 : 2000;
}

/* 0, 1, a few, about one partition, or several. */
static uint32_t draw_count(sim_random *r, uint32_t partition_bytes, uint32_t element_bytes)
{
    uint32_t whole = partition_bytes / element_bytes;
    switch (sim_below(r, 12)) {
    case 0:
        return 0;
    case 1:
        return 1;
    case 2:
    case 3:
    case 4:
        return 2 + sim_below(r, 60);
    case 5:
        return whole - 1 + sim_below(r, 3);
    case 6:
    case 7:
        return 2 * whole + sim_below(r, whole);
    case 8:
        return 1 + sim_below(r, 5 * whole);
    default:
        return 1 + sim_below(r, whole);
    }
}

static void draw_tensors(sim_plan *p, sim_random *r)
{
    p->tensor_count = 1 + sim_below(r, p->workers > 6 ? 4 : 9);
    p->rounds = 1 + sim_below(r, p->workers > 6 ? 4 : 8);
    p->exact = !sim_chance(r, 100);
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        sim_tensor_plan *t = &p->tensors[i];
        snprintf(t->name, sizeof t->name, "tensor.%u", i);
        t->dtype = (tally_dtype)sim_below(r, TALLY_DTYPE_COUNT);
        t->op = sim_chance(r, 500) ? TALLY_OP_SUM : (tally_op)sim_below(r, TALLY_OP_COUNT);
        t->count = draw_count(r, (uint32_t)p->partition_bytes[0], (uint32_t)tally_dtype_size(t->dtype));
        t->seed = sim_next(r);
    }
}

static void draw_programs(sim_plan *p, sim_random *r)
{
    static const uint32_t windows[] = { 0, 1, 1, 2, 3 };
    static const uint32_t bursts[] = { 1, 2, 4, 100, 100 };
    p->window = windows[sim_below(r, 5)];
    p->barrier_every = sim_chance(r, 150) ? 1 + sim_below(r, 3) : 0;
    p->broadcast_permille = sim_chance(r, 500) ? 0 : 300;
    p->in_place_permille = (uint32_t[]){ 0, 500, 1000 }[sim_below(r, 3)];
    p->burst = bursts[sim_below(r, 5)];
    p->priorities = (int)(sim_chance(r, 500) ? 0 : sim_below(r, 8));
    bool late = sim_chance(r, 300);
    int64_t think_us = (int64_t[]){ 0, 100, 1000, 5000 }[sim_below(r, 4)];
    for (uint32_t w = 0; w < p->workers; w++) {
        p->think_us[w] = sim_chance(r, 150) ? 5 * think_us + 100 : think_us;
        for (uint32_t t = 0; t < p->tensor_count; t++)
            p->declare_after[w][t] = (uint16_t)(late ? sim_below(r, p->tensor_count * p->rounds) : 0);
    }
    p->quiesce = sim_chance(r, 500);
}

static void draw_weather(sim_plan *p, sim_random *r)
{
    static const int64_t latencies[][2] = {
        { 20, 60 }, { 50, 500 }, { 100, 3000 }, { 1000, 1100 }, { 0, 10000 },
    };
    const int64_t *l = latencies[sim_below(r, 5)];
    p->weather = (sim_weather){ .latency_min_us = l[0], .latency_max_us = l[1] };
    if (sim_chance(r, 300)) {
        p->weather.tail_permille = 50;
        p->weather.tail_us = 20000;
    }
    if (sim_chance(r, 200))
        p->weather.us_per_kib = 1 + sim_below(r, 40);
    p->weather.depart_us = (int64_t[]){ 0, 20, 1000 }[sim_below(r, 3)];
}

/* ---- scenarios ---- */

static void plain(sim_plan *p, sim_random *r)
{
    (void)p;
    (void)r;
}

/* Little credit, workers apart and in different orders. */
static void credit(sim_plan *p, sim_random *r)
{
    int credits[] = { 1, 2, 4 };
    int credit_all = credits[sim_below(r, 3)];
    for (uint32_t w = 0; w < p->workers; w++) {
        p->credit[w] = credit_all;
        p->think_us[w] = (int64_t[]){ 0, 100, 3000 }[sim_below(r, 3)];
    }
    p->window = sim_chance(r, 700) ? 0 : 2;
    p->burst = sim_chance(r, 500) ? 100 : 2;
}

static void breaks(sim_plan *p, sim_random *r)
{
    p->breaks = 1 + sim_below(r, 12);
    p->control_breaks = sim_below(r, 3);
    p->fault_gap_us = 200 + sim_below(r, 30000);
    p->lossy = true;
    p->rounds += sim_below(r, 4);
    if (sim_chance(r, 500)) {
        p->weather.tail_permille = 200;
        p->weather.tail_us = 80000; /* some outlive the next session's HELLO */
    }
    p->limit_us = 600 * 1000000LL;
}

static void leave(sim_plan *p, sim_random *r)
{
    if (p->workers == 1)
        p->workers = 2;
    p->rounds += 2;
    p->leaver_count = 1 + (p->workers > 2 && sim_chance(r, 300));
    for (uint32_t i = 0; i < p->leaver_count; i++) {
        p->leavers[i] = sim_below(r, p->workers);
        p->leave_after[i] = sim_below(r, p->tensor_count * p->rounds + 1);
    }
    p->lossy = true;
    if (sim_chance(r, 300)) {
        p->breaks = 1 + sim_below(r, 6);
        p->control_breaks = sim_below(r, 3);
        p->fault_gap_us = 200 + sim_below(r, 30000);
        p->limit_us = 600 * 1000000LL;
    }
}

static void control_breaks(sim_plan *p, sim_random *r)
{
    if (sim_chance(r, 300))
        leave(p, r);
    p->breaks = 0;
    p->control_breaks = 1 + sim_below(r, 12);
    p->fault_gap_us = 200 + sim_below(r, 20000);
    p->barrier_every = sim_chance(r, 500) ? 1 : 0;
    if (sim_chance(r, 500)) {
        p->weather.tail_permille = 200;
        p->weather.tail_us = 80000; /* some outlive the next connection's REGISTER */
    }
    for (uint32_t w = 0; w < p->workers; w++)
        for (uint32_t t = 0; t < p->tensor_count; t++)
            p->declare_after[w][t] = (uint16_t)sim_below(r, p->tensor_count * p->rounds);
    p->limit_us = 600 * 1000000LL;
}

static void repeats(sim_plan *p, sim_random *r)
{
    p->weather.repeat_permille = (uint32_t[]){ 20, 100, 400 }[sim_below(r, 3)];
    p->breaks = sim_below(r, 4);
    p->fault_gap_us = 200 + sim_below(r, 30000);
    p->lossy = true;
    p->limit_us = 600 * 1000000LL;
}

static void losses(sim_plan *p, sim_random *r)
{
    p->weather.lose_permille = (uint32_t[]){ 5, 20, 100 }[sim_below(r, 3)];
    p->breaks = sim_below(r, 3);
    p->fault_gap_us = 200 + sim_below(r, 30000);
    p->lossy = true;
    p->quiesce = false; /* the last ACK or STABLE may be what was lost */
    p->barrier_every = 0;
    p->rounds = 1 + sim_below(r, 2);
    p->limit_us = 3000 * 1000000LL;
}

static void disagree(sim_plan *p, sim_random *r)
{
    if (p->workers == 1)
        p->workers = 2;
    p->rounds++;
    p->disagreement_count = 1 + sim_below(r, SIM_DISAGREEMENTS_MAX);
    for (uint32_t i = 0; i < p->disagreement_count; i++) {
        sim_disagreement *d = &p->disagreements[i];
        d->tensor = sim_below(r, p->tensor_count); /* one draw a statement: every compiler draws alike */
        d->round = 1 + sim_below(r, p->rounds - 1);
        d->worker = sim_below(r, p->workers);
        d->other_kind = sim_chance(r, 500);
    }
    p->lossy = true;
    if (sim_chance(r, 300)) {
        p->breaks = 1 + sim_below(r, 6);
        p->fault_gap_us = 200 + sim_below(r, 30000);
        p->limit_us = 600 * 1000000LL;
    }
}

static void conflict(sim_plan *p, sim_random *r)
{
    if (p->workers == 1)
        p->workers = 2;
    p->conflict_tensor = sim_below(r, p->tensor_count);
    p->conflict_worker = sim_below(r, p->workers);
    p->conflict_what = sim_below(r, 3);
    p->lossy = true;
    p->quiesce = false;
    if (sim_chance(r, 300)) {
        p->control_breaks = 1 + sim_below(r, 4);
        p->breaks = sim_below(r, 4);
        p->fault_gap_us = 200 + sim_below(r, 30000);
        p->limit_us = 600 * 1000000LL;
    }
}

/* A job that goes on until it fails. */
static void endless(sim_plan *p)
{
    p->rounds = UINT32_MAX;
    p->barrier_every = 0;
    p->quiesce = false;
    p->lossy = true;
    p->end = SIM_END_FAILED;
    p->window = 2;
    if (p->tensor_count > 4)
        p->tensor_count = 4;
    for (uint32_t w = 0; w < p->workers; w++) {
        p->think_us[w] = 60000;
        for (uint32_t t = 0; t < p->tensor_count; t++)
            p->declare_after[w][t] %= 20;
    }
}

static void draw_victim(sim_plan *p, sim_random *r)
{
    p->victim = (sim_victim)(SIM_WORKER + sim_below(r, 3));
    uint32_t count = p->victim == SIM_WORKER ? p->workers : p->victim == SIM_SERVER ? p->servers : 1;
    p->victim_index = sim_below(r, count);
}

static void death(sim_plan *p, sim_random *r)
{
    endless(p);
    p->death_limit_ms = (int[]){ 300, 600, 2000 }[sim_below(r, 3)];
    p->start_limit_ms = 30000;
    p->start_spread_us = 2000;
    draw_victim(p, r);
    p->death_us = sim_chance(r, 200) ? sim_between(r, 0, 30000) : sim_between(r, 30000, 500000);
    p->mute_death = sim_chance(r, 400);
    if (p->workers == 1 && p->victim == SIM_WORKER)
        p->workers = 2;
    p->second_death = p->victim == SIM_WORKER && sim_chance(r, 300);
    p->fails_at_once = true;
    p->limit_us = 120 * 1000000LL;
}

static void barriers(sim_plan *p, sim_random *r)
{
    p->barrier_every = 1;
    p->rounds = 2 + sim_below(r, 4);
    p->control_breaks = sim_below(r, 3);
    p->fault_gap_us = 200 + sim_below(r, 30000);
}

static void deterministic(sim_plan *p, sim_random *r)
{
    (void)r;
    p->deterministic = true;
    p->exact = false;
    p->twice = true;
}

static void priority(sim_plan *p, sim_random *r)
{
    p->gather = true;
    p->burst = 100;
    p->window = 0;
    p->priorities = 20;
    p->tensor_count = p->tensor_count < 3 ? 3 : p->tensor_count;
    int credits[] = { 1, 2, 4 };
    int credit_all = credits[sim_below(r, 3)];
    for (uint32_t w = 0; w < p->workers; w++) {
        p->credit[w] = credit_all;
        for (uint32_t t = 0; t < p->tensor_count; t++)
            p->declare_after[w][t] = 0;
    }
}

static void pauses(sim_plan *p, sim_random *r)
{
    p->pauses = 1 + sim_below(r, 8);
    p->death_limit_ms = 2000;
    p->pause_us = 1100000; /* less than silence, with a beat and the way there and back */
    p->fault_gap_us = 200 + sim_below(r, 300000);
    p->breaks = sim_chance(r, 300) ? sim_below(r, 4) : 0;
    p->lossy = p->breaks > 0;
    p->limit_us = 600 * 1000000LL;
}

/* One peer is 30 s late: its program, its process, or its links. Nothing may be sent twice for that. */
static void slow(sim_plan *p, sim_random *r)
{
    p->slow_worker = sim_below(r, p->workers);
    p->slow_what = sim_below(r, 3);
    p->death_limit_ms = 100000;
    p->start_limit_ms = 300000;
    p->close_limit_ms = 300000;
    p->stall_limit_ms = 3000000;
    p->start_spread_us = 2000;
    p->rounds = 1 + sim_below(r, p->slow_what == 2 ? 1 : 3);
    p->window = sim_chance(r, 500) ? 1 : 0;
    p->barrier_every = 0;
    p->limit_us = 20000 * 1000000LL;
}

static void stall(sim_plan *p, sim_random *r)
{
    endless(p);
    if (p->workers == 1)
        p->workers = 2;
    p->stall_warn_ms = 500;
    p->stall_limit_ms = 2000 + (int)sim_below(r, 3000);
    p->stalled_worker = sim_below(r, p->workers);
    p->stalled_after = sim_below(r, 20);
    p->sentence = "(TALLY_STALL_LIMIT_MS)";
    p->limit_us = 200 * 1000000LL;
}

static void unreachable(sim_plan *p, sim_random *r)
{
    endless(p);
    p->death_limit_ms = 1000;
    p->cut_worker = sim_below(r, p->workers);
    p->cut_server = sim_below(r, p->servers);
    p->cut_us = sim_chance(r, 300) ? 0 : sim_between(r, 0, 300000);
    p->sentence = "cannot reach server";
    p->limit_us = 120 * 1000000LL;
}

static void absent(sim_plan *p, sim_random *r)
{
    endless(p);
    p->start_limit_ms = 1000 + (int)sim_below(r, 3000);
    p->start_spread_us = 500000;
    p->absent_worker = sim_below(r, p->workers);
    p->sentence = "came within";
    p->limit_us = 120 * 1000000LL;
}

/* A death while programs end and close: the job fails or just ends well. */
static void late_death(sim_plan *p, sim_random *r)
{
    p->death_limit_ms = (int[]){ 300, 600, 2000 }[sim_below(r, 3)];
    p->close_limit_ms = 500 + (int)sim_below(r, 3000);
    draw_victim(p, r);
    p->start_spread_us = 2000;
    p->death_us = sim_between(r, 5000, 150000);
    p->mute_death = sim_chance(r, 400);
    p->closers_permille = sim_chance(r, 500) ? 300 : 0;
    p->lossy = true;
    p->quiesce = false;
    p->end = SIM_END_EITHER;
}

/* All that a healthy job has to bear, together. */
static void mixed(sim_plan *p, sim_random *r)
{
    barriers(p, r);
    pauses(p, r);
    repeats(p, r);
    breaks(p, r);
    p->barrier_every = sim_below(r, 3);
    p->weather.repeat_permille = sim_chance(r, 500) ? 0 : 50;
    if (sim_chance(r, 400))
        disagree(p, r);
    if (sim_chance(r, 300))
        leave(p, r);
    p->breaks = 1 + sim_below(r, 10);
    p->fault_gap_us = 1000 + sim_below(r, 60000);
    p->lossy = true;
    p->limit_us = 900 * 1000000LL;
}

/* Hundreds of small tensors, which travel in bundles. */
static void many(sim_plan *p, sim_random *r)
{
    p->workers = 1 + p->workers % 3;
    p->servers = 1 + sim_below(r, 2);
    p->tensor_count = 200 + sim_below(r, SIM_TENSORS_MAX - 200);
    p->rounds = 1 + sim_below(r, 2);
    p->burst = 1000;
    for (uint32_t t = 0; t < p->tensor_count; t++)
        p->tensors[t].count = sim_below(r, 40);
    for (uint32_t w = 0; w < p->workers; w++)
        memset(p->declare_after[w], 0, sizeof p->declare_after[w]);
    if (sim_chance(r, 300)) {
        p->breaks = 1 + sim_below(r, 3);
        p->fault_gap_us = 200 + sim_below(r, 10000);
        p->lossy = true;
        p->limit_us = 600 * 1000000LL;
    }
}

/* Workers close with work in flight. */
static void closers(sim_plan *p, sim_random *r)
{
    p->closers_permille = 500;
    p->quiesce = false;
    p->lossy = true;
    p->breaks = sim_chance(r, 300) ? sim_below(r, 4) : 0;
    p->fault_gap_us = 200 + sim_below(r, 30000);
    p->limit_us = 600 * 1000000LL;
}

const sim_scenario sim_scenarios[] = {
    { "plain", 14, plain },
    { "credit", 14, credit },
    { "breaks", 18, breaks },
    { "control-breaks", 6, control_breaks },
    { "repeats", 10, repeats },
    { "losses", 4, losses },
    { "disagree", 5, disagree },
    { "conflict", 4, conflict },
    { "death", 5, death },
    { "leave", 7, leave },
    { "barriers", 3, barriers },
    { "deterministic", 3, deterministic },
    { "priority", 3, priority },
    { "pauses", 4, pauses },
    { "slow", 3, slow },
    { "stall", 1, stall },
    { "unreachable", 1, unreachable },
    { "absent", 1, absent },
    { "closers", 3, closers },
    { "late-death", 4, late_death },
    { "mixed", 10, mixed },
    { "many", 1, many },
};
const uint32_t sim_scenario_count = sizeof sim_scenarios / sizeof *sim_scenarios;

const sim_scenario *sim_scenario_find(const char *name)
{
    for (uint32_t i = 0; i < sim_scenario_count; i++)
        if (strcmp(sim_scenarios[i].name, name) == 0)
            return &sim_scenarios[i];
    return NULL;
}

static const sim_scenario *draw_scenario(sim_random *r)
{
    uint32_t total = 0, i = 0;
    for (uint32_t k = 0; k < sim_scenario_count; k++)
        total += sim_scenarios[k].weight;
    uint32_t at = sim_below(r, total);
    while (at >= sim_scenarios[i].weight)
        at -= sim_scenarios[i++].weight;
    return &sim_scenarios[i];
}

void sim_plan_make(sim_plan *p, uint64_t seed, const sim_scenario *scenario)
{
    sim_random r = { sim_mix(seed ^ 0x5eed5eed) };
    *p = (sim_plan){ .seed = seed };
    const sim_scenario *drawn = draw_scenario(&r);
    p->scenario = scenario ? scenario : drawn;
    p->slow_worker = p->stalled_worker = p->cut_worker = p->absent_worker = SIM_NOBODY;
    p->conflict_worker = p->conflict_tensor = SIM_NOBODY;
    p->limit_us = 120 * 1000000LL;
    draw_cluster(p, &r);
    draw_tensors(p, &r);
    draw_programs(p, &r);
    draw_weather(p, &r);
    uint32_t drawn_tensors = p->tensor_count;
    p->scenario->shape(p, &r);
    for (uint32_t i = 0; i < p->servers; i++)
        if (p->shards[i] == 0)
            p->shards[i] = 1;
    for (uint32_t w = 0; w < p->workers; w++) /* where a scenario asked for more workers than were drawn */
        if (p->partition_bytes[w] == 0) {
            p->partition_bytes[w] = p->partition_bytes[0];
            p->credit[w] = p->credit[0];
        }
    for (uint32_t t = 0; t < p->tensor_count; t++)
        if (!p->tensors[t].name[0]) {
            uint32_t count = p->tensors[t].count;
            p->tensors[t] = p->tensors[t % drawn_tensors];
            p->tensors[t].count = p->tensor_count > 100 ? count : p->tensors[t].count;
            p->tensors[t].seed = sim_next(&r);
            snprintf(p->tensors[t].name, sizeof p->tensors[t].name, "tensor.%u", t);
        }
}
