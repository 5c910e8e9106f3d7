#include "tests/sim/cluster.h"

#include <stdlib.h>
#include <string.h>

#define QUIET_LOOK_US 20000
#define QUIET_LIMIT_US (60 * 1000000LL)
#define EVENTS_MAX 6000000
#define SLACK_US 100000
#define RECOVER_US 1000000

/* ---- small things ---- */

sim_outcome *sim_cluster_outcome(sim_cluster *c, uint32_t tensor, uint64_t round)
{
    uint32_t room = c->outcome_room[tensor];
    if (round > room) {
        uint32_t more = room ? 2 * room : 8;
        while (more < round)
            more *= 2;
        c->outcomes[tensor] = realloc(c->outcomes[tensor], more * sizeof(sim_outcome));
        if (!c->outcomes[tensor])
            abort();
        memset(c->outcomes[tensor] + room, 0, (more - room) * sizeof(sim_outcome));
        c->outcome_room[tensor] = more;
    }
    return &c->outcomes[tensor][round - 1];
}

bool sim_cluster_unheard(const sim_cluster *c, const char *sentence)
{
    return c->plan->victim == SIM_SCHEDULER && strncmp(sentence, "no answer from the scheduler", 28) == 0;
}

void sim_cluster_failure(sim_cluster *c, const char *who, const char *sentence)
{
    if (sim_cluster_unheard(c, sentence))
        return;
    if (c->plan->end == SIM_END_GOOD)
        sim_fail(&c->s, "%s: the job failed: %s", who, sentence);
    else if (!c->sentence[0])
        snprintf(c->sentence, sizeof c->sentence, "%s", sentence);
    else if (strcmp(c->sentence, sentence) != 0)
        sim_fail(&c->s, "%s words the failure \"%s\", others \"%s\"", who, sentence, c->sentence);
    if (c->plan->sentence && !strstr(sentence, c->plan->sentence))
        sim_fail(&c->s, "%s fails with \"%s\" and not for \"%s\"", who, sentence, c->plan->sentence);
}

/* Lines that a healthy job never writes. */
static void log_line(void *arg, tally_log_level level, const char *line)
{
    sim_cluster *c = arg;
    (void)level;
    sim_trace(&c->s, "log: %s", line);
    static const char *const mistakes[] = { " pushed round ", "dropped ", "only the scheduler sends" };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++)
        if (strstr(line, mistakes[i]))
            sim_fail(&c->s, "log: %s", line);
}

static void set_config(sim_cluster *c, tly_config *config, tly_log *log, tly_role role, uint32_t index)
{
    const sim_plan *p = c->plan;
    uint32_t worker = role == TLY_ROLE_WORKER ? index : 0;
    *config = (tly_config){
        .role = role,
        .root_port = 9000,
        .num_worker = (int)p->workers,
        .num_server = (int)p->servers,
        .worker_id = (int)worker,
        .local_size = 1,
        .partition_bytes = p->partition_bytes[worker],
        .credit = p->credit[worker],
        .log_level = TALLY_LOG_WARN,
        .deterministic = p->deterministic,
        .death_limit_ms = p->death_limit_ms,
        .start_limit_ms = p->start_limit_ms,
        .stall_warn_ms = p->stall_warn_ms,
        .stall_limit_ms = p->stall_limit_ms,
        .close_limit_ms = p->close_limit_ms,
    };
    log->level = c->s.verbose ? TALLY_LOG_DEBUG : TALLY_LOG_WARN;
    log->sink = log_line;
    log->sink_arg = c;
}

/* ---- start ---- */

static void start_scheduler(sim *s, void *arg)
{
    (void)s;
    sim_scheduler *d = arg;
    if (!d->thread.dead)
        sim_scheduler_start(d);
}

static void start_server(sim *s, void *arg)
{
    (void)s;
    sim_server *v = arg;
    if (!v->thread.dead)
        sim_server_start(v);
}

static void start_worker(sim *s, void *arg)
{
    (void)s;
    sim_worker *w = arg;
    if (!w->engine.dead)
        sim_worker_start(w);
}

static void build(sim_cluster *c)
{
    const sim_plan *p = c->plan;
    sim *s = &c->s;
    set_config(c, &c->scheduler.config, &c->scheduler.log, TLY_ROLE_SCHEDULER, 0);
    sim_scheduler_init(&c->scheduler, c);
    sim_at(s, sim_between(&s->weather, 0, p->start_spread_us), start_scheduler, &c->scheduler);
    for (uint32_t i = 0; i < p->servers; i++) {
        set_config(c, &c->servers[i].config, &c->servers[i].log, TLY_ROLE_SERVER, i);
        sim_server_init(&c->servers[i], c, i);
        sim_at(s, sim_between(&s->weather, 0, p->start_spread_us), start_server, &c->servers[i]);
    }
    for (uint32_t i = 0; i < p->workers; i++) {
        set_config(c, &c->workers[i].config, &c->workers[i].log, TLY_ROLE_WORKER, i);
        sim_worker_init(&c->workers[i], c, i);
        if (i != p->absent_worker)
            sim_at(s, sim_between(&s->weather, 0, p->start_spread_us), start_worker, &c->workers[i]);
    }
}

/* ---- faults ---- */

static void break_one(sim_cluster *c, bool data_plane)
{
    uint32_t count = 0, chosen = 0;
    for (uint32_t i = 0; i < c->net.conn_count; i++) {
        const sim_conn *n = c->net.conns[i];
        if (n->up && !n->broken && n->client_open && n->listener->data_plane == data_plane &&
            sim_below(&c->s.weather, ++count) == 0)
            chosen = i;
    }
    if (count == 0)
        return;
    sim_conn_break(c->net.conns[chosen], false);
    if (data_plane)
        c->breaks--;
    else
        c->control_breaks--;
}

static sim_thread *any_thread(sim_cluster *c)
{
    sim_random *r = &c->s.weather;
    uint32_t at = sim_below(r, c->plan->workers + c->plan->servers + 1);
    if (at < c->plan->workers)
        return &c->workers[at].engine;
    if (at == c->plan->workers + c->plan->servers)
        return &c->scheduler.thread;
    sim_server *v = &c->servers[at - c->plan->workers];
    return sim_chance(r, 500) ? &v->thread : &v->shards[sim_below(r, v->shard_count)].thread;
}

static void fault(sim *s, void *arg)
{
    sim_cluster *c = arg;
    if (c->breaks > 0 && (c->control_breaks == 0 || sim_chance(&s->weather, 700)))
        break_one(c, true);
    else if (c->control_breaks > 0)
        break_one(c, false);
    if (c->pauses > 0) {
        sim_thread *t = any_thread(c);
        c->pauses--;
        if (s->now > t->paused_until + RECOVER_US) { /* two pauses in a row are one that is too long */
            sim_trace(s, "%s is stopped", t->name);
            sim_pause(t, sim_between(&s->weather, 0, c->plan->pause_us));
        }
    }
    if (c->breaks + c->control_breaks + c->pauses > 0)
        sim_at(s, s->now + sim_between(&s->weather, 0, 2 * c->plan->fault_gap_us), fault, c);
}

static void death(sim *s, void *arg)
{
    sim_cluster *c = arg;
    const sim_plan *p = c->plan;
    c->failing_at = s->now;
    if (p->victim == SIM_WORKER) {
        sim_trace(s, "worker %u dies", p->victim_index);
        sim_worker_kill(&c->workers[p->victim_index], p->mute_death);
    } else if (p->victim == SIM_SERVER) {
        sim_trace(s, "server %u dies", p->victim_index);
        sim_server_kill(&c->servers[p->victim_index], p->mute_death);
    } else {
        sim_trace(s, "the scheduler dies");
        c->scheduler.over = c->scheduler.thread.dead = true;
        sim_net_unbind(&c->net, &c->scheduler.listener, p->mute_death);
    }
}

/* Two die: which one the job names is open, but all name the same. */
static void second_death(sim *s, void *arg)
{
    sim_cluster *c = arg;
    sim_trace(s, "server 0 dies too");
    sim_server_kill(&c->servers[0], sim_chance(&s->weather, 500));
}

/* One worker loses its way to one server. */
static void cut(sim *s, void *arg)
{
    sim_cluster *c = arg;
    sim_worker *w = &c->workers[c->plan->cut_worker];
    c->failing_at = s->now;
    for (uint32_t i = 0; i < w->link_count; i++) {
        sim_link *link = &w->links[i];
        bool there = false;
        for (uint32_t k = 0; k < c->servers[c->plan->cut_server].shard_count; k++)
            there |= link->to == &c->servers[c->plan->cut_server].shards[k].listener;
        if (!there)
            continue;
        link->blocked = true;
        if (link->conn && !link->conn->up)
            link->conn->blocked_until = SIM_NEVER;
        else if (link->conn)
            sim_conn_break(link->conn, false);
    }
}

static void slow(sim *s, void *arg)
{
    sim_cluster *c = arg;
    sim_worker *w = &c->workers[c->plan->slow_worker];
    sim_trace(s, "worker %u is stopped for 30 s", w->rank);
    sim_pause(&w->engine, 30000000);
    sim_pause(&w->app, 30000000);
}

static void plan_faults(sim_cluster *c)
{
    const sim_plan *p = c->plan;
    sim *s = &c->s;
    c->breaks = p->breaks;
    c->control_breaks = p->control_breaks;
    c->pauses = p->pauses;
    c->failing_at = SIM_NEVER;
    if (p->breaks + p->control_breaks + p->pauses > 0)
        sim_at(s, sim_between(&s->weather, 0, p->fault_gap_us), fault, c);
    if (p->victim != SIM_NO_VICTIM)
        sim_at(s, p->death_us, death, c);
    if (p->second_death)
        sim_at(s, p->death_us + sim_between(&s->weather, 0, 20000), second_death, c);
    if (p->cut_worker != SIM_NOBODY)
        sim_at(s, p->cut_us, cut, c);
    if (p->slow_worker != SIM_NOBODY && p->slow_what == 1)
        sim_at(s, sim_between(&s->weather, 3000, 20000), slow, c);
}

/* ---- the end ---- */

/* All programs are done: nothing that was kept may stay kept. */
static void look_whether_quiet(sim *s, void *arg)
{
    sim_cluster *c = arg;
    const sim_plan *p = c->plan;
    if (c->apps_done < p->workers) {
        c->quiet_by = s->now + QUIET_LIMIT_US;
        sim_at(s, s->now + QUIET_LOOK_US, look_whether_quiet, c);
        return;
    }
    char what[128] = "";
    for (uint32_t i = 0; i < p->workers; i++) {
        const tly_pipeline *pipeline = c->workers[i].pipeline;
        bool holds = !tly_pipeline_settled(pipeline) || tly_pipeline_inputs_out(pipeline) > 0;
        if (c->workers[i].phase == SIM_IN && holds)
            snprintf(what, sizeof what, "worker %u", i);
    }
    for (uint32_t i = 0; i < p->servers; i++)
        for (uint32_t k = 0; k < c->servers[i].shard_count; k++) {
            tly_rounds_stats stats = { 0 };
            if (c->servers[i].shards[k].rounds)
                tly_rounds_stats_get(c->servers[i].shards[k].rounds, &stats);
            if (stats.log_count > 0 || stats.open > 0)
                snprintf(what, sizeof what, "server %u shard %u (log %llu open %llu)", i, k,
                         (unsigned long long)stats.log_count, (unsigned long long)stats.open);
        }
    if (!what[0]) {
        c->quiet = true;
        for (uint32_t i = 0; i < p->workers; i++)
            sim_notify(&c->workers[i].app);
    } else if (s->now > c->quiet_by) {
        sim_fail(s, "%s keeps something though all is done", what);
    } else {
        sim_at(s, s->now + QUIET_LOOK_US, look_whether_quiet, c);
    }
}

/* Is every process over that can be? what names one that is not. */
static bool is_over(const sim_cluster *c, char *what, size_t room)
{
    what[0] = 0;
    for (uint32_t i = 0; i < c->plan->workers; i++) {
        const sim_worker *w = &c->workers[i];
        if (w->killed || w->phase == SIM_GONE || i == c->plan->absent_worker)
            continue;
        size_t at = strlen(what);
        if (at + 200 < room)
            at += (size_t)snprintf(what + at, room - at,
                                   " worker %u (phase %d, context %d, membership %d, open %u%s)", i, w->phase,
                                   w->context, w->control.membership.state, w->open,
                                   w->in_barrier ? ", in a barrier" : "");
        if (at + 200 < room)
            sim_app_describe(w, what + at, room - at);
    }
    for (uint32_t i = 0; i < c->plan->servers; i++)
        if (!c->servers[i].over && strlen(what) + 40 < room)
            snprintf(what + strlen(what), room - strlen(what), " server %u", i);
    if (!c->scheduler.over && strlen(what) + 40 < room)
        snprintf(what + strlen(what), room - strlen(what), " the scheduler");
    return !what[0];
}

static void check_good_end(sim_cluster *c)
{
    const sim_plan *p = c->plan;
    sim *s = &c->s;
    sim_tap all = { 0 };
    if (c->scheduler.exit_status != 0)
        sim_fail(s, "the scheduler ends with status %d: %s", c->scheduler.exit_status, c->scheduler.failure);
    for (uint32_t i = 0; i < p->servers; i++)
        if (c->servers[i].exit_status != 0)
            sim_fail(s, "server %u ends with status %d", i, c->servers[i].exit_status);
    for (uint32_t i = 0; i < p->workers; i++) {
        const sim_worker *w = &c->workers[i];
        if (w->control.membership.state != TLY_MEMBER_LEFT)
            sim_fail(s, "worker %u ends as a member in state %d", i, w->control.membership.state);
        if (w->open > 0 && w->leave_after == UINT32_MAX)
            sim_fail(s, "worker %u has %u requests open", i, w->open);
        if (p->quiesce && !w->settled_in_time)
            sim_fail(s, "worker %u leaves unsettled", i);
        all.pushed_bytes += w->tap.pushed_bytes;
        all.needed_push_bytes += w->tap.needed_push_bytes;
        all.needed_result_bytes += w->tap.needed_result_bytes;
    }
    if (!p->lossy && all.pushed_bytes * 100 > all.needed_push_bytes * 101)
        sim_fail(s, "%llu bytes were pushed where %llu are needed", (unsigned long long)all.pushed_bytes,
                 (unsigned long long)all.needed_push_bytes);
    if (!p->lossy && c->result_bytes * 100 > all.needed_result_bytes * 101)
        sim_fail(s, "%llu bytes of results were sent where %llu are needed",
                 (unsigned long long)c->result_bytes, (unsigned long long)all.needed_result_bytes);
}

/* Everybody knows within the limit, and closing is bounded. */
static void check_failed_end(sim_cluster *c)
{
    const sim_plan *p = c->plan;
    sim *s = &c->s;
    sim_time limit = (sim_time)p->death_limit_ms * SIM_MS + SLACK_US;
    for (uint32_t i = 0; i < p->workers; i++) {
        const sim_worker *w = &c->workers[i];
        if (w->killed || i == p->absent_worker)
            continue;
        if (!w->failed_at)
            sim_fail(s, "worker %u does not know that the job failed", i);
        else if (p->fails_at_once && w->failed_at > c->failing_at + limit && c->failing_at > 200000)
            sim_fail(s, "worker %u knows after %lld ms of what happened", i,
                     (long long)(w->failed_at - c->failing_at) / SIM_MS);
    }
    if (c->scheduler.started && !c->scheduler.thread.dead && c->scheduler.exit_status == 0)
        sim_fail(s, "the scheduler ends well though the job failed");
}

static void check_end(sim_cluster *c)
{
    const sim_plan *p = c->plan;
    for (uint32_t i = 0; i < p->servers; i++)
        for (uint32_t k = 0; k < c->servers[i].shard_count; k++) {
            tly_rounds_stats stats = { 0 };
            if (c->servers[i].shards[k].rounds)
                tly_rounds_stats_get(c->servers[i].shards[k].rounds, &stats);
            if (stats.dropped > 0)
                sim_fail(&c->s, "server %u shard %u dropped %llu messages", i, k,
                         (unsigned long long)stats.dropped);
        }
    for (uint32_t i = 0; i < p->workers; i++) {
        const sim_worker *w = &c->workers[i];
        sim_time limit = (sim_time)p->close_limit_ms * SIM_MS + SLACK_US;
        if (w->phase == SIM_GONE && w->gone_at - w->closed_at > limit + p->pause_us)
            sim_fail(&c->s, "worker %u needs %lld ms to close", i,
                     (long long)(w->gone_at - w->closed_at) / SIM_MS);
    }
    if (p->end == SIM_END_GOOD)
        check_good_end(c);
    else if (p->end == SIM_END_FAILED)
        check_failed_end(c);
}

static void take_down(sim_cluster *c)
{
    for (size_t i = 0; i < c->s.event_count; i++)
        sim_net_drop_event(&c->s.events[i]);
    sim_net_clear(&c->net);
    for (uint32_t i = 0; i < c->plan->workers; i++)
        sim_worker_fini(&c->workers[i]);
    for (uint32_t i = 0; i < c->plan->servers; i++)
        sim_server_fini(&c->servers[i]);
    sim_scheduler_fini(&c->scheduler);
    sim_net_fini(&c->net);
    for (uint32_t i = 0; i < c->plan->tensor_count; i++) {
        for (uint32_t k = 0; k < c->outcome_room[i]; k++) {
            free(c->outcomes[i][k].value);
            free(c->outcomes[i][k].sentence);
        }
        free(c->outcomes[i]);
    }
    sim_fini(&c->s);
}

void sim_run(const sim_plan *plan, uint64_t weather, bool verbose, sim_report *report)
{
    char what[1800];
    sim_cluster *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    sim *s = &c->s;
    c->plan = plan;
    s->verbose = verbose;
    s->weather = (sim_random){ sim_mix(plan->seed * 31 + weather) };
    c->net.s = s;
    c->net.weather = plan->weather;
    build(c);
    plan_faults(c);
    if (plan->quiesce)
        look_whether_quiet(s, c);
    while (!s->failed && !is_over(c, what, sizeof what)) {
        for (int i = 0; i < 64 && !s->failed; i++)
            if (!sim_step(s))
                break;
        if (s->event_count == 0 || s->now > plan->limit_us || s->events_done > EVENTS_MAX) {
            if (!is_over(c, what, sizeof what))
                sim_fail(s, "stuck after %.3f s and %llu events:%s", (double)s->now / 1e6,
                         (unsigned long long)s->events_done, what);
        }
    }
    if (!s->failed)
        check_end(c);
    *report = (sim_report){
        .failed = s->failed,
        .hash = c->hash,
        .events = s->events_done,
        .virtual_us = s->now,
    };
    snprintf(report->reason, sizeof report->reason, "%s", s->reason);
    s->failed = true; /* what taking it down brings about is no mistake */
    take_down(c);
    free(c);
}
