/* round.h - the sums of one shard: its keys, their rounds, and the exchange with the workers by the
 * rules of docs/protocol.md ("Shard"). The server's pure core: told messages and the time, it queues
 * messages. One owner thread.
 *
 * A key is one partition of one tensor. The first contribution to a round becomes the accumulator,
 * each later one is added into it in place, and that same buffer goes to every worker. It is never
 * written again, and freed when no worker can lack it. */
#ifndef TLY_ROUND_H
#define TLY_ROUND_H

#include "common/clock.h"
#include "common/log.h"
#include "common/wire.h"

typedef struct tly_rounds tly_rounds;

typedef struct tly_rounds_stats {
    uint64_t keys;
    uint64_t open;           /* rounds with some, not all, contributions */
    uint64_t log_count;      /* results that some worker may still lack */
    uint64_t rounds;         /* finished */
    uint64_t dropped;        /* messages that were malformed or of another job or epoch */
} tly_rounds_stats;

/* node_id: of this server. deterministic: add contributions in worker order. log must outlive it.
 * Returns: TALLY_OK, TALLY_ENOMEM */
tally_status tly_rounds_create(uint32_t node_id, uint32_t job, bool deterministic, const tly_log *log,
                               tly_rounds **rounds);
void tly_rounds_destroy(tly_rounds *rounds);

/* Begin an epoch with these workers, in order of rank; everything of an older one is forgotten.
 * Returns: TALLY_OK, TALLY_ENOMEM */
tally_status tly_rounds_install(tly_rounds *rounds, uint64_t epoch, uint32_t worker_count,
                                const uint32_t *worker_ids, tly_time now);

/* A message from a worker. frame and body stay the caller's; what is needed of body is kept by
 * reference, and its memory may be written, so nobody else may read it. */
void tly_rounds_message(tly_rounds *rounds, const tly_peer *peer, const void *frame, size_t len_bytes,
                        tly_buf *body, tly_time now);

/* There is nothing more to read now: return credit to who wants it. */
void tly_rounds_idle(tly_rounds *rounds);

/* This worker left the job in order: what needs it ends with an error. */
void tly_rounds_left(tly_rounds *rounds, uint32_t rank, tly_time now);

/* Do what is due. Returns: when to call again. */
tly_time tly_rounds_tick(tly_rounds *rounds, tly_time now);

/* The queue of messages to send; the shell pops and frees. */
tly_out_list *tly_rounds_out(tly_rounds *rounds);

/* Did memory run out where no worker could be told? Then the server must fail. */
bool tly_rounds_failed(const tly_rounds *rounds);

void tly_rounds_stats_get(const tly_rounds *rounds, tly_rounds_stats *stats);

#endif
