#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/bench.h"

/* ---- results ---- */

static void results_out_of_turn_or_twice_are_dropped(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out[2] = { 0 }, sum = 3, other = 100;
    tly_exchange x, y;
    tly_tensor *t = bench_tensor_f32(b, 1, 0), *u = bench_tensor_f32(b, 1, 0);
    bench_issue(b, &x, t, &in, &out[0], 0);
    bench_issue(b, &y, u, &in, &out[1], 0);
    bench_run(b);
    b->seq[0] = 1;
    bench_result(b, 0, u, 0, 1, &sum, 4); /* seq 2 before 1 */
    bench_not_ended(b);
    b->seq[0] = 0;
    bench_result(b, 0, t, 0, 1, &sum, 4); /* 1 */
    bench_ended_well(b, &x);
    b->seq[0] = 0;
    bench_result(b, 0, u, 0, 1, &other, 4); /* another 1 */
    bench_not_ended(b);
    bench_result(b, 0, u, 0, 1, &sum, 4); /* 2 */
    bench_ended_well(b, &y);
    assert_true(out[0] == 3 && out[1] == 3);
    bench_destroy(b);
}

static void results_before_the_first_ready_of_the_epoch_are_dropped(void **state)
{
    (void)state;
    bench *b = bench_prepare();
    assert_true(bench_join(b));
    float in = 1, out = 0, sum = 3;
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, 1, 0);
    bench_issue(b, &x, t, &in, &out, 0);
    bench_collect(b);
    bench_result(b, 0, t, 0, 1, &sum, 4);
    bench_not_ended(b);
    b->seq[0] = 0;
    bench_ready(b, 0, 1, &(tly_record){ .type = TLY_KEY, .tensor = 0, .round = 1, .seq = 2 });
    bench_result(b, 0, t, 0, 1, &sum, 4);
    bench_ended_well(b, &x);
    bench_destroy(b);
}

static void bundled_results_are_taken_each(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out[3] = { 0 };
    const float sums[2] = { 5, 6 };
    tly_exchange x[3];
    tly_tensor *t[3];
    for (int i = 0; i < 3; i++)
        bench_issue(b, &x[i], t[i] = bench_tensor_f32(b, i == 1 ? 0 : 1, 0), &in, &out[i], 0);
    bench_run(b);
    tly_record records[3];
    for (int i = 0; i < 3; i++)
        records[i] = bench_result_record(b, 0, t[i], 0, 1, i == 1 ? 0 : 4);
    bench_hear(b, 0, records, 3, bench_bytes_of(sums, sizeof sums));
    for (int i = 0; i < 3; i++)
        bench_ended_well(b, &x[i]);
    assert_true(out[0] == 5 && out[2] == 6);
    bench_destroy(b);
}

static void an_in_place_output_is_not_written_while_the_transport_has_the_input(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    static float buffer[PARTITION / 4], sums[PARTITION / 4];
    for (int i = 0; i < PARTITION / 4; i++) {
        buffer[i] = 1;
        sums[i] = 3;
    }
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, PARTITION / 4, 0);
    bench_issue(b, &x, t, buffer, buffer, 0);
    bench_run(b);
    bench_result(b, 0, t, 0, 1, sums, PARTITION);
    bench_not_ended(b);
    assert_true(buffer[0] == 1 && buffer[PARTITION / 4 - 1] == 1);
    bench_let_go(b);
    bench_ended_well(b, &x);
    assert_memory_equal(buffer, sums, PARTITION);
    bench_destroy(b);
}

static void an_exchange_ends_only_when_its_output_is_written_and_its_input_let_go(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    static float in[PARTITION / 4], out[PARTITION / 4], sums[PARTITION / 4];
    for (int i = 0; i < PARTITION / 4; i++)
        sums[i] = (float)i;
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, PARTITION / 4, 0);
    /* first written, then let go */
    bench_issue(b, &x, t, in, out, 0);
    bench_run(b);
    bench_result(b, 0, t, 0, 1, sums, PARTITION);
    assert_memory_equal(out, sums, PARTITION); /* another memory need not wait */
    bench_not_ended(b);
    bench_let_go(b);
    bench_ended_well(b, &x);
    /* first let go, then written */
    bench_issue(b, &x, t, in, out, 0);
    bench_run(b);
    bench_let_go(b);
    bench_not_ended(b);
    bench_result(b, 0, t, 0, 2, sums, PARTITION);
    bench_ended_well(b, &x);
    bench_destroy(b);
}

static void an_input_that_was_pushed_twice_is_let_go_twice_before_the_end(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    static float in[PARTITION / 4], out[PARTITION / 4];
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, PARTITION / 4, 0);
    bench_issue(b, &x, t, in, out, 0);
    bench_run(b);
    tly_pipeline_reconnect(b->pipeline, 0, b->now);
    bench_ready(b, 0, 0, NULL);
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_PUSH), 2);
    assert_true(tly_pipeline_inputs_out(b->pipeline) == 2);
    bench_result(b, 0, t, 0, 1, in, PARTITION);
    bench_forget(b);
    assert_int_equal(b->returned_count, 2);
    tly_pipeline_released(b->pipeline, b->returned[--b->returned_count]);
    bench_not_ended(b);
    tly_pipeline_released(b->pipeline, b->returned[--b->returned_count]);
    bench_ended_well(b, &x);
    bench_destroy(b);
}

static void the_root_of_a_broadcast_pushes_its_value_and_keeps_it(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    double buffer = 7, echo = 99;
    tly_exchange x;
    tly_tensor *t = bench_declare(b, TALLY_DTYPE_F64, TALLY_OP_AVERAGE, 1);
    bench_place(b, t, 0, 0);
    bench_broadcast(b, &x, t, MY_RANK, &buffer);
    bench_run(b);
    const sent *s = bench_nth(b, 0, TLY_PUSH, 0);
    assert_int_equal(s->record.kind, TLY_KIND_BROADCAST);
    assert_int_equal(s->record.root, MY_RANK);
    assert_true(s->record.seq == 8);
    assert_int_equal(s->record.len_bytes, 8);
    assert_memory_equal(s->payload, &buffer, 8);
    bench_result(b, 0, t, 0, 1, &echo, 8);
    bench_ended_well(b, &x);
    assert_true(buffer == 7); /* its memory is read only */
    bench_destroy(b);
}

static void the_others_of_a_broadcast_push_a_header_and_get_the_value(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    static float buffer[PARTITION / 4], value[PARTITION / 4];
    value[5] = 5;
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, PARTITION / 4, 0);
    bench_broadcast(b, &x, t, 2, buffer);
    bench_run(b);
    const sent *s = bench_nth(b, 0, TLY_PUSH, 0);
    assert_int_equal(s->record.root, 2);
    assert_true(s->record.seq == PARTITION); /* the length is announced, and not sent */
    assert_int_equal(s->record.len_bytes, 0);
    assert_null(s->body);
    bench_result(b, 0, t, 0, 1, value, PARTITION);
    bench_ended_well(b, &x);
    assert_memory_equal(buffer, value, PARTITION);
    bench_destroy(b);
}

static void a_result_of_another_length_fails_its_exchange_with_both_lengths(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in[2] = { 1, 1 }, out[2] = { 0 };
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, 2, 0);
    bench_issue(b, &x, t, in, out, 0);
    bench_run(b);
    bench_result(b, 0, t, 0, 1, in, 4);
    bench_ended_with(b, &x, TALLY_EPROTO,
                     "tensor \"t0\" round 1: partition 0 has 8 bytes and the server sent 4");
    assert_true(out[0] == 0);
    bench_destroy(b);
}

static void a_result_of_a_round_that_nobody_asked_for_does_no_harm(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out = 0, sum = 3;
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, 1, 0);
    bench_result(b, 0, t, 0, 1, &sum, 4); /* only a broken server can send it */
    bench_issue(b, &x, t, &in, &out, 0);
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_PUSH), 1);
    bench_result(b, 0, t, 0, 1, &sum, 4);
    bench_ended_well(b, &x);
    assert_true(out == 3);
    bench_destroy(b);
}

static void results_of_unknown_tensors_and_partitions_and_over_wrong_links_do_no_harm(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out = 0, sum = 3;
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, 1, 0), unknown = { .id = 99 };
    bench_issue(b, &x, t, &in, &out, 0);
    bench_run(b);
    bench_result(b, 0, &unknown, 0, 1, &sum, 4);
    bench_result(b, 0, t, 1, 1, &sum, 4);
    bench_result(b, 0, t, UINT32_MAX, 1, &sum, 4);
    bench_result(b, 1, t, 0, 1, &sum, 4); /* not its shard */
    bench_result(b, 0, t, 0, 2, &sum, 4); /* a round too far */
    bench_not_ended(b);
    bench_result(b, 0, t, 0, 1, &sum, 4);
    bench_ended_well(b, &x);
    bench_destroy(b);
}

/* ---- rounds that end in an error ---- */

static void every_error_of_a_round_has_its_sentence_and_the_next_round_works(void **state)
{
    (void)state;
    static const struct {
        tly_round_error error;
        tally_status status;
        const char *sentence; /* after the tensor and the round, where those come first */
    } cases[] = {
        { { TLY_ROUND_KIND, 0, 2, TLY_KIND_PUSH_PULL, TLY_KIND_BROADCAST, 0 },
          TALLY_ECONFLICT,
          "tensor \"t0\" round 1: worker 0 called push_pull, worker 2 called broadcast" },
        { { TLY_ROUND_ROOT, 0, 2, 1, 2, 0 },
          TALLY_ECONFLICT,
          "tensor \"t0\" round 2: worker 0 broadcasts from root 1, worker 2 from root 2" },
        { { TLY_ROUND_DTYPE, 0, 2, TALLY_DTYPE_F32, TALLY_DTYPE_F16, 0 },
          TALLY_ECONFLICT,
          "tensor \"t0\" round 3: worker 0 pushed float32, worker 2 pushed float16" },
        { { TLY_ROUND_DTYPE, 0, 2, 77, TALLY_DTYPE_F16, 0 },
          TALLY_ECONFLICT,
          "tensor \"t0\" round 4: worker 0 pushed ?, worker 2 pushed float16" },
        { { TLY_ROUND_OP, 0, 2, TALLY_OP_SUM, TALLY_OP_AVERAGE, 0 },
          TALLY_ECONFLICT,
          "tensor \"t0\" round 5: worker 0 asked for sum, worker 2 for average" },
        { { TLY_ROUND_LENGTH, 0, 2, 4, 8, 0 },
          TALLY_ECONFLICT,
          "tensor \"t0\" round 6: worker 0 pushed 4 bytes of a partition, worker 2 pushed 8" },
        { { TLY_ROUND_NO_ROOT, 0, 0, 9, 9, 0 },
          TALLY_ECONFLICT,
          "tensor \"t0\" round 7: the root 9 of the broadcast is not in the job" },
        { { TLY_ROUND_LEFT, 2, 2, 0, 0, 0 },
          TALLY_ELEFT,
          "worker 2 left the job before it took part in round 8 of tensor \"t0\"" },
        { { TLY_ROUND_MEMORY, 0, 0, 123, 0, 0 },
          TALLY_ENOMEM,
          "tensor \"t0\" round 9: the server has no memory for 123 bytes" },
        { { 77, 0, 0, 0, 0, 0 },
          TALLY_EPROTO,
          "tensor \"t0\" round 10: the server reports the unknown error 77" },
    };
    bench *b = bench_ready_all();
    float in = 1, out = 0, sum = 3;
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, 1, 0);
    for (uint64_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bench_issue(b, &x, t, &in, &out, 0);
        bench_run(b);
        bench_error_result(b, 0, t->id, 0, i + 1, &cases[i].error);
        bench_ended_with(b, &x, cases[i].status, cases[i].sentence);
    }
    assert_true(out == 0);
    bench_issue(b, &x, t, &in, &out, 0);
    bench_run(b);
    bench_result(b, 0, t, 0, 11, &sum, 4);
    bench_ended_well(b, &x);
    bench_destroy(b);
}

static void an_error_of_another_length_is_dropped_with_a_warning(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out = 0;
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, 1, 0);
    bench_issue(b, &x, t, &in, &out, 0);
    bench_run(b);
    tly_record record = bench_result_record(b, 0, t, 0, 1, 4);
    record.flags = TLY_FLAG_ERROR;
    bench_hear(b, 0, &record, 1, bench_bytes_of(&in, 4));
    bench_not_ended(b);
    assert_non_null(strstr(b->lines, "tensor 0 partition 0: an error result has 4 bytes instead of 24"));
    bench_destroy(b);
}

static void an_error_waits_until_the_transport_has_let_go_of_the_input(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    static float in[PARTITION / 4], out[PARTITION / 4];
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, PARTITION / 4, 0);
    bench_issue(b, &x, t, in, out, 0);
    bench_run(b);
    bench_error_result(b, 0, t->id, 0, 1,
                       &(tly_round_error){ .reason = TLY_ROUND_LEFT, .rank_a = 2, .rank_b = 2 });
    bench_not_ended(b);
    bench_let_go(b);
    bench_ended_with(b, &x, TALLY_ELEFT,
                     "worker 2 left the job before it took part in round 1 of tensor \"t0\"");
    bench_destroy(b);
}

static void an_error_of_a_round_not_yet_issued_ends_it_when_it_is_issued(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out = 0, sum = 3;
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, 1, 0);
    const tly_round_error left = { TLY_ROUND_LEFT, 2, 2, 0, 0, 0 };
    bench_error_result(b, 0, t->id, 0, 1, &left);
    bench_error_result(b, 0, t->id, 0, 2, &left);
    for (int round = 1; round <= 2; round++) {
        char sentence[100];
        snprintf(sentence, sizeof sentence,
                 "worker 2 left the job before it took part in round %d of tensor \"t0\"", round);
        bench_issue(b, &x, t, &in, &out, 0);
        bench_ended_with(b, &x, TALLY_ELEFT, sentence);
    }
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_PUSH), 0);
    bench_issue(b, &x, t, &in, &out, 0);
    bench_run(b);
    assert_true(bench_nth(b, 0, TLY_PUSH, 0)->record.round == 3);
    bench_result(b, 0, t, 0, 3, &sum, 4);
    bench_ended_well(b, &x);
    bench_destroy(b);
}

static void an_error_of_a_tensor_not_yet_placed_or_declared_is_not_lost(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out = 0;
    tly_exchange x;
    const tly_round_error left = { TLY_ROUND_LEFT, 0, 0, 0, 0, 0 };
    bench_error_result(b, 0, 0, 0, 1, &left);
    bench_error_result(b, 0, 5, 7, 1, &left); /* never declared here */
    bench_error_result(b, 0, 0, 9, 1, &left); /* a partition that it does not have */
    tly_tensor *t = bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, 1);
    bench_issue(b, &x, t, &in, &out, 0);
    bench_not_ended(b);
    bench_place(b, t, 0, 0);
    bench_ended_with(b, &x, TALLY_ELEFT,
                     "worker 0 left the job before it took part in round 1 of tensor \"t0\"");
    bench_destroy(b);
}

static void one_failed_partition_fails_the_exchange_when_all_others_have_ended(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    enum { COUNT = PARTITION / 4 + 1 };
    static float in[COUNT], out[COUNT];
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, COUNT, 0);
    bench_issue(b, &x, t, in, out, 0);
    bench_run(b);
    bench_let_go(b);
    bench_error_result(b, 1, t->id, 1, 1, &(tly_round_error){ .reason = TLY_ROUND_MEMORY, .value_a = 4 });
    bench_not_ended(b);
    bench_result(b, 0, t, 0, 1, in, PARTITION);
    bench_ended_with(b, &x, TALLY_ENOMEM, "tensor \"t0\" round 1: the server has no memory for 4 bytes");
    bench_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_out_of_turn_or_twice_are_dropped),
        cmocka_unit_test(results_before_the_first_ready_of_the_epoch_are_dropped),
        cmocka_unit_test(bundled_results_are_taken_each),
        cmocka_unit_test(an_in_place_output_is_not_written_while_the_transport_has_the_input),
        cmocka_unit_test(an_exchange_ends_only_when_its_output_is_written_and_its_input_let_go),
        cmocka_unit_test(an_input_that_was_pushed_twice_is_let_go_twice_before_the_end),
        cmocka_unit_test(the_root_of_a_broadcast_pushes_its_value_and_keeps_it),
        cmocka_unit_test(the_others_of_a_broadcast_push_a_header_and_get_the_value),
        cmocka_unit_test(a_result_of_another_length_fails_its_exchange_with_both_lengths),
        cmocka_unit_test(a_result_of_a_round_that_nobody_asked_for_does_no_harm),
        cmocka_unit_test(results_of_unknown_tensors_and_partitions_and_over_wrong_links_do_no_harm),
        cmocka_unit_test(every_error_of_a_round_has_its_sentence_and_the_next_round_works),
        cmocka_unit_test(an_error_of_another_length_is_dropped_with_a_warning),
        cmocka_unit_test(an_error_waits_until_the_transport_has_let_go_of_the_input),
        cmocka_unit_test(an_error_of_a_round_not_yet_issued_ends_it_when_it_is_issued),
        cmocka_unit_test(an_error_of_a_tensor_not_yet_placed_or_declared_is_not_lost),
        cmocka_unit_test(one_failed_partition_fails_the_exchange_when_all_others_have_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
