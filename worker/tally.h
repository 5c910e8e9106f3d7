/* tally.h - the C interface of Tally, a summation service for distributed training.
 *
 * Every worker calls push_pull on its gradients; every worker gets back their sum, average, minimum
 * or maximum over all workers. A context belongs to one job; a tensor is known in the job by its
 * name; a request is one exchange of one tensor.
 *
 * Threads: every function may be called from any thread, several at once, also on one context.
 *          The library starts its own threads, with all signals blocked.
 * Errors:  a function that fails returns a status, and tally_last_error() gives the whole sentence
 *          on the thread that called. Outputs are written on success only. The library never ends
 *          the host program and never calls back after tally_close.
 * Failure: when the job fails (a node died, a stall passed its limit), every open request and every
 *          later call returns TALLY_EFAILED with one and the same sentence, until tally_close.
 * Fork:    a context belongs to the process that opened it; in a forked child every call returns
 *          TALLY_EFORKED and touches nothing.
 */
#ifndef TALLY_H
#define TALLY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TALLY_VERSION_MAJOR 0
#define TALLY_VERSION_MINOR 1
#define TALLY_VERSION_PATCH 0

#if defined(__GNUC__)
#define TALLY_API __attribute__((visibility("default")))
#else
#define TALLY_API
#endif

/* code, name, text */
#define TALLY_STATUS_MAP(X)                                                              \
    X(TALLY_OK, 0, "success")                                                            \
    X(TALLY_EAGAIN, 1, "not finished yet")                                               \
    X(TALLY_EINVAL, 2, "invalid argument")                                               \
    X(TALLY_EBUSY, 3, "already in use")                                                  \
    X(TALLY_ENOMEM, 4, "out of memory")                                                  \
    X(TALLY_ETIMEDOUT, 5, "time limit passed")                                           \
    X(TALLY_ECONFIG, 6, "a setting is missing or wrong")                                 \
    X(TALLY_EREFUSED, 7, "the job refused this node")                                    \
    X(TALLY_ECONFLICT, 8, "workers disagree about a tensor")                             \
    X(TALLY_ELEFT, 9, "a worker left the job")                                           \
    X(TALLY_EFAILED, 10, "the job failed")                                               \
    X(TALLY_ECLOSED, 11, "the context is closed")                                        \
    X(TALLY_EFORKED, 12, "the context belongs to the parent process")                    \
    X(TALLY_EVERSION, 13, "the peer speaks another wire version")                        \
    X(TALLY_EPROTO, 14, "a message is malformed")                                        \
    X(TALLY_ESYSTEM, 15, "a system call failed")

typedef enum tally_status {
#define TALLY_STATUS_ENUM(code, value, text) code = value,
    TALLY_STATUS_MAP(TALLY_STATUS_ENUM)
#undef TALLY_STATUS_ENUM
} tally_status;

/* Element types. Sizes in bytes: 2, 2, 4, 8, 1, 1, 4, 8. The numbers are part of the wire format. */
typedef enum tally_dtype {
    TALLY_DTYPE_F16 = 0,  /* IEEE 754 binary16 */
    TALLY_DTYPE_BF16 = 1, /* bfloat16: the upper half of a binary32 */
    TALLY_DTYPE_F32 = 2,
    TALLY_DTYPE_F64 = 3,
    TALLY_DTYPE_I8 = 4,
    TALLY_DTYPE_U8 = 5,
    TALLY_DTYPE_I32 = 6,
    TALLY_DTYPE_I64 = 7,
    TALLY_DTYPE_COUNT = 8
} tally_dtype;

/* Operations.
 *
 * Sum:      16-bit types add in binary32 and round once at the end; integers wrap.
 * Average:  the sum divided by the number of workers, before any rounding to 16 bits; integers add
 *           wide and truncate toward zero.
 * Min, max: NaN if any worker's element is NaN.
 * All workers receive the same bits. Floating sums of three or more workers depend on the order of
 * arrival unless TALLY_DETERMINISTIC=1. The numbers are part of the wire format. */
typedef enum tally_op {
    TALLY_OP_SUM = 0,
    TALLY_OP_AVERAGE = 1,
    TALLY_OP_MIN = 2,
    TALLY_OP_MAX = 3,
    TALLY_OP_COUNT = 4
} tally_op;

/* As the priority of a request: take the tensor's own. */
#define TALLY_PRIORITY_DEFAULT INT32_MIN

typedef struct tally tally;                 /* one membership of one job */
typedef struct tally_tensor tally_tensor;   /* one declared name */
typedef struct tally_request tally_request; /* one exchange of one tensor */

typedef enum tally_log_level {
    TALLY_LOG_ERROR = 0,
    TALLY_LOG_WARN = 1,
    TALLY_LOG_INFO = 2,
    TALLY_LOG_DEBUG = 3,
    TALLY_LOG_TRACE = 4
} tally_log_level;

/* Receives a finished line without newline; may be called from any of the library's threads. */
typedef void (*tally_log_fn)(void *arg, tally_log_level level, const char *line);

typedef struct tally_options {
    size_t size;                 /* sizeof(tally_options) */
    const char *const *settings; /* "NAME=value" strings that take the place of the environment's,
                                    ended by NULL; NULL for none */
    tally_log_fn log;            /* NULL: standard error */
    void *log_arg;
} tally_options;

typedef struct tally_tensor_options {
    size_t size;   /* sizeof(tally_tensor_options) */
    tally_op op;   /* default TALLY_OP_SUM */
    int priority;  /* of requests that say TALLY_PRIORITY_DEFAULT; higher goes first; default 0 */
} tally_tensor_options;

#define TALLY_TENSOR_OPTIONS_INIT { sizeof(tally_tensor_options), TALLY_OP_SUM, 0 }

/* Join the job.
 *
 * options: NULL takes everything from the environment (README, "Environment").
 * Blocks:  until all workers and servers are there. This process's TALLY_START_LIMIT_MS bounds the wait
 *          for the scheduler's first answer; from then on the scheduler's own limit counts, from the
 *          scheduler's start. Meanwhile a line every 5 s says who is missing. With one worker there is nothing to join unless
 *          BYTEPS_FORCE_DISTRIBUTED=1.
 * Memory:  *ctx is yours; tally_close ends it.
 * Returns: TALLY_OK         *ctx is a member of the job
 *          TALLY_EINVAL     ctx is NULL or the options' size is not one that this version knows
 *          TALLY_ECONFIG    a setting is missing or wrong; the sentence names it and its value
 *          TALLY_EREFUSED   the job does not want this node; the sentence says why
 *          TALLY_EVERSION   scheduler and library speak different wire versions
 *          TALLY_ETIMEDOUT  not everybody came within TALLY_START_LIMIT_MS
 *          TALLY_EFAILED    the job failed while starting
 *          TALLY_ENOMEM, TALLY_ESYSTEM */
TALLY_API tally_status tally_open(const tally_options *options, tally **ctx);

/* Leave the job and end the context.
 *
 * Open requests end with TALLY_ECLOSED; their handles, and those of tensors, stay valid until
 * waited for or undeclared. ctx itself is not valid afterwards.
 * Blocks:  at most TALLY_CLOSE_LIMIT_MS plus the time that the system needs to close sockets.
 *          When it returns the library touches none of the caller's buffers any more.
 * Returns: TALLY_OK, TALLY_EINVAL (ctx is NULL; or called from a completion function),
 *          TALLY_EFORKED */
TALLY_API tally_status tally_close(tally *ctx);

/* The place of this worker among all ranks, the number of ranks, and the same inside this machine. */
TALLY_API int tally_rank(const tally *ctx);
TALLY_API int tally_size(const tally *ctx);
TALLY_API int tally_local_rank(const tally *ctx);
TALLY_API int tally_local_size(const tally *ctx);

/* Name a tensor of count elements.
 *
 * name:    1 to 1023 bytes, copied. The order of declarations may differ between workers.
 * options: NULL for sum and priority 0.
 * Memory:  *tensor is yours; tally_undeclare ends it. The same name may be declared again, with the
 *          same values, and gives the same tensor.
 * Blocks:  never. Whether the other workers agree shows at the tensor's next request:
 *          TALLY_ECONFLICT there, on every worker, names both values and both workers.
 * Returns: TALLY_OK, TALLY_EINVAL, TALLY_ENOMEM, TALLY_EFAILED, TALLY_EFORKED
 *          TALLY_ECONFLICT  this worker itself has declared the name with other values */
TALLY_API tally_status tally_declare(tally *ctx, const char *name, tally_dtype dtype, size_t count,
                                     const tally_tensor_options *options, tally_tensor **tensor);

/* Give a tensor's handle back. The name keeps its values for the life of the job.
 *
 * Returns: TALLY_OK     *tensor is NULL
 *          TALLY_EBUSY  a request is in flight
 *          TALLY_EINVAL */
TALLY_API tally_status tally_undeclare(tally_tensor **tensor);

/* Combine one tensor over all workers.
 *
 * input, output: count elements each, at any alignment; in place when equal, otherwise they must
 *          not overlap. May be NULL when count is 0.
 * Memory:  both stay yours; you change neither, and read no output, until the request ends. When it
 *          has ended, well or not, the library touches neither again.
 * priority: higher goes first; TALLY_PRIORITY_DEFAULT takes the tensor's own.
 * Blocks:  never.
 * Returns: TALLY_OK         *request is set, and ends exactly once
 *          TALLY_EBUSY      this tensor already has a request in flight; that one goes on
 *          TALLY_EINVAL     a pointer or the tensor is not valid; nothing was started
 *          TALLY_ENOMEM, TALLY_ECLOSED, TALLY_EFAILED, TALLY_EFORKED   nothing was started */
TALLY_API tally_status tally_push_pull(tally_tensor *tensor, const void *input, void *output,
                                       int priority, tally_request **request);

/* Give every worker the root's value.
 *
 * buffer: count elements; read on the root, written elsewhere. root: a rank.
 * Memory, blocking and returns as in tally_push_pull; TALLY_EINVAL also for a root outside the job. */
TALLY_API tally_status tally_broadcast(tally_tensor *tensor, void *buffer, int root,
                                       tally_request **request);

/* Look at a request.
 *
 * Returns: TALLY_OK         it ended well; it is freed and *request is NULL
 *          TALLY_EAGAIN     not yet
 *          TALLY_EINVAL     request or *request is NULL
 *          TALLY_EFORKED
 *          another status   it ended so; it is freed, *request is NULL, tally_last_error() says why:
 *                           TALLY_ECONFLICT, TALLY_ELEFT, TALLY_EFAILED, TALLY_ECLOSED, TALLY_ENOMEM */
TALLY_API tally_status tally_test(tally_request **request);

/* Wait for a request to end.
 *
 * timeout_ms: 0 looks only; negative waits until it ends, which the job's own limits bound.
 * Returns: as tally_test, with TALLY_ETIMEDOUT in the place of TALLY_EAGAIN: the request lives on;
 *          TALLY_EINVAL also when called from a completion function. */
TALLY_API tally_status tally_wait(tally_request **request, int timeout_ms);

/* status as from tally_test; error is the sentence, or NULL when status is TALLY_OK, and lives
 * until the function returns. */
typedef void (*tally_done_fn)(void *arg, tally_status status, const char *error);

/* Have fn called once when the request ends, and give the request up.
 *
 * fn runs on a thread of the library, with no lock held, in the order in which requests end. It may
 * issue requests but not wait and not close. Never after tally_close has returned; tally_close
 * calls what is left, with TALLY_ECLOSED.
 * Returns: TALLY_OK      *request is NULL
 *          TALLY_EINVAL, TALLY_ENOMEM, TALLY_ECLOSED, TALLY_EFORKED   *request is as before */
TALLY_API tally_status tally_on_done(tally_request **request, tally_done_fn fn, void *arg);

/* Wait until every worker has called it as often as this one.
 *
 * timeout_ms: negative waits as long as the job lives.
 * Returns: TALLY_OK
 *          TALLY_ETIMEDOUT  the sentence names who is missing; this worker counts as arrived, and
 *                           the next call waits for the same barrier
 *          TALLY_EBUSY      another thread of this context waits in a barrier
 *          TALLY_ELEFT, TALLY_EFAILED, TALLY_ECLOSED, TALLY_EFORKED, TALLY_EINVAL */
TALLY_API tally_status tally_barrier(tally *ctx, int timeout_ms);

/* What one server holds and has received from this worker. */
typedef struct tally_server_stats {
    uint64_t placed_bytes; /* of the tensors that this worker has declared, placed on this server */
    uint64_t pushed_bytes; /* payload sent to it by this worker, repeats included */
    uint64_t pulled_bytes; /* payload received from it */
} tally_server_stats;

/* The number of servers, and one server's counters. server: 0 to tally_server_count - 1.
 * Returns: TALLY_OK, TALLY_EINVAL, TALLY_EFORKED */
TALLY_API int tally_server_count(const tally *ctx);
TALLY_API tally_status tally_server_stats_get(const tally *ctx, int server, tally_server_stats *stats);

/* Size of one element in bytes, or 0; and names like "float16" and "average", or NULL. */
TALLY_API size_t tally_dtype_size(tally_dtype dtype);
TALLY_API const char *tally_dtype_name(tally_dtype dtype);
TALLY_API const char *tally_op_name(tally_op op);

/* The code as a word ("TALLY_EBUSY"); never NULL. */
TALLY_API const char *tally_status_name(tally_status status);

/* The sentence of this thread's last call that failed; never NULL; valid until its next failure. */
TALLY_API const char *tally_last_error(void);

/* "0.1.0" */
TALLY_API const char *tally_version(void);

#ifdef __cplusplus
}
#endif
#endif
