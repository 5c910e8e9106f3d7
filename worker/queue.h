/* queue.h - partitions that are ready to be pushed to one shard: higher priority first, then order of
 * placement (the tensor's id, which is the same on all workers), then partition index. A binary
 * heap that knows where each partition stands, so that one can be taken out. Owner: the pipeline. */
#ifndef TLY_QUEUE_H
#define TLY_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tly_part;

typedef struct tly_queue {
    struct tly_part **items;
    size_t count, room;
} tly_queue;

void tly_queue_fini(tly_queue *queue); /* a zeroed one is an empty queue */

/* Make room for count items, so that add cannot fail. Returns: false when memory is short. */
bool tly_queue_reserve(tly_queue *queue, size_t count);

void tly_queue_add(tly_queue *queue, struct tly_part *part);
struct tly_part *tly_queue_first(const tly_queue *queue); /* NULL when empty */
void tly_queue_remove(tly_queue *queue, struct tly_part *part);

#endif
