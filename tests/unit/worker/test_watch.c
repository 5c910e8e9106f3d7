#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/bench.h"

/* ---- acknowledgements ---- */

/* Finish one round of a tensor of 4 bytes on link 0 without an acknowledgement. */
static void one_round(bench *b, tly_tensor *t, uint64_t round)
{
    float in = 1, out = 0, sum = 3;
    tly_exchange x;
    bench_issue(b, &x, t, &in, &out, 0);
    bench_run(b);
    bench_result(b, 0, t, 0, round, &sum, 4);
    bench_ended_well(b, &x);
    bench_forget(b);
}

static void an_ack_is_sent_only_when_no_push_has_brought_it_for_a_while(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    tly_tensor *t = bench_tensor_f32(b, 1, 0);
    one_round(b, t, 1);
    assert_true(bench_run(b) == b->now + TLY_SETTLE_MS);
    assert_int_equal(bench_count_of(b, 0, TLY_ACK), 0);
    one_round(b, t, 2); /* its PUSH has said acked 1 */
    b->now += TLY_SETTLE_MS - 1;
    assert_true(bench_run(b) == b->now + 1);
    assert_int_equal(bench_count_of(b, 0, TLY_ACK), 0);
    b->now++;
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_ACK), 1);
    assert_true(bench_nth(b, 0, TLY_ACK, 0)->header.acked == 2);
    assert_int_equal(bench_count_of(b, 1, TLY_ACK), 0);
    b->now += 10 * TLY_SETTLE_MS;
    assert_true(bench_run(b) == TLY_NEVER); /* and an idle worker wakes no more */
    assert_int_equal(bench_count_of(b, LINKS, TLY_ACK), 1);
    bench_destroy(b);
}

static void an_ack_is_sent_at_once_when_many_bytes_are_unsaid(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    static float in[PARTITION / 4], out[PARTITION / 4];
    tly_exchange x;
    tly_tensor *big = bench_tensor_f32(b, PARTITION / 4, 0);
    uint64_t rounds = TLY_SETTLE_BYTES / PARTITION;
    for (uint64_t round = 1; round <= rounds; round++) {
        bench_issue(b, &x, big, in, out, 0);
        tly_pipeline_run(b->pipeline, b->now);
        bench_let_go(b);
        bench_result(b, 0, big, 0, round, in, PARTITION);
        bench_ended_well(b, &x);
    }
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_ACK), 0); /* the PUSHes have said all but the last */
    bench_destroy(b);

    /* Without PUSHes: results that a lost connection brings all at once. */
    b = bench_ready_all();
    static tly_exchange xs[TLY_SETTLE_BYTES / PARTITION];
    static tly_tensor *ts[TLY_SETTLE_BYTES / PARTITION];
    for (uint64_t i = 0; i < rounds; i++) {
        bench_issue(b, &xs[i], ts[i] = bench_tensor_f32(b, PARTITION / 4, 0), in, out, 0);
        tly_pipeline_run(b->pipeline, b->now);
        bench_let_go(b);
        bench_received(b, 0, i + 1);
    }
    for (uint64_t i = 0; i < rounds; i++) {
        bench_run(b);
        assert_int_equal(bench_count_of(b, 0, TLY_ACK), 0);
        bench_result(b, 0, ts[i], 0, 1, in, PARTITION);
    }
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_ACK), 1);
    assert_true(bench_nth(b, 0, TLY_ACK, 0)->header.acked == rounds);
    bench_destroy(b);
}

static void in_a_hurry_an_ack_is_sent_at_once_and_all_is_settled_when_it_is_stable(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    tly_tensor *t = bench_tensor_f32(b, 1, 0);
    assert_true(tly_pipeline_settled(b->pipeline));
    one_round(b, t, 1);
    tly_pipeline_hurry(b->pipeline);
    assert_false(tly_pipeline_settled(b->pipeline));
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_ACK), 1);
    assert_false(tly_pipeline_settled(b->pipeline)); /* another worker may still lack it */
    b->stable = 1;
    bench_hear(b, 0, &(tly_record){ .type = TLY_STABLE }, 1, NULL);
    assert_true(tly_pipeline_settled(b->pipeline));
    bench_destroy(b);
}

static void a_result_is_kept_until_it_is_stable(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out, sum = 3;
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, 1, 0);
    tly_buf *bodies[2];
    for (uint64_t round = 1; round <= 2; round++) {
        bench_issue(b, &x, t, &in, &out, 0);
        bench_run(b);
        bodies[round - 1] = bench_bytes_of(&sum, 4);
        tly_record record = bench_result_record(b, 0, t, 0, round, 4);
        b->stable = round - 1;
        bench_hear(b, 0, &record, 1, tly_buf_get(bodies[round - 1]));
        bench_ended_well(b, &x);
    }
    assert_int_equal(bodies[0]->refs, 1); /* the second RESULT said stable 1 */
    assert_int_equal(bodies[1]->refs, 2);
    b->stable = 7; /* more than this worker has itself: nonsense */
    bench_hear(b, 0, &(tly_record){ .type = TLY_STABLE }, 1, NULL);
    assert_int_equal(bodies[1]->refs, 2);
    b->stable = 2;
    bench_hear(b, 0, &(tly_record){ .type = TLY_STABLE }, 1, NULL);
    assert_int_equal(bodies[1]->refs, 1);
    tly_buf_put(bodies[0]);
    tly_buf_put(bodies[1]);
    bench_destroy(b);
}

/* ---- silence ---- */

static void a_silent_shard_is_probed_while_something_is_awaited_ever_more_seldom(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out = 0;
    tly_exchange x;
    bench_issue(b, &x, bench_tensor_f32(b, 1, 0), &in, &out, 0);
    bench_run(b);
    int wait_ms = TLY_LINK_PROBE_MS;
    for (uint32_t probes = 1; probes <= 6; probes++) {
        b->now += wait_ms - 1;
        bench_run(b);
        assert_int_equal(bench_count_of(b, 0, TLY_HELLO), probes - 1);
        b->now++;
        bench_run(b);
        assert_int_equal(bench_count_of(b, 0, TLY_HELLO), probes);
        bench_ready(
            b, 0, 0,
            &(tly_record){ .type = TLY_KEY, .tensor = 0, .round = 0, .seq = 1, .flags = TLY_FLAG_IN });
        wait_ms = 2 * wait_ms < TLY_LINK_PROBE_MAX_MS ? 2 * wait_ms : TLY_LINK_PROBE_MAX_MS;
    }
    assert_int_equal(bench_count_of(b, 1, TLY_HELLO), 0);
    bench_destroy(b);
}

static void a_shard_of_which_nothing_is_awaited_is_not_probed(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    one_round(b, bench_tensor_f32(b, 1, 0), 1);
    b->now += 100 * TLY_LINK_PROBE_MAX_MS;
    bench_run(b);
    b->now += 100 * TLY_LINK_PROBE_MAX_MS;
    bench_run(b);
    assert_int_equal(bench_count_of(b, LINKS, TLY_HELLO), 0);
    bench_destroy(b);
}

static void a_result_makes_the_next_probe_soon_again(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out[2], sum = 3;
    tly_exchange x, y;
    tly_tensor *t = bench_tensor_f32(b, 1, 0);
    bench_issue(b, &x, t, &in, &out[0], 0);
    bench_issue(b, &y, bench_tensor_f32(b, 1, 0), &in, &out[1], 0);
    bench_run(b);
    b->now += TLY_LINK_PROBE_MS;
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_HELLO), 1);
    tly_record records[3] = { { .type = TLY_READY },
                              bench_key_record(0, 0, 1, true),
                              bench_key_record(1, 0, 1, true) };
    bench_hear(b, 0, records, 3, NULL);
    bench_result(b, 0, t, 0, 1, &sum, 4);
    bench_ended_well(b, &x);
    b->now += TLY_LINK_PROBE_MS;
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_HELLO), 2);
    bench_destroy(b);
}

static void a_hello_that_is_not_answered_is_said_again_with_resend(void **state)
{
    (void)state;
    bench *b = bench_prepare();
    assert_true(bench_join(b));
    for (uint32_t link = 0; link < LINKS; link++)
        tly_pipeline_connected(b->pipeline, link, b->now);
    bench_forget(b);
    b->now += TLY_LINK_PROBE_MS;
    bench_run(b);
    for (uint32_t link = 0; link < LINKS; link++) {
        assert_int_equal(bench_nth(b, link, TLY_HELLO, 0)->record.flags, TLY_FLAG_RESEND);
        assert_int_equal(bench_nth(b, link, TLY_HELLO, 0)->header.session, 2);
    }
    bench_destroy(b);
}

static void a_connection_that_is_down_is_not_probed(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out = 0;
    tly_exchange x;
    bench_issue(b, &x, bench_tensor_f32(b, 1, 0), &in, &out, 0);
    bench_run(b);
    tly_pipeline_reconnect(b->pipeline, 0, b->now);
    bench_forget(b);
    b->now += TLY_LINK_PROBE_MS;
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_HELLO), 0); /* what was queued waits in the socket */
    bench_destroy(b);
}

static void a_server_that_cannot_be_reached_is_reported_with_both_ends_and_the_trouble(void **state)
{
    (void)state;
    bench *b = bench_prepare();
    assert_true(bench_join(b));
    tly_pipeline_connected(b->pipeline, 0, b->now);
    tly_pipeline_connected(b->pipeline, 1, b->now);
    bench_ready(b, 0, 0, NULL);
    bench_ready(b, 1, 0, NULL);
    tly_pipeline_trouble(b->pipeline, 2, "Connection refused");
    b->now += 7999; /* four fifths of the death limit, less 1 ms */
    bench_run(b);
    assert_null(bench_control_of(b, TLY_CTL_UNREACHABLE, 0));
    b->now++;
    bench_run(b);
    const tly_ctl *c = bench_control_of(b, TLY_CTL_UNREACHABLE, 0);
    assert_non_null(c);
    assert_int_equal(c->peer, 22);
    assert_int_equal(c->sender, MY_ID);
    assert_string_equal(c->text,
                        "worker 1 (me:2) cannot reach server 1 (s:5) at tcp://10.0.0.2:1000 within 8 s: "
                        "Connection refused");
    assert_null(bench_control_of(b, TLY_CTL_UNREACHABLE, 1)); /* the others are up */
    b->now += 999;
    bench_run(b);
    assert_null(bench_control_of(b, TLY_CTL_UNREACHABLE, 1));
    b->now++;
    bench_run(b);
    assert_non_null(
        bench_control_of(b, TLY_CTL_UNREACHABLE, 1)); /* a message may be lost: again every second */
    tly_pipeline_connected(b->pipeline, 2, b->now);
    b->now += 100000;
    bench_forget(b);
    bench_run(b);
    assert_null(bench_control_of(b, TLY_CTL_UNREACHABLE, 0));
    bench_destroy(b);
}

static void the_time_without_a_connection_counts_from_its_break(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    b->now += 50000;
    tly_pipeline_reconnect(b->pipeline, 0, b->now);
    b->now += 7000;
    tly_pipeline_reconnect(b->pipeline, 0, b->now); /* a second try that fails is no new beginning */
    b->now += 999;
    bench_run(b);
    assert_null(bench_control_of(b, TLY_CTL_UNREACHABLE, 0));
    b->now++;
    bench_run(b);
    assert_non_null(bench_control_of(b, TLY_CTL_UNREACHABLE, 0));
    bench_destroy(b);
}

/* ---- stalls ---- */

/* Time passes in steps as a shell would let it, the shards answering nothing but that they live. */
static void pass(bench *b, tly_time ms)
{
    for (tly_time end = b->now + ms; b->now < end;) {
        b->now += 100;
        bench_run(b);
        bench_received(b, 0, 0);
    }
}

static void hear_missing(bench *b, const tly_tensor *t, uint64_t round, const uint8_t *ranks, uint32_t count)
{
    uint8_t body[64] = { 0 };
    for (uint32_t i = 0; i < count; i++)
        body[4 * i] = ranks[i];
    tly_record record = { .type = TLY_MISSING, .tensor = t->id, .partition = 0, .round = round,
                          .len_bytes = 4 * count };
    bench_hear(b, 0, &record, 1, bench_bytes_of(body, 4 * count));
}

static void a_stalled_round_is_asked_about_and_reported_with_who_is_missing(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out = 0, sum = 3;
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, 1, 0);
    bench_issue(b, &x, t, &in, &out, 0);
    pass(b, 9000);
    assert_int_equal(bench_count_of(b, 0, TLY_ASK), 0);
    pass(b, 2500); /* the warning limit, and the time between two looks */
    assert_int_equal(bench_count_of(b, 0, TLY_ASK), 1);
    assert_int_equal(bench_nth(b, 0, TLY_ASK, 0)->record.tensor, t->id);
    assert_true(bench_nth(b, 0, TLY_ASK, 0)->record.round == 1);
    hear_missing(b, t, 1, (const uint8_t[]){ 0, 2 }, 2);
    assert_non_null(strstr(b->lines, "tensor \"t0\" round 1 has waited"));
    assert_non_null(
        strstr(b->lines, " s for worker 0, worker 2; see whether it is stuck or ended its loop early"));
    bench_result(b, 0, t, 0, 1, &sum, 4);
    bench_ended_well(b, &x); /* a slow round is a good one */
    bench_destroy(b);
}

static void a_round_that_stalls_beyond_the_limit_fails_the_job_with_who_is_missing(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out = 0;
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, 1, 0);
    bench_issue(b, &x, t, &in, &out, 0);
    pass(b, 15000);
    hear_missing(b, t, 1, (const uint8_t[]){ 2 }, 1);
    pass(b, 44000);
    assert_null(bench_control_of(b, TLY_CTL_FAIL, 0));
    bench_forget(b);
    pass(b, 20000);
    const tly_ctl *fail = bench_control_of(b, TLY_CTL_FAIL, 0);
    assert_non_null(fail);
    assert_int_equal(fail->status, TALLY_EFAILED);
    assert_string_equal(fail->text, "tensor \"t0\" round 1: worker 2 did not take part within 60 s "
                                    "(TALLY_STALL_LIMIT_MS)");
    assert_null(bench_control_of(b, TLY_CTL_FAIL, 1)); /* said once */
    bench_not_ended(b); /* it ends when the failure comes back from the scheduler */
    tly_pipeline_fail(b->pipeline, TALLY_EFAILED, fail->text);
    bench_ended_with(b, &x, TALLY_EFAILED, fail->text);
    bench_destroy(b);
}

static void a_tensor_that_is_never_placed_fails_the_job_and_says_so(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out = 0;
    tly_exchange x;
    bench_issue(b, &x, bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, 1), &in, &out, 0);
    pass(b, 80000);
    assert_non_null(strstr(b->lines, "tensor \"t0\" has waited 10 s: the scheduler has not placed it"));
    const tly_ctl *fail = bench_control_of(b, TLY_CTL_FAIL, 0);
    assert_non_null(fail);
    assert_string_equal(fail->text, "tensor \"t0\" round 1: the scheduler has not placed it within 60 s "
                                    "(TALLY_STALL_LIMIT_MS)");
    bench_destroy(b);
}

static void a_silent_server_is_named_when_the_limit_passes(void **state)
{
    (void)state;
    bench *b = bench_prepare();
    assert_true(bench_join(b));
    float in = 1, out = 0;
    tly_exchange x;
    bench_issue(b, &x, bench_tensor_f32(b, 1, 0), &in, &out, 0);
    for (int i = 0; i < 700; i++) {
        b->now += 100;
        tly_pipeline_run(b->pipeline, b->now);
        for (tly_out *unsent; (unsent = tly_out_pop(tly_pipeline_out(b->pipeline)));)
            tly_out_free(unsent);
        while (b->membership.out.first) {
            tly_out *message = tly_out_pop(&b->membership.out);
            tly_ctl c;
            assert_int_equal(tly_ctl_decode(message->head, message->head_len_bytes, &c), TALLY_OK);
            if (c.type == TLY_CTL_FAIL)
                assert_string_equal(c.text,
                                    "tensor \"t0\" round 1: no answer from server 0 at tcp://10.0.0.1:1000 "
                                    "within 60 s (TALLY_STALL_LIMIT_MS)");
            tly_ctl_fini(&c);
            tly_out_free(message);
        }
    }
    assert_int_equal(b->membership.said_status, TALLY_EFAILED);
    bench_destroy(b);
}

static void what_waits_behind_others_that_move_has_not_stalled(void **state)
{
    (void)state;
    bench *b = bench_prepare();
    b->config.credit = 1;
    assert_true(bench_join(b));
    tly_pipeline_connected(b->pipeline, 0, b->now);
    bench_ready(b, 0, 0, NULL);
    static float in[PARTITION / 4], out[PARTITION / 4];
    tly_exchange busy, patient;
    tly_tensor *t = bench_tensor_f32(b, PARTITION / 4, 0), *u = bench_tensor_f32(b, PARTITION / 4, 0);
    bench_issue(b, &busy, t, in, out, 1);
    bench_run(b);
    bench_issue(b, &patient, u, in, out, -1);
    for (uint64_t round = 1; round <= 15; round++) { /* 75 s, more than the limit */
        bench_let_go(b);
        pass(b, 5000);
        assert_int_equal(bench_count_of(b, 0, TLY_PUSH), 0); /* no credit */
        bench_result(b, 0, t, 0, round, in, PARTITION);
        bench_ended_well(b, &busy);
        bench_issue(b, &busy, t, in, out, 1);
        bench_run(b);
        assert_int_equal(bench_nth(b, 0, TLY_PUSH, 0)->record.tensor, t->id);
    }
    assert_int_equal(bench_count_of(b, 0, TLY_ASK), 0);
    assert_null(bench_control_of(b, TLY_CTL_FAIL, 0));
    bench_destroy(b);
}

static void a_missing_list_with_ourselves_or_nobody_means_that_something_was_lost(void **state)
{
    (void)state;
    for (int nobody = 0; nobody < 2; nobody++) {
        bench *b = bench_ready_all();
        float in = 1, out = 0;
        tly_exchange x;
        tly_tensor *t = bench_tensor_f32(b, 1, 0);
        bench_issue(b, &x, t, &in, &out, 0);
        bench_run(b);
        bench_forget(b);
        hear_missing(b, t, 2, (const uint8_t[]){ MY_RANK }, 1); /* another round */
        assert_int_equal(bench_count_of(b, 0, TLY_HELLO), 0);
        hear_missing(b, t, 1, (const uint8_t[]){ 0, MY_RANK }, nobody ? 0 : 2);
        assert_int_equal(bench_count_of(b, 0, TLY_HELLO), 1);
        assert_int_equal(bench_nth(b, 0, TLY_HELLO, 0)->record.flags, 0);
        assert_string_equal(b->lines, "");
        bench_destroy(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_ack_is_sent_only_when_no_push_has_brought_it_for_a_while),
        cmocka_unit_test(an_ack_is_sent_at_once_when_many_bytes_are_unsaid),
        cmocka_unit_test(in_a_hurry_an_ack_is_sent_at_once_and_all_is_settled_when_it_is_stable),
        cmocka_unit_test(a_result_is_kept_until_it_is_stable),
        cmocka_unit_test(a_silent_shard_is_probed_while_something_is_awaited_ever_more_seldom),
        cmocka_unit_test(a_shard_of_which_nothing_is_awaited_is_not_probed),
        cmocka_unit_test(a_result_makes_the_next_probe_soon_again),
        cmocka_unit_test(a_hello_that_is_not_answered_is_said_again_with_resend),
        cmocka_unit_test(a_connection_that_is_down_is_not_probed),
        cmocka_unit_test(a_server_that_cannot_be_reached_is_reported_with_both_ends_and_the_trouble),
        cmocka_unit_test(the_time_without_a_connection_counts_from_its_break),
        cmocka_unit_test(a_stalled_round_is_asked_about_and_reported_with_who_is_missing),
        cmocka_unit_test(a_round_that_stalls_beyond_the_limit_fails_the_job_with_who_is_missing),
        cmocka_unit_test(a_tensor_that_is_never_placed_fails_the_job_and_says_so),
        cmocka_unit_test(a_silent_server_is_named_when_the_limit_passes),
        cmocka_unit_test(what_waits_behind_others_that_move_has_not_stalled),
        cmocka_unit_test(a_missing_list_with_ourselves_or_nobody_means_that_something_was_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
