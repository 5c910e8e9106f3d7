#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/bench.h"

static void new_names_are_declared_together(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    bench_declare(b, TALLY_DTYPE_F16, TALLY_OP_AVERAGE, 1000);
    bench_declare(b, TALLY_DTYPE_U8, TALLY_OP_MIN, 0);
    assert_null(bench_control_of(b, TLY_CTL_DECLARE, 0));
    bench_run(b);
    const tly_ctl *c = bench_control_of(b, TLY_CTL_DECLARE, 0);
    assert_non_null(c);
    assert_int_equal(c->declare.count, 2);
    assert_string_equal(c->declare.items[0].name, "t0");
    assert_int_equal(c->declare.items[0].dtype, TALLY_DTYPE_F16);
    assert_int_equal(c->declare.items[0].op, TALLY_OP_AVERAGE);
    assert_true(c->declare.items[0].count == 1000);
    assert_int_equal(c->declare.items[0].partition_bytes, PARTITION);
    assert_string_equal(c->declare.items[1].name, "t1");
    bench_run(b);
    assert_null(bench_control_of(b, TLY_CTL_DECLARE, 1));
    bench_destroy(b);
}

static void what_is_not_placed_is_declared_again_when_the_scheduler_may_have_lost_it(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    tly_tensor *t = bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, 1);
    bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, 1);
    bench_run(b);
    bench_place(b, t, 0, 0);
    bench_forget(b);
    tly_pipeline_scheduler_reconnected(b->pipeline);
    tly_pipeline_scheduler_reconnected(b->pipeline);
    bench_run(b);
    const tly_ctl *c = bench_control_of(b, TLY_CTL_DECLARE, 0);
    assert_non_null(c);
    assert_int_equal(c->declare.count, 1);
    assert_string_equal(c->declare.items[0].name, "t1");
    bench_destroy(b);
}

static void a_tensor_may_be_placed_before_it_is_declared_here(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    const tly_tensor other = { .name = "t0", .dtype = TALLY_DTYPE_F32, .op = TALLY_OP_SUM, .count = 1 };
    bench_place(b, &other, 30, 2);
    float in = 1, out = 0, sum = 3;
    tly_exchange x;
    tly_tensor *t = bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, 1);
    assert_int_equal(t->state, TLY_TENSOR_PLACED);
    bench_issue(b, &x, t, &in, &out, 0);
    bench_run(b);
    assert_null(bench_control_of(b, TLY_CTL_DECLARE, 0));
    assert_int_equal(bench_nth(b, 2, TLY_PUSH, 0)->record.tensor, 30);
    bench_result(b, 2, t, 0, 1, &sum, 4);
    bench_ended_well(b, &x);
    bench_destroy(b);
}

static void an_exchange_may_be_issued_before_its_tensor_is_placed(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out = 0, sum = 3;
    tly_exchange x;
    tly_tensor *t = bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, 1);
    bench_issue(b, &x, t, &in, &out, 0);
    bench_run(b);
    assert_int_equal(bench_count_of(b, LINKS, TLY_PUSH), 0);
    bench_place(b, t, 3, 1);
    bench_run(b);
    assert_int_equal(bench_nth(b, 1, TLY_PUSH, 0)->record.tensor, 3);
    bench_result(b, 1, t, 0, 1, &sum, 4);
    bench_ended_well(b, &x);
    bench_destroy(b);
}

static void the_first_declarers_partition_size_counts(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    tly_tensor *t = bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, 3000);
    tly_placed item = { .tensor = 0, .declaration = { "t0", TALLY_DTYPE_F32, TALLY_OP_SUM, 3000, 4096 },
                        .place_count = 3, .places = bench_place_of_link };
    bench_placed(b, 0, &item, 1);
    static float in[3000], out[3000];
    tly_exchange x;
    bench_issue(b, &x, t, in, out, 0);
    bench_run(b);
    const uint32_t lens[3] = { 4096, 4096, 12000 - 8192 };
    for (uint32_t link = 0; link < LINKS; link++)
        assert_int_equal(bench_nth(b, link, TLY_PUSH, 0)->record.len_bytes, lens[link]);
    bench_destroy(b);
}

static void a_gap_in_the_table_is_not_taken_and_a_repeat_only_where_it_is_new(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    tly_tensor *t[3];
    tly_placed items[3];
    for (int i = 0; i < 3; i++) {
        t[i] = bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, 1);
        items[i] = (tly_placed){ .tensor = (uint32_t)i, .place_count = 1, .places = &bench_place_of_link[i],
                                 .declaration = { t[i]->name, TALLY_DTYPE_F32, TALLY_OP_SUM, 1, PARTITION } };
    }
    bench_placed(b, 1, &items[1], 2);
    assert_true(b->membership.placed_version == 0);
    assert_int_equal(t[1]->state, TLY_TENSOR_DECLARED);
    bench_placed(b, 0, items, 1);
    assert_true(b->membership.placed_version == 1);
    bench_placed(b, 0, items, 3); /* the first again */
    assert_true(b->membership.placed_version == 3);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(t[i]->state, TLY_TENSOR_PLACED);
        assert_int_equal(t[i]->parts[0].link, i);
    }
    bench_placed(b, 0, items, 2); /* all known */
    assert_true(b->membership.placed_version == 3);
    assert_false(tly_pipeline_out_of_memory(b->pipeline));
    bench_destroy(b);
}

static void a_placement_where_there_is_no_server_fails_the_job_by_name_and_is_not_called_lack_of_memory(void **state)
{
    (void)state;
    const tly_place nowhere = { .server = 99 }, no_shard = { .server = 0, .shard = 99 };
    const struct {
        const tly_place *places;
        uint32_t count;
    } wrong[] = { { &nowhere, 1 }, { &no_shard, 1 }, { bench_place_of_link, 2 } };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        bench *b = bench_ready_all();
        tly_tensor *t = bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, 1);
        tly_placed item = { .tensor = 0, .place_count = wrong[i].count, .places = wrong[i].places,
                            .declaration = { t->name, TALLY_DTYPE_F32, TALLY_OP_SUM, 1, PARTITION } };
        char sentence[256];
        bench_placed(b, 0, &item, 1);
        snprintf(sentence, sizeof sentence, "tensor \"%s\": the scheduler placed its partitions (%u) where there is no "
                                            "server", t->name, wrong[i].count);
        assert_string_equal(b->membership.said, sentence);
        assert_int_equal(t->state, TLY_TENSOR_DECLARED);
        assert_false(tly_pipeline_out_of_memory(b->pipeline));
        bench_destroy(b);
    }
}

static void a_conflict_fails_the_open_exchange_and_every_later_one(void **state)
{
    (void)state;
    for (int phase = 0; phase < 3; phase++) { /* issued but not placed; in the queue; pushed */
        bench *b = bench_prepare();
        assert_true(bench_join(b));
        static float in[PARTITION / 4], out[PARTITION / 4];
        float one = 1, one_out, sum = 3;
        tly_exchange x, y;
        tly_tensor *t = bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, PARTITION / 4);
        bench_issue(b, &x, t, in, out, 0);
        if (phase >= 1)
            bench_place(b, t, 0, 0);
        if (phase == 2) {
            bench_ready(b, 0, 0, NULL);
            bench_run(b);
            assert_int_equal(bench_count_of(b, 0, TLY_PUSH), 1);
        }
        bench_conflict(b, 0, "t0");
        if (phase == 2) {
            bench_not_ended(b); /* the transport still reads the input */
            bench_let_go(b);
        }
        bench_ended_with(b, &x, TALLY_ECONFLICT, CONFLICT);
        bench_issue(b, &x, t, in, out, 0);
        bench_ended_with(b, &x, TALLY_ECONFLICT, CONFLICT);
        /* Nothing else is disturbed. */
        tly_tensor *u = bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, 1);
        bench_place(b, u, 1, 0);
        bench_issue(b, &y, u, &one, &one_out, 0);
        if (phase < 2)
            bench_ready(b, 0, 0, NULL);
        bench_run(b);
        bench_result(b, 0, u, 0, 1, &sum, 4);
        bench_ended_well(b, &y);
        bench_destroy(b);
    }
}

static void a_conflict_is_known_also_of_a_tensor_declared_later(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    bench_conflict(b, 0, "t0"); /* it could not be placed at all */
    const tly_tensor other = { .name = "t1", .dtype = TALLY_DTYPE_F32, .op = TALLY_OP_SUM, .count = 1 };
    bench_place(b, &other, 1, 0);
    bench_conflict(b, 1, "t1");
    for (int i = 0; i < 2; i++) {
        tly_exchange x;
        bench_issue(b, &x, bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, 1), NULL, NULL, 0);
        bench_ended_with(b, &x, TALLY_ECONFLICT, CONFLICT);
    }
    bench_destroy(b);
}

static void a_tensor_that_others_declared_differently_waits_for_the_schedulers_word(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    const tly_tensor other = { .name = "t0", .dtype = TALLY_DTYPE_F64, .op = TALLY_OP_SUM, .count = 1 };
    bench_place(b, &other, 0, 0);
    float in = 1, out = 0;
    tly_exchange x;
    tly_tensor *t = bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, 1);
    bench_issue(b, &x, t, &in, &out, 0);
    bench_run(b);
    bench_not_ended(b);
    assert_int_equal(bench_count_of(b, LINKS, TLY_PUSH), 0);
    assert_int_equal(bench_control_of(b, TLY_CTL_DECLARE, 0)->declare.count, 1); /* it must hear of ours */
    bench_conflict(b, 0, "t0");
    bench_ended_with(b, &x, TALLY_ECONFLICT, CONFLICT);
    bench_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_names_are_declared_together),
        cmocka_unit_test(what_is_not_placed_is_declared_again_when_the_scheduler_may_have_lost_it),
        cmocka_unit_test(a_tensor_may_be_placed_before_it_is_declared_here),
        cmocka_unit_test(an_exchange_may_be_issued_before_its_tensor_is_placed),
        cmocka_unit_test(the_first_declarers_partition_size_counts),
        cmocka_unit_test(a_gap_in_the_table_is_not_taken_and_a_repeat_only_where_it_is_new),
        cmocka_unit_test(
            a_placement_where_there_is_no_server_fails_the_job_by_name_and_is_not_called_lack_of_memory),
        cmocka_unit_test(a_conflict_fails_the_open_exchange_and_every_later_one),
        cmocka_unit_test(a_conflict_is_known_also_of_a_tensor_declared_later),
        cmocka_unit_test(a_tensor_that_others_declared_differently_waits_for_the_schedulers_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
