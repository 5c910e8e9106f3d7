/* Plain TCP: one connection, and one thread on each side, which polls. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "bench/transport.h"

/* What one recv asks for at most. A limit should not be made of what makes TCP dear: asked for whole
 * blocks, or blocking, the kernel needs up to twice the processor time for the same bytes (AMD EPYC,
 * Linux 6.18: 0.40 s/GB, and 0.25 with poll and 256 KiB). */
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

/* What is left of a move, in bytes, and whether the last attempt did anything. */
typedef struct progress {
    size_t to_send, to_receive;
    bool moved;
} progress;

/* Within a block: the rest of it is next. */
static size_t place(size_t left)
{
    return (TLY_BLOCK_BYTES - left % TLY_BLOCK_BYTES) % TLY_BLOCK_BYTES;
}

static tally_status send_some(const tcp_link *link, progress *p)
{
    size_t at = place(p->to_send);
    ssize_t n = send(link->fd, link->out + at, TLY_BLOCK_BYTES - at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN ? TALLY_OK : failed("send");
    p->to_send -= (size_t)n;
    p->moved = true;
    return TALLY_OK;
}

static tally_status receive_some(const tcp_link *link, progress *p)
{
    size_t at = place(p->to_receive), left = TLY_BLOCK_BYTES - at;
    ssize_t n = recv(link->fd, link->in + at, left < RECEIVE_BYTES ? left : RECEIVE_BYTES, MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN ? TALLY_OK : failed("recv");
    if (n == 0)
        return tly_error(TALLY_ELEFT, "tcp: the other side has ended");
    p->to_receive -= (size_t)n;
    p->moved = true;
    return TALLY_OK;
}

static tally_status wait_for(const tcp_link *link, const progress *p)
{
    struct pollfd item = { .fd = link->fd };
    if (p->to_send)
        item.events |= POLLOUT;
    if (p->to_receive)
        item.events |= POLLIN;
    int n = poll(&item, 1, TLY_TRANSPORT_LIMIT_MS);
    if (n == 0)
        return tly_error(TALLY_ETIMEDOUT, "tcp: nothing has moved for %d ms", TLY_TRANSPORT_LIMIT_MS);
    return n < 0 && errno != EINTR ? failed("poll") : TALLY_OK;
}

static tally_status tcp_move(void *of, size_t send_blocks, size_t receive_blocks)
{
    const tcp_link *link = of;
    progress p = { .to_send = send_blocks * TLY_BLOCK_BYTES, .to_receive = receive_blocks * TLY_BLOCK_BYTES };
    tally_status status = TALLY_OK;
    while ((p.to_send || p.to_receive) && !status) {
        p.moved = false;
        if (p.to_receive)
            status = receive_some(link, &p);
        if (p.to_send && !status)
            status = send_some(link, &p);
        if (!p.moved && !status)
            status = wait_for(link, &p);
    }
    return !status && receive_blocks ? tly_block_check(link->in, TLY_BLOCK_BYTES) : status;
}

/* A trip fits in the kernel's buffers: blocking calls, and nothing left over. */
static tally_status send_trip(const tcp_link *link)
{
    ssize_t n = send(link->fd, link->out, TLY_TRIP_BYTES, MSG_NOSIGNAL);
    return n == TLY_TRIP_BYTES ? TALLY_OK : failed("send");
}

static tally_status receive_trip(const tcp_link *link)
{
    ssize_t n = recv(link->fd, link->in, TLY_TRIP_BYTES, MSG_WAITALL);
    if (n < 0)
        return failed("recv");
    return n == TLY_TRIP_BYTES ? TALLY_OK : tly_error(TALLY_ELEFT, "tcp: the other side has ended");
}

static tally_status tcp_ask(void *of)
{
    tally_status status = send_trip(of);
    return status ? status : receive_trip(of);
}

static tally_status tcp_answer(void *of)
{
    tally_status status = receive_trip(of);
    return status ? status : send_trip(of);
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
