/* membership.h - a node's side of the scheduler's protocol: registering, beating, and the one
 * sentence of a failure. Pure: told events and the time, it queues messages for the scheduler.
 *
 * The owner decodes each message, gives it to tly_membership_message, and then handles PLACED, LEFT
 * (of others), BARRIER and WAITING (in a barrier) itself. After a failure nothing changes any more
 * but that the owner may still leave: then LEAVE is queued once and the state stays.
 *
 * Every message to the scheduler may be lost with a connection, and every one may come twice: what
 * matters is said again until it is answered (REGISTER, LEAVE, a failure), and the beats tell how
 * much of the placement table is here. Barriers and declarations are for the owner to repeat after
 * a reconnect. */
#ifndef TLY_MEMBERSHIP_H
#define TLY_MEMBERSHIP_H

#include "common/address.h"
#include "common/clock.h"
#include "common/control.h"

typedef enum tly_membership_state {
    TLY_MEMBER_JOINING, /* REGISTER is out; no EPOCH yet */
    TLY_MEMBER_IN,      /* the epoch is installed */
    TLY_MEMBER_LEAVING, /* LEAVE is out */
    TLY_MEMBER_LEFT,    /* the scheduler knows, or LEAVE's limit passed */
    TLY_MEMBER_ENDED,   /* servers: all workers have left */
    TLY_MEMBER_FAILED   /* status and sentence say why */
} tly_membership_state;

typedef struct tly_membership {
    tly_membership_state state;
    tally_status failure_status;        /* FAILED: EFAILED, EREFUSED, EVERSION, ETIMEDOUT */
    char failure[TLY_SENTENCE_MAX];     /* FAILED: the sentence, alike on all nodes */
    char waiting[TLY_SENTENCE_MAX];     /* JOINING: the last word about who is missing, or "" */
    char trouble[256];                  /* JOINING: the owner's last word about the connection */
    uint32_t job, id, rank;
    uint64_t epoch;
    uint32_t worker_count, server_count;
    tly_node *workers, *servers;        /* owned, with their strings */
    uint64_t placed_version;            /* the owner counts it up as it takes PLACED entries */
    tly_out_list out;                   /* for the scheduler */
    /* inner */
    const tly_config *config;
    const tly_log *log;
    tly_role role;
    uint64_t nonce;
    char scheduler[TLY_ENDPOINT_MAX];
    char host[256];
    uint32_t endpoint_count;
    char (*endpoints)[TLY_ENDPOINT_MAX];
    tly_time started, heard, next_beat, next_register, next_report, leave_by;
    tly_time due;                       /* what the last tick asked for */
    int death_limit_ms;                 /* ours, then the scheduler's */
    bool answered;                      /* the scheduler has answered at least once */
    tally_status said_status;           /* what tly_membership_fail has told the scheduler */
    char said[TLY_SENTENCE_MAX];        /* "" if nothing */
} tly_membership;

/* config, log and the strings must outlive m (strings are copied). endpoints: one per shard.
 * nonce: random, of this process. scheduler: its endpoint, for sentences.
 * Returns: TALLY_OK (REGISTER is queued), TALLY_ENOMEM */
tally_status tly_membership_init(tly_membership *m, const tly_config *config, const tly_log *log,
                                 tly_role role, uint64_t nonce, const char *scheduler,
                                 const char *host, uint32_t endpoint_count,
                                 const char *const *endpoints, tly_time now);
void tly_membership_fini(tly_membership *m);

/* A message of the scheduler's, decoded. Messages of another job, and of another epoch where the
 * protocol says so, change nothing.
 * Returns: true if the owner should look at it too */
bool tly_membership_message(tly_membership *m, const tly_ctl *message, tly_time now);

/* The connection to the scheduler was made anew: REGISTER again. */
void tly_membership_reconnected(tly_membership *m, tly_time now);

/* Do what is due: beats, REGISTER again, the 5 s report while joining, the limits.
 * Returns: when to call again. */
tly_time tly_membership_tick(tly_membership *m, tly_time now);

/* Tell the scheduler that the job must fail, with this sentence. The failure comes back from it, so
 * that all nodes word it alike. Said once; repeated after a reconnect until FAIL is here. */
void tly_membership_fail(tly_membership *m, tally_status status, const char *sentence);

/* Fail alone: for what concerns only this node, or a scheduler that does not answer. */
void tly_membership_fail_here(tly_membership *m, tally_status status, const char *sentence);

/* Begin to leave: LEAVE is queued; LEFT or limit_ms ends it. A node that the scheduler has never
 * answered has left at once. */
void tly_membership_leave(tly_membership *m, int limit_ms, tly_time now);

/* Queue a message of the owner's (DECLARE, BARRIER, UNREACHABLE): fills job, epoch and sender.
 * Returns: TALLY_OK, TALLY_ENOMEM */
tally_status tly_membership_send(tly_membership *m, tly_ctl *message);

#endif
