/* roster.h - who is in the job: registration, the epoch, heartbeats, barriers, declarations, and
 * the one sentence of a failure. The scheduler's pure core: told messages and the time, it queues
 * messages. One owner thread. Default mode: the first death fails the job.
 *
 * A job passes through: waiting for its nodes; running, from the one epoch that lists them all;
 * then ended (all workers have left), or failed. A failure is latched and answers everything.
 * A worker's place is its DMLC_WORKER_ID; servers are numbered in the order of registration.
 * A node is known by the nonce of its process, then by the id that it is given; answers go where its
 * last message came from. Every message of a node may come twice. */
#ifndef TLY_ROSTER_H
#define TLY_ROSTER_H

#include "common/clock.h"
#include "common/control.h"

typedef struct tly_roster tly_roster;

/* config: num_worker, num_server and the limits; it and log must outlive the roster.
 * job: random, not 0. start_counter: the upper half of every epoch, 1 at the first start.
 * Returns: TALLY_OK, TALLY_ENOMEM */
tally_status tly_roster_create(const tly_config *config, const tly_log *log, uint32_t job,
                               uint32_t start_counter, tly_time now, tly_roster **roster);
void tly_roster_destroy(tly_roster *roster);

/* A message of a node, decoded, and where its answers go. */
void tly_roster_message(tly_roster *roster, const tly_peer *peer, const tly_ctl *message, tly_time now);

/* A message that could not be decoded because its version is another: answer REFUSED. */
void tly_roster_foreign(tly_roster *roster, const tly_peer *peer, const char *sentence);

/* Do what is due; messages that wait should be handed over before, so that nobody seems silent who
 * is not. A call much later than asked for means that this process was stopped, and gives every node
 * the time to beat again. Returns: when to call again. */
tly_time tly_roster_tick(tly_roster *roster, tly_time now);

/* Fail the job for a reason of the shell's (a signal). A job that has ended is over then. */
void tly_roster_fail(tly_roster *roster, tally_status status, const char *sentence, tly_time now);

/* The queue of messages to send; the shell pops and frees. */
tly_out_list *tly_roster_out(tly_roster *roster);

/* Is everything over? *exit_status: 0 when all workers left in order, else 1; *failure: the
 * sentence, or NULL. */
bool tly_roster_done(const tly_roster *roster, int *exit_status, const char **failure);

#endif
