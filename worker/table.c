/* table.c - tensors that this worker has declared, the placement table, and how the two meet. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/pipeline_inner.h"

#define DECLARE_BATCH 4096

static entry *entry_by_name(const tly_pipeline *p, const char *name)
{
    entry *e;
    HASH_FIND(by_name, p->entries_by_name, name, strlen(name), e);
    return e;
}

entry *tly_table_find(const tly_pipeline *p, uint32_t id)
{
    entry *e;
    HASH_FIND(by_id, p->entries_by_id, &id, sizeof id, e);
    return e;
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
    tly_exchange_error(x, status, strdup(sentence));
    if (x->parts_left == 0) {
        tly_exchange_end(p, x);
        return;
    }
    for (uint32_t i = 0; i < t->part_count; i++)
        if (t->parts[i].exchange)
            tly_part_abort(p, &t->parts[i]);
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
    t->stages = links ? tly_stages_cpu : tly_stages_alone;
    for (uint32_t i = 0; i < part_count; i++) {
        tly_part *part = &t->parts[i];
        part->tensor = t;
        part->index = i;
        part->link = links ? links[i] : 0;
        if (links && !tly_link_add_part(&p->links[links[i]], part))
            return false;
        if (links)
            p->links[links[i]].placed_bytes += tly_part_len(part);
    }
    return true;
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
            tly_part_take_early(p, &t->parts[found->partition], found->round, &found->error);
        free(found);
    }
    if (t->exchange)
        tly_exchange_start(p, t->exchange, now);
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
void tly_table_send(tly_pipeline *p)
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

/* ---- what the scheduler says ---- */

/* Is every partition placed, and on a shard of the epoch? */
static bool places_are_sound(const tly_pipeline *p, const tly_placed *placed)
{
    const tly_declaration *d = &placed->declaration;
    if (placed->place_count != tly_partition_count((tally_dtype)d->dtype, d->count, d->partition_bytes))
        return false;
    for (uint32_t i = 0; i < placed->place_count; i++) {
        const tly_place *place = &placed->places[i];
        if (place->server >= p->membership->server_count ||
            place->shard >= p->membership->servers[place->server].endpoint_count)
            return false;
    }
    return true;
}

/* Copy a new row of the placement table. Returns: NULL when memory is short. */
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
    if (!e->name || !e->links || (placed->conflict && !e->conflict)) {
        entry_free(e);
        return NULL;
    }
    for (uint32_t i = 0; i < e->place_count; i++)
        e->links[i] = p->first_links[placed->places[i].server] + placed->places[i].shard;
    HASH_ADD(by_id, p->entries_by_id, id, sizeof e->id, e);
    if (tly_table_find(p, e->id) != e) {
        entry_free(e);
        return NULL;
    }
    HASH_ADD_KEYPTR(by_name, p->entries_by_name, e->name, strlen(e->name), e);
    if (entry_by_name(p, e->name) != e) {
        HASH_DELETE(by_id, p->entries_by_id, e);
        entry_free(e);
        return NULL;
    }
    return e;
}

void tly_table_take(tly_pipeline *p, const tly_placed *placed, tly_time now)
{
    entry *e = tly_table_find(p, placed->tensor);
    if (e && (!placed->conflict || e->conflict))
        return;
    if (e) {
        e->conflict = strdup(placed->conflict);
        p->out_of_memory |= !e->conflict;
        if (e->tensor)
            tensor_unusable(p, e->tensor, TALLY_ECONFLICT, placed->conflict);
        return;
    }
    if (!placed->conflict && !places_are_sound(p, placed)) {
        char text[2 * TLY_SENTENCE_MAX];
        snprintf(text, sizeof text, "tensor \"%s\": the scheduler placed its partitions (%u) where there is no server",
                 placed->declaration.name, placed->place_count);
        tly_membership_fail(p->membership, TALLY_EFAILED, text);
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

void tly_table_redeclare(tly_pipeline *p)
{
    tly_tensor *t, *next;
    HASH_ITER(by_name, p->tensors, t, next)
    {
        if (t->state == TLY_TENSOR_DECLARED && !t->declare_queued)
            declare_later(p, t);
    }
}

void tly_table_fini(tly_pipeline *p)
{
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
}
