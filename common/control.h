/* control.h - messages between a node (worker or server) and the scheduler. Pure.
 *
 * One struct for all of them; type says which part of it is meant. Decoding allocates the arrays;
 * strings point into the frame, which must outlive the message. */
#ifndef TLY_CONTROL_H
#define TLY_CONTROL_H

#include "common/config.h"
#include "common/wire.h"

#define TLY_NAME_MAX 1024 /* of a tensor, with its final 0 */
#define TLY_PARTITIONS_MAX (1u << 20) /* of a tensor: what the scheduler can place between two beats */

typedef enum tly_ctl_type {
    /* node to scheduler */
    TLY_CTL_REGISTER = 1, /* reg; repeated until EPOCH comes, and after a dropped connection */
    TLY_CTL_BEAT = 2,     /* both ways; beat */
    TLY_CTL_DECLARE = 3,  /* declare */
    TLY_CTL_BARRIER = 4,  /* both ways; barrier: arrived at seq, released from seq */
    TLY_CTL_LEAVE = 5,    /* this node goes, in order */
    TLY_CTL_UNREACHABLE = 6, /* peer, text: this node cannot reach that one */
    TLY_CTL_FAIL = 7,     /* both ways; status, text: the job has failed */
    /* scheduler to node */
    TLY_CTL_EPOCH = 8,    /* epoch */
    TLY_CTL_PLACED = 9,   /* placed */
    TLY_CTL_LEFT = 10,    /* peer (node id), rank: that worker left; to the leaver: its LEAVE is known */
    TLY_CTL_REFUSED = 11, /* status, text: this node is not wanted */
    TLY_CTL_WAITING = 12, /* text: who is missing, at the start or (barrier.seq > 0) in a barrier */
    TLY_CTL_END = 13,     /* all workers have left: servers end well */
    TLY_CTL_TYPE_END
} tly_ctl_type;

/* A node as the roster announces it. */
typedef struct tly_node {
    uint32_t id;          /* never reused within a job; 0 is the scheduler */
    uint32_t rank;        /* worker: rank; server: index */
    uint32_t local_size;  /* worker: ranks on it */
    const char *host;     /* for sentences: "host:pid" */
    uint32_t endpoint_count;      /* server: one per shard; worker: 0 */
    const char *const *endpoints; /* "tcp://ADDRESS:PORT" */
} tly_node;

typedef struct tly_declaration {
    const char *name;
    uint8_t dtype, op;
    uint64_t count;           /* elements */
    uint32_t partition_bytes; /* as the declaring worker was told; the first one counts */
} tly_declaration;

/* Where one partition is summed. */
typedef struct tly_place {
    uint16_t server; /* index of the server in the epoch's list */
    uint16_t shard;  /* index of its endpoint */
} tly_place;

/* One entry of the placement table, which only grows. Entry number = version. */
typedef struct tly_placed {
    uint32_t tensor;          /* its id: 0, 1, 2 in the order in which names became known */
    const char *conflict;     /* NULL: a new tensor. Else: this tensor is unusable from now on, and why.
                                 Of the fields below only declaration.name is then meant: the name
                                 may have no earlier entry, when it could not be placed at all */
    tly_declaration declaration;
    uint32_t first_rank;      /* who declared it first */
    uint32_t place_count;     /* number of partitions, tly_partition_count */
    const tly_place *places;
} tly_placed;

typedef struct tly_ctl {
    tly_ctl_type type;
    uint32_t job;
    uint64_t epoch;
    uint32_t sender;
    struct {
        uint8_t role;             /* tly_role */
        uint64_t nonce;           /* of this process: a repeated REGISTER has the same one */
        uint32_t id;              /* what the scheduler gave, 0 before */
        uint32_t rank;            /* DMLC_WORKER_ID; servers 0 */
        uint32_t num_worker, num_server; /* as this node was told */
        uint32_t local_size;
        uint64_t placed_version;  /* how much of the placement table it has */
        const char *host;
        uint32_t endpoint_count;
        const char *const *endpoints;
    } reg;
    struct {
        uint64_t placed_version;
    } beat;
    struct {
        uint32_t count;
        const tly_declaration *items;
    } declare;
    struct {
        uint64_t seq; /* from 1 */
    } barrier;
    struct {
        uint32_t id, rank; /* who the receiver is */
        uint32_t death_limit_ms; /* the scheduler's TALLY_DEATH_LIMIT_MS, which counts for all */
        uint32_t worker_count, server_count;
        const tly_node *workers, *servers; /* in order of rank and index */
    } epoch_info;
    struct {
        uint64_t base;  /* version before the first of these entries */
        uint32_t count;
        const tly_placed *items;
    } placed;
    uint32_t peer;      /* LEFT, UNREACHABLE: node id */
    uint32_t rank;      /* LEFT */
    uint32_t status;    /* FAIL, REFUSED: tally_status */
    const char *text;   /* FAIL, REFUSED, WAITING, UNREACHABLE; never NULL after decoding */
    void *memory;       /* what decoding allocated */
} tly_ctl;

/* Append the whole message (header and body) to an empty writer.
 * Returns: TALLY_OK, TALLY_ENOMEM */
tally_status tly_ctl_encode(const tly_ctl *message, tly_writer *out);

/* Returns: TALLY_OK (tly_ctl_fini frees), TALLY_EVERSION, TALLY_EPROTO, TALLY_ENOMEM */
tally_status tly_ctl_decode(const void *frame, size_t len_bytes, tly_ctl *message);
void tly_ctl_fini(tly_ctl *message);

/* The same as an entry for a list of messages to send; NULL when memory is short. */
tly_out *tly_ctl_out(const tly_ctl *message);

/* Name of a type ("REGISTER"), for logs; "unknown" for what is none. */
const char *tly_ctl_name(tly_ctl_type type);

/* Time between two beats of a node, and after how long a silence a peer counts as dead: a tenth and
 * nine tenths of the death limit, so that everybody knows of a death within it. */
int tly_beat_ms(int death_limit_ms);
int tly_silence_ms(int death_limit_ms);

/* Write a duration as sentences have it: "10 s", "1500 ms". Returns text. */
#define TLY_DURATION_MAX 24
const char *tly_duration(char text[TLY_DURATION_MAX], int duration_ms);

/* How a tensor is cut. Each partition but the last has tly_partition_elements elements: as many
 * whole ones as fit in partition_bytes, at least 1. There is always one partition, also of 0
 * elements. */
uint64_t tly_partition_elements(tally_dtype dtype, uint32_t partition_bytes);
uint64_t tly_partition_count(tally_dtype dtype, uint64_t count, uint32_t partition_bytes);

#endif
