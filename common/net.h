/* net.h - ZeroMQ behind a small interface; the only module that knows it.
 *
 * A message is one head frame and at most one body frame. A server binds (ROUTER) and names its
 * connections by tly_peer; a client connects (DEALER) to one endpoint and hears of the connection's
 * ups and downs. Every function but tly_net_create and tly_net_destroy belongs to the thread that
 * made the socket. No function blocks except where it says so.
 *
 * A dropped connection is never repaired behind our back: the owner closes the socket and connects
 * anew, so nothing old waits in a queue, and the transport has let go of all that was queued. */
#ifndef TLY_NET_H
#define TLY_NET_H

#include <stdbool.h>

#include "common/address.h"
#include "common/buf.h"
#include "common/wire.h"

typedef struct tly_net tly_net;
typedef struct tly_sock tly_sock;

/* io_threads threads of the transport, started with the first socket, all signals blocked.
 * Returns: TALLY_OK, TALLY_ENOMEM, TALLY_ESYSTEM */
tally_status tly_net_create(int io_threads, tly_net **net);

/* Are there enough descriptors for so many sockets more? listening ones with accepted connections in
 * all, and connecting ones. To be asked before they are made: the transport ends the process when it
 * runs out. net_create asks for itself.
 * Returns: TALLY_OK; TALLY_ESYSTEM with the needed and the allowed number */
tally_status tly_net_check_descriptors(size_t listening, size_t accepted, size_t connecting);

/* Blocks until every closed socket's linger has passed. All sockets must have been closed. */
void tly_net_destroy(tly_net *net);

/* Bind to numeric:port; port 0 takes a free one. *port receives the port. queue_max: messages that may
 * wait for one peer; what comes then for a peer that does not read is dropped. 0: no limit, where
 * something else bounds them.
 * Returns: TALLY_OK; TALLY_ESYSTEM (address, port and the system's text); TALLY_ENOMEM */
tally_status tly_sock_bind(tly_net *net, const char *numeric, int *port, int queue_max, tly_sock **sock);

/* Begin to connect to "tcp://ADDRESS:PORT"; what is sent meanwhile waits in order.
 * Returns: TALLY_OK, TALLY_EINVAL (not an endpoint), TALLY_ENOMEM, TALLY_ESYSTEM */
tally_status tly_sock_connect(tly_net *net, const char *endpoint, tly_sock **sock);

/* Close; what is still queued is given linger_ms to leave. NULL is allowed. */
void tly_sock_close(tly_sock *sock, int linger_ms);

/* Queue one message. peer: NULL on a connecting socket. body: NULL or a buffer of which one
 * reference goes to the socket in every case, released on the transport's thread when its last byte
 * is in the kernel, or on failure before the return.
 * Returns: TALLY_OK
 *          TALLY_ELEFT    the peer's connection is gone, or it does not read; the message is dropped
 *          TALLY_ENOMEM, TALLY_ESYSTEM */
tally_status tly_sock_send(tly_sock *sock, const tly_peer *peer, const void *head, size_t head_len,
                           tly_buf *body);

/* Take one message. peer may be NULL on a connecting socket. *body is NULL when there is none.
 * Memory:  *head and *body are the caller's references.
 * Returns: TALLY_OK
 *          TALLY_EAGAIN   nothing there
 *          TALLY_EPROTO   a message of another shape was dropped
 *          TALLY_ENOMEM, TALLY_ESYSTEM */
tally_status tly_sock_recv(tly_sock *sock, tly_peer *peer, tly_buf **head, tly_buf **body);

typedef enum tly_net_event {
    TLY_NET_NONE,
    TLY_NET_UP,      /* the handshake with the peer succeeded */
    TLY_NET_RETRY,   /* connecting failed and is tried again by itself; see tly_sock_trouble */
    TLY_NET_DOWN     /* an established connection, or a handshake, broke: close and connect anew */
} tly_net_event;

/* The next event of a connecting socket, TLY_NET_NONE when there is none. */
tly_net_event tly_sock_event(tly_sock *sock);

/* The last reason why connecting failed, in the system's words ("Connection refused"); "" if none. */
const char *tly_sock_trouble(tly_sock *sock);

/* One thing to wait for: a socket, or else a descriptor to be readable. */
typedef struct tly_poll_item {
    tly_sock *sock;  /* or NULL */
    int fd;
    bool readable;   /* out: messages (or the descriptor) are there */
    bool event;      /* out: tly_sock_event has something */
} tly_poll_item;

/* Wait until something is ready, a signal arrives, or timeout_ms (-1: none) passes.
 * Returns: TALLY_OK (flags are set), TALLY_ENOMEM, TALLY_ESYSTEM */
tally_status tly_net_poll(tly_poll_item *items, size_t count, int timeout_ms);

#endif
