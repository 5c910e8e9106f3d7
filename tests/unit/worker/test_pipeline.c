#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/failing.h"
#include "tests/lib/bench.h"

/* ---- ends ---- */

static void cancel_ends_all_that_is_open_and_later_exchanges_work(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    static float in[PARTITION / 4], out[PARTITION / 4];
    tly_exchange waiting, queued, pushed, held, again;
    tly_tensor *t = bench_tensor_f32(b, 1, 0), *large = bench_tensor_f32(b, PARTITION / 4, 0);
    tly_tensor *unplaced = bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, 1);
    bench_issue(b, &pushed, t, in, out, 0);
    bench_issue(b, &held, large, in, out, 0);
    bench_run(b);
    tly_pipeline_reconnect(b->pipeline, 1, b->now); /* so that this one stays in the queue */
    bench_issue(b, &queued, bench_tensor_f32(b, 1, 1), in, out, 0);
    bench_issue(b, &waiting, unplaced, in, out, 0);
    tly_pipeline_cancel(b->pipeline, TALLY_ECLOSED, "closed");
    bench_ended_with(b, &pushed, TALLY_ECLOSED, "closed");
    bench_ended_with(b, &queued, TALLY_ECLOSED, "closed");
    bench_ended_with(b, &waiting, TALLY_ECLOSED, "closed");
    bench_not_ended(b);
    bench_let_go(b);
    bench_ended_with(b, &held, TALLY_ECLOSED, "closed");
    bench_run(b);
    assert_int_equal(bench_count_of(b, 1, TLY_PUSH), 0);
    /* The round goes on elsewhere: its RESULT comes, and the next round works. */
    float sum = 3, one_out = 0;
    bench_result(b, 0, t, 0, 1, &sum, 4);
    bench_not_ended(b);
    bench_issue(b, &again, t, in, &one_out, 0);
    bench_run(b);
    assert_true(bench_nth(b, 0, TLY_PUSH, 0)->record.round == 2);
    bench_result(b, 0, t, 0, 2, &sum, 4);
    bench_ended_well(b, &again);
    assert_true(one_out == 3);
    bench_destroy(b);
}

static void after_a_failure_every_exchange_ends_with_its_sentence_and_nothing_is_sent_or_taken(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out = 0, sum = 3;
    tly_exchange x, y;
    tly_tensor *t = bench_tensor_f32(b, 1, 0);
    bench_issue(b, &x, t, &in, &out, 0);
    bench_run(b);
    tly_pipeline_fail(b->pipeline, TALLY_EFAILED, "server 1 died");
    tly_pipeline_fail(b->pipeline, TALLY_EFAILED, "another one"); /* the first counts */
    bench_ended_with(b, &x, TALLY_EFAILED, "server 1 died");
    bench_issue(b, &y, t, &in, &out, 0);
    bench_ended_with(b, &y, TALLY_EFAILED, "server 1 died");
    bench_forget(b);
    bench_result(b, 0, t, 0, 1, &sum, 4);
    tly_pipeline_reconnect(b->pipeline, 0, b->now);
    bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, 1);
    b->now += 1000000;
    assert_true(bench_run(b) == TLY_NEVER);
    assert_int_equal(b->sent_count, 0);
    assert_int_equal(b->control_count, 0);
    assert_true(out == 0);
    bench_destroy(b);
}

static void an_exchange_is_issued_once_more_only_after_its_end(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out[2] = { 0 }, sum = 3;
    tly_exchange x[2];
    tly_tensor *t[2] = { bench_tensor_f32(b, 1, 0), bench_tensor_f32(b, 1, 0) };
    /* Exchanges end in the order in which their results come, and the list is a queue. */
    for (uint64_t round = 1; round <= 3; round++) {
        for (int i = 0; i < 2; i++)
            bench_issue(b, &x[i], t[i], &in, &out[i], 0);
        bench_run(b);
        bench_result(b, 0, t[1], 0, round, &sum, 4);
        bench_result(b, 0, t[0], 0, round, &sum, 4);
        bench_ended_well(b, &x[1]);
        bench_ended_well(b, &x[0]);
        bench_not_ended(b);
    }
    bench_destroy(b);
}

/* ---- barriers, leavers, counters ---- */

static void a_barrier_is_told_to_the_scheduler_again_until_it_is_released(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    tly_pipeline_barrier(b->pipeline, 1);
    assert_true(bench_control_of(b, TLY_CTL_BARRIER, 0)->barrier.seq == 1);
    tly_ctl waiting = { .type = TLY_CTL_WAITING, .barrier = { 1 }, .text = "worker 2 is missing" };
    tly_pipeline_control(b->pipeline, &waiting, b->now);
    assert_string_equal(tly_pipeline_barrier_missing(b->pipeline), "worker 2 is missing");
    tly_pipeline_scheduler_reconnected(b->pipeline);
    assert_true(bench_control_of(b, TLY_CTL_BARRIER, 1)->barrier.seq == 1);
    const tly_ctl release = { .type = TLY_CTL_BARRIER, .barrier = { 1 } };
    tly_pipeline_control(b->pipeline, &release, b->now);
    assert_true(tly_pipeline_barrier_released(b->pipeline) == 1);
    tly_pipeline_scheduler_reconnected(b->pipeline);
    assert_null(bench_control_of(b, TLY_CTL_BARRIER, 2));
    tly_pipeline_barrier(b->pipeline, 2);
    assert_string_equal(tly_pipeline_barrier_missing(b->pipeline), ""); /* that was about the last one */
    tly_pipeline_control(b->pipeline, &waiting, b->now);                 /* late */
    assert_string_equal(tly_pipeline_barrier_missing(b->pipeline), "");
    tly_pipeline_control(b->pipeline, &release, b->now);
    assert_true(tly_pipeline_barrier_released(b->pipeline) == 1);
    bench_destroy(b);
}

static void the_first_worker_that_left_is_known(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    assert_int_equal(tly_pipeline_left_rank(b->pipeline), -1);
    for (uint32_t rank = 2; rank > 0; rank -= 2) {
        const tly_ctl left = { .type = TLY_CTL_LEFT, .peer = 13, .rank = rank };
        tly_pipeline_control(b->pipeline, &left, b->now);
    }
    const tly_ctl left = { .type = TLY_CTL_LEFT, .peer = 12, .rank = 0 };
    tly_pipeline_control(b->pipeline, &left, b->now);
    assert_int_equal(tly_pipeline_left_rank(b->pipeline), 2);
    bench_destroy(b);
}

static void the_counters_of_a_server_add_up_its_shards(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    enum { COUNT = 2 * PARTITION / 4 + 1 };
    static float in[COUNT], out[COUNT];
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, COUNT, 0); /* server 0: two partitions of 32768; server 1: 4 bytes */
    bench_issue(b, &x, t, in, out, 0);
    bench_run(b);
    bench_let_go(b);
    bench_result(b, 0, t, 0, 1, in, PARTITION);
    tally_server_stats stats;
    tly_pipeline_server_stats(b->pipeline, 0, &stats);
    assert_true(stats.placed_bytes == 2 * PARTITION);
    assert_true(stats.pushed_bytes == 2 * PARTITION);
    assert_true(stats.pulled_bytes == PARTITION);
    tly_pipeline_server_stats(b->pipeline, 1, &stats);
    assert_true(stats.placed_bytes == 4 && stats.pushed_bytes == 4 && stats.pulled_bytes == 0);
    bench_destroy(b);
}

/* ---- alone ---- */

static void a_worker_alone_gets_its_own_value_at_once(void **state)
{
    (void)state;
    bench *b = bench_prepare();
    assert_int_equal(tly_pipeline_create(&b->config, &b->log, NULL, NULL, NULL, &b->pipeline), TALLY_OK);
    enum { COUNT = 2 * PARTITION / 2 + 3 };
    static uint16_t in[COUNT], out[COUNT];
    for (int i = 0; i < COUNT; i++)
        in[i] = (uint16_t)i;
    tly_exchange x;
    tly_tensor *t = bench_declare(b, TALLY_DTYPE_F16, TALLY_OP_AVERAGE, COUNT);
    assert_int_equal(t->part_count, 3);
    bench_issue(b, &x, t, in, out, 0);
    bench_ended_well(b, &x);
    assert_memory_equal(in, out, sizeof in);
    bench_issue(b, &x, t, in, in, 0);
    bench_ended_well(b, &x);
    assert_memory_equal(in, out, sizeof in);
    bench_broadcast(b, &x, t, 0, in);
    bench_ended_well(b, &x);
    bench_issue(b, &x, bench_declare(b, TALLY_DTYPE_F64, TALLY_OP_SUM, 0), NULL, NULL, 0);
    bench_ended_well(b, &x);
    tly_pipeline_barrier(b->pipeline, 1);
    assert_true(tly_pipeline_barrier_released(b->pipeline) == 1);
    assert_true(tly_pipeline_run(b->pipeline, b->now) == TLY_NEVER);
    assert_true(tly_pipeline_settled(b->pipeline));
    tly_pipeline_destroy(NULL);
    bench_destroy(b);
}

/* ---- memory ---- */

/* One life that takes every path that allocates, until something says that memory is short.
 * bodies: of the results. Returns: whether it said so */
static bool walk(bench *b, tly_exchange *x, float *in, float *out, tly_buf *small, tly_buf *large,
                 tly_buf *error)
{
    if (!bench_join(b))
        return true;
    for (uint32_t link = 0; link < LINKS; link++) {
        tly_pipeline_connected(b->pipeline, link, b->now);
        bench_hear_as(b, link,
                      &(tly_header){ .plane = TLY_PLANE_DATA, .job = JOB, .epoch = EPOCH, .session = 1 },
                      &(tly_record){ .type = TLY_READY }, 1, NULL);
    }
    b->session[0] = b->session[1] = b->session[2] = 1;
    tly_record stray = { .type = TLY_RESULT,
                         .flags = TLY_FLAG_ERROR,
                         .tensor = 2,
                         .round = 1,
                         .seq = ++b->seq[0],
                         .len_bytes = TLY_ROUND_ERROR_BYTES };
    bench_hear(b, 0, &stray, 1, tly_buf_get(error)); /* of tensor 2, which is declared later */
    tly_tensor *t = bench_tensor_f32(b, 1, 0), *l = bench_tensor_f32(b, PARTITION / 4, 1);
    tly_tensor *failing = bench_tensor_f32(b, 1, 0), *c = bench_tensor_f32(b, 1, 2);
    bench_issue(b, &x[0], t, in, out, 0);
    bench_issue(b, &x[1], l, in, out, 0);
    bench_issue(b, &x[2], failing, in, out, 0);
    bench_issue(b, &x[3], c, in, out, 0);
    tly_pipeline_run(b->pipeline, b->now);
    bench_conflict(b, 3, c->name);
    tly_record result = { .type = TLY_RESULT,
                          .dtype = TALLY_DTYPE_F32,
                          .tensor = 0,
                          .round = 1,
                          .seq = ++b->seq[0],
                          .len_bytes = 4 };
    bench_hear(b, 0, &result, 1, tly_buf_get(small));
    result = (tly_record){ .type = TLY_RESULT,
                           .dtype = TALLY_DTYPE_F32,
                           .tensor = 1,
                           .round = 1,
                           .seq = ++b->seq[1],
                           .len_bytes = PARTITION };
    bench_hear(b, 1, &result, 1, tly_buf_get(large));
    /* an error before its round is issued, and one after */
    stray.tensor = 0;
    stray.round = 2;
    stray.seq = ++b->seq[0];
    bench_hear(b, 0, &stray, 1, tly_buf_get(error));
    if (x[0].tensor->exchange == NULL)
        bench_issue(b, &x[4], t, in, out, 0);
    tly_pipeline_reconnect(b->pipeline, 0, b->now);
    tly_pipeline_barrier(b->pipeline, 1);
    tly_pipeline_run(b->pipeline, b->now);
    return tly_pipeline_out_of_memory(b->pipeline);
}

static void a_pipeline_whose_memory_runs_out_anywhere_says_so_or_ends_its_exchanges(void **state)
{
    (void)state;
    static float in[PARTITION / 4], out[PARTITION / 4];
    uint8_t left[TLY_ROUND_ERROR_BYTES];
    tly_wire_put_round_error(left, &(tly_round_error){ .reason = TLY_ROUND_LEFT, .rank_a = 2, .rank_b = 2 });
    bool more = true;
    for (long number = 1; more; number++) {
        bench *b = bench_prepare();
        tly_exchange x[5] = { { .tensor = NULL } };
        tly_buf *small = bench_bytes_of(in, 4), *large = bench_bytes_of(in, PARTITION),
                *error = bench_bytes_of(left, sizeof left);
        failing_arm(number);
        bool told = walk(b, x, in, out, small, large, error);
        more = failing_disarm();
        if (!more)
            assert_false(told);
        if (told && b->pipeline)
            tly_pipeline_fail(b->pipeline, TALLY_EFAILED, "out of memory");
        if (b->pipeline && b->membership.state == TLY_MEMBER_IN)
            bench_let_go(b);
        /* Every exchange that was issued has ended, and those that did well have their value. */
        for (int i = 0; i < 5; i++)
            if (x[i].tensor && x[i].tensor->exchange == &x[i])
                fail_msg("allocation %ld failed and exchange %d did not end", number, i);
        tly_buf_put(small);
        tly_buf_put(large);
        tly_buf_put(error);
        bench_destroy(b);
        if (!more)
            assert_true(number > 50);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cancel_ends_all_that_is_open_and_later_exchanges_work),
        cmocka_unit_test(after_a_failure_every_exchange_ends_with_its_sentence_and_nothing_is_sent_or_taken),
        cmocka_unit_test(an_exchange_is_issued_once_more_only_after_its_end),
        cmocka_unit_test(a_barrier_is_told_to_the_scheduler_again_until_it_is_released),
        cmocka_unit_test(the_first_worker_that_left_is_known),
        cmocka_unit_test(the_counters_of_a_server_add_up_its_shards),
        cmocka_unit_test(a_worker_alone_gets_its_own_value_at_once),
        cmocka_unit_test(a_pipeline_whose_memory_runs_out_anywhere_says_so_or_ends_its_exchanges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
