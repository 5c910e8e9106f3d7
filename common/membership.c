#include "common/membership.h"

#include <stdlib.h>
#include <string.h>

#define REPORT_MS 5000

/* After so many silent beats a node doubts that the scheduler knows its connection. */
#define DOUBT_BEATS 3

static int beat_ms(const tly_membership *m)
{
    return tly_beat_ms(m->death_limit_ms);
}

static void send_own(tly_membership *m, tly_ctl *message)
{
    /* A message that does not go out for want of memory is like one that was lost: it is said again. */
    (void)tly_membership_send(m, message);
}

static void send_register(tly_membership *m, tly_time now)
{
    const char **endpoints = calloc(m->endpoint_count ? m->endpoint_count : 1, sizeof *endpoints);
    if (!endpoints)
        return;
    for (uint32_t i = 0; i < m->endpoint_count; i++)
        endpoints[i] = m->endpoints[i];
    send_own(m, &(tly_ctl){
        .type = TLY_CTL_REGISTER,
        .reg = {
            .role = (uint8_t)m->role,
            .nonce = m->nonce,
            .id = m->id,
            .rank = m->role == TLY_ROLE_WORKER ? (uint32_t)m->config->worker_id : 0,
            .num_worker = (uint32_t)m->config->num_worker,
            .num_server = (uint32_t)m->config->num_server,
            .local_size = (uint32_t)m->config->local_size,
            .placed_version = m->placed_version,
            .host = m->host,
            .endpoint_count = m->endpoint_count,
            .endpoints = endpoints,
        },
    });
    free(endpoints);
    m->next_register = now + beat_ms(m);
}

static void send_said(tly_membership *m)
{
    if (m->said[0])
        send_own(m, &(tly_ctl){ .type = TLY_CTL_FAIL, .status = m->said_status, .text = m->said });
}

tally_status tly_membership_init(tly_membership *m, const tly_config *config, const tly_log *log,
                                 tly_role role, uint64_t nonce, const char *scheduler,
                                 const char *host, uint32_t endpoint_count,
                                 const char *const *endpoints, tly_time now)
{
    memset(m, 0, sizeof *m);
    tly_out_list_init(&m->out);
    m->config = config;
    m->log = log;
    m->role = role;
    m->nonce = nonce;
    m->death_limit_ms = config->death_limit_ms;
    snprintf(m->scheduler, sizeof m->scheduler, "%s", scheduler);
    snprintf(m->host, sizeof m->host, "%s", host);
    m->endpoints = calloc(endpoint_count ? endpoint_count : 1, sizeof *m->endpoints);
    if (!m->endpoints)
        return tly_error_memory(endpoint_count * sizeof *m->endpoints, "the endpoints of this node");
    m->endpoint_count = endpoint_count;
    for (uint32_t i = 0; i < endpoint_count; i++)
        snprintf(m->endpoints[i], sizeof m->endpoints[i], "%s", endpoints[i]);
    m->started = m->heard = now;
    m->next_report = now + REPORT_MS;
    m->due = TLY_NEVER;
    send_register(m, now);
    if (!m->out.first) {
        tly_membership_fini(m);
        return tly_error_memory(TLY_HEADER_BYTES, "the first message to the scheduler");
    }
    return TALLY_OK;
}

static void nodes_free(tly_node *nodes, uint32_t count)
{
    for (uint32_t i = 0; nodes && i < count; i++) {
        for (uint32_t j = 0; nodes[i].endpoints && j < nodes[i].endpoint_count; j++)
            free((void *)nodes[i].endpoints[j]);
        free((void *)nodes[i].endpoints);
        free((void *)nodes[i].host);
    }
    free(nodes);
}

void tly_membership_fini(tly_membership *m)
{
    nodes_free(m->workers, m->worker_count);
    nodes_free(m->servers, m->server_count);
    m->workers = m->servers = NULL;
    free(m->endpoints);
    m->endpoints = NULL;
    tly_out_list_fini(&m->out);
}

static bool node_copy(tly_node *to, const tly_node *from)
{
    *to = *from;
    const char **endpoints = calloc(from->endpoint_count ? from->endpoint_count : 1, sizeof *endpoints);
    to->endpoints = endpoints;
    to->host = strdup(from->host);
    if (!endpoints || !to->host)
        return false;
    for (uint32_t i = 0; i < from->endpoint_count; i++) {
        endpoints[i] = strdup(from->endpoints[i]);
        if (!endpoints[i])
            return false;
    }
    return true;
}

static tly_node *nodes_copy(const tly_node *from, uint32_t count)
{
    tly_node *nodes = calloc(count ? count : 1, sizeof *nodes);
    for (uint32_t i = 0; nodes && i < count; i++)
        if (!node_copy(&nodes[i], &from[i])) {
            nodes_free(nodes, count);
            return NULL;
        }
    return nodes;
}

/* Does the announcement list this node where it says, and are all others where they belong? */
static bool epoch_is_sound(const tly_membership *m, const tly_ctl *message)
{
    bool worker = m->role == TLY_ROLE_WORKER;
    uint32_t workers = message->epoch_info.worker_count, servers = message->epoch_info.server_count;
    uint32_t rank = message->epoch_info.rank, id = message->epoch_info.id;
    if (message->job == 0 || message->epoch == 0 || id == 0 || rank >= (worker ? workers : servers))
        return false;
    for (uint32_t i = 0; i < workers; i++)
        if (message->epoch_info.workers[i].rank != i)
            return false;
    for (uint32_t i = 0; i < servers; i++)
        if (message->epoch_info.servers[i].rank != i || message->epoch_info.servers[i].endpoint_count == 0)
            return false;
    return (worker ? message->epoch_info.workers : message->epoch_info.servers)[rank].id == id;
}

static bool install_epoch(tly_membership *m, const tly_ctl *message, tly_time now)
{
    if (!epoch_is_sound(m, message)) {
        tly_log_warn(m->log, "the scheduler at %s announced an epoch that makes no sense; ignored",
                     m->scheduler);
        return false;
    }
    tly_node *workers = nodes_copy(message->epoch_info.workers, message->epoch_info.worker_count);
    tly_node *servers = nodes_copy(message->epoch_info.servers, message->epoch_info.server_count);
    if (!workers || !servers) {
        nodes_free(workers, message->epoch_info.worker_count);
        nodes_free(servers, message->epoch_info.server_count);
        return false; /* it comes again with the next REGISTER */
    }
    m->workers = workers;
    m->servers = servers;
    m->worker_count = message->epoch_info.worker_count;
    m->server_count = message->epoch_info.server_count;
    m->job = message->job;
    m->epoch = message->epoch;
    m->id = message->epoch_info.id;
    m->rank = message->epoch_info.rank;
    if (message->epoch_info.death_limit_ms > 0 && message->epoch_info.death_limit_ms <= INT32_MAX)
        m->death_limit_ms = (int)message->epoch_info.death_limit_ms;
    m->next_beat = now;
    m->state = TLY_MEMBER_IN;
    return true;
}

/* The status of a message as one of ours. */
static tally_status known_status(uint32_t status, tally_status otherwise)
{
    return status > TALLY_OK && status <= TALLY_ESYSTEM ? (tally_status)status : otherwise;
}

static void take_failure(tly_membership *m, const tly_ctl *message)
{
    if (m->state == TLY_MEMBER_LEAVING) {
        m->state = TLY_MEMBER_LEFT; /* there is nothing left to wait for */
        return;
    }
    /* Who is in sees every failure as the job's; who is joining may see that too few came in time. */
    tally_status status = TALLY_EFAILED;
    if (m->state == TLY_MEMBER_JOINING)
        status = known_status(message->status, TALLY_EFAILED);
    tly_membership_fail_here(m, status, message->text);
}

bool tly_membership_message(tly_membership *m, const tly_ctl *message, tly_time now)
{
    bool over = m->state == TLY_MEMBER_FAILED || m->state == TLY_MEMBER_LEFT;
    bool foreign = m->job != 0 && message->job != m->job;
    if (over || foreign || message->sender != 0)
        return false;
    m->answered = true;
    m->heard = now;
    switch (message->type) {
    case TLY_CTL_EPOCH:
        return m->state == TLY_MEMBER_JOINING && install_epoch(m, message, now);
    case TLY_CTL_FAIL:
        take_failure(m, message);
        return true;
    case TLY_CTL_REFUSED:
        if (m->state != TLY_MEMBER_JOINING)
            return false;
        tly_membership_fail_here(m, known_status(message->status, TALLY_EREFUSED), message->text);
        return true;
    case TLY_CTL_WAITING:
        if (m->state == TLY_MEMBER_JOINING)
            snprintf(m->waiting, sizeof m->waiting, "%s", message->text);
        return m->state == TLY_MEMBER_IN && message->barrier.seq > 0;
    case TLY_CTL_LEFT:
        if (m->state == TLY_MEMBER_LEAVING && message->peer == m->id)
            m->state = TLY_MEMBER_LEFT;
        return m->state == TLY_MEMBER_IN && message->peer != m->id;
    case TLY_CTL_END:
        if (m->state != TLY_MEMBER_IN || m->role != TLY_ROLE_SERVER)
            return false;
        m->state = TLY_MEMBER_ENDED;
        return true;
    case TLY_CTL_PLACED:
    case TLY_CTL_BARRIER:
        return m->state == TLY_MEMBER_IN && message->epoch == m->epoch;
    default:
        return false;
    }
}

void tly_membership_reconnected(tly_membership *m, tly_time now)
{
    if (m->state == TLY_MEMBER_JOINING || m->state == TLY_MEMBER_IN) {
        send_register(m, now);
        send_said(m);
    } else if (m->state == TLY_MEMBER_LEAVING) {
        send_own(m, &(tly_ctl){ .type = TLY_CTL_LEAVE });
    }
}

/* A tick that comes much later than asked for means that this process was stopped, and what the
 * scheduler said meanwhile may still wait unread: nothing is decided before a few beats have passed. */
static void forgive_pause(tly_membership *m, tly_time now)
{
    int grace_ms = m->death_limit_ms / 4;
    if (m->due == TLY_NEVER || now - m->due <= grace_ms)
        return;
    tly_time heard = now - tly_silence_ms(m->death_limit_ms) + grace_ms;
    if (m->heard < heard)
        m->heard = heard;
    tly_time started = now - m->config->start_limit_ms + grace_ms;
    if (m->started < started)
        m->started = started;
}

static void report(tly_membership *m, tly_time now)
{
    if (now < m->next_report)
        return;
    m->next_report = now + REPORT_MS;
    if (m->answered && m->waiting[0])
        tly_log_warn(m->log, "%s", m->waiting);
    else
        tly_log_warn(m->log, "waiting for the scheduler at %s%s%s", m->scheduler, m->trouble[0] ? ": " : "",
                     m->trouble);
}

/* A scheduler that has never answered within the start limit, or was heard and then fell silent. */
static tly_time watch_scheduler(tly_membership *m, tly_time now)
{
    char text[TLY_DURATION_MAX], sentence[TLY_SENTENCE_MAX];
    tly_time limit = m->answered ? m->heard + tly_silence_ms(m->death_limit_ms)
                                 : m->started + m->config->start_limit_ms;
    if (now < limit)
        return limit;
    if (m->answered) {
        snprintf(sentence, sizeof sentence,
                 "the scheduler (%s) died: nothing heard from it for %s (TALLY_DEATH_LIMIT_MS)", m->scheduler,
                 tly_duration(text, m->death_limit_ms));
        tly_membership_fail_here(m, TALLY_EFAILED, sentence);
    } else {
        snprintf(sentence, sizeof sentence,
                 "no answer from the scheduler at %s within %s (TALLY_START_LIMIT_MS)%s%s", m->scheduler,
                 tly_duration(text, m->config->start_limit_ms), m->trouble[0] ? ": " : "", m->trouble);
        tly_membership_fail_here(m, TALLY_ETIMEDOUT, sentence);
    }
    return TLY_NEVER;
}

static tly_time sooner(tly_time a, tly_time b)
{
    return a < b ? a : b;
}

static tly_time tick_joining(tly_membership *m, tly_time now)
{
    tly_time limit = watch_scheduler(m, now);
    if (m->state == TLY_MEMBER_FAILED)
        return TLY_NEVER;
    report(m, now);
    if (now >= m->next_register) {
        send_register(m, now);
        send_said(m);
    }
    return sooner(limit, sooner(m->next_register, m->next_report));
}

/* Also of a server after END: it beats until it leaves. */
static tly_time tick_in(tly_membership *m, tly_time now)
{
    tly_time limit = TLY_NEVER;
    if (m->state == TLY_MEMBER_IN) {
        limit = watch_scheduler(m, now);
        if (m->state == TLY_MEMBER_FAILED)
            return TLY_NEVER;
    }
    if (now >= m->next_beat) {
        m->next_beat = now + beat_ms(m);
        if (now - m->heard > DOUBT_BEATS * beat_ms(m))
            send_register(m, now);
        else
            send_own(m, &(tly_ctl){ .type = TLY_CTL_BEAT, .beat = { .placed_version = m->placed_version } });
        send_said(m);
    }
    return sooner(limit, m->next_beat);
}

static tly_time tick_leaving(tly_membership *m, tly_time now)
{
    if (now >= m->leave_by) {
        m->state = TLY_MEMBER_LEFT;
        return TLY_NEVER;
    }
    if (now >= m->next_beat) {
        m->next_beat = now + beat_ms(m);
        send_own(m, &(tly_ctl){ .type = TLY_CTL_LEAVE });
    }
    return sooner(m->leave_by, m->next_beat);
}

tly_time tly_membership_tick(tly_membership *m, tly_time now)
{
    forgive_pause(m, now);
    tly_time due = TLY_NEVER;
    if (m->state == TLY_MEMBER_JOINING)
        due = tick_joining(m, now);
    else if (m->state == TLY_MEMBER_IN || m->state == TLY_MEMBER_ENDED)
        due = tick_in(m, now);
    else if (m->state == TLY_MEMBER_LEAVING)
        due = tick_leaving(m, now);
    m->due = due;
    return due;
}

void tly_membership_fail(tly_membership *m, tally_status status, const char *sentence)
{
    if (m->said[0] || (m->state != TLY_MEMBER_JOINING && m->state != TLY_MEMBER_IN))
        return;
    m->said_status = status;
    snprintf(m->said, sizeof m->said, "%s", sentence[0] ? sentence : tally_status_name(status));
    send_said(m);
}

void tly_membership_fail_here(tly_membership *m, tally_status status, const char *sentence)
{
    if (m->state == TLY_MEMBER_FAILED || m->state == TLY_MEMBER_LEFT)
        return;
    m->state = TLY_MEMBER_FAILED;
    m->failure_status = status;
    snprintf(m->failure, sizeof m->failure, "%s", sentence);
}

void tly_membership_leave(tly_membership *m, int limit_ms, tly_time now)
{
    if (m->state == TLY_MEMBER_LEAVING || m->state == TLY_MEMBER_LEFT)
        return;
    send_own(m, &(tly_ctl){ .type = TLY_CTL_LEAVE });
    if (m->state == TLY_MEMBER_FAILED)
        return;
    m->state = m->answered ? TLY_MEMBER_LEAVING : TLY_MEMBER_LEFT;
    m->leave_by = now + limit_ms;
    m->next_beat = now + beat_ms(m);
}

tally_status tly_membership_send(tly_membership *m, tly_ctl *message)
{
    message->job = m->job;
    message->epoch = m->epoch;
    message->sender = m->id;
    tly_out *out = tly_ctl_out(message);
    if (!out)
        return tly_error_memory(TLY_HEADER_BYTES, "a message to the scheduler");
    tly_out_push(&m->out, out);
    return TALLY_OK;
}
