/* context.h - what the calls of tally.h (context.c, request.c) and the library's own threads (the
 * engine in engine.c, the notifier in request.c) share.
 *
 * The engine thread owns the sockets, the membership and the pipeline; calls reach it by letters.
 * What both sides look at is guarded by lock, a leaf: nothing is called while it is held but
 * mailbox posts, signals of conditions and memory functions.
 *
 * The context is shared by the caller's context pointer, by every tensor handle and by every
 * request, so that those outlive tally_close; the last one frees it. */
#ifndef TLY_CONTEXT_H
#define TLY_CONTEXT_H

#include "common/net.h"
#include "worker/pipeline.h"

typedef enum tly_context_state {
    TLY_CONTEXT_JOINING,
    TLY_CONTEXT_IN,
    TLY_CONTEXT_FAILED, /* status and failure say why */
    TLY_CONTEXT_CLOSING,
    TLY_CONTEXT_CLOSED
} tly_context_state;

enum { TLY_LETTER_DECLARE, TLY_LETTER_ISSUE, TLY_LETTER_BARRIER, TLY_LETTER_STATS, TLY_LETTER_RELEASED,
       TLY_LETTER_CLOSE };

struct tally_tensor {
    tly_tensor core; /* the pipeline's, but for name, dtype, op and count, which never change */
    tly_letter letter;
    tally *ctx;
    int priority;
    UT_hash_handle hh; /* in ctx->tensors, by name */
    /* guarded by ctx->lock */
    int handles;     /* given out and not given back */
    bool in_flight;  /* a request was accepted and has not ended */
    char name[];
};

struct tally_request {
    tly_exchange exchange; /* the pipeline's until done */
    tly_letter letter;
    tally *ctx;
    pthread_cond_t ended;
    tally_request *next_done; /* in ctx->done_first */
    /* guarded by ctx->lock */
    bool done;
    tally_done_fn fn; /* set: belongs to the notifier when done */
    void *fn_arg;
};

/* A question to the engine, on the asker's stack. */
typedef struct tly_stats_query {
    tly_letter letter;
    uint32_t server;
    tally_server_stats stats;
    bool answered; /* guarded by ctx->lock */
} tly_stats_query;

struct tally {
    tly_config config;
    tly_log log;
    unsigned fork_generation; /* of the process that opened it */
    char address[TLY_ENDPOINT_MAX]; /* of this node; "" when alone */
    bool alone; /* one worker, no scheduler, no servers */

    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed; /* state, barrier, stats */
    int refs;
    tly_context_state state;
    tally_status failure_status;
    char failure[TLY_SENTENCE_MAX];
    uint32_t rank, size, server_count; /* constant once IN */
    tally_tensor *tensors;             /* by name */
    uint64_t barrier_seq, barrier_released;
    uint64_t barrier_passed; /* the last one that a call has come back from well */
    bool barrier_waiting;
    char barrier_missing[TLY_SENTENCE_MAX];
    int left_rank; /* -1: nobody left */
    tally_request *done_first, **done_last; /* for the notifier */
    bool notifier_running, notifier_stop;

    pthread_t engine, notifier;
    tly_mailbox mailbox;
    tly_letter barrier_letter, close_letter;
};

/* Increased in every forked child. */
unsigned tly_fork_generation(void);

/* The status of a call on this context by its state: TALLY_OK while IN, else with the sentence set.
 * lock is held. */
tally_status tly_context_usable(const tally *ctx);

/* Refuse a call from a forked child. No lock needed. */
tally_status tly_context_check_process(const tally *ctx);

void tly_context_get(tally *ctx); /* lock is held */
void tly_context_put(tally *ctx); /* lock is not held; may free ctx */

/* Wait for cond with ctx->lock held until it is signalled or the deadline (CLOCK_MONOTONIC ms, or
 * TLY_NEVER) passes. Returns: false when the deadline has passed. */
bool tly_context_wait(tally *ctx, pthread_cond_t *cond, tly_time deadline);
void tly_cond_init(pthread_cond_t *cond);

/* engine.c: the thread. Joined by tally_close. */
tally_status tly_engine_start(tally *ctx);

/* request.c: the engine says that an exchange has ended. */
void tly_request_done(tally *ctx, tly_exchange *exchange);

/* request.c: the thread that calls completion functions. start with the lock held, stop with it not held;
 * stop calls what is left, then joins. */
tally_status tly_notifier_start(tally *ctx);
void tly_notifier_stop(tally *ctx);
bool tly_notifier_is_me(const tally *ctx); /* lock is held */

/* Start a thread with all signals blocked. */
tally_status tly_thread_start(pthread_t *thread, const char *name, void *(*main)(void *), void *arg);

#endif
