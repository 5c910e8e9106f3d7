/* pipeline.h - the worker's pure core: tensors cut into partitions, their way through the stages,
 * priority, credit, and the exchange with the shards by the rules of docs/protocol.md ("Worker").
 *
 * Told events and the time, it queues messages for the shards (each with the link it belongs to)
 * and, through the membership, for the scheduler; exchanges that have ended stand in a list. It
 * holds no socket, thread or clock. One owner thread.
 *
 * A partition is the unit of everything: it has a key (tensor id, index), one shard that sums it, a
 * round number that counts its exchanges, and at most one exchange in flight. */
#ifndef TLY_PIPELINE_H
#define TLY_PIPELINE_H

#include "common/hash.h"
#include "common/mailbox.h"
#include "common/membership.h"
#include "worker/queue.h"

typedef struct tly_part tly_part;
typedef struct tly_tensor tly_tensor;
typedef struct tly_exchange tly_exchange;
typedef struct tly_pipeline tly_pipeline;

/* One push_pull or broadcast of one tensor. The caller fills the first part and owns the memory; it
 * is the pipeline's from issue until it stands in the list of ended ones. */
struct tly_exchange {
    tly_tensor *tensor;
    tly_kind kind;
    uint32_t root;
    const void *input;
    void *output;
    int priority;
    /* the pipeline's */
    tally_status status;     /* of the first thing that went wrong */
    char *error;             /* its sentence, on the heap; NULL while well, or where memory was short */
    uint32_t parts_left;
    bool open;
    tly_time progress;       /* when something last happened to it */
    tly_time next_report;    /* of a stall */
    char *missing;           /* who is missing, as the shard said; on the heap */
    tly_exchange *prev, *next;
};

typedef enum tly_tensor_state {
    TLY_TENSOR_DECLARED, /* the scheduler has not placed it yet */
    TLY_TENSOR_PLACED,
    TLY_TENSOR_UNUSABLE  /* error says why */
} tly_tensor_state;

/* A tensor that this worker has declared. The caller fills the first part and owns the memory, which
 * must live as long as the pipeline. */
struct tly_tensor {
    const char *name;
    tally_dtype dtype;
    tally_op op;
    uint64_t count;
    /* the pipeline's */
    tly_tensor_state state;
    tally_status status;       /* UNUSABLE */
    char *error;
    uint32_t id;               /* from the scheduler, the same on all workers */
    uint32_t part_count;
    uint64_t part_bytes;       /* of every partition but the last */
    tly_part *parts;
    const uint8_t *stages;     /* the stage list that its partitions go through */
    tly_exchange *exchange;    /* in flight, or NULL */
    bool declare_queued;       /* its declaration waits to be sent */
    tly_tensor *next_declared;
    UT_hash_handle by_name;
};

struct tly_part {
    tly_tensor *tensor;
    tly_exchange *exchange; /* in flight, or NULL */
    uint32_t index, link;
    uint32_t queued_at;     /* place in the link's queue, from 1; 0: not in it */
    uint32_t inputs_out;    /* references to the caller's memory that the transport still has */
    uint8_t stage;          /* index in the tensor's stage list */
    bool written;           /* the output has its value */
    uint64_t round;         /* of the newest exchange issued */
    uint64_t have;          /* highest round whose RESULT is here */
    uint64_t pushed;        /* number of its PUSH in the link's session, from 1; 0: none */
    tly_buf *value;         /* RESULT's body, when its output waits to be written */
    uint64_t value_offset;
    tly_round_error *early; /* error of the rounds above round and up to have; NULL if there are none */
};

/* The caller's memory as the body of a message. */
typedef struct tly_input {
    tly_buf base;
    tly_letter letter; /* the shell's, for the way back */
    tly_pipeline *pipeline;
    tly_part *part;
} tly_input;

/* Called when the transport has let go of an input, on any thread: the shell brings it to
 * tly_pipeline_released on the pipeline's own thread. */
typedef void (*tly_release_fn)(void *arg, tly_input *input);

/* membership: NULL for a worker alone. config and log must outlive the pipeline.
 * Returns: TALLY_OK, TALLY_ENOMEM */
tally_status tly_pipeline_create(const tly_config *config, const tly_log *log, tly_membership *membership,
                                 tly_release_fn release, void *release_arg, tly_pipeline **pipeline);
void tly_pipeline_destroy(tly_pipeline *pipeline); /* no input may be out */

/* The epoch is here: make a link for each shard of each server and queue the HELLOs.
 * Returns: TALLY_OK, TALLY_ENOMEM */
tally_status tly_pipeline_install(tly_pipeline *pipeline, tly_time now);

uint32_t tly_pipeline_link_count(const tly_pipeline *pipeline);
const char *tly_pipeline_link_endpoint(const tly_pipeline *pipeline, uint32_t link);

/* What the caller does. declare: the tensor's memory stays with the pipeline. issue: the exchange
 * comes back in the list of ended ones, also when it cannot be started. */
void tly_pipeline_declare(tly_pipeline *pipeline, tly_tensor *tensor, tly_time now);
void tly_pipeline_issue(tly_pipeline *pipeline, tly_exchange *exchange, tly_time now);
void tly_pipeline_barrier(tly_pipeline *pipeline, uint64_t seq);

/* What the network does.
 * control:     a message of the scheduler's that the membership passed on
 * message:     of the shard behind a link; frame and body stay the caller's
 * connected:   the transport's handshake succeeded
 * reconnect:   the connection broke and a new socket was made, to which the queued messages go
 * trouble:     why connecting fails, in the system's words
 * released:    the transport has let go of an input; frees it
 * scheduler_reconnected: what was sent to the scheduler may be lost */
void tly_pipeline_control(tly_pipeline *pipeline, const tly_ctl *message, tly_time now);
void tly_pipeline_message(tly_pipeline *pipeline, uint32_t link, const void *frame, size_t len_bytes,
                          tly_buf *body, tly_time now);
void tly_pipeline_connected(tly_pipeline *pipeline, uint32_t link, tly_time now);
void tly_pipeline_reconnect(tly_pipeline *pipeline, uint32_t link, tly_time now);
void tly_pipeline_trouble(tly_pipeline *pipeline, uint32_t link, const char *text);
void tly_pipeline_released(tly_pipeline *pipeline, tly_input *input);
void tly_pipeline_scheduler_reconnected(tly_pipeline *pipeline);

/* Queue what may be sent now: declarations, PUSHes as priority and credit allow, acknowledgements
 * that are due; report stalls. To be called after every batch of events.
 * Returns: when to call again. */
tly_time tly_pipeline_run(tly_pipeline *pipeline, tly_time now);

/* End every open exchange with this status and sentence; those whose input is still out end when it
 * is released. fail: every later one too, and nothing more is sent or taken. */
void tly_pipeline_cancel(tly_pipeline *pipeline, tally_status status, const char *sentence);
void tly_pipeline_fail(tly_pipeline *pipeline, tally_status status, const char *sentence);

/* Has every shard heard that this worker has all results, and can nobody need what it keeps? */
bool tly_pipeline_settled(const tly_pipeline *pipeline);

/* Acknowledge at once instead of after a while (before leaving). */
void tly_pipeline_hurry(tly_pipeline *pipeline);

/* References to callers' memory that the transport still has. */
uint64_t tly_pipeline_inputs_out(const tly_pipeline *pipeline);

/* The queue of messages to the shards; the shell pops, sends over out->link and frees. */
tly_out_list *tly_pipeline_out(tly_pipeline *pipeline);

/* Take one exchange that has ended, NULL if there is none: status and error (the taker frees) say how. */
tly_exchange *tly_pipeline_ended(tly_pipeline *pipeline);

/* Barriers: the newest released one; who is missing in the open one ("" if unknown); and the rank of
 * a worker that left, or -1. */
uint64_t tly_pipeline_barrier_released(const tly_pipeline *pipeline);
const char *tly_pipeline_barrier_missing(const tly_pipeline *pipeline);
int tly_pipeline_left_rank(const tly_pipeline *pipeline);

/* Did memory run out where no exchange could be told? Then the job must fail. */
bool tly_pipeline_out_of_memory(const tly_pipeline *pipeline);

/* Counters of one server. placed counts this worker's own tensors. */
void tly_pipeline_server_stats(const tly_pipeline *pipeline, uint32_t server, tally_server_stats *stats);

#endif
