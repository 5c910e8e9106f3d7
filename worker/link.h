/* link.h - a worker's session with one shard: its number, what has been received and acknowledged,
 * the results that are kept, and the credit. Pure; owned by the pipeline. */
#ifndef TLY_LINK_H
#define TLY_LINK_H

#include "common/ring.h"
#include "worker/pipeline.h"

/* What one PUSH costs in credit above its bytes. */
#define TLY_LINK_PUSH_COST 64

/* How long a shard may be silent while something is awaited of it; doubled while it stays silent. */
#define TLY_LINK_PROBE_MS 3000
#define TLY_LINK_PROBE_MAX_MS 30000

typedef struct tly_link {
    uint32_t server, shard;     /* places in the epoch's list */
    uint32_t server_id;
    const char *endpoint;       /* the membership's */
    /* the connection */
    bool up;
    tly_time down_since, next_unreachable;
    char trouble[128];
    /* the session */
    uint32_t session;           /* n of the last HELLO */
    bool resend;                /* as that HELLO said */
    bool ready;                 /* its READY is here */
    bool ever_ready;            /* a READY of this epoch was here */
    tly_time heard;             /* the last message */
    tly_time progress;          /* the last RESULT, RECEIVED or READY */
    int probe_ms;               /* how long silence is borne while something is awaited */
    uint64_t awaited;           /* partitions pushed whose RESULT is not here */
    /* results */
    uint64_t acked, acked_said;
    uint64_t unsaid_bytes;
    tly_time settle_at;         /* when to say ACK, at the latest */
    tly_ring kept;              /* of tly_kept, in order of seq */
    /* credit */
    uint64_t credit_bytes, part_cost_max;
    uint64_t used_bytes;
    uint64_t pushed, arrived;   /* PUSH records of this session: sent, and known to have arrived */
    tly_ring costs;             /* of uint64_t: arrived+1 .. pushed */
    tly_queue queue;            /* partitions that wait for PUSH */
    /* the message being built: partitions that were granted credit */
    tly_part *granted[TLY_BUNDLE_RECORD_COUNT];
    uint32_t granted_count;
    size_t granted_bytes;
    /* what it serves */
    tly_part **parts;           /* of this worker's tensors */
    size_t part_count, part_room;
    uint64_t placed_bytes, pushed_bytes, pulled_bytes;
} tly_link;

/* A result that some worker may lack: kept by reference until it is stable. */
typedef struct tly_kept {
    uint64_t seq;
    tly_buf *body;
} tly_kept;

void tly_link_init(tly_link *link, const tly_config *config, tly_time now);
void tly_link_fini(tly_link *link);

/* Remember that the shard serves part. Returns: false when memory is short. */
bool tly_link_add_part(tly_link *link, tly_part *part);

/* Does the next PUSH fit the credit? One always does when nothing is out. */
bool tly_link_has_credit(const tly_link *link, uint64_t len_bytes);

/* Charge a PUSH. Returns: its number in the session, 0 when memory is short. */
uint64_t tly_link_charge(tly_link *link, uint64_t len_bytes);

/* May the next PUSH, of whatever size, not fit the credit? */
bool tly_link_wants_credit(const tly_link *link);

/* PUSHes up to this number of the session have arrived. */
void tly_link_arrived(tly_link *link, uint64_t number);

/* A new session: nothing is known to be out. */
void tly_link_reset_credit(tly_link *link);

/* Keep the RESULT that was just counted in acked. Returns: false when memory is short. */
bool tly_link_keep(tly_link *link, tly_buf *body, tly_time now);

/* Free what is kept up to stable. */
void tly_link_stable(tly_link *link, uint64_t stable);

#endif
