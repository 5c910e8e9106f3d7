#include "common/net.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zmq.h>

#define MAX_SOCKETS 16384
#define HANDSHAKE_LIMIT_MS 5000
#define RECONNECT_MS 50
#define RECONNECT_MAX_MS 1000
#define BACKLOG 1024
#define POLL_ON_STACK 64
/* The largest partition, and some: a peer that announces more is cut off before memory is asked for. */
#define FRAME_BYTES_MAX ((INT64_C(1) << 30) + (1 << 20))

/* Descriptors: of each thread of the transport; of a bound socket; of a connecting one (its mailbox,
 * the watch on it with two, the connection, the probe); and some for what the process does besides. */
#define THREAD_FDS 2
#define LISTENING_FDS 2
#define CONNECTING_FDS 5
#define SPARE_FDS 8

/* Held from counting descriptors to taking them, so that threads do not count on the same ones. */
static pthread_mutex_t descriptors = PTHREAD_MUTEX_INITIALIZER;

struct tly_net {
    void *ctx;
    atomic_uint monitors; /* made so far */
};

struct tly_sock {
    void *zmq;
    void *monitor; /* PAIR that brings the connection's events; NULL on a bound socket */
    /* The transport does not say why a connect fails: a plain socket beside it asks the kernel. */
    struct sockaddr_storage address;
    socklen_t address_len;
    int probe; /* -1: none */
    char trouble[128];
};

static tally_status system_error(const char *what)
{
    int code = zmq_errno();
    if (code == ENOMEM)
        return tly_error(TALLY_ENOMEM, "%s: out of memory", what);
    return tly_error(TALLY_ESYSTEM, "%s: %s", what, zmq_strerror(code));
}

/* Descriptors in use by this process. */
static size_t count_descriptors(void)
{
    size_t count = 0;
    DIR *dir = opendir("/proc/self/fd");
    if (!dir)
        return 0;
    while (readdir(dir))
        count++;
    closedir(dir);
    return count - 3; /* ".", ".." and the directory's own */
}

static tally_status check_descriptors(size_t needed)
{
    struct rlimit limit;
    size_t used = count_descriptors();
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || used + needed <= limit.rlim_cur)
        return TALLY_OK;
    return tly_error(TALLY_ESYSTEM, "%zu file descriptors are needed, %zu are in use, and the limit is %llu; raise it "
                                    "to at least %zu (ulimit -n)", needed, used, (unsigned long long)limit.rlim_cur,
                     used + needed);
}

tally_status tly_net_check_descriptors(size_t listening, size_t accepted, size_t connecting)
{
    return check_descriptors(SPARE_FDS + listening * LISTENING_FDS + accepted + connecting * CONNECTING_FDS);
}

/* Make the transport start its threads now: it takes their descriptors with the first socket. */
static tally_status start_threads(void *ctx)
{
    void *first = zmq_socket(ctx, ZMQ_PAIR);
    if (!first)
        return system_error("starting the network's threads");
    zmq_close(first);
    return TALLY_OK;
}

tally_status tly_net_create(int io_threads, tly_net **net)
{
    tly_net *n = calloc(1, sizeof *n);
    if (!n)
        return tly_error_memory(sizeof *n, "the network context");
    pthread_mutex_lock(&descriptors);
    tally_status status = check_descriptors(SPARE_FDS + (size_t)(io_threads + 1) * THREAD_FDS + LISTENING_FDS);
    if (status != TALLY_OK)
        goto unlock;
    n->ctx = zmq_ctx_new();
    if (!n->ctx) {
        status = system_error("creating the network context");
        goto unlock;
    }
    zmq_ctx_set(n->ctx, ZMQ_IO_THREADS, io_threads);
    zmq_ctx_set(n->ctx, ZMQ_MAX_SOCKETS, MAX_SOCKETS);
    status = start_threads(n->ctx);
    if (status != TALLY_OK)
        zmq_ctx_term(n->ctx);
unlock:
    pthread_mutex_unlock(&descriptors);
    if (status != TALLY_OK) {
        free(n);
        return status;
    }
    *net = n;
    return TALLY_OK;
}

void tly_net_destroy(tly_net *net)
{
    if (!net)
        return;
    while (zmq_ctx_term(net->ctx) == -1 && zmq_errno() == EINTR)
        ;
    free(net);
}

static int set_int(void *zmq, int option, int value)
{
    return zmq_setsockopt(zmq, option, &value, sizeof value);
}

static tally_status sock_create(tly_net *net, int type, const char *endpoint, tly_sock **sock)
{
    tly_sock *s = calloc(1, sizeof *s);
    if (!s)
        return tly_error_memory(sizeof *s, "a socket");
    s->probe = -1;
    s->zmq = zmq_socket(net->ctx, type);
    if (!s->zmq) {
        tally_status status = system_error("creating a socket");
        free(s);
        return status;
    }
    /* Credit bounds what is queued, so a queue need not refuse; a send never blocks. */
    set_int(s->zmq, ZMQ_SNDHWM, 0);
    set_int(s->zmq, ZMQ_LINGER, 0);
    set_int(s->zmq, ZMQ_HANDSHAKE_IVL, HANDSHAKE_LIMIT_MS);
    set_int(s->zmq, ZMQ_RECONNECT_IVL, RECONNECT_MS);
    set_int(s->zmq, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MAX_MS);
    int64_t frame_max = FRAME_BYTES_MAX;
    zmq_setsockopt(s->zmq, ZMQ_MAXMSGSIZE, &frame_max, sizeof frame_max);
    set_int(s->zmq, ZMQ_IPV6, strchr(endpoint, '[') != NULL);
    *sock = s;
    return TALLY_OK;
}

tally_status tly_sock_bind(tly_net *net, const char *numeric, int *port, int queue_max, tly_sock **sock)
{
    char endpoint[TLY_ENDPOINT_MAX];
    tly_address_endpoint(numeric, *port, endpoint, sizeof endpoint);
    if (*port == 0) /* the transport's wildcard in the place of the number */
        strcpy(strrchr(endpoint, ':'), ":*");
    tly_sock *s;
    tally_status status = sock_create(net, ZMQ_ROUTER, endpoint, &s);
    if (status != TALLY_OK)
        return status;
    set_int(s->zmq, ZMQ_ROUTER_MANDATORY, 1);
    set_int(s->zmq, ZMQ_SNDHWM, queue_max);
    set_int(s->zmq, ZMQ_BACKLOG, BACKLOG);
    if (zmq_bind(s->zmq, endpoint) != 0) {
        status = tly_error(TALLY_ESYSTEM, "cannot listen on address %s port %d: %s", numeric, *port,
                           zmq_strerror(zmq_errno()));
        goto close;
    }
    char bound[TLY_ENDPOINT_MAX];
    size_t len = sizeof bound;
    if (zmq_getsockopt(s->zmq, ZMQ_LAST_ENDPOINT, bound, &len) != 0 || !strrchr(bound, ':')) {
        status = system_error("asking for the port");
        goto close;
    }
    *port = atoi(strrchr(bound, ':') + 1);
    *sock = s;
    return TALLY_OK;
close:
    tly_sock_close(s, 0);
    return status;
}

/* "tcp://ADDRESS:PORT" to what the kernel takes; false when it is not numeric. */
static bool parse_endpoint(tly_sock *s, const char *endpoint)
{
    char host[TLY_ENDPOINT_MAX];
    if (strncmp(endpoint, "tcp://", 6) != 0 || strlen(endpoint) >= sizeof host)
        return false;
    strcpy(host, endpoint + 6);
    char *colon = strrchr(host, ':');
    if (!colon)
        return false;
    *colon = 0;
    char *end;
    long port = strtol(colon + 1, &end, 10);
    if (end == colon + 1 || *end || port < 1 || port > 65535)
        return false;
    size_t len = strlen(host);
    if (host[0] == '[') {
        if (len < 3 || host[len - 1] != ']')
            return false;
        host[len - 1] = 0;
        struct sockaddr_in6 *a = (struct sockaddr_in6 *)&s->address;
        char *scope = strchr(host, '%');
        if (scope)
            *scope = 0; /* only the plain probe does without the scope */
        a->sin6_family = AF_INET6;
        a->sin6_port = htons((uint16_t)port);
        s->address_len = sizeof *a;
        return inet_pton(AF_INET6, host + 1, &a->sin6_addr) == 1;
    }
    struct sockaddr_in *a = (struct sockaddr_in *)&s->address;
    a->sin_family = AF_INET;
    a->sin_port = htons((uint16_t)port);
    s->address_len = sizeof *a;
    return inet_pton(AF_INET, host, &a->sin_addr) == 1;
}

static tally_status connect_locked(tly_net *net, const char *endpoint, tly_sock **sock)
{
    tly_sock *s;
    tally_status status = check_descriptors(CONNECTING_FDS);
    if (status == TALLY_OK)
        status = sock_create(net, ZMQ_DEALER, endpoint, &s);
    if (status != TALLY_OK)
        return status;
    if (!parse_endpoint(s, endpoint)) {
        status = tly_error(TALLY_EINVAL, "\"%s\" is not an endpoint like tcp://ADDRESS:PORT", endpoint);
        goto close;
    }
    char name[64];
    /* A name is free again only some time after its socket was closed: never use one twice. */
    snprintf(name, sizeof name, "inproc://monitor-%u", atomic_fetch_add(&net->monitors, 1));
    int events = ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CONNECT_RETRIED |
                 ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL | ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL |
                 ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
    s->monitor = zmq_socket(net->ctx, ZMQ_PAIR);
    if (!s->monitor || set_int(s->monitor, ZMQ_LINGER, 0) != 0 || zmq_socket_monitor(s->zmq, name, events) != 0 ||
        zmq_connect(s->monitor, name) != 0) {
        status = system_error("watching a connection");
        goto close;
    }
    if (zmq_connect(s->zmq, endpoint) != 0) {
        status = tly_error(TALLY_ESYSTEM, "cannot connect to %s: %s", endpoint, zmq_strerror(zmq_errno()));
        goto close;
    }
    *sock = s;
    return TALLY_OK;
close:
    tly_sock_close(s, 0);
    return status;
}

tally_status tly_sock_connect(tly_net *net, const char *endpoint, tly_sock **sock)
{
    pthread_mutex_lock(&descriptors);
    tally_status status = connect_locked(net, endpoint, sock);
    pthread_mutex_unlock(&descriptors);
    return status;
}

void tly_sock_close(tly_sock *sock, int linger_ms)
{
    if (!sock)
        return;
    if (sock->monitor) {
        zmq_socket_monitor(sock->zmq, NULL, 0);
        zmq_close(sock->monitor);
    }
    set_int(sock->zmq, ZMQ_LINGER, linger_ms);
    zmq_close(sock->zmq);
    if (sock->probe >= 0)
        close(sock->probe);
    free(sock);
}

static void body_release(void *data, void *hint)
{
    (void)data;
    tly_buf_put(hint);
}

static tally_status send_error(void)
{
    int code = zmq_errno();
    if (code == EHOSTUNREACH)
        return tly_error(TALLY_ELEFT, "the connection is gone");
    if (code == EAGAIN)
        return tly_error(TALLY_ELEFT, "the peer does not read");
    return system_error("sending");
}

tally_status tly_sock_send(tly_sock *sock, const tly_peer *peer, const void *head, size_t head_len, tly_buf *body)
{
    zmq_msg_t msg;
    tally_status status;

    if (peer && zmq_send(sock->zmq, peer->id, peer->len, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) {
        status = send_error();
        goto drop;
    }
    if (zmq_send(sock->zmq, head, head_len, (body ? ZMQ_SNDMORE : 0) | ZMQ_DONTWAIT) < 0) {
        status = send_error();
        goto drop;
    }
    if (!body)
        return TALLY_OK;
    if (zmq_msg_init_data(&msg, body->data, body->len_bytes, body_release, body) != 0) {
        status = system_error("sending");
        goto drop;
    }
    if (zmq_msg_send(&msg, sock->zmq, ZMQ_DONTWAIT) < 0) {
        status = send_error();
        zmq_msg_close(&msg); /* releases body */
        return status;
    }
    return TALLY_OK;
drop:
    tly_buf_put(body);
    return status;
}

typedef struct received {
    tly_buf base;
    zmq_msg_t msg;
} received;

static void received_free(tly_buf *buf)
{
    received *r = (received *)buf;
    zmq_msg_close(&r->msg);
    free(r);
}

/* The next frame of a message into a buffer of its own. */
static tally_status receive_frame(tly_sock *sock, tly_buf **frame, bool *more)
{
    received *r = malloc(sizeof *r);
    if (!r)
        return tly_error_memory(sizeof *r, "a received message");
    zmq_msg_init(&r->msg);
    if (zmq_msg_recv(&r->msg, sock->zmq, ZMQ_DONTWAIT) < 0) {
        tally_status status = zmq_errno() == EAGAIN || zmq_errno() == EINTR ? TALLY_EAGAIN
                                                                            : system_error("receiving");
        zmq_msg_close(&r->msg);
        free(r);
        return status;
    }
    tly_buf_init(&r->base, zmq_msg_data(&r->msg), zmq_msg_size(&r->msg), received_free);
    *more = zmq_msg_more(&r->msg);
    *frame = &r->base;
    return TALLY_OK;
}

/* Throw away what is left of a message. */
static void skip_frames(tly_sock *sock)
{
    zmq_msg_t msg;
    int more = 1;
    while (more) {
        zmq_msg_init(&msg);
        more = zmq_msg_recv(&msg, sock->zmq, ZMQ_DONTWAIT) >= 0 && zmq_msg_more(&msg);
        zmq_msg_close(&msg);
    }
}

tally_status tly_sock_recv(tly_sock *sock, tly_peer *peer, tly_buf **head, tly_buf **body)
{
    tly_buf *h = NULL, *b = NULL;
    bool more = true;

    if (peer) {
        int len = zmq_recv(sock->zmq, peer->id, sizeof peer->id, ZMQ_DONTWAIT);
        if (len < 0)
            return zmq_errno() == EAGAIN || zmq_errno() == EINTR ? TALLY_EAGAIN : system_error("receiving");
        int rest = 0;
        size_t size = sizeof rest;
        zmq_getsockopt(sock->zmq, ZMQ_RCVMORE, &rest, &size);
        if (!rest)
            return tly_error(TALLY_EPROTO, "a message without frames was dropped");
        if ((size_t)len > sizeof peer->id) {
            skip_frames(sock);
            return tly_error(TALLY_EPROTO, "a message of a peer whose name has %d bytes was dropped", len);
        }
        peer->len = (uint8_t)len;
    }
    tally_status status = receive_frame(sock, &h, &more);
    if (status != TALLY_OK)
        goto drop;
    if (more) {
        status = receive_frame(sock, &b, &more);
        if (status != TALLY_OK)
            goto drop;
        if (more) {
            status = tly_error(TALLY_EPROTO, "a message of more than two frames was dropped");
            goto drop;
        }
    }
    *head = h;
    *body = b;
    return TALLY_OK;
drop:
    if (status != TALLY_EAGAIN && more && (h || peer))
        skip_frames(sock);
    tly_buf_put(h);
    tly_buf_put(b);
    return status;
}

/* Ask the kernel once why the endpoint cannot be reached. */
static void probe_start(tly_sock *s)
{
    if (s->probe >= 0)
        return;
    s->probe = socket(s->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->probe < 0)
        return;
    if (connect(s->probe, (struct sockaddr *)&s->address, s->address_len) != 0 && errno != EINPROGRESS) {
        snprintf(s->trouble, sizeof s->trouble, "%s", strerror(errno));
        close(s->probe);
        s->probe = -1;
    }
}

static void probe_look(tly_sock *s)
{
    if (s->probe < 0)
        return;
    struct pollfd p = { .fd = s->probe, .events = POLLOUT };
    if (poll(&p, 1, 0) <= 0) {
        snprintf(s->trouble, sizeof s->trouble, "no answer");
        return;
    }
    int code = 0;
    socklen_t len = sizeof code;
    getsockopt(s->probe, SOL_SOCKET, SO_ERROR, &code, &len);
    snprintf(s->trouble, sizeof s->trouble, "%s", code ? strerror(code) : "it accepts, but does not speak as Tally does");
    close(s->probe);
    s->probe = -1;
}

tly_net_event tly_sock_event(tly_sock *sock)
{
    zmq_msg_t msg;
    tly_net_event result = TLY_NET_NONE;
    while (sock->monitor && result == TLY_NET_NONE) {
        zmq_msg_init(&msg);
        if (zmq_msg_recv(&msg, sock->monitor, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&msg);
            return TLY_NET_NONE;
        }
        uint16_t event = 0;
        if (zmq_msg_size(&msg) >= sizeof event)
            memcpy(&event, zmq_msg_data(&msg), sizeof event);
        bool more = zmq_msg_more(&msg);
        zmq_msg_close(&msg);
        while (more) { /* the frame with the address */
            zmq_msg_init(&msg);
            more = zmq_msg_recv(&msg, sock->monitor, ZMQ_DONTWAIT) >= 0 && zmq_msg_more(&msg);
            zmq_msg_close(&msg);
        }
        switch (event) {
        case ZMQ_EVENT_HANDSHAKE_SUCCEEDED:
            sock->trouble[0] = 0;
            result = TLY_NET_UP;
            break;
        case ZMQ_EVENT_CONNECT_RETRIED:
            probe_look(sock);
            probe_start(sock);
            result = TLY_NET_RETRY;
            break;
        case ZMQ_EVENT_DISCONNECTED:
        case ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL:
        case ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL:
        case ZMQ_EVENT_HANDSHAKE_FAILED_AUTH:
            result = TLY_NET_DOWN;
            break;
        default:
            break;
        }
    }
    return result;
}

const char *tly_sock_trouble(tly_sock *sock)
{
    probe_look(sock);
    return sock->trouble;
}

/* Fill the flags of one item from what the poll said. */
static void item_flags(tly_poll_item *item, const zmq_pollitem_t *z)
{
    item->readable = z[0].revents != 0;
    item->event = item->sock && item->sock->monitor && z[1].revents != 0;
}

tally_status tly_net_poll(tly_poll_item *items, size_t count, int timeout_ms)
{
    zmq_pollitem_t stack[POLL_ON_STACK];
    zmq_pollitem_t *z = stack;
    if (2 * count > POLL_ON_STACK) {
        z = malloc(2 * count * sizeof *z);
        if (!z)
            return tly_error_memory(2 * count * sizeof *z, "waiting");
    }
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        z[n++] = (zmq_pollitem_t){ items[i].sock ? items[i].sock->zmq : NULL, items[i].fd, ZMQ_POLLIN, 0 };
        if (items[i].sock && items[i].sock->monitor)
            z[n++] = (zmq_pollitem_t){ items[i].sock->monitor, 0, ZMQ_POLLIN, 0 };
    }
    tally_status status = TALLY_OK;
    int ready = zmq_poll(z, (int)n, timeout_ms);
    if (ready < 0) {
        if (zmq_errno() != EINTR)
            status = system_error("waiting for the network");
        for (size_t i = 0; i < n; i++)
            z[i].revents = 0;
    }
    n = 0;
    for (size_t i = 0; i < count; i++) {
        item_flags(&items[i], &z[n]);
        n += items[i].sock && items[i].sock->monitor ? 2 : 1;
    }
    if (z != stack)
        free(z);
    return status;
}
