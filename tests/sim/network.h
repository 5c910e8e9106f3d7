/* network.h - the simulated transport, with the promises of common/net.h and no others.
 *
 * A connection keeps its order in each direction; connections overtake each other freely. A message
 * is read from its owner's memory when it departs, not when it is sent, and its body is let go then.
 * A broken connection delivers a part of what had departed, perhaps much later; what had not stays
 * in the socket until that is closed. What is delivered lies in memory of its own. */
#ifndef SIM_NETWORK_H
#define SIM_NETWORK_H

#include "common/net.h"
#include "tests/sim/sim.h"

typedef struct sim_conn sim_conn;
typedef struct sim_net sim_net;

typedef struct sim_message {
    struct sim_message *next;
    sim_conn *conn;
    uint32_t way;
    uint64_t number; /* on its way, from 1 */
    tly_buf *body;
    size_t head_len_bytes;
    uint8_t head[];
} sim_message;

typedef struct sim_inbox {
    sim_message *first, *last;
} sim_inbox;

/* A bound socket. */
typedef struct sim_listener {
    sim_thread *owner;
    bool bound, data_plane;
    sim_inbox inbox;
} sim_listener;

typedef enum sim_way { SIM_TO_LISTENER, SIM_TO_CLIENT } sim_way;

typedef struct sim_lane { /* one direction of a connection */
    tly_out *first, *last;          /* sent, not departed */
    bool departing;                 /* an event will take the first */
    sim_time departed_at, arrives_at; /* of the last message */
    uint64_t departed, arrived;
    uint64_t cut;                   /* what departed after this number is lost */
} sim_lane;

struct sim_conn {
    sim_net *net;
    uint32_t id;
    sim_thread *client;
    sim_listener *listener;
    bool up, broken;
    bool client_open, listener_open; /* as each side sees it */
    bool said_up, said_retry, said_down; /* events that wait for the client */
    sim_time blocked_until;          /* no connecting before */
    int retries;
    int64_t extra_us;                /* this connection's own distance */
    sim_inbox inbox;                 /* the client's */
    sim_lane lanes[2];
};

typedef struct sim_weather { /* how the network behaves */
    int64_t latency_min_us, latency_max_us;
    uint32_t tail_permille;  /* so many messages take up to tail_us */
    int64_t tail_us;
    int64_t us_per_kib;      /* 0: no limit of bandwidth */
    int64_t depart_us;       /* the transport may wait so long before it sends */
    uint32_t repeat_permille, lose_permille; /* of the data plane */
} sim_weather;

struct sim_net {
    sim *s;
    sim_weather weather;
    sim_conn **conns;
    uint32_t conn_count, conn_room;
};

/* At the end: let go of all messages; then, when nobody refers to a connection any more, free. */
void sim_net_clear(sim_net *net);
void sim_net_fini(sim_net *net);

sim_conn *sim_net_connect(sim_net *net, sim_thread *client, sim_listener *listener, bool blocked);
void sim_conn_close(sim_conn *c, int linger_ms);

/* Takes the message. */
void sim_conn_send(sim_conn *c, tly_out *out);
tally_status sim_listener_send(sim_net *net, sim_listener *l, tly_out *out);

/* The caller frees with sim_message_free; NULL when there is none. peer: from whom. */
sim_message *sim_conn_recv(sim_conn *c);
sim_message *sim_listener_recv(sim_listener *l, tly_peer *peer);
void sim_message_free(sim_message *m);

/* The number of the connection that a listener calls peer. */
uint32_t sim_peer_conn(const tly_peer *peer);

tly_net_event sim_conn_event(sim_conn *c);

/* Break a connection now; each side hears of it a little later, or (mute) never. */
void sim_conn_break(sim_conn *c, bool mute);

/* A process is gone with all its sockets. */
void sim_net_kill(sim_net *net, const sim_thread *thread, bool mute);
void sim_net_unbind(sim_net *net, sim_listener *l, bool mute);

/* Forget an event's message at the end of a run. */
void sim_net_drop_event(const sim_event *event);

/* A client's connection that is made anew when it breaks, as common/connection.c. */
typedef struct sim_link {
    sim_net *net;
    sim_conn *conn;
    sim_listener *to;
    sim_thread *owner;
    tly_time again_at;
    int pause_ms;
    bool blocked; /* it never succeeds */
    int64_t extra_us;
} sim_link;

void sim_link_open(sim_link *link, sim_net *net, sim_thread *owner, sim_listener *to);
void sim_link_close(sim_link *link, int linger_ms);
bool sim_link_renew(sim_link *link, tly_time now);
tly_time sim_link_due(const sim_link *link);
tly_net_event sim_link_event(sim_link *link, tly_time now);

#endif
