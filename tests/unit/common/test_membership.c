#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/membership.h"

#define JOB 0x1234u
#define EPOCH (1ull << 32 | 1)
#define SCHEDULER "tcp://10.0.0.1:9000"

/* ---- one node, and what it says and logs ---- */

typedef struct node {
    tly_config config;
    tly_log log;
    tly_membership m;
    tly_time now;
    int lines;
    char line[2048]; /* the last one logged */
    int sent[TLY_CTL_TYPE_END];
    uint64_t placed_version; /* in its last BEAT or REGISTER */
    char text[TLY_SENTENCE_MAX]; /* in its last FAIL */
} node;

static void take_line(void *arg, tally_log_level level, const char *line)
{
    (void)level;
    node *n = arg;
    n->lines++;
    snprintf(n->line, sizeof n->line, "%s", line);
}

static void node_init(node *n, tly_role role)
{
    static const char *const endpoints[] = { "tcp://10.0.0.9:5000" };
    memset(n, 0, sizeof *n);
    n->config = (tly_config){ .role = role, .num_worker = 2, .num_server = 1, .worker_id = 1, .local_size = 1,
                              .death_limit_ms = 10000, .start_limit_ms = 120000 };
    n->log = (tly_log){ .level = TALLY_LOG_WARN, .sink = take_line, .sink_arg = n };
    n->now = 1000;
    assert_int_equal(tly_membership_init(&n->m, &n->config, &n->log, role, 42, SCHEDULER, "b:2",
                                         role == TLY_ROLE_SERVER, endpoints, n->now),
                     TALLY_OK);
}

/* Count what it wants sent. */
static void drain(node *n)
{
    for (tly_out *out; (out = tly_out_pop(&n->m.out));) {
        tly_ctl m;
        assert_int_equal(tly_ctl_decode(out->head, out->head_len_bytes, &m), TALLY_OK);
        assert_int_equal(m.job, n->m.job);
        assert_true(m.epoch == n->m.epoch);
        assert_int_equal(m.sender, n->m.id);
        n->sent[m.type]++;
        if (m.type == TLY_CTL_BEAT)
            n->placed_version = m.beat.placed_version;
        if (m.type == TLY_CTL_REGISTER) {
            n->placed_version = m.reg.placed_version;
            assert_true(m.reg.nonce == 42);
            assert_string_equal(m.reg.host, "b:2");
            assert_int_equal(m.reg.num_worker, 2);
            assert_int_equal(m.reg.num_server, 1);
        }
        if (m.type == TLY_CTL_FAIL)
            snprintf(n->text, sizeof n->text, "%s", m.text);
        tly_ctl_fini(&m);
        tly_out_free(out);
    }
}

/* Time goes on without a word from the scheduler. */
static void pass(node *n, int64_t for_ms)
{
    tly_time end = n->now + for_ms;
    for (;;) {
        tly_time due = tly_membership_tick(&n->m, n->now);
        drain(n);
        assert_true(due > n->now);
        if (due > end)
            break;
        n->now = due;
    }
    n->now = end;
}

static bool hear(node *n, tly_ctl message)
{
    if (!message.job)
        message.job = JOB;
    if (!message.epoch)
        message.epoch = EPOCH;
    tly_out *out = tly_ctl_out(&message);
    tly_ctl m;
    assert_int_equal(tly_ctl_decode(out->head, out->head_len_bytes, &m), TALLY_OK);
    bool wanted = tly_membership_message(&n->m, &m, n->now);
    tly_ctl_fini(&m);
    tly_out_free(out); /* nothing may point into the frame any more */
    return wanted;
}

/* The scheduler beats for a while. */
static void live(node *n, int64_t for_ms)
{
    for (tly_time end = n->now + for_ms; n->now < end;) {
        pass(n, 500);
        hear(n, (tly_ctl){ .type = TLY_CTL_BEAT });
    }
}

static tly_ctl epoch_message(tly_role role)
{
    static const char *const endpoints[] = { "tcp://10.0.0.9:5000" };
    static const tly_node workers[] = {
        { .id = 11, .rank = 0, .local_size = 1, .host = "a:1" },
        { .id = 12, .rank = 1, .local_size = 1, .host = "b:2" },
    };
    static const tly_node servers[] = {
        { .id = 13, .rank = 0, .host = "c:3", .endpoint_count = 1, .endpoints = endpoints },
    };
    return (tly_ctl){
        .type = TLY_CTL_EPOCH,
        .epoch_info = { .id = role == TLY_ROLE_WORKER ? 12 : 13, .rank = role == TLY_ROLE_WORKER ? 1 : 0,
                        .worker_count = 2, .server_count = 1, .workers = workers, .servers = servers },
    };
}

static void join(node *n, tly_role role)
{
    node_init(n, role);
    drain(n);
    assert_true(hear(n, epoch_message(role)));
    assert_int_equal(n->m.state, TLY_MEMBER_IN);
    drain(n);
}

/* ---- joining ---- */

static void an_epoch_makes_it_a_member_that_owns_the_roster(void **state)
{
    (void)state;
    node n;
    node_init(&n, TLY_ROLE_WORKER);
    drain(&n);
    assert_int_equal(n.sent[TLY_CTL_REGISTER], 1);
    assert_true(hear(&n, epoch_message(TLY_ROLE_WORKER)));
    assert_int_equal(n.m.state, TLY_MEMBER_IN);
    assert_int_equal(n.m.job, JOB);
    assert_int_equal(n.m.id, 12);
    assert_int_equal(n.m.rank, 1);
    assert_true(n.m.epoch == EPOCH);
    assert_int_equal(n.m.worker_count, 2);
    assert_string_equal(n.m.workers[0].host, "a:1");
    assert_int_equal(n.m.server_count, 1);
    assert_string_equal(n.m.servers[0].endpoints[0], "tcp://10.0.0.9:5000");
    assert_false(hear(&n, epoch_message(TLY_ROLE_WORKER))); /* a repeat */
    tly_membership_fini(&n.m);
}

static void an_epoch_that_does_not_list_it_changes_nothing(void **state)
{
    (void)state;
    node n;
    node_init(&n, TLY_ROLE_WORKER);
    tly_ctl m = epoch_message(TLY_ROLE_WORKER);
    m.epoch_info.rank = 2;
    assert_false(hear(&n, m));
    m = epoch_message(TLY_ROLE_WORKER);
    m.epoch_info.id = 11;
    assert_false(hear(&n, m));
    m = epoch_message(TLY_ROLE_WORKER);
    m.epoch_info.id = 0;
    assert_false(hear(&n, m));
    assert_int_equal(n.m.state, TLY_MEMBER_JOINING);
    assert_int_equal(n.m.job, 0);
    tly_membership_fini(&n.m);
}

static void register_is_repeated_every_second_until_the_epoch(void **state)
{
    (void)state;
    node n;
    node_init(&n, TLY_ROLE_SERVER);
    pass(&n, 4900);
    assert_int_equal(n.sent[TLY_CTL_REGISTER], 5);
    hear(&n, epoch_message(TLY_ROLE_SERVER));
    live(&n, 3000);
    assert_int_equal(n.sent[TLY_CTL_REGISTER], 5);
    assert_true(n.sent[TLY_CTL_BEAT] >= 3);
    tly_membership_fini(&n.m);
}

static void every_5_s_one_line_says_what_it_waits_for(void **state)
{
    (void)state;
    node n;
    node_init(&n, TLY_ROLE_WORKER);
    snprintf(n.m.trouble, sizeof n.m.trouble, "Connection refused");
    pass(&n, 4999);
    assert_int_equal(n.lines, 0);
    pass(&n, 1);
    assert_int_equal(n.lines, 1);
    assert_non_null(strstr(n.line, "waiting for the scheduler at " SCHEDULER ": Connection refused"));
    hear(&n, (tly_ctl){ .type = TLY_CTL_WAITING, .text = "waiting for 1 of 2 workers (worker 0)" });
    pass(&n, 5000);
    assert_int_equal(n.lines, 2);
    assert_non_null(strstr(n.line, "waiting for 1 of 2 workers (worker 0)"));
    tly_membership_fini(&n.m);
}

static void without_any_answer_the_start_limit_ends_it_with_the_reason(void **state)
{
    (void)state;
    node n;
    node_init(&n, TLY_ROLE_WORKER);
    snprintf(n.m.trouble, sizeof n.m.trouble, "Connection refused");
    pass(&n, 119999);
    assert_int_equal(n.m.state, TLY_MEMBER_JOINING);
    pass(&n, 1);
    assert_int_equal(n.m.state, TLY_MEMBER_FAILED);
    assert_int_equal(n.m.failure_status, TALLY_ETIMEDOUT);
    assert_string_equal(n.m.failure, "no answer from the scheduler at " SCHEDULER
                                     " within 120 s (TALLY_START_LIMIT_MS): Connection refused");
    assert_true(tly_membership_tick(&n.m, n.now) == TLY_NEVER);
    tly_membership_fini(&n.m);
}

static void a_scheduler_that_answers_is_waited_for_beyond_the_start_limit(void **state)
{
    (void)state;
    node n;
    node_init(&n, TLY_ROLE_WORKER);
    for (int i = 0; i < 300; i++) {
        hear(&n, (tly_ctl){ .type = TLY_CTL_WAITING, .text = "waiting" });
        pass(&n, 1000);
    }
    assert_int_equal(n.m.state, TLY_MEMBER_JOINING);
    tly_membership_fini(&n.m);
}

static void a_refusal_ends_it_with_the_schedulers_words(void **state)
{
    (void)state;
    node n;
    node_init(&n, TLY_ROLE_WORKER);
    assert_true(hear(&n, (tly_ctl){ .type = TLY_CTL_REFUSED, .status = TALLY_EREFUSED, .text = "not you" }));
    assert_int_equal(n.m.state, TLY_MEMBER_FAILED);
    assert_int_equal(n.m.failure_status, TALLY_EREFUSED);
    assert_string_equal(n.m.failure, "not you");
    tly_membership_fini(&n.m);
}

static void a_failure_while_joining_keeps_its_status(void **state)
{
    (void)state;
    node n;
    node_init(&n, TLY_ROLE_WORKER);
    assert_true(hear(&n, (tly_ctl){ .type = TLY_CTL_FAIL, .status = TALLY_ETIMEDOUT, .text = "too few" }));
    assert_int_equal(n.m.failure_status, TALLY_ETIMEDOUT);
    assert_string_equal(n.m.failure, "too few");
    tly_membership_fini(&n.m);
}

static void before_the_epoch_a_new_scheduler_may_take_the_place_of_the_old(void **state)
{
    (void)state;
    node n;
    node_init(&n, TLY_ROLE_WORKER);
    hear(&n, (tly_ctl){ .type = TLY_CTL_WAITING, .job = 77, .text = "waiting" });
    assert_true(hear(&n, epoch_message(TLY_ROLE_WORKER)));
    assert_int_equal(n.m.job, JOB);
    tly_membership_fini(&n.m);
}

/* ---- in ---- */

static void a_silent_scheduler_is_dead_within_the_limit(void **state)
{
    (void)state;
    node n;
    join(&n, TLY_ROLE_WORKER);
    live(&n, 5000);
    pass(&n, 8999);
    assert_int_equal(n.m.state, TLY_MEMBER_IN);
    pass(&n, 1);
    assert_int_equal(n.m.state, TLY_MEMBER_FAILED);
    assert_int_equal(n.m.failure_status, TALLY_EFAILED);
    assert_string_equal(n.m.failure, "the scheduler (" SCHEDULER
                                     ") died: nothing heard from it for 10 s (TALLY_DEATH_LIMIT_MS)");
    tly_membership_fini(&n.m);
}

static void the_schedulers_death_limit_counts_for_all(void **state)
{
    (void)state;
    node n;
    node_init(&n, TLY_ROLE_WORKER);
    drain(&n);
    tly_ctl m = epoch_message(TLY_ROLE_WORKER);
    m.epoch_info.death_limit_ms = 500;
    assert_true(hear(&n, m));
    drain(&n);
    pass(&n, 149);
    assert_int_equal(n.sent[TLY_CTL_BEAT], 3);
    pass(&n, 301);
    assert_int_equal(n.m.state, TLY_MEMBER_FAILED);
    assert_string_equal(n.m.failure, "the scheduler (" SCHEDULER
                                     ") died: nothing heard from it for 500 ms (TALLY_DEATH_LIMIT_MS)");
    tly_membership_fini(&n.m);
}

static void another_jobs_scheduler_is_not_heard(void **state)
{
    (void)state;
    node n;
    join(&n, TLY_ROLE_WORKER);
    for (int i = 0; i < 9; i++) {
        pass(&n, 1000);
        assert_false(hear(&n, (tly_ctl){ .type = TLY_CTL_FAIL, .job = 77, .text = "not ours" }));
    }
    assert_int_equal(n.m.state, TLY_MEMBER_FAILED);
    assert_non_null(strstr(n.m.failure, ") died: nothing heard from it"));
    tly_membership_fini(&n.m);
}

static void after_a_pause_it_reads_before_it_decides(void **state)
{
    (void)state;
    node n;
    join(&n, TLY_ROLE_WORKER);
    live(&n, 2000);
    n.now += 60000; /* stopped for a minute */
    assert_true(tly_membership_tick(&n.m, n.now) < TLY_NEVER);
    assert_int_equal(n.m.state, TLY_MEMBER_IN);
    hear(&n, (tly_ctl){ .type = TLY_CTL_BEAT });
    live(&n, 20000);
    assert_int_equal(n.m.state, TLY_MEMBER_IN);
    n.now += 60000;
    pass(&n, 2499);
    assert_int_equal(n.m.state, TLY_MEMBER_IN);
    pass(&n, 1);
    assert_int_equal(n.m.state, TLY_MEMBER_FAILED);
    tly_membership_fini(&n.m);
}

static void when_doubting_its_connection_it_registers_again(void **state)
{
    (void)state;
    node n;
    join(&n, TLY_ROLE_WORKER);
    n.m.placed_version = 5;
    pass(&n, 2900);
    assert_int_equal(n.sent[TLY_CTL_REGISTER], 1);
    assert_int_equal(n.sent[TLY_CTL_BEAT], 3);
    assert_true(n.placed_version == 5);
    pass(&n, 2000);
    assert_int_equal(n.sent[TLY_CTL_REGISTER], 2);
    tly_membership_reconnected(&n.m, n.now);
    drain(&n);
    assert_int_equal(n.sent[TLY_CTL_REGISTER], 3);
    tly_membership_fini(&n.m);
}

static void the_owner_gets_what_is_its_and_nothing_else(void **state)
{
    (void)state;
    node n;
    join(&n, TLY_ROLE_WORKER);
    assert_true(hear(&n, (tly_ctl){ .type = TLY_CTL_PLACED }));
    assert_true(hear(&n, (tly_ctl){ .type = TLY_CTL_BARRIER, .barrier = { .seq = 1 } }));
    assert_true(hear(&n, (tly_ctl){ .type = TLY_CTL_LEFT, .peer = 11, .rank = 0 }));
    assert_true(hear(&n, (tly_ctl){ .type = TLY_CTL_WAITING, .barrier = { .seq = 1 }, .text = "w" }));
    assert_false(hear(&n, (tly_ctl){ .type = TLY_CTL_WAITING, .text = "w" }));
    assert_false(hear(&n, (tly_ctl){ .type = TLY_CTL_PLACED, .epoch = EPOCH + 1 }));
    assert_false(hear(&n, (tly_ctl){ .type = TLY_CTL_BEAT }));
    assert_false(hear(&n, (tly_ctl){ .type = TLY_CTL_LEFT, .peer = 12, .rank = 1 }));
    assert_false(hear(&n, (tly_ctl){ .type = TLY_CTL_END }));
    assert_false(hear(&n, (tly_ctl){ .type = TLY_CTL_REFUSED, .text = "late" }));
    assert_false(hear(&n, (tly_ctl){ .type = TLY_CTL_BEAT, .sender = 11 })); /* not the scheduler */
    assert_int_equal(n.m.state, TLY_MEMBER_IN);
    tly_membership_fini(&n.m);
}

static void what_it_reports_is_said_once_and_repeated_until_the_failure_comes_back(void **state)
{
    (void)state;
    node n;
    join(&n, TLY_ROLE_SERVER);
    tly_membership_fail(&n.m, TALLY_EFAILED, "no more memory");
    tly_membership_fail(&n.m, TALLY_EFAILED, "another");
    drain(&n);
    assert_int_equal(n.sent[TLY_CTL_FAIL], 1);
    assert_string_equal(n.text, "no more memory");
    assert_int_equal(n.m.state, TLY_MEMBER_IN);
    tly_membership_reconnected(&n.m, n.now);
    drain(&n);
    assert_int_equal(n.sent[TLY_CTL_FAIL], 2);
    hear(&n, (tly_ctl){ .type = TLY_CTL_FAIL, .status = TALLY_EFAILED, .text = "no more memory" });
    assert_int_equal(n.m.state, TLY_MEMBER_FAILED);
    tly_membership_fail(&n.m, TALLY_EFAILED, "late");
    tly_membership_fail_here(&n.m, TALLY_EVERSION, "later");
    assert_false(hear(&n, (tly_ctl){ .type = TLY_CTL_FAIL, .text = "latest" }));
    assert_true(tly_membership_tick(&n.m, n.now) == TLY_NEVER);
    drain(&n);
    assert_int_equal(n.sent[TLY_CTL_FAIL], 2);
    assert_int_equal(n.m.failure_status, TALLY_EFAILED);
    assert_string_equal(n.m.failure, "no more memory");
    tly_membership_leave(&n.m, 100, n.now);
    drain(&n);
    assert_int_equal(n.sent[TLY_CTL_LEAVE], 1);
    assert_int_equal(n.m.state, TLY_MEMBER_FAILED);
    tly_membership_fini(&n.m);
}

/* ---- leaving ---- */

static void leaving_ends_when_the_scheduler_knows(void **state)
{
    (void)state;
    node n;
    join(&n, TLY_ROLE_WORKER);
    tly_membership_leave(&n.m, 5000, n.now);
    assert_int_equal(n.m.state, TLY_MEMBER_LEAVING);
    pass(&n, 2500);
    assert_int_equal(n.sent[TLY_CTL_LEAVE], 3);
    assert_false(hear(&n, (tly_ctl){ .type = TLY_CTL_LEFT, .peer = 11, .rank = 0 }));
    assert_int_equal(n.m.state, TLY_MEMBER_LEAVING);
    hear(&n, (tly_ctl){ .type = TLY_CTL_LEFT, .peer = 12, .rank = 1 });
    assert_int_equal(n.m.state, TLY_MEMBER_LEFT);
    assert_true(tly_membership_tick(&n.m, n.now) == TLY_NEVER);
    tly_membership_fini(&n.m);
}

static void leaving_ends_at_its_limit_when_the_scheduler_is_silent(void **state)
{
    (void)state;
    node n;
    join(&n, TLY_ROLE_WORKER);
    tly_membership_leave(&n.m, 5000, n.now);
    pass(&n, 4999);
    assert_int_equal(n.m.state, TLY_MEMBER_LEAVING);
    pass(&n, 1);
    assert_int_equal(n.m.state, TLY_MEMBER_LEFT);
    tly_membership_fini(&n.m);
}

static void who_was_never_answered_has_left_at_once(void **state)
{
    (void)state;
    node n;
    node_init(&n, TLY_ROLE_WORKER);
    tly_membership_leave(&n.m, 5000, n.now);
    assert_int_equal(n.m.state, TLY_MEMBER_LEFT);
    tly_membership_fini(&n.m);
}

static void a_failure_ends_the_leaving(void **state)
{
    (void)state;
    node n;
    join(&n, TLY_ROLE_WORKER);
    tly_membership_leave(&n.m, 5000, n.now);
    hear(&n, (tly_ctl){ .type = TLY_CTL_FAIL, .text = "failed" });
    assert_int_equal(n.m.state, TLY_MEMBER_LEFT);
    tly_membership_fini(&n.m);
}

static void a_server_ends_and_leaves_when_all_workers_have_left(void **state)
{
    (void)state;
    node n;
    join(&n, TLY_ROLE_SERVER);
    assert_true(hear(&n, (tly_ctl){ .type = TLY_CTL_END }));
    assert_int_equal(n.m.state, TLY_MEMBER_ENDED);
    assert_false(hear(&n, (tly_ctl){ .type = TLY_CTL_END }));
    pass(&n, 30000); /* a scheduler that has gone is no failure any more */
    assert_int_equal(n.m.state, TLY_MEMBER_ENDED);
    tly_membership_leave(&n.m, 1000, n.now);
    assert_int_equal(n.m.state, TLY_MEMBER_LEAVING);
    hear(&n, (tly_ctl){ .type = TLY_CTL_LEFT, .peer = 13 });
    assert_int_equal(n.m.state, TLY_MEMBER_LEFT);
    tly_membership_fini(&n.m);
}

static void fini_accepts_a_zeroed_object(void **state)
{
    (void)state;
    tly_membership m;
    memset(&m, 0, sizeof m);
    tly_membership_fini(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_epoch_makes_it_a_member_that_owns_the_roster),
        cmocka_unit_test(an_epoch_that_does_not_list_it_changes_nothing),
        cmocka_unit_test(register_is_repeated_every_second_until_the_epoch),
        cmocka_unit_test(every_5_s_one_line_says_what_it_waits_for),
        cmocka_unit_test(without_any_answer_the_start_limit_ends_it_with_the_reason),
        cmocka_unit_test(a_scheduler_that_answers_is_waited_for_beyond_the_start_limit),
        cmocka_unit_test(a_refusal_ends_it_with_the_schedulers_words),
        cmocka_unit_test(a_failure_while_joining_keeps_its_status),
        cmocka_unit_test(before_the_epoch_a_new_scheduler_may_take_the_place_of_the_old),
        cmocka_unit_test(a_silent_scheduler_is_dead_within_the_limit),
        cmocka_unit_test(the_schedulers_death_limit_counts_for_all),
        cmocka_unit_test(another_jobs_scheduler_is_not_heard),
        cmocka_unit_test(after_a_pause_it_reads_before_it_decides),
        cmocka_unit_test(when_doubting_its_connection_it_registers_again),
        cmocka_unit_test(the_owner_gets_what_is_its_and_nothing_else),
        cmocka_unit_test(what_it_reports_is_said_once_and_repeated_until_the_failure_comes_back),
        cmocka_unit_test(leaving_ends_when_the_scheduler_knows),
        cmocka_unit_test(leaving_ends_at_its_limit_when_the_scheduler_is_silent),
        cmocka_unit_test(who_was_never_answered_has_left_at_once),
        cmocka_unit_test(a_failure_ends_the_leaving),
        cmocka_unit_test(a_server_ends_and_leaves_when_all_workers_have_left),
        cmocka_unit_test(fini_accepts_a_zeroed_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
