/* Bare ZeroMQ: a ROUTER and a DEALER, one I/O thread each, as the service has them. Only this file of
 * bench/ knows ZeroMQ: what is measured is what common/net.c stands on, so it cannot go through it. */
#include <malloc.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "bench/transport.h"

#define ID_ROOM 256
#define ENDPOINT_ROOM 64
#define RECEIVED_MAX 8       /* messages that wait in the receiving process */
#define HEAP_BLOCK (64 << 20)

typedef struct zmq_link {
    void *context, *socket;
    unsigned char *out;
    unsigned char id[ID_ROOM]; /* of the DEALER, on the ROUTER's side */
    size_t id_len;             /* 0 on the DEALER's side */
} zmq_link;

static tally_status failed(const char *what)
{
    return tly_error(TALLY_ESYSTEM, "zmq: %s: %s", what, zmq_strerror(zmq_errno()));
}

static tally_status set_option(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof(value)) ? failed("an option") : TALLY_OK;
}

static tally_status make_socket(zmq_link *link, int type)
{
    static const struct {
        int option, value;
    } options[] = {
        { ZMQ_LINGER, 0 },
        { ZMQ_SNDHWM, 0 }, /* what waits to be sent is one block, however often */
        { ZMQ_RCVHWM, RECEIVED_MAX },
        { ZMQ_SNDTIMEO, TLY_TRANSPORT_LIMIT_MS },
        { ZMQ_RCVTIMEO, TLY_TRANSPORT_LIMIT_MS },
    };
    link->context = zmq_ctx_new();
    link->socket = link->context ? zmq_socket(link->context, type) : NULL;
    if (!link->socket)
        return failed("a socket");
    tally_status status = TALLY_OK;
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]) && !status; i++)
        status = set_option(link->socket, options[i].option, options[i].value);
    return status;
}

static void keep(void *data, void *hint)
{
    (void)data;
    (void)hint;
}

/* len bytes of the block, from where they are. */
static tally_status send_message(zmq_link *link, size_t len)
{
    zmq_msg_t message;
    if (link->id_len && zmq_send(link->socket, link->id, link->id_len, ZMQ_SNDMORE) < 0)
        return failed("send");
    if (zmq_msg_init_data(&message, link->out, len, keep, NULL))
        return failed("a message");
    if (zmq_msg_send(&message, link->socket, 0) < 0) {
        zmq_msg_close(&message);
        return failed("send");
    }
    return TALLY_OK;
}

/* The caller closes the message. On a ROUTER the sender's identity comes first. */
static tally_status receive_message(zmq_link *link, bool is_router, zmq_msg_t *message)
{
    zmq_msg_init(message);
    int n = zmq_msg_recv(message, link->socket, 0);
    if (n >= 0 && is_router) {
        if (n <= ID_ROOM) {
            memcpy(link->id, zmq_msg_data(message), (size_t)n);
            link->id_len = (size_t)n;
        }
        n = zmq_msg_recv(message, link->socket, 0);
    }
    if (n >= 0)
        return TALLY_OK;
    tally_status status = failed("recv");
    zmq_msg_close(message);
    return status;
}

static tally_status bind_router(const tly_pair_side *side, zmq_link *link)
{
    char endpoint[ENDPOINT_ROOM] = { 0 };
    size_t len = sizeof(endpoint);
    zmq_msg_t hello;
    tally_status status = make_socket(link, ZMQ_ROUTER);
    if (status)
        return status;
    if (zmq_bind(link->socket, "tcp://127.0.0.1:*")
        || zmq_getsockopt(link->socket, ZMQ_LAST_ENDPOINT, endpoint, &len))
        return failed("bind");
    status = tly_pair_tell(side, endpoint, sizeof(endpoint));
    if (!status)
        status = receive_message(link, true, &hello);
    if (!status)
        zmq_msg_close(&hello);
    return status;
}

static tally_status connect_dealer(const tly_pair_side *side, zmq_link *link)
{
    char endpoint[ENDPOINT_ROOM];
    tally_status status = tly_pair_hear(side, endpoint, sizeof(endpoint));
    if (!status)
        status = make_socket(link, ZMQ_DEALER);
    if (!status && zmq_connect(link->socket, endpoint))
        status = failed("connect");
    /* the ROUTER learns from it who is there */
    return status ? status : send_message(link, 1);
}

static tally_status zmq_link_open(const tly_pair_side *side, void *of)
{
    zmq_link *link = of;
    /* Memory that goes back to the kernel after each message costs more than the message: as in the
     * server, the heap keeps it. */
    mallopt(M_MMAP_THRESHOLD, HEAP_BLOCK);
    mallopt(M_TRIM_THRESHOLD, HEAP_BLOCK);
    link->out = malloc(TLY_BLOCK_BYTES);
    if (!link->out)
        return tly_error_memory(TLY_BLOCK_BYTES, "a block");
    tly_block_fill(link->out);
    return side->index == 0 ? bind_router(side, link) : connect_dealer(side, link);
}

static void zmq_link_close(void *of)
{
    zmq_link *link = of;
    if (link->socket)
        zmq_close(link->socket);
    if (link->context)
        zmq_ctx_term(link->context);
    free(link->out);
}

static tally_status receive_block(zmq_link *link, bool check)
{
    zmq_msg_t message;
    tally_status status = receive_message(link, link->id_len > 0, &message);
    if (status)
        return status;
    if (check)
        status = tly_block_check(zmq_msg_data(&message), zmq_msg_size(&message));
    zmq_msg_close(&message);
    return status;
}

static tally_status zmq_move(void *of, size_t to_send, size_t to_receive)
{
    tally_status status = TALLY_OK;
    for (size_t i = 0; i < to_send && !status; i++)
        status = send_message(of, TLY_BLOCK_BYTES);
    for (size_t i = 0; i < to_receive && !status; i++)
        status = receive_block(of, i + 1 == to_receive);
    return status;
}

static tally_status zmq_ask(void *of)
{
    tally_status status = send_message(of, TLY_TRIP_BYTES);
    return status ? status : receive_block(of, false);
}

static tally_status zmq_answer(void *of)
{
    tally_status status = receive_block(of, false);
    return status ? status : send_message(of, TLY_TRIP_BYTES);
}

const tly_transport tly_transport_zmq = {
    .name = "zmq",
    .link_bytes = sizeof(zmq_link),
    .open = zmq_link_open,
    .close = zmq_link_close,
    .move = zmq_move,
    .ask = zmq_ask,
    .answer = zmq_answer,
};
