#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/connection.h"

#define LIMIT_MS 10000
#define NOW 5000 /* the connection is told the time; this test has its own */

typedef struct place {
    tly_net *net;
    tly_sock *server;
    int port;
    char endpoint[TLY_ENDPOINT_MAX];
} place;

static void place_open(place *p)
{
    memset(p, 0, sizeof *p);
    assert_int_equal(tly_net_create(1, &p->net), TALLY_OK);
    assert_int_equal(tly_sock_bind(p->net, "127.0.0.1", &p->port, 0, &p->server), TALLY_OK);
    snprintf(p->endpoint, sizeof p->endpoint, "tcp://127.0.0.1:%d", p->port);
}

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

static void place_close(place *p)
{
    tly_sock_close(p->server, 0);
    tly_net_destroy(p->net);
}

/* Wait for an event; others before it are passed over. */
static bool happens(tly_connection *c, tly_net_event wanted, tly_time now)
{
    tly_time end = tly_clock_now() + LIMIT_MS;
    for (tly_time real; (real = tly_clock_now()) < end;) {
        tly_net_event event = tly_connection_event(c, now);
        if (event == wanted)
            return true;
        tly_poll_item item = { .sock = c->sock, .fd = -1 };
        if (event == TLY_NET_NONE && c->sock)
            assert_int_equal(tly_net_poll(&item, 1, tly_clock_timeout(end, real)), TALLY_OK);
    }
    return false;
}

static void while_there_is_a_socket_nothing_is_due(void **state)
{
    (void)state;
    place p;
    tly_connection c;
    place_open(&p);
    assert_int_equal(tly_connection_open(&c, p.net, p.endpoint), TALLY_OK);
    assert_non_null(c.sock);
    assert_true(tly_connection_due(&c) == TLY_NEVER);
    assert_false(tly_connection_renew(&c, NOW + 1000000));
    tly_connection_close(&c, 0);
    place_close(&p);
}

static void a_broken_connection_is_made_anew_after_a_pause_that_grows_to_a_second(void **state)
{
    (void)state;
    static const int pauses_ms[] = { 20, 40, 80, 160, 320, 640, 1000, 1000 };
    place p;
    tly_connection c;
    tly_time now = NOW;
    place_open(&p);
    assert_int_equal(tly_connection_open(&c, p.net, p.endpoint), TALLY_OK);
    for (size_t i = 0; i < sizeof pauses_ms / sizeof pauses_ms[0]; i++) {
        tly_connection_break(&c, now);
        assert_null(c.sock);
        assert_int_equal(tly_connection_event(&c, now), TLY_NET_NONE);
        assert_true(tly_connection_due(&c) == now + pauses_ms[i]);
        assert_false(tly_connection_renew(&c, now + pauses_ms[i] - 1));
        assert_null(c.sock);
        now += pauses_ms[i];
        assert_true(tly_connection_renew(&c, now));
        assert_non_null(c.sock);
        assert_true(tly_connection_due(&c) == TLY_NEVER);
    }
    tly_connection_close(&c, 0);
    place_close(&p);
}

static void success_makes_the_pause_short_again(void **state)
{
    (void)state;
    place p;
    tly_connection c;
    tly_time now = NOW;
    place_open(&p);
    assert_int_equal(tly_connection_open(&c, p.net, p.endpoint), TALLY_OK);
    for (int i = 0; i < 5; i++) {
        tly_connection_break(&c, now);
        now = tly_connection_due(&c);
        assert_true(tly_connection_renew(&c, now));
    }
    assert_true(happens(&c, TLY_NET_UP, now));
    tly_connection_break(&c, now);
    assert_true(tly_connection_due(&c) == now + 20);
    tly_connection_close(&c, 0);
    place_close(&p);
}

static void a_down_event_has_already_broken_the_connection(void **state)
{
    (void)state;
    place p;
    tly_connection c;
    place_open(&p);
    assert_int_equal(tly_connection_open(&c, p.net, p.endpoint), TALLY_OK);
    assert_true(happens(&c, TLY_NET_UP, NOW));
    tly_sock_close(p.server, 0);
    p.server = NULL;
    assert_true(happens(&c, TLY_NET_DOWN, NOW));
    assert_null(c.sock);
    assert_true(tly_connection_due(&c) == NOW + 20);
    tly_connection_close(&c, 0);
    place_close(&p);
}

/* A body that says through an eventfd when the transport has let go of it. */
typedef struct watched {
    tly_buf base;
    int fd;
    char data[8];
} watched;

static void watched_free(tly_buf *buf)
{
    uint64_t one = 1;
    ssize_t n = write(((watched *)buf)->fd, &one, sizeof one);
    (void)n;
}

static void nothing_old_waits_in_a_connection_that_was_made_anew(void **state)
{
    (void)state;
    watched old = { .fd = eventfd(0, EFD_CLOEXEC) };
    tly_buf_init(&old.base, old.data, sizeof old.data, watched_free);
    place p;
    tly_connection c;
    tly_peer peer;
    tly_buf *head, *body;
    memset(&p, 0, sizeof p);
    assert_int_equal(tly_net_create(1, &p.net), TALLY_OK);
    int port_fd = port_hold(&p.port);
    snprintf(p.endpoint, sizeof p.endpoint, "tcp://127.0.0.1:%d", p.port);
    /* Where nobody listens, a message stays in the queue; it dies with the socket. */
    assert_int_equal(tly_connection_open(&c, p.net, p.endpoint), TALLY_OK);
    assert_int_equal(tly_sock_send(c.sock, NULL, "old", 3, &old.base), TALLY_OK);
    tly_connection_break(&c, NOW);
    /* The transport closes on its own thread: wait until it has let go. */
    tly_poll_item gone = { .fd = old.fd };
    assert_int_equal(tly_net_poll(&gone, 1, LIMIT_MS), TALLY_OK);
    assert_true(gone.readable);
    close(old.fd);
    close(port_fd);
    assert_int_equal(tly_sock_bind(p.net, "127.0.0.1", &p.port, 0, &p.server), TALLY_OK);
    assert_true(tly_connection_renew(&c, NOW + 20));
    assert_int_equal(tly_sock_send(c.sock, NULL, "new", 3, NULL), TALLY_OK);
    tly_poll_item item = { .sock = p.server, .fd = -1 };
    assert_int_equal(tly_net_poll(&item, 1, LIMIT_MS), TALLY_OK);
    assert_int_equal(tly_sock_recv(p.server, &peer, &head, &body), TALLY_OK);
    assert_memory_equal(head->data, "new", 3);
    tly_buf_put(head);
    tly_connection_close(&c, 0);
    place_close(&p);
}

static void a_closed_connection_is_not_made_anew(void **state)
{
    (void)state;
    place p;
    tly_connection c;
    place_open(&p);
    assert_int_equal(tly_connection_open(&c, p.net, p.endpoint), TALLY_OK);
    tly_connection_close(&c, 0);
    assert_true(tly_connection_due(&c) == TLY_NEVER);
    assert_false(tly_connection_renew(&c, NOW + 1000000));
    tly_connection_close(&c, 0);
    /* One that could not be opened can be closed too. */
    assert_int_equal(tly_connection_open(&c, p.net, "nonsense"), TALLY_EINVAL);
    tly_connection_close(&c, 0);
    place_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(while_there_is_a_socket_nothing_is_due),
        cmocka_unit_test(a_broken_connection_is_made_anew_after_a_pause_that_grows_to_a_second),
        cmocka_unit_test(success_makes_the_pause_short_again),
        cmocka_unit_test(a_down_event_has_already_broken_the_connection),
        cmocka_unit_test(nothing_old_waits_in_a_connection_that_was_made_anew),
        cmocka_unit_test(a_closed_connection_is_not_made_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
