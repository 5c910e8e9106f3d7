#include "common/connection.h"

#define PAUSE_MIN_MS 20
#define PAUSE_MAX_MS 1000

tally_status tly_connection_open(tly_connection *c, tly_net *net, const char *endpoint)
{
    *c = (tly_connection){ .net = net, .endpoint = endpoint, .again_at = TLY_NEVER };
    return tly_sock_connect(net, endpoint, &c->sock);
}

void tly_connection_close(tly_connection *c, int linger_ms)
{
    tly_sock_close(c->sock, linger_ms);
    c->sock = NULL;
    c->again_at = TLY_NEVER;
}

void tly_connection_break(tly_connection *c, tly_time now)
{
    tly_connection_close(c, 0);
    c->pause_ms = c->pause_ms ? 2 * c->pause_ms : PAUSE_MIN_MS;
    if (c->pause_ms > PAUSE_MAX_MS)
        c->pause_ms = PAUSE_MAX_MS;
    c->again_at = now + c->pause_ms;
}

bool tly_connection_renew(tly_connection *c, tly_time now)
{
    if (c->sock || now < c->again_at)
        return false;
    if (tly_sock_connect(c->net, c->endpoint, &c->sock) == TALLY_OK)
        return true;
    c->sock = NULL;
    tly_connection_break(c, now);
    return false;
}

tly_time tly_connection_due(const tly_connection *c)
{
    return c->sock ? TLY_NEVER : c->again_at;
}

tly_net_event tly_connection_event(tly_connection *c, tly_time now)
{
    tly_net_event event = c->sock ? tly_sock_event(c->sock) : TLY_NET_NONE;
    if (event == TLY_NET_UP)
        c->pause_ms = 0;
    else if (event == TLY_NET_DOWN)
        tly_connection_break(c, now);
    return event;
}
