#include "tests/sim/cluster.h"

#include <stdlib.h>
#include <string.h>

#define RECEIVE_BATCH 32
#define LINGER_MS 1000

enum { LETTER_DECLARE, LETTER_ISSUE, LETTER_BARRIER, LETTER_RELEASED, LETTER_CLOSE };

static void post(sim_worker *w, int type, void *what)
{
    if (w->letter_count == w->letter_room) {
        w->letter_room = w->letter_room ? 2 * w->letter_room : 32;
        w->letters = realloc(w->letters, w->letter_room * sizeof *w->letters);
        if (!w->letters)
            abort();
    }
    w->letters[w->letter_count++] = (sim_letter){ type, what };
    sim_notify(&w->engine);
}

static tly_time sooner(tly_time a, tly_time b)
{
    return a < b ? a : b;
}

/* ---- phases, as in engine.c ---- */

static void let_go(sim_worker *w)
{
    w->phase = SIM_LET_GO;
    for (uint32_t i = 0; i < w->link_count; i++)
        sim_link_close(&w->links[i], 0);
    for (tly_out *out; (out = tly_out_pop(tly_pipeline_out(w->pipeline)));)
        tly_out_free(out);
    sim_control_close(&w->control, LINGER_MS);
}

static void failed(sim_worker *w, tly_time now)
{
    tly_membership *m = &w->control.membership;
    sim_trace(w->engine.s, "%s fails: %s", w->engine.name, m->failure);
    if (w->context == SIM_CONTEXT_JOINING || w->context == SIM_CONTEXT_IN) {
        w->context = SIM_CONTEXT_FAILED;
        w->failure_status = m->failure_status;
        snprintf(w->failure, sizeof w->failure, "%s", m->failure);
        w->failed_at = w->engine.s->now;
    }
    sim_cluster_failure(w->cluster, w->engine.name, m->failure);
    tly_pipeline_fail(w->pipeline, m->failure_status, m->failure);
    tly_membership_leave(m, 0, now);
    sim_control_flush(&w->control);
    let_go(w);
    sim_notify(&w->app);
}

static void joined(sim_worker *w, tly_time now)
{
    sim *s = w->engine.s;
    if (tly_pipeline_install(w->pipeline, now) != TALLY_OK) {
        sim_fail(s, "%s cannot install the epoch", w->engine.name);
        return;
    }
    w->link_count = tly_pipeline_link_count(w->pipeline);
    w->links = calloc(w->link_count, sizeof *w->links);
    w->meters = calloc(w->link_count, sizeof *w->meters);
    if (!w->links || !w->meters)
        abort();
    const sim_plan *p = w->cluster->plan;
    for (uint32_t i = 0; i < w->link_count; i++) {
        sim_listener *to = sim_server_find(w->cluster, tly_pipeline_link_endpoint(w->pipeline, i));
        sim_link *link = &w->links[i];
        link->blocked = w->rank == p->cut_worker && s->now >= p->cut_us &&
                        to->owner->name[7] == (char)('0' + p->cut_server);
        if (w->rank == p->slow_worker && p->slow_what == 2 && sim_below(&w->dice, 2))
            link->extra_us = 30000000 / 2;
        sim_link_open(link, &w->cluster->net, &w->engine, to);
    }
    w->phase = SIM_IN;
    if (w->context == SIM_CONTEXT_JOINING)
        w->context = SIM_CONTEXT_IN;
    sim_trace(s, "%s is in", w->engine.name);
    sim_notify(&w->app);
}

static void begin_close(sim_worker *w, tly_time now)
{
    w->closing = true;
    w->close_by = now + w->config.close_limit_ms;
    tly_pipeline_cancel(w->pipeline, TALLY_ECLOSED, "the context was closed while the request was in flight");
    if (w->phase == SIM_LET_GO)
        return;
    tly_pipeline_hurry(w->pipeline);
    w->phase = SIM_SETTLING;
}

static tly_time advance(sim_worker *w, tly_time now)
{
    tly_membership *m = &w->control.membership;
    if (w->phase == SIM_LET_GO)
        return TLY_NEVER;
    if (tly_pipeline_out_of_memory(w->pipeline))
        sim_fail(w->engine.s, "%s says that it is out of memory", w->engine.name);
    if (m->state == TLY_MEMBER_FAILED) {
        failed(w, now);
        return now;
    }
    if (w->phase == SIM_JOINING && m->state == TLY_MEMBER_IN) {
        joined(w, now);
        return now;
    }
    tly_time half = w->close_by - w->config.close_limit_ms / 2;
    bool settled = w->phase == SIM_SETTLING && tly_pipeline_settled(w->pipeline);
    if (w->phase == SIM_SETTLING && (now >= half || settled)) {
        w->settled_in_time = settled;
        sim_trace(w->engine.s, "%s leaves%s", w->engine.name, settled ? "" : " unsettled");
        tly_membership_leave(m, (int)(w->close_by > now ? w->close_by - now : 0), now);
        w->phase = SIM_LEAVING;
        return now;
    }
    if (w->phase == SIM_SETTLING)
        return half;
    if (w->phase == SIM_LEAVING && (m->state == TLY_MEMBER_LEFT || m->state == TLY_MEMBER_ENDED)) {
        sim_control_flush(&w->control);
        let_go(w);
        return now;
    }
    return TLY_NEVER;
}

/* ---- events ---- */

static void handle_letter(sim_worker *w, const sim_letter *letter, tly_time now)
{
    switch (letter->type) {
    case LETTER_DECLARE:
        tly_pipeline_declare(w->pipeline, letter->what, now);
        break;
    case LETTER_ISSUE:
        tly_pipeline_issue(w->pipeline, letter->what, now);
        break;
    case LETTER_BARRIER:
        tly_pipeline_barrier(w->pipeline, tly_pipeline_barrier_released(w->pipeline) + 1);
        break;
    case LETTER_RELEASED:
        tly_pipeline_released(w->pipeline, letter->what);
        break;
    case LETTER_CLOSE:
        begin_close(w, now);
        break;
    }
}

static void handle_letters(sim_worker *w, tly_time now)
{
    uint32_t count = w->letter_count; /* what comes meanwhile waits for the next turn */
    sim_letter *letters = w->letters;
    w->letters = NULL;
    w->letter_count = w->letter_room = 0;
    for (uint32_t i = 0; i < count; i++)
        handle_letter(w, &letters[i], now);
    free(letters);
}

static void released(void *arg, tly_input *input)
{
    post(arg, LETTER_RELEASED, input);
}

static void control(void *arg, const tly_ctl *message, tly_time now)
{
    sim_worker *w = arg;
    if (w->phase == SIM_JOINING && w->control.membership.state == TLY_MEMBER_IN)
        joined(w, now);
    if (w->phase != SIM_JOINING)
        tly_pipeline_control(w->pipeline, message, now);
}

static bool link_messages(sim_worker *w, uint32_t i, tly_time now)
{
    sim_link *link = &w->links[i];
    for (int n = 0; n < RECEIVE_BATCH && link->conn; n++) {
        sim_message *m = sim_conn_recv(link->conn);
        if (!m)
            return false;
        sim_tap_trace(w->engine.s, w->engine.name, "takes", m->conn->id, m->head, m->head_len_bytes, m->body);
        sim_tap_received(w, i, m);
        tly_pipeline_message(w->pipeline, i, m->head, m->head_len_bytes, m->body, now);
        sim_message_free(m);
    }
    return link->conn && link->conn->inbox.first;
}

static bool handle_network(sim_worker *w, tly_time now)
{
    bool more = sim_control_handle(&w->control, now);
    for (uint32_t i = 0; i < w->link_count; i++) {
        tly_net_event event;
        while ((event = sim_link_event(&w->links[i], now)) != TLY_NET_NONE) {
            if (event == TLY_NET_UP)
                tly_pipeline_connected(w->pipeline, i, now);
            else if (event == TLY_NET_RETRY)
                tly_pipeline_trouble(w->pipeline, i, "Connection refused");
        }
        more |= link_messages(w, i, now);
    }
    return more;
}

static tly_time tend(sim_worker *w, tly_time now)
{
    if (w->phase == SIM_LET_GO)
        return TLY_NEVER;
    bool renewed;
    tly_time due = sim_control_run(&w->control, now, &renewed);
    if (renewed)
        tly_pipeline_scheduler_reconnected(w->pipeline);
    for (uint32_t i = 0; i < w->link_count; i++) {
        if (sim_link_renew(&w->links[i], now)) {
            sim_trace(w->engine.s, "%s connects link %u anew", w->engine.name, i);
            tly_pipeline_reconnect(w->pipeline, i, now);
        }
        due = sooner(due, sim_link_due(&w->links[i]));
    }
    return due;
}

static void flush(sim_worker *w)
{
    sim_control_flush(&w->control);
    for (tly_out *out; (out = tly_out_pop(tly_pipeline_out(w->pipeline)));) {
        sim_link *link = &w->links[out->link];
        sim_tap_push(w, out);
        if (link->conn) {
            sim_tap_trace(w->engine.s, w->engine.name, "sends", link->conn->id, out->head,
                          out->head_len_bytes, out->body);
            sim_conn_send(link->conn, out);
        } else {
            tly_out_free(out);
        }
    }
    sim_tap_turn_end(w);
    for (tly_exchange *x; (x = tly_pipeline_ended(w->pipeline));) {
        sim_request *r = (sim_request *)x;
        if (w->ended_count == w->ended_room) {
            w->ended_room = w->ended_room ? 2 * w->ended_room : 16;
            w->ended = realloc(w->ended, w->ended_room * sizeof(sim_request *));
            if (!w->ended)
                abort();
        }
        w->ended[w->ended_count++] = r;
        sim_notify(&w->app);
    }
}

static void publish(sim_worker *w)
{
    uint64_t barrier = tly_pipeline_barrier_released(w->pipeline);
    int left = tly_pipeline_left_rank(w->pipeline);
    if (barrier != w->barrier_released || left != w->left_rank)
        sim_notify(&w->app);
    w->barrier_released = barrier;
    w->left_rank = left;
}

static void gone(sim_worker *w)
{
    w->phase = SIM_GONE;
    w->gone_at = w->engine.s->now;
    sim_trace(w->engine.s, "%s is gone", w->engine.name);
    sim_notify(&w->app);
}

static void run(sim_thread *thread, tly_time now)
{
    sim_worker *w = (sim_worker *)thread;
    bool more = false;
    if (w->phase == SIM_GONE)
        return;
    handle_letters(w, now);
    if (w->phase != SIM_LET_GO)
        more = handle_network(w, now);
    if (w->closing && w->phase == SIM_LET_GO && tly_pipeline_inputs_out(w->pipeline) == 0) {
        flush(w);
        gone(w);
        return;
    }
    tly_time deadline = tend(w, now); /* first: it may find out what advance then acts on */
    deadline = sooner(deadline, advance(w, now));
    if (w->phase != SIM_LET_GO)
        deadline = sooner(deadline, tly_pipeline_run(w->pipeline, now));
    flush(w);
    publish(w);
    if (more)
        sim_wake(thread, thread->s->now + 1);
    sim_sleep(thread, deadline);
}

/* ---- the calls ---- */

tally_status sim_call_usable(const sim_worker *w, const char **sentence)
{
    *sentence = w->failure;
    if (w->context == SIM_CONTEXT_IN)
        return TALLY_OK;
    return w->context == SIM_CONTEXT_FAILED ? w->failure_status : TALLY_ECLOSED;
}

void sim_call_declare(sim_worker *w, sim_app_tensor *t)
{
    post(w, LETTER_DECLARE, &t->core);
}

void sim_call_issue(sim_worker *w, sim_app_tensor *t)
{
    post(w, LETTER_ISSUE, &t->request.exchange);
}

void sim_call_barrier(sim_worker *w)
{
    if (w->barrier_seq == w->barrier_released) {
        w->barrier_seq++;
        post(w, LETTER_BARRIER, NULL);
    }
}

void sim_call_close(sim_worker *w)
{
    w->context = SIM_CONTEXT_CLOSING;
    w->closed_at = w->engine.s->now;
    post(w, LETTER_CLOSE, NULL);
}

/* ---- life ---- */

void sim_worker_init(sim_worker *w, sim_cluster *cluster, uint32_t rank)
{
    w->cluster = cluster;
    w->rank = rank;
    w->left_rank = -1;
    sim_thread_init(&w->engine, &cluster->s, run);
    sim_thread_init(&w->app, &cluster->s, sim_app_run);
    snprintf(w->engine.name, sizeof w->engine.name, "worker %u", rank);
    snprintf(w->app.name, sizeof w->app.name, "program %u", rank);
    sim_app_init(w);
}

void sim_worker_start(sim_worker *w)
{
    w->control.on_control = control;
    w->control.arg = w;
    tly_membership *m = &w->control.membership;
    sim_control_init(&w->control, w->cluster, &w->engine, &w->config, &w->log, TLY_ROLE_WORKER,
                     2000 + w->rank, 0, NULL);
    if (tly_pipeline_create(&w->config, &w->log, m, released, w, &w->pipeline) != TALLY_OK)
        abort();
    w->started = true;
    sim_wake(&w->engine, w->cluster->s.now);
}

void sim_worker_kill(sim_worker *w, bool mute)
{
    w->killed = true;
    w->engine.dead = w->app.dead = true;
    sim_net_kill(&w->cluster->net, &w->engine, mute);
}

/* After the network has let go of everything. */
void sim_worker_fini(sim_worker *w)
{
    if (w->started) {
        for (tly_out *out; (out = tly_out_pop(tly_pipeline_out(w->pipeline)));)
            tly_out_free(out);
        for (uint32_t i = 0; i < w->letter_count; i++)
            if (w->letters[i].type == LETTER_RELEASED)
                tly_pipeline_released(w->pipeline, w->letters[i].what);
        w->letter_count = 0;
        tly_pipeline_cancel(w->pipeline, TALLY_ECLOSED, "the simulation ends");
        for (tly_exchange *x; (x = tly_pipeline_ended(w->pipeline));)
            free(x->error);
        tly_pipeline_destroy(w->pipeline);
        sim_control_fini(&w->control);
    }
    for (uint32_t i = 0; i < w->ended_count; i++)
        free(w->ended[i]->exchange.error);
    for (uint32_t i = 0; i < w->link_count; i++)
        free(w->meters[i].pushes);
    free(w->meters);
    free(w->links);
    free(w->letters);
    free(w->ended);
    sim_app_fini(w);
}
