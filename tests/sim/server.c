#include "tests/sim/cluster.h"

#include <string.h>

#define RECEIVE_BATCH 64
#define LINGER_MS 1000

/* ---- one shard ---- */

static void install(sim_shard *d, tly_time now)
{
    const sim_server *v = d->server;
    const tly_membership *m = &v->control.membership;
    uint32_t ids[SIM_WORKERS_MAX];
    for (uint32_t i = 0; i < m->worker_count; i++)
        ids[i] = m->workers[i].id;
    tly_rounds_create(m->id, m->job, v->config.deterministic, &v->log, &d->rounds);
    tly_rounds_install(d->rounds, m->epoch, m->worker_count, ids, now);
}

static void handle_letters(sim_shard *d, tly_time now)
{
    for (uint32_t i = 0; i < d->letter_count; i++) {
        if (d->letters[i] == SIM_INSTALL)
            install(d, now);
        else if (d->rounds)
            tly_rounds_left(d->rounds, (uint32_t)d->letters[i], now);
    }
    d->letter_count = 0;
}

static void post(sim_shard *d, int letter)
{
    if (d->letter_count == sizeof d->letters / sizeof *d->letters)
        sim_fail(d->thread.s, "%s has no room for letters", d->thread.name);
    else
        d->letters[d->letter_count++] = letter;
    sim_notify(&d->thread);
}

/* Returns: whether the socket is empty. */
static bool receive(sim_shard *d, tly_time now)
{
    for (int i = 0; i < RECEIVE_BATCH; i++) {
        tly_peer peer;
        sim_message *m = sim_listener_recv(&d->listener, &peer);
        if (!m)
            return true;
        sim_tap_trace(d->thread.s, d->thread.name, "takes", m->conn->id, m->head, m->head_len_bytes, m->body);
        sim_tap_taken(d, m);
        tly_rounds_message(d->rounds, &peer, m->head, m->head_len_bytes, m->body, now);
        sim_message_free(m);
    }
    return false;
}

static void shard_run(sim_thread *thread, tly_time now)
{
    sim_shard *d = (sim_shard *)thread;
    handle_letters(d, now);
    if (!d->rounds)
        return;
    if (receive(d, now))
        tly_rounds_idle(d->rounds);
    else
        sim_wake(thread, thread->s->now + 1);
    tly_time deadline = tly_rounds_tick(d->rounds, now);
    if (tly_rounds_failed(d->rounds))
        sim_fail(thread->s, "%s is out of memory", thread->name);
    for (tly_out *out; (out = tly_out_pop(tly_rounds_out(d->rounds)));) {
        sim_tap_shard(d, out);
        (void)sim_listener_send(&d->server->cluster->net, &d->listener, out);
    }
    sim_sleep(thread, deadline);
}

/* ---- the server's main thread ---- */

static void install_when_in(sim_server *v)
{
    if (v->control.membership.state != TLY_MEMBER_IN || v->installed)
        return;
    v->installed = true;
    for (uint32_t i = 0; i < v->shard_count; i++)
        post(&v->shards[i], SIM_INSTALL);
}

static void control(void *arg, const tly_ctl *message, tly_time now)
{
    sim_server *v = arg;
    (void)now;
    install_when_in(v);
    if (message->type != TLY_CTL_LEFT)
        return;
    for (uint32_t i = 0; i < v->shard_count; i++)
        post(&v->shards[i], (int)message->rank);
}

static void end_process(sim *s, void *arg)
{
    (void)s;
    sim_server *v = arg;
    v->thread.dead = true;
}

static void over(sim_server *v, tly_time now, int exit_status)
{
    sim *s = &v->cluster->s;
    const tly_membership *m = &v->control.membership;
    v->over = true;
    v->exit_status = exit_status;
    sim_trace(s, "%s ends with status %d", v->thread.name, exit_status);
    if (m->state == TLY_MEMBER_FAILED)
        sim_cluster_failure(v->cluster, v->thread.name, m->failure);
    tly_membership_leave(&v->control.membership, 0, now);
    sim_control_flush(&v->control);
    sim_control_close(&v->control, LINGER_MS);
    for (uint32_t i = 0; i < v->shard_count; i++) {
        v->shards[i].thread.dead = true;
        sim_net_unbind(&v->cluster->net, &v->shards[i].listener, false);
    }
    sim_at(s, s->now + LINGER_MS * SIM_MS, end_process, v);
}

static void run(sim_thread *thread, tly_time now)
{
    sim_server *v = (sim_server *)thread;
    const tly_membership *m = &v->control.membership;
    bool renewed, more = false;
    if (v->over)
        return;
    more = sim_control_handle(&v->control, now);
    tly_time deadline = sim_control_run(&v->control, now, &renewed);
    install_when_in(v);
    if (m->state == TLY_MEMBER_ENDED || m->state == TLY_MEMBER_FAILED) {
        over(v, now, m->state == TLY_MEMBER_FAILED);
        return;
    }
    if (more)
        sim_notify(thread);
    sim_sleep(thread, deadline);
}

void sim_server_init(sim_server *v, sim_cluster *cluster, uint32_t index)
{
    v->cluster = cluster;
    v->index = index;
    v->shard_count = cluster->plan->shards[index];
    sim_thread_init(&v->thread, &cluster->s, run);
    snprintf(v->thread.name, sizeof v->thread.name, "server %u", index);
    for (uint32_t i = 0; i < v->shard_count; i++) {
        sim_shard *d = &v->shards[i];
        d->server = v;
        d->index = i;
        sim_thread_init(&d->thread, &cluster->s, shard_run);
        snprintf(d->thread.name, sizeof d->thread.name, "server %u shard %u", index, i);
        d->listener = (sim_listener){ .owner = &d->thread, .data_plane = true };
    }
}

void sim_server_start(sim_server *v)
{
    char text[SIM_SHARDS_MAX][TLY_ENDPOINT_MAX];
    const char *endpoints[SIM_SHARDS_MAX];
    for (uint32_t i = 0; i < v->shard_count; i++) {
        snprintf(text[i], sizeof text[i], "tcp://10.0.1.%u:%u", v->index + 1, 5000 + i);
        endpoints[i] = text[i];
        v->shards[i].listener.bound = true;
    }
    v->control.on_control = control;
    v->control.arg = v;
    sim_control_init(&v->control, v->cluster, &v->thread, &v->config, &v->log, TLY_ROLE_SERVER,
                     1000 + v->index, v->shard_count, endpoints);
    v->started = true;
    sim_wake(&v->thread, v->cluster->s.now);
}

void sim_server_kill(sim_server *v, bool mute)
{
    v->killed = v->over = true;
    v->thread.dead = true;
    sim_net_kill(&v->cluster->net, &v->thread, mute);
    for (uint32_t i = 0; i < v->shard_count; i++) {
        v->shards[i].thread.dead = true;
        sim_net_unbind(&v->cluster->net, &v->shards[i].listener, mute);
    }
}

void sim_server_fini(sim_server *v)
{
    if (v->started)
        sim_control_fini(&v->control);
    for (uint32_t i = 0; i < v->shard_count; i++)
        tly_rounds_destroy(v->shards[i].rounds);
}

sim_listener *sim_server_find(sim_cluster *c, const char *endpoint)
{
    unsigned server, port;
    if (sscanf(endpoint, "tcp://10.0.1.%u:%u", &server, &port) != 2 || server > c->plan->servers)
        return NULL;
    return &c->servers[server - 1].shards[port - 5000].listener;
}
