#include "tests/sim/cluster.h"

#include <stdlib.h>
#include <string.h>

/* ---- the trace ---- */

static const char *const record_names[] = { "?",     "HELLO", "HAVE",     "PUSH",   "ACK",    "ASK",
                                            "READY", "KEY",   "RECEIVED", "RESULT", "STABLE", "MISSING" };

void sim_tap_trace(const sim *s, const char *who, const char *what, uint32_t conn, const void *head,
                   size_t len_bytes, const tly_buf *body)
{
    tly_header h;
    if (!s->verbose)
        return;
    if (tly_wire_get_header(head, len_bytes, &h) != TALLY_OK) {
        sim_trace(s, "%s %s on %u: %s", who, what, conn, tly_error_text());
        return;
    }
    if (h.plane == TLY_PLANE_CONTROL) {
        tly_ctl m;
        if (tly_ctl_decode(head, len_bytes, &m) == TALLY_OK) {
            sim_trace(s, "%s %s on %u: %s %s", who, what, conn, tly_ctl_name(m.type), m.text ? m.text : "");
            tly_ctl_fini(&m);
        }
        return;
    }
    char text[640];
    size_t at = 0;
    for (uint32_t i = 0; i < h.record_count && at + 128 < sizeof text; i++) {
        tly_record r;
        if (tly_wire_get_record(head, i, &r) == TALLY_OK)
            at += (size_t)snprintf(text + at, sizeof text - at, " %s %u.%u r%llu seq %llu flags %x %u;",
                                   record_names[r.type], r.tensor, r.partition, (unsigned long long)r.round,
                                   (unsigned long long)r.seq, r.flags, r.len_bytes);
    }
    text[at] = 0;
    sim_trace(s, "%s %s on %u: n %u acked %llu stable %llu body %zu:%s", who, what, conn, h.session,
              (unsigned long long)h.acked, (unsigned long long)h.stable, body ? body->len_bytes : 0, text);
}

/* ---- a worker's messages ---- */

static const tly_part *part_of(const sim_worker *w, const tly_record *r)
{
    for (uint32_t i = 0; i < w->cluster->plan->tensor_count; i++) {
        const tly_tensor *t = &w->tensors[i].core;
        if (w->tensors[i].declared && t->parts && t->id == r->tensor)
            return &t->parts[r->partition];
    }
    return NULL;
}

/* Must a go before b? */
static bool before(const tly_part *a, const tly_part *b)
{
    int pa = a->exchange->priority, pb = b->exchange->priority;
    if (pa != pb)
        return pa > pb;
    if (a->tensor->id != b->tensor->id)
        return a->tensor->id < b->tensor->id;
    return a->index < b->index;
}

static uint32_t cost_of(const sim_worker *w, const tly_record *r)
{
    uint32_t most = (uint32_t)w->config.partition_bytes;
    return r->len_bytes < most ? r->len_bytes : most;
}

static void check_credit(sim_worker *w, sim_meter *meter, const tly_record *r)
{
    const sim_plan *p = w->cluster->plan;
    if (meter->pushed == meter->room) {
        meter->room = meter->room ? 2 * meter->room : 32;
        meter->pushes = realloc(meter->pushes, meter->room * sizeof *meter->pushes);
        if (!meter->pushes)
            abort();
    }
    meter->pushes[meter->pushed++] = *r;
    meter->used_bytes += cost_of(w, r);
    uint64_t limit = (uint64_t)w->config.credit * (uint64_t)w->config.partition_bytes;
    if (w->config.credit && p->weather.repeat_permille == 0 && meter->pushed - meter->arrived > 1 &&
        meter->used_bytes > limit)
        sim_fail(w->engine.s, "worker %u has %llu bytes out at a credit of %d partitions of %d", w->rank,
                 (unsigned long long)meter->used_bytes, w->config.credit, w->config.partition_bytes);
}

static void fail_order(const sim_worker *w, const tly_part *first, const tly_part *second)
{
    sim_fail(w->engine.s,
             "worker %u pushed tensor %u partition %u priority %d before tensor %u partition %u priority %d",
             w->rank, first->tensor->id, first->index, first->exchange->priority, second->tensor->id,
             second->index, second->exchange->priority);
}

/* Of what one turn sends over a link, the highest priority goes first. */
static void check_order(sim_worker *w, sim_meter *meter, const tly_record *r)
{
    const tly_part *part = part_of(w, r);
    if (!part || !part->exchange)
        return;
    if (meter->last && meter->last->exchange && before(part, meter->last))
        fail_order(w, meter->last, part);
    meter->last = part;
}

static void meter_reset(sim_meter *meter, uint32_t session)
{
    meter->session = session;
    meter->pushed = meter->arrived = 0;
    meter->used_bytes = 0;
}

void sim_tap_push(sim_worker *w, const tly_out *out)
{
    tly_header h;
    sim_meter *meter = &w->meters[out->link];
    size_t body_bytes = out->body ? out->body->len_bytes : 0;
    if (tly_wire_check_data(out->head, out->head_len_bytes, body_bytes, &h) != TALLY_OK) {
        sim_fail(w->engine.s, "worker %u sends nonsense: %s", w->rank, tly_error_text());
        return;
    }
    if (h.session != meter->session)
        meter_reset(meter, h.session);
    for (uint32_t i = 0; i < h.record_count; i++) {
        tly_record r;
        tly_wire_get_record(out->head, i, &r);
        if (r.type != TLY_PUSH)
            continue;
        w->tap.pushed_bytes += r.len_bytes;
        check_credit(w, meter, &r);
        check_order(w, meter, &r);
    }
}

/* Nothing that waits may go before what went. */
void sim_tap_turn_end(sim_worker *w)
{
    bool pushed = false;
    for (uint32_t i = 0; i < w->link_count; i++)
        pushed |= w->meters[i].last != NULL;
    for (uint32_t k = 0; pushed && k < w->cluster->plan->tensor_count; k++) {
        const tly_tensor *t = &w->tensors[k].core;
        for (uint32_t i = 0; w->tensors[k].declared && t->parts && i < t->part_count; i++) {
            const tly_part *part = &t->parts[i], *last = w->meters[part->link].last;
            if (part->queued_at && last && last->exchange && before(part, last))
                fail_order(w, last, part);
        }
    }
    for (uint32_t i = 0; i < w->link_count; i++)
        w->meters[i].last = NULL;
}

static void meter_arrived(sim_worker *w, sim_meter *meter, uint64_t number)
{
    while (meter->arrived < number && meter->arrived < meter->pushed)
        meter->used_bytes -= cost_of(w, &meter->pushes[meter->arrived++]);
}

/* A RESULT shows that the PUSH for it has arrived, and all before. */
static void meter_result(sim_worker *w, sim_meter *meter, const tly_record *r)
{
    for (uint32_t k = meter->pushed; k > meter->arrived; k--) {
        const tly_record *push = &meter->pushes[k - 1];
        if (push->tensor == r->tensor && push->partition == r->partition && push->round == r->round)
            meter_arrived(w, meter, k);
    }
}

void sim_tap_received(sim_worker *w, uint32_t link, const sim_message *m)
{
    tly_header h;
    sim_meter *meter = &w->meters[link];
    if (tly_wire_check_data(m->head, m->head_len_bytes, m->body ? m->body->len_bytes : 0, &h) != TALLY_OK) {
        sim_fail(w->engine.s, "a shard sent nonsense: %s", tly_error_text());
        return;
    }
    for (uint32_t i = 0; i < h.record_count; i++) {
        tly_record r;
        tly_wire_get_record(m->head, i, &r);
        if (r.type == TLY_READY && h.session == meter->session)
            meter_reset(meter, h.session);
        else if (r.type == TLY_RECEIVED && h.session == meter->session)
            meter_arrived(w, meter, r.seq);
        else if (r.type == TLY_RESULT)
            meter_result(w, meter, &r);
    }
}

/* ---- a shard's messages ---- */

static uint32_t rank_of(const sim_shard *d, uint32_t id)
{
    const tly_membership *m = &d->server->control.membership;
    for (uint32_t i = 0; i < m->worker_count; i++)
        if (m->workers[i].id == id)
            return i;
    return SIM_NOBODY;
}

void sim_tap_taken(sim_shard *d, const sim_message *m)
{
    tly_header h;
    tly_record r;
    if (tly_wire_get_header(m->head, m->head_len_bytes, &h) != TALLY_OK || h.record_count == 0)
        return;
    uint32_t rank = rank_of(d, h.sender);
    if (rank == SIM_NOBODY || h.session < d->seen[rank].session)
        return;
    tly_wire_get_record(m->head, 0, &r);
    if (r.type == TLY_HELLO) {
        d->seen[rank].session = h.session;
        d->seen[rank].pushes = 0;
    }
    for (uint32_t i = 0; i < h.record_count && tly_wire_get_record(m->head, i, &r) == TALLY_OK; i++)
        d->seen[rank].pushes += r.type == TLY_PUSH;
}

/* To whom this goes. */
static uint32_t receiver_of(const sim_shard *d, const tly_out *out)
{
    uint32_t id = sim_peer_conn(&out->peer);
    const sim_cluster *c = d->server->cluster;
    const sim_thread *client = id < c->net.conn_count ? c->net.conns[id]->client : NULL;
    for (uint32_t i = 0; i < c->plan->workers; i++)
        if (&c->workers[i].engine == client)
            return i;
    return SIM_NOBODY;
}

static void check_result(const sim_shard *d, const tly_record *r)
{
    sim_cluster *c = d->server->cluster;
    c->result_bytes += r->len_bytes;
    if (!(r->flags & TLY_FLAG_ERROR) && r->contributors != c->plan->workers)
        sim_fail(&c->s, "%s: a result of tensor %u round %llu has %u contributions of %u workers",
                 d->thread.name, r->tensor, (unsigned long long)r->round, r->contributors, c->plan->workers);
}

/* Credit comes back only for what came in this session. */
static void check_received(const sim_shard *d, const tly_out *out, const tly_header *h, const tly_record *r)
{
    uint32_t rank = receiver_of(d, out);
    if (rank == SIM_NOBODY || h->session != d->seen[rank].session || r->seq > d->seen[rank].pushes)
        sim_fail(d->thread.s, "%s tells worker %u that %llu PUSHes of session %u came, of which %u did",
                 d->thread.name, rank, (unsigned long long)r->seq, h->session, d->seen[rank].pushes);
}

void sim_tap_shard(sim_shard *d, const tly_out *out)
{
    sim *s = d->thread.s;
    tly_header h;
    sim_tap_trace(s, d->thread.name, "sends", sim_peer_conn(&out->peer), out->head, out->head_len_bytes,
                  out->body);
    size_t body_bytes = out->body ? out->body->len_bytes : 0;
    if (tly_wire_check_data(out->head, out->head_len_bytes, body_bytes, &h) != TALLY_OK) {
        sim_fail(s, "%s sends nonsense: %s", d->thread.name, tly_error_text());
        return;
    }
    for (uint32_t i = 0; i < h.record_count; i++) {
        tly_record r;
        tly_wire_get_record(out->head, i, &r);
        if (r.type == TLY_RESULT)
            check_result(d, &r);
        else if (r.type == TLY_RECEIVED)
            check_received(d, out, &h, &r);
    }
}
