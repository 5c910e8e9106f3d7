#include "tests/sim/network.h"

#include <stdlib.h>
#include <string.h>

#define RETRY_MIN_US 50000
#define RETRY_MAX_US 1000000
#define REPEAT_LATE_US 60000

/* ---- small things ---- */

static sim_random *dice(const sim_conn *c)
{
    return &c->net->s->weather;
}

static void inbox_put(sim_inbox *box, sim_message *m)
{
    m->next = NULL;
    if (box->last)
        box->last->next = m;
    else
        box->first = m;
    box->last = m;
}

static sim_message *inbox_take(sim_inbox *box)
{
    sim_message *m = box->first;
    if (m) {
        box->first = m->next;
        if (!box->first)
            box->last = NULL;
    }
    return m;
}

static void inbox_clear(sim_inbox *box)
{
    for (sim_message *m; (m = inbox_take(box));)
        sim_message_free(m);
}

void sim_message_free(sim_message *m)
{
    tly_buf_put(m->body);
    free(m);
}

static void lane_drop(sim_lane *lane)
{
    while (lane->first) {
        tly_out *out = lane->first;
        lane->first = out->next;
        tly_out_free(out);
    }
    lane->last = NULL;
}

static int64_t latency(const sim_conn *c)
{
    const sim_weather *w = &c->net->weather;
    int64_t us = c->extra_us + sim_between(dice(c), w->latency_min_us, w->latency_max_us);
    if (sim_chance(dice(c), w->tail_permille))
        us += sim_between(dice(c), 0, w->tail_us);
    return us;
}

/* ---- delivery ---- */

static void deliver(sim *s, void *arg)
{
    sim_message *m = arg;
    sim_conn *c = m->conn;
    sim_lane *lane = &c->lanes[m->way];
    if (m->number > lane->arrived)
        lane->arrived = m->number;
    bool lost = m->number > lane->cut;
    if (m->way == SIM_TO_LISTENER && !lost && c->listener->bound) {
        inbox_put(&c->listener->inbox, m);
        sim_notify(c->listener->owner);
    } else if (m->way == SIM_TO_CLIENT && !lost && c->client_open) {
        inbox_put(&c->inbox, m);
        sim_notify(c->client);
    } else {
        sim_trace(s, "lost on connection %u", c->id);
        sim_message_free(m);
    }
}

void sim_net_drop_event(const sim_event *event)
{
    if (event->fn == deliver)
        sim_message_free(event->arg);
}

/* What the wire carries: a copy, made now. */
static sim_message *message_of(sim_conn *c, uint32_t way, const void *head, size_t head_len_bytes,
                               const tly_buf *body)
{
    sim_message *m = malloc(sizeof *m + head_len_bytes);
    if (!m)
        abort();
    *m = (sim_message){ .conn = c, .way = way, .head_len_bytes = head_len_bytes };
    memcpy(m->head, head, head_len_bytes);
    if (body) {
        m->body = tly_buf_alloc(body->len_bytes);
        if (!m->body)
            abort();
        memcpy(m->body->data, body->data, body->len_bytes);
    }
    return m;
}

static void launch(sim_conn *c, uint32_t way, const tly_out *out)
{
    sim *s = c->net->s;
    sim_lane *lane = &c->lanes[way];
    const sim_weather *w = &c->net->weather;
    sim_message *m = message_of(c, way, out->head, out->head_len_bytes, out->body);
    m->number = ++lane->departed;
    sim_time at = s->now + latency(c);
    if (at < lane->arrives_at)
        at = lane->arrives_at; /* a connection keeps its order */
    lane->arrives_at = at;
    if (c->listener->data_plane && sim_chance(dice(c), w->repeat_permille)) {
        sim_message *again = message_of(c, way, out->head, out->head_len_bytes, out->body);
        again->number = m->number;
        sim_trace(s, "repeated on connection %u", c->id);
        sim_at(s, at + sim_between(dice(c), 0, REPEAT_LATE_US), deliver, again);
    }
    if (c->listener->data_plane && sim_chance(dice(c), w->lose_permille)) {
        sim_trace(s, "silently lost on connection %u", c->id);
        sim_message_free(m);
        return;
    }
    sim_at(s, at, deliver, m);
}

static void depart_later(sim_conn *c, uint32_t way);

static void depart(sim_conn *c, uint32_t way)
{
    sim_lane *lane = &c->lanes[way];
    lane->departing = false;
    int64_t us_per_kib = c->net->weather.us_per_kib;
    /* One at a time where bandwidth counts, else what the transport happens to take at once. */
    uint32_t count = us_per_kib ? 1 : 1 + sim_below(dice(c), 6);
    while (count-- > 0 && lane->first && c->up) {
        tly_out *out = lane->first;
        lane->first = out->next;
        if (!lane->first)
            lane->last = NULL;
        lane->departed_at = c->net->s->now;
        if (us_per_kib && out->body)
            lane->departed_at += (sim_time)(out->body->len_bytes >> 10) * us_per_kib;
        if (!c->broken) /* else it goes nowhere, and the sender does not know yet */
            launch(c, way, out);
        tly_out_free(out);
    }
    if (lane->first)
        depart_later(c, way);
}

static void depart_to_listener(sim *s, void *arg)
{
    (void)s;
    depart(arg, SIM_TO_LISTENER);
}

static void depart_to_client(sim *s, void *arg)
{
    (void)s;
    depart(arg, SIM_TO_CLIENT);
}

static void depart_later(sim_conn *c, uint32_t way)
{
    sim_lane *lane = &c->lanes[way];
    if (lane->departing || !c->up)
        return;
    lane->departing = true;
    sim_time at = c->net->s->now;
    if (lane->departed_at > at)
        at = lane->departed_at;
    if (c->net->weather.depart_us)
        at += sim_between(dice(c), 0, c->net->weather.depart_us);
    sim_at(c->net->s, at, way == SIM_TO_CLIENT ? depart_to_client : depart_to_listener, c);
}

static void lane_put(sim_conn *c, uint32_t way, tly_out *out)
{
    sim_lane *lane = &c->lanes[way];
    out->next = NULL;
    if (lane->last)
        lane->last->next = out;
    else
        lane->first = out;
    lane->last = out;
    depart_later(c, way);
}

void sim_conn_send(sim_conn *c, tly_out *out)
{
    lane_put(c, SIM_TO_LISTENER, out);
}

uint32_t sim_peer_conn(const tly_peer *peer)
{
    uint32_t id = 0;
    for (int i = 0; i < 4; i++)
        id |= (uint32_t)peer->id[1 + i] << (8 * i);
    return id;
}

tally_status sim_listener_send(sim_net *net, sim_listener *l, tly_out *out)
{
    uint32_t id = sim_peer_conn(&out->peer);
    sim_conn *c = out->peer.len == 5 && id < net->conn_count ? net->conns[id] : NULL;
    if (!c || c->listener != l) {
        sim_fail(net->s, "%s sends to a peer that never was", l->owner->name);
        tly_out_free(out);
        return TALLY_EPROTO;
    }
    if (!c->listener_open) {
        tly_out_free(out);
        return TALLY_ELEFT;
    }
    lane_put(c, SIM_TO_CLIENT, out);
    return TALLY_OK;
}

sim_message *sim_conn_recv(sim_conn *c)
{
    return inbox_take(&c->inbox);
}

sim_message *sim_listener_recv(sim_listener *l, tly_peer *peer)
{
    sim_message *m = inbox_take(&l->inbox);
    if (!m)
        return NULL;
    *peer = (tly_peer){ .len = 5 };
    for (int i = 0; i < 4; i++)
        peer->id[1 + i] = (uint8_t)(m->conn->id >> (8 * i));
    return m;
}

/* ---- connections ---- */

static void attempt(sim *s, void *arg)
{
    sim_conn *c = arg;
    if (!c->client_open || c->up || c->broken)
        return;
    if (!c->listener->bound || s->now < c->blocked_until) {
        c->said_retry = true;
        int64_t wait_us = (int64_t)RETRY_MIN_US << (c->retries < 5 ? c->retries : 5);
        c->retries++;
        sim_at(s, s->now + (wait_us < RETRY_MAX_US ? wait_us : RETRY_MAX_US), attempt, c);
        sim_notify(c->client);
        return;
    }
    c->up = c->listener_open = true;
    c->said_up = true;
    sim_notify(c->client);
    depart_later(c, SIM_TO_LISTENER);
}

sim_conn *sim_net_connect(sim_net *net, sim_thread *client, sim_listener *listener, bool blocked)
{
    sim_conn *c = calloc(1, sizeof *c);
    if (net->conn_count == net->conn_room) {
        net->conn_room = net->conn_room ? 2 * net->conn_room : 64;
        net->conns = realloc(net->conns, net->conn_room * sizeof(sim_conn *));
    }
    if (!c || !net->conns)
        abort();
    c->net = net;
    c->id = net->conn_count;
    c->client = client;
    c->listener = listener;
    c->client_open = true;
    c->blocked_until = blocked ? SIM_NEVER : 0;
    c->lanes[0].cut = c->lanes[1].cut = UINT64_MAX;
    net->conns[net->conn_count++] = c;
    sim_at(net->s, net->s->now + 2 * latency(c), attempt, c);
    return c;
}

/* The listener's side learns that the client is gone. */
static void listener_hears(sim *s, void *arg)
{
    (void)s;
    sim_conn *c = arg;
    c->listener_open = false;
    lane_drop(&c->lanes[SIM_TO_CLIENT]);
}

static void linger_ends(sim *s, void *arg)
{
    sim_conn *c = arg;
    lane_drop(&c->lanes[SIM_TO_LISTENER]);
    sim_at(s, s->now + latency(c), listener_hears, c);
}

void sim_conn_close(sim_conn *c, int linger_ms)
{
    if (!c->client_open)
        return;
    c->client_open = false;
    inbox_clear(&c->inbox);
    if (linger_ms == 0 || c->broken)
        linger_ends(c->net->s, c);
    else
        sim_at(c->net->s, c->net->s->now + (sim_time)linger_ms * SIM_MS, linger_ends, c);
}

tly_net_event sim_conn_event(sim_conn *c)
{
    bool *said[] = { &c->said_retry, &c->said_up, &c->said_down };
    static const tly_net_event events[] = { TLY_NET_RETRY, TLY_NET_UP, TLY_NET_DOWN };
    for (int i = 0; i < 3; i++)
        if (*said[i]) {
            *said[i] = false;
            return events[i];
        }
    return TLY_NET_NONE;
}

static void client_hears(sim *s, void *arg)
{
    (void)s;
    sim_conn *c = arg;
    if (!c->client_open)
        return;
    c->said_down = true;
    sim_notify(c->client);
}

void sim_conn_break(sim_conn *c, bool mute)
{
    if (!c->up || c->broken)
        return;
    sim *s = c->net->s;
    sim_trace(s, "connection %u of %s to %s breaks", c->id, c->client->name, c->listener->owner->name);
    c->broken = true;
    for (int way = 0; way < 2; way++) {
        sim_lane *lane = &c->lanes[way];
        lane->cut = lane->arrived + sim_below(dice(c), (uint32_t)(lane->departed - lane->arrived) + 1);
    }
    if (mute)
        return;
    sim_at(s, s->now + sim_between(dice(c), 0, 5000), client_hears, c);
    sim_at(s, s->now + sim_between(dice(c), 0, 5000), listener_hears, c);
}

void sim_net_unbind(sim_net *net, sim_listener *l, bool mute)
{
    l->bound = false;
    inbox_clear(&l->inbox);
    for (uint32_t i = 0; i < net->conn_count; i++) {
        sim_conn *c = net->conns[i];
        if (c->listener != l)
            continue;
        sim_conn_break(c, mute);
        c->listener_open = false;
        lane_drop(&c->lanes[SIM_TO_CLIENT]);
    }
}

void sim_net_kill(sim_net *net, const sim_thread *thread, bool mute)
{
    for (uint32_t i = 0; i < net->conn_count; i++) {
        sim_conn *c = net->conns[i];
        if (c->client != thread || !c->client_open)
            continue;
        sim_conn_break(c, mute);
        c->client_open = false;
        inbox_clear(&c->inbox);
        lane_drop(&c->lanes[SIM_TO_LISTENER]);
    }
}

void sim_net_clear(sim_net *net)
{
    for (uint32_t i = 0; i < net->conn_count; i++) {
        sim_conn *c = net->conns[i];
        lane_drop(&c->lanes[0]);
        lane_drop(&c->lanes[1]);
        inbox_clear(&c->inbox);
        inbox_clear(&c->listener->inbox);
    }
}

void sim_net_fini(sim_net *net)
{
    for (uint32_t i = 0; i < net->conn_count; i++)
        free(net->conns[i]);
    free(net->conns);
    net->conns = NULL;
    net->conn_count = 0;
}

/* ---- links ---- */

#define PAUSE_MIN_MS 20
#define PAUSE_MAX_MS 1000

static void connect_link(sim_link *link)
{
    link->conn = sim_net_connect(link->net, link->owner, link->to, link->blocked);
    link->conn->extra_us = link->extra_us;
}

void sim_link_open(sim_link *link, sim_net *net, sim_thread *owner, sim_listener *to)
{
    link->net = net;
    link->to = to;
    link->owner = owner;
    link->again_at = TLY_NEVER;
    connect_link(link);
}

void sim_link_close(sim_link *link, int linger_ms)
{
    if (link->conn)
        sim_conn_close(link->conn, linger_ms);
    link->conn = NULL;
    link->again_at = TLY_NEVER;
}

bool sim_link_renew(sim_link *link, tly_time now)
{
    if (link->conn || now < link->again_at)
        return false;
    connect_link(link);
    return true;
}

tly_time sim_link_due(const sim_link *link)
{
    return link->conn ? TLY_NEVER : link->again_at;
}

tly_net_event sim_link_event(sim_link *link, tly_time now)
{
    tly_net_event event = link->conn ? sim_conn_event(link->conn) : TLY_NET_NONE;
    if (event == TLY_NET_UP) {
        link->pause_ms = 0;
    } else if (event == TLY_NET_DOWN) {
        sim_link_close(link, 0);
        link->pause_ms = link->pause_ms ? 2 * link->pause_ms : PAUSE_MIN_MS;
        if (link->pause_ms > PAUSE_MAX_MS)
            link->pause_ms = PAUSE_MAX_MS;
        link->again_at = now + link->pause_ms;
    }
    return event;
}
