#include "server/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECEIVE_BATCH 64

enum { LETTER_INSTALL, LETTER_LEFT, LETTER_STOP };

typedef struct install_letter {
    tly_letter letter;
    uint32_t node_id, job, worker_count;
    uint64_t epoch;
    uint32_t worker_ids[];
} install_letter;

typedef struct left_letter {
    tly_letter letter;
    uint32_t rank;
} left_letter;

struct tly_shard {
    const tly_config *config;
    const tly_log *log;
    uint32_t index;
    tly_sock *sock;
    tly_mailbox mailbox;
    tly_mailbox *failures;
    tly_shard_failure failure; /* posted at most once */
    bool failure_said;
    tly_rounds *rounds; /* NULL before the first epoch */
    tly_letter stop_letter;
    bool stop;
    bool started;
    pthread_t thread;
};

tally_status tly_shard_create(tly_net *net, const tly_config *config, const tly_log *log, const char *numeric,
                              uint32_t index, tly_mailbox *failures, tly_shard **shard, int *port)
{
    tly_shard *s = calloc(1, sizeof *s);
    if (!s)
        return tly_error_memory(sizeof *s, "a shard");
    s->config = config;
    s->log = log;
    s->index = index;
    s->failures = failures;
    tally_status status = tly_mailbox_init(&s->mailbox);
    *port = 0;
    if (status == TALLY_OK)
        status = tly_sock_bind(net, numeric, port, 0, &s->sock);
    if (status != TALLY_OK) {
        tly_shard_destroy(s);
        return status;
    }
    *shard = s;
    return TALLY_OK;
}

static void fail(tly_shard *s, const char *why)
{
    if (s->failure_said)
        return;
    s->failure_said = true;
    snprintf(s->failure.text, sizeof s->failure.text, "shard %u: %s", s->index, why);
    tly_mailbox_post(s->failures, &s->failure.letter);
}

static void install(tly_shard *s, const install_letter *letter, tly_time now)
{
    tally_status status = TALLY_OK;
    if (!s->rounds)
        status = tly_rounds_create(letter->node_id, letter->job, s->config->deterministic, s->log, &s->rounds);
    if (status == TALLY_OK)
        status = tly_rounds_install(s->rounds, letter->epoch, letter->worker_count, letter->worker_ids, now);
    if (status != TALLY_OK)
        fail(s, tly_error_text());
}

static void handle_letters(tly_shard *s, tly_time now)
{
    tly_letter *letter = tly_mailbox_take(&s->mailbox);
    while (letter) {
        tly_letter *next = letter->next;
        switch (letter->type) {
        case LETTER_INSTALL:
            install(s, (install_letter *)letter, now);
            free(letter);
            break;
        case LETTER_LEFT:
            if (s->rounds)
                tly_rounds_left(s->rounds, ((left_letter *)letter)->rank, now);
            free(letter);
            break;
        default:
            s->stop = true;
            break;
        }
        letter = next;
    }
}

/* Returns: whether the socket is empty. */
static bool receive(tly_shard *s, tly_time now)
{
    for (int i = 0; i < RECEIVE_BATCH; i++) {
        tly_peer peer;
        tly_buf *head, *body;
        tally_status status = tly_sock_recv(s->sock, &peer, &head, &body);
        if (status == TALLY_EAGAIN)
            return true;
        if (status == TALLY_EPROTO)
            continue;
        if (status != TALLY_OK) {
            fail(s, tly_error_text());
            return true;
        }
        tly_rounds_message(s->rounds, &peer, head->data, head->len_bytes, body, now);
        tly_buf_put(head);
        tly_buf_put(body);
    }
    return false;
}

static void flush(tly_shard *s)
{
    for (tly_out *out; s->rounds && (out = tly_out_pop(tly_rounds_out(s->rounds)));) {
        tly_buf *body = out->body;
        out->body = NULL;
        tally_status status = tly_sock_send(s->sock, &out->peer, out->head, out->head_len_bytes, body);
        /* A connection that is gone comes back with a HELLO, and gets it then. */
        if (status != TALLY_OK && status != TALLY_ELEFT)
            fail(s, tly_error_text());
        tly_out_free(out);
    }
}

static void *shard_main(void *arg)
{
    tly_shard *s = arg;
    tly_time deadline = TLY_NEVER;
    while (!s->stop) {
        /* Before the first epoch messages wait in the socket. */
        tly_poll_item items[2] = { { .fd = s->mailbox.fd }, { .sock = s->sock, .fd = -1 } };
        if (tly_net_poll(items, s->rounds ? 2 : 1, tly_clock_timeout(deadline, tly_clock_now())) != TALLY_OK)
            fail(s, tly_error_text());
        tly_time now = tly_clock_now();
        handle_letters(s, now);
        if (!s->rounds)
            continue;
        if (receive(s, now))
            tly_rounds_idle(s->rounds);
        deadline = tly_rounds_tick(s->rounds, now);
        if (tly_rounds_failed(s->rounds))
            fail(s, "out of memory");
        flush(s);
    }
    return NULL;
}

tally_status tly_shard_start(tly_shard *s)
{
    int code = pthread_create(&s->thread, NULL, shard_main, s);
    if (code != 0)
        return tly_error(TALLY_ESYSTEM, "cannot start a thread: %s", strerror(code));
    pthread_setname_np(s->thread, "tally-shard");
    s->started = true;
    return TALLY_OK;
}

tally_status tly_shard_install(tly_shard *s, uint32_t node_id, uint32_t job, uint64_t epoch, uint32_t worker_count,
                               const uint32_t *worker_ids)
{
    size_t len_bytes = sizeof(install_letter) + worker_count * sizeof worker_ids[0];
    install_letter *letter = malloc(len_bytes);
    if (!letter)
        return tly_error_memory(len_bytes, "a roster");
    *letter = (install_letter){ .letter.type = LETTER_INSTALL, .node_id = node_id, .job = job, .epoch = epoch,
                                .worker_count = worker_count };
    memcpy(letter->worker_ids, worker_ids, worker_count * sizeof worker_ids[0]);
    tly_mailbox_post(&s->mailbox, &letter->letter);
    return TALLY_OK;
}

tally_status tly_shard_left(tly_shard *s, uint32_t rank)
{
    left_letter *letter = malloc(sizeof *letter);
    if (!letter)
        return tly_error_memory(sizeof *letter, "a message");
    *letter = (left_letter){ .letter.type = LETTER_LEFT, .rank = rank };
    tly_mailbox_post(&s->mailbox, &letter->letter);
    return TALLY_OK;
}

void tly_shard_destroy(tly_shard *s)
{
    if (!s)
        return;
    if (s->started) {
        s->stop_letter.type = LETTER_STOP;
        tly_mailbox_post(&s->mailbox, &s->stop_letter);
        pthread_join(s->thread, NULL);
        handle_letters(s, tly_clock_now());
    }
    tly_sock_close(s->sock, 0);
    tly_rounds_destroy(s->rounds);
    tly_mailbox_fini(&s->mailbox);
    free(s);
}
