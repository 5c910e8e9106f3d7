/* engine.c - the worker's own thread: it owns the sockets, the membership and the pipeline, and
 * carries events between them. It waits only in the poll. */
#include <stdlib.h>
#include <string.h>

#include "common/registrar.h"
#include "worker/context.h"

/* Messages taken from one socket before the others get their turn. */
#define RECEIVE_BATCH 32
/* How long what was said last may take to leave. */
#define LINGER_MS 1000

typedef enum engine_phase {
    PHASE_JOINING,
    PHASE_IN,
    PHASE_SETTLING, /* closing: wait until nobody can lack what we keep */
    PHASE_LEAVING,  /* closing: LEAVE is out */
    PHASE_LET_GO,   /* failed or left: sockets are closed, the transport lets go of the inputs */
} engine_phase;

typedef struct engine {
    tally *ctx;
    tly_net *net;
    tly_registrar registrar;
    tly_membership *membership; /* the registrar's, or NULL for a worker alone */
    tly_pipeline *pipeline;
    tly_connection *links;
    uint32_t link_count;
    tly_poll_item *items; /* mailbox, scheduler, links */
    engine_phase phase;
    bool closing;         /* tally_close was called */
    tly_time close_by;
} engine;

static tly_time sooner(tly_time a, tly_time b)
{
    return a < b ? a : b;
}

/* ---- what calls see ---- */

static void publish_failure(engine *e)
{
    tally *ctx = e->ctx;
    pthread_mutex_lock(&ctx->lock);
    if (ctx->state == TLY_CONTEXT_JOINING || ctx->state == TLY_CONTEXT_IN) {
        ctx->state = TLY_CONTEXT_FAILED;
        ctx->failure_status = e->membership->failure_status;
        snprintf(ctx->failure, sizeof ctx->failure, "%s", e->membership->failure);
    }
    pthread_cond_broadcast(&ctx->changed);
    pthread_mutex_unlock(&ctx->lock);
}

static void publish_in(engine *e, uint32_t rank, uint32_t size, uint32_t server_count)
{
    tally *ctx = e->ctx;
    pthread_mutex_lock(&ctx->lock);
    if (ctx->state == TLY_CONTEXT_JOINING)
        ctx->state = TLY_CONTEXT_IN;
    ctx->rank = rank;
    ctx->size = size;
    ctx->server_count = server_count;
    pthread_cond_broadcast(&ctx->changed);
    pthread_mutex_unlock(&ctx->lock);
}

/* Barriers and leavers, when something about them has changed. */
static void publish_barrier(engine *e)
{
    tally *ctx = e->ctx;
    uint64_t released = tly_pipeline_barrier_released(e->pipeline);
    int left = tly_pipeline_left_rank(e->pipeline);
    const char *missing = tly_pipeline_barrier_missing(e->pipeline);
    pthread_mutex_lock(&ctx->lock);
    if (ctx->barrier_released != released || ctx->left_rank != left || strcmp(ctx->barrier_missing, missing) != 0) {
        ctx->barrier_released = released;
        ctx->left_rank = left;
        snprintf(ctx->barrier_missing, sizeof ctx->barrier_missing, "%s", missing);
        pthread_cond_broadcast(&ctx->changed);
    }
    pthread_mutex_unlock(&ctx->lock);
}

static void answer_stats(engine *e, tly_stats_query *query)
{
    tally *ctx = e->ctx;
    tly_pipeline_server_stats(e->pipeline, query->server, &query->stats);
    pthread_mutex_lock(&ctx->lock);
    query->answered = true;
    pthread_cond_broadcast(&ctx->changed);
    pthread_mutex_unlock(&ctx->lock);
}

/* ---- phases ---- */

/* Close every socket, so that the transport lets go of the callers' memory. */
static void let_go(engine *e)
{
    e->phase = PHASE_LET_GO;
    for (uint32_t i = 0; i < e->link_count; i++)
        tly_connection_close(&e->links[i], 0);
    for (tly_out *out; (out = tly_out_pop(tly_pipeline_out(e->pipeline)));)
        tly_out_free(out);
    if (e->membership)
        tly_registrar_close(&e->registrar, LINGER_MS);
}

/* The job has failed: every call says so from now on. */
static void failed(engine *e, tly_time now)
{
    tally *ctx = e->ctx;
    publish_failure(e); /* first: who has read the line gets the same from every call */
    tly_log_error(&ctx->log, "%s", e->membership->failure);
    tly_pipeline_fail(e->pipeline, e->membership->failure_status, e->membership->failure);
    tly_membership_leave(e->membership, 0, now); /* so that the scheduler need not wait for us */
    tly_registrar_flush(&e->registrar);
    let_go(e);
}

static void joined(engine *e, tly_time now)
{
    tally *ctx = e->ctx;
    tly_membership *m = e->membership;
    if (tly_pipeline_install(e->pipeline, now) != TALLY_OK) {
        tly_membership_fail_here(m, TALLY_ENOMEM, tly_error_text());
        return;
    }
    uint32_t count = tly_pipeline_link_count(e->pipeline);
    if (tly_net_check_descriptors(0, 0, count) != TALLY_OK) {
        char text[TLY_SENTENCE_MAX];
        snprintf(text, sizeof text, "worker %u (%s): %.700s", m->rank, m->host, tly_error_text());
        tly_membership_fail(m, TALLY_EFAILED, text);
        tly_registrar_flush(&e->registrar);
        tly_membership_fail_here(m, TALLY_EFAILED, text);
        return;
    }
    tly_poll_item *items = realloc(e->items, (2 + count) * sizeof *items);
    if (items)
        e->items = items;
    e->links = calloc(count, sizeof *e->links);
    if (!items || !e->links) {
        tly_error_memory(count * sizeof *e->links, "the connections to the servers");
        tly_membership_fail_here(m, TALLY_ENOMEM, tly_error_text());
        return;
    }
    e->link_count = count;
    for (uint32_t i = 0; i < count; i++)
        if (tly_connection_open(&e->links[i], e->net, tly_pipeline_link_endpoint(e->pipeline, i)) != TALLY_OK) {
            tly_membership_fail_here(m, TALLY_EFAILED, tly_error_text());
            return;
        }
    e->phase = PHASE_IN;
    tly_log_info(&ctx->log, "joined rank %u workers %u servers %u", m->rank, m->worker_count, m->server_count);
    publish_in(e, m->rank, m->worker_count, m->server_count);
}

static void begin_close(engine *e, tly_time now)
{
    e->closing = true;
    e->close_by = now + e->ctx->config.close_limit_ms;
    tly_pipeline_cancel(e->pipeline, TALLY_ECLOSED, "the context was closed while the request was in flight");
    if (e->phase == PHASE_LET_GO)
        return;
    if (!e->membership) {
        let_go(e);
        return;
    }
    tly_pipeline_hurry(e->pipeline);
    e->phase = PHASE_SETTLING;
}

/* Move through the phases as the membership, the pipeline and the time allow. Returns: when to look again. */
static tly_time advance(engine *e, tly_time now)
{
    tly_membership *m = e->membership;
    if (!m || e->phase == PHASE_LET_GO)
        return TLY_NEVER;
    if (tly_pipeline_out_of_memory(e->pipeline) && m->state != TLY_MEMBER_FAILED) {
        char text[TLY_SENTENCE_MAX];
        snprintf(text, sizeof text, "worker %d (%s) is out of memory", e->ctx->config.worker_id, m->host);
        tly_membership_fail(m, TALLY_EFAILED, text);
        tly_registrar_flush(&e->registrar);
        tly_membership_fail_here(m, TALLY_EFAILED, text);
    }
    if (m->state == TLY_MEMBER_FAILED) {
        failed(e, now);
        return now;
    }
    if (e->phase == PHASE_JOINING && m->state == TLY_MEMBER_IN) {
        joined(e, now);
        return now;
    }
    tly_time half = e->close_by - e->ctx->config.close_limit_ms / 2;
    if (e->phase == PHASE_SETTLING && (now >= half || tly_pipeline_settled(e->pipeline))) {
        tly_membership_leave(m, (int)(e->close_by > now ? e->close_by - now : 0), now);
        e->phase = PHASE_LEAVING;
        return now;
    }
    if (e->phase == PHASE_SETTLING)
        return half;
    if (e->phase == PHASE_LEAVING && (m->state == TLY_MEMBER_LEFT || m->state == TLY_MEMBER_ENDED)) {
        tly_registrar_flush(&e->registrar);
        let_go(e);
        return now;
    }
    return TLY_NEVER;
}

/* ---- events ---- */

static void handle_letter(engine *e, tly_letter *letter, tly_time now)
{
    switch (letter->type) {
    case TLY_LETTER_DECLARE: {
        tally_tensor *t = (tally_tensor *)((char *)letter - offsetof(tally_tensor, letter));
        tly_pipeline_declare(e->pipeline, &t->core, now);
        break;
    }
    case TLY_LETTER_ISSUE: {
        tally_request *r = (tally_request *)((char *)letter - offsetof(tally_request, letter));
        tly_pipeline_issue(e->pipeline, &r->exchange, now);
        break;
    }
    case TLY_LETTER_BARRIER:
        tly_pipeline_barrier(e->pipeline, tly_pipeline_barrier_released(e->pipeline) + 1);
        break;
    case TLY_LETTER_STATS:
        answer_stats(e, (tly_stats_query *)((char *)letter - offsetof(tly_stats_query, letter)));
        break;
    case TLY_LETTER_RELEASED:
        tly_pipeline_released(e->pipeline, (tly_input *)((char *)letter - offsetof(tly_input, letter)));
        break;
    case TLY_LETTER_CLOSE:
        begin_close(e, now);
        break;
    }
}

static void handle_letters(engine *e, tly_time now)
{
    tly_letter *letter = tly_mailbox_take(&e->ctx->mailbox);
    while (letter) {
        tly_letter *next = letter->next; /* handling may free it */
        handle_letter(e, letter, now);
        letter = next;
    }
}

static void released(void *arg, tly_input *input)
{
    engine *e = arg;
    input->letter.type = TLY_LETTER_RELEASED;
    tly_mailbox_post(&e->ctx->mailbox, &input->letter);
}

static void control(void *arg, const tly_ctl *message, tly_time now)
{
    engine *e = arg;
    /* What follows the epoch's announcement may have come together with it. */
    if (e->phase == PHASE_JOINING && e->membership->state == TLY_MEMBER_IN)
        joined(e, now);
    if (e->phase != PHASE_JOINING)
        tly_pipeline_control(e->pipeline, message, now);
}

static void link_event(engine *e, uint32_t i, tly_time now)
{
    tly_connection *c = &e->links[i];
    tly_net_event event;
    while ((event = tly_connection_event(c, now)) != TLY_NET_NONE) {
        if (event == TLY_NET_UP)
            tly_pipeline_connected(e->pipeline, i, now);
        else if (event == TLY_NET_RETRY)
            tly_pipeline_trouble(e->pipeline, i, tly_sock_trouble(c->sock));
        else
            tly_log_info(&e->ctx->log, "the connection to %s broke", c->endpoint);
    }
}

static void link_messages(engine *e, uint32_t i, tly_time now)
{
    tly_buf *head, *body;
    for (int n = 0; n < RECEIVE_BATCH && e->links[i].sock; n++) {
        tally_status status = tly_sock_recv(e->links[i].sock, NULL, &head, &body);
        if (status == TALLY_EAGAIN)
            break;
        if (status != TALLY_OK) {
            tly_log_warn(&e->ctx->log, "a message from %s: %s", e->links[i].endpoint, tly_error_text());
            continue;
        }
        tly_pipeline_message(e->pipeline, i, head->data, head->len_bytes, body, now);
        tly_buf_put(head);
        tly_buf_put(body);
    }
}

/* Make broken connections anew, do what is due towards the scheduler. Returns: when to look again. */
static tly_time tend(engine *e, tly_time now)
{
    if (e->phase == PHASE_LET_GO || !e->membership)
        return TLY_NEVER;
    bool renewed;
    tly_time due = tly_registrar_run(&e->registrar, now, &renewed);
    if (renewed)
        tly_pipeline_scheduler_reconnected(e->pipeline);
    for (uint32_t i = 0; i < e->link_count; i++) {
        if (tly_connection_renew(&e->links[i], now))
            tly_pipeline_reconnect(e->pipeline, i, now);
        due = sooner(due, tly_connection_due(&e->links[i]));
    }
    return due;
}

static void flush(engine *e)
{
    if (e->membership)
        tly_registrar_flush(&e->registrar);
    for (tly_out *out; (out = tly_out_pop(tly_pipeline_out(e->pipeline)));) {
        tly_connection *c = &e->links[out->link];
        if (c->sock) { /* else HELLO makes good for it */
            tly_buf *body = out->body;
            out->body = NULL;
            if (tly_sock_send(c->sock, NULL, out->head, out->head_len_bytes, body) != TALLY_OK)
                tly_log_warn(&e->ctx->log, "to %s: %s", c->endpoint, tly_error_text());
        }
        tly_out_free(out);
    }
    for (tly_exchange *x; (x = tly_pipeline_ended(e->pipeline));)
        tly_request_done(e->ctx, x);
}

/* ---- the thread ---- */

/* Wait for the mailbox and the sockets; note what is there in items. */
static void wait_for_events(engine *e, tly_time deadline)
{
    size_t count = 0;
    e->items[count++] = (tly_poll_item){ .fd = e->ctx->mailbox.fd };
    e->items[count++] = (tly_poll_item){ .sock = e->membership ? e->registrar.connection.sock : NULL, .fd = -1 };
    for (uint32_t i = 0; i < e->link_count; i++)
        e->items[count++] = (tly_poll_item){ .sock = e->links[i].sock, .fd = -1 };
    if (tly_net_poll(e->items, count, tly_clock_timeout(deadline, tly_clock_now())) != TALLY_OK)
        tly_log_error(&e->ctx->log, "%s", tly_error_text());
}

static void handle_network(engine *e, tly_time now)
{
    /* Joining, which the scheduler's message may bring about, makes links and their items anew. */
    uint32_t count = e->link_count;
    tly_poll_item scheduler = e->items[1];
    if (e->membership)
        tly_registrar_handle(&e->registrar, &scheduler, now);
    for (uint32_t i = 0; i < count; i++) {
        if (e->items[2 + i].event)
            link_event(e, i, now);
        if (e->items[2 + i].readable)
            link_messages(e, i, now);
    }
}

static void engine_free(engine *e)
{
    if (e->membership)
        tly_registrar_fini(&e->registrar);
    tly_net_destroy(e->net);
    tly_pipeline_destroy(e->pipeline);
    free(e->links);
    free(e->items);
    free(e);
}

static void *engine_main(void *arg)
{
    engine *e = arg;
    while (!(e->closing && e->phase == PHASE_LET_GO && tly_pipeline_inputs_out(e->pipeline) == 0)) {
        tly_time now = tly_clock_now();
        tly_time deadline = tend(e, now); /* first: it may find out what advance then acts on */
        deadline = sooner(deadline, advance(e, now));
        if (e->phase != PHASE_LET_GO)
            deadline = sooner(deadline, tly_pipeline_run(e->pipeline, now));
        flush(e);
        publish_barrier(e);
        wait_for_events(e, deadline);
        now = tly_clock_now();
        handle_letters(e, now);
        if (e->phase != PHASE_LET_GO)
            handle_network(e, now);
    }
    flush(e);
    engine_free(e);
    return NULL;
}

tally_status tly_engine_start(tally *ctx)
{
    engine *e = calloc(1, sizeof *e);
    if (!e)
        return tly_error_memory(sizeof *e, "the engine");
    e->ctx = ctx;
    e->items = calloc(2, sizeof *e->items);
    tally_status status = e->items ? TALLY_OK : tly_error_memory(2 * sizeof *e->items, "the engine");
    if (status == TALLY_OK && !ctx->alone)
        status = tly_net_create(ctx->config.io_threads, &e->net);
    if (status == TALLY_OK && !ctx->alone) {
        status = tly_registrar_init(&e->registrar, e->net, &ctx->config, &ctx->log, TLY_ROLE_WORKER, ctx->address, 0,
                                    NULL, control, e);
        if (status == TALLY_OK)
            e->membership = &e->registrar.membership;
    }
    if (status == TALLY_OK)
        status = tly_pipeline_create(&ctx->config, &ctx->log, e->membership, released, e, &e->pipeline);
    if (status == TALLY_OK && ctx->alone) {
        e->phase = PHASE_IN;
        publish_in(e, 0, 1, 0);
    }
    if (status == TALLY_OK)
        status = tly_thread_start(&ctx->engine, "tally-engine", engine_main, e);
    if (status != TALLY_OK)
        engine_free(e);
    return status;
}
