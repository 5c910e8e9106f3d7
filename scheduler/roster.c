#include "scheduler/roster.h"

#include <stdlib.h>
#include <string.h>

#include "scheduler/placement.h"
#include "scheduler/seats.h"

#define REPORT_MS 5000          /* who is missing at the start */
#define BARRIER_REPORT_MS 1000  /* who is missing in a barrier, */
#define BARRIER_PATIENCE_MS 500 /* after this */
#define END_LIMIT_MS 2000       /* for the servers to leave after the workers */
#define WARN_EVERY_MS 60000     /* about what peers send */

#define UNTOLD UINT64_MAX /* no beat has told its version since it was last sent what it lacks */

typedef enum phase { WAITING, RUNNING, ENDED, FAILED } phase;

struct tly_roster {
    const tly_config *config;
    const tly_log *log;
    uint32_t job, start_counter;
    uint64_t epoch; /* 0 while waiting */
    phase phase;
    tly_seats seats;
    uint32_t left_count; /* workers that have left */
    tly_placement *placement;
    tly_out_list out;
    tly_time now, due;  /* of the last call; what the last tick asked for */
    tly_time start_by, next_report, next_check, over_by;
    uint64_t released;  /* the last barrier that all have reached */
    uint32_t arrivals;  /* at the next one */
    tly_time barrier_report;
    tally_status failure_status;
    char failure[TLY_SENTENCE_MAX];
    char waiting[TLY_SENTENCE_MAX]; /* who is missing; "" when it must be worded anew */
    tly_time next_warn;
    uint32_t unsaid;    /* warnings that were not written */
    bool done;
};

static int beat_ms(const tly_roster *r)
{
    return tly_beat_ms(r->config->death_limit_ms);
}

/* About what peers send: at most one line a minute, whatever they do. */
static void warn(tly_roster *r, const char *sentence)
{
    if (r->now < r->next_warn) {
        r->unsaid++;
        return;
    }
    if (r->unsaid > 0)
        tly_log_warn(r->log, "%s (and %u warnings before that were not written)", sentence, r->unsaid);
    else
        tly_log_warn(r->log, "%s", sentence);
    r->unsaid = 0;
    r->next_warn = r->now + WARN_EVERY_MS;
}

/* ---- sending ---- */

static void queue(tly_roster *r, const tly_peer *peer, tly_out *out)
{
    /* What memory is lacking for is like a message that was lost: its node asks again. */
    if (!out) {
        warn(r, "no memory for a message to a node; it will ask again");
        return;
    }
    out->peer = *peer;
    tly_out_push(&r->out, out);
}

static void send_to(tly_roster *r, const tly_peer *peer, tly_ctl message)
{
    message.job = r->job;
    message.epoch = r->epoch;
    queue(r, peer, tly_ctl_out(&message));
}

/* Answer who is not in: the job's number is for its members, who prove by it that they are. */
static void answer_stranger(tly_roster *r, const tly_peer *peer, uint32_t claimed_job, tly_ctl message)
{
    if (claimed_job == r->job) {
        send_to(r, peer, message);
        return;
    }
    message.job = 0;
    message.epoch = 0;
    queue(r, peer, tly_ctl_out(&message));
}

/* Send to all who are in, of one role or (TLY_ROLE_NONE) of any; encoded once. */
static void broadcast(tly_roster *r, tly_role role, tly_ctl message)
{
    message.job = r->job;
    message.epoch = r->epoch;
    tly_out *first = tly_ctl_out(&message);
    for (uint32_t i = 0; first && i < tly_seats_count(&r->seats); i++) {
        const tly_member *m = tly_seats_at(&r->seats, i);
        if (!m || m->left || (role != TLY_ROLE_NONE && m->role != role))
            continue;
        tly_out *copy = tly_out_create(first->head_len_bytes);
        if (copy)
            memcpy(copy->head, first->head, first->head_len_bytes);
        queue(r, &m->peer, copy);
    }
    if (!first)
        warn(r, "no memory for a message to all nodes; they will ask again");
    tly_out_free(first);
}

static void send_fail(tly_roster *r, const tly_peer *peer)
{
    send_to(r, peer, (tly_ctl){ .type = TLY_CTL_FAIL, .status = r->failure_status, .text = r->failure });
}

static void send_left(tly_roster *r, const tly_peer *peer, uint32_t id, uint32_t rank)
{
    send_to(r, peer, (tly_ctl){ .type = TLY_CTL_LEFT, .peer = id, .rank = rank });
}

/* Who sent this? A node that does not know its id yet is found by its connection. */
static tly_member *find_sender(const tly_roster *r, const tly_peer *peer, const tly_ctl *message)
{
    if (message->sender == 0)
        return tly_seats_by_peer(&r->seats, peer);
    return message->job == r->job ? tly_seats_by_id(&r->seats, message->sender) : NULL;
}

/* Worded once for each change of seats, because every REGISTER is answered with it. */
static const char *waiting_text(tly_roster *r)
{
    if (!r->waiting[0])
        tly_seats_waiting(&r->seats, r->waiting);
    return r->waiting;
}

/* ---- failure and end ---- */

static void fail(tly_roster *r, tally_status status, const char *sentence)
{
    if (r->phase == FAILED || r->phase == ENDED)
        return;
    r->phase = FAILED;
    r->failure_status = status;
    snprintf(r->failure, sizeof r->failure, "%s", sentence);
    r->over_by = r->now + r->config->death_limit_ms;
    tly_log_error(r->log, "the job failed: %s", r->failure);
    broadcast(r, TLY_ROLE_NONE, (tly_ctl){
        .type = TLY_CTL_FAIL,
        .status = r->failure_status,
        .text = r->failure,
    });
    /* Who waits for a seat is not in, and would find the scheduler gone when it asks again. */
    for (uint32_t rank = 0; rank < r->seats.worker_count; rank++)
        if (r->seats.workers[rank] && r->seats.workers[rank]->rival.len > 0)
            send_fail(r, &r->seats.workers[rank]->rival);
}

/* A failed job is over when everybody has left or gone silent (a node that knows of the failure
 * beats no more), an ended one when its servers have left. Returns: when to look again. */
static tly_time settle(tly_roster *r)
{
    if (r->phase != FAILED && r->phase != ENDED)
        return TLY_NEVER;
    bool waited_for = false;
    for (uint32_t i = 0; i < tly_seats_count(&r->seats) && !waited_for; i++) {
        const tly_member *m = tly_seats_at(&r->seats, i);
        waited_for = m && !m->left && (r->phase == ENDED || tly_seats_beating(&r->seats, m, r->now));
    }
    if (!waited_for || r->now >= r->over_by)
        r->done = true;
    if (r->done)
        return TLY_NEVER;
    tly_time look = r->now + beat_ms(r);
    return r->over_by < look ? r->over_by : look;
}

/* ---- registration ---- */

static tly_node node_of(const tly_member *m)
{
    return (tly_node){
        .id = m->id,
        .rank = m->rank,
        .local_size = m->local_size,
        .host = m->host,
        .endpoint_count = m->endpoint_count,
        .endpoints = m->endpoint_names,
    };
}

/* The announcement, complete but for its receiver. NULL when memory is short; the caller frees. */
static tly_node *all_nodes(const tly_roster *r)
{
    tly_node *nodes = malloc(tly_seats_count(&r->seats) * sizeof *nodes);
    for (uint32_t i = 0; nodes && i < tly_seats_count(&r->seats); i++)
        nodes[i] = node_of(tly_seats_at(&r->seats, i));
    return nodes;
}

static void send_epoch(tly_roster *r, const tly_member *m, const tly_node *nodes)
{
    send_to(r, &m->peer, (tly_ctl){
        .type = TLY_CTL_EPOCH,
        .epoch_info = {
            .id = m->id,
            .rank = m->rank,
            .death_limit_ms = (uint32_t)r->config->death_limit_ms,
            .worker_count = (uint32_t)r->config->num_worker,
            .server_count = (uint32_t)r->config->num_server,
            .workers = nodes,
            .servers = nodes + r->config->num_worker,
        },
    });
}

static bool create_placement(tly_roster *r)
{
    uint32_t *shards = malloc(r->seats.server_count * sizeof *shards);
    for (uint32_t i = 0; shards && i < r->seats.server_count; i++)
        shards[i] = r->seats.servers[i]->endpoint_count;
    tally_status status = TALLY_ENOMEM;
    if (shards)
        status = tly_placement_create(r->seats.server_count, shards, NULL, &r->placement);
    free(shards);
    return status == TALLY_OK;
}

/* Everybody is there: the one epoch of the job begins. */
static void announce(tly_roster *r)
{
    for (uint32_t i = 0; i < r->seats.server_count; i++)
        r->seats.servers[i]->rank = i;
    tly_node *nodes = all_nodes(r);
    if (!nodes || !create_placement(r)) {
        free(nodes);
        fail(r, TALLY_ENOMEM, "the scheduler has no memory to announce the job");
        return;
    }
    r->epoch = (uint64_t)r->start_counter << 32 | 1;
    r->phase = RUNNING;
    r->seats.started = true;
    r->next_check = r->now;
    tly_log_info(r->log, "all %u workers and %u servers are here: the job starts", r->seats.worker_count,
                 r->seats.server_count);
    for (uint32_t i = 0; i < tly_seats_count(&r->seats); i++) {
        tly_member *m = tly_seats_at(&r->seats, i);
        m->heard = r->now;
        m->beat_version = UNTOLD;
        send_epoch(r, m, nodes);
    }
    free(nodes);
}

static void send_placed(tly_roster *r, const tly_peer *peer, uint64_t base)
{
    uint64_t version = tly_placement_version(r->placement);
    if (base >= version)
        return;
    tly_ctl message = {
        .type = TLY_CTL_PLACED,
        .placed = {
            .base = base,
            .count = (uint32_t)(version - base),
            .items = tly_placement_entry(r->placement, base),
        },
    };
    if (peer)
        send_to(r, peer, message);
    else
        broadcast(r, TLY_ROLE_WORKER, message);
}

/* A node that was away: what it may have missed. Of the placement table its beats tell. */
static void send_missed(tly_roster *r, const tly_member *m)
{
    for (uint32_t rank = 0; r->left_count > 0 && rank < r->seats.worker_count; rank++)
        if (r->seats.workers[rank]->left)
            send_left(r, &m->peer, r->seats.workers[rank]->id, rank);
    if (m->arrived > 0 && m->arrived <= r->released)
        send_to(r, &m->peer, (tly_ctl){ .type = TLY_CTL_BARRIER, .barrier = { .seq = m->arrived } });
}

static void answer_known(tly_roster *r, tly_member *m, const tly_ctl *message)
{
    if (m->left) {
        send_left(r, &m->peer, m->id, m->rank);
        return;
    }
    if (r->phase == WAITING) {
        send_to(r, &m->peer, (tly_ctl){ .type = TLY_CTL_WAITING, .text = waiting_text(r) });
        return;
    }
    if (message->epoch != r->epoch) {
        tly_node *nodes = all_nodes(r);
        if (nodes)
            send_epoch(r, m, nodes);
        free(nodes);
    } else {
        send_to(r, &m->peer, (tly_ctl){ .type = TLY_CTL_BEAT });
    }
    if (m->role == TLY_ROLE_WORKER) {
        m->beat_version = UNTOLD;
        send_placed(r, &m->peer, message->reg.placed_version);
    } else if (r->phase == ENDED) {
        send_to(r, &m->peer, (tly_ctl){ .type = TLY_CTL_END });
    }
    send_missed(r, m);
}

/* Give a new process its seat. */
static void admit_new(tly_roster *r, const tly_peer *peer, const tly_ctl *message)
{
    tly_member *m = tly_seats_take(&r->seats, peer, message, r->now);
    if (!m) {
        warn(r, "no memory for a new node; it will ask again");
        return;
    }
    r->waiting[0] = 0;
    if (m->role == TLY_ROLE_WORKER)
        tly_log_info(r->log, "worker %u (%s) registered", m->rank, m->host);
    else
        tly_log_info(r->log, "server %s registered at %s", m->host, m->endpoint_names[0]);
    if (tly_seats_full(&r->seats))
        announce(r);
    else
        answer_known(r, m, message);
}

static void refuse(tly_roster *r, const tly_peer *peer, const tly_ctl *message, const char *why)
{
    const char *role = tly_role_name((tly_role)message->reg.role);
    char line[2 * TLY_SENTENCE_MAX];
    snprintf(line, sizeof line, "refused %s %s: %s", role, message->reg.host, why);
    warn(r, line);
    answer_stranger(r, peer, message->job,
                    (tly_ctl){ .type = TLY_CTL_REFUSED, .status = TALLY_EREFUSED, .text = why });
}

static void on_register(tly_roster *r, const tly_peer *peer, const tly_ctl *message)
{
    char why[TLY_SENTENCE_MAX];
    if (message->job != 0 && message->job != r->job) {
        /* It was in a job of an earlier scheduler at this address, whose death it will notice. */
        snprintf(why, sizeof why, "%s is a node of job %08x, this is job %08x; it is not answered",
                 message->reg.host, message->job, r->job);
        warn(r, why);
        return;
    }
    tly_member *m = tly_seats_by_nonce(&r->seats, message);
    if (m) {
        m->peer = *peer;
        m->heard = r->now;
    }
    if (r->phase == FAILED) {
        send_fail(r, peer);
        return;
    }
    if (m) {
        answer_known(r, m, message);
        return;
    }
    if (r->phase == ENDED) {
        refuse(r, peer, message, "the job has ended: all its workers have left");
        return;
    }
    switch (tly_seats_admit(&r->seats, message, r->now, why)) {
    case TLY_ADMITTED:
        admit_new(r, peer, message);
        return;
    case TLY_LATER:
        r->seats.workers[message->reg.rank]->rival = *peer;
        answer_stranger(r, peer, message->job, (tly_ctl){ .type = TLY_CTL_WAITING, .text = why });
        return;
    case TLY_REFUSED:
        refuse(r, peer, message, why);
        return;
    }
}

/* ---- the other messages, of members ---- */

static void on_beat(tly_roster *r, tly_member *m, const tly_ctl *message)
{
    if (m->left) {
        send_left(r, &m->peer, m->id, m->rank);
        return;
    }
    send_to(r, &m->peer, (tly_ctl){ .type = TLY_CTL_BEAT });
    if (r->phase == ENDED && m->role == TLY_ROLE_SERVER)
        send_to(r, &m->peer, (tly_ctl){ .type = TLY_CTL_END });
    if (!r->placement || m->role != TLY_ROLE_WORKER)
        return;
    /* Two beats with the same old version: what was sent between them was lost. */
    if (message->beat.placed_version == m->beat_version)
        send_placed(r, &m->peer, m->beat_version);
    m->beat_version = message->beat.placed_version;
}

static void on_declare(tly_roster *r, tly_member *m, const tly_ctl *message)
{
    if (r->phase != RUNNING || m->left || m->role != TLY_ROLE_WORKER)
        return;
    uint64_t base = tly_placement_version(r->placement);
    for (uint32_t i = 0; i < message->declare.count; i++) {
        tally_status status = tly_placement_declare(r->placement, m->rank, &message->declare.items[i]);
        if (status == TALLY_EINVAL) {
            char why[TLY_SENTENCE_MAX];
            snprintf(why, sizeof why, "a declaration of worker %u (%.200s) is ignored: %.600s", m->rank,
                     m->host, tly_error_text());
            warn(r, why);
        } else if (status != TALLY_OK) {
            fail(r, status, tly_error_text());
            return;
        }
    }
    send_placed(r, NULL, base);
}

static void on_barrier(tly_roster *r, tly_member *m, const tly_ctl *message)
{
    uint64_t seq = message->barrier.seq, next = r->released + 1;
    if (r->phase != RUNNING || m->left || m->role != TLY_ROLE_WORKER || seq == 0)
        return;
    if (seq < next) {
        send_to(r, &m->peer, (tly_ctl){ .type = TLY_CTL_BARRIER, .barrier = { .seq = seq } });
        return;
    }
    if (seq > next) {
        warn(r, "a worker arrived at a barrier before the one that it waits for; ignored");
        return;
    }
    if (m->arrived == next)
        return;
    m->arrived = next;
    if (r->arrivals++ == 0)
        r->barrier_report = r->now + BARRIER_PATIENCE_MS;
    if (r->arrivals < r->seats.worker_count)
        return;
    r->released = next;
    r->arrivals = 0;
    broadcast(r, TLY_ROLE_WORKER, (tly_ctl){ .type = TLY_CTL_BARRIER, .barrier = { .seq = next } });
}

static void end_job(tly_roster *r)
{
    r->phase = ENDED;
    r->over_by = r->now + END_LIMIT_MS;
    tly_log_info(r->log, "all workers have left: the job ends");
    broadcast(r, TLY_ROLE_SERVER, (tly_ctl){ .type = TLY_CTL_END });
}

static void worker_leaves(tly_roster *r, tly_member *m)
{
    r->left_count++;
    tly_log_info(r->log, "worker %u (%s) left", m->rank, m->host);
    broadcast(r, TLY_ROLE_NONE, (tly_ctl){ .type = TLY_CTL_LEFT, .peer = m->id, .rank = m->rank });
    if (r->left_count == r->seats.worker_count)
        end_job(r);
}

static void server_leaves(tly_roster *r, const tly_member *m)
{
    if (r->phase != RUNNING)
        return;
    char sentence[TLY_SENTENCE_MAX];
    snprintf(sentence, sizeof sentence, "server %u (%.200s) left while workers were in the job", m->rank,
             m->host);
    fail(r, TALLY_EFAILED, sentence);
}

static void on_leave(tly_roster *r, const tly_peer *peer, tly_member *m, const tly_ctl *message)
{
    if (!m) { /* who is not known has left; it need not wait for its limit */
        answer_stranger(r, peer, message->job, (tly_ctl){ .type = TLY_CTL_LEFT, .peer = message->sender });
        return;
    }
    send_left(r, peer, m->id, m->rank);
    /* A node that leaves before it has its id knows itself as 0. */
    if (message->sender == 0)
        send_left(r, peer, 0, m->rank);
    if (m->left)
        return;
    if (r->phase == WAITING) {
        tly_log_info(r->log, "%s %s left before the start", tly_role_name(m->role), m->host);
        tly_seats_free(&r->seats, m);
        r->waiting[0] = 0;
        return;
    }
    m->left = true;
    if (m->role == TLY_ROLE_SERVER)
        server_leaves(r, m);
    else if (r->phase == RUNNING)
        worker_leaves(r, m);
}

static void on_unreachable(tly_roster *r, tly_member *m, const tly_ctl *message)
{
    const tly_member *peer = tly_seats_by_id(&r->seats, message->peer);
    if (r->phase != RUNNING || m->left || !peer || peer->left || !message->text[0])
        return;
    if (tly_seats_beating(&r->seats, peer, r->now))
        fail(r, TALLY_EFAILED, message->text);
    else /* if it is dead, that will be the failure */
        tly_log_info(r->log, "%s; but that node is silent", message->text);
}

static void on_fail(tly_roster *r, tly_member *m, const tly_ctl *message)
{
    if (m->left)
        return;
    bool known = message->status > TALLY_OK && message->status <= TALLY_ESYSTEM;
    fail(r, known ? (tally_status)message->status : TALLY_EFAILED,
         message->text[0] ? message->text : "a node failed without saying why");
}

/* Answers go where a node's last message came from. A REGISTER that outlived its connection may come
 * after the next connection's: what was sent to the wrong place since then is sent again. */
static void heard_from(tly_roster *r, tly_member *m, const tly_peer *peer)
{
    bool moved = m->peer.len != peer->len || memcmp(m->peer.id, peer->id, peer->len) != 0;
    m->heard = r->now;
    m->peer = *peer;
    if (moved && !m->left && r->phase == RUNNING)
        send_missed(r, m);
}

void tly_roster_message(tly_roster *roster, const tly_peer *peer, const tly_ctl *message, tly_time now)
{
    tly_roster *r = roster;
    r->now = now;
    if (message->type == TLY_CTL_REGISTER) {
        on_register(r, peer, message);
        settle(r);
        return;
    }
    tly_member *m = find_sender(r, peer, message);
    if (m)
        heard_from(r, m, peer);
    if (message->type == TLY_CTL_LEAVE) {
        on_leave(r, peer, m, message);
    } else if (m && r->phase == FAILED && !m->left) {
        if (message->type != TLY_CTL_FAIL)
            send_fail(r, &m->peer);
    } else if (m) {
        switch (message->type) {
        case TLY_CTL_BEAT:
            on_beat(r, m, message);
            break;
        case TLY_CTL_DECLARE:
            on_declare(r, m, message);
            break;
        case TLY_CTL_BARRIER:
            on_barrier(r, m, message);
            break;
        case TLY_CTL_UNREACHABLE:
            on_unreachable(r, m, message);
            break;
        case TLY_CTL_FAIL:
            on_fail(r, m, message);
            break;
        default:
            warn(r, "a node sent a message that only the scheduler sends; ignored");
            break;
        }
    }
    settle(r);
}

void tly_roster_foreign(tly_roster *roster, const tly_peer *peer, const char *sentence)
{
    char why[TLY_SENTENCE_MAX];
    snprintf(why, sizeof why, "refused a node: %.900s", sentence);
    warn(roster, why);
    answer_stranger(roster, peer, 0,
                    (tly_ctl){ .type = TLY_CTL_REFUSED, .status = TALLY_EVERSION, .text = sentence });
}

void tly_roster_fail(tly_roster *roster, tally_status status, const char *sentence, tly_time now)
{
    roster->now = now;
    if (roster->phase == ENDED)
        roster->done = true;
    fail(roster, status, sentence);
    settle(roster);
}

/* ---- time ---- */

static tly_time sooner(tly_time a, tly_time b)
{
    return a < b ? a : b;
}

/* This process was stopped, and what the nodes sent meanwhile may wait unread: give them time. */
static void forgive_pause(tly_roster *r)
{
    int grace_ms = r->config->death_limit_ms / 4;
    if (r->due == TLY_NEVER || r->now - r->due <= grace_ms)
        return;
    tly_log_warn(r->log, "the scheduler was stopped for %lld ms; nobody is declared dead for that",
                 (long long)(r->now - r->due));
    tly_time heard = r->now - tly_silence_ms(r->config->death_limit_ms) + grace_ms;
    for (uint32_t i = 0; i < tly_seats_count(&r->seats); i++) {
        tly_member *m = tly_seats_at(&r->seats, i);
        if (m && m->heard < heard)
            m->heard = heard;
    }
    if (r->start_by < r->now + grace_ms)
        r->start_by = r->now + grace_ms;
}

static void fail_start(tly_roster *r)
{
    char sentence[TLY_SENTENCE_MAX];
    tly_seats_too_few(&r->seats, sentence);
    fail(r, TALLY_ETIMEDOUT, sentence);
}

/* Before the epoch: who has gone silent is waited for again. Returns: when to look again. */
static tly_time drop_silent(tly_roster *r)
{
    int limit_ms = tly_seats_patience_ms(&r->seats);
    if (r->now < r->next_check)
        return r->next_check;
    r->next_check = r->now + limit_ms;
    for (uint32_t i = 0; i < tly_seats_count(&r->seats);) {
        tly_member *m = tly_seats_at(&r->seats, i);
        if (m && r->now - m->heard >= limit_ms) {
            tly_log_warn(r->log, "%s %s went silent before the start; its place is free again",
                         tly_role_name(m->role), m->host);
            tly_seats_free(&r->seats, m); /* the next server moves to this index */
            r->waiting[0] = 0;
            if (tly_seats_at(&r->seats, i))
                continue;
        } else if (m) {
            r->next_check = sooner(r->next_check, m->heard + limit_ms);
        }
        i++;
    }
    return r->next_check;
}

static tly_time tick_waiting(tly_roster *r)
{
    tly_time check = drop_silent(r);
    if (r->now >= r->start_by) {
        fail_start(r);
        return settle(r);
    }
    if (r->now >= r->next_report) {
        r->next_report = r->now + REPORT_MS;
        tly_log_warn(r->log, "%s", waiting_text(r));
    }
    return sooner(check, sooner(r->start_by, r->next_report));
}

static void fail_dead(tly_roster *r, const tly_member *m)
{
    char sentence[TLY_SENTENCE_MAX], limit[TLY_DURATION_MAX];
    snprintf(sentence, sizeof sentence,
             "%s %u (%.200s) died: nothing heard from it for %s (TALLY_DEATH_LIMIT_MS)",
             tly_role_name(m->role), m->rank, m->host, tly_duration(limit, r->config->death_limit_ms));
    fail(r, TALLY_EFAILED, sentence);
}

/* All nodes are looked at only when the one that was silent longest at the last look might be dead
 * by now; beats cost nothing here. */
static void check_deaths(tly_roster *r)
{
    if (r->now < r->next_check)
        return;
    const tly_member *oldest = NULL;
    for (uint32_t i = 0; i < tly_seats_count(&r->seats); i++) {
        const tly_member *m = tly_seats_at(&r->seats, i);
        if (!m->left && (!oldest || m->heard < oldest->heard))
            oldest = m;
    }
    r->next_check = oldest ? oldest->heard + tly_silence_ms(r->config->death_limit_ms) : TLY_NEVER;
    if (oldest && r->now >= r->next_check)
        fail_dead(r, oldest);
}

static bool is_not_in_barrier(const tly_member *worker, const void *arg)
{
    const tly_roster *r = arg;
    return worker->arrived <= r->released;
}

static void report_barrier(tly_roster *r)
{
    char text[TLY_SENTENCE_MAX] = "";
    uint32_t missing = tly_seats_append_ranks(&r->seats, text, sizeof text, is_not_in_barrier, r);
    tly_append(text, sizeof text, " %s not reached the barrier", missing == 1 ? "has" : "have");
    for (uint32_t rank = 0; rank < r->seats.worker_count; rank++) {
        const tly_member *m = r->seats.workers[rank];
        if (!m->left && m->arrived > r->released)
            send_to(r, &m->peer, (tly_ctl){
                .type = TLY_CTL_WAITING,
                .barrier = { .seq = r->released + 1 },
                .text = text,
            });
    }
}

static tly_time tick_running(tly_roster *r)
{
    check_deaths(r);
    if (r->phase != RUNNING)
        return settle(r);
    /* Never further ahead than a beat, so that a pause of this process shows. */
    tly_time due = sooner(r->next_check, r->now + beat_ms(r));
    if (r->arrivals == 0)
        return due;
    if (r->now >= r->barrier_report) {
        r->barrier_report = r->now + BARRIER_REPORT_MS;
        report_barrier(r);
    }
    return sooner(due, r->barrier_report);
}

tly_time tly_roster_tick(tly_roster *roster, tly_time now)
{
    tly_roster *r = roster;
    r->now = now;
    forgive_pause(r);
    if (r->phase == WAITING)
        r->due = tick_waiting(r);
    else if (r->phase == RUNNING)
        r->due = tick_running(r);
    else
        r->due = settle(r);
    return r->due;
}

/* ---- life ---- */

tally_status tly_roster_create(const tly_config *config, const tly_log *log, uint32_t job,
                               uint32_t start_counter, tly_time now, tly_roster **roster)
{
    tly_roster *r = calloc(1, sizeof *r);
    if (!r)
        return tly_error_memory(sizeof *r, "the roster");
    tly_out_list_init(&r->out);
    r->config = config;
    r->log = log;
    r->job = job;
    r->start_counter = start_counter;
    r->now = now;
    r->due = TLY_NEVER;
    r->next_check = now;
    r->start_by = now + config->start_limit_ms;
    r->next_report = now + REPORT_MS;
    r->next_warn = now;
    tally_status status = tly_seats_init(&r->seats, config, log);
    if (status != TALLY_OK) {
        tly_roster_destroy(r);
        return status;
    }
    *roster = r;
    return TALLY_OK;
}

void tly_roster_destroy(tly_roster *roster)
{
    if (!roster)
        return;
    tly_seats_fini(&roster->seats);
    tly_placement_destroy(roster->placement);
    tly_out_list_fini(&roster->out);
    free(roster);
}

tly_out_list *tly_roster_out(tly_roster *roster)
{
    return &roster->out;
}

bool tly_roster_done(const tly_roster *roster, int *exit_status, const char **failure)
{
    if (!roster->done)
        return false;
    *exit_status = roster->phase == FAILED ? 1 : 0;
    *failure = roster->phase == FAILED ? roster->failure : NULL;
    return true;
}
