#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/lib/failing.h"
#include "worker/link.h"

#define PARTITION 4096
#define COST (PARTITION + TLY_LINK_PUSH_COST)

static tly_link *link_create(int credit)
{
    const tly_config config = { .partition_bytes = PARTITION, .credit = credit };
    tly_link *link = test_malloc(sizeof *link);
    tly_link_init(link, &config, 1000);
    return link;
}

static void link_destroy(tly_link *link)
{
    tly_link_fini(link);
    test_free(link);
}

static void credit_is_so_many_partitions_and_one_more_does_not_fit(void **state)
{
    (void)state;
    tly_link *link = link_create(3);
    for (uint64_t i = 1; i <= 3; i++) {
        assert_true(tly_link_has_credit(link, PARTITION));
        assert_true(tly_link_charge(link, PARTITION) == i);
    }
    assert_false(tly_link_has_credit(link, PARTITION));
    assert_false(tly_link_has_credit(link, 0)); /* an empty one costs something too */
    tly_link_arrived(link, 1);
    assert_true(tly_link_has_credit(link, PARTITION));
    assert_true(link->used_bytes == 2 * COST);
    link_destroy(link);
}

static void one_push_always_fits_when_nothing_is_out(void **state)
{
    (void)state;
    tly_link *link = link_create(1);
    assert_true(tly_link_has_credit(link, 1000 * PARTITION)); /* another worker's partition size */
    assert_true(tly_link_charge(link, 1000 * PARTITION) == 1);
    assert_true(link->used_bytes == COST); /* it counts as one of ours */
    assert_false(tly_link_has_credit(link, 0));
    tly_link_arrived(link, 1);
    assert_true(link->used_bytes == 0);
    assert_true(tly_link_has_credit(link, PARTITION));
    link_destroy(link);
}

static void credit_0_is_no_limit(void **state)
{
    (void)state;
    tly_link *link = link_create(0);
    for (int i = 0; i < 10000; i++)
        assert_int_not_equal(tly_link_charge(link, PARTITION), 0);
    assert_true(tly_link_has_credit(link, 1ull << 40));
    assert_false(tly_link_wants_credit(link));
    link_destroy(link);
}

static void received_is_wanted_as_soon_as_a_whole_partition_may_not_fit(void **state)
{
    (void)state;
    tly_link *link = link_create(2);
    assert_false(tly_link_wants_credit(link));
    tly_link_charge(link, PARTITION);
    assert_false(tly_link_wants_credit(link)); /* one more fits */
    tly_link_charge(link, 0);
    assert_true(tly_link_has_credit(link, 0));
    assert_true(tly_link_wants_credit(link)); /* a small one fits, a whole one does not */
    tly_link_arrived(link, 2);
    assert_false(tly_link_wants_credit(link));
    link_destroy(link);
}

static void what_has_arrived_returns_its_own_cost_once(void **state)
{
    (void)state;
    tly_link *link = link_create(100);
    for (uint64_t i = 0; i < 5; i++)
        tly_link_charge(link, 100 * i);
    tly_link_arrived(link, 2);
    assert_true(link->used_bytes == 200 + 300 + 400 + 3 * TLY_LINK_PUSH_COST);
    tly_link_arrived(link, 2);
    tly_link_arrived(link, 1); /* late */
    assert_true(link->used_bytes == 200 + 300 + 400 + 3 * TLY_LINK_PUSH_COST);
    tly_link_arrived(link, UINT64_MAX); /* more than were sent */
    assert_true(link->used_bytes == 0);
    assert_true(link->arrived == 5);
    link_destroy(link);
}

static void a_new_session_counts_from_the_start(void **state)
{
    (void)state;
    tly_link *link = link_create(2);
    tly_link_charge(link, PARTITION);
    tly_link_charge(link, PARTITION);
    tly_link_reset_credit(link);
    assert_true(link->used_bytes == 0);
    assert_true(tly_link_charge(link, PARTITION) == 1);
    tly_link_arrived(link, 0);
    assert_true(link->used_bytes == COST);
    link_destroy(link);
}

static void results_are_kept_until_they_are_stable(void **state)
{
    (void)state;
    tly_link *link = link_create(1);
    tly_buf *bodies[3];
    for (uint64_t i = 0; i < 3; i++) {
        bodies[i] = tly_buf_alloc(1);
        link->acked = i + 1;
        assert_true(tly_link_keep(link, i == 1 ? NULL : bodies[i], 1000)); /* an empty one has no body */
    }
    assert_int_equal(bodies[0]->refs, 2);
    assert_int_equal(bodies[2]->refs, 2);
    tly_link_stable(link, 0);
    assert_int_equal(link->kept.count, 3);
    tly_link_stable(link, 2);
    assert_int_equal(link->kept.count, 1);
    assert_int_equal(bodies[0]->refs, 1);
    assert_int_equal(bodies[2]->refs, 2);
    tly_link_stable(link, 1); /* late */
    assert_int_equal(link->kept.count, 1);
    link_destroy(link); /* lets go of the rest */
    assert_int_equal(bodies[2]->refs, 1);
    for (int i = 0; i < 3; i++)
        tly_buf_put(bodies[i]);
}

static void the_first_kept_result_sets_the_time_of_the_acknowledgement(void **state)
{
    (void)state;
    tly_link *link = link_create(1);
    assert_true(link->settle_at == TLY_NEVER);
    link->acked = 1;
    tly_link_keep(link, NULL, 2000);
    link->acked = 2;
    tly_link_keep(link, NULL, 2010);
    assert_true(link->settle_at == 2000 + TLY_SETTLE_MS);
    link_destroy(link);
}

static void a_link_whose_memory_is_short_is_as_it_was(void **state)
{
    (void)state;
    tly_link *link = link_create(1);
    tly_buf *body = tly_buf_alloc(1);
    tly_part part = { 0 };
    failing_arm(1);
    assert_true(tly_link_charge(link, 1) == 0);
    assert_true(link->used_bytes == 0 && link->pushed == 0);
    failing_arm(1);
    link->acked = 1;
    assert_false(tly_link_keep(link, body, 1000));
    assert_int_equal(body->refs, 1);
    for (long number = 1; number <= 2; number++) {
        failing_arm(number);
        assert_false(tly_link_add_part(link, &part));
        assert_int_equal(link->part_count, 0);
    }
    failing_disarm();
    assert_true(tly_link_add_part(link, &part));
    tly_buf_put(body);
    link_destroy(link);
}

static void a_link_remembers_all_its_partitions_and_has_room_to_queue_each(void **state)
{
    (void)state;
    tly_link *link = link_create(1);
    static tly_part parts[100];
    for (int i = 0; i < 100; i++)
        assert_true(tly_link_add_part(link, &parts[i]));
    assert_int_equal(link->part_count, 100);
    assert_true(link->queue.room >= 100);
    for (int i = 0; i < 100; i++)
        assert_ptr_equal(link->parts[i], &parts[i]);
    link_destroy(link);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(credit_is_so_many_partitions_and_one_more_does_not_fit),
        cmocka_unit_test(one_push_always_fits_when_nothing_is_out),
        cmocka_unit_test(credit_0_is_no_limit),
        cmocka_unit_test(received_is_wanted_as_soon_as_a_whole_partition_may_not_fit),
        cmocka_unit_test(what_has_arrived_returns_its_own_cost_once),
        cmocka_unit_test(a_new_session_counts_from_the_start),
        cmocka_unit_test(results_are_kept_until_they_are_stable),
        cmocka_unit_test(the_first_kept_result_sets_the_time_of_the_acknowledgement),
        cmocka_unit_test(a_link_whose_memory_is_short_is_as_it_was),
        cmocka_unit_test(a_link_remembers_all_its_partitions_and_has_room_to_queue_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
