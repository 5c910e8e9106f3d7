/* context.c - opening and closing a context, declaring tensors, barriers: the calls of tally.h that
 * are not about one request. */
#include "worker/context.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* ---- fork ---- */

static atomic_uint fork_generation;

static void forked(void)
{
    atomic_fetch_add(&fork_generation, 1);
}

unsigned tly_fork_generation(void)
{
    return atomic_load_explicit(&fork_generation, memory_order_relaxed);
}

static void process_setup(void)
{
    pthread_atfork(NULL, NULL, forked);
    /* Received messages of 1 to 4 MB would be mapped and unmapped each time. Freeing one mapped
     * block moves glibc's dynamic threshold above their size, as any large free of the host's
     * would; no setting is changed. */
    void *volatile block = malloc((32u << 20) - 65536);
    free(block);
}

tally_status tly_context_check_process(const tally *ctx)
{
    if (ctx->fork_generation == tly_fork_generation())
        return TALLY_OK;
    return tly_error(TALLY_EFORKED, "this process was forked from the one that opened the context (worker %d); "
                                    "only that one may use it", ctx->config.worker_id);
}

/* ---- small things ---- */

tally_status tly_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0)
        return tly_error(TALLY_ESYSTEM, "cannot start a thread: %s", strerror(code));
    pthread_setname_np(*thread, name);
    return TALLY_OK;
}

void tly_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

bool tly_context_wait(tally *ctx, pthread_cond_t *cond, tly_time deadline)
{
    if (deadline == TLY_NEVER) {
        pthread_cond_wait(cond, &ctx->lock);
        return true;
    }
    struct timespec until = { .tv_sec = deadline / 1000, .tv_nsec = deadline % 1000 * 1000000 };
    return pthread_cond_timedwait(cond, &ctx->lock, &until) != ETIMEDOUT;
}

tally_status tly_context_usable(const tally *ctx)
{
    switch (ctx->state) {
    case TLY_CONTEXT_IN:
        return TALLY_OK;
    case TLY_CONTEXT_FAILED:
        return tly_error(ctx->failure_status, "%s", ctx->failure);
    case TLY_CONTEXT_JOINING:
        return tly_error(TALLY_EINVAL, "the context is still joining the job");
    default:
        return tly_error(TALLY_ECLOSED, "the context is closed");
    }
}

/* ---- life ---- */

void tly_context_get(tally *ctx)
{
    ctx->refs++;
}

void tly_context_put(tally *ctx)
{
    pthread_mutex_lock(&ctx->lock);
    bool last = --ctx->refs == 0;
    pthread_mutex_unlock(&ctx->lock);
    if (!last)
        return;
    tally_tensor *t, *next;
    HASH_ITER(hh, ctx->tensors, t, next)
    {
        HASH_DEL(ctx->tensors, t);
        free(t);
    }
    tly_mailbox_fini(&ctx->mailbox);
    pthread_cond_destroy(&ctx->changed);
    pthread_mutex_destroy(&ctx->lock);
    free(ctx);
}

static tally_status context_create(const tally_options *options, tally **ctx)
{
    tally *c = calloc(1, sizeof *c);
    if (!c)
        return tly_error_memory(sizeof *c, "a context");
    c->log.level = TALLY_LOG_WARN;
    c->log.sink = options ? options->log : NULL;
    c->log.sink_arg = options ? options->log_arg : NULL;
    strcpy(c->log.who, "worker");
    c->fork_generation = tly_fork_generation();
    c->refs = 1;
    c->left_rank = -1;
    c->done_last = &c->done_first;
    pthread_mutex_init(&c->lock, NULL);
    tly_cond_init(&c->changed);
    tally_status status = tly_config_load(&c->config, TLY_ROLE_WORKER, options ? options->settings : NULL, &c->log);
    if (status != TALLY_OK)
        goto put;
    c->log.level = c->config.log_level;
    snprintf(c->log.who, sizeof c->log.who, "worker %d", c->config.worker_id);
    c->alone = c->config.num_worker == 1 && !c->config.force_distributed;
    if (c->config.local_size > 1) {
        status = tly_error(TALLY_ECONFIG, "BYTEPS_LOCAL_SIZE=\"%d\": this version takes one rank per machine; start "
                                          "each process as a worker of its own", c->config.local_size);
        goto put;
    }
    if (!c->alone) {
        status = tly_address_of_node(&c->config, c->address, sizeof c->address);
        if (status != TALLY_OK)
            goto put;
    }
    status = tly_mailbox_init(&c->mailbox);
    if (status != TALLY_OK)
        goto put;
    tly_config_log(&c->config, &c->log);
    *ctx = c;
    return TALLY_OK;
put:
    tly_context_put(c);
    return status;
}

tally_status tally_open(const tally_options *options, tally **ctx)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!ctx)
        return tly_error(TALLY_EINVAL, "tally_open: ctx is NULL");
    if (options && options->size != sizeof *options)
        return tly_error(TALLY_EINVAL, "tally_open: the options' size is %zu and must be %zu; was the program "
                                       "compiled for another version than %s?", options->size, sizeof *options,
                         TLY_VERSION);
    pthread_once(&once, process_setup);
    tally *c = NULL;
    tally_status status = context_create(options, &c);
    if (status != TALLY_OK)
        return status;
    status = tly_engine_start(c);
    if (status != TALLY_OK) {
        tly_context_put(c);
        return status;
    }
    pthread_mutex_lock(&c->lock);
    while (c->state == TLY_CONTEXT_JOINING)
        tly_context_wait(c, &c->changed, TLY_NEVER); /* the membership's limits bound it */
    status = tly_context_usable(c);
    pthread_mutex_unlock(&c->lock);
    if (status != TALLY_OK) {
        char sentence[TLY_SENTENCE_MAX];
        snprintf(sentence, sizeof sentence, "%s", tly_error_text());
        tally_close(c);
        return tly_error(status, "%s", sentence);
    }
    *ctx = c;
    return TALLY_OK;
}

tally_status tally_close(tally *ctx)
{
    if (!ctx)
        return tly_error(TALLY_EINVAL, "tally_close: ctx is NULL");
    tally_status status = tly_context_check_process(ctx);
    if (status != TALLY_OK)
        return status;
    pthread_mutex_lock(&ctx->lock);
    if (tly_notifier_is_me(ctx))
        status = tly_error(TALLY_EINVAL, "tally_close may not be called from a completion function");
    else if (ctx->state == TLY_CONTEXT_CLOSING || ctx->state == TLY_CONTEXT_CLOSED)
        status = tly_error(TALLY_ECLOSED, "the context is closed");
    else
        ctx->state = TLY_CONTEXT_CLOSING;
    pthread_cond_broadcast(&ctx->changed);
    pthread_mutex_unlock(&ctx->lock);
    if (status != TALLY_OK)
        return status;
    ctx->close_letter.type = TLY_LETTER_CLOSE;
    tly_mailbox_post(&ctx->mailbox, &ctx->close_letter);
    pthread_join(ctx->engine, NULL);
    tly_notifier_stop(ctx);
    pthread_mutex_lock(&ctx->lock);
    ctx->state = TLY_CONTEXT_CLOSED;
    pthread_cond_broadcast(&ctx->changed);
    pthread_mutex_unlock(&ctx->lock);
    tly_context_put(ctx);
    return TALLY_OK;
}

/* ---- questions ---- */

int tally_rank(const tally *ctx)
{
    return ctx ? (int)ctx->rank : 0;
}

int tally_size(const tally *ctx)
{
    return ctx ? (int)ctx->size : 0;
}

int tally_local_rank(const tally *ctx)
{
    return ctx ? ctx->config.local_rank : 0;
}

int tally_local_size(const tally *ctx)
{
    return ctx ? ctx->config.local_size : 0;
}

int tally_server_count(const tally *ctx)
{
    return ctx ? (int)ctx->server_count : 0;
}

tally_status tally_server_stats_get(const tally *ctx, int server, tally_server_stats *stats)
{
    if (!ctx || !stats || server < 0 || server >= (int)ctx->server_count)
        return tly_error(TALLY_EINVAL, "tally_server_stats_get: there is no server %d", server);
    tally_status status = tly_context_check_process(ctx);
    if (status != TALLY_OK)
        return status;
    tally *c = (tally *)(uintptr_t)ctx; /* the question is const, its lock is not */
    tly_stats_query query = { .letter.type = TLY_LETTER_STATS, .server = (uint32_t)server };
    pthread_mutex_lock(&c->lock);
    tly_context_get(c);
    if (c->state != TLY_CONTEXT_IN && c->state != TLY_CONTEXT_FAILED)
        status = tly_context_usable(c);
    else if (!tly_mailbox_post(&c->mailbox, &query.letter))
        status = tly_error(TALLY_ECLOSED, "the context is closed");
    while (status == TALLY_OK && !query.answered)
        tly_context_wait(c, &c->changed, TLY_NEVER); /* the engine never blocks */
    pthread_mutex_unlock(&c->lock);
    tly_context_put(c);
    if (status == TALLY_OK)
        *stats = query.stats;
    return status;
}

/* ---- tensors ---- */

static tally_status check_declaration(const tally *ctx, const char *name, tally_dtype dtype, size_t count,
                                      const tally_tensor_options *options, tally_tensor **tensor)
{
    if (!ctx || !tensor || !name)
        return tly_error(TALLY_EINVAL, "tally_declare: %s is NULL", !ctx ? "ctx" : !name ? "name" : "tensor");
    size_t len = strnlen(name, TLY_NAME_MAX);
    if (len == 0 || len == TLY_NAME_MAX)
        return tly_error(TALLY_EINVAL, "tally_declare: a name has 1 to %d bytes, \"%.40s%s\" has %s", TLY_NAME_MAX - 1,
                         name, len ? "..." : "", len ? "more" : "none");
    size_t size = tally_dtype_size(dtype);
    if (size == 0)
        return tly_error(TALLY_EINVAL, "tally_declare: tensor \"%s\" has the unknown data type %d", name, (int)dtype);
    if (count > PTRDIFF_MAX / size)
        return tly_error(TALLY_EINVAL, "tally_declare: tensor \"%s\" has %zu elements of %zu bytes, more than memory "
                                       "can hold", name, count, size);
    if (options && options->size != sizeof *options)
        return tly_error(TALLY_EINVAL, "tally_declare: the options' size is %zu and must be %zu", options->size,
                         sizeof *options);
    if (options && !tally_op_name(options->op))
        return tly_error(TALLY_EINVAL, "tally_declare: tensor \"%s\" has the unknown operation %d", name,
                         (int)options->op);
    uint64_t parts = tly_partition_count(dtype, count, (uint32_t)ctx->config.partition_bytes);
    if (parts > TLY_PARTITIONS_MAX)
        return tly_error(TALLY_EINVAL, "tally_declare: tensor \"%s\" of %zu bytes would have %llu partitions, more "
                                       "than %u; raise BYTEPS_PARTITION_BYTES", name, count * size,
                         (unsigned long long)parts, TLY_PARTITIONS_MAX);
    return TALLY_OK;
}

/* A name that is new to this worker. lock is held. */
static tally_status tensor_create(tally *ctx, const char *name, tally_dtype dtype, size_t count, tally_op op,
                                  tally_tensor **tensor)
{
    size_t len = strlen(name);
    tally_tensor *t = calloc(1, sizeof *t + len + 1);
    if (!t)
        return tly_error_memory(sizeof *t + len + 1, "a tensor");
    memcpy(t->name, name, len + 1);
    t->ctx = ctx;
    t->core.name = t->name;
    t->core.dtype = dtype;
    t->core.op = op;
    t->core.count = count;
    t->letter.type = TLY_LETTER_DECLARE;
    HASH_ADD_KEYPTR(hh, ctx->tensors, t->name, len, t);
    tally_tensor *found;
    HASH_FIND(hh, ctx->tensors, t->name, len, found);
    if (!found) {
        free(t);
        return tly_error_memory(len, "the table of tensors");
    }
    tly_mailbox_post(&ctx->mailbox, &t->letter);
    *tensor = t;
    return TALLY_OK;
}

tally_status tally_declare(tally *ctx, const char *name, tally_dtype dtype, size_t count,
                           const tally_tensor_options *options, tally_tensor **tensor)
{
    tally_status status = check_declaration(ctx, name, dtype, count, options, tensor);
    if (status == TALLY_OK)
        status = tly_context_check_process(ctx);
    if (status != TALLY_OK)
        return status;
    tally_op op = options ? options->op : TALLY_OP_SUM;
    tally_tensor *t;
    pthread_mutex_lock(&ctx->lock);
    status = tly_context_usable(ctx);
    if (status != TALLY_OK)
        goto unlock;
    HASH_FIND(hh, ctx->tensors, name, strlen(name), t);
    if (!t)
        status = tensor_create(ctx, name, dtype, count, op, &t);
    else if (t->core.dtype != dtype || t->core.op != op || t->core.count != count)
        status = tly_error(TALLY_ECONFLICT,
                           "tensor \"%s\": this worker (%u) declared %s x %zu (%s) before, and now %s x %zu (%s)", name,
                           ctx->rank, tally_dtype_name(t->core.dtype), (size_t)t->core.count,
                           tally_op_name(t->core.op), tally_dtype_name(dtype), count, tally_op_name(op));
    if (status != TALLY_OK)
        goto unlock;
    if (t->handles++ == 0) {
        t->priority = options ? options->priority : 0;
        tly_context_get(ctx);
    }
    *tensor = t;
unlock:
    pthread_mutex_unlock(&ctx->lock);
    return status;
}

tally_status tally_undeclare(tally_tensor **tensor)
{
    if (!tensor || !*tensor)
        return tly_error(TALLY_EINVAL, "tally_undeclare: tensor is NULL");
    tally_tensor *t = *tensor;
    tally *ctx = t->ctx;
    tally_status status = tly_context_check_process(ctx);
    if (status != TALLY_OK)
        return status;
    bool last = false;
    pthread_mutex_lock(&ctx->lock);
    if (t->in_flight)
        status = tly_error(TALLY_EBUSY, "tensor \"%s\" has a request in flight", t->name);
    else
        last = --t->handles == 0;
    pthread_mutex_unlock(&ctx->lock);
    if (status != TALLY_OK)
        return status;
    *tensor = NULL;
    if (last)
        tly_context_put(ctx);
    return TALLY_OK;
}

/* ---- barrier ---- */

tally_status tally_barrier(tally *ctx, int timeout_ms)
{
    if (!ctx)
        return tly_error(TALLY_EINVAL, "tally_barrier: ctx is NULL");
    tally_status status = tly_context_check_process(ctx);
    if (status != TALLY_OK)
        return status;
    tly_time deadline = timeout_ms < 0 ? TLY_NEVER : tly_clock_now() + timeout_ms;
    pthread_mutex_lock(&ctx->lock);
    tly_context_get(ctx);
    if (tly_notifier_is_me(ctx))
        status = tly_error(TALLY_EINVAL, "tally_barrier may not be called from a completion function");
    else
        status = tly_context_usable(ctx);
    if (status == TALLY_OK && ctx->barrier_waiting)
        status = tly_error(TALLY_EBUSY, "another thread waits in a barrier of this context");
    if (status != TALLY_OK)
        goto unlock;
    ctx->barrier_waiting = true;
    if (ctx->barrier_seq == ctx->barrier_passed) { /* else: an earlier call timed out in it */
        ctx->barrier_seq++;
        ctx->barrier_missing[0] = 0;
        ctx->barrier_letter.type = TLY_LETTER_BARRIER;
        tly_mailbox_post(&ctx->mailbox, &ctx->barrier_letter);
    }
    bool in_time = true;
    while (ctx->barrier_released < ctx->barrier_seq) {
        status = tly_context_usable(ctx);
        if (status == TALLY_OK && ctx->left_rank >= 0)
            status = tly_error(TALLY_ELEFT, "worker %d left the job before it reached the barrier", ctx->left_rank);
        else if (status == TALLY_OK && !in_time)
            status = tly_error(TALLY_ETIMEDOUT, "the barrier was not reached by all within %d ms%s%s", timeout_ms,
                               ctx->barrier_missing[0] ? ": " : "", ctx->barrier_missing);
        if (status != TALLY_OK)
            break;
        in_time = tly_context_wait(ctx, &ctx->changed, deadline);
    }
    if (status == TALLY_OK)
        ctx->barrier_passed = ctx->barrier_seq;
    ctx->barrier_waiting = false;
unlock:
    pthread_mutex_unlock(&ctx->lock);
    tly_context_put(ctx);
    return status;
}
