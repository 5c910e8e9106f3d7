/* stages.c - partitions and the stages they go through, and the ends of exchanges. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/pipeline_inner.h"

/* ---- small things ---- */

char *tly_format(const char *text, ...)
{
    char *result = NULL;
    va_list args;
    va_start(args, text);
    if (vasprintf(&result, text, args) < 0)
        result = NULL;
    va_end(args);
    return result;
}

uint32_t tly_my_rank(const tly_pipeline *p)
{
    return p->membership ? p->membership->rank : 0;
}

uint64_t tly_part_offset(const tly_part *part)
{
    return part->index * part->tensor->part_bytes;
}

uint64_t tly_part_len(const tly_part *part)
{
    const tly_tensor *t = part->tensor;
    uint64_t total = t->count * tally_dtype_size(t->dtype);
    return part->index + 1 < t->part_count ? t->part_bytes : total - tly_part_offset(part);
}

/* What its PUSH carries: of a broadcast only the root's has a value. */
uint64_t tly_part_payload(const tly_pipeline *p, const tly_part *part)
{
    const tly_exchange *x = part->exchange;
    return x->kind == TLY_KIND_PUSH_PULL || x->root == tly_my_rank(p) ? tly_part_len(part) : 0;
}

/* ---- the ends of exchanges ---- */

void tly_exchange_error(tly_exchange *x, tally_status status, char *sentence)
{
    if (x->status == TALLY_OK) {
        x->status = status;
        x->error = sentence;
    } else {
        free(sentence);
    }
}

void tly_exchange_end(tly_pipeline *p, tly_exchange *x)
{
    if (x->open) {
        *(x->prev ? &x->prev->next : &p->open_first) = x->next;
        *(x->next ? &x->next->prev : &p->open_last) = x->prev;
        x->open = false;
    }
    x->tensor->exchange = NULL;
    free(x->missing);
    x->missing = NULL;
    x->prev = x->next = NULL;
    if (p->ended_last)
        p->ended_last->next = x;
    else
        p->ended_first = x;
    p->ended_last = x;
}

static void part_end(tly_pipeline *p, tly_part *part)
{
    tly_exchange *x = part->exchange;
    part->exchange = NULL;
    if (--x->parts_left == 0)
        tly_exchange_end(p, x);
}

/* ---- stages ---- */

static bool always(const tly_pipeline *p, const tly_part *part)
{
    (void)p;
    (void)part;
    return true;
}

/* SELF: a worker alone is the sum of all workers. */

static void write_output(tly_part *part, const void *from)
{
    uint8_t *to = (uint8_t *)part->exchange->output + tly_part_offset(part);
    uint64_t len_bytes = tly_part_len(part);
    if (len_bytes > 0 && to != from)
        memcpy(to, from, len_bytes);
    part->written = true;
}

static void self_start(tly_pipeline *p, tly_part *part)
{
    (void)p;
    write_output(part, (const uint8_t *)part->exchange->input + tly_part_offset(part));
}

/* PUSH: grant credit and put the partition into the message being built. */

static bool push_ready(const tly_pipeline *p, const tly_part *part)
{
    const tly_link *link = &p->links[part->link];
    return link->ready && tly_link_has_credit(link, tly_part_payload(p, part));
}

static void push_start(tly_pipeline *p, tly_part *part)
{
    tly_link *link = &p->links[part->link];
    uint64_t len_bytes = tly_part_payload(p, part);
    part->pushed = tly_link_charge(link, len_bytes);
    p->out_of_memory |= part->pushed == 0;
    link->granted[link->granted_count++] = part;
    link->granted_bytes += len_bytes;
    link->awaited++;
}

/* PULL: wait for the RESULT, write it out, and wait until the transport has let go of the input. */

static bool pull_ready(const tly_pipeline *p, const tly_part *part)
{
    (void)p;
    /* In place, the transport may still read what would be written. */
    bool in_place = part->exchange->input == part->exchange->output;
    return part->written || (part->value && !(in_place && part->inputs_out > 0));
}

static void pull_start(tly_pipeline *p, tly_part *part)
{
    if (!part->value)
        return;
    if (!(part->exchange->kind == TLY_KIND_BROADCAST && part->exchange->root == tly_my_rank(p)))
        write_output(part, (const uint8_t *)part->value->data + part->value_offset);
    part->written = true;
    tly_buf_put(part->value);
    part->value = NULL;
}

static bool pull_complete(const tly_pipeline *p, const tly_part *part)
{
    (void)p;
    return part->inputs_out == 0;
}

enum { STAGE_SELF, STAGE_PUSH, STAGE_PULL, STAGE_END };

static const tly_stage stages[] = {
    [STAGE_SELF] = { "SELF", false, always, self_start, always },
    [STAGE_PUSH] = { "PUSH", true, push_ready, push_start, always },
    [STAGE_PULL] = { "PULL", false, pull_ready, pull_start, pull_complete },
};

/* Stage lists, by where a tensor lives. */
const uint8_t tly_stages_alone[] = { STAGE_SELF, STAGE_END };
const uint8_t tly_stages_cpu[] = { STAGE_PUSH, STAGE_PULL, STAGE_END };

const tly_stage *tly_stage_of(const tly_part *part)
{
    return &stages[part->tensor->stages[part->stage]];
}

/* Move a partition through the stages that do not wait, from the start of the present one. */
void tly_part_run(tly_pipeline *p, tly_part *part)
{
    while (part->tensor->stages[part->stage] != STAGE_END) {
        const tly_stage *s = tly_stage_of(part);
        if (s->queued) {
            if (!part->queued_at)
                tly_queue_add(&p->links[part->link].queue, part);
            return;
        }
        if (!s->ready(p, part))
            return;
        s->start(p, part);
        if (!s->complete(p, part))
            return;
        part->stage++;
    }
    part_end(p, part);
}

void tly_part_dequeue(tly_pipeline *p, tly_part *part)
{
    if (part->queued_at)
        tly_queue_remove(&p->links[part->link].queue, part);
}

bool tly_part_awaits_result(const tly_part *part)
{
    return part->exchange && !part->queued_at && !part->written && !part->value;
}

/* Jump to the last stage, where the result is written and the input comes back. */
void tly_part_to_pull(tly_pipeline *p, tly_part *part)
{
    if (part->queued_at)
        tly_part_dequeue(p, part);
    else
        p->links[part->link].awaited--;
    while (part->tensor->stages[part->stage + 1] != STAGE_END)
        part->stage++;
}

/* End a partition without a value; it waits only for its input to come back. */
void tly_part_abort(tly_pipeline *p, tly_part *part)
{
    if (part->queued_at || tly_part_awaits_result(part))
        tly_part_to_pull(p, part);
    tly_buf_put(part->value);
    part->value = NULL;
    part->written = true;
    tly_part_run(p, part);
}

/* Push a partition (again). */
void tly_part_requeue(tly_pipeline *p, tly_part *part)
{
    if (part->queued_at)
        return;
    p->links[part->link].awaited--;
    part->stage = 0;
    while (!tly_stage_of(part)->queued)
        part->stage++;
    tly_part_run(p, part);
}

void tly_part_take_early(tly_pipeline *p, tly_part *part, uint64_t round, const tly_round_error *error)
{
    if (round != part->have + 1)
        return;
    if (!part->early)
        part->early = malloc(sizeof *part->early);
    if (!part->early) {
        p->out_of_memory = true;
        return;
    }
    part->have = round;
    *part->early = *error;
}

/* ---- rounds that end in an error ---- */

static char *round_error_text(const tly_tensor *t, uint64_t round, const tly_round_error *e, tally_status *status)
{
    static const char *const calls[] = { "push_pull", "broadcast" };
    char head[TLY_SENTENCE_MAX + 64];
    snprintf(head, sizeof head, "tensor \"%s\" round %" PRIu64, t->name, round);
    *status = TALLY_ECONFLICT;
    switch (e->reason) {
    case TLY_ROUND_KIND:
        return tly_format("%s: worker %u called %s, worker %u called %s", head, e->rank_a, calls[e->value_a & 1],
                      e->rank_b, calls[e->value_b & 1]);
    case TLY_ROUND_ROOT:
        return tly_format("%s: worker %u broadcasts from root %u, worker %u from root %u", head, e->rank_a, e->value_a,
                      e->rank_b, e->value_b);
    case TLY_ROUND_DTYPE: {
        const char *a = tally_dtype_name((tally_dtype)e->value_a), *b = tally_dtype_name((tally_dtype)e->value_b);
        return tly_format("%s: worker %u pushed %s, worker %u pushed %s", head, e->rank_a, a ? a : "?", e->rank_b,
                      b ? b : "?");
    }
    case TLY_ROUND_OP: {
        const char *a = tally_op_name((tally_op)e->value_a), *b = tally_op_name((tally_op)e->value_b);
        return tly_format("%s: worker %u asked for %s, worker %u for %s", head, e->rank_a, a ? a : "?", e->rank_b,
                      b ? b : "?");
    }
    case TLY_ROUND_LENGTH:
        return tly_format("%s: worker %u pushed %u bytes of a partition, worker %u pushed %u", head, e->rank_a, e->value_a,
                      e->rank_b, e->value_b);
    case TLY_ROUND_NO_ROOT:
        return tly_format("%s: the root %u of the broadcast is not in the job", head, e->value_a);
    case TLY_ROUND_LEFT:
        *status = TALLY_ELEFT;
        return tly_format("worker %u left the job before it took part in round %" PRIu64 " of tensor \"%s\"", e->rank_a,
                      round, t->name);
    case TLY_ROUND_MEMORY:
        *status = TALLY_ENOMEM;
        return tly_format("%s: the server has no memory for %u bytes", head, e->value_a);
    default:
        *status = TALLY_EPROTO;
        return tly_format("%s: the server reports the unknown error %u", head, e->reason);
    }
}

void tly_part_round_error(tly_pipeline *p, tly_part *part, const tly_round_error *error)
{
    tally_status status;
    char *text = round_error_text(part->tensor, part->round, error, &status);
    tly_exchange_error(part->exchange, status, text);
    tly_part_abort(p, part);
}

/* Start all partitions of an exchange. */
void tly_exchange_start(tly_pipeline *p, tly_exchange *x, tly_time now)
{
    tly_tensor *t = x->tensor;
    x->parts_left = t->part_count;
    x->progress = now;
    for (uint32_t i = 0; i < t->part_count; i++) {
        tly_part *part = &t->parts[i];
        part->exchange = x;
        part->stage = 0;
        part->written = false;
        part->pushed = 0;
        part->round++;
    }
    for (uint32_t i = 0; i < t->part_count; i++) {
        tly_part *part = &t->parts[i];
        if (part->have < part->round) {
            tly_part_run(p, part);
            continue;
        }
        /* The round is over already, without this worker: only an error can be that. */
        tally_status status;
        char *text = round_error_text(t, part->round, part->early, &status);
        tly_exchange_error(x, status, text);
        part->written = true;
        while (t->stages[part->stage + 1] != STAGE_END)
            part->stage++;
        tly_part_run(p, part);
    }
}
