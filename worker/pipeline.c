#include "worker/pipeline.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/link.h"

#define DECLARE_BATCH 4096
/* Stalled exchanges that are asked about in one look. */
#define REPORTS_MAX 4

/* A row of the placement table, as this worker knows it. */
typedef struct entry {
    uint32_t id;
    char *name;
    tly_declaration declaration; /* its name points to name */
    uint32_t place_count;
    uint32_t *links;    /* of each partition */
    char *conflict;     /* the tensor is unusable, and why; or NULL */
    tly_tensor *tensor; /* bound to it, or NULL */
    UT_hash_handle by_id, by_name;
} entry;

/* An error RESULT of a tensor that this worker has not bound yet. */
typedef struct stray {
    struct stray *next;
    uint32_t tensor, partition;
    uint64_t round;
    tly_round_error error;
} stray;

struct tly_pipeline {
    const tly_config *config;
    const tly_log *log;
    tly_membership *membership; /* NULL: alone */
    tly_release_fn release;
    void *release_arg;
    tly_link *links;
    uint32_t link_count;
    uint32_t *first_links; /* of each server */
    entry *entries_by_id, *entries_by_name;
    tly_tensor *tensors; /* declared, by name */
    tly_tensor *undeclared, **undeclared_last; /* waiting for DECLARE */
    stray *strays;
    tly_exchange *open_first, *open_last; /* in order of issue */
    tly_exchange *ended_first, *ended_last;
    tly_out_list out;
    uint64_t inputs_out;
    uint32_t next_id_alone;
    uint64_t barrier_seq, barrier_released;
    char barrier_missing[TLY_SENTENCE_MAX];
    int left_rank;
    bool out_of_memory, hurry, stall_said;
    tally_status failed; /* TALLY_OK while well */
    char *failure;
    tly_time next_stall_look;
};

/* ---- small things ---- */

static char *format(const char *text, ...) TLY_PRINTF(1, 2);
static char *format(const char *text, ...)
{
    char *result = NULL;
    va_list args;
    va_start(args, text);
    if (vasprintf(&result, text, args) < 0)
        result = NULL;
    va_end(args);
    return result;
}

static uint32_t my_rank(const tly_pipeline *p)
{
    return p->membership ? p->membership->rank : 0;
}

static uint64_t part_offset(const tly_part *part)
{
    return part->index * part->tensor->part_bytes;
}

static uint64_t part_len(const tly_part *part)
{
    const tly_tensor *t = part->tensor;
    uint64_t total = t->count * tally_dtype_size(t->dtype);
    return part->index + 1 < t->part_count ? t->part_bytes : total - part_offset(part);
}

/* What its PUSH carries: of a broadcast only the root's has a value. */
static uint64_t payload_len(const tly_pipeline *p, const tly_part *part)
{
    const tly_exchange *x = part->exchange;
    return x->kind == TLY_KIND_PUSH_PULL || x->root == my_rank(p) ? part_len(part) : 0;
}

/* ---- the ends of exchanges ---- */

static void exchange_error(tly_exchange *x, tally_status status, char *sentence)
{
    if (x->status == TALLY_OK) {
        x->status = status;
        x->error = sentence;
    } else {
        free(sentence);
    }
}

static void exchange_end(tly_pipeline *p, tly_exchange *x)
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

static void part_end(tly_pipeline *p, tly_part *part)
{
    tly_exchange *x = part->exchange;
    part->exchange = NULL;
    if (--x->parts_left == 0)
        exchange_end(p, x);
}

/* ---- stages ---- */

/* One way station of a partition. A queued stage is entered through its link's priority queue and
 * started from there when it is ready; the others start as soon as they are. */
typedef struct stage {
    const char *name;
    bool queued;
    bool (*ready)(const tly_pipeline *p, const tly_part *part);
    void (*start)(tly_pipeline *p, tly_part *part);
    bool (*complete)(const tly_pipeline *p, const tly_part *part);
} stage;

static bool always(const tly_pipeline *p, const tly_part *part)
{
    (void)p;
    (void)part;
    return true;
}

/* SELF: a worker alone is the sum of all workers. */

static void write_output(tly_part *part, const void *from)
{
    uint8_t *to = (uint8_t *)part->exchange->output + part_offset(part);
    uint64_t len_bytes = part_len(part);
    if (len_bytes > 0 && to != from)
        memcpy(to, from, len_bytes);
    part->written = true;
}

static void self_start(tly_pipeline *p, tly_part *part)
{
    (void)p;
    write_output(part, (const uint8_t *)part->exchange->input + part_offset(part));
}

/* PUSH: grant credit and put the partition into the message being built. */

static bool push_ready(const tly_pipeline *p, const tly_part *part)
{
    const tly_link *link = &p->links[part->link];
    return link->ready && tly_link_has_credit(link, payload_len(p, part));
}

static void push_start(tly_pipeline *p, tly_part *part)
{
    tly_link *link = &p->links[part->link];
    uint64_t len_bytes = payload_len(p, part);
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
    if (!(part->exchange->kind == TLY_KIND_BROADCAST && part->exchange->root == my_rank(p)))
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

static const stage stages[] = {
    [STAGE_SELF] = { "SELF", false, always, self_start, always },
    [STAGE_PUSH] = { "PUSH", true, push_ready, push_start, always },
    [STAGE_PULL] = { "PULL", false, pull_ready, pull_start, pull_complete },
};

/* Stage lists, by where a tensor lives. */
static const uint8_t stages_alone[] = { STAGE_SELF, STAGE_END };
static const uint8_t stages_cpu[] = { STAGE_PUSH, STAGE_PULL, STAGE_END };

static const stage *stage_of(const tly_part *part)
{
    return &stages[part->tensor->stages[part->stage]];
}

/* Move a partition through the stages that do not wait, from the start of the present one. */
static void part_run(tly_pipeline *p, tly_part *part)
{
    while (part->tensor->stages[part->stage] != STAGE_END) {
        const stage *s = stage_of(part);
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

static void part_dequeue(tly_pipeline *p, tly_part *part)
{
    if (part->queued_at)
        tly_queue_remove(&p->links[part->link].queue, part);
}

static bool part_awaits_result(const tly_part *part)
{
    return part->exchange && !part->queued_at && !part->written && !part->value;
}

/* Jump to the last stage, where the result is written and the input comes back. */
static void part_to_pull(tly_pipeline *p, tly_part *part)
{
    if (part->queued_at)
        part_dequeue(p, part);
    else
        p->links[part->link].awaited--;
    while (part->tensor->stages[part->stage + 1] != STAGE_END)
        part->stage++;
}

/* End a partition without a value; it waits only for its input to come back. */
static void part_abort(tly_pipeline *p, tly_part *part)
{
    if (part->queued_at || part_awaits_result(part))
        part_to_pull(p, part);
    tly_buf_put(part->value);
    part->value = NULL;
    part->written = true;
    part_run(p, part);
}

/* ---- round errors ---- */

static char *round_error_text(const tly_tensor *t, uint64_t round, const tly_round_error *e, tally_status *status)
{
    static const char *const calls[] = { "push_pull", "broadcast" };
    char head[TLY_SENTENCE_MAX + 64];
    snprintf(head, sizeof head, "tensor \"%s\" round %" PRIu64, t->name, round);
    *status = TALLY_ECONFLICT;
    switch (e->reason) {
    case TLY_ROUND_KIND:
        return format("%s: worker %u called %s, worker %u called %s", head, e->rank_a, calls[e->value_a & 1],
                      e->rank_b, calls[e->value_b & 1]);
    case TLY_ROUND_ROOT:
        return format("%s: worker %u broadcasts from root %u, worker %u from root %u", head, e->rank_a, e->value_a,
                      e->rank_b, e->value_b);
    case TLY_ROUND_DTYPE: {
        const char *a = tally_dtype_name((tally_dtype)e->value_a), *b = tally_dtype_name((tally_dtype)e->value_b);
        return format("%s: worker %u pushed %s, worker %u pushed %s", head, e->rank_a, a ? a : "?", e->rank_b,
                      b ? b : "?");
    }
    case TLY_ROUND_OP: {
        const char *a = tally_op_name((tally_op)e->value_a), *b = tally_op_name((tally_op)e->value_b);
        return format("%s: worker %u asked for %s, worker %u for %s", head, e->rank_a, a ? a : "?", e->rank_b,
                      b ? b : "?");
    }
    case TLY_ROUND_LENGTH:
        return format("%s: worker %u pushed %u bytes of a partition, worker %u pushed %u", head, e->rank_a, e->value_a,
                      e->rank_b, e->value_b);
    case TLY_ROUND_NO_ROOT:
        return format("%s: the root %u of the broadcast is not in the job", head, e->value_a);
    case TLY_ROUND_LEFT:
        *status = TALLY_ELEFT;
        return format("worker %u left the job before it took part in round %" PRIu64 " of tensor \"%s\"", e->rank_a,
                      round, t->name);
    case TLY_ROUND_MEMORY:
        *status = TALLY_ENOMEM;
        return format("%s: the server has no memory for %u bytes", head, e->value_a);
    default:
        *status = TALLY_EPROTO;
        return format("%s: the server reports the unknown error %u", head, e->reason);
    }
}

static void part_round_error(tly_pipeline *p, tly_part *part, const tly_round_error *error)
{
    tally_status status;
    char *text = round_error_text(part->tensor, part->round, error, &status);
    exchange_error(part->exchange, status, text);
    part_abort(p, part);
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

static void entry_free(entry *e)
{
    free(e->name);
    free(e->links);
    free(e->conflict);
    free(e);
}

static void tensor_fini(tly_tensor *t)
{
    for (uint32_t i = 0; t->parts && i < t->part_count; i++) {
        tly_buf_put(t->parts[i].value);
        free(t->parts[i].early);
    }
    free(t->parts);
    free(t->error);
    t->parts = NULL;
    t->error = NULL;
}

void tly_pipeline_destroy(tly_pipeline *p)
{
    if (!p)
        return;
    entry *e, *next_entry;
    HASH_ITER(by_id, p->entries_by_id, e, next_entry)
    {
        HASH_DELETE(by_name, p->entries_by_name, e);
        HASH_DELETE(by_id, p->entries_by_id, e);
        entry_free(e);
    }
    tly_tensor *t, *next_tensor;
    HASH_ITER(by_name, p->tensors, t, next_tensor)
    {
        HASH_DELETE(by_name, p->tensors, t);
        tensor_fini(t);
    }
    for (stray *s = p->strays, *next; s; s = next) {
        next = s->next;
        free(s);
    }
    for (uint32_t i = 0; i < p->link_count; i++)
        tly_link_fini(&p->links[i]);
    free(p->links);
    free(p->first_links);
    tly_out_list_fini(&p->out);
    free(p->failure);
    free(p);
}

/* ---- sending ---- */

/* Queue one message over a link; takes the reference to body. */
static bool send_records(tly_pipeline *p, tly_link *link, const tly_record *records, uint32_t count, tly_buf *body)
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
static void hello(tly_pipeline *p, tly_link *link, bool resend, tly_time now)
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
    send_records(p, link, records, count, NULL);
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
    tly_buf_init(&input->base, data + part_offset(part), part_len(part), input_let_go);
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
        uint64_t len_bytes = payload_len(p, part);
        if (len_bytes > 0)
            memcpy(to, (const uint8_t *)part->exchange->input + part_offset(part), len_bytes);
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
                                   .seq = part_len(part),
                                   .root = x->root,
                                   .len_bytes = (uint32_t)payload_len(p, part) };
    }
    link->pushed_bytes += link->granted_bytes;
    link->granted_count = 0;
    link->granted_bytes = 0;
    if (p->out_of_memory)
        tly_buf_put(body);
    else
        send_records(p, link, records, count, body);
}

/* Can this partition join the message being built? */
static bool joins(const tly_pipeline *p, const tly_link *link, const tly_part *part)
{
    uint64_t len_bytes = payload_len(p, part);
    return link->granted_count == 0 ||
           (link->granted_count < TLY_BUNDLE_RECORD_COUNT && len_bytes <= TLY_BUNDLE_RECORD_BYTES &&
            link->granted_bytes + len_bytes <= TLY_BUNDLE_BODY_BYTES);
}

/* Start what waits in a link's queue, in order of priority, as far as it is ready. */
static void pump(tly_pipeline *p, tly_link *link, tly_time now)
{
    tly_part *part;
    while ((part = tly_queue_first(&link->queue)) && stage_of(part)->ready(p, part) && !p->out_of_memory) {
        if (!joins(p, link, part))
            send_granted(p, link, now);
        tly_queue_remove(&link->queue, part);
        stage_of(part)->start(p, part);
        part->stage++;
        if (link->granted_bytes > TLY_BUNDLE_RECORD_BYTES && link->granted_count == 1)
            send_granted(p, link, now);
    }
    send_granted(p, link, now);
}

/* ---- tensors ---- */

static bool declarations_agree(const tly_tensor *t, const tly_declaration *d)
{
    return (uint8_t)t->dtype == d->dtype && (uint8_t)t->op == d->op && t->count == d->count;
}

static void tensor_unusable(tly_pipeline *p, tly_tensor *t, tally_status status, const char *sentence)
{
    if (t->state == TLY_TENSOR_UNUSABLE)
        return;
    t->state = TLY_TENSOR_UNUSABLE;
    t->status = status;
    t->error = strdup(sentence);
    tly_exchange *x = t->exchange;
    if (!x)
        return;
    exchange_error(x, status, strdup(sentence));
    if (x->parts_left == 0) {
        exchange_end(p, x);
        return;
    }
    for (uint32_t i = 0; i < t->part_count; i++)
        if (t->parts[i].exchange)
            part_abort(p, &t->parts[i]);
}

/* Start all partitions of an exchange. */
static void exchange_start(tly_pipeline *p, tly_exchange *x, tly_time now)
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
            part_run(p, part);
            continue;
        }
        /* The round is over already, without this worker: only an error can be that. */
        tally_status status;
        char *text = round_error_text(t, part->round, part->early, &status);
        exchange_error(x, status, text);
        part->written = true;
        while (t->stages[part->stage + 1] != STAGE_END)
            part->stage++;
        part_run(p, part);
    }
}

/* Cut a tensor into partitions. links: of each, or NULL for a worker alone. */
static bool tensor_cut(tly_pipeline *p, tly_tensor *t, uint32_t id, uint32_t partition_bytes, uint32_t part_count,
                       const uint32_t *links)
{
    t->parts = calloc(part_count, sizeof *t->parts);
    if (!t->parts)
        return false;
    t->id = id;
    t->part_count = part_count;
    t->part_bytes = tly_partition_elements(t->dtype, partition_bytes) * tally_dtype_size(t->dtype);
    t->stages = links ? stages_cpu : stages_alone;
    for (uint32_t i = 0; i < part_count; i++) {
        tly_part *part = &t->parts[i];
        part->tensor = t;
        part->index = i;
        part->link = links ? links[i] : 0;
        if (links && !tly_link_add_part(&p->links[links[i]], part))
            return false;
        if (links)
            p->links[links[i]].placed_bytes += part_len(part);
    }
    return true;
}

static void take_early(tly_part *part, uint64_t round, const tly_round_error *error)
{
    if (round != part->have + 1)
        return;
    part->have = round;
    if (!part->early)
        part->early = malloc(sizeof *part->early);
    if (part->early)
        *part->early = *error;
}

/* A declared tensor meets its row of the placement table. */
static void bind_tensor(tly_pipeline *p, tly_tensor *t, entry *e, tly_time now)
{
    e->tensor = t;
    if (e->conflict) {
        tensor_unusable(p, t, TALLY_ECONFLICT, e->conflict);
        return;
    }
    if (!declarations_agree(t, &e->declaration))
        return; /* the scheduler is told, and words the conflict for all */
    if (!tensor_cut(p, t, e->id, e->declaration.partition_bytes, e->place_count, e->links)) {
        p->out_of_memory = true;
        return;
    }
    t->state = TLY_TENSOR_PLACED;
    for (stray **s = &p->strays; *s;) {
        stray *found = *s;
        if (found->tensor != e->id) {
            s = &found->next;
            continue;
        }
        *s = found->next;
        if (found->partition < t->part_count)
            take_early(&t->parts[found->partition], found->round, &found->error);
        free(found);
    }
    if (t->exchange)
        exchange_start(p, t->exchange, now);
}

static entry *entry_by_name(const tly_pipeline *p, const char *name)
{
    entry *e;
    HASH_FIND(by_name, p->entries_by_name, name, strlen(name), e);
    return e;
}

static entry *entry_by_id(const tly_pipeline *p, uint32_t id)
{
    entry *e;
    HASH_FIND(by_id, p->entries_by_id, &id, sizeof id, e);
    return e;
}

static void declare_later(tly_pipeline *p, tly_tensor *t)
{
    t->declare_queued = true;
    t->next_declared = NULL;
    *p->undeclared_last = t;
    p->undeclared_last = &t->next_declared;
}

void tly_pipeline_declare(tly_pipeline *p, tly_tensor *t, tly_time now)
{
    t->state = TLY_TENSOR_DECLARED;
    HASH_ADD_KEYPTR(by_name, p->tensors, t->name, strlen(t->name), t);
    tly_tensor *found;
    HASH_FIND(by_name, p->tensors, t->name, strlen(t->name), found);
    if (!found) {
        p->out_of_memory = true;
        return;
    }
    if (!p->membership) {
        uint64_t parts = tly_partition_count(t->dtype, t->count, (uint32_t)p->config->partition_bytes);
        if (parts > UINT32_MAX || !tensor_cut(p, t, ++p->next_id_alone, (uint32_t)p->config->partition_bytes,
                                              (uint32_t)parts, NULL)) {
            tensor_unusable(p, t, TALLY_ENOMEM, "out of memory for the tensor's partitions");
            return;
        }
        t->state = TLY_TENSOR_PLACED;
        return;
    }
    entry *e = entry_by_name(p, t->name);
    if (e)
        bind_tensor(p, t, e, now);
    if (t->state == TLY_TENSOR_DECLARED)
        declare_later(p, t);
}

/* Tell the scheduler of new names, many in one message. */
static void send_declarations(tly_pipeline *p)
{
    while (p->undeclared) {
        tly_declaration *items = malloc(DECLARE_BATCH * sizeof *items);
        if (!items) {
            p->out_of_memory = true;
            return;
        }
        uint32_t count = 0;
        while (p->undeclared && count < DECLARE_BATCH) {
            tly_tensor *t = p->undeclared;
            p->undeclared = t->next_declared;
            t->declare_queued = false;
            items[count++] = (tly_declaration){ t->name, (uint8_t)t->dtype, (uint8_t)t->op, t->count,
                                                (uint32_t)p->config->partition_bytes };
        }
        if (!p->undeclared)
            p->undeclared_last = &p->undeclared;
        tly_ctl message = { .type = TLY_CTL_DECLARE, .declare = { count, items } };
        if (tly_membership_send(p->membership, &message) != TALLY_OK)
            p->out_of_memory = true;
        free(items);
    }
}

static void send_barrier(tly_pipeline *p)
{
    tly_ctl message = { .type = TLY_CTL_BARRIER, .barrier = { p->barrier_seq } };
    if (tly_membership_send(p->membership, &message) != TALLY_OK)
        p->out_of_memory = true;
}

void tly_pipeline_scheduler_reconnected(tly_pipeline *p)
{
    tly_tensor *t, *next;
    HASH_ITER(by_name, p->tensors, t, next)
    {
        if (t->state == TLY_TENSOR_DECLARED && !t->declare_queued)
            declare_later(p, t);
    }
    if (p->barrier_seq > p->barrier_released)
        send_barrier(p);
}

/* ---- what the caller does ---- */

/* Who is missing must be known when the hard limit comes. */
static int first_report_ms(const tly_pipeline *p)
{
    return p->config->stall_warn_ms < p->config->stall_limit_ms / 2 ? p->config->stall_warn_ms
                                                                    : p->config->stall_limit_ms / 2;
}

void tly_pipeline_issue(tly_pipeline *p, tly_exchange *x, tly_time now)
{
    tly_tensor *t = x->tensor;
    x->status = TALLY_OK;
    x->error = x->missing = NULL;
    x->parts_left = 0;
    x->progress = now;
    x->next_report = now + first_report_ms(p);
    x->open = true;
    x->next = NULL;
    x->prev = p->open_last;
    *(p->open_last ? &p->open_last->next : &p->open_first) = x;
    p->open_last = x;
    t->exchange = x;
    if (p->failed != TALLY_OK)
        exchange_error(x, p->failed, strdup(p->failure ? p->failure : ""));
    else if (t->state == TLY_TENSOR_UNUSABLE)
        exchange_error(x, t->status, strdup(t->error ? t->error : ""));
    if (x->status != TALLY_OK)
        exchange_end(p, x);
    else if (t->state == TLY_TENSOR_PLACED)
        exchange_start(p, x, now);
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
            hello(p, link, true, now);
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

static bool link_of_place(const tly_pipeline *p, const tly_place *place, uint32_t *link)
{
    if (place->server >= p->membership->server_count ||
        place->shard >= p->membership->servers[place->server].endpoint_count)
        return false;
    *link = p->first_links[place->server] + place->shard;
    return true;
}

/* Copy a new row of the placement table. */
static entry *entry_create(tly_pipeline *p, const tly_placed *placed)
{
    entry *e = calloc(1, sizeof *e);
    if (!e)
        return NULL;
    e->id = placed->tensor;
    e->declaration = placed->declaration;
    e->name = strdup(placed->declaration.name);
    e->declaration.name = e->name;
    e->place_count = placed->conflict ? 0 : placed->place_count; /* with a conflict it could not be placed at all */
    e->conflict = placed->conflict ? strdup(placed->conflict) : NULL;
    e->links = calloc((size_t)e->place_count + 1, sizeof *e->links);
    bool good = e->name && e->links && !placed->conflict == !e->conflict;
    if (!e->conflict)
        good = good && e->place_count == tly_partition_count((tally_dtype)e->declaration.dtype, e->declaration.count,
                                                             e->declaration.partition_bytes);
    for (uint32_t i = 0; good && i < e->place_count; i++)
        good = link_of_place(p, &placed->places[i], &e->links[i]);
    if (!good) {
        entry_free(e);
        return NULL;
    }
    HASH_ADD(by_id, p->entries_by_id, id, sizeof e->id, e);
    HASH_ADD_KEYPTR(by_name, p->entries_by_name, e->name, strlen(e->name), e);
    return e;
}

static void take_placed(tly_pipeline *p, const tly_placed *placed, tly_time now)
{
    entry *e = entry_by_id(p, placed->tensor);
    if (e && (!placed->conflict || e->conflict))
        return;
    if (e) {
        e->conflict = strdup(placed->conflict);
        if (e->tensor)
            tensor_unusable(p, e->tensor, TALLY_ECONFLICT, placed->conflict);
        return;
    }
    e = entry_create(p, placed);
    if (!e) {
        p->out_of_memory = true;
        return;
    }
    tly_tensor *t;
    HASH_FIND(by_name, p->tensors, e->name, strlen(e->name), t);
    if (t)
        bind_tensor(p, t, e, now);
}

void tly_pipeline_control(tly_pipeline *p, const tly_ctl *m, tly_time now)
{
    switch (m->type) {
    case TLY_CTL_PLACED:
        if (m->placed.base > p->membership->placed_version)
            return; /* a gap: our next BEAT says how far we are, and the rest comes again */
        for (uint32_t i = (uint32_t)(p->membership->placed_version - m->placed.base); i < m->placed.count; i++) {
            take_placed(p, &m->placed.items[i], now);
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

/* ---- what the shards say ---- */

static tly_part *part_of(const tly_pipeline *p, const tly_record *record)
{
    entry *e = entry_by_id(p, record->tensor);
    tly_tensor *t = e ? e->tensor : NULL;
    return t && t->parts && record->partition < t->part_count ? &t->parts[record->partition] : NULL;
}

/* Push a partition (again). */
static void requeue(tly_pipeline *p, tly_part *part)
{
    if (part->queued_at)
        return;
    p->links[part->link].awaited--;
    part->stage = 0;
    while (!stage_of(part)->queued)
        part->stage++;
    part_run(p, part);
}

/* What the shard says about one key that has an exchange in flight: is our contribution wanted? */
static void reconcile(tly_pipeline *p, tly_part *part, uint64_t open, bool in)
{
    if (part->round == open && !in) {
        requeue(p, part);
    } else if (part->queued_at) { /* no: its RESULT is on the way */
        part_dequeue(p, part);
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
        if (part->queued_at || part_awaits_result(part))
            reconcile(p, part, key.seq, key.flags & TLY_FLAG_IN);
    }
    for (size_t i = 0; i < link->part_count; i++) {
        tly_part *part = link->parts[i];
        if (!part->pushed && (part->queued_at || part_awaits_result(part)))
            reconcile(p, part, 1, false);
        part->pushed = 0;
    }
    if (!link->resend && link->acked < first.seq)
        hello(p, link, true, now); /* something was lost on the way */
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
        part_round_error(p, part, &error);
    } else {
        take_early(part, r->round, &error);
    }
}

static void result_value(tly_pipeline *p, tly_part *part, const tly_record *r, tly_buf *body, uint64_t offset)
{
    part->have = r->round;
    if (!part->exchange || part->round != r->round || part->written)
        return; /* it was given up */
    if (r->len_bytes != part_len(part)) {
        exchange_error(part->exchange, TALLY_EPROTO,
                       format("tensor \"%s\" round %" PRIu64 ": partition %u has %" PRIu64
                              " bytes and the server sent %u", part->tensor->name, part->round, part->index,
                              part_len(part), r->len_bytes));
        part_abort(p, part);
        return;
    }
    if (part->value)
        return;
    part_to_pull(p, part);
    if (body && r->len_bytes > 0) {
        part->value = tly_buf_get(body);
        part->value_offset = offset;
    } else {
        part->written = true;
    }
    part_run(p, part);
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
static void missing(tly_pipeline *p, const tly_record *r, const uint8_t *payload, tly_time now)
{
    tly_part *part = part_of(p, r);
    tly_exchange *x = part ? part->exchange : NULL;
    if (!x || part->round != r->round || r->len_bytes < 4)
        return;
    char names[512] = "";
    size_t at = 0;
    for (uint32_t i = 0; i + 4 <= r->len_bytes && at + 32 < sizeof names; i += 4) {
        uint32_t rank = payload[i] | payload[i + 1] << 8 | payload[i + 2] << 16 | (uint32_t)payload[i + 3] << 24;
        at += (size_t)snprintf(names + at, sizeof names - at, "%sworker %u", i ? ", " : "", rank);
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
        } else if (r.type == TLY_MISSING && body) {
            missing(p, &r, (const uint8_t *)body->data + offset, now);
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
        hello(p, link, true, now);
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
        part_run(p, part);
}

/* ---- time ---- */

/* An earlier deadline. */
static void sooner(tly_time *deadline, tly_time then)
{
    if (then < *deadline)
        *deadline = then;
}

static void acknowledge(tly_pipeline *p, tly_link *link, tly_time now, tly_time *deadline)
{
    if (link->acked <= link->acked_said)
        return;
    if (p->hurry || now >= link->settle_at || link->unsaid_bytes >= TLY_SETTLE_BYTES)
        send_records(p, link, &(tly_record){ .type = TLY_ACK }, 1, NULL);
    else
        sooner(deadline, link->settle_at);
}

/* Silence while something is awaited: the connection may have lost it without a word. */
static void probe(tly_pipeline *p, tly_link *link, tly_time now, tly_time *deadline)
{
    if (!link->up || (link->ready && link->awaited == 0))
        return;
    if (now - link->heard >= link->probe_ms) {
        hello(p, link, !link->ready, now);
        link->probe_ms = 2 * link->probe_ms < TLY_LINK_PROBE_MAX_MS ? 2 * link->probe_ms : TLY_LINK_PROBE_MAX_MS;
    }
    sooner(deadline, link->heard + link->probe_ms);
}

/* A server that the others may see, but not we. */
static void report_unreachable(tly_pipeline *p, tly_link *link, tly_time now, tly_time *deadline)
{
    if (link->up)
        return;
    int limit_ms = p->config->death_limit_ms / 5 * 4;
    tly_time due = link->down_since + limit_ms;
    if (link->next_unreachable > due)
        due = link->next_unreachable;
    if (now >= due) {
        const tly_membership *m = p->membership;
        char text[TLY_SENTENCE_MAX];
        snprintf(text, sizeof text, "worker %u (%s) cannot reach server %u (%s) at %s within %g s%s%s", m->rank,
                 m->workers[m->rank].host, link->server, m->servers[link->server].host, link->endpoint,
                 limit_ms / 1000.0, link->trouble[0] ? ": " : "", link->trouble);
        tly_ctl message = { .type = TLY_CTL_UNREACHABLE, .peer = link->server_id, .text = text };
        tly_membership_send(p->membership, &message);
        link->next_unreachable = due = now + 1000;
    }
    sooner(deadline, due);
}

static const tly_part *first_unfinished(const tly_tensor *t)
{
    for (uint32_t i = 0; t->parts && i < t->part_count; i++)
        if (t->parts[i].exchange)
            return &t->parts[i];
    return NULL;
}

/* Say what an exchange waits for; past the hard limit, fail the job with it. */
static void report_stall(tly_pipeline *p, tly_exchange *x, tly_time now)
{
    const tly_tensor *t = x->tensor;
    const tly_part *part = first_unfinished(t);
    tly_link *link = part ? &p->links[part->link] : NULL;
    char what[TLY_SENTENCE_MAX];
    if (part && part->queued_at && link->ready && link->progress > x->progress) {
        x->progress = link->progress; /* it waits behind others, and those move */
        return;
    }
    if (!part)
        snprintf(what, sizeof what, "the scheduler has not placed it");
    else if (x->missing)
        snprintf(what, sizeof what, "%s did not take part", x->missing);
    else
        snprintf(what, sizeof what, "no answer from server %u at %s", link->server, link->endpoint);
    if (now - x->progress >= p->config->stall_limit_ms && !p->stall_said) {
        char text[2 * TLY_SENTENCE_MAX];
        snprintf(text, sizeof text, "tensor \"%s\" round %" PRIu64 ": %s within %g s (TALLY_STALL_LIMIT_MS)", t->name,
                 part ? part->round : 1, what, p->config->stall_limit_ms / 1000.0);
        p->stall_said = true;
        tly_membership_fail(p->membership, TALLY_EFAILED, text);
        return;
    }
    x->next_report = now + first_report_ms(p);
    if (part && !part->queued_at && link->ready) {
        tly_record ask = { .type = TLY_ASK, .tensor = t->id, .partition = part->index, .round = part->round };
        send_records(p, link, &ask, 1, NULL);
    } else {
        tly_log_warn(p->log, "tensor \"%s\" has waited %" PRId64 " s: %s", t->name, (now - x->progress) / 1000, what);
    }
}

static void look_for_stalls(tly_pipeline *p, tly_time now, tly_time *deadline)
{
    if (!p->open_first)
        return;
    if (now >= p->next_stall_look) {
        int reports = 0;
        int step_ms = p->config->stall_warn_ms < p->config->stall_limit_ms ? p->config->stall_warn_ms
                                                                           : p->config->stall_limit_ms;
        p->next_stall_look = now + (step_ms / 8 > 10 ? step_ms / 8 : 10);
        for (tly_exchange *x = p->open_first; x && reports < REPORTS_MAX; x = x->next) {
            tly_time quiet = now - x->progress;
            if (now >= x->next_report && quiet >= first_report_ms(p)) {
                report_stall(p, x, now);
                reports++;
            }
        }
    }
    sooner(deadline, p->next_stall_look);
}

tly_time tly_pipeline_run(tly_pipeline *p, tly_time now)
{
    tly_time deadline = TLY_NEVER;
    if (!p->membership || p->failed != TALLY_OK)
        return deadline;
    send_declarations(p);
    for (uint32_t i = 0; i < p->link_count; i++) {
        tly_link *link = &p->links[i];
        pump(p, link, now);
        acknowledge(p, link, now, &deadline);
        probe(p, link, now, &deadline);
        report_unreachable(p, link, now, &deadline);
    }
    look_for_stalls(p, now, &deadline);
    return deadline;
}

void tly_pipeline_cancel(tly_pipeline *p, tally_status status, const char *sentence)
{
    while (p->open_first) {
        tly_exchange *x = p->open_first;
        tly_tensor *t = x->tensor;
        exchange_error(x, status, strdup(sentence));
        /* Out of the open list now: it ends when its inputs are back. */
        p->open_first = x->next;
        *(x->next ? &x->next->prev : &p->open_last) = NULL;
        x->open = false;
        x->prev = x->next = NULL;
        if (x->parts_left == 0) {
            exchange_end(p, x);
            continue;
        }
        for (uint32_t i = 0; i < t->part_count; i++)
            if (t->parts[i].exchange)
                part_abort(p, &t->parts[i]);
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
