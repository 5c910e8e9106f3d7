#include "common/ring.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_ROOM 16

void tly_ring_init(tly_ring *ring, size_t item_bytes)
{
    *ring = (tly_ring){ .item_bytes = item_bytes };
}

void tly_ring_fini(tly_ring *ring)
{
    free(ring->items);
    tly_ring_init(ring, ring->item_bytes);
}

void *tly_ring_at(const tly_ring *ring, size_t index)
{
    size_t at = ring->first + index;
    return ring->items + (at < ring->room ? at : at - ring->room) * ring->item_bytes;
}

static bool grow(tly_ring *ring)
{
    size_t room = ring->room ? 2 * ring->room : FIRST_ROOM;
    char *items = malloc(room * ring->item_bytes);
    if (!items)
        return false;
    for (size_t i = 0; i < ring->count; i++)
        memcpy(items + i * ring->item_bytes, tly_ring_at(ring, i), ring->item_bytes);
    free(ring->items);
    ring->items = items;
    ring->room = room;
    ring->first = 0;
    return true;
}

bool tly_ring_push(tly_ring *ring, const void *item)
{
    if (ring->count == ring->room && !grow(ring))
        return false;
    ring->count++;
    memcpy(tly_ring_at(ring, ring->count - 1), item, ring->item_bytes);
    return true;
}

void tly_ring_pop(tly_ring *ring)
{
    ring->first = ring->first + 1 < ring->room ? ring->first + 1 : 0;
    ring->count--;
}
