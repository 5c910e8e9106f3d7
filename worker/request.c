/* request.c - issuing requests, and the ways to learn of their end. */
#include <stdlib.h>
#include <string.h>

#include "worker/context.h"

/* ---- issue ---- */

/* Accept one exchange; the caller has checked its own arguments. */
static tally_status issue(tally_tensor *t, tly_kind kind, uint32_t root, const void *input, void *output, int priority,
                          tally_request **request)
{
    tally *ctx = t->ctx;
    tally_request *r = calloc(1, sizeof *r);
    if (!r)
        return tly_error_memory(sizeof *r, "a request");
    r->ctx = ctx;
    r->letter.type = TLY_LETTER_ISSUE;
    tly_cond_init(&r->ended);
    pthread_mutex_lock(&ctx->lock);
    tally_status status = tly_context_usable(ctx);
    if (status == TALLY_OK && kind == TLY_KIND_BROADCAST && root >= ctx->size)
        status = tly_error(TALLY_EINVAL, "tally_broadcast: tensor \"%s\": root %d is not a rank of this job of %u",
                           t->name, (int)root, ctx->size);
    if (status == TALLY_OK && t->in_flight)
        status = tly_error(TALLY_EBUSY, "tensor \"%s\" has a request in flight already", t->name);
    if (status == TALLY_OK) {
        t->in_flight = true;
        tly_context_get(ctx);
        r->exchange = (tly_exchange){ .tensor = &t->core,
                                      .kind = kind,
                                      .root = root,
                                      .input = input,
                                      .output = output,
                                      .priority = priority == TALLY_PRIORITY_DEFAULT ? t->priority : priority };
        tly_mailbox_post(&ctx->mailbox, &r->letter);
    }
    pthread_mutex_unlock(&ctx->lock);
    if (status != TALLY_OK) {
        pthread_cond_destroy(&r->ended);
        free(r);
        return status;
    }
    *request = r;
    return TALLY_OK;
}

tally_status tally_push_pull(tally_tensor *tensor, const void *input, void *output, int priority,
                             tally_request **request)
{
    if (!tensor || !request)
        return tly_error(TALLY_EINVAL, "tally_push_pull: %s is NULL", !tensor ? "tensor" : "request");
    tally_status status = tly_context_check_process(tensor->ctx);
    if (status != TALLY_OK)
        return status;
    size_t len_bytes = tensor->core.count * tally_dtype_size(tensor->core.dtype);
    if (len_bytes > 0 && (!input || !output))
        return tly_error(TALLY_EINVAL, "tally_push_pull: tensor \"%s\" of %zu bytes: %s is NULL", tensor->name,
                         len_bytes, !input ? "input" : "output");
    uintptr_t in = (uintptr_t)input, out = (uintptr_t)output;
    if (in != out && in < out + len_bytes && out < in + len_bytes)
        return tly_error(TALLY_EINVAL, "tally_push_pull: tensor \"%s\": input and output overlap; pass the same "
                                       "pointer for in place", tensor->name);
    return issue(tensor, TLY_KIND_PUSH_PULL, 0, input, output, priority, request);
}

tally_status tally_broadcast(tally_tensor *tensor, void *buffer, int root, tally_request **request)
{
    if (!tensor || !request)
        return tly_error(TALLY_EINVAL, "tally_broadcast: %s is NULL", !tensor ? "tensor" : "request");
    tally_status status = tly_context_check_process(tensor->ctx);
    if (status != TALLY_OK)
        return status;
    if (!buffer && tensor->core.count > 0)
        return tly_error(TALLY_EINVAL, "tally_broadcast: tensor \"%s\": buffer is NULL", tensor->name);
    if (root < 0)
        return tly_error(TALLY_EINVAL, "tally_broadcast: tensor \"%s\": root %d is not a rank", tensor->name, root);
    return issue(tensor, TLY_KIND_BROADCAST, (uint32_t)root, buffer, buffer, TALLY_PRIORITY_DEFAULT, request);
}

/* ---- the end ---- */

void tly_request_done(tally *ctx, tly_exchange *exchange)
{
    tally_request *r = (tally_request *)((char *)exchange - offsetof(tally_request, exchange));
    tally_tensor *t = (tally_tensor *)((char *)exchange->tensor - offsetof(tally_tensor, core));
    pthread_mutex_lock(&ctx->lock);
    t->in_flight = false;
    r->done = true;
    if (r->fn) {
        *ctx->done_last = r;
        ctx->done_last = &r->next_done;
        pthread_cond_broadcast(&ctx->changed);
    } else {
        pthread_cond_broadcast(&r->ended);
    }
    pthread_mutex_unlock(&ctx->lock);
}

static void request_free(tally_request *r)
{
    tally *ctx = r->ctx;
    pthread_cond_destroy(&r->ended);
    free(r->exchange.error);
    free(r);
    tly_context_put(ctx);
}

/* How a request that has ended did, as a status with its sentence. */
static tally_status outcome(const tally_request *r)
{
    tally_status status = r->exchange.status;
    if (status == TALLY_OK)
        return TALLY_OK;
    if (!r->exchange.error)
        return tly_error(status, "out of memory for the reason why the request failed");
    return tly_error(status, "%s", r->exchange.error);
}

/* Wait until deadline and take the outcome; not_yet if it does not end. */
static tally_status finish(tally_request **request, tly_time deadline, tally_status not_yet, int timeout_ms)
{
    tally_request *r = *request;
    tally *ctx = r->ctx;
    bool in_time = true;
    pthread_mutex_lock(&ctx->lock);
    if (deadline != 0 && tly_notifier_is_me(ctx)) {
        pthread_mutex_unlock(&ctx->lock);
        return tly_error(TALLY_EINVAL, "tally_wait may not be called from a completion function");
    }
    while (!r->done && in_time && deadline != 0)
        in_time = tly_context_wait(ctx, &r->ended, deadline);
    bool done = r->done;
    pthread_mutex_unlock(&ctx->lock);
    if (!done && not_yet == TALLY_EAGAIN)
        return tly_error(TALLY_EAGAIN, "not finished yet");
    if (!done)
        return tly_error(not_yet, "tensor \"%s\": the request did not end within %d ms and goes on",
                         r->exchange.tensor->name, timeout_ms);
    tally_status status = outcome(r);
    *request = NULL;
    request_free(r);
    return status;
}

tally_status tally_test(tally_request **request)
{
    if (!request || !*request)
        return tly_error(TALLY_EINVAL, "tally_test: request is NULL");
    tally_status status = tly_context_check_process((*request)->ctx);
    return status != TALLY_OK ? status : finish(request, 0, TALLY_EAGAIN, 0);
}

tally_status tally_wait(tally_request **request, int timeout_ms)
{
    if (!request || !*request)
        return tly_error(TALLY_EINVAL, "tally_wait: request is NULL");
    tally_status status = tly_context_check_process((*request)->ctx);
    if (status != TALLY_OK)
        return status;
    tly_time deadline = timeout_ms < 0 ? TLY_NEVER : timeout_ms == 0 ? 0 : tly_clock_now() + timeout_ms;
    return finish(request, deadline, TALLY_ETIMEDOUT, timeout_ms);
}

tally_status tally_on_done(tally_request **request, tally_done_fn fn, void *arg)
{
    if (!request || !*request || !fn)
        return tly_error(TALLY_EINVAL, "tally_on_done: %s is NULL", fn ? "request" : "fn");
    tally_request *r = *request;
    tally *ctx = r->ctx;
    tally_status status = tly_context_check_process(ctx);
    if (status != TALLY_OK)
        return status;
    pthread_mutex_lock(&ctx->lock);
    bool closing = ctx->state == TLY_CONTEXT_CLOSING || ctx->state == TLY_CONTEXT_CLOSED;
    if (ctx->notifier_stop || (closing && !ctx->notifier_running))
        status = tly_error(TALLY_ECLOSED, "the context is closed");
    else if (!ctx->notifier_running)
        status = tly_notifier_start(ctx);
    if (status == TALLY_OK) {
        r->fn = fn;
        r->fn_arg = arg;
        *request = NULL;
        if (r->done) {
            *ctx->done_last = r;
            ctx->done_last = &r->next_done;
            pthread_cond_broadcast(&ctx->changed);
        }
    }
    pthread_mutex_unlock(&ctx->lock);
    return status;
}

/* ---- the thread that calls completion functions ---- */

static void *notifier_main(void *arg)
{
    tally *ctx = arg;
    pthread_mutex_lock(&ctx->lock);
    for (;;) {
        tally_request *r = ctx->done_first;
        if (!r && ctx->notifier_stop)
            break;
        if (!r) {
            tly_context_wait(ctx, &ctx->changed, TLY_NEVER);
            continue;
        }
        ctx->done_first = r->next_done;
        if (!ctx->done_first)
            ctx->done_last = &ctx->done_first;
        pthread_mutex_unlock(&ctx->lock);
        tally_status status = outcome(r);
        r->fn(r->fn_arg, status, status == TALLY_OK ? NULL : tly_error_text());
        request_free(r);
        pthread_mutex_lock(&ctx->lock);
    }
    pthread_mutex_unlock(&ctx->lock);
    return NULL;
}

tally_status tly_notifier_start(tally *ctx)
{
    tally_status status = tly_thread_start(&ctx->notifier, "tally-notify", notifier_main, ctx);
    ctx->notifier_running = status == TALLY_OK;
    return status;
}

void tly_notifier_stop(tally *ctx)
{
    pthread_mutex_lock(&ctx->lock);
    bool running = ctx->notifier_running;
    ctx->notifier_stop = true;
    pthread_cond_broadcast(&ctx->changed);
    pthread_mutex_unlock(&ctx->lock);
    if (running)
        pthread_join(ctx->notifier, NULL);
    pthread_mutex_lock(&ctx->lock);
    ctx->notifier_running = false;
    pthread_mutex_unlock(&ctx->lock);
}

bool tly_notifier_is_me(const tally *ctx)
{
    return ctx->notifier_running && pthread_equal(pthread_self(), ctx->notifier);
}
