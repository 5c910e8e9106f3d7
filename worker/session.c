/* session.c - the exchange with the shards by the rules of docs/protocol.md ("Worker"). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/pipeline_inner.h"

/* ---- sending ---- */

/* Queue one message over a link; takes the reference to body. */
bool tly_session_send(tly_pipeline *p, tly_link *link, const tly_record *records, uint32_t count, tly_buf *body)
{
    tly_out *out = tly_out_create(TLY_HEADER_BYTES + (size_t)count * TLY_RECORD_BYTES);
    if (!out) {
        tly_buf_put(body);
        p->out_of_memory = true;
        return false;
    }
    tly_wire_put_header(out->head, &(tly_header){ .plane = TLY_PLANE_DATA,
                                                  .job = p->membership->job,
                                                  .epoch = p->membership->epoch,
                                                  .sender = p->membership->id,
                                                  .session = link->session,
                                                  .acked = link->acked,
                                                  .record_count = count });
    for (uint32_t i = 0; i < count; i++)
        tly_wire_put_record(out->head + TLY_HEADER_BYTES + (size_t)i * TLY_RECORD_BYTES, &records[i]);
    link->acked_said = link->acked;
    link->unsaid_bytes = 0;
    link->settle_at = TLY_NEVER;
    out->link = (uint32_t)(link - p->links);
    out->body = body;
    tly_out_push(&p->out, out);
    return true;
}

/* Begin a session. resend: the shard shall repeat what was not acknowledged. */
void tly_session_hello(tly_pipeline *p, tly_link *link, bool resend, tly_time now)
{
    uint32_t count = 1;
    tly_record *records = malloc((1 + link->part_count) * sizeof *records);
    if (!records) {
        p->out_of_memory = true;
        return;
    }
    link->session++;
    link->resend = resend;
    link->ready = false;
    link->heard = now;
    records[0] = (tly_record){ .type = TLY_HELLO, .flags = resend ? TLY_FLAG_RESEND : 0 };
    for (size_t i = 0; i < link->part_count; i++) {
        const tly_part *part = link->parts[i];
        if (part->have > 0)
            records[count++] = (tly_record){ .type = TLY_HAVE, .tensor = part->tensor->id, .partition = part->index,
                                             .round = part->have };
    }
    tly_session_send(p, link, records, count, NULL);
    free(records);
}

static void input_let_go(tly_buf *buf)
{
    tly_input *input = (tly_input *)buf;
    input->pipeline->release(input->pipeline->release_arg, input);
}

static tly_buf *input_by_reference(tly_pipeline *p, tly_part *part)
{
    tly_input *input = malloc(sizeof *input);
    if (!input)
        return NULL;
    input->pipeline = p;
    input->part = part;
    /* The transport only reads it. */
    uint8_t *data = (uint8_t *)(uintptr_t)part->exchange->input;
    tly_buf_init(&input->base, data + tly_part_offset(part), tly_part_len(part), input_let_go);
    part->inputs_out++;
    p->inputs_out++;
    return &input->base;
}

static tly_buf *inputs_copied(const tly_pipeline *p, const tly_link *link)
{
    tly_buf *body = tly_buf_alloc(link->granted_bytes);
    uint8_t *to = body ? body->data : NULL;
    for (uint32_t i = 0; to && i < link->granted_count; i++) {
        const tly_part *part = link->granted[i];
        uint64_t len_bytes = tly_part_payload(p, part);
        if (len_bytes > 0)
            memcpy(to, (const uint8_t *)part->exchange->input + tly_part_offset(part), len_bytes);
        to += len_bytes;
    }
    return body;
}

/* Send the message that was being built. A single large partition goes from the caller's memory,
 * small ones are copied. */
static void send_granted(tly_pipeline *p, tly_link *link, tly_time now)
{
    tly_record records[TLY_BUNDLE_RECORD_COUNT];
    uint32_t count = link->granted_count;
    if (count == 0)
        return;
    tly_buf *body = NULL;
    if (link->granted_bytes > TLY_BUNDLE_RECORD_BYTES && count == 1)
        body = input_by_reference(p, link->granted[0]);
    else if (link->granted_bytes > 0)
        body = inputs_copied(p, link);
    p->out_of_memory |= link->granted_bytes > 0 && !body;
    for (uint32_t i = 0; i < count; i++) {
        tly_part *part = link->granted[i];
        const tly_exchange *x = part->exchange;
        part->exchange->progress = now;
        records[i] = (tly_record){ .type = TLY_PUSH,
                                   .kind = (uint8_t)x->kind,
                                   .dtype = (uint8_t)part->tensor->dtype,
                                   .op = (uint8_t)part->tensor->op,
                                   .flags = tly_link_wants_credit(link) ? TLY_FLAG_WANT : 0,
                                   .tensor = part->tensor->id,
                                   .partition = part->index,
                                   .round = part->round,
                                   .seq = tly_part_len(part),
                                   .root = x->root,
                                   .len_bytes = (uint32_t)tly_part_payload(p, part) };
    }
    link->pushed_bytes += link->granted_bytes;
    link->granted_count = 0;
    link->granted_bytes = 0;
    if (p->out_of_memory)
        tly_buf_put(body);
    else
        tly_session_send(p, link, records, count, body);
}

/* Can this partition join the message being built? */
static bool joins(const tly_pipeline *p, const tly_link *link, const tly_part *part)
{
    uint64_t len_bytes = tly_part_payload(p, part);
    return link->granted_count == 0 ||
           (link->granted_count < TLY_BUNDLE_RECORD_COUNT && len_bytes <= TLY_BUNDLE_RECORD_BYTES &&
            link->granted_bytes + len_bytes <= TLY_BUNDLE_BODY_BYTES);
}

/* Start what waits in a link's queue, in order of priority, as far as it is ready. */
void tly_session_pump(tly_pipeline *p, tly_link *link, tly_time now)
{
    tly_part *part;
    while ((part = tly_queue_first(&link->queue)) && tly_stage_of(part)->ready(p, part) && !p->out_of_memory) {
        if (!joins(p, link, part))
            send_granted(p, link, now);
        tly_queue_remove(&link->queue, part);
        tly_stage_of(part)->start(p, part);
        part->stage++;
        if (link->granted_bytes > TLY_BUNDLE_RECORD_BYTES && link->granted_count == 1)
            send_granted(p, link, now);
    }
    send_granted(p, link, now);
}

/* ---- what the shards say ---- */

static tly_part *part_of(const tly_pipeline *p, const tly_record *record)
{
    entry *e = tly_table_find(p, record->tensor);
    tly_tensor *t = e ? e->tensor : NULL;
    return t && t->parts && record->partition < t->part_count ? &t->parts[record->partition] : NULL;
}

/* What the shard says about one key that has an exchange in flight: is our contribution wanted? */
static void reconcile(tly_pipeline *p, tly_part *part, uint64_t open, bool in)
{
    if (part->round == open && !in) {
        tly_part_requeue(p, part);
    } else if (part->queued_at) { /* no: its RESULT is on the way */
        tly_part_dequeue(p, part);
        part->stage++;
        p->links[part->link].awaited++;
    }
}

static void ready(tly_pipeline *p, tly_link *link, const tly_header *h, const void *frame, tly_time now)
{
    if (h->session != link->session)
        return;
    tly_record first;
    if (tly_wire_get_record(frame, 0, &first) != TALLY_OK)
        return;
    link->ready = link->ever_ready = true;
    link->progress = now;
    tly_link_reset_credit(link);
    for (size_t i = 0; i < link->part_count; i++)
        link->parts[i]->pushed = 0;
    /* pushed marks, for the length of this function, the keys that the shard knows. */
    for (uint32_t i = 1; i < h->record_count; i++) {
        tly_record key;
        if (tly_wire_get_record(frame, i, &key) != TALLY_OK || key.type != TLY_KEY)
            continue;
        tly_part *part = part_of(p, &key);
        if (!part || &p->links[part->link] != link)
            continue;
        part->pushed = 1;
        if (part->queued_at || tly_part_awaits_result(part))
            reconcile(p, part, key.seq, key.flags & TLY_FLAG_IN);
    }
    for (size_t i = 0; i < link->part_count; i++) {
        tly_part *part = link->parts[i];
        if (!part->pushed && (part->queued_at || tly_part_awaits_result(part)))
            reconcile(p, part, 1, false);
        part->pushed = 0;
    }
    if (!link->resend && link->acked < first.seq)
        tly_session_hello(p, link, true, now); /* something was lost on the way */
}

/* An error RESULT of a round that this worker has not joined. */
static void stray_result(tly_pipeline *p, const tly_record *r, const tly_round_error *error)
{
    stray *s = malloc(sizeof *s);
    if (!s) {
        p->out_of_memory = true;
        return;
    }
    *s = (stray){ .tensor = r->tensor, .partition = r->partition, .round = r->round, .error = *error };
    stray **last = &p->strays;
    while (*last)
        last = &(*last)->next;
    *last = s;
}

static void result_error(tly_pipeline *p, tly_part *part, const tly_record *r, const void *payload)
{
    tly_round_error error;
    if (tly_wire_get_round_error(payload, r->len_bytes, &error) != TALLY_OK) {
        tly_log_warn(p->log, "tensor %u partition %u: %s", r->tensor, r->partition, tly_error_text());
        return;
    }
    if (!part) {
        stray_result(p, r, &error);
    } else if (part->exchange && part->round == r->round) {
        part->have = r->round;
        tly_part_round_error(p, part, &error);
    } else {
        tly_part_take_early(p, part, r->round, &error);
    }
}

static void result_value(tly_pipeline *p, tly_part *part, const tly_record *r, tly_buf *body, uint64_t offset)
{
    if (r->round > part->round) {
        tly_log_warn(p->log, "tensor \"%s\": the server sent a value of round %" PRIu64 ", which this worker has not "
                             "joined; dropped", part->tensor->name, r->round);
        return;
    }
    part->have = r->round;
    if (!part->exchange || part->round != r->round || part->written)
        return; /* it was given up */
    if (r->len_bytes != tly_part_len(part)) {
        tly_exchange_error(part->exchange, TALLY_EPROTO,
                       tly_format("tensor \"%s\" round %" PRIu64 ": partition %u has %" PRIu64
                              " bytes and the server sent %u", part->tensor->name, part->round, part->index,
                              tly_part_len(part), r->len_bytes));
        tly_part_abort(p, part);
        return;
    }
    if (part->value)
        return;
    tly_part_to_pull(p, part);
    if (body && r->len_bytes > 0) {
        part->value = tly_buf_get(body);
        part->value_offset = offset;
    } else {
        part->written = true;
    }
    tly_part_run(p, part);
}

static void result(tly_pipeline *p, tly_link *link, const tly_record *r, tly_buf *body, uint64_t offset, tly_time now)
{
    if (!link->ever_ready || r->seq != link->acked + 1)
        return; /* it came twice, or something before it was lost */
    link->acked = r->seq;
    link->unsaid_bytes += r->len_bytes;
    link->pulled_bytes += r->len_bytes;
    link->progress = now;
    link->probe_ms = TLY_LINK_PROBE_MS;
    if (!tly_link_keep(link, body, now)) {
        p->out_of_memory = true;
        return;
    }
    tly_part *part = part_of(p, r);
    if (part && (r->round != part->have + 1 || &p->links[part->link] != link))
        return;
    if (part && part->pushed)
        tly_link_arrived(link, part->pushed);
    if (part && part->exchange) {
        part->exchange->progress = now;
        free(part->exchange->missing);
        part->exchange->missing = NULL;
    }
    if (r->flags & TLY_FLAG_ERROR)
        result_error(p, part, r, body ? (const uint8_t *)body->data + offset : NULL);
    else if (part)
        result_value(p, part, r, body, offset);
}

/* Who the shard says is missing in a round that we wait for. */
static void missing(tly_pipeline *p, tly_link *link, const tly_record *r, const uint8_t *payload, tly_time now)
{
    tly_part *part = part_of(p, r);
    tly_exchange *x = part ? part->exchange : NULL;
    if (!x || part->round != r->round)
        return;
    char names[512] = "";
    size_t at = 0;
    bool lost = r->len_bytes < 4; /* the round is over, and its RESULT is not here */
    for (uint32_t i = 0; i + 4 <= r->len_bytes && at + 32 < sizeof names; i += 4) {
        uint32_t rank = payload[i] | payload[i + 1] << 8 | payload[i + 2] << 16 | (uint32_t)payload[i + 3] << 24;
        at += (size_t)snprintf(names + at, sizeof names - at, "%sworker %u", i ? ", " : "", rank);
        lost |= rank == tly_my_rank(p); /* our PUSH is not there */
    }
    if (lost) {
        /* The link keeps its order, so something was lost on it without a word, and because it answers
         * it will never be silent enough for a probe. */
        if (link->ready && tly_part_awaits_result(part))
            tly_session_hello(p, link, false, now);
        return;
    }
    free(x->missing);
    x->missing = strdup(names);
    tly_log_warn(p->log, "tensor \"%s\" round %" PRIu64 " has waited %" PRId64 " s for %s; see whether it is stuck or "
                         "ended its loop early", part->tensor->name, part->round, (now - x->progress) / 1000, names);
}

void tly_pipeline_message(tly_pipeline *p, uint32_t index, const void *frame, size_t len_bytes, tly_buf *body,
                          tly_time now)
{
    tly_link *link = &p->links[index];
    tly_header h;
    if (tly_wire_check_data(frame, len_bytes, body ? body->len_bytes : 0, &h) != TALLY_OK) {
        tly_log_warn(p->log, "a message from %s was dropped: %s", link->endpoint, tly_error_text());
        return;
    }
    if (h.job != p->membership->job || h.epoch != p->membership->epoch || p->failed != TALLY_OK)
        return;
    link->heard = now;
    uint64_t offset = 0;
    for (uint32_t i = 0; i < h.record_count; i++) {
        tly_record r;
        if (tly_wire_get_record(frame, i, &r) != TALLY_OK)
            return;
        if (r.type == TLY_READY) {
            ready(p, link, &h, frame, now);
        } else if (r.type == TLY_RESULT) {
            result(p, link, &r, body, offset, now);
        } else if (r.type == TLY_RECEIVED && link->ready && h.session == link->session) {
            tly_link_arrived(link, r.seq);
            link->progress = now;
        } else if (r.type == TLY_MISSING && h.session == link->session) {
            missing(p, link, &r, body ? (const uint8_t *)body->data + offset : NULL, now);
        }
        offset += r.len_bytes;
    }
    if (link->ever_ready && h.stable <= link->acked)
        tly_link_stable(link, h.stable);
}

/* ---- what the connections do ---- */

void tly_pipeline_connected(tly_pipeline *p, uint32_t index, tly_time now)
{
    (void)now;
    p->links[index].up = true;
    p->links[index].trouble[0] = 0;
}

void tly_pipeline_reconnect(tly_pipeline *p, uint32_t index, tly_time now)
{
    tly_link *link = &p->links[index];
    if (link->up)
        link->down_since = now;
    link->up = false;
    if (p->failed == TALLY_OK)
        tly_session_hello(p, link, true, now);
}

void tly_pipeline_trouble(tly_pipeline *p, uint32_t index, const char *text)
{
    snprintf(p->links[index].trouble, sizeof p->links[index].trouble, "%s", text);
}

void tly_pipeline_released(tly_pipeline *p, tly_input *input)
{
    tly_part *part = input->part;
    free(input);
    part->inputs_out--;
    p->inputs_out--;
    if (part->exchange && !part->queued_at && (part->written || part->value))
        tly_part_run(p, part);
}
