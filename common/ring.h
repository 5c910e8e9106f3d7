/* ring.h - a first-in first-out queue of equal items in one growing block. Pure; one owner thread. */
#ifndef TLY_RING_H
#define TLY_RING_H

#include <stdbool.h>
#include <stddef.h>

typedef struct tly_ring {
    char *items;
    size_t item_bytes, room, first, count;
} tly_ring;

void tly_ring_init(tly_ring *ring, size_t item_bytes);
void tly_ring_fini(tly_ring *ring); /* the items' own memory is the owner's matter */

/* Append a copy of an item. Returns: false when memory is short; nothing has changed then. */
bool tly_ring_push(tly_ring *ring, const void *item);

/* Item index, counted from the oldest; valid until the next push. index < count. */
void *tly_ring_at(const tly_ring *ring, size_t index);

/* Forget the oldest item. count > 0. */
void tly_ring_pop(tly_ring *ring);

#endif
