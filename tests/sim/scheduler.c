#include "tests/sim/cluster.h"

#include <string.h>

#define MESSAGES_A_TURN 1000

static void receive(sim_scheduler *d, tly_time now)
{
    sim_message *m;
    tly_peer peer;
    for (int i = 0; i < MESSAGES_A_TURN && (m = sim_listener_recv(&d->listener, &peer)); i++) {
        tly_ctl message;
        if (tly_ctl_decode(m->head, m->head_len_bytes, &message) == TALLY_OK) {
            tly_roster_message(d->roster, &peer, &message, now);
            tly_ctl_fini(&message);
        } else {
            sim_fail(&d->cluster->s, "the scheduler cannot read a message: %s", tly_error_text());
        }
        sim_message_free(m);
    }
}

static void end_process(sim *s, void *arg)
{
    (void)s;
    sim_scheduler *d = arg;
    d->thread.dead = true;
    sim_net_unbind(&d->cluster->net, &d->listener, false);
}

static void run(sim_thread *thread, tly_time now)
{
    sim_scheduler *d = (sim_scheduler *)thread;
    sim *s = &d->cluster->s;
    const char *failure;
    receive(d, now);
    tly_time due = tly_roster_tick(d->roster, now);
    for (tly_out *out; (out = tly_out_pop(tly_roster_out(d->roster)));) {
        sim_tap_trace(s, "scheduler", "sends", sim_peer_conn(&out->peer), out->head, out->head_len_bytes,
                      NULL);
        (void)sim_listener_send(&d->cluster->net, &d->listener, out);
    }
    if (!d->over && tly_roster_done(d->roster, &d->exit_status, &failure)) {
        d->over = true;
        snprintf(d->failure, sizeof d->failure, "%s", failure ? failure : "");
        sim_trace(s, "scheduler ends with status %d %s", d->exit_status, d->failure);
        if (failure)
            sim_cluster_failure(d->cluster, "scheduler", failure);
        sim_at(s, s->now + 1000 * SIM_MS, end_process, d); /* linger */
    }
    if (d->over)
        return;
    if (d->listener.inbox.first)
        sim_notify(thread);
    sim_sleep(thread, due);
}

void sim_scheduler_init(sim_scheduler *d, sim_cluster *cluster)
{
    d->cluster = cluster;
    sim_thread_init(&d->thread, &cluster->s, run);
    strcpy(d->thread.name, "scheduler");
    d->listener.owner = &d->thread;
}

void sim_scheduler_start(sim_scheduler *d)
{
    tly_roster_create(&d->config, &d->log, 0x5eed0001, 1, sim_clock(&d->cluster->s), &d->roster);
    d->listener.bound = true;
    d->started = true;
    sim_wake(&d->thread, d->cluster->s.now);
}

void sim_scheduler_fini(sim_scheduler *d)
{
    tly_roster_destroy(d->roster);
}
