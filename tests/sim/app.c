#include "tests/sim/cluster.h"

#include <stdlib.h>
#include <string.h>

#include "tests/sim/values.h"

#define SCRIBBLE 0xee
#define SLOW_US 30000000
#define POLL_US 1000

/* ---- memory of requests ---- */

static size_t tensor_bytes(const sim_app_tensor *t)
{
    return t->core.count * tally_dtype_size(t->core.dtype);
}

/* Exactly as long as needed, so that a sanitizer sees one byte too far. */
static uint8_t *block(size_t len_bytes)
{
    uint8_t *memory = malloc(len_bytes ? len_bytes : 1);
    if (!memory)
        abort();
    memset(memory, SCRIBBLE, len_bytes ? len_bytes : 1);
    return memory;
}

/* The request has ended: the memory is the program's again, and it uses it. */
static void release(sim_app_tensor *t)
{
    if (t->output && t->output != t->input) {
        memset(t->output, SCRIBBLE, tensor_bytes(t));
        free(t->output);
    }
    if (t->input) {
        memset(t->input, SCRIBBLE, tensor_bytes(t));
        free(t->input);
    }
    t->input = t->output = NULL;
}

/* ---- how requests end ---- */

static void fail_request(sim_worker *w, const sim_request *r, const char *what)
{
    const tly_exchange *x = &r->exchange;
    const char *kind = x->kind == TLY_KIND_BROADCAST ? "broadcast" : "push_pull";
    sim_fail(w->engine.s, "worker %u tensor %u round %llu (%s, root %u, %s): %s (%s%s%s)", w->rank,
             r->tensor->index, (unsigned long long)r->round, kind, x->root,
             x->input == x->output ? "in place" : "not in place", what, tally_status_name(x->status),
             x->error ? ": " : "", x->error ? x->error : "");
}

static bool is_inexact(const sim_plan *p, const sim_request *r)
{
    return !p->exact && r->exchange.kind == TLY_KIND_PUSH_PULL && r->tensor->core.dtype <= TALLY_DTYPE_F64;
}

static uint64_t hash_of(const uint8_t *at, size_t len_bytes, uint64_t hash)
{
    for (size_t i = 0; i < len_bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001b3ull;
    return hash;
}

/* The value that came out, against the oracle or the first worker's. */
static void check_value(sim_worker *w, const sim_request *r, sim_outcome *o)
{
    sim_cluster *c = w->cluster;
    const sim_app_tensor *t = r->tensor;
    size_t size = tally_dtype_size(t->core.dtype), total = tensor_bytes(t);
    uint8_t pattern[SIM_PATTERN_BYTES];
    if (!is_inexact(c->plan, r)) {
        sim_values_expected(c->plan, t->index, r->round, pattern);
        if (!sim_values_match(t->output, pattern, size, t->core.count))
            fail_request(w, r, "a wrong value");
    } else if (!o->value) {
        o->value = block(total);
        memcpy(o->value, t->output, total);
    } else if (memcmp(o->value, t->output, total) != 0) {
        fail_request(w, r, "another value than another worker's");
    }
    if (o->good == 0 && c->plan->twice)
        c->hash += hash_of(t->output, total, sim_mix(r->round << 8 | t->index));
    if (t->input != t->output) {
        sim_values_input(c->plan, t->index, r->round, w->rank, pattern);
        if (!sim_values_match(t->input, pattern, size, t->core.count))
            fail_request(w, r, "the input was changed");
    }
}

static bool contains(const char *text, const char *format, ...) TLY_PRINTF(2, 3);
static bool contains(const char *text, const char *format, ...)
{
    char part[256];
    va_list args;
    va_start(args, format);
    vsnprintf(part, sizeof part, format, args);
    va_end(args);
    return text && strstr(text, part);
}

static void check_conflict(sim_worker *w, const sim_request *r)
{
    const sim_plan *p = w->cluster->plan;
    const char *error = r->exchange.error, *name = r->tensor->core.name;
    uint32_t culprit = p->conflict_worker;
    if (r->tensor->index != p->conflict_tensor) {
        const sim_disagreement *d = sim_plan_disagreement(p, r->tensor->index, r->round);
        if (!d) {
            fail_request(w, r, "nobody disagreed");
            return;
        }
        culprit = d->worker;
    }
    if (!contains(error, "tensor \"%s\"", name) || !contains(error, "worker %u ", culprit))
        fail_request(w, r, "the sentence does not name the tensor and the worker");
}

static void check_left(sim_worker *w, const sim_request *r)
{
    const sim_cluster *c = w->cluster;
    for (uint32_t i = 0; i < c->plan->workers; i++)
        if (c->workers[i].close_said && contains(r->exchange.error, "worker %u left the job", i))
            return;
    fail_request(w, r, "nobody like that left");
}

/* Every worker sees a round end well, or every worker sees it end badly. */
static void check_alike(sim_worker *w, const sim_request *r, sim_outcome *o)
{
    const sim_plan *p = w->cluster->plan;
    const tly_exchange *x = &r->exchange;
    if (x->status == TALLY_OK)
        o->good++;
    else
        o->bad++;
    if (o->good && o->bad)
        fail_request(w, r, "it ended well on some workers and badly on others");
    if (x->status == TALLY_OK)
        return;
    if (r->tensor->index == p->conflict_tensor && x->status == TALLY_ELEFT)
        return; /* the leaver knew of the conflict, this worker did not yet */
    bool several_leavers = p->leaver_count > 1 || p->closers_permille > 0;
    bool worded_once = r->tensor->core.part_count <= 1 || r->tensor->index == p->conflict_tensor;
    if (x->status == TALLY_ELEFT) /* each is true of several leavers */
        worded_once = !several_leavers;
    if (!o->sentence)
        o->sentence = strdup(x->error ? x->error : "");
    else if (worded_once && strcmp(o->sentence, x->error ? x->error : "") != 0)
        fail_request(w, r, "another sentence than another worker's");
}

static void check_end(sim_worker *w, const sim_request *r)
{
    sim_cluster *c = w->cluster;
    const sim_plan *p = c->plan;
    const tly_exchange *x = &r->exchange;
    if (x->status != TALLY_OK && !x->error)
        fail_request(w, r, "no sentence");
    if (x->status == TALLY_ECLOSED) {
        if (!w->close_said)
            fail_request(w, r, "nobody closed");
        return;
    }
    if (x->status == TALLY_EFAILED) {
        if (p->end == SIM_END_GOOD || strcmp(x->error, c->sentence) != 0)
            fail_request(w, r, "not the job's failure");
        return;
    }
    sim_outcome *o = sim_cluster_outcome(c, r->tensor->index, r->round);
    if (x->status == TALLY_OK) {
        if (r->tensor->index == p->conflict_tensor || sim_plan_disagreement(p, r->tensor->index, r->round))
            fail_request(w, r, "it should have failed");
        else
            check_value(w, r, o);
    } else if (x->status == TALLY_ECONFLICT) {
        check_conflict(w, r);
    } else if (x->status == TALLY_ELEFT) {
        check_left(w, r);
    } else {
        fail_request(w, r, "an unexpected end");
    }
    check_alike(w, r, o);
}

static void take_ended(sim_worker *w)
{
    for (uint32_t i = 0; i < w->ended_count; i++) {
        sim_request *r = w->ended[i];
        if (r->ended || !r->tensor->in_flight)
            sim_fail(w->engine.s, "worker %u tensor %u: a request ended twice", w->rank, r->tensor->index);
        r->ended = true;
        sim_trace(w->engine.s, "program %u: tensor %u round %llu ended %s %s", w->rank, r->tensor->index,
                  (unsigned long long)r->round, tally_status_name(r->exchange.status),
                  r->exchange.error ? r->exchange.error : "");
        check_end(w, r);
        free(r->exchange.error);
        r->exchange.error = NULL;
        r->tensor->in_flight = false;
        release(r->tensor);
        w->open--;
    }
    w->ended_count = 0;
}

/* ---- what the program does ---- */

static void declare(sim_worker *w, sim_app_tensor *t)
{
    sim_trace(w->engine.s, "program %u declares tensor %u", w->rank, t->index);
    t->declared = true;
    sim_call_declare(w, t);
}

static void fill(sim_worker *w, sim_app_tensor *t, const sim_request *r)
{
    const sim_plan *p = w->cluster->plan;
    size_t size = tally_dtype_size(t->core.dtype), total = tensor_bytes(t);
    uint8_t pattern[SIM_PATTERN_BYTES];
    bool broadcast = r->exchange.kind == TLY_KIND_BROADCAST;
    t->input = block(total);
    t->output = broadcast || sim_chance(&w->dice, p->in_place_permille) ? t->input : block(total);
    if (broadcast && r->exchange.root != w->rank)
        return;
    sim_values_input(p, t->index, r->round, w->rank, pattern);
    sim_values_fill(t->input, pattern, size, t->core.count);
}

static void issue(sim_worker *w, sim_app_tensor *t)
{
    const sim_plan *p = w->cluster->plan;
    sim_request *r = &t->request;
    t->issued++;
    *r = (sim_request){ .tensor = t, .round = t->issued };
    r->exchange = (tly_exchange){
        .tensor = &t->core,
        .kind = sim_plan_kind(p, t->index, r->round, w->rank),
        .priority = (int)sim_below(&w->dice, (uint32_t)p->priorities + 1) - p->priorities / 2,
    };
    if (r->exchange.kind == TLY_KIND_BROADCAST)
        r->exchange.root = sim_plan_root(p, t->index, r->round, w->rank);
    fill(w, t, r);
    r->exchange.input = t->input;
    r->exchange.output = t->output;
    t->in_flight = true;
    w->open++;
    w->issued++;
    w->tap.needed_result_bytes += tensor_bytes(t);
    if (r->exchange.kind == TLY_KIND_PUSH_PULL || r->exchange.root == w->rank)
        w->tap.needed_push_bytes += tensor_bytes(t);
    sim_trace(w->engine.s, "program %u issues tensor %u round %llu priority %d", w->rank, t->index,
              (unsigned long long)r->round, r->exchange.priority);
    sim_call_issue(w, t);
}

/* The lowest number of rounds issued of a declared tensor. */
static uint64_t slowest(const sim_worker *w)
{
    uint64_t lowest = UINT64_MAX;
    for (uint32_t i = 0; i < w->cluster->plan->tensor_count; i++)
        if (w->tensors[i].declared && w->tensors[i].issued < lowest)
            lowest = w->tensors[i].issued;
    return lowest;
}

static bool may_issue(const sim_worker *w, const sim_app_tensor *t, uint64_t lowest)
{
    const sim_plan *p = w->cluster->plan;
    if (!t->declared || t->in_flight || t->issued >= p->rounds)
        return false;
    if (p->window && t->issued - lowest >= p->window)
        return false;
    return !p->barrier_every || t->issued < (w->barriers_done + 1) * p->barrier_every;
}

/* Returns: whether there was something to do. */
static bool act(sim_worker *w)
{
    const sim_plan *p = w->cluster->plan;
    uint32_t can[SIM_TENSORS_MAX], count = 0, undeclared = SIM_NOBODY;
    uint64_t lowest = slowest(w);
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        const sim_app_tensor *t = &w->tensors[i];
        bool due = !t->declared && p->declare_after[w->rank][i] <= w->issued;
        if (due || (p->gather && !w->gathered ? false : may_issue(w, t, lowest)))
            can[count++] = i;
        if (!t->declared)
            undeclared = i;
    }
    if (count == 0 && undeclared != SIM_NOBODY && sim_chance(&w->dice, 125))
        can[count++] = undeclared;
    if (count == 0)
        return false;
    sim_app_tensor *t = &w->tensors[can[sim_below(&w->dice, count)]];
    if (t->declared)
        issue(w, t);
    else
        declare(w, t);
    return true;
}

static bool all_declared(const sim_worker *w)
{
    for (uint32_t i = 0; i < w->cluster->plan->tensor_count; i++)
        if (!w->tensors[i].declared || w->tensors[i].core.state == TLY_TENSOR_DECLARED)
            return false;
    return true;
}

static bool barrier_is_due(const sim_worker *w)
{
    const sim_plan *p = w->cluster->plan;
    if (p->gather && !w->gathered)
        return all_declared(w);
    if (!p->barrier_every || w->open > 0)
        return false;
    for (uint32_t i = 0; i < p->tensor_count; i++)
        if (w->tensors[i].issued < (w->barriers_done + 1) * p->barrier_every)
            return false;
    return true;
}

/* Nobody leaves a barrier that somebody has not reached. */
static void check_barrier(sim_worker *w)
{
    for (uint32_t i = 0; i < w->cluster->plan->workers; i++)
        if (w->cluster->workers[i].barrier_seq < w->barrier_seq)
            sim_fail(w->engine.s, "worker %u leaves barrier %llu, which worker %u has not reached", w->rank,
                     (unsigned long long)w->barrier_seq, i);
}

/* Returns: whether the program waits in a barrier. */
static bool wait_in_barrier(sim_worker *w)
{
    if (!w->in_barrier && barrier_is_due(w)) {
        sim_trace(w->engine.s, "program %u enters a barrier", w->rank);
        sim_call_barrier(w);
        w->in_barrier = true;
    }
    if (!w->in_barrier)
        return false;
    bool released = w->barrier_released >= w->barrier_seq;
    if (!released && w->left_rank < 0)
        return true;
    if (released)
        check_barrier(w);
    w->in_barrier = false;
    if (!w->gathered && w->cluster->plan->gather)
        w->gathered = true;
    else
        w->barriers_done = released ? w->barriers_done + 1 : UINT64_MAX / 4096;
    return false;
}

static bool all_done(const sim_worker *w)
{
    for (uint32_t i = 0; i < w->cluster->plan->tensor_count; i++)
        if (w->tensors[i].issued < w->cluster->plan->rounds)
            return false;
    return w->open == 0;
}

static void close_context(sim_worker *w)
{
    if (!w->done)
        w->cluster->apps_done++;
    w->done = true;
    sim_trace(w->engine.s, "program %u closes", w->rank);
    w->close_said = true;
    sim_call_close(w);
}

/* The job has failed: every call says so, in one sentence. */
static void after_failure(sim_worker *w)
{
    const char *sentence;
    tally_status status = sim_call_usable(w, &sentence);
    bool alike = strcmp(sentence, w->cluster->sentence) == 0 || sim_cluster_unheard(w->cluster, sentence);
    if (status == TALLY_OK || !alike)
        sim_fail(w->engine.s, "worker %u: a call after the failure says %s %s", w->rank,
                 tally_status_name(status), sentence);
    if (w->open == 0)
        close_context(w);
}

/* All is done: close when the plan says so. */
static void finish(sim_worker *w)
{
    sim_cluster *c = w->cluster;
    if (!w->done) {
        w->done = true;
        c->apps_done++;
        w->close_at = w->engine.s->now + sim_between(&w->dice, 0, 3000);
    }
    if (c->plan->quiesce ? c->quiet : w->engine.s->now >= w->close_at)
        close_context(w);
    else if (!c->plan->quiesce)
        sim_wake(&w->app, w->close_at);
}

void sim_app_run(sim_thread *thread, tly_time now)
{
    sim_worker *w = (sim_worker *)((char *)thread - offsetof(sim_worker, app));
    const sim_plan *p = w->cluster->plan;
    (void)now;
    take_ended(w);
    if (w->close_said || w->context == SIM_CONTEXT_JOINING)
        return;
    if (w->context == SIM_CONTEXT_FAILED) {
        after_failure(w);
        return;
    }
    if (w->rank == p->stalled_worker && w->issued >= p->stalled_after)
        return;
    if (w->issued >= w->leave_after) {
        close_context(w);
        return;
    }
    if (all_done(w)) {
        finish(w);
        return;
    }
    if (wait_in_barrier(w))
        return;
    uint32_t done = 0, count = 1 + sim_below(&w->dice, p->burst);
    while (done < count && w->issued < w->leave_after && act(w))
        done++;
    if (w->rank == p->slow_worker && p->slow_what == 0 && done > 0 && sim_chance(&w->dice, 300))
        sim_pause(thread, SLOW_US);
    /* Without something to do it waits for a request's end or for a barrier. */
    if (done > 0)
        sim_wake(thread, thread->s->now + 20 + sim_between(&w->dice, 0, p->think_us[w->rank]));
    else if (!all_declared(w))
        sim_wake(thread, thread->s->now + POLL_US);
}

/* ---- life ---- */

static void apply_conflict(const sim_plan *p, sim_app_tensor *t)
{
    if (p->conflict_what == 0)
        t->core.dtype = (tally_dtype)((t->core.dtype + 1) % TALLY_DTYPE_COUNT);
    else if (p->conflict_what == 1)
        t->core.count += 1;
    else
        t->core.op = (tally_op)((t->core.op + 1) % TALLY_OP_COUNT);
}

void sim_app_init(sim_worker *w)
{
    const sim_plan *p = w->cluster->plan;
    w->dice = (sim_random){ sim_mix(p->seed + 77 + w->rank) };
    w->tensors = calloc(p->tensor_count, sizeof *w->tensors);
    if (!w->tensors)
        abort();
    for (uint32_t i = 0; i < p->tensor_count; i++) {
        sim_app_tensor *t = &w->tensors[i];
        const sim_tensor_plan *tp = &p->tensors[i];
        t->index = i;
        t->core = (tly_tensor){ .name = tp->name, .dtype = tp->dtype, .op = tp->op, .count = tp->count };
        if (i == p->conflict_tensor && w->rank == p->conflict_worker)
            apply_conflict(p, t);
    }
    w->leave_after = UINT32_MAX;
    for (uint32_t i = 0; i < p->leaver_count; i++)
        if (p->leavers[i] == w->rank)
            w->leave_after = p->leave_after[i];
    if (sim_chance(&w->dice, p->closers_permille))
        w->leave_after = sim_below(&w->dice, p->tensor_count * p->rounds + 1);
}

void sim_app_fini(sim_worker *w)
{
    for (uint32_t i = 0; i < w->cluster->plan->tensor_count; i++)
        release(&w->tensors[i]);
    free(w->tensors);
}

static const char *place_of(const tly_part *part)
{
    if (part->queued_at)
        return "queued";
    return part->value || part->written ? "here" : "pushed";
}

void sim_app_describe(const sim_worker *w, char *text, size_t room)
{
    size_t at = 0;
    for (uint32_t i = 0; i < w->cluster->plan->tensor_count && at + 160 < room; i++) {
        const sim_app_tensor *t = &w->tensors[i];
        if (!t->in_flight)
            continue;
        at += (size_t)snprintf(text + at, room - at, " [tensor %u id %u round %llu state %d:", i, t->core.id,
                               (unsigned long long)t->issued, t->core.state);
        for (uint32_t k = 0; t->core.parts && k < t->core.part_count && at + 80 < room; k++) {
            const tly_part *part = &t->core.parts[k];
            if (part->exchange)
                at += (size_t)snprintf(text + at, room - at, " part %u link %u %s inputs out %u", k,
                                       part->link, place_of(part), part->inputs_out);
        }
        at += (size_t)snprintf(text + at, room - at, "]");
    }
}
