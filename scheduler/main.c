/* tally-scheduler: the roster behind a socket. One thread; every wait is a poll that ends with what
 * is due. Exit status: 0 the job ended well, 1 it failed, 2 a setting is missing or wrong. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/net.h"
#include "common/program.h"
#include "scheduler/roster.h"

#define LINGER_MS 1000       /* for the last words */
#define QUEUE_MAX 1000       /* messages that wait for a node; beats and answers bring lost ones again */
#define WARN_EVERY_MS 60000  /* about messages that cannot be read */
#define MESSAGES_A_TURN 1000 /* so that many senders cannot keep the roster from its duties */

typedef struct shell {
    tly_config config;
    tly_log log;
    tly_net *net;
    tly_sock *sock;
    int signals; /* a signalfd */
    tly_roster *roster;
    tly_time next_warn;
    unsigned unsaid; /* warnings that were not written */
} shell;

/* A job id is never 0. */
static tally_status draw_job(uint32_t *job)
{
    do
        if (getrandom(job, sizeof *job, 0) != sizeof *job)
            return tly_error(TALLY_ESYSTEM, "getrandom: %s", strerror(errno));
    while (*job == 0);
    return TALLY_OK;
}

static tally_status listen_at(shell *s, const char *numeric)
{
    int port = s->config.root_port;
    tally_status status = tly_sock_bind(s->net, numeric, &port, QUEUE_MAX, &s->sock);
    if (status != TALLY_OK)
        return tly_error_context(status,
                                 "the scheduler listens at DMLC_PS_ROOT_URI=%s DMLC_PS_ROOT_PORT=%d, which "
                                 "must be an address of this machine and a free port",
                                 s->config.root_uri, s->config.root_port);
    char endpoint[TLY_ENDPOINT_MAX];
    tly_address_endpoint(numeric, port, endpoint, sizeof endpoint);
    /* Whoever started it with port 0 reads this line. */
    printf("tally-scheduler listening on %s\n", endpoint + strlen("tcp://"));
    fflush(stdout);
    return TALLY_OK;
}

static tally_status start(shell *s)
{
    char numeric[TLY_NUMERIC_MAX];
    tally_status status =
        tly_address_resolve(s->config.root_uri, "DMLC_PS_ROOT_URI", numeric, sizeof numeric);
    if (status != TALLY_OK)
        return status;
    uint32_t job;
    status = draw_job(&job);
    if (status != TALLY_OK)
        return status;
    /* Before the transport starts its threads. */
    s->signals = tly_program_signals();
    if (s->signals < 0)
        return TALLY_ESYSTEM;
    status = tly_net_create(s->config.io_threads, &s->net);
    if (status != TALLY_OK)
        return status;
    status = tly_net_check_descriptors(1, (size_t)(s->config.num_worker + s->config.num_server), 0);
    if (status == TALLY_OK)
        status = listen_at(s, numeric);
    if (status != TALLY_OK)
        return status;
    return tly_roster_create(&s->config, &s->log, job, 1, tly_clock_now(), &s->roster);
}

static void stop(shell *s)
{
    tly_sock_close(s->sock, LINGER_MS);
    if (s->net)
        tly_net_destroy(s->net);
    tly_roster_destroy(s->roster);
    if (s->signals >= 0)
        close(s->signals);
}

static void warn_unreadable(shell *s, const char *sentence, tly_time now)
{
    if (now < s->next_warn) {
        s->unsaid++;
        return;
    }
    tly_log_warn(&s->log, "a message is ignored: %s (%u more since the last such line)", sentence, s->unsaid);
    s->unsaid = 0;
    s->next_warn = now + WARN_EVERY_MS;
}

static void handle(shell *s, const tly_peer *peer, const tly_buf *head, const tly_buf *body, tly_time now)
{
    tly_ctl message;
    tally_status status = tly_ctl_decode(head->data, head->len_bytes, &message);
    if (status == TALLY_EVERSION) {
        tly_roster_foreign(s->roster, peer, tly_error_text());
    } else if (status != TALLY_OK) {
        warn_unreadable(s, tly_error_text(), now);
    } else {
        if (body)
            warn_unreadable(s, "a message of the control plane has a body", now);
        else
            tly_roster_message(s->roster, peer, &message, now);
        tly_ctl_fini(&message);
    }
}

/* Take what has come. Returns: TALLY_OK, or why the socket is of no use any more. */
static tally_status receive(shell *s, tly_time now)
{
    for (int i = 0; i < MESSAGES_A_TURN; i++) {
        tly_peer peer;
        tly_buf *head, *body;
        tally_status status = tly_sock_recv(s->sock, &peer, &head, &body);
        if (status == TALLY_EAGAIN)
            return TALLY_OK;
        if (status == TALLY_ESYSTEM)
            return status;
        if (status != TALLY_OK) {
            warn_unreadable(s, tly_error_text(), now);
            continue;
        }
        handle(s, &peer, head, body, now);
        tly_buf_put(head);
        tly_buf_put(body);
    }
    return TALLY_OK;
}

static void send_all(shell *s)
{
    for (tly_out *out; (out = tly_out_pop(tly_roster_out(s->roster)));) {
        /* Who is gone misses it, and registers again if it is alive. */
        (void)tly_sock_send(s->sock, &out->peer, out->head, out->head_len_bytes, NULL);
        tly_out_free(out);
    }
}

/* Was there a signal? Then the job fails. */
static bool take_signal(shell *s, tly_time now)
{
    int signal = tly_program_signal(s->signals);
    if (signal == 0)
        return false;
    char sentence[TLY_SENTENCE_MAX];
    snprintf(sentence, sizeof sentence, "the scheduler was stopped by signal %d (%s)", signal,
             tly_program_signal_name(signal));
    tly_roster_fail(s->roster, TALLY_EFAILED, sentence, now);
    return true;
}

static int serve(shell *s)
{
    int exit_status;
    const char *failure;
    tly_poll_item items[] = { { .sock = s->sock }, { .fd = s->signals } };
    for (;;) {
        tly_time due = tly_roster_tick(s->roster, tly_clock_now());
        send_all(s);
        if (tly_roster_done(s->roster, &exit_status, &failure))
            return exit_status;
        int timeout_ms = tly_clock_timeout(due, tly_clock_now());
        tally_status status = tly_net_poll(items, 2, timeout_ms);
        if (status == TALLY_OK)
            status = receive(s, tly_clock_now());
        if (status != TALLY_OK)
            tly_roster_fail(s->roster, status, tly_error_text(), tly_clock_now());
        if (take_signal(s, tly_clock_now()) || status != TALLY_OK) {
            send_all(s);
            return tly_roster_done(s->roster, &exit_status, &failure) ? exit_status : TLY_EXIT_JOB_FAILED;
        }
    }
}

int main(int argc, char **argv)
{
    tly_program_streams();
    tly_program_arguments(argc, argv, TLY_ROLE_SCHEDULER,
                          "The scheduler of a Tally job: membership, placement, barriers, failure detection.");
    shell s = { .log = { .level = TALLY_LOG_WARN, .who = "scheduler" }, .signals = -1 };
    if (tly_config_load(&s.config, TLY_ROLE_SCHEDULER, NULL, &s.log) != TALLY_OK) {
        tly_log_error(&s.log, "%s", tly_error_text());
        return TLY_EXIT_CONFIG;
    }
    s.log.level = s.config.log_level;
    tly_config_log(&s.config, &s.log);
    tally_status status = start(&s);
    int exit_status;
    if (status == TALLY_OK) {
        exit_status = serve(&s);
    } else {
        tly_log_error(&s.log, "%s", tly_error_text());
        exit_status = status == TALLY_ECONFIG ? TLY_EXIT_CONFIG : TLY_EXIT_JOB_FAILED;
    }
    stop(&s);
    return exit_status;
}
