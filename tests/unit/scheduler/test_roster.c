#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/membership.h"
#include "scheduler/roster.h"

#define JOB 0xabcdu
#define SCHEDULER "tcp://10.0.0.100:9000"
#define STEP_MS 10
#define NODES_MAX 24

/* ---- a roster and real memberships on a virtual clock ---- */

typedef struct node {
    tly_config config;
    tly_membership m;
    bool used;
    bool stopped;  /* by SIGSTOP or for ever: says and hears nothing */
    bool deaf;     /* what is sent to it is lost */
    bool leaves_at_end;
    tly_time due;
    uint64_t released;      /* newest barrier */
    uint64_t arriving;      /* repeated until released */
    char barrier_text[TLY_SENTENCE_MAX];
    int barrier_texts;
    char conflict[TLY_SENTENCE_MAX];
    int placed_messages;
    uint32_t left_mask;     /* ranks that left */
    int epochs, fails;
    char said[TLY_SENTENCE_MAX]; /* the last FAIL or REFUSED */
} node;

typedef struct cluster {
    tly_config config;
    tly_log log, node_log;
    int lines; /* of the scheduler */
    char line[2048];
    tly_roster *roster;
    tly_time now, due;
    node nodes[NODES_MAX];
    uint32_t random;
    int loss, twice; /* percent */
} cluster;

static void take_line(void *arg, tally_log_level level, const char *line)
{
    (void)level;
    cluster *c = arg;
    c->lines++;
    snprintf(c->line, sizeof c->line, "%s", line);
}

static void cluster_init(cluster *c, int num_worker, int num_server)
{
    memset(c, 0, sizeof *c);
    c->config = (tly_config){ .num_worker = num_worker, .num_server = num_server, .local_size = 1,
                              .death_limit_ms = 10000, .start_limit_ms = 120000, .partition_bytes = 1 << 20 };
    c->log = (tly_log){ .level = TALLY_LOG_WARN, .sink = take_line, .sink_arg = c };
    c->node_log.level = TALLY_LOG_ERROR;
    c->now = 5000;
    c->random = 1;
    assert_int_equal(tly_roster_create(&c->config, &c->log, JOB, 1, c->now, &c->roster), TALLY_OK);
}

static void cluster_fini(cluster *c)
{
    for (int i = 0; i < NODES_MAX; i++)
        if (c->nodes[i].used)
            tly_membership_fini(&c->nodes[i].m);
    tly_roster_destroy(c->roster);
}

static bool chance(cluster *c, int percent)
{
    c->random = c->random * 1664525u + 1013904223u;
    return (int)((c->random >> 8) % 100) < percent;
}

static tly_peer peer_of(int index)
{
    return (tly_peer){ .len = 5, .id = { 0, 1, 2, 3, (uint8_t)index } };
}

static void take_placed(node *n, const tly_ctl *message)
{
    n->placed_messages++;
    if (message->placed.base > n->m.placed_version)
        return; /* a gap: the beats tell */
    for (uint32_t i = 0; i < message->placed.count; i++) {
        if (message->placed.base + i < n->m.placed_version)
            continue;
        n->m.placed_version++;
        if (message->placed.items[i].conflict)
            snprintf(n->conflict, sizeof n->conflict, "%s", message->placed.items[i].conflict);
    }
}

static void node_owner(cluster *c, node *n, const tly_ctl *message)
{
    switch (message->type) {
    case TLY_CTL_PLACED:
        take_placed(n, message);
        break;
    case TLY_CTL_BARRIER:
        if (message->barrier.seq > n->released)
            n->released = message->barrier.seq;
        break;
    case TLY_CTL_WAITING:
        n->barrier_texts++;
        snprintf(n->barrier_text, sizeof n->barrier_text, "%s", message->text);
        break;
    case TLY_CTL_LEFT:
        n->left_mask |= 1u << message->rank;
        break;
    case TLY_CTL_END:
        if (n->leaves_at_end)
            tly_membership_leave(&n->m, 1000, c->now);
        break;
    default:
        break;
    }
}

static void to_node(cluster *c, int index, const tly_out *out)
{
    node *n = &c->nodes[index];
    tly_ctl m;
    assert_int_equal(tly_ctl_decode(out->head, out->head_len_bytes, &m), TALLY_OK);
    n->epochs += m.type == TLY_CTL_EPOCH;
    n->fails += m.type == TLY_CTL_FAIL;
    if (m.type == TLY_CTL_FAIL || m.type == TLY_CTL_REFUSED)
        snprintf(n->said, sizeof n->said, "%s", m.text);
    if (n->used && tly_membership_message(&n->m, &m, c->now))
        node_owner(c, n, &m);
    n->due = c->now;
    tly_ctl_fini(&m);
}

static void to_roster(cluster *c, int index, const tly_out *out)
{
    tly_ctl m;
    tly_peer peer = peer_of(index);
    assert_int_equal(tly_ctl_decode(out->head, out->head_len_bytes, &m), TALLY_OK);
    tly_roster_message(c->roster, &peer, &m, c->now);
    tly_ctl_fini(&m);
}

/* Carry what the node says, with losses and repeats. */
static void carry_up(cluster *c, int index)
{
    for (tly_out *out; (out = tly_out_pop(&c->nodes[index].m.out));) {
        for (int times = chance(c, c->twice) ? 2 : 1; times > 0; times--)
            if (!c->nodes[index].stopped && !chance(c, c->loss))
                to_roster(c, index, out);
        tly_out_free(out);
    }
}

static void carry_down(cluster *c)
{
    for (tly_out *out; (out = tly_out_pop(tly_roster_out(c->roster)));) {
        int index = out->peer.id[4];
        node *n = &c->nodes[index];
        for (int times = chance(c, c->twice) ? 2 : 1; times > 0; times--)
            if (!n->stopped && !n->deaf && !chance(c, c->loss))
                to_node(c, index, out);
        tly_out_free(out);
    }
}

static void arrive(node *n)
{
    tly_membership_send(&n->m, &(tly_ctl){ .type = TLY_CTL_BARRIER, .barrier = { .seq = n->arriving } });
}

static void step(cluster *c)
{
    c->now += STEP_MS;
    for (int i = 0; i < NODES_MAX; i++) {
        node *n = &c->nodes[i];
        if (!n->used || n->stopped)
            continue;
        if (n->arriving > n->released && n->m.state == TLY_MEMBER_IN && c->now % 500 == 0)
            arrive(n);
        if (n->due <= c->now)
            n->due = tly_membership_tick(&n->m, c->now);
        carry_up(c, i);
    }
    carry_down(c);
    if (c->due <= c->now)
        c->due = tly_roster_tick(c->roster, c->now);
    carry_down(c);
}

static void run(cluster *c, int64_t for_ms)
{
    for (tly_time end = c->now + for_ms; c->now < end;)
        step(c);
}

static node *start(cluster *c, int index, tly_role role, int worker_id)
{
    node *n = &c->nodes[index];
    char host[32], endpoint[TLY_ENDPOINT_MAX];
    if (n->used)
        tly_membership_fini(&n->m);
    memset(n, 0, sizeof *n);
    n->used = true;
    n->leaves_at_end = true;
    n->config = c->config;
    n->config.worker_id = worker_id;
    snprintf(host, sizeof host, "host%d:%d", index, 100 + index);
    snprintf(endpoint, sizeof endpoint, "tcp://10.0.0.%d:5000", index);
    const char *endpoints[] = { endpoint };
    uint64_t nonce = (uint64_t)index << 32 | (uint32_t)c->now;
    tally_status status = tly_membership_init(&n->m, &n->config, &c->node_log, role, nonce, SCHEDULER, host,
                                              role == TLY_ROLE_SERVER, endpoints, c->now);
    assert_int_equal(status, TALLY_OK);
    return n;
}

static node *start_worker(cluster *c, int index, int worker_id)
{
    return start(c, index, TLY_ROLE_WORKER, worker_id);
}

static node *start_server(cluster *c, int index)
{
    return start(c, index, TLY_ROLE_SERVER, 0);
}

/* A job of workers 0 and 1 and servers 2 and 3 that runs. */
static void start_2_by_2(cluster *c)
{
    cluster_init(c, 2, 2);
    start_worker(c, 0, 0);
    start_worker(c, 1, 1);
    start_server(c, 2);
    start_server(c, 3);
    run(c, 50);
    for (int i = 0; i < 4; i++)
        assert_int_equal(c->nodes[i].m.state, TLY_MEMBER_IN);
}

static void check_failed(cluster *c, int first, int last, const char *sentence)
{
    for (int i = first; i <= last; i++) {
        assert_int_equal(c->nodes[i].m.state, TLY_MEMBER_FAILED);
        assert_string_equal(c->nodes[i].m.failure, sentence);
    }
}

static void check_done(cluster *c, int exit_status, const char *sentence)
{
    int status;
    const char *failure;
    assert_true(tly_roster_done(c->roster, &status, &failure));
    assert_int_equal(status, exit_status);
    if (sentence)
        assert_string_equal(failure, sentence);
    else
        assert_null(failure);
}

static bool is_done(cluster *c)
{
    int status;
    const char *failure;
    return tly_roster_done(c->roster, &status, &failure);
}

static void leave(cluster *c, int index)
{
    tly_membership_leave(&c->nodes[index].m, 5000, c->now);
}

static void declare(cluster *c, int index, const char *name, uint64_t count)
{
    tly_declaration item = { name, TALLY_DTYPE_F32, TALLY_OP_SUM, count, 1 << 20 };
    tly_membership_send(&c->nodes[index].m, &(tly_ctl){ .type = TLY_CTL_DECLARE, .declare = { 1, &item } });
}

/* ---- the start ---- */

static void the_epoch_comes_when_all_are_there_in_any_order(void **state)
{
    (void)state;
    cluster c;
    cluster_init(&c, 2, 2);
    start_server(&c, 5);
    run(&c, 1000);
    start_worker(&c, 1, 1);
    run(&c, 1000);
    start_worker(&c, 0, 0);
    run(&c, 20000);
    assert_int_equal(c.nodes[0].m.state, TLY_MEMBER_JOINING);
    assert_string_equal(c.nodes[0].m.waiting, "waiting for 1 of 2 servers");
    start_server(&c, 4);
    run(&c, 20);
    const int in[] = { 0, 1, 4, 5 };
    for (int i = 0; i < 4; i++) {
        const tly_membership *m = &c.nodes[in[i]].m;
        assert_int_equal(m->state, TLY_MEMBER_IN);
        assert_true(m->epoch == (1ull << 32 | 1));
        assert_int_equal(m->job, JOB);
        assert_int_equal(m->worker_count, 2);
        assert_string_equal(m->workers[1].host, "host1:101");
        assert_int_equal(m->server_count, 2);
        assert_string_equal(m->servers[0].endpoints[0], "tcp://10.0.0.5:5000"); /* in order of registration */
        assert_string_equal(m->servers[1].endpoints[0], "tcp://10.0.0.4:5000");
    }
    assert_int_equal(c.nodes[1].m.rank, 1);
    assert_int_equal(c.nodes[4].m.rank, 1);
    run(&c, 60000);
    assert_int_equal(c.nodes[5].m.state, TLY_MEMBER_IN);
    assert_int_equal(c.nodes[5].epochs, 1);
    cluster_fini(&c);
}

static void while_waiting_a_line_every_5_s_says_who_is_missing(void **state)
{
    (void)state;
    cluster c;
    cluster_init(&c, 12, 2);
    run(&c, 4990);
    assert_int_equal(c.lines, 0);
    run(&c, 10);
    assert_int_equal(c.lines, 1);
    assert_non_null(strstr(c.line, "waiting for 12 of 12 workers (workers 0, 1, 2, 3, 4, 5, 6, 7 and 4 more) "
                                   "and 2 of 2 servers"));
    for (int i = 0; i < 11; i++)
        start_worker(&c, i, i);
    start_server(&c, 12);
    run(&c, 4000);
    assert_int_equal(c.lines, 1);
    run(&c, 1000);
    assert_int_equal(c.lines, 2);
    assert_non_null(strstr(c.line, "waiting for 1 of 12 workers (worker 11) and 1 of 2 servers"));
    assert_string_equal(c.nodes[0].m.waiting, "waiting for 1 of 12 workers (worker 11) and 1 of 2 servers");
    cluster_fini(&c);
}

static void too_few_within_the_start_limit_fail_with_the_missing_named(void **state)
{
    (void)state;
    cluster c;
    cluster_init(&c, 2, 2);
    start_worker(&c, 0, 0);
    start_server(&c, 2);
    run(&c, 119990);
    assert_int_equal(c.nodes[0].m.state, TLY_MEMBER_JOINING);
    run(&c, 20);
    const char *sentence = "only 1 of 2 workers and 1 of 2 servers came within 120 s (TALLY_START_LIMIT_MS); "
                           "missing: worker 1, 1 server";
    check_failed(&c, 0, 0, sentence);
    check_failed(&c, 2, 2, sentence);
    assert_int_equal(c.nodes[0].m.failure_status, TALLY_ETIMEDOUT);
    leave(&c, 0);
    leave(&c, 2);
    run(&c, 20);
    check_done(&c, 1, sentence);
    cluster_fini(&c);
}

static void a_node_that_leaves_or_goes_silent_before_the_start_may_be_replaced(void **state)
{
    (void)state;
    cluster c;
    cluster_init(&c, 2, 1);
    start_worker(&c, 0, 0);
    start_worker(&c, 1, 1);
    run(&c, 100);
    leave(&c, 1);
    run(&c, 20);
    assert_int_equal(c.nodes[1].m.state, TLY_MEMBER_LEFT);
    c.nodes[0].stopped = true; /* for ever */
    run(&c, 1000);
    start_worker(&c, 4, 0);
    run(&c, 20);
    assert_string_equal(c.nodes[4].said, "DMLC_WORKER_ID=0 is already taken by host0:100; this is host4:104");
    run(&c, 2500);
    start_worker(&c, 5, 0);
    start_worker(&c, 6, 1);
    run(&c, 1100);
    assert_string_equal(c.nodes[5].m.waiting, "waiting for 1 of 1 server");
    c.nodes[6].stopped = true;
    run(&c, 10100);
    assert_string_equal(c.nodes[5].m.waiting, "waiting for 1 of 2 workers (worker 1) and 1 of 1 server");
    start_worker(&c, 7, 1);
    start_server(&c, 8);
    run(&c, 20);
    assert_int_equal(c.nodes[5].m.state, TLY_MEMBER_IN);
    assert_int_equal(c.nodes[7].m.state, TLY_MEMBER_IN);
    assert_int_equal(c.nodes[8].m.state, TLY_MEMBER_IN);
    cluster_fini(&c);
}

static void check_refused(cluster *c, int index, const char *sentence)
{
    run(c, 20);
    assert_int_equal(c->nodes[index].m.state, TLY_MEMBER_FAILED);
    assert_int_equal(c->nodes[index].m.failure_status, TALLY_EREFUSED);
    assert_string_equal(c->nodes[index].m.failure, sentence);
}

static void who_does_not_fit_is_refused_with_both_values_and_disturbs_nobody(void **state)
{
    (void)state;
    cluster c;
    cluster_init(&c, 2, 1);
    start_worker(&c, 0, 0);
    start_server(&c, 2);
    run(&c, 20);
    c.config.num_worker = 3;
    start_worker(&c, 3, 1);
    c.config.num_worker = 2;
    check_refused(&c, 3, "this worker was told DMLC_NUM_WORKER=3, the scheduler 2");
    c.config.num_server = 4;
    tly_config told = c.config;
    c.config.num_server = 1; /* the roster reads this one */
    node *n = start_server(&c, 4);
    n->config = told;
    tly_out_list_fini(&n->m.out); /* what it said with the other values */
    tly_membership_reconnected(&n->m, c.now);
    check_refused(&c, 4, "this server was told DMLC_NUM_SERVER=4, the scheduler 1");
    start_worker(&c, 5, 2);
    check_refused(&c, 5, "DMLC_WORKER_ID=2 is out of range: the job has 2 workers (0 to 1)");
    start_worker(&c, 6, 0);
    check_refused(&c, 6, "DMLC_WORKER_ID=0 is already taken by host0:100; this is host6:106");
    start_server(&c, 7);
    check_refused(&c, 7, "the job has its 1 server already (DMLC_NUM_SERVER); this is host7:107");

    start_worker(&c, 1, 1);
    run(&c, 20);
    assert_int_equal(c.nodes[0].m.state, TLY_MEMBER_IN);
    start_worker(&c, 8, 1);
    check_refused(&c, 8, "DMLC_WORKER_ID=1 is already taken by host1:101; this is host8:108");
    start_server(&c, 9);
    check_refused(&c, 9, "the job has already started with its 1 server (DMLC_NUM_SERVER); this is "
                         "host9:109");
    leave(&c, 1);
    run(&c, 20);
    start_worker(&c, 10, 1);
    check_refused(&c, 10, "the job has already started, and its worker 1 (host1:101) has left it");
    run(&c, 30000);
    assert_int_equal(c.nodes[0].m.state, TLY_MEMBER_IN);
    assert_int_equal(c.nodes[2].m.state, TLY_MEMBER_IN);
    cluster_fini(&c);
}

/* Send one message without a membership. */
static void say(cluster *c, int index, tly_ctl message)
{
    tly_out *out = tly_ctl_out(&message);
    to_roster(c, index, out);
    tly_out_free(out);
    carry_down(c);
}

static tly_ctl server_register(uint32_t count, const char *const *endpoints)
{
    return (tly_ctl){ .type = TLY_CTL_REGISTER,
                      .reg = { .role = TLY_ROLE_SERVER, .nonce = 99, .num_worker = 1, .num_server = 3,
                               .host = "s:9", .endpoint_count = count, .endpoints = endpoints } };
}

static void a_servers_endpoints_must_be_there_whole_and_its_own(void **state)
{
    (void)state;
    cluster c;
    cluster_init(&c, 1, 3);
    start_server(&c, 2);
    run(&c, 20);
    say(&c, 9, server_register(0, NULL));
    assert_string_equal(c.nodes[9].said, "a server has 1 to 65535 endpoints, this one (s:9) has 0");
    say(&c, 9, server_register(1, (const char *[]){ "10.0.0.9:1" }));
    assert_string_equal(c.nodes[9].said,
                        "\"10.0.0.9:1\" of server s:9 is not an endpoint like tcp://ADDRESS:PORT");
    say(&c, 9, server_register(1, (const char *[]){ "tcp://10.0.0.2:5000" }));
    assert_string_equal(c.nodes[9].said,
                        "the endpoint tcp://10.0.0.2:5000 is already taken by server host2:102; this is s:9");
    say(&c, 9, server_register(3, (const char *[]){ "tcp://a:1", "tcp://b:1", "tcp://a:1" }));
    assert_string_equal(c.nodes[9].said, "server s:9 has the endpoint tcp://a:1 twice");
    uint32_t many = 65536;
    const char **endpoints = malloc(many * sizeof *endpoints);
    for (uint32_t i = 0; i < many; i++)
        endpoints[i] = "tcp://a:1";
    say(&c, 9, server_register(many, endpoints));
    assert_string_equal(c.nodes[9].said, "a server has 1 to 65535 endpoints, this one (s:9) has 65536");
    free(endpoints);
    c.nodes[9].said[0] = 0;
    say(&c, 9, server_register(2, (const char *[]){ "tcp://a:1", "tcp://b:1" }));
    assert_string_equal(c.nodes[9].said, "");
    cluster_fini(&c);
}

static void other_wire_versions_and_other_jobs_are_kept_out(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    tly_peer peer = peer_of(9);
    tly_roster_foreign(c.roster, &peer, "the peer speaks wire version 9, this is wire version 1");
    carry_down(&c);
    assert_string_equal(c.nodes[9].said, "the peer speaks wire version 9, this is wire version 1");
    c.nodes[9].said[0] = 0;
    tly_ctl m = server_register(0, NULL);
    m.job = JOB + 1;
    say(&c, 9, m);
    assert_string_equal(c.nodes[9].said, "");
    say(&c, 9, (tly_ctl){ .type = TLY_CTL_FAIL, .job = JOB + 1, .sender = 1, .text = "not ours" });
    say(&c, 9, (tly_ctl){ .type = TLY_CTL_FAIL, .sender = 0, .text = "from nobody" });
    run(&c, 5000);
    assert_int_equal(c.nodes[0].m.state, TLY_MEMBER_IN);
    cluster_fini(&c);
}

static void a_stranger_is_answered_without_the_jobs_number(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    tly_peer peer = peer_of(9);
    const tly_ctl from_strangers[] = { { .type = TLY_CTL_LEAVE }, { .type = TLY_CTL_LEAVE, .sender = 99 },
                                       server_register(0, NULL) };
    for (size_t i = 0; i < sizeof from_strangers / sizeof from_strangers[0]; i++) {
        tly_roster_message(c.roster, &peer, &from_strangers[i], c.now);
        tly_out *out = tly_out_pop(tly_roster_out(c.roster));
        tly_ctl answer;
        assert_non_null(out);
        assert_int_equal(tly_ctl_decode(out->head, out->head_len_bytes, &answer), TALLY_OK);
        assert_int_equal(answer.job, 0);
        assert_true(answer.epoch == 0);
        tly_ctl_fini(&answer);
        tly_out_free(out);
    }
    run(&c, 5000);
    assert_int_equal(c.nodes[0].m.state, TLY_MEMBER_IN);
    cluster_fini(&c);
}

/* ---- deaths ---- */

static void a_death_is_known_to_all_within_the_limit_in_the_same_words(void **state)
{
    (void)state;
    static const char *const sentences[] = {
        "worker 0 (host0:100) died: nothing heard from it for 10 s (TALLY_DEATH_LIMIT_MS)",
        "worker 1 (host1:101) died: nothing heard from it for 10 s (TALLY_DEATH_LIMIT_MS)",
        "server 0 (host2:102) died: nothing heard from it for 10 s (TALLY_DEATH_LIMIT_MS)",
        "server 1 (host3:103) died: nothing heard from it for 10 s (TALLY_DEATH_LIMIT_MS)",
    };
    for (int victim = 0; victim < 4; victim++) {
        cluster c;
        start_2_by_2(&c);
        run(&c, 12340);
        c.nodes[victim].stopped = true;
        run(&c, 7900);
        for (int i = 0; i < 4; i++)
            assert_int_equal(c.nodes[i].m.state, TLY_MEMBER_IN);
        run(&c, 2100);
        for (int i = 0; i < 4; i++)
            if (i != victim)
                check_failed(&c, i, i, sentences[victim]);
        assert_false(is_done(&c));
        for (int i = 0; i < 4; i++)
            leave(&c, i);
        run(&c, 20);
        check_done(&c, 1, sentences[victim]);
        cluster_fini(&c);
    }
}

static void a_failed_job_is_over_without_goodbyes_too(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    c.nodes[1].stopped = true;
    run(&c, 9100);
    assert_int_equal(c.nodes[0].m.state, TLY_MEMBER_FAILED);
    assert_false(is_done(&c));
    run(&c, 3000);
    assert_true(is_done(&c));
    cluster_fini(&c);
}

#define STOPPED "server 0 (host2:102) was stopped by signal 15 (SIGTERM)"

static void who_missed_the_failure_hears_it_at_its_next_beat(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    run(&c, 3000);
    c.nodes[0].deaf = true;
    tly_membership_fail(&c.nodes[2].m, TALLY_EFAILED, STOPPED);
    run(&c, 200);
    check_failed(&c, 1, 3, STOPPED);
    assert_int_equal(c.nodes[0].m.state, TLY_MEMBER_IN);
    run(&c, 3500); /* it beats, so the scheduler stays for it */
    assert_false(is_done(&c));
    c.nodes[0].deaf = false;
    run(&c, 1000);
    check_failed(&c, 0, 0, STOPPED);
    cluster_fini(&c);
}

static void a_node_that_never_hears_of_the_failure_is_waited_for_no_longer_than_the_limit(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    c.nodes[0].deaf = true;
    c.nodes[0].m.heard = INT64_MAX / 2; /* it beats for ever */
    tly_roster_fail(c.roster, TALLY_EFAILED, "the scheduler was stopped by signal 15 (SIGTERM)", c.now);
    run(&c, 9900);
    assert_false(is_done(&c));
    run(&c, 200);
    check_done(&c, 1, "the scheduler was stopped by signal 15 (SIGTERM)");
    cluster_fini(&c);
}

static void a_stopped_and_resumed_scheduler_declares_nobody_dead(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    run(&c, 3000);
    for (int turn = 0; turn < 5; turn++) {
        c.now += 60000; /* the machine was suspended, and */
        c.due = tly_roster_tick(c.roster, c.now); /* nothing is read yet */
        run(&c, 2000);
    }
    run(&c, 20000);
    for (int i = 0; i < 4; i++)
        assert_int_equal(c.nodes[i].m.state, TLY_MEMBER_IN);
    c.nodes[3].stopped = true; /* and sees a real death after that */
    run(&c, 9100);
    assert_int_equal(c.nodes[0].m.state, TLY_MEMBER_FAILED);
    cluster_fini(&c);
}

static void a_new_process_in_the_place_of_a_silent_one_waits_and_gets_the_failure(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    run(&c, 2000);
    c.nodes[1].stopped = true;
    run(&c, 4000);
    start_worker(&c, 5, 1);
    run(&c, 2000);
    assert_int_equal(c.nodes[5].m.state, TLY_MEMBER_JOINING);
    assert_string_equal(c.nodes[5].m.waiting,
                        "waiting to know whether worker 1 (host1:101) died, whose place this worker wants");
    run(&c, 4500);
    check_failed(&c, 5, 5,
                 "worker 1 (host1:101) died: nothing heard from it for 10 s (TALLY_DEATH_LIMIT_MS)");
    cluster_fini(&c);
}

static void a_process_that_waits_for_a_seat_hears_of_the_failure_without_asking_again(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    run(&c, 2000);
    c.nodes[1].stopped = true;
    run(&c, 4000);
    start_worker(&c, 5, 1);
    run(&c, 100);
    assert_int_equal(c.nodes[5].m.state, TLY_MEMBER_JOINING);
    assert_int_equal(c.nodes[5].m.job, 0); /* it is not told the job's number */
    tly_roster_fail(c.roster, TALLY_EFAILED, "the scheduler was stopped", c.now);
    carry_down(&c); /* nothing goes up before that */
    assert_int_equal(c.nodes[5].m.state, TLY_MEMBER_FAILED);
    assert_string_equal(c.nodes[5].m.failure, "the scheduler was stopped");
    cluster_fini(&c);
}

static void an_unreachable_node_that_beats_fails_the_job_in_the_reporters_words(void **state)
{
    (void)state;
    const char *sentence = "worker 0 at 10.0.0.1 cannot reach server 1 at tcp://10.0.0.3:5000 within 8 s: "
                           "Connection refused";
    cluster c;
    start_2_by_2(&c);
    run(&c, 3000);
    tly_ctl report = { .type = TLY_CTL_UNREACHABLE, .peer = c.nodes[3].m.id, .text = sentence };
    c.nodes[3].stopped = true;
    run(&c, 3000);
    tly_membership_send(&c.nodes[0].m, &report);
    run(&c, 20);
    assert_int_equal(c.nodes[0].m.state, TLY_MEMBER_IN); /* silent: the death limit decides */
    c.nodes[3].stopped = false;
    run(&c, 1000);
    tly_membership_send(&c.nodes[0].m, &report);
    run(&c, 20);
    check_failed(&c, 0, 3, sentence);
    assert_int_equal(c.nodes[0].m.failure_status, TALLY_EFAILED);
    cluster_fini(&c);
}

static void the_first_failure_is_everybodys_and_every_later_register_gets_it(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    tly_membership_fail(&c.nodes[0].m, TALLY_EFAILED, "tensor \"x\" waited too long");
    tly_membership_fail(&c.nodes[1].m, TALLY_EFAILED, "tensor \"y\" waited too long");
    run(&c, 20);
    check_failed(&c, 0, 3, "tensor \"x\" waited too long");
    start_worker(&c, 5, 1);
    run(&c, 20);
    check_failed(&c, 5, 5, "tensor \"x\" waited too long");
    cluster_fini(&c);
}

static void a_server_that_leaves_early_fails_the_job(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    leave(&c, 3);
    run(&c, 20);
    check_failed(&c, 0, 2, "server 1 (host3:103) left while workers were in the job");
    assert_int_equal(c.nodes[3].m.state, TLY_MEMBER_LEFT);
    cluster_fini(&c);
}

/* ---- the end ---- */

static void workers_leave_one_by_one_and_then_the_servers_end(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    leave(&c, 1);
    run(&c, 20);
    assert_int_equal(c.nodes[1].m.state, TLY_MEMBER_LEFT);
    assert_int_equal(c.nodes[0].left_mask, 2);
    assert_int_equal(c.nodes[2].left_mask, 2);
    c.nodes[1].stopped = true; /* its process is gone: no death */
    run(&c, 60000);
    assert_int_equal(c.nodes[0].m.state, TLY_MEMBER_IN);
    c.nodes[2].leaves_at_end = c.nodes[3].leaves_at_end = false;
    leave(&c, 0);
    run(&c, 20);
    assert_int_equal(c.nodes[0].m.state, TLY_MEMBER_LEFT);
    assert_int_equal(c.nodes[2].m.state, TLY_MEMBER_ENDED);
    assert_int_equal(c.nodes[3].m.state, TLY_MEMBER_ENDED);
    start_worker(&c, 5, 1);
    check_refused(&c, 5, "the job has ended: all its workers have left");
    leave(&c, 2);
    run(&c, 20);
    assert_false(is_done(&c));
    leave(&c, 3);
    run(&c, 20);
    assert_int_equal(c.nodes[3].m.state, TLY_MEMBER_LEFT);
    check_done(&c, 0, NULL);
    cluster_fini(&c);
}

static void a_server_that_does_not_leave_holds_up_the_end_for_2_s(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    c.nodes[2].stopped = true;
    leave(&c, 0);
    leave(&c, 1);
    run(&c, 1990);
    assert_false(is_done(&c));
    run(&c, 40);
    check_done(&c, 0, NULL);
    cluster_fini(&c);
}

static void a_signal_while_only_servers_are_left_is_no_failure(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    c.nodes[2].stopped = true;
    leave(&c, 0);
    leave(&c, 1);
    run(&c, 100);
    tly_roster_fail(c.roster, TALLY_EFAILED, "stopped", c.now);
    check_done(&c, 0, NULL);
    cluster_fini(&c);
}

/* ---- barriers ---- */

static void a_barrier_opens_when_the_last_worker_arrives_and_answers_repeats(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    c.nodes[0].arriving = 1;
    run(&c, 5000);
    assert_int_equal(c.nodes[0].released, 0);
    assert_string_equal(c.nodes[0].barrier_text, "worker 1 has not reached the barrier");
    assert_in_range(c.nodes[0].barrier_texts, 4, 5); /* after 500 ms, then every second */
    assert_int_equal(c.nodes[1].barrier_texts, 0);
    c.nodes[1].arriving = 1;
    run(&c, 510);
    assert_int_equal(c.nodes[0].released, 1);
    assert_int_equal(c.nodes[1].released, 1);
    c.nodes[0].released = 0; /* it lost the release in a dropped connection */
    run(&c, 510);
    assert_int_equal(c.nodes[0].released, 1);
    c.nodes[0].released = 0;
    c.nodes[0].arriving = 0;
    tly_membership_reconnected(&c.nodes[0].m, c.now); /* REGISTER alone brings it, too */
    run(&c, 20);
    assert_int_equal(c.nodes[0].released, 1);
    c.nodes[0].arriving = c.nodes[1].arriving = 2;
    run(&c, 510);
    assert_int_equal(c.nodes[0].released, 2);
    assert_int_equal(c.nodes[1].released, 2);
    cluster_fini(&c);
}

static void a_worker_that_left_before_the_barrier_never_opens_it(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    c.nodes[0].arriving = 1;
    leave(&c, 1);
    run(&c, 3000);
    assert_int_equal(c.nodes[0].released, 0);
    assert_int_equal(c.nodes[0].left_mask, 2);
    cluster_fini(&c);
}

static void a_worker_that_arrived_and_left_does_not_hold_the_others(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    c.nodes[1].arriving = 1;
    run(&c, 510);
    leave(&c, 1);
    run(&c, 20);
    c.nodes[0].arriving = 1;
    run(&c, 510);
    assert_int_equal(c.nodes[0].released, 1);
    cluster_fini(&c);
}

/* ---- declarations ---- */

static void all_workers_get_one_table_and_servers_none(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    declare(&c, 0, "x", 10);
    declare(&c, 1, "y", 10);
    declare(&c, 1, "x", 10);
    run(&c, 20);
    assert_true(c.nodes[0].m.placed_version == 2);
    assert_true(c.nodes[1].m.placed_version == 2);
    assert_int_equal(c.nodes[0].placed_messages, 2);
    assert_int_equal(c.nodes[2].placed_messages, 0);
    declare(&c, 1, "x", 11);
    run(&c, 20);
    for (int i = 0; i < 2; i++)
        assert_string_equal(c.nodes[i].conflict, "tensor \"x\": worker 0 declared float32 x 10 (sum), "
                                                 "worker 1 declared float32 x 11 (sum)");
    run(&c, 20000);
    assert_int_equal(c.nodes[0].placed_messages, 3);
    assert_int_equal(c.nodes[0].m.state, TLY_MEMBER_IN);
    cluster_fini(&c);
}

static void a_lost_placement_comes_again_with_the_beats_and_with_a_new_connection(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    declare(&c, 0, "a", 1);
    run(&c, 20);
    c.nodes[1].deaf = true;
    declare(&c, 0, "b", 1);
    declare(&c, 0, "c", 1);
    run(&c, 20);
    c.nodes[1].deaf = false;
    assert_true(c.nodes[1].m.placed_version == 1);
    run(&c, 2100);
    assert_true(c.nodes[1].m.placed_version == 3);
    c.nodes[1].deaf = true;
    declare(&c, 0, "d", 1);
    run(&c, 20);
    c.nodes[1].deaf = false;
    tly_membership_reconnected(&c.nodes[1].m, c.now);
    run(&c, 20);
    assert_true(c.nodes[1].m.placed_version == 4);
    cluster_fini(&c);
}

static void nonsense_declarations_are_ignored_with_one_warning_a_minute(void **state)
{
    (void)state;
    cluster c;
    start_2_by_2(&c);
    int lines = c.lines;
    for (int i = 0; i < 100; i++)
        declare(&c, 0, "", 1);
    declare(&c, 0, "good", 1);
    run(&c, 20);
    assert_int_equal(c.lines, lines + 1);
    assert_non_null(strstr(c.line, "a declaration of worker 0 (host0:100) is ignored: the name of a "
                                   "tensor has 0 bytes, 1 to 1023 are possible"));
    assert_true(c.nodes[1].m.placed_version == 1);
    cluster_fini(&c);
}

static void sixteen_workers_declare_a_thousand_tensors_each(void **state)
{
    (void)state;
    enum { WORKERS = 16, TENSORS = 1000 };
    cluster c;
    cluster_init(&c, WORKERS, 1);
    for (int i = 0; i < WORKERS; i++)
        start_worker(&c, i, i);
    start_server(&c, WORKERS);
    run(&c, 20);
    static char names[TENSORS][24];
    static tly_declaration items[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        snprintf(names[i], sizeof names[i], "layer.%d", i);
        items[i] = (tly_declaration){ names[i], TALLY_DTYPE_F32, TALLY_OP_SUM, 1000, 1 << 20 };
    }
    tly_ctl message = { .type = TLY_CTL_DECLARE, .declare = { TENSORS, items } };
    for (int i = 0; i < WORKERS; i++)
        tly_membership_send(&c.nodes[i].m, &message);
    run(&c, 20);
    for (int i = 0; i < WORKERS; i++) {
        assert_true(c.nodes[i].m.placed_version == TENSORS);
        assert_int_equal(c.nodes[i].placed_messages, 1); /* all of one DECLARE in one PLACED */
    }
    cluster_fini(&c);
}

/* ---- losses and repeats ---- */

/* A whole job where a fifth of all messages is lost and a fifth comes twice; what the owners of
 * memberships repeat (barriers, declarations) is repeated. */
static void run_lossy(uint32_t seed)
{
    cluster c;
    cluster_init(&c, 3, 2);
    c.random = seed;
    c.loss = c.twice = 20;
    for (int i = 0; i < 3; i++) {
        start_worker(&c, i, i);
        run(&c, chance(&c, 50) ? 700 : 0);
    }
    start_server(&c, 3);
    start_server(&c, 4);
    run(&c, 20000);
    for (int turn = 1; turn <= 3; turn++) {
        for (int i = 0; i < 3; i++)
            c.nodes[i].arriving = (uint64_t)turn;
        run(&c, 10000);
        for (int i = 0; i < 3; i++)
            assert_true(c.nodes[i].released == (uint64_t)turn);
    }
    for (int turn = 0; turn < 20; turn++) {
        for (int i = 0; i < 3; i++)
            declare(&c, i, turn % 2 ? "x" : "y", 10);
        run(&c, 500);
    }
    run(&c, 10000);
    for (int i = 0; i < 3; i++)
        assert_true(c.nodes[i].m.placed_version == 2);
    for (int i = 0; i < 3; i++) {
        tly_membership_leave(&c.nodes[i].m, 60000, c.now);
        run(&c, 3000);
    }
    run(&c, 30000);
    check_done(&c, 0, NULL);
    for (int i = 0; i < 3; i++)
        assert_int_equal(c.nodes[i].m.state, TLY_MEMBER_LEFT);
    cluster_fini(&c);
}

static void lost_and_repeated_messages_change_nothing(void **state)
{
    (void)state;
    for (uint32_t seed = 1; seed <= 40; seed++) {
        print_message("seed %u\r", seed); /* the last one shown is the one that fails */
        run_lossy(seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_epoch_comes_when_all_are_there_in_any_order),
        cmocka_unit_test(while_waiting_a_line_every_5_s_says_who_is_missing),
        cmocka_unit_test(too_few_within_the_start_limit_fail_with_the_missing_named),
        cmocka_unit_test(a_node_that_leaves_or_goes_silent_before_the_start_may_be_replaced),
        cmocka_unit_test(who_does_not_fit_is_refused_with_both_values_and_disturbs_nobody),
        cmocka_unit_test(a_servers_endpoints_must_be_there_whole_and_its_own),
        cmocka_unit_test(other_wire_versions_and_other_jobs_are_kept_out),
        cmocka_unit_test(a_stranger_is_answered_without_the_jobs_number),
        cmocka_unit_test(a_death_is_known_to_all_within_the_limit_in_the_same_words),
        cmocka_unit_test(a_failed_job_is_over_without_goodbyes_too),
        cmocka_unit_test(who_missed_the_failure_hears_it_at_its_next_beat),
        cmocka_unit_test(a_node_that_never_hears_of_the_failure_is_waited_for_no_longer_than_the_limit),
        cmocka_unit_test(a_stopped_and_resumed_scheduler_declares_nobody_dead),
        cmocka_unit_test(a_new_process_in_the_place_of_a_silent_one_waits_and_gets_the_failure),
        cmocka_unit_test(a_process_that_waits_for_a_seat_hears_of_the_failure_without_asking_again),
        cmocka_unit_test(an_unreachable_node_that_beats_fails_the_job_in_the_reporters_words),
        cmocka_unit_test(the_first_failure_is_everybodys_and_every_later_register_gets_it),
        cmocka_unit_test(a_server_that_leaves_early_fails_the_job),
        cmocka_unit_test(workers_leave_one_by_one_and_then_the_servers_end),
        cmocka_unit_test(a_server_that_does_not_leave_holds_up_the_end_for_2_s),
        cmocka_unit_test(a_signal_while_only_servers_are_left_is_no_failure),
        cmocka_unit_test(a_barrier_opens_when_the_last_worker_arrives_and_answers_repeats),
        cmocka_unit_test(a_worker_that_left_before_the_barrier_never_opens_it),
        cmocka_unit_test(a_worker_that_arrived_and_left_does_not_hold_the_others),
        cmocka_unit_test(all_workers_get_one_table_and_servers_none),
        cmocka_unit_test(a_lost_placement_comes_again_with_the_beats_and_with_a_new_connection),
        cmocka_unit_test(nonsense_declarations_are_ignored_with_one_warning_a_minute),
        cmocka_unit_test(sixteen_workers_declare_a_thousand_tensors_each),
        cmocka_unit_test(lost_and_repeated_messages_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
