#include "tests/sim/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* The cores never see time 0. */
#define CLOCK_START 1000
#define SPINS_MAX 200

uint64_t sim_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

uint64_t sim_next(sim_random *r)
{
    r->state += 0x9e3779b97f4a7c15ull;
    return sim_mix(r->state);
}

uint32_t sim_below(sim_random *r, uint32_t bound)
{
    return bound ? (uint32_t)((sim_next(r) >> 32) * bound >> 32) : 0;
}

int64_t sim_between(sim_random *r, int64_t low, int64_t high)
{
    return low + (int64_t)(sim_next(r) % (uint64_t)(high - low + 1));
}

bool sim_chance(sim_random *r, uint32_t permille)
{
    return permille && sim_below(r, 1000) < permille;
}

/* ---- events ---- */

static bool before(const sim_event *a, const sim_event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void sim_at(sim *s, sim_time at, sim_event_fn fn, void *arg)
{
    if (s->event_count == s->event_room) {
        s->event_room = s->event_room ? 2 * s->event_room : 256;
        s->events = realloc(s->events, s->event_room * sizeof *s->events);
        if (!s->events)
            abort();
    }
    sim_event e = { at < s->now ? s->now : at, s->order++, fn, arg };
    size_t i = s->event_count++;
    while (i > 0 && before(&e, &s->events[(i - 1) / 2])) {
        s->events[i] = s->events[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->events[i] = e;
}

bool sim_step(sim *s)
{
    if (s->event_count == 0)
        return false;
    sim_event first = s->events[0], last = s->events[--s->event_count];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= s->event_count)
            break;
        if (child + 1 < s->event_count && before(&s->events[child + 1], &s->events[child]))
            child++;
        if (!before(&s->events[child], &last))
            break;
        s->events[i] = s->events[child];
        i = child;
    }
    s->events[i] = last;
    s->now = first.at;
    s->events_done++;
    first.fn(s, first.arg);
    return true;
}

void sim_fini(sim *s)
{
    free(s->events);
    s->events = NULL;
}

tly_time sim_clock(const sim *s)
{
    return CLOCK_START + s->now / SIM_MS;
}

void sim_fail(sim *s, const char *format, ...)
{
    if (s->failed)
        return;
    s->failed = true;
    va_list args;
    va_start(args, format);
    vsnprintf(s->reason, sizeof s->reason, format, args);
    va_end(args);
    sim_trace(s, "FAILED: %s", s->reason);
}

void sim_trace(const sim *s, const char *format, ...)
{
    if (!s->verbose)
        return;
    printf("%10.3f ", (double)s->now / SIM_MS);
    va_list args;
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

/* ---- threads ---- */

static void turn(sim *s, void *arg)
{
    sim_thread *t = arg;
    if (t->dead || s->now != t->wake_at)
        return; /* an earlier turn made this one needless */
    t->wake_at = SIM_NEVER;
    if (s->now < t->paused_until) {
        sim_wake(t, t->paused_until);
        return;
    }
    t->run(t, sim_clock(s));
}

static void timer(sim *s, void *arg)
{
    sim_thread *t = arg;
    if (t->dead || s->now != t->timer_at)
        return;
    t->timer_at = SIM_NEVER;
    if (s->now < t->deadline) {
        t->timer_at = t->deadline;
        sim_at(s, t->deadline, timer, t);
        return;
    }
    if (sim_clock(s) != t->spin_at) {
        t->spin_at = sim_clock(s);
        t->spins = 0;
    }
    if (++t->spins > SPINS_MAX)
        sim_fail(s, "%s spins: it asks again and again to be called at once", t->name);
    sim_wake(t, s->now);
}

void sim_thread_init(sim_thread *t, sim *s, void (*run)(sim_thread *t, tly_time now))
{
    t->s = s;
    t->run = run;
    t->wake_at = t->deadline = t->timer_at = SIM_NEVER;
}

void sim_wake(sim_thread *t, sim_time at)
{
    if (at < t->s->now)
        at = t->s->now;
    if (t->dead || at >= t->wake_at)
        return;
    t->wake_at = at;
    sim_at(t->s, at, turn, t);
}

void sim_notify(sim_thread *t)
{
    if (t->wake_at == SIM_NEVER || t->wake_at > t->s->now + 200)
        sim_wake(t, t->s->now + sim_below(&t->s->weather, 100));
}

void sim_sleep(sim_thread *t, tly_time until)
{
    sim *s = t->s;
    t->deadline = SIM_NEVER;
    if (until == TLY_NEVER)
        return;
    sim_time at = (sim_time)(until - CLOCK_START) * SIM_MS;
    t->deadline = at <= s->now ? s->now + 1 : at;
    if (t->timer_at > t->deadline) {
        t->timer_at = t->deadline;
        sim_at(s, t->deadline, timer, t);
    }
}

void sim_pause(sim_thread *t, sim_time length)
{
    t->paused_until = t->s->now + length;
}
