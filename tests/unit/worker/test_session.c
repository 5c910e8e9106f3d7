#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/bench.h"

/* ---- sessions ---- */
static void an_epoch_begins_with_a_hello_that_asks_to_resend_over_every_link(void **state)
{
    (void)state;
    bench *b = bench_prepare();
    assert_true(bench_join(b));
    assert_int_equal(tly_pipeline_link_count(b->pipeline), LINKS);
    assert_string_equal(tly_pipeline_link_endpoint(b->pipeline, 0), "tcp://10.0.0.1:1000");
    assert_string_equal(tly_pipeline_link_endpoint(b->pipeline, 1), "tcp://10.0.0.1:1001");
    assert_string_equal(tly_pipeline_link_endpoint(b->pipeline, 2), "tcp://10.0.0.2:1000");
    for (uint32_t link = 0; link < LINKS; link++) {
        assert_int_equal(bench_count_of(b, link, TLY_HELLO), 1);
        const sent *hello = bench_nth(b, link, TLY_HELLO, 0);
        assert_int_equal(hello->record.flags, TLY_FLAG_RESEND);
        assert_int_equal(hello->header.session, 1);
        assert_int_equal(hello->header.record_count, 1);
        assert_true(hello->header.acked == 0);
    }
    bench_destroy(b);
}

static void nothing_is_pushed_before_ready(void **state)
{
    (void)state;
    bench *b = bench_prepare();
    assert_true(bench_join(b));
    float in = 1, out = 0;
    tly_exchange x;
    bench_issue(b, &x, bench_tensor_f32(b, 1, 0), &in, &out, 0);
    bench_run(b);
    assert_int_equal(bench_count_of(b, LINKS, TLY_PUSH), 0);
    tly_header h = bench_header_of(b, 0);
    h.session = 2;
    bench_hear_as(b, 0, &h, &(tly_record){ .type = TLY_READY }, 1, NULL); /* not to our HELLO */
    bench_run(b);
    assert_int_equal(bench_count_of(b, LINKS, TLY_PUSH), 0);
    bench_ready(b, 0, 0, NULL);
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_PUSH), 1);
    bench_destroy(b);
}

static void a_hello_says_which_rounds_this_worker_has(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out, sum = 3;
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, 1, 0), *u = bench_tensor_f32(b, 1, 0);
    for (uint64_t round = 1; round <= 2; round++) {
        bench_issue(b, &x, t, &in, &out, 0);
        bench_run(b);
        bench_result(b, 0, t, 0, round, &sum, 4);
        bench_ended_well(b, &x);
    }
    bench_issue(b, &x, u, &in, &out, 0);
    bench_forget(b);
    tly_pipeline_reconnect(b->pipeline, 0, b->now);
    assert_int_equal(bench_nth(b, 0, TLY_HELLO, 0)->header.session, 2);
    assert_int_equal(bench_nth(b, 0, TLY_HELLO, 0)->record.flags, TLY_FLAG_RESEND);
    assert_true(bench_nth(b, 0, TLY_HELLO, 0)->header.acked == 2);
    assert_int_equal(bench_count_of(b, 0, TLY_HAVE), 1);
    assert_int_equal(bench_nth(b, 0, TLY_HAVE, 0)->record.tensor, t->id);
    assert_true(bench_nth(b, 0, TLY_HAVE, 0)->record.round == 2);
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_PUSH), 0); /* the old READY does not count */
    bench_destroy(b);
}

static void messages_of_another_job_or_epoch_are_dropped(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out = 0, sum = 3;
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, 1, 0);
    bench_issue(b, &x, t, &in, &out, 0);
    bench_run(b);
    tly_record record = bench_result_record(b, 0, t, 0, 1, 4);
    for (int i = 0; i < 3; i++) {
        tly_header h = bench_header_of(b, 0);
        h.job += i == 0;
        h.epoch += i == 1 ? 1 : i == 2 ? -1 : 0;
        bench_hear_as(b, 0, &h, &record, 1, bench_bytes_of(&sum, 4));
        bench_not_ended(b);
    }
    bench_hear(b, 0, &record, 1, bench_bytes_of(&sum, 4));
    bench_ended_well(b, &x);
    bench_destroy(b);
}

static void a_malformed_message_is_dropped_with_a_warning_that_names_the_server(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    tly_pipeline_message(b->pipeline, 2, "nonsense", 8, NULL, b->now);
    assert_non_null(strstr(b->lines,
                           "a message from tcp://10.0.0.2:1000 was dropped: a message of 8 bytes does not "
                           "begin as Tally's do"));
    bench_destroy(b);
}

/* ---- pushing ---- */

static void a_push_describes_its_contribution_in_full(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    tly_tensor *t = bench_declare(b, TALLY_DTYPE_I64, TALLY_OP_MAX, 3);
    bench_place(b, t, 40, 2);
    const int64_t in[3] = { 1, 2, 3 };
    int64_t out[3] = { 0 };
    const int64_t max[3] = { 7, 8, 9 };
    tly_exchange x;
    for (uint64_t round = 1; round <= 2; round++) {
        bench_issue(b, &x, t, in, out, 0);
        bench_run(b);
        const sent *s = bench_nth(b, 2, TLY_PUSH, 0);
        assert_int_equal(s->record.kind, TLY_KIND_PUSH_PULL);
        assert_int_equal(s->record.dtype, TALLY_DTYPE_I64);
        assert_int_equal(s->record.op, TALLY_OP_MAX);
        assert_int_equal(s->record.tensor, 40);
        assert_int_equal(s->record.partition, 0);
        assert_true(s->record.round == round);
        assert_true(s->record.seq == sizeof in);
        assert_int_equal(s->record.len_bytes, sizeof in);
        assert_memory_equal(s->payload, in, sizeof in);
        assert_int_equal(s->header.session, 1);
        assert_true(s->header.acked == round - 1);
        bench_forget(b);
        bench_result(b, 2, t, 0, round, max, sizeof max);
        bench_ended_well(b, &x);
        assert_memory_equal(out, max, sizeof max);
    }
    bench_destroy(b);
}

static void a_tensor_is_cut_into_partitions_that_go_to_their_own_shards(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    enum { COUNT = 2 * PARTITION / 4 + 1 }; /* partitions of 32768, 32768 and 4 bytes */
    static float in[COUNT], out[COUNT], sums[COUNT];
    for (int i = 0; i < COUNT; i++) {
        in[i] = (float)i;
        sums[i] = (float)(3 * i);
    }
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, COUNT, 1);
    bench_issue(b, &x, t, in, out, 0);
    bench_run(b);
    const uint32_t links[3] = { 1, 2, 0 }, lens[3] = { PARTITION, PARTITION, 4 };
    for (uint32_t i = 0; i < 3; i++) {
        const sent *s = bench_nth(b, links[i], TLY_PUSH, 0);
        assert_int_equal(s->record.partition, i);
        assert_int_equal(s->record.len_bytes, lens[i]);
        assert_true(s->record.seq == lens[i]);
        assert_memory_equal(s->payload, in + i * PARTITION / 4, lens[i]);
        assert_int_equal(bench_count_of(b, links[i], TLY_PUSH), 1);
    }
    bench_let_go(b);
    for (uint32_t i = 0; i < 3; i++) {
        bench_not_ended(b); /* before all are here */
        bench_result(b, links[i], t, i, 1, sums + i * PARTITION / 4, lens[i]);
    }
    bench_ended_well(b, &x);
    assert_memory_equal(out, sums, sizeof sums);
    bench_destroy(b);
}

static void a_large_partition_goes_from_the_callers_memory_and_a_small_one_is_copied(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    static float large[TLY_BUNDLE_RECORD_BYTES / 4 + 1], large_out[TLY_BUNDLE_RECORD_BYTES / 4 + 1];
    static float small[TLY_BUNDLE_RECORD_BYTES / 4], small_out[TLY_BUNDLE_RECORD_BYTES / 4];
    tly_exchange x, y;
    bench_issue(b, &x, bench_tensor_f32(b, TLY_BUNDLE_RECORD_BYTES / 4 + 1, 0), large, large_out, 0);
    bench_issue(b, &y, bench_tensor_f32(b, TLY_BUNDLE_RECORD_BYTES / 4, 1), small, small_out, 0);
    bench_run(b);
    assert_ptr_equal(bench_nth(b, 0, TLY_PUSH, 0)->payload, large);
    assert_ptr_not_equal(bench_nth(b, 1, TLY_PUSH, 0)->payload, small);
    assert_true(tly_pipeline_inputs_out(b->pipeline) == 1);
    bench_let_go(b);
    assert_true(tly_pipeline_inputs_out(b->pipeline) == 0);
    bench_destroy(b);
}

static void small_partitions_travel_in_bundles_within_the_limits(void **state)
{
    (void)state;
    bench *b = bench_prepare();
    b->config.credit = 0;
    assert_true(bench_join(b));
    static float in[8192], out[8192];
    static tly_exchange x[400];
    /* bytes: 5 of 16384, one of 16388, 300 of 4, one of 0 */
    uint32_t count = 0;
    for (int i = 0; i < 5; i++)
        bench_issue(b, &x[count++], bench_tensor_f32(b, 4096, 0), in, out, 0);
    bench_issue(b, &x[count++], bench_tensor_f32(b, 4097, 0), in, out, 0);
    for (int i = 0; i < 300; i++)
        bench_issue(b, &x[count++], bench_tensor_f32(b, 1, 0), in, out, 0);
    bench_issue(b, &x[count++], bench_tensor_f32(b, 0, 0), NULL, NULL, 0);
    bench_forget(b);
    uint32_t first = b->message_count;
    bench_ready(b, 0, 0, NULL);
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_PUSH), count);
    for (uint32_t i = 0; i < count; i++) {
        const sent *s = bench_nth(b, 0, TLY_PUSH, i);
        assert_int_equal(s->record.tensor, i); /* in order */
        assert_true(s->header.record_count <= TLY_BUNDLE_RECORD_COUNT);
        assert_true(s->header.record_count == 1 || s->body->len_bytes <= TLY_BUNDLE_BODY_BYTES);
        assert_true(s->header.record_count == 1 || s->record.len_bytes <= TLY_BUNDLE_RECORD_BYTES);
    }
    /* 4 x 16384 | 16384 | 16388 | 256 | 45 */
    assert_int_equal(b->message_count - first, 5);
    bench_destroy(b);
}

static void higher_priority_goes_first_then_the_order_of_placement(void **state)
{
    (void)state;
    bench *b = bench_prepare();
    assert_true(bench_join(b));
    float in = 1, out[5];
    tly_exchange x[5];
    const int priorities[5] = { 0, -5, 7, 0, 7 };
    tly_tensor *t[5];
    for (int i = 0; i < 5; i++)
        t[i] = bench_tensor_f32(b, 1, 0);
    for (int i = 4; i >= 0; i--)
        bench_issue(b, &x[i], t[i], &in, &out[i], priorities[i]);
    bench_ready(b, 0, 0, NULL);
    bench_run(b);
    const uint32_t expected[5] = { 2, 4, 0, 3, 1 };
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(bench_nth(b, 0, TLY_PUSH, i)->record.tensor, expected[i]);
    bench_destroy(b);
}

static void what_waits_for_credit_is_overtaken_by_what_is_more_urgent(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    static float in[6 * PARTITION / 4 * LINKS], out[6 * PARTITION / 4 * LINKS];
    float one = 1, one_out;
    tly_exchange low, high;
    bench_issue(b, &low, bench_tensor_f32(b, 6 * PARTITION / 4 * LINKS, 0), in, out,
                -1); /* 6 partitions on each link */
    bench_run(b);
    for (uint32_t link = 0; link < LINKS; link++)
        assert_int_equal(bench_count_of(b, link, TLY_PUSH), CREDIT);
    bench_issue(b, &high, bench_tensor_f32(b, 1, 0), &one, &one_out, 5);
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_PUSH), CREDIT);
    bench_received(b, 0, 1);
    bench_run(b);
    assert_int_equal(bench_nth(b, 0, TLY_PUSH, CREDIT)->record.tensor, high.tensor->id);
    assert_int_equal(bench_count_of(b, 0, TLY_PUSH), CREDIT + 1);
    bench_destroy(b);
}

static void credit_is_never_exceeded_and_one_push_is_always_possible(void **state)
{
    (void)state;
    for (int credit = 1; credit <= 5; credit += 2) {
        bench *b = bench_prepare();
        b->config.credit = credit;
        assert_true(bench_join(b));
        bench_ready(b, 0, 0, NULL);
        static float in[PARTITION / 4], out[60][PARTITION / 4];
        static tly_exchange x[60];
        uint32_t random = 7;
        for (int i = 0; i < 60; i++) {
            random = random * 1664525 + 1013904223;
            bench_issue(b, &x[i], bench_tensor_f32(b, (random >> 16) % (PARTITION / 4 + 1), 0), in, out[i],
                        0);
        }
        uint64_t limit = (uint64_t)credit * (PARTITION + TLY_LINK_PUSH_COST), arrived = 0;
        bench_forget(b);
        uint64_t costs[60], pushed = 0;
        while (pushed < 60) {
            bench_run(b);
            uint32_t news = bench_count_of(b, 0, TLY_PUSH);
            bool wanted = false;
            for (uint32_t i = 0; i < news; i++) {
                costs[pushed++] = bench_nth(b, 0, TLY_PUSH, i)->record.len_bytes + TLY_LINK_PUSH_COST;
                wanted = bench_nth(b, 0, TLY_PUSH, i)->record.flags & TLY_FLAG_WANT;
            }
            uint64_t used = 0;
            for (uint64_t i = arrived; i < pushed; i++)
                used += costs[i];
            assert_true(used <= limit);
            assert_true(used > 0);                    /* one was possible */
            assert_true(pushed == 60 || news == 0 || wanted); /* who waits has asked to be told */
            bench_let_go(b);
            bench_received(b, 0, ++arrived); /* as slowly as can be */
        }
        bench_destroy(b);
    }
}

static void received_of_another_session_or_before_ready_returns_no_credit(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    static float in[PARTITION / 4], out[PARTITION / 4];
    static tly_exchange x[6];
    for (int i = 0; i < 6; i++)
        bench_issue(b, &x[i], bench_tensor_f32(b, PARTITION / 4, 0), in, out, 0);
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_PUSH), CREDIT);
    tly_header h = bench_header_of(b, 0);
    h.session = 0;
    bench_hear_as(b, 0, &h, &(tly_record){ .type = TLY_RECEIVED, .seq = 4 }, 1, NULL);
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_PUSH), CREDIT);
    tly_pipeline_reconnect(b->pipeline, 0, b->now);
    bench_collect(b);
    bench_received(b, 0, 4);
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_PUSH), CREDIT);
    bench_destroy(b);
}

static void a_result_returns_the_credit_of_its_push_and_of_those_before_it(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    static float in[PARTITION / 4], out[8][PARTITION / 4];
    static tly_exchange x[8];
    tly_tensor *t[8];
    for (int i = 0; i < 8; i++)
        bench_issue(b, &x[i], t[i] = bench_tensor_f32(b, PARTITION / 4, 0), in, out[i], 0);
    bench_run(b);
    bench_result(b, 0, t[2], 0, 1, in, PARTITION); /* the link keeps its order: 0 and 1 have arrived too */
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_PUSH), CREDIT + 3);
    bench_destroy(b);
}

/* ---- READY reconciles ---- */

/* A worker with one pushed partition of 4 bytes on link 0 whose connection broke and came back. */
typedef struct broken {
    bench *b;
    tly_tensor *t;
    tly_exchange x;
    float in, out;
} broken;

static void break_after_push(broken *k)
{
    k->b = bench_ready_all();
    k->in = 1;
    k->out = 0;
    k->t = bench_tensor_f32(k->b, 1, 0);
    bench_issue(k->b, &k->x, k->t, &k->in, &k->out, 0);
    bench_run(k->b);
    tly_pipeline_reconnect(k->b->pipeline, 0, k->b->now);
    bench_forget(k->b);
}

static void finish_broken(broken *k)
{
    const float sum = 3;
    bench_result(k->b, 0, k->t, 0, 1, &sum, 4);
    bench_ended_well(k->b, &k->x);
    assert_true(k->out == 3);
    bench_destroy(k->b);
}

static void an_open_round_that_this_worker_is_not_in_is_pushed_again(void **state)
{
    (void)state;
    broken k;
    break_after_push(&k);
    tly_record key = bench_key_record(0, 0, 1, false);
    bench_ready(k.b, 0, 0, &key);
    bench_run(k.b);
    assert_int_equal(bench_count_of(k.b, 0, TLY_PUSH), 1);
    assert_int_equal(bench_nth(k.b, 0, TLY_PUSH, 0)->header.session, 2);
    finish_broken(&k);
}

static void an_open_round_that_this_worker_is_in_awaits_its_result(void **state)
{
    (void)state;
    broken k;
    break_after_push(&k);
    tly_record key = bench_key_record(0, 0, 1, true);
    bench_ready(k.b, 0, 0, &key);
    bench_run(k.b);
    assert_int_equal(bench_count_of(k.b, 0, TLY_PUSH), 0);
    finish_broken(&k);
}

static void a_round_that_is_over_awaits_its_result(void **state)
{
    (void)state;
    broken k;
    break_after_push(&k);
    tly_record key = bench_key_record(0, 0, 2, false);
    bench_ready(k.b, 0, 1, &key);
    bench_run(k.b);
    assert_int_equal(bench_count_of(k.b, 0, TLY_PUSH), 0);
    finish_broken(&k);
}

static void a_key_that_the_shard_does_not_list_is_at_its_first_round(void **state)
{
    (void)state;
    broken k;
    break_after_push(&k);
    bench_ready(k.b, 0, 0, NULL);
    bench_run(k.b);
    assert_int_equal(bench_count_of(k.b, 0, TLY_PUSH), 1);
    finish_broken(&k);
}

static void a_partition_that_waits_in_the_queue_is_pushed_only_if_its_round_is_open_without_it(void **state)
{
    (void)state;
    for (int in = 0; in < 2; in++) {
        broken k;
        break_after_push(&k);
        tly_record keys[2] = { bench_key_record(0, 0, 1, false), bench_key_record(0, 0, 1, in) };
        bench_ready(k.b, 0, 0, &keys[0]);
        tly_pipeline_reconnect(k.b->pipeline, 0, k.b->now); /* before it was pushed again */
        bench_ready(k.b, 0, 0, &keys[1]);
        bench_run(k.b);
        assert_int_equal(bench_count_of(k.b, 0, TLY_PUSH), !in);
        finish_broken(&k);
    }
}

static void what_ready_says_of_keys_that_are_not_its_own_is_passed_over(void **state)
{
    (void)state;
    broken k;
    break_after_push(&k);
    tly_tensor *elsewhere = bench_tensor_f32(k.b, 1, 1);
    tly_record records[5] = { { .type = TLY_READY },
                              { .type = TLY_STABLE },
                              bench_key_record(99, 0, 5, true),            /* unknown */
                              bench_key_record(elsewhere->id, 0, 5, true), /* of another shard */
                              bench_key_record(0, 0, 1, false) };
    bench_hear(k.b, 0, records, 5, NULL);
    bench_run(k.b);
    assert_int_equal(bench_count_of(k.b, 0, TLY_PUSH), 1);
    finish_broken(&k);
}

static void credit_is_full_again_after_ready(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    static float in[PARTITION / 4], out[8][PARTITION / 4];
    static tly_exchange x[8];
    for (int i = 0; i < 8; i++)
        bench_issue(b, &x[i], bench_tensor_f32(b, PARTITION / 4, 0), in, out[i], 0);
    bench_run(b);
    tly_pipeline_reconnect(b->pipeline, 0, b->now);
    bench_forget(b);
    tly_record records[5] = { { .type = TLY_READY } };
    for (uint32_t i = 0; i < 4; i++)
        records[i + 1] = bench_key_record(i, 0, 1, true);
    bench_hear(b, 0, records, 5, NULL);
    bench_run(b);
    assert_int_equal(bench_count_of(b, 0, TLY_PUSH), CREDIT); /* 4 .. 7: what is in costs nothing any more */
    assert_int_equal(bench_nth(b, 0, TLY_PUSH, 0)->record.tensor, 4);
    bench_destroy(b);
}

static void after_a_probe_lost_results_are_asked_for(void **state)
{
    (void)state;
    bench *b = bench_ready_all();
    float in = 1, out = 0, sum = 3;
    tly_exchange x;
    tly_tensor *t = bench_tensor_f32(b, 1, 0);
    bench_issue(b, &x, t, &in, &out, 0);
    bench_run(b);
    b->now += TLY_LINK_PROBE_MS;
    bench_run(b);
    assert_int_equal(bench_nth(b, 0, TLY_HELLO, 0)->record.flags,
                     0); /* a probe does not make the shard repeat */
    tly_record key = bench_key_record(0, 0, 2, false);
    bench_ready(b, 0, 1, &key); /* RESULT 1 was sent, and is not here */
    assert_int_equal(bench_count_of(b, 0, TLY_HELLO), 2);
    assert_int_equal(bench_nth(b, 0, TLY_HELLO, 1)->record.flags, TLY_FLAG_RESEND);
    bench_ready(b, 0, 1, &key);
    assert_int_equal(bench_count_of(b, 0, TLY_HELLO), 2); /* asked for once */
    bench_result(b, 0, t, 0, 1, &sum, 4);
    bench_ended_well(b, &x);
    bench_destroy(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_epoch_begins_with_a_hello_that_asks_to_resend_over_every_link),
        cmocka_unit_test(nothing_is_pushed_before_ready),
        cmocka_unit_test(a_hello_says_which_rounds_this_worker_has),
        cmocka_unit_test(messages_of_another_job_or_epoch_are_dropped),
        cmocka_unit_test(a_malformed_message_is_dropped_with_a_warning_that_names_the_server),
        cmocka_unit_test(a_push_describes_its_contribution_in_full),
        cmocka_unit_test(a_tensor_is_cut_into_partitions_that_go_to_their_own_shards),
        cmocka_unit_test(a_large_partition_goes_from_the_callers_memory_and_a_small_one_is_copied),
        cmocka_unit_test(small_partitions_travel_in_bundles_within_the_limits),
        cmocka_unit_test(higher_priority_goes_first_then_the_order_of_placement),
        cmocka_unit_test(what_waits_for_credit_is_overtaken_by_what_is_more_urgent),
        cmocka_unit_test(credit_is_never_exceeded_and_one_push_is_always_possible),
        cmocka_unit_test(received_of_another_session_or_before_ready_returns_no_credit),
        cmocka_unit_test(a_result_returns_the_credit_of_its_push_and_of_those_before_it),
        cmocka_unit_test(an_open_round_that_this_worker_is_not_in_is_pushed_again),
        cmocka_unit_test(an_open_round_that_this_worker_is_in_awaits_its_result),
        cmocka_unit_test(a_round_that_is_over_awaits_its_result),
        cmocka_unit_test(a_key_that_the_shard_does_not_list_is_at_its_first_round),
        cmocka_unit_test(a_partition_that_waits_in_the_queue_is_pushed_only_if_its_round_is_open_without_it),
        cmocka_unit_test(what_ready_says_of_keys_that_are_not_its_own_is_passed_over),
        cmocka_unit_test(credit_is_full_again_after_ready),
        cmocka_unit_test(after_a_probe_lost_results_are_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
