#include "tests/sim/cluster.h"

#include <stdlib.h>

#define RECEIVE_BATCH 64

void sim_control_init(sim_control *c, sim_cluster *cluster, sim_thread *owner, const tly_config *config,
                      const tly_log *log, tly_role role, uint64_t nonce, uint32_t endpoint_count,
                      const char *const *endpoints)
{
    c->cluster = cluster;
    c->owner = owner;
    if (tly_membership_init(&c->membership, config, log, role, nonce, "tcp://10.0.0.1:9000", owner->name,
                            endpoint_count, endpoints, sim_clock(&cluster->s)) != TALLY_OK)
        abort();
    sim_link_open(&c->link, &cluster->net, owner, &cluster->scheduler.listener);
    c->open = true;
}

void sim_control_fini(sim_control *c)
{
    if (!c->cluster)
        return;
    sim_control_close(c, 0);
    tly_membership_fini(&c->membership);
}

void sim_control_close(sim_control *c, int linger_ms)
{
    if (c->open)
        sim_link_close(&c->link, linger_ms);
    c->open = false;
}

void sim_control_flush(sim_control *c)
{
    for (tly_out *out; (out = tly_out_pop(&c->membership.out));) {
        if (c->open && c->link.conn) {
            sim_tap_trace(&c->cluster->s, c->owner->name, "sends", c->link.conn->id, out->head,
                          out->head_len_bytes, NULL);
            sim_conn_send(c->link.conn, out);
        } else {
            tly_out_free(out);
        }
    }
}

tly_time sim_control_run(sim_control *c, tly_time now, bool *renewed)
{
    *renewed = c->open && sim_link_renew(&c->link, now);
    if (*renewed)
        tly_membership_reconnected(&c->membership, now);
    tly_time due = tly_membership_tick(&c->membership, now);
    sim_control_flush(c);
    tly_time link_due = sim_link_due(&c->link);
    return c->open && link_due < due ? link_due : due;
}

static void handle_message(sim_control *c, const sim_message *m, tly_time now)
{
    tly_ctl message;
    if (tly_ctl_decode(m->head, m->head_len_bytes, &message) != TALLY_OK) {
        sim_fail(&c->cluster->s, "%s cannot read the scheduler: %s", c->owner->name, tly_error_text());
        return;
    }
    if (tly_membership_message(&c->membership, &message, now))
        c->on_control(c->arg, &message, now);
    tly_ctl_fini(&message);
}

bool sim_control_handle(sim_control *c, tly_time now)
{
    for (int i = 0; i < RECEIVE_BATCH && c->open && c->link.conn; i++) {
        sim_message *m = sim_conn_recv(c->link.conn);
        if (!m)
            break;
        handle_message(c, m, now);
        sim_message_free(m);
    }
    tly_net_event event;
    while (c->open && (event = sim_link_event(&c->link, now)) != TLY_NET_NONE) {
        if (event == TLY_NET_UP)
            c->membership.trouble[0] = 0;
        else if (event == TLY_NET_RETRY)
            snprintf(c->membership.trouble, sizeof c->membership.trouble, "Connection refused");
    }
    return c->open && c->link.conn && c->link.conn->inbox.first;
}
