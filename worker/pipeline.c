#include "worker/pipeline.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/pipeline_inner.h"

tly_exchange *tly_pipeline_ended(tly_pipeline *p)
{
    tly_exchange *x = p->ended_first;
    if (x) {
        p->ended_first = x->next;
        if (!p->ended_first)
            p->ended_last = NULL;
        x->next = NULL;
    }
    return x;
}

/* ---- life ---- */

tally_status tly_pipeline_create(const tly_config *config, const tly_log *log, tly_membership *membership,
                                 tly_release_fn release, void *release_arg, tly_pipeline **pipeline)
{
    tly_pipeline *p = calloc(1, sizeof *p);
    if (!p)
        return tly_error_memory(sizeof *p, "the pipeline");
    p->config = config;
    p->log = log;
    p->membership = membership;
    p->release = release;
    p->release_arg = release_arg;
    p->undeclared_last = &p->undeclared;
    p->left_rank = -1;
    tly_out_list_init(&p->out);
    *pipeline = p;
    return TALLY_OK;
}

void tly_pipeline_destroy(tly_pipeline *p)
{
    if (!p)
        return;
    tly_table_fini(p);
    for (uint32_t i = 0; i < p->link_count; i++)
        tly_link_fini(&p->links[i]);
    free(p->links);
    free(p->first_links);
    tly_out_list_fini(&p->out);
    free(p->failure);
    free(p);
}

static void send_barrier(tly_pipeline *p)
{
    tly_ctl message = { .type = TLY_CTL_BARRIER, .barrier = { p->barrier_seq } };
    if (tly_membership_send(p->membership, &message) != TALLY_OK)
        p->out_of_memory = true;
}

void tly_pipeline_scheduler_reconnected(tly_pipeline *p)
{
    tly_table_redeclare(p);
    if (p->barrier_seq > p->barrier_released)
        send_barrier(p);
}

/* ---- what the caller does ---- */

void tly_pipeline_issue(tly_pipeline *p, tly_exchange *x, tly_time now)
{
    tly_tensor *t = x->tensor;
    x->status = TALLY_OK;
    x->error = x->missing = NULL;
    x->parts_left = 0;
    x->progress = now;
    x->next_report = now + tly_watch_first_report_ms(p);
    x->open = true;
    x->next = NULL;
    x->prev = p->open_last;
    *(p->open_last ? &p->open_last->next : &p->open_first) = x;
    p->open_last = x;
    t->exchange = x;
    if (p->failed != TALLY_OK)
        tly_exchange_error(x, p->failed, strdup(p->failure ? p->failure : ""));
    else if (t->state == TLY_TENSOR_UNUSABLE)
        tly_exchange_error(x, t->status, strdup(t->error ? t->error : ""));
    if (x->status != TALLY_OK)
        tly_exchange_end(p, x);
    else if (t->state == TLY_TENSOR_PLACED)
        tly_exchange_start(p, x, now);
}

void tly_pipeline_barrier(tly_pipeline *p, uint64_t seq)
{
    if (!p->membership) {
        p->barrier_seq = p->barrier_released = seq;
        return;
    }
    p->barrier_seq = seq;
    p->barrier_missing[0] = 0;
    send_barrier(p);
}

/* ---- what the scheduler says ---- */

tally_status tly_pipeline_install(tly_pipeline *p, tly_time now)
{
    const tly_membership *m = p->membership;
    uint32_t count = 0;
    for (uint32_t s = 0; s < m->server_count; s++)
        count += m->servers[s].endpoint_count;
    p->links = calloc(count, sizeof *p->links);
    p->first_links = calloc(m->server_count, sizeof *p->first_links);
    if (!p->links || !p->first_links)
        return tly_error_memory(count * sizeof *p->links, "the links to the servers");
    for (uint32_t s = 0; s < m->server_count; s++) {
        p->first_links[s] = p->link_count;
        for (uint32_t e = 0; e < m->servers[s].endpoint_count; e++) {
            tly_link *link = &p->links[p->link_count++];
            tly_link_init(link, p->config, now);
            link->server = s;
            link->shard = e;
            link->server_id = m->servers[s].id;
            link->endpoint = m->servers[s].endpoints[e];
            tly_session_hello(p, link, true, now);
        }
    }
    return p->out_of_memory ? tly_error_memory(TLY_HEADER_BYTES, "a message") : TALLY_OK;
}

uint32_t tly_pipeline_link_count(const tly_pipeline *p)
{
    return p->link_count;
}

const char *tly_pipeline_link_endpoint(const tly_pipeline *p, uint32_t link)
{
    return p->links[link].endpoint;
}

void tly_pipeline_control(tly_pipeline *p, const tly_ctl *m, tly_time now)
{
    switch (m->type) {
    case TLY_CTL_PLACED:
        if (m->placed.base > p->membership->placed_version)
            return; /* a gap: our next BEAT says how far we are, and the rest comes again */
        for (uint32_t i = (uint32_t)(p->membership->placed_version - m->placed.base); i < m->placed.count; i++) {
            tly_table_take(p, &m->placed.items[i], now);
            p->membership->placed_version++;
        }
        break;
    case TLY_CTL_BARRIER:
        if (m->barrier.seq > p->barrier_released)
            p->barrier_released = m->barrier.seq;
        break;
    case TLY_CTL_WAITING:
        if (m->barrier.seq == p->barrier_seq)
            snprintf(p->barrier_missing, sizeof p->barrier_missing, "%s", m->text);
        break;
    case TLY_CTL_LEFT:
        tly_log_info(p->log, "worker %u left the job", m->rank);
        if (p->left_rank < 0)
            p->left_rank = (int)m->rank;
        break;
    default:
        break;
    }
}

/* ---- time ---- */

tly_time tly_pipeline_run(tly_pipeline *p, tly_time now)
{
    tly_time deadline = TLY_NEVER;
    if (!p->membership || p->failed != TALLY_OK)
        return deadline;
    tly_table_send(p);
    for (uint32_t i = 0; i < p->link_count; i++) {
        tly_link *link = &p->links[i];
        tly_session_pump(p, link, now);
        tly_watch_link(p, link, now, &deadline);
    }
    tly_watch_stalls(p, now, &deadline);
    return deadline;
}

void tly_pipeline_cancel(tly_pipeline *p, tally_status status, const char *sentence)
{
    while (p->open_first) {
        tly_exchange *x = p->open_first;
        tly_tensor *t = x->tensor;
        tly_exchange_error(x, status, strdup(sentence));
        /* Out of the open list now: it ends when its inputs are back. */
        p->open_first = x->next;
        *(x->next ? &x->next->prev : &p->open_last) = NULL;
        x->open = false;
        x->prev = x->next = NULL;
        if (x->parts_left == 0) {
            tly_exchange_end(p, x);
            continue;
        }
        for (uint32_t i = 0; i < t->part_count; i++)
            if (t->parts[i].exchange)
                tly_part_abort(p, &t->parts[i]);
    }
}

void tly_pipeline_fail(tly_pipeline *p, tally_status status, const char *sentence)
{
    if (p->failed == TALLY_OK) {
        p->failed = status;
        p->failure = strdup(sentence);
    }
    tly_pipeline_cancel(p, status, sentence);
}

bool tly_pipeline_settled(const tly_pipeline *p)
{
    for (uint32_t i = 0; i < p->link_count; i++)
        if (p->links[i].acked_said < p->links[i].acked || p->links[i].kept.count > 0)
            return false;
    return true;
}

void tly_pipeline_hurry(tly_pipeline *p)
{
    p->hurry = true;
}

uint64_t tly_pipeline_inputs_out(const tly_pipeline *p)
{
    return p->inputs_out;
}

tly_out_list *tly_pipeline_out(tly_pipeline *p)
{
    return &p->out;
}

uint64_t tly_pipeline_barrier_released(const tly_pipeline *p)
{
    return p->barrier_released;
}

const char *tly_pipeline_barrier_missing(const tly_pipeline *p)
{
    return p->barrier_missing;
}

int tly_pipeline_left_rank(const tly_pipeline *p)
{
    return p->left_rank;
}

bool tly_pipeline_out_of_memory(const tly_pipeline *p)
{
    return p->out_of_memory;
}

void tly_pipeline_server_stats(const tly_pipeline *p, uint32_t server, tally_server_stats *stats)
{
    *stats = (tally_server_stats){ 0 };
    for (uint32_t i = 0; i < p->link_count; i++) {
        const tly_link *link = &p->links[i];
        if (link->server != server)
            continue;
        stats->placed_bytes += link->placed_bytes;
        stats->pushed_bytes += link->pushed_bytes;
        stats->pulled_bytes += link->pulled_bytes;
    }
}

