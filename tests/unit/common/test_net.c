#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>
#include <zmq.h> /* to send what our own sockets never would */

#include "common/clock.h"
#include "common/net.h"

#define LIMIT_MS 10000

/* A bound socket and one that is connected to it. */
typedef struct pair {
    tly_net *net;
    tly_sock *server, *client;
    int port;
    char endpoint[TLY_ENDPOINT_MAX];
} pair;

/* A port of this machine on which nobody listens and which nobody else takes, until the
 * descriptor is closed. */
static int port_hold(int *port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &len), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static void pair_bind(pair *p)
{
    memset(p, 0, sizeof *p);
    assert_int_equal(tly_net_create(1, &p->net), TALLY_OK);
    assert_int_equal(tly_sock_bind(p->net, "127.0.0.1", &p->port, 0, &p->server), TALLY_OK);
    snprintf(p->endpoint, sizeof p->endpoint, "tcp://127.0.0.1:%d", p->port);
}

/* A socket that is connecting to where nobody listens. Returns: what holds the port */
static int pair_open_nowhere(pair *p)
{
    memset(p, 0, sizeof *p);
    int fd = port_hold(&p->port);
    snprintf(p->endpoint, sizeof p->endpoint, "tcp://127.0.0.1:%d", p->port);
    assert_int_equal(tly_net_create(1, &p->net), TALLY_OK);
    assert_int_equal(tly_sock_connect(p->net, p->endpoint, &p->client), TALLY_OK);
    return fd;
}

static void pair_open(pair *p)
{
    pair_bind(p);
    assert_int_equal(tly_sock_connect(p->net, p->endpoint, &p->client), TALLY_OK);
}

static void pair_close(pair *p)
{
    tly_sock_close(p->client, 0);
    tly_sock_close(p->server, 0);
    tly_net_destroy(p->net);
}

/* Wait until a message can be taken, and take it. Returns: its status, TALLY_ETIMEDOUT if none comes */
static tally_status receive(tly_sock *sock, tly_peer *peer, tly_buf **head, tly_buf **body)
{
    tly_time end = tly_clock_now() + LIMIT_MS;
    for (;;) {
        tally_status status = tly_sock_recv(sock, peer, head, body);
        tly_time now = tly_clock_now();
        if (status != TALLY_EAGAIN)
            return status;
        if (now >= end)
            return TALLY_ETIMEDOUT;
        tly_poll_item item = { .sock = sock, .fd = -1 };
        assert_int_equal(tly_net_poll(&item, 1, tly_clock_timeout(end, now)), TALLY_OK);
    }
}

/* Wait for an event of a connecting socket; others before it are passed over. */
static bool happens(tly_sock *sock, tly_net_event wanted)
{
    tly_time end = tly_clock_now() + LIMIT_MS;
    for (;;) {
        tly_net_event event = tly_sock_event(sock);
        tly_time now = tly_clock_now();
        if (event == wanted)
            return true;
        if (now >= end)
            return false;
        tly_poll_item item = { .sock = sock, .fd = -1 };
        if (event == TLY_NET_NONE)
            assert_int_equal(tly_net_poll(&item, 1, tly_clock_timeout(end, now)), TALLY_OK);
    }
}

static bool holds(const tly_buf *buf, const char *text)
{
    return buf && buf->len_bytes == strlen(text) && memcmp(buf->data, text, buf->len_bytes) == 0;
}

/* A body that says when it is let go, through an eventfd. */
typedef struct watched {
    tly_buf base;
    int fd;
    char data[200000];
} watched;

static void watched_free(tly_buf *buf)
{
    uint64_t one = 1;
    ssize_t n = write(((watched *)buf)->fd, &one, sizeof one);
    (void)n;
}

static void watched_init(watched *w)
{
    w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    for (size_t i = 0; i < sizeof w->data; i++)
        w->data[i] = (char)(i * 31);
    tly_buf_init(&w->base, w->data, sizeof w->data, watched_free);
}

static bool was_let_go(watched *w, int timeout_ms)
{
    tly_poll_item item = { .fd = w->fd };
    assert_int_equal(tly_net_poll(&item, 1, timeout_ms), TALLY_OK);
    return item.readable;
}

/* ---- addresses ---- */

static void port_0_takes_a_free_port_and_tells_it(void **state)
{
    (void)state;
    pair p;
    pair_bind(&p);
    assert_in_range(p.port, 1, 65535);
    int other = 0;
    tly_sock *second;
    assert_int_equal(tly_sock_bind(p.net, "127.0.0.1", &other, 0, &second), TALLY_OK);
    assert_int_not_equal(other, p.port);
    tly_sock_close(second, 0);
    pair_close(&p);
}

static void a_port_in_use_is_named_with_the_systems_words(void **state)
{
    (void)state;
    pair p;
    char expected[128];
    pair_bind(&p);
    tly_sock *second = NULL;
    int port = p.port;
    assert_int_equal(tly_sock_bind(p.net, "127.0.0.1", &port, 0, &second), TALLY_ESYSTEM);
    snprintf(expected, sizeof expected, "cannot listen on address 127.0.0.1 port %d: Address already in use",
             p.port);
    assert_string_equal(tally_last_error(), expected);
    assert_null(second);
    pair_close(&p);
}

static void what_is_no_numeric_endpoint_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = { "",
                                       "127.0.0.1:80",
                                       "tcp://",
                                       "tcp://127.0.0.1",
                                       "tcp://127.0.0.1:",
                                       "tcp://127.0.0.1:0",
                                       "tcp://127.0.0.1:65536",
                                       "tcp://127.0.0.1:-1",
                                       "tcp://127.0.0.1:80x",
                                       "tcp://host:80",
                                       "tcp://[::1:80",
                                       "tcp://[]:80",
                                       "tcp://::1:80",
                                       "tcp://[127.0.0.1]:80",
                                       "ipc:///tmp/x:80",
                                       "inproc://x:80" };
    tly_net *net;
    assert_int_equal(tly_net_create(1, &net), TALLY_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tly_sock *sock = NULL;
        assert_int_equal(tly_sock_connect(net, bad[i], &sock), TALLY_EINVAL);
        assert_non_null(strstr(tally_last_error(), "is not an endpoint like tcp://ADDRESS:PORT"));
        assert_null(sock);
    }
    char longest[TLY_ENDPOINT_MAX + 64];
    memset(longest, '1', sizeof longest);
    memcpy(longest, "tcp://", 6);
    strcpy(longest + sizeof longest - 4, ":80");
    tly_sock *sock = NULL;
    assert_int_equal(tly_sock_connect(net, longest, &sock), TALLY_EINVAL);
    tly_net_destroy(net);
}

static void closing_and_destroying_nothing_is_allowed(void **state)
{
    (void)state;
    tly_sock_close(NULL, 0);
    tly_net_destroy(NULL);
}

/* ---- messages ---- */

static void messages_with_and_without_a_body_go_both_ways(void **state)
{
    (void)state;
    pair p;
    tly_peer peer;
    tly_buf *head, *body;
    pair_open(&p);
    assert_int_equal(tly_sock_send(p.client, NULL, "alone", 5, NULL), TALLY_OK);
    tly_buf *sent = tly_buf_alloc(6);
    memcpy(sent->data, "a body", 6);
    assert_int_equal(tly_sock_send(p.client, NULL, "first", 5, sent), TALLY_OK);
    assert_int_equal(receive(p.server, &peer, &head, &body), TALLY_OK);
    assert_true(holds(head, "alone"));
    assert_null(body);
    assert_in_range(peer.len, 1, sizeof peer.id);
    tly_buf_put(head);
    assert_int_equal(receive(p.server, &peer, &head, &body), TALLY_OK);
    assert_true(holds(head, "first"));
    assert_true(holds(body, "a body"));
    tly_buf_put(head);
    /* The received body goes out again as it is, as a server's sums do. */
    assert_int_equal(tly_sock_send(p.server, &peer, "back", 4, body), TALLY_OK);
    assert_int_equal(receive(p.client, NULL, &head, &body), TALLY_OK);
    assert_true(holds(head, "back"));
    assert_true(holds(body, "a body"));
    tly_buf_put(head);
    tly_buf_put(body);
    assert_int_equal(tly_sock_recv(p.client, NULL, &head, &body), TALLY_EAGAIN);
    assert_int_equal(tly_sock_recv(p.server, &peer, &head, &body), TALLY_EAGAIN);
    pair_close(&p);
}

static void messages_of_one_connection_keep_their_order(void **state)
{
    (void)state;
    pair p;
    pair_open(&p);
    for (uint32_t i = 0; i < 2000; i++)
        assert_int_equal(tly_sock_send(p.client, NULL, &i, sizeof i, NULL), TALLY_OK);
    for (uint32_t i = 0; i < 2000; i++) {
        tly_peer peer;
        tly_buf *head, *body;
        assert_int_equal(receive(p.server, &peer, &head, &body), TALLY_OK);
        assert_memory_equal(head->data, &i, sizeof i);
        tly_buf_put(head);
    }
    pair_close(&p);
}

static void a_body_is_sent_from_its_own_memory_and_let_go_when_it_is_gone(void **state)
{
    (void)state;
    static watched w;
    pair p;
    tly_peer peer;
    tly_buf *head, *body;
    watched_init(&w);
    pair_open(&p);
    assert_int_equal(tly_sock_send(p.client, NULL, "h", 1, &w.base), TALLY_OK);
    assert_int_equal(receive(p.server, &peer, &head, &body), TALLY_OK);
    assert_int_equal(body->len_bytes, sizeof w.data);
    assert_memory_equal(body->data, w.data, sizeof w.data);
    assert_true(was_let_go(&w, LIMIT_MS));
    tly_buf_put(head);
    tly_buf_put(body);
    close(w.fd);
    pair_close(&p);
}

static void closing_lets_go_of_what_is_queued(void **state)
{
    (void)state;
    static watched w;
    pair p;
    watched_init(&w);
    int port_fd = pair_open_nowhere(&p);
    assert_int_equal(tly_sock_send(p.client, NULL, "h", 1, &w.base), TALLY_OK);
    assert_false(was_let_go(&w, 0));
    tly_sock_close(p.client, 0);
    p.client = NULL;
    assert_true(was_let_go(&w, LIMIT_MS));
    close(w.fd);
    close(port_fd);
    pair_close(&p);
}

static void what_was_said_last_is_given_time_to_leave(void **state)
{
    (void)state;
    pair p;
    tly_peer peer;
    tly_buf *head, *body;
    pair_open(&p);
    assert_int_equal(tly_sock_send(p.client, NULL, "farewell", 8, NULL), TALLY_OK);
    tly_sock_close(p.client, LIMIT_MS);
    p.client = NULL;
    assert_int_equal(receive(p.server, &peer, &head, &body), TALLY_OK);
    assert_true(holds(head, "farewell"));
    tly_buf_put(head);
    pair_close(&p);
}

static void a_message_to_a_peer_that_is_not_there_is_refused_and_its_body_let_go_at_once(void **state)
{
    (void)state;
    static watched w;
    const tly_peer nobody = { .len = 5, .id = { 0, 1, 2, 3, 4 } };
    pair p;
    watched_init(&w);
    pair_bind(&p);
    assert_int_equal(tly_sock_send(p.server, &nobody, "h", 1, &w.base), TALLY_ELEFT);
    assert_true(was_let_go(&w, 0));
    close(w.fd);
    pair_close(&p);
}

/* ---- messages of another shape ---- */

/* A raw socket of the transport that says what ours never would. */
typedef struct stranger {
    void *ctx, *sock;
} stranger;

static void stranger_open(stranger *s, const pair *p, const char *name, size_t name_len)
{
    const int linger = 0;
    s->ctx = zmq_ctx_new();
    s->sock = zmq_socket(s->ctx, ZMQ_DEALER);
    assert_non_null(s->sock);
    zmq_setsockopt(s->sock, ZMQ_LINGER, &linger, sizeof linger);
    if (name_len > 0)
        assert_int_equal(zmq_setsockopt(s->sock, ZMQ_ROUTING_ID, name, name_len), 0);
    assert_int_equal(zmq_connect(s->sock, p->endpoint), 0);
}

static void stranger_send(stranger *s, int frames)
{
    for (int i = 0; i < frames; i++)
        assert_int_equal(zmq_send(s->sock, "frame", 5, i + 1 < frames ? ZMQ_SNDMORE : 0), 5);
}

static void stranger_close(stranger *s)
{
    zmq_close(s->sock);
    zmq_ctx_term(s->ctx);
}

static void a_message_of_three_frames_or_more_is_dropped_whole(void **state)
{
    (void)state;
    pair p;
    stranger s;
    tly_peer peer;
    tly_buf *head = NULL, *body = NULL;
    pair_bind(&p);
    stranger_open(&s, &p, NULL, 0);
    stranger_send(&s, 3);
    stranger_send(&s, 7);
    stranger_send(&s, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(receive(p.server, &peer, &head, &body), TALLY_EPROTO);
        assert_string_equal(tally_last_error(), "a message of more than two frames was dropped");
    }
    assert_int_equal(receive(p.server, &peer, &head, &body), TALLY_OK);
    assert_true(holds(head, "frame"));
    assert_true(holds(body, "frame"));
    tly_buf_put(head);
    tly_buf_put(body);
    stranger_close(&s);
    pair_close(&p);
}

static void a_message_of_a_peer_with_too_long_a_name_is_dropped_whole(void **state)
{
    (void)state;
    pair p;
    stranger s, good;
    tly_peer peer;
    tly_buf *head, *body;
    char name[200];
    memset(name, 'n', sizeof name);
    pair_bind(&p);
    stranger_open(&s, &p, name, sizeof name);
    stranger_send(&s, 2);
    assert_int_equal(receive(p.server, &peer, &head, &body), TALLY_EPROTO);
    assert_string_equal(tally_last_error(), "a message of a peer whose name has 200 bytes was dropped");
    stranger_open(&good, &p, name, sizeof peer.id);
    stranger_send(&good, 1);
    assert_int_equal(receive(p.server, &peer, &head, &body), TALLY_OK);
    assert_int_equal(peer.len, sizeof peer.id);
    assert_memory_equal(peer.id, name, sizeof peer.id);
    tly_buf_put(head);
    stranger_close(&s);
    stranger_close(&good);
    pair_close(&p);
}

/* ---- events ---- */

static void a_connection_reports_that_it_is_up_and_that_it_broke(void **state)
{
    (void)state;
    pair p;
    pair_open(&p);
    assert_true(happens(p.client, TLY_NET_UP));
    assert_string_equal(tly_sock_trouble(p.client), "");
    tly_sock_close(p.server, 0);
    p.server = NULL;
    assert_true(happens(p.client, TLY_NET_DOWN));
    pair_close(&p);
}

static void a_port_where_nobody_listens_is_tried_again_and_the_reason_known(void **state)
{
    (void)state;
    pair p;
    int port_fd = pair_open_nowhere(&p);
    const char *trouble = "";
    for (int i = 0; i < 20 && !trouble[0]; i++) {
        assert_true(happens(p.client, TLY_NET_RETRY));
        trouble = tly_sock_trouble(p.client);
    }
    assert_string_equal(trouble, "Connection refused");
    /* When somebody listens there at last, the same socket connects. */
    close(port_fd);
    assert_int_equal(tly_sock_bind(p.net, "127.0.0.1", &p.port, 0, &p.server), TALLY_OK);
    assert_true(happens(p.client, TLY_NET_UP));
    assert_string_equal(tly_sock_trouble(p.client), "");
    pair_close(&p);
}

static void a_bound_socket_has_no_events(void **state)
{
    (void)state;
    pair p;
    pair_open(&p);
    assert_true(happens(p.client, TLY_NET_UP));
    assert_int_equal(tly_sock_event(p.server), TLY_NET_NONE);
    pair_close(&p);
}

/* ---- waiting ---- */

static void a_poll_says_what_is_there_and_nothing_else(void **state)
{
    (void)state;
    pair p;
    pair_open(&p);
    assert_true(happens(p.client, TLY_NET_UP));
    int fd = eventfd(0, EFD_CLOEXEC);
    tly_poll_item items[3] = { { .sock = p.server, .fd = -1 }, { .fd = fd }, { .sock = p.client, .fd = -1 } };
    assert_int_equal(tly_net_poll(items, 3, 0), TALLY_OK);
    assert_false(items[0].readable || items[1].readable || items[2].readable || items[2].event);
    uint64_t one = 1;
    assert_int_equal(write(fd, &one, sizeof one), sizeof one);
    assert_int_equal(tly_net_poll(items, 3, LIMIT_MS), TALLY_OK);
    assert_true(items[1].readable);
    assert_false(items[0].readable || items[2].readable || items[2].event);
    assert_int_equal(read(fd, &one, sizeof one), sizeof one);
    assert_int_equal(tly_sock_send(p.client, NULL, "x", 1, NULL), TALLY_OK);
    assert_int_equal(tly_net_poll(items, 3, LIMIT_MS), TALLY_OK);
    assert_true(items[0].readable);
    assert_false(items[0].event || items[1].readable || items[2].readable);
    tly_sock_close(p.server, 0);
    p.server = NULL;
    assert_int_equal(tly_net_poll(items + 1, 2, LIMIT_MS), TALLY_OK);
    assert_true(items[2].event);
    assert_int_equal(tly_sock_event(p.client), TLY_NET_DOWN);
    close(fd);
    pair_close(&p);
}

static void a_poll_takes_any_number_of_items(void **state)
{
    (void)state;
    enum { COUNT = 300 };
    tly_net *net;
    assert_int_equal(tly_net_create(1, &net), TALLY_OK);
    static tly_poll_item items[COUNT];
    for (int i = 0; i < COUNT; i++)
        items[i] = (tly_poll_item){ .fd = eventfd(i == COUNT - 2, EFD_CLOEXEC) };
    assert_int_equal(tly_net_poll(items, COUNT, LIMIT_MS), TALLY_OK);
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(items[i].readable, i == COUNT - 2);
        close(items[i].fd);
    }
    tly_net_destroy(net);
}

static void a_poll_ends_when_its_time_has_passed(void **state)
{
    (void)state;
    pair p;
    pair_bind(&p);
    tly_poll_item item = { .sock = p.server, .fd = -1 };
    tly_time start = tly_clock_now();
    assert_int_equal(tly_net_poll(&item, 1, 30), TALLY_OK);
    assert_false(item.readable);
    assert_true(tly_clock_now() - start >= 29);
    pair_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(port_0_takes_a_free_port_and_tells_it),
        cmocka_unit_test(a_port_in_use_is_named_with_the_systems_words),
        cmocka_unit_test(what_is_no_numeric_endpoint_is_refused),
        cmocka_unit_test(closing_and_destroying_nothing_is_allowed),
        cmocka_unit_test(messages_with_and_without_a_body_go_both_ways),
        cmocka_unit_test(messages_of_one_connection_keep_their_order),
        cmocka_unit_test(a_body_is_sent_from_its_own_memory_and_let_go_when_it_is_gone),
        cmocka_unit_test(closing_lets_go_of_what_is_queued),
        cmocka_unit_test(what_was_said_last_is_given_time_to_leave),
        cmocka_unit_test(a_message_to_a_peer_that_is_not_there_is_refused_and_its_body_let_go_at_once),
        cmocka_unit_test(a_message_of_three_frames_or_more_is_dropped_whole),
        cmocka_unit_test(a_message_of_a_peer_with_too_long_a_name_is_dropped_whole),
        cmocka_unit_test(a_connection_reports_that_it_is_up_and_that_it_broke),
        cmocka_unit_test(a_port_where_nobody_listens_is_tried_again_and_the_reason_known),
        cmocka_unit_test(a_bound_socket_has_no_events),
        cmocka_unit_test(a_poll_says_what_is_there_and_nothing_else),
        cmocka_unit_test(a_poll_takes_any_number_of_items),
        cmocka_unit_test(a_poll_ends_when_its_time_has_passed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
