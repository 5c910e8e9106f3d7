/* connection.h - a connecting socket that is made anew when its connection breaks, after a pause that
 * grows while it goes on breaking. One owner thread. */
#ifndef TLY_CONNECTION_H
#define TLY_CONNECTION_H

#include "common/clock.h"
#include "common/net.h"

typedef struct tly_connection {
    tly_net *net;
    const char *endpoint; /* outlives the connection */
    tly_sock *sock;       /* NULL: broken, to be made at again_at */
    tly_time again_at;
    int pause_ms;
} tly_connection;

/* Returns: as tly_sock_connect; the structure can be closed in every case. */
tally_status tly_connection_open(tly_connection *c, tly_net *net, const char *endpoint);
void tly_connection_close(tly_connection *c, int linger_ms);

/* Close now and make it anew after the pause. */
void tly_connection_break(tly_connection *c, tly_time now);

/* Make it anew if that is due. Returns: true when a new socket was made just now. */
bool tly_connection_renew(tly_connection *c, tly_time now);

/* When to call renew: TLY_NEVER while there is a socket. */
tly_time tly_connection_due(const tly_connection *c);

/* The next event; a DOWN has already broken the connection. */
tly_net_event tly_connection_event(tly_connection *c, tly_time now);

#endif
