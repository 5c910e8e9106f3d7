#include "worker/queue.h"

#include <stdlib.h>

#include "worker/pipeline.h"

void tly_queue_fini(tly_queue *queue)
{
    free(queue->items);
    *queue = (tly_queue){ 0 };
}

bool tly_queue_reserve(tly_queue *queue, size_t count)
{
    if (count <= queue->room)
        return true;
    size_t room = queue->room ? queue->room : 16;
    while (room < count)
        room *= 2;
    tly_part **items = realloc(queue->items, room * sizeof *items);
    if (!items)
        return false;
    queue->items = items;
    queue->room = room;
    return true;
}

/* Does a go before b? */
static bool before(const tly_part *a, const tly_part *b)
{
    int pa = a->exchange->priority, pb = b->exchange->priority;
    if (pa != pb)
        return pa > pb;
    if (a->tensor->id != b->tensor->id)
        return a->tensor->id < b->tensor->id;
    return a->index < b->index;
}

static void put(tly_queue *queue, size_t at, tly_part *part)
{
    queue->items[at] = part;
    part->queued_at = (uint32_t)at + 1;
}

static void sift_up(tly_queue *queue, size_t at, tly_part *part)
{
    while (at > 0 && before(part, queue->items[(at - 1) / 2])) {
        put(queue, at, queue->items[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    put(queue, at, part);
}

static void sift_down(tly_queue *queue, size_t at, tly_part *part)
{
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= queue->count)
            break;
        if (child + 1 < queue->count && before(queue->items[child + 1], queue->items[child]))
            child++;
        if (!before(queue->items[child], part))
            break;
        put(queue, at, queue->items[child]);
        at = child;
    }
    put(queue, at, part);
}

void tly_queue_add(tly_queue *queue, tly_part *part)
{
    sift_up(queue, queue->count++, part);
}

tly_part *tly_queue_first(const tly_queue *queue)
{
    return queue->count ? queue->items[0] : NULL;
}

void tly_queue_remove(tly_queue *queue, tly_part *part)
{
    size_t at = part->queued_at - 1;
    tly_part *last = queue->items[--queue->count];
    part->queued_at = 0;
    if (last == part)
        return;
    if (at > 0 && before(last, queue->items[(at - 1) / 2]))
        sift_up(queue, at, last);
    else
        sift_down(queue, at, last);
}
