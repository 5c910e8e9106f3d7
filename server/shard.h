/* shard.h - one thread of a server with its own socket and its own keys: the thin shell around
 * round.h. The server's main thread makes shards, tells them by letters of epochs and leavers, and
 * hears of failures through its own mailbox. */
#ifndef TLY_SHARD_H
#define TLY_SHARD_H

#include <pthread.h>

#include "common/mailbox.h"
#include "common/net.h"
#include "server/round.h"

typedef struct tly_shard tly_shard;

/* What a shard posts to the mailbox it was given when it cannot go on: the sentence says why. */
typedef struct tly_shard_failure {
    tly_letter letter;
    char text[TLY_SENTENCE_MAX];
} tly_shard_failure;

/* Bind a socket to numeric, port 0; *port receives the port. The thread starts with start.
 * Returns: TALLY_OK, TALLY_ENOMEM, TALLY_ESYSTEM */
tally_status tly_shard_create(tly_net *net, const tly_config *config, const tly_log *log, const char *numeric,
                              uint32_t index, tly_mailbox *failures, tly_shard **shard, int *port);

/* Returns: TALLY_OK, TALLY_ESYSTEM */
tally_status tly_shard_start(tly_shard *shard);

/* Begin an epoch. worker_ids: by rank, copied.
 * Returns: TALLY_OK, TALLY_ENOMEM */
tally_status tly_shard_install(tly_shard *shard, uint32_t node_id, uint32_t job, uint64_t epoch,
                               uint32_t worker_count, const uint32_t *worker_ids);

/* Worker rank left the job. Returns: TALLY_OK, TALLY_ENOMEM */
tally_status tly_shard_left(tly_shard *shard, uint32_t rank);

/* Stop the thread, join it, close and free. NULL is allowed. */
void tly_shard_destroy(tly_shard *shard);

#endif
