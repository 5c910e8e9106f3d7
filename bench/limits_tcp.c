/* Plain TCP: one connection, blocking calls, and a thread to receive where both ways are used. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "bench/transport.h"

/* What one recv asks for at most. Asked for a whole block the kernel needs up to twice the processor
 * time (AMD EPYC, Linux 6.18: 0.40 s/GB, and 0.21 with 256 KiB, 0.23 with 64 KiB), and a limit should
 * not be made of that. */
#define RECEIVE_BYTES ((size_t)256 << 10)

typedef struct tcp_link {
    int fd; /* 0: none; standard input is not ours */
    unsigned char *out, *in;
} tcp_link;

static tally_status failed(const char *what)
{
    return tly_error(TALLY_ESYSTEM, "tcp: %s: %s", what, strerror(errno));
}

static tally_status listen_for_one(const tly_pair_side *side, tcp_link *link)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof(address);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0)
        return failed("socket");
    tally_status status = TALLY_OK;
    if (bind(listener, (struct sockaddr *)&address, len) || listen(listener, 1)
        || getsockname(listener, (struct sockaddr *)&address, &len))
        status = failed("listen");
    if (!status)
        status = tly_pair_tell(side, &address.sin_port, sizeof(address.sin_port));
    if (!status) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            status = failed("accept");
        else
            link->fd = fd;
    }
    close(listener);
    return status;
}

static tally_status connect_to_it(const tly_pair_side *side, tcp_link *link)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    tally_status status = tly_pair_hear(side, &address.sin_port, sizeof(address.sin_port));
    if (status)
        return status;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return failed("socket");
    link->fd = fd;
    return connect(fd, (struct sockaddr *)&address, sizeof(address)) ? failed("connect") : TALLY_OK;
}

static tally_status tcp_open(const tly_pair_side *side, void *of)
{
    tcp_link *link = of;
    link->out = malloc(TLY_BLOCK_BYTES);
    link->in = malloc(TLY_BLOCK_BYTES);
    if (!link->out || !link->in)
        return tly_error_memory(TLY_BLOCK_BYTES, "a block");
    tly_block_fill(link->out);
    memset(link->in, 0, TLY_BLOCK_BYTES);
    tally_status status = side->index == 0 ? listen_for_one(side, link) : connect_to_it(side, link);
    if (status)
        return status;
    const struct timeval limit = { .tv_sec = TLY_TRANSPORT_LIMIT_MS / 1000 };
    int on = 1;
    if (setsockopt(link->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on))
        || setsockopt(link->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit))
        || setsockopt(link->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)))
        return failed("setsockopt");
    return TALLY_OK;
}

static void tcp_close(void *of)
{
    tcp_link *link = of;
    if (link->fd)
        close(link->fd);
    free(link->out);
    free(link->in);
}

static tally_status send_all(const tcp_link *link, size_t len)
{
    for (size_t sent = 0; sent < len;) {
        ssize_t n = send(link->fd, link->out + sent, len - sent, MSG_NOSIGNAL);
        if (n < 0)
            return failed("send");
        sent += (size_t)n;
    }
    return TALLY_OK;
}

static tally_status receive_all(const tcp_link *link, size_t len)
{
    for (size_t received = 0; received < len;) {
        size_t piece = len - received < RECEIVE_BYTES ? len - received : RECEIVE_BYTES;
        ssize_t n = recv(link->fd, link->in + received, piece, 0);
        if (n < 0)
            return failed("recv");
        if (n == 0)
            return tly_error(TALLY_ELEFT, "tcp: the other side has ended");
        received += (size_t)n;
    }
    return TALLY_OK;
}

static tally_status send_blocks(const tcp_link *link, size_t blocks)
{
    tally_status status = TALLY_OK;
    for (size_t i = 0; i < blocks && !status; i++)
        status = send_all(link, TLY_BLOCK_BYTES);
    return status;
}

static tally_status receive_blocks(const tcp_link *link, size_t blocks)
{
    tally_status status = TALLY_OK;
    for (size_t i = 0; i < blocks && !status; i++)
        status = receive_all(link, TLY_BLOCK_BYTES);
    return !status && blocks ? tly_block_check(link->in, TLY_BLOCK_BYTES) : status;
}

/* What the second thread receives. */
typedef struct receiver {
    const tcp_link *link;
    size_t blocks;
    tally_status status;
    char sentence[TLY_SENTENCE_MAX];
} receiver;

static void *receive_in_thread(void *of)
{
    receiver *r = of;
    r->status = receive_blocks(r->link, r->blocks);
    strncpy(r->sentence, r->status ? tly_error_text() : "", sizeof(r->sentence) - 1);
    return NULL;
}

static tally_status tcp_move(void *of, size_t to_send, size_t to_receive)
{
    tcp_link *link = of;
    if (!to_send)
        return receive_blocks(link, to_receive);
    if (!to_receive)
        return send_blocks(link, to_send);
    receiver r = { .link = link, .blocks = to_receive };
    pthread_t thread;
    int error = pthread_create(&thread, NULL, receive_in_thread, &r);
    if (error)
        return tly_error(TALLY_ESYSTEM, "tcp: a thread: %s", strerror(error));
    tally_status status = send_blocks(link, to_send);
    pthread_join(thread, NULL);
    return !status && r.status ? tly_error(r.status, "%s", r.sentence) : status;
}

static tally_status tcp_ask(void *of)
{
    tally_status status = send_all(of, TLY_TRIP_BYTES);
    return status ? status : receive_all(of, TLY_TRIP_BYTES);
}

static tally_status tcp_answer(void *of)
{
    tally_status status = receive_all(of, TLY_TRIP_BYTES);
    return status ? status : send_all(of, TLY_TRIP_BYTES);
}

const tly_transport tly_transport_tcp = {
    .name = "tcp",
    .link_bytes = sizeof(tcp_link),
    .open = tcp_open,
    .close = tcp_close,
    .move = tcp_move,
    .ask = tcp_ask,
    .answer = tcp_answer,
};
