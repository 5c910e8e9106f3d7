#include "scheduler/seats.h"

#include <stdlib.h>
#include <string.h>

#define SHARDS_MAX 65535u /* a tly_place has 16 bits for it */
#define NAMED_MAX 8       /* ranks in a sentence */

/* Before the start a node that crashed may come again soon, and the silence of one costs nothing:
 * whatever the death limit, it keeps its seat for at least so long. */
#define SEAT_MS 2500

tally_status tly_seats_init(tly_seats *seats, const tly_config *config, const tly_log *log)
{
    memset(seats, 0, sizeof *seats);
    seats->config = config;
    seats->log = log;
    seats->next_id = 1;
    seats->workers = calloc((size_t)config->num_worker, sizeof *seats->workers);
    seats->servers = calloc((size_t)config->num_server, sizeof *seats->servers);
    if (!seats->workers || !seats->servers) {
        tly_seats_fini(seats);
        return tly_error_memory(tly_seats_count(seats) * sizeof(tly_member *), "the roster");
    }
    return TALLY_OK;
}

static void member_free(tly_member *m)
{
    if (!m)
        return;
    free(m->endpoints);
    free(m->endpoint_names);
    free(m);
}

void tly_seats_fini(tly_seats *seats)
{
    HASH_CLEAR(hh, seats->by_id);
    HASH_CLEAR(hh, seats->endpoints);
    for (uint32_t i = 0; seats->workers && i < (uint32_t)seats->config->num_worker; i++)
        member_free(seats->workers[i]);
    for (uint32_t i = 0; seats->servers && i < seats->server_count; i++)
        member_free(seats->servers[i]);
    free(seats->workers);
    free(seats->servers);
    seats->workers = seats->servers = NULL;
}

static void endpoints_forget(tly_seats *seats, tly_member *m)
{
    for (uint32_t i = 0; i < m->endpoint_count; i++)
        if (m->endpoints[i].hh.tbl)
            HASH_DEL(seats->endpoints, &m->endpoints[i]);
}

/* Enter a server's endpoints where duplicates are looked for. */
static bool endpoints_enter(tly_seats *seats, tly_member *m, const tly_ctl *message)
{
    uint32_t count = message->reg.endpoint_count;
    m->endpoints = calloc(count, sizeof *m->endpoints);
    m->endpoint_names = calloc(count, sizeof *m->endpoint_names);
    if (!m->endpoints || !m->endpoint_names)
        return false;
    m->endpoint_count = count;
    for (uint32_t i = 0; i < count; i++) {
        tly_endpoint *e = &m->endpoints[i];
        snprintf(e->name, sizeof e->name, "%s", message->reg.endpoints[i]);
        e->owner = m;
        m->endpoint_names[i] = e->name;
        HASH_ADD_STR(seats->endpoints, name, e);
        if (!e->hh.tbl) {
            endpoints_forget(seats, m);
            return false;
        }
    }
    return true;
}

tly_member *tly_seats_take(tly_seats *seats, const tly_peer *peer, const tly_ctl *message, tly_time now)
{
    size_t host_bytes = strlen(message->reg.host) + 1;
    tly_member *m = calloc(1, sizeof *m + host_bytes);
    if (!m)
        return NULL;
    memcpy(m->host, message->reg.host, host_bytes);
    m->id = seats->next_id;
    m->role = (tly_role)message->reg.role;
    m->rank = m->role == TLY_ROLE_WORKER ? message->reg.rank : 0;
    m->nonce = message->reg.nonce;
    m->local_size = message->reg.local_size;
    m->peer = *peer;
    m->heard = now;
    if (m->role == TLY_ROLE_SERVER && !endpoints_enter(seats, m, message))
        goto free_member;
    HASH_ADD(hh, seats->by_id, id, sizeof m->id, m);
    if (!m->hh.tbl)
        goto forget_endpoints;
    seats->next_id++;
    if (m->role == TLY_ROLE_WORKER) {
        seats->workers[m->rank] = m;
        seats->worker_count++;
    } else {
        seats->servers[seats->server_count++] = m;
    }
    return m;

forget_endpoints:
    endpoints_forget(seats, m);
free_member:
    member_free(m);
    return NULL;
}

void tly_seats_free(tly_seats *seats, tly_member *member)
{
    if (member->role == TLY_ROLE_WORKER) {
        seats->workers[member->rank] = NULL;
        seats->worker_count--;
    } else {
        uint32_t at = 0;
        while (seats->servers[at] != member)
            at++;
        seats->server_count--;
        memmove(&seats->servers[at], &seats->servers[at + 1],
                (seats->server_count - at) * sizeof *seats->servers);
        seats->servers[seats->server_count] = NULL;
    }
    endpoints_forget(seats, member);
    HASH_DEL(seats->by_id, member);
    member_free(member);
}

bool tly_seats_full(const tly_seats *seats)
{
    return seats->worker_count == (uint32_t)seats->config->num_worker &&
           seats->server_count == (uint32_t)seats->config->num_server;
}

uint32_t tly_seats_count(const tly_seats *seats)
{
    return (uint32_t)seats->config->num_worker + (uint32_t)seats->config->num_server;
}

tly_member *tly_seats_at(const tly_seats *seats, uint32_t index)
{
    uint32_t workers = (uint32_t)seats->config->num_worker;
    return index < workers ? seats->workers[index] : seats->servers[index - workers];
}

tly_member *tly_seats_by_nonce(const tly_seats *seats, const tly_ctl *message)
{
    if (message->reg.role == TLY_ROLE_WORKER) {
        if (message->reg.rank >= (uint32_t)seats->config->num_worker)
            return NULL;
        tly_member *m = seats->workers[message->reg.rank];
        return m && m->nonce == message->reg.nonce ? m : NULL;
    }
    for (uint32_t i = 0; i < seats->server_count; i++)
        if (seats->servers[i]->nonce == message->reg.nonce)
            return seats->servers[i];
    return NULL;
}

tly_member *tly_seats_by_id(const tly_seats *seats, uint32_t id)
{
    tly_member *m;
    HASH_FIND(hh, seats->by_id, &id, sizeof id, m);
    return m;
}

tly_member *tly_seats_by_peer(const tly_seats *seats, const tly_peer *peer)
{
    for (uint32_t i = 0; i < tly_seats_count(seats); i++) {
        tly_member *m = tly_seats_at(seats, i);
        if (m && m->peer.len == peer->len && memcmp(m->peer.id, peer->id, peer->len) == 0)
            return m;
    }
    return NULL;
}

bool tly_seats_beating(const tly_seats *seats, const tly_member *member, tly_time now)
{
    int window_ms = 5 * tly_beat_ms(seats->config->death_limit_ms) / 2;
    if (!seats->started && window_ms < SEAT_MS)
        window_ms = SEAT_MS;
    return now - member->heard <= window_ms;
}

int tly_seats_patience_ms(const tly_seats *seats)
{
    int silence_ms = tly_silence_ms(seats->config->death_limit_ms);
    return silence_ms < SEAT_MS ? SEAT_MS : silence_ms;
}

/* ---- who may sit down ---- */

static bool refuse(char *why, const char *format, ...) TLY_PRINTF(2, 3);
static bool refuse(char *why, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, TLY_SENTENCE_MAX, format, args);
    va_end(args);
    return false;
}

static const char *plural(int count)
{
    return count == 1 ? "" : "s";
}

static bool counts_agree(const tly_seats *seats, const tly_ctl *message, char *why)
{
    const char *role = tly_role_name((tly_role)message->reg.role);
    int num_worker = seats->config->num_worker, num_server = seats->config->num_server;
    if (message->reg.num_worker != (uint32_t)num_worker)
        return refuse(why, "this %s was told DMLC_NUM_WORKER=%u, the scheduler %d", role,
                      message->reg.num_worker, num_worker);
    if (message->reg.num_server != (uint32_t)num_server)
        return refuse(why, "this %s was told DMLC_NUM_SERVER=%u, the scheduler %d", role,
                      message->reg.num_server, num_server);
    return true;
}

static tly_verdict admit_worker(tly_seats *seats, const tly_ctl *message, tly_time now, char *why)
{
    uint32_t rank = message->reg.rank;
    int num_worker = seats->config->num_worker;
    if (rank >= (uint32_t)num_worker) {
        refuse(why, "DMLC_WORKER_ID=%u is out of range: the job has %d worker%s (0 to %d)", rank, num_worker,
               plural(num_worker), num_worker - 1);
        return TLY_REFUSED;
    }
    tly_member *holder = seats->workers[rank];
    if (!holder)
        return TLY_ADMITTED;
    if (holder->left) {
        refuse(why, "the job has already started, and its worker %u (%s) has left it", rank, holder->host);
        return TLY_REFUSED;
    }
    if (tly_seats_beating(seats, holder, now)) {
        refuse(why, "DMLC_WORKER_ID=%u is already taken by %s; this is %s", rank, holder->host,
               message->reg.host);
        return TLY_REFUSED;
    }
    if (seats->started) {
        refuse(why, "waiting to know whether worker %u (%s) died, whose place this worker wants", rank,
               holder->host);
        return TLY_LATER;
    }
    tly_log_warn(seats->log, "worker %u (%s) is silent; %s takes its place", rank, holder->host,
                 message->reg.host);
    tly_seats_free(seats, holder);
    return TLY_ADMITTED;
}

/* The endpoints will be connected to as they are, so they must be whole and nobody else's. */
static bool endpoints_are_sound(const tly_seats *seats, const tly_ctl *message, char *why)
{
    uint32_t count = message->reg.endpoint_count;
    if (count == 0 || count > SHARDS_MAX)
        return refuse(why, "a server has 1 to %u endpoints, this one (%s) has %u", SHARDS_MAX,
                      message->reg.host, count);
    for (uint32_t i = 0; i < count; i++) {
        const char *name = message->reg.endpoints[i];
        if (strncmp(name, "tcp://", 6) != 0 || strlen(name) >= TLY_ENDPOINT_MAX)
            return refuse(why, "\"%.128s\" of server %s is not an endpoint like tcp://ADDRESS:PORT", name,
                          message->reg.host);
        tly_endpoint *taken;
        HASH_FIND_STR(seats->endpoints, name, taken);
        if (taken)
            return refuse(why, "the endpoint %s is already taken by server %s; this is %s", name,
                          taken->owner->host, message->reg.host);
    }
    return true;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool endpoints_are_distinct(const tly_ctl *message, char *why)
{
    uint32_t count = message->reg.endpoint_count;
    const char **names = malloc(count * sizeof *names);
    if (!names)
        return refuse(why, "the scheduler has no memory for the endpoints of server %s", message->reg.host);
    memcpy(names, message->reg.endpoints, count * sizeof *names);
    qsort(names, count, sizeof *names, compare_names);
    bool distinct = true;
    for (uint32_t i = 1; i < count && distinct; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            distinct = refuse(why, "server %s has the endpoint %s twice", message->reg.host, names[i]);
    free(names);
    return distinct;
}

/* Make room for a server where one is silent. */
static void free_silent_server(tly_seats *seats, const char *host, tly_time now)
{
    for (uint32_t i = 0; i < seats->server_count; i++)
        if (!tly_seats_beating(seats, seats->servers[i], now)) {
            tly_log_warn(seats->log, "server %s is silent; %s takes its place", seats->servers[i]->host,
                         host);
            tly_seats_free(seats, seats->servers[i]);
            return;
        }
}

static tly_verdict admit_server(tly_seats *seats, const tly_ctl *message, tly_time now, char *why)
{
    int num_server = seats->config->num_server;
    if (seats->started) {
        refuse(why, "the job has already started with its %d server%s (DMLC_NUM_SERVER); this is %s",
               num_server, plural(num_server), message->reg.host);
        return TLY_REFUSED;
    }
    if (!endpoints_are_sound(seats, message, why) || !endpoints_are_distinct(message, why))
        return TLY_REFUSED;
    if (seats->server_count == (uint32_t)num_server)
        free_silent_server(seats, message->reg.host, now);
    if (seats->server_count < (uint32_t)num_server)
        return TLY_ADMITTED;
    refuse(why, "the job has its %d server%s already (DMLC_NUM_SERVER); this is %s", num_server,
           plural(num_server), message->reg.host);
    return TLY_REFUSED;
}

tly_verdict tly_seats_admit(tly_seats *seats, const tly_ctl *message, tly_time now,
                            char why[TLY_SENTENCE_MAX])
{
    if (!counts_agree(seats, message, why))
        return TLY_REFUSED;
    return message->reg.role == TLY_ROLE_WORKER ? admit_worker(seats, message, now, why)
                                                : admit_server(seats, message, now, why);
}

/* ---- who is missing ---- */

void tly_append(char *text, size_t room, const char *format, ...)
{
    size_t len = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + len, room - len, format, args);
    va_end(args);
}

uint32_t tly_seats_append_ranks(const tly_seats *seats, char *text, size_t room,
                                bool (*fits)(const tly_member *worker, const void *arg), const void *arg)
{
    uint32_t total = 0, named = 0, num_worker = (uint32_t)seats->config->num_worker;
    for (uint32_t rank = 0; rank < num_worker; rank++)
        total += fits(seats->workers[rank], arg);
    tly_append(text, room, "worker%s", plural((int)total));
    for (uint32_t rank = 0; rank < num_worker && named < NAMED_MAX; rank++)
        if (fits(seats->workers[rank], arg))
            tly_append(text, room, "%s %u", named++ ? "," : "", rank);
    if (total > named)
        tly_append(text, room, " and %u more", total - named);
    return total;
}

static bool has_not_come(const tly_member *worker, const void *arg)
{
    (void)arg;
    return !worker;
}

void tly_seats_waiting(const tly_seats *seats, char text[TLY_SENTENCE_MAX])
{
    int num_worker = seats->config->num_worker, num_server = seats->config->num_server;
    int workers = num_worker - (int)seats->worker_count, servers = num_server - (int)seats->server_count;
    snprintf(text, TLY_SENTENCE_MAX, "waiting for ");
    if (workers > 0) {
        tly_append(text, TLY_SENTENCE_MAX, "%d of %d worker%s (", workers, num_worker, plural(num_worker));
        tly_seats_append_ranks(seats, text, TLY_SENTENCE_MAX, has_not_come, NULL);
        tly_append(text, TLY_SENTENCE_MAX, ")%s", servers > 0 ? " and " : "");
    }
    if (servers > 0)
        tly_append(text, TLY_SENTENCE_MAX, "%d of %d server%s", servers, num_server, plural(num_server));
}

void tly_seats_too_few(const tly_seats *seats, char text[TLY_SENTENCE_MAX])
{
    char limit[TLY_DURATION_MAX];
    int num_worker = seats->config->num_worker, num_server = seats->config->num_server;
    int servers = num_server - (int)seats->server_count;
    bool workers_are_missing = (int)seats->worker_count < num_worker;
    snprintf(text, TLY_SENTENCE_MAX,
             "only %u of %d worker%s and %u of %d server%s came within %s (TALLY_START_LIMIT_MS); missing: ",
             seats->worker_count, num_worker, plural(num_worker), seats->server_count, num_server,
             plural(num_server), tly_duration(limit, seats->config->start_limit_ms));
    if (workers_are_missing)
        tly_seats_append_ranks(seats, text, TLY_SENTENCE_MAX, has_not_come, NULL);
    if (servers > 0)
        tly_append(text, TLY_SENTENCE_MAX, "%s%d server%s", workers_are_missing ? ", " : "", servers,
                   plural(servers));
}
