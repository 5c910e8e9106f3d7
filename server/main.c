/* tally-server: shards that sum, and the membership that tells them for whom. The main thread talks
 * to the scheduler; each shard is a thread of its own. Exit status: 0 the job ended well, 1 it
 * failed, 2 a setting is missing or wrong. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/program.h"
#include "common/registrar.h"
#include "server/shard.h"

/* How long FAIL and LEAVE may take to leave, and how long the scheduler may take to answer them. */
#define LINGER_MS 1000
/* Messages up to this size are kept in the heap between uses. */
#define HEAP_BLOCK_BYTES (1 << 30)
#define SHARDS_BY_DEFAULT_MAX 4

typedef struct server {
    tly_config config;
    tly_log log;
    char address[TLY_ENDPOINT_MAX];
    tly_net *net;
    int signals;
    uint32_t shard_count;
    tly_shard **shards;
    tly_mailbox failures; /* from the shards */
    tly_registrar registrar;
    bool installed;
    tly_time give_up_at;  /* after a failure of ours: when not to wait for the scheduler's word any more */
} server;

/* Payloads of megabytes come and go all the time: keep their memory instead of giving it back to the
 * kernel and faulting it in again. One arena, because the transport's thread allocates and the
 * shards free. */
static void tune_heap(void)
{
    mallopt(M_MMAP_THRESHOLD, HEAP_BLOCK_BYTES);
    mallopt(M_TRIM_THRESHOLD, HEAP_BLOCK_BYTES);
    mallopt(M_ARENA_MAX, 1);
}

static void install(server *s)
{
    const tly_membership *m = &s->registrar.membership;
    /* The shards have it too, and read it once they are told of the epoch. */
    snprintf(s->log.who, sizeof s->log.who, "server %u", m->rank);
    uint32_t *ids = malloc(m->worker_count * sizeof *ids);
    tally_status status = ids ? TALLY_OK : tly_error_memory(m->worker_count * sizeof *ids, "the roster");
    for (uint32_t i = 0; ids && i < m->worker_count; i++)
        ids[i] = m->workers[i].id;
    for (uint32_t i = 0; status == TALLY_OK && i < s->shard_count; i++)
        status = tly_shard_install(s->shards[i], m->id, m->job, m->epoch, m->worker_count, ids);
    free(ids);
    if (status != TALLY_OK)
        tly_membership_fail_here(&s->registrar.membership, status, tly_error_text());
    s->installed = true;
    tly_log_info(&s->log, "joined workers %u servers %u", m->worker_count, m->server_count);
}

static void control(void *arg, const tly_ctl *message, tly_time now)
{
    server *s = arg;
    (void)now;
    /* LEFT may have come together with the epoch's announcement, and the shards need that first. */
    if (s->registrar.membership.state == TLY_MEMBER_IN && !s->installed)
        install(s);
    if (message->type != TLY_CTL_LEFT)
        return;
    for (uint32_t i = 0; i < s->shard_count; i++)
        if (tly_shard_left(s->shards[i], message->rank) != TALLY_OK)
            tly_membership_fail_here(&s->registrar.membership, TALLY_ENOMEM, tly_error_text());
}

/* Our own failure: the scheduler is told, and words it for all; without it we stop all the same. */
static void fail(server *s, const char *what, tly_time now)
{
    const tly_membership *m = &s->registrar.membership;
    char text[TLY_SENTENCE_MAX];
    if (m->state == TLY_MEMBER_IN)
        snprintf(text, sizeof text, "server %u (%s) %s", m->rank, m->host, what);
    else
        snprintf(text, sizeof text, "a server (%s) %s", m->host, what);
    if (s->give_up_at == TLY_NEVER)
        s->give_up_at = now + LINGER_MS;
    if (m->state == TLY_MEMBER_JOINING)
        tly_membership_fail_here(&s->registrar.membership, TALLY_EFAILED, text);
    else
        tly_membership_fail(&s->registrar.membership, TALLY_EFAILED, text);
}

static void handle_failures(server *s, tly_time now)
{
    /* The letters belong to the shards. */
    for (tly_letter *l = tly_mailbox_take(&s->failures); l; l = l->next)
        fail(s, ((tly_shard_failure *)l)->text, now);
}

static void handle_signal(server *s, tly_time now)
{
    char text[64];
    int signal = tly_program_signal(s->signals);
    if (signal == 0)
        return;
    snprintf(text, sizeof text, "was stopped by signal %d (%s)", signal, tly_program_signal_name(signal));
    fail(s, text, now);
}

/* Serve until the job ends. Returns: the exit status. */
static int serve(server *s)
{
    tly_membership *m = &s->registrar.membership;
    for (;;) {
        tly_time now = tly_clock_now();
        bool renewed;
        tly_time deadline = tly_registrar_run(&s->registrar, now, &renewed);
        if (m->state == TLY_MEMBER_IN && !s->installed)
            install(s);
        if (m->state == TLY_MEMBER_ENDED)
            return TLY_EXIT_GOOD;
        if (m->state == TLY_MEMBER_FAILED) {
            tly_log_error(&s->log, "%s", m->failure);
            return TLY_EXIT_JOB_FAILED;
        }
        if (now >= s->give_up_at)
            return TLY_EXIT_JOB_FAILED;
        if (s->give_up_at < deadline)
            deadline = s->give_up_at;
        tly_poll_item items[3] = { { .sock = s->registrar.connection.sock, .fd = -1 },
                                   { .fd = s->signals },
                                   { .fd = s->failures.fd } };
        if (tly_net_poll(items, 3, tly_clock_timeout(deadline, now)) != TALLY_OK) {
            tly_log_error(&s->log, "%s", tly_error_text());
            return TLY_EXIT_JOB_FAILED;
        }
        now = tly_clock_now();
        tly_registrar_handle(&s->registrar, &items[0], now);
        if (items[1].readable)
            handle_signal(s, now);
        if (items[2].readable)
            handle_failures(s, now);
    }
}

/* As many shards as asked for, or what leaves the transport's threads room on this machine. */
static uint32_t shards_wanted(const server *s)
{
    if (s->config.engine_threads > 0)
        return (uint32_t)s->config.engine_threads;
    long half = sysconf(_SC_NPROCESSORS_ONLN) / 2;
    return half < 1 ? 1 : half > SHARDS_BY_DEFAULT_MAX ? SHARDS_BY_DEFAULT_MAX : (uint32_t)half;
}

static tally_status start_shards(server *s)
{
    char endpoint_text[TLY_ENGINE_THREADS_MAX][TLY_ENDPOINT_MAX];
    const char *endpoints[TLY_ENGINE_THREADS_MAX];
    uint32_t wanted = shards_wanted(s);
    tally_status status = tly_net_check_descriptors(wanted, wanted * (size_t)s->config.num_worker, 1);
    if (status == TALLY_OK)
        status = tly_mailbox_init(&s->failures);
    if (status != TALLY_OK)
        return status;
    s->shards = calloc(wanted, sizeof *s->shards);
    if (!s->shards)
        return tly_error_memory(wanted * sizeof *s->shards, "the shards");
    while (s->shard_count < wanted) {
        uint32_t i = s->shard_count;
        int port;
        status = tly_shard_create(s->net, &s->config, &s->log, s->address, i, &s->failures, &s->shards[i], &port);
        if (status != TALLY_OK)
            return status;
        s->shard_count++;
        tly_address_endpoint(s->address, port, endpoint_text[i], sizeof endpoint_text[i]);
        endpoints[i] = endpoint_text[i];
        status = tly_shard_start(s->shards[i]);
        if (status != TALLY_OK)
            return status;
    }
    return tly_registrar_init(&s->registrar, s->net, &s->config, &s->log, TLY_ROLE_SERVER, s->address, s->shard_count,
                              endpoints, control, s);
}

int main(int argc, char **argv)
{
    server s = { .log = { .level = TALLY_LOG_WARN, .who = "server" }, .give_up_at = TLY_NEVER };
    int exit_status = TLY_EXIT_JOB_FAILED;
    tune_heap();
    tly_program_streams();
    tly_program_arguments(argc, argv, TLY_ROLE_SERVER, "A server of a Tally job: sums what the workers push.");
    tally_status status = tly_config_load(&s.config, TLY_ROLE_SERVER, NULL, &s.log);
    if (status != TALLY_OK)
        goto say;
    s.log.level = s.config.log_level;
    tly_config_log(&s.config, &s.log);
    status = tly_address_of_node(&s.config, s.address, sizeof s.address);
    if (status != TALLY_OK)
        goto say;
    s.signals = tly_program_signals();
    status = s.signals < 0 ? TALLY_ESYSTEM : tly_net_create(s.config.io_threads, &s.net);
    if (status != TALLY_OK)
        goto say;
    status = start_shards(&s);
    if (status == TALLY_OK) {
        exit_status = serve(&s);
        tly_membership_leave(&s.registrar.membership, 0, tly_clock_now());
        tly_registrar_flush(&s.registrar);
        tly_registrar_close(&s.registrar, LINGER_MS);
        tly_registrar_fini(&s.registrar);
    }
    for (uint32_t i = 0; i < s.shard_count; i++)
        tly_shard_destroy(s.shards[i]);
    free(s.shards);
    tly_mailbox_fini(&s.failures);
    tly_net_destroy(s.net);
    close(s.signals);
say:
    if (status != TALLY_OK) {
        tly_log_error(&s.log, "%s", tly_error_text());
        return status == TALLY_ECONFIG ? TLY_EXIT_CONFIG : TLY_EXIT_JOB_FAILED;
    }
    return exit_status;
}
