#include "worker/link.h"

#include <stdlib.h>

void tly_link_init(tly_link *link, const tly_config *config, tly_time now)
{
    *link = (tly_link){ .down_since = now,
                        .next_unreachable = now,
                        .heard = now,
                        .progress = now,
                        .probe_ms = TLY_LINK_PROBE_MS,
                        .settle_at = TLY_NEVER,
                        .part_cost_max = (uint64_t)config->partition_bytes + TLY_LINK_PUSH_COST };
    link->credit_bytes = config->credit ? (uint64_t)config->credit * link->part_cost_max : UINT64_MAX / 2;
    tly_ring_init(&link->kept, sizeof(tly_kept));
    tly_ring_init(&link->costs, sizeof(uint64_t));
}

void tly_link_fini(tly_link *link)
{
    tly_link_stable(link, UINT64_MAX);
    tly_ring_fini(&link->kept);
    tly_ring_fini(&link->costs);
    tly_queue_fini(&link->queue);
    free(link->parts);
}

bool tly_link_add_part(tly_link *link, tly_part *part)
{
    if (link->part_count == link->part_room) {
        size_t room = link->part_room ? 2 * link->part_room : 16;
        tly_part **parts = realloc(link->parts, room * sizeof *parts);
        if (!parts)
            return false;
        link->parts = parts;
        link->part_room = room;
    }
    if (!tly_queue_reserve(&link->queue, link->part_count + 1))
        return false;
    link->parts[link->part_count++] = part;
    return true;
}

/* A partition that another worker's setting made larger than ours counts as one of ours, so that a
 * part_cost_max holds for all and TLY_FLAG_WANT is never missing when the sender is stuck. */
static uint64_t cost_of(const tly_link *link, uint64_t len_bytes)
{
    uint64_t cost = len_bytes + TLY_LINK_PUSH_COST;
    return cost < link->part_cost_max ? cost : link->part_cost_max;
}

bool tly_link_has_credit(const tly_link *link, uint64_t len_bytes)
{
    return link->used_bytes == 0 || link->used_bytes + cost_of(link, len_bytes) <= link->credit_bytes;
}

uint64_t tly_link_charge(tly_link *link, uint64_t len_bytes)
{
    uint64_t cost = cost_of(link, len_bytes);
    if (!tly_ring_push(&link->costs, &cost))
        return 0;
    link->used_bytes += cost;
    return ++link->pushed;
}

bool tly_link_wants_credit(const tly_link *link)
{
    return link->used_bytes + link->part_cost_max > link->credit_bytes;
}

void tly_link_arrived(tly_link *link, uint64_t number)
{
    while (link->arrived < number && link->costs.count > 0) {
        link->used_bytes -= *(uint64_t *)tly_ring_at(&link->costs, 0);
        tly_ring_pop(&link->costs);
        link->arrived++;
    }
}

void tly_link_reset_credit(tly_link *link)
{
    tly_link_arrived(link, link->pushed);
    link->pushed = link->arrived = 0;
}

bool tly_link_keep(tly_link *link, tly_buf *body, tly_time now)
{
    tly_kept kept = { link->acked, body };
    if (!tly_ring_push(&link->kept, &kept))
        return false;
    if (body)
        tly_buf_get(body);
    if (link->settle_at == TLY_NEVER)
        link->settle_at = now + TLY_SETTLE_MS;
    return true;
}

void tly_link_stable(tly_link *link, uint64_t stable)
{
    while (link->kept.count > 0) {
        tly_kept *kept = tly_ring_at(&link->kept, 0);
        if (kept->seq > stable)
            return;
        tly_buf_put(kept->body);
        tly_ring_pop(&link->kept);
    }
}
