/* foreign MODE: a node that is not quite one of ours.
 *
 *   node ADDRESS           register with another wire version; say the answer
 *   scheduler              answer every message in another wire version; say the port
 *   server ENDPOINT        a server that registers with this endpoint, whatever is there
 *   junk ADDRESS           send messages that no node sends; say when they are out
 *
 * ADDRESS is HOST:PORT, ENDPOINT tcp://HOST:PORT. It is built from the service's own modules for the
 * transport and the messages, so that what is wrong is only what should be. */
#include "common/net.h"
#include "common/registrar.h"
#include "tests/proc/host.h"

#define VERSION_AT 4 /* in a header */
#define OTHER_VERSION 999
#define LINGER_MS 2000
#define LIMIT_MS 10000

static tly_net *net;

static void must(tally_status status, const char *what)
{
    if (status == TALLY_OK)
        return;
    say("%s: %s", what, tly_error_text());
    exit(4);
}

static tly_sock *connect_to(const char *address)
{
    char endpoint[TLY_ENDPOINT_MAX];
    tly_sock *sock;
    snprintf(endpoint, sizeof endpoint, "tcp://%s", address);
    must(tly_sock_connect(net, endpoint, &sock), "connect");
    return sock;
}

static bool wait_readable(tly_sock *sock)
{
    tly_poll_item item = { .sock = sock, .fd = -1 };
    int64_t end = host_now_ms() + LIMIT_MS;
    while (!item.readable && host_now_ms() < end) {
        must(tly_net_poll(&item, 1, (int)(end - host_now_ms())), "poll");
        while (item.event && tly_sock_event(sock) != TLY_NET_NONE)
            ;
    }
    return item.readable;
}

/* A whole message of another version. */
static void encode_foreign(tly_writer *message, tly_ctl_type type)
{
    tly_ctl content = { .type = type, .text = "" };
    content.reg.host = "elsewhere";
    tly_writer_init(message);
    must(tly_ctl_encode(&content, message), "encode");
    message->data[VERSION_AT] = OTHER_VERSION & 255;
    message->data[VERSION_AT + 1] = OTHER_VERSION >> 8;
}

static int be_node(const char *address)
{
    tly_buf *head, *body;
    tly_ctl answer;
    tly_writer message;
    tly_sock *sock = connect_to(address);
    encode_foreign(&message, TLY_CTL_REGISTER);
    must(tly_sock_send(sock, NULL, message.data, message.len_bytes, NULL), "send");
    if (!wait_readable(sock))
        return 1;
    must(tly_sock_recv(sock, NULL, &head, &body), "receive");
    must(tly_ctl_decode(head->data, head->len_bytes, &answer), "decode");
    say("%s %s %s", tly_ctl_name(answer.type), tally_status_name((tally_status)answer.status), answer.text);
    tly_ctl_fini(&answer);
    tly_buf_put(head);
    tly_buf_put(body);
    tly_writer_fini(&message);
    tly_sock_close(sock, 0);
    return 0;
}

static int be_scheduler(void)
{
    tly_sock *sock;
    int port = 0;
    tly_writer message;
    encode_foreign(&message, TLY_CTL_REFUSED);
    must(tly_sock_bind(net, "127.0.0.1", &port, 0, &sock), "bind");
    say("listening on %d", port);
    while (wait_readable(sock)) {
        tly_peer peer;
        tly_buf *head, *body;
        if (tly_sock_recv(sock, &peer, &head, &body) != TALLY_OK)
            continue;
        tly_buf_put(head);
        tly_buf_put(body);
        if (tly_sock_send(sock, &peer, message.data, message.len_bytes, NULL) == TALLY_OK)
            say("answered");
    }
    return 0;
}

static void ignore(void *arg, const tly_ctl *message, tly_time now)
{
    (void)arg;
    (void)message;
    (void)now;
}

static int be_server(const char *endpoint)
{
    tly_log log = { .level = TALLY_LOG_WARN, .who = "foreign server" };
    tly_config config;
    tly_registrar registrar;
    must(tly_config_load(&config, TLY_ROLE_SERVER, NULL, &log), "settings");
    must(tly_registrar_init(&registrar, net, &config, &log, TLY_ROLE_SERVER, "127.0.0.1", 1, &endpoint, ignore,
                            NULL),
         "register");
    const tly_membership *m = &registrar.membership;
    while (m->state != TLY_MEMBER_FAILED && m->state != TLY_MEMBER_ENDED) {
        bool renewed;
        tly_time now = tly_clock_now(), due = tly_registrar_run(&registrar, now, &renewed);
        tly_poll_item item = { .sock = registrar.connection.sock, .fd = -1 };
        must(tly_net_poll(&item, 1, tly_clock_timeout(due, now)), "poll");
        tly_registrar_handle(&registrar, &item, tly_clock_now());
    }
    say("ended %s", m->failure);
    tly_membership_leave(&registrar.membership, 0, tly_clock_now());
    tly_registrar_flush(&registrar);
    tly_registrar_close(&registrar, LINGER_MS);
    tly_registrar_fini(&registrar);
    return 0;
}

/* Frames of every length around the header's and a record's, of noise and of nearly right headers. */
static void send_junk(tly_sock *sock)
{
    uint8_t bytes[400];
    uint32_t seed = 1;
    for (int i = 0; i < 1000; i++) {
        for (size_t k = 0; k < sizeof bytes; k++) {
            seed = seed * 1664525 + 1013904223;
            bytes[k] = (uint8_t)(seed >> 24);
        }
        tly_header header = { .plane = (uint16_t)(1 + i % 2),
                              .job = seed,
                              .epoch = (uint64_t)(i % 3) << 32 | 1,
                              .sender = (uint32_t)(i % 5),
                              .record_count = (uint32_t)(i % 7 == 6 ? -i : i % 7) };
        if (i % 4 != 0)
            tly_wire_put_header(bytes, &header);
        tly_buf *body = i % 3 == 0 ? tly_buf_alloc((size_t)i) : NULL;
        if (body)
            memset(body->data, i, body->len_bytes);
        must(tly_sock_send(sock, NULL, bytes, (size_t)(i % 401), body), "send");
    }
}

static int be_junk(const char *address)
{
    tly_sock *sock = connect_to(address);
    send_junk(sock);
    tly_sock_close(sock, LINGER_MS);
    tly_net_destroy(net); /* waits until all has left */
    say("all is out");
    return 0;
}

int main(int argc, char **argv)
{
    must(tly_net_create(1, &net), "network");
    if (argc == 3 && strcmp(argv[1], "node") == 0)
        return be_node(argv[2]);
    if (argc == 2 && strcmp(argv[1], "scheduler") == 0)
        return be_scheduler();
    if (argc == 3 && strcmp(argv[1], "server") == 0)
        return be_server(argv[2]);
    if (argc == 3 && strcmp(argv[1], "junk") == 0)
        return be_junk(argv[2]);
    return 4;
}
