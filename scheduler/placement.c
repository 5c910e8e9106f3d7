#include "scheduler/placement.h"

#include <stdlib.h>
#include <string.h>

/* An allocation that fails inside uthash leaves the item out, and says so by its hh.tbl. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#define PARTITION_BYTES_MIN 4096u
#define PARTITION_BYTES_MAX (1u << 30)

/* A server or a shard in a heap whose top is the lightest; among equals the lowest index. */
typedef struct load {
    double bytes; /* with handling, divided by the weight */
    uint32_t index;
} load;

/* A server, as a bin for bytes. */
typedef struct bin {
    uint64_t bytes; /* without handling */
    double weight;
    load *shards; /* heap */
    uint32_t shard_count;
} bin;

typedef struct tensor {
    UT_hash_handle hh;
    uint32_t id;
    uint32_t rank; /* who declared it first */
    tly_declaration first;
    bool unusable; /* an entry says why */
    char name[];
} tensor;

struct tly_placement {
    bin *servers;
    load *heap; /* of servers */
    uint32_t server_count;
    tensor *tensors; /* by name */
    uint32_t tensor_count;
    tly_placed *entries; /* their names belong to tensors; conflict and places are their own */
    size_t entry_count, entry_room;
};

static bool lighter(const load *a, const load *b)
{
    return a->bytes < b->bytes || (a->bytes == b->bytes && a->index < b->index);
}

/* The top has become heavier: let it sink to its place. */
static void heap_sink_top(load *heap, uint32_t count)
{
    for (uint32_t at = 0;;) {
        uint32_t least = at, child = 2 * at + 1;
        if (child < count && lighter(&heap[child], &heap[least]))
            least = child;
        if (child + 1 < count && lighter(&heap[child + 1], &heap[least]))
            least = child + 1;
        if (least == at)
            return;
        load moved = heap[at];
        heap[at] = heap[least];
        heap[least] = moved;
        at = least;
    }
}

static load *heap_create(uint32_t count)
{
    load *heap = calloc(count ? count : 1, sizeof *heap);
    for (uint32_t i = 0; heap && i < count; i++)
        heap[i].index = i;
    return heap;
}

tally_status tly_placement_create(uint32_t server_count, const uint32_t *shard_counts,
                                  const double *weights, tly_placement **placement)
{
    tly_placement *p = calloc(1, sizeof *p);
    if (!p)
        goto no_memory;
    p->servers = calloc(server_count ? server_count : 1, sizeof *p->servers);
    p->heap = heap_create(server_count);
    if (!p->servers || !p->heap)
        goto no_memory;
    p->server_count = server_count;
    for (uint32_t i = 0; i < server_count; i++) {
        p->servers[i].weight = weights ? weights[i] : 1.0;
        p->servers[i].shard_count = shard_counts[i];
        p->servers[i].shards = heap_create(shard_counts[i]);
        if (!p->servers[i].shards)
            goto no_memory;
    }
    *placement = p;
    return TALLY_OK;

no_memory:
    tly_placement_destroy(p);
    return tly_error_memory(server_count * sizeof(bin), "the placement table");
}

void tly_placement_destroy(tly_placement *placement)
{
    if (!placement)
        return;
    for (size_t i = 0; i < placement->entry_count; i++) {
        free((void *)placement->entries[i].conflict);
        free((void *)placement->entries[i].places);
    }
    free(placement->entries);
    tensor *t, *next;
    HASH_ITER(hh, placement->tensors, t, next)
    {
        HASH_DEL(placement->tensors, t);
        free(t);
    }
    for (uint32_t i = 0; i < placement->server_count; i++)
        free(placement->servers[i].shards);
    free(placement->servers);
    free(placement->heap);
    free(placement);
}

/* Give one partition to the lightest shard of the lightest server. */
static tly_place place(tly_placement *p, uint64_t len_bytes)
{
    double cost = (double)len_bytes + TLY_PLACEMENT_HANDLING;
    bin *s = &p->servers[p->heap[0].index];
    tly_place to = { (uint16_t)p->heap[0].index, (uint16_t)s->shards[0].index };
    s->bytes += len_bytes;
    s->shards[0].bytes += cost;
    heap_sink_top(s->shards, s->shard_count);
    p->heap[0].bytes += cost / s->weight;
    heap_sink_top(p->heap, p->server_count);
    return to;
}

static void place_all(tly_placement *p, const tly_declaration *d, uint64_t place_count, tly_place *places)
{
    uint64_t size = tally_dtype_size(d->dtype);
    uint64_t elements = tly_partition_elements(d->dtype, d->partition_bytes);
    for (uint64_t i = 0; i + 1 < place_count; i++)
        places[i] = place(p, elements * size);
    places[place_count - 1] = place(p, (d->count - (place_count - 1) * elements) * size);
}

/* Make room for one more entry, so that adding it cannot fail. */
static bool reserve(tly_placement *p)
{
    if (p->entry_count < p->entry_room)
        return true;
    size_t room = p->entry_room ? 2 * p->entry_room : 64;
    tly_placed *entries = realloc(p->entries, room * sizeof *entries);
    if (!entries)
        return false;
    p->entries = entries;
    p->entry_room = room;
    return true;
}

/* A name as sentences have it: cut, so that the values behind it survive, and on one line. */
#define SHOWN_MAX 200
static const char *shown(char text[SHOWN_MAX + 4], const char *name)
{
    size_t len_bytes = strlen(name);
    bool cut = len_bytes > SHOWN_MAX;
    if (cut)
        len_bytes = SHOWN_MAX;
    for (size_t i = 0; i < len_bytes; i++)
        text[i] = (unsigned char)name[i] < ' ' ? '?' : name[i];
    strcpy(text + len_bytes, cut ? "..." : "");
    return text;
}

static tally_status check(const tly_declaration *d)
{
    size_t len_bytes = strlen(d->name);
    char name[SHOWN_MAX + 4];
    if (len_bytes == 0 || len_bytes >= TLY_NAME_MAX)
        return tly_error(TALLY_EINVAL, "the name of a tensor has %zu bytes, 1 to %d are possible", len_bytes,
                         TLY_NAME_MAX - 1);
    if (d->dtype >= TALLY_DTYPE_COUNT || d->op >= TALLY_OP_COUNT)
        return tly_error(TALLY_EINVAL, "tensor \"%s\" has the unknown data type %u or operation %u",
                         shown(name, d->name), d->dtype, d->op);
    if (d->partition_bytes < PARTITION_BYTES_MIN || d->partition_bytes > PARTITION_BYTES_MAX)
        return tly_error(TALLY_EINVAL, "tensor \"%s\" has partitions of %u bytes, %u to %u are possible",
                         shown(name, d->name), d->partition_bytes, PARTITION_BYTES_MIN, PARTITION_BYTES_MAX);
    return TALLY_OK;
}

/* Add the entry that makes a tensor unusable; there is room for it. */
static tally_status add_conflict(tly_placement *p, tensor *t, const char *sentence)
{
    char *conflict = strdup(sentence);
    if (!conflict)
        return tly_error_memory(strlen(sentence) + 1, "the placement table");
    t->unusable = true;
    p->entries[p->entry_count++] = (tly_placed){
        .tensor = t->id,
        .conflict = conflict,
        .declaration = t->first,
        .first_rank = t->rank,
    };
    return TALLY_OK;
}

static tally_status declare_again(tly_placement *p, tensor *t, uint32_t rank, const tly_declaration *d)
{
    if (t->unusable || (t->first.dtype == d->dtype && t->first.op == d->op && t->first.count == d->count))
        return TALLY_OK;
    if (!reserve(p))
        return tly_error_memory(sizeof(tly_placed), "the placement table");
    char name[SHOWN_MAX + 4], sentence[TLY_SENTENCE_MAX];
    snprintf(sentence, sizeof sentence,
             "tensor \"%s\": worker %u declared %s x %llu (%s), worker %u declared %s x %llu (%s)",
             shown(name, d->name), t->rank, tally_dtype_name(t->first.dtype),
             (unsigned long long)t->first.count, tally_op_name(t->first.op), rank, tally_dtype_name(d->dtype),
             (unsigned long long)d->count, tally_op_name(d->op));
    return add_conflict(p, t, sentence);
}

/* A tensor that cannot be placed is known all the same, so that its workers hear why. */
static tally_status refuse(tly_placement *p, tensor *t, uint64_t place_count)
{
    char name[SHOWN_MAX + 4], sentence[TLY_SENTENCE_MAX];
    snprintf(sentence, sizeof sentence,
             "tensor \"%s\": worker %u declared %s x %llu (%s), which makes %llu partitions of %u bytes "
             "(BYTEPS_PARTITION_BYTES); at most %u are possible",
             shown(name, t->name), t->rank, tally_dtype_name(t->first.dtype),
             (unsigned long long)t->first.count, tally_op_name(t->first.op), (unsigned long long)place_count,
             t->first.partition_bytes, TLY_PARTITIONS_MAX);
    return add_conflict(p, t, sentence);
}

static tally_status declare_new(tly_placement *p, uint32_t rank, const tly_declaration *d)
{
    uint64_t place_count = tly_partition_count(d->dtype, d->count, d->partition_bytes);
    bool possible = place_count <= TLY_PARTITIONS_MAX;
    size_t name_bytes = strlen(d->name) + 1;
    tensor *t = calloc(1, sizeof *t + name_bytes);
    tly_place *places = possible ? malloc(place_count * sizeof *places) : NULL;
    if (!t || (possible && !places) || !reserve(p))
        goto no_memory;
    memcpy(t->name, d->name, name_bytes);
    t->id = p->tensor_count;
    t->rank = rank;
    t->first = *d;
    t->first.name = t->name;
    HASH_ADD_STR(p->tensors, name, t);
    if (!t->hh.tbl)
        goto no_memory;
    if (!possible) {
        tally_status status = refuse(p, t, place_count);
        if (status != TALLY_OK) {
            HASH_DEL(p->tensors, t);
            free(t);
            return status;
        }
        p->tensor_count++;
        return TALLY_OK;
    }
    p->tensor_count++;
    place_all(p, d, place_count, places);
    p->entries[p->entry_count++] = (tly_placed){
        .tensor = t->id,
        .declaration = t->first,
        .first_rank = rank,
        .place_count = (uint32_t)place_count,
        .places = places,
    };
    return TALLY_OK;

no_memory:
    free(t);
    free(places);
    return tly_error_memory(name_bytes + (possible ? place_count * sizeof *places : 0),
                            "the placement table");
}

tally_status tly_placement_declare(tly_placement *placement, uint32_t rank,
                                   const tly_declaration *declaration)
{
    tally_status status = check(declaration);
    if (status != TALLY_OK)
        return status;
    tensor *t;
    HASH_FIND_STR(placement->tensors, declaration->name, t);
    return t ? declare_again(placement, t, rank, declaration) : declare_new(placement, rank, declaration);
}

uint64_t tly_placement_version(const tly_placement *placement)
{
    return placement->entry_count;
}

const tly_placed *tly_placement_entry(const tly_placement *placement, uint64_t index)
{
    return &placement->entries[index];
}

uint64_t tly_placement_bytes(const tly_placement *placement, uint32_t server)
{
    return placement->servers[server].bytes;
}
