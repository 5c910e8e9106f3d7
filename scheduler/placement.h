/* placement.h - which server sums what. Pure; one owner thread.
 *
 * Each partition goes to the least loaded shard: by bytes, counting a partition as its bytes +
 * TLY_PLACEMENT_HANDLING, divided by the server's weight; first among servers, then among the
 * shards of that server. The table only grows; its version is the number of entries. */
#ifndef TLY_PLACEMENT_H
#define TLY_PLACEMENT_H

#include "common/control.h"

#define TLY_PLACEMENT_HANDLING 16384

typedef struct tly_placement tly_placement;

/* shard_counts[i]: shards of server i; weights[i] > 0: its share, NULL for all alike.
 * Returns: TALLY_OK, TALLY_ENOMEM */
tally_status tly_placement_create(uint32_t server_count, const uint32_t *shard_counts,
                                  const double *weights, tly_placement **placement);
void tly_placement_destroy(tly_placement *placement);

/* Worker rank declares a tensor. The first declaration of a name adds an entry; a later one that
 * agrees in dtype, count and operation adds none; one that disagrees adds an entry that says so,
 * once per tensor, naming both values and both workers. A tensor of more than 2^24 partitions gets
 * such an entry alone. Bytes of partitions may differ between workers: the first ones count.
 * Returns: TALLY_OK, TALLY_ENOMEM, TALLY_EINVAL (the sentence says what is wrong with it) */
tally_status tly_placement_declare(tly_placement *placement, uint32_t rank,
                                   const tly_declaration *declaration);

/* The number of entries, and entry index (0 to version - 1), valid until the next declare. */
uint64_t tly_placement_version(const tly_placement *placement);
const tly_placed *tly_placement_entry(const tly_placement *placement, uint64_t index);

/* Bytes placed on a server. */
uint64_t tly_placement_bytes(const tly_placement *placement, uint32_t server);

#endif
