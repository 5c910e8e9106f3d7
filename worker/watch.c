/* watch.c - what happens when nothing happens: acknowledgements that no PUSH carries, probes of silent
 * shards, servers that cannot be reached, exchanges that stall. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "worker/pipeline_inner.h"

/* Stalled exchanges that are asked about in one look. */
#define REPORTS_MAX 4

/* An earlier deadline. */
static void sooner(tly_time *deadline, tly_time then)
{
    if (then < *deadline)
        *deadline = then;
}

static void acknowledge(tly_pipeline *p, tly_link *link, tly_time now, tly_time *deadline)
{
    if (link->acked <= link->acked_said)
        return;
    if (p->hurry || now >= link->settle_at || link->unsaid_bytes >= TLY_SETTLE_BYTES)
        tly_session_send(p, link, &(tly_record){ .type = TLY_ACK }, 1, NULL);
    else
        sooner(deadline, link->settle_at);
}

/* Silence while something is awaited: the connection may have lost it without a word. */
static void probe(tly_pipeline *p, tly_link *link, tly_time now, tly_time *deadline)
{
    if (!link->up || (link->ready && link->awaited == 0))
        return;
    if (now - link->heard >= link->probe_ms) {
        tly_session_hello(p, link, !link->ready, now);
        link->probe_ms = 2 * link->probe_ms < TLY_LINK_PROBE_MAX_MS ? 2 * link->probe_ms : TLY_LINK_PROBE_MAX_MS;
    }
    sooner(deadline, link->heard + link->probe_ms);
}

/* A server that the others may see, but not we. */
static void report_unreachable(tly_pipeline *p, tly_link *link, tly_time now, tly_time *deadline)
{
    if (link->up)
        return;
    int limit_ms = p->config->death_limit_ms / 5 * 4;
    tly_time due = link->down_since + limit_ms;
    if (link->next_unreachable > due)
        due = link->next_unreachable;
    if (now >= due) {
        const tly_membership *m = p->membership;
        char text[TLY_SENTENCE_MAX];
        snprintf(text, sizeof text, "worker %u (%s) cannot reach server %u (%s) at %s within %g s%s%s", m->rank,
                 m->workers[m->rank].host, link->server, m->servers[link->server].host, link->endpoint,
                 limit_ms / 1000.0, link->trouble[0] ? ": " : "", link->trouble);
        tly_ctl message = { .type = TLY_CTL_UNREACHABLE, .peer = link->server_id, .text = text };
        tly_membership_send(p->membership, &message);
        link->next_unreachable = due = now + 1000;
    }
    sooner(deadline, due);
}

static const tly_part *first_unfinished(const tly_tensor *t)
{
    for (uint32_t i = 0; t->parts && i < t->part_count; i++)
        if (t->parts[i].exchange)
            return &t->parts[i];
    return NULL;
}

/* Who is missing must be known when the hard limit comes. */
int tly_watch_first_report_ms(const tly_pipeline *p)
{
    return p->config->stall_warn_ms < p->config->stall_limit_ms / 2 ? p->config->stall_warn_ms
                                                                    : p->config->stall_limit_ms / 2;
}

/* Say what an exchange waits for; past the hard limit, fail the job with it. */
static void report_stall(tly_pipeline *p, tly_exchange *x, tly_time now)
{
    const tly_tensor *t = x->tensor;
    const tly_part *part = first_unfinished(t);
    tly_link *link = part ? &p->links[part->link] : NULL;
    char what[TLY_SENTENCE_MAX];
    if (part && part->queued_at && link->ready && link->progress > x->progress) {
        x->progress = link->progress; /* it waits behind others, and those move */
        return;
    }
    if (!part)
        snprintf(what, sizeof what, "the scheduler has not placed it");
    else if (x->missing)
        snprintf(what, sizeof what, "%s did not take part", x->missing);
    else
        snprintf(what, sizeof what, "no answer from server %u at %s", link->server, link->endpoint);
    if (now - x->progress >= p->config->stall_limit_ms && !p->stall_said) {
        char text[2 * TLY_SENTENCE_MAX];
        snprintf(text, sizeof text, "tensor \"%s\" round %" PRIu64 ": %s within %g s (TALLY_STALL_LIMIT_MS)", t->name,
                 part ? part->round : 1, what, p->config->stall_limit_ms / 1000.0);
        p->stall_said = true;
        tly_membership_fail(p->membership, TALLY_EFAILED, text);
        return;
    }
    x->next_report = now + tly_watch_first_report_ms(p);
    if (part && !part->queued_at && link->ready) {
        tly_record ask = { .type = TLY_ASK, .tensor = t->id, .partition = part->index, .round = part->round };
        tly_session_send(p, link, &ask, 1, NULL);
    } else {
        tly_log_warn(p->log, "tensor \"%s\" has waited %" PRId64 " s: %s", t->name, (now - x->progress) / 1000, what);
    }
}

void tly_watch_stalls(tly_pipeline *p, tly_time now, tly_time *deadline)
{
    if (!p->open_first)
        return;
    if (now >= p->next_stall_look) {
        int reports = 0;
        int step_ms = p->config->stall_warn_ms < p->config->stall_limit_ms ? p->config->stall_warn_ms
                                                                           : p->config->stall_limit_ms;
        p->next_stall_look = now + (step_ms / 8 > 10 ? step_ms / 8 : 10);
        for (tly_exchange *x = p->open_first; x && reports < REPORTS_MAX; x = x->next) {
            tly_time quiet = now - x->progress;
            if (now >= x->next_report && quiet >= tly_watch_first_report_ms(p)) {
                report_stall(p, x, now);
                reports++;
            }
        }
    }
    sooner(deadline, p->next_stall_look);
}

void tly_watch_link(tly_pipeline *p, tly_link *link, tly_time now, tly_time *deadline)
{
    acknowledge(p, link, now, deadline);
    probe(p, link, now, deadline);
    report_unreachable(p, link, now, deadline);
}
