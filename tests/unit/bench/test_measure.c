#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/measure.h"

static tly_summary summary_of(const double *values, size_t count)
{
    tly_samples s;
    tly_summary out;
    assert_int_equal(tly_samples_init(&s, count), TALLY_OK);
    for (size_t i = 0; i < count; i++)
        tly_samples_add(&s, values[i]);
    assert_int_equal(tly_samples_summary(&s, &out), TALLY_OK);
    for (size_t i = 0; i < count; i++)
        assert_true(s.values[i] == values[i]); /* the order of measurement stays */
    tly_samples_fini(&s);
    return out;
}

static void the_median_of_an_odd_count_is_the_middle_sample(void **state)
{
    (void)state;
    tly_summary s = summary_of((const double[]){ 9, 1, 5 }, 3);
    assert_true(s.median == 5 && s.min == 1 && s.max == 9 && s.p95 == 9 && s.p99 == 9);
}

static void the_median_of_an_even_count_is_the_mean_of_the_two_in_the_middle(void **state)
{
    (void)state;
    tly_summary s = summary_of((const double[]){ 10, 1, 4, 2 }, 4);
    assert_true(s.median == 3 && s.min == 1 && s.max == 10);
}

static void one_sample_is_every_statistic(void **state)
{
    (void)state;
    tly_summary s = summary_of((const double[]){ 7 }, 1);
    assert_true(s.median == 7 && s.min == 7 && s.max == 7 && s.p95 == 7);
}

static void no_sample_gives_no_number(void **state)
{
    (void)state;
    tly_summary s = summary_of(NULL, 0);
    assert_true(isnan(s.median) && isnan(s.min) && isnan(s.max) && isnan(s.p95) && isnan(s.p99));
}

static void the_95th_percentile_is_the_least_sample_that_95_of_100_do_not_exceed(void **state)
{
    (void)state;
    double values[100];
    for (int i = 0; i < 100; i++)
        values[i] = 100 - i;
    assert_true(summary_of(values, 100).p95 == 95);
    assert_true(summary_of(values, 20).p95 == 99);  /* 81..100: the 19th of 20 */
    assert_true(summary_of(values, 21).p95 == 99);  /* 80..100: the 20th of 21 */
}

static void the_99th_percentile_is_the_least_sample_that_99_of_100_do_not_exceed(void **state)
{
    (void)state;
    double values[200];
    for (int i = 0; i < 200; i++)
        values[i] = 200 - i;
    assert_true(summary_of(values, 200).p99 == 198);
    assert_true(summary_of(values, 100).p99 == 199); /* 101..200: the 99th of 100 */
    assert_true(summary_of(values, 101).p99 == 199); /* 100..200: the 100th of 101 */
}

static void computing_ends_at_its_deadline_and_not_before(void **state)
{
    (void)state;
    int64_t deadline_ns = tly_measure_now_ns() + 2000000;
    tly_measure_compute_until(deadline_ns);
    assert_true(tly_measure_now_ns() >= deadline_ns);
}

static void a_zeroed_set_of_samples_can_be_finished(void **state)
{
    (void)state;
    tly_samples s = { 0 };
    tly_samples_fini(&s);
    tly_samples_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_median_of_an_odd_count_is_the_middle_sample),
        cmocka_unit_test(the_median_of_an_even_count_is_the_mean_of_the_two_in_the_middle),
        cmocka_unit_test(one_sample_is_every_statistic),
        cmocka_unit_test(no_sample_gives_no_number),
        cmocka_unit_test(the_95th_percentile_is_the_least_sample_that_95_of_100_do_not_exceed),
        cmocka_unit_test(the_99th_percentile_is_the_least_sample_that_99_of_100_do_not_exceed),
        cmocka_unit_test(computing_ends_at_its_deadline_and_not_before),
        cmocka_unit_test(a_zeroed_set_of_samples_can_be_finished),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
