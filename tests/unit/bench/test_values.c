#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "bench/values.h"
#include "common/reduce.h"

/* Counts around the cells of every element size. */
static const size_t counts[] = { 0, 1, 2, 17, 511, 512, 513, 1024, 2049, 4096, 4913, 10000 };
#define COUNT_COUNT (sizeof(counts) / sizeof(counts[0]))
#define COUNT_MAX 10000

/* What a server does: combine the contributions of all workers, of which data is the first's. */
static void combine(void *data, size_t count, tally_dtype dtype, tally_op op, int workers, unsigned tensor,
                    unsigned step)
{
    size_t size = tally_dtype_size(dtype);
    void *other = malloc(count * size + 16), *wide = aligned_alloc(64, (count + 8) * 64);
    bool is_wide = tly_reduce_is_wide(dtype, op, workers);
    for (int rank = 1; rank < workers; rank++) {
        tly_values v;
        tly_values_init(&v, dtype, op, rank, workers);
        tly_values_fill(&v, tensor, step, other, count);
        bool last = rank == workers - 1;
        if (!is_wide)
            tly_reduce(data, other, count, dtype, op, last ? workers : 0);
        else if (rank == 1)
            tly_reduce_widen(wide, data, other, count, dtype);
        else if (!last)
            tly_reduce_wide_add(wide, other, count, dtype);
        else
            tly_reduce_narrow(data, wide, other, count, dtype, op == TALLY_OP_AVERAGE ? workers : 1);
    }
    free(other);
    free(wide);
}

static void the_combination_of_all_workers_is_what_is_expected(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 2, 3, 4, 9, 17, 64 };
    uint8_t *data = malloc(COUNT_MAX * 8);
    for (int dtype = 0; dtype < TALLY_DTYPE_COUNT; dtype++)
        for (int op = 0; op < TALLY_OP_COUNT; op++)
            for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
                tly_values v;
                tly_values_wrong first;
                tly_values_init(&v, (tally_dtype)dtype, (tally_op)op, 0, sizes[s]);
                tly_values_fill(&v, 3, 5, data, 4913);
                combine(data, 4913, (tally_dtype)dtype, (tally_op)op, sizes[s], 3, 5);
                assert_int_equal(tly_values_check(&v, 3, 5, 5, data, 4913, &first), 0);
            }
    free(data);
}

static void a_stamped_average_in_place_is_right_step_after_step(void **state)
{
    (void)state;
    uint8_t *data = malloc(COUNT_MAX * 8), *other = malloc(COUNT_MAX * 8);
    for (int dtype = 0; dtype < TALLY_DTYPE_COUNT; dtype++)
        for (size_t c = 0; c < COUNT_COUNT; c++) {
            tly_values a, b;
            tly_values_wrong first;
            tly_values_init(&a, (tally_dtype)dtype, TALLY_OP_AVERAGE, 0, 2);
            tly_values_init(&b, (tally_dtype)dtype, TALLY_OP_AVERAGE, 1, 2);
            tly_values_fill(&a, 1, 0, data, counts[c]);
            tly_values_fill(&b, 1, 0, other, counts[c]);
            for (unsigned step = 0; step < 40; step++) {
                tly_values_stamp(&a, 1, step, data, counts[c]);
                tly_values_stamp(&b, 1, step, other, counts[c]);
                tly_reduce(data, other, counts[c], (tally_dtype)dtype, TALLY_OP_AVERAGE, 2);
                memcpy(other, data, counts[c] * a.element_bytes);
                assert_int_equal(tly_values_check(&a, 1, 0, step, data, counts[c], &first), 0);
            }
        }
    free(data);
    free(other);
}

static void one_wrong_element_anywhere_is_counted_and_named(void **state)
{
    (void)state;
    uint8_t *data = malloc(COUNT_MAX * 4);
    tly_values v;
    tly_values_wrong first;
    tly_values_init(&v, TALLY_DTYPE_F32, TALLY_OP_SUM, 0, 1);
    tly_values_fill(&v, 0, 0, data, 2049);
    for (size_t i = 0; i < 2049; i++) {
        float right, wrong;
        memcpy(&right, data + 4 * i, 4);
        wrong = right + 1;
        memcpy(data + 4 * i, &wrong, 4);
        assert_int_equal(tly_values_check(&v, 0, 0, 0, data, 2049, &first), 1);
        assert_int_equal(first.index, i);
        assert_true(first.right == (double)right && first.found == (double)wrong);
        memcpy(data + 4 * i, &right, 4);
    }
    free(data);
}

static void a_missing_or_doubled_contribution_is_wrong_in_every_element(void **state)
{
    (void)state;
    for (int workers = 2; workers <= 5; workers++)
        for (int left_out = 0; left_out < workers; left_out++)
            for (int twice = 0; twice < 2; twice++) {
                double sum[1000] = { 0 }, one[1000];
                tly_values v;
                tly_values_wrong first;
                for (int rank = 0; rank < workers; rank++) {
                    tly_values_init(&v, TALLY_DTYPE_F64, TALLY_OP_AVERAGE, rank, workers);
                    tly_values_fill(&v, 0, 0, one, 1000);
                    int times = rank == left_out ? 2 * twice : 1;
                    for (int i = 0; i < 1000; i++)
                        sum[i] += times * one[i] / workers;
                }
                assert_int_equal(tly_values_check(&v, 0, 0, 0, sum, 1000, &first), 1000);
            }
}

static void the_stamps_of_an_older_step_are_wrong(void **state)
{
    (void)state;
    float data[3000];
    tly_values v;
    tly_values_wrong first;
    tly_values_init(&v, TALLY_DTYPE_F32, TALLY_OP_SUM, 0, 1);
    tly_values_fill(&v, 0, 0, data, 3000);
    tly_values_stamp(&v, 0, 6, data, 3000);
    /* elements 0, 1024 and 2048 begin cells, and the last is 2999 */
    assert_int_equal(tly_values_check(&v, 0, 0, 7, data, 3000, &first), 4);
    assert_int_equal(tly_values_check(&v, 0, 0, 6, data, 3000, &first), 0);
}

static void partitions_and_tensors_that_changed_places_are_wrong(void **state)
{
    (void)state;
    static const size_t partitions[] = { 1024, 1 << 16, 1 << 18, 1 << 20 };
    uint8_t *data = malloc((size_t)8 << 20);
    tly_values v;
    tly_values_wrong first;
    tly_values_init(&v, TALLY_DTYPE_F32, TALLY_OP_SUM, 0, 1);
    for (size_t p = 0; p < sizeof(partitions) / sizeof(partitions[0]); p++) {
        tly_values_fill(&v, 0, 0, data, 2 * partitions[p]);
        /* the second partition where the first belongs */
        assert_int_equal(tly_values_check(&v, 0, 0, 0, data + 4 * partitions[p], partitions[p], &first),
                         partitions[p]);
    }
    tly_values_fill(&v, 1, 0, data, 100);
    assert_int_equal(tly_values_check(&v, 2, 0, 0, data, 100, &first), 100);
    free(data);
}

static void nothing_outside_the_elements_is_read_or_written(void **state)
{
    (void)state;
    for (size_t c = 0; c < COUNT_COUNT; c++) {
        tly_values v;
        tly_values_wrong first;
        tly_values_init(&v, TALLY_DTYPE_I64, TALLY_OP_SUM, 0, 1);
        size_t len = counts[c] * 8;
        uint8_t *data = malloc(len + 3); /* not aligned, and a guard on both sides */
        data[0] = data[len + 1] = data[len + 2] = 0xa5;
        tly_values_fill(&v, 0, 1, data + 1, counts[c]);
        tly_values_stamp(&v, 0, 1, data + 1, counts[c]);
        assert_int_equal(tly_values_check(&v, 0, 1, 1, data + 1, counts[c], &first), 0);
        assert_int_equal(data[0], 0xa5);
        assert_int_equal(data[len + 1], 0xa5);
        assert_int_equal(data[len + 2], 0xa5);
        free(data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_combination_of_all_workers_is_what_is_expected),
        cmocka_unit_test(a_stamped_average_in_place_is_right_step_after_step),
        cmocka_unit_test(one_wrong_element_anywhere_is_counted_and_named),
        cmocka_unit_test(a_missing_or_doubled_contribution_is_wrong_in_every_element),
        cmocka_unit_test(the_stamps_of_an_older_step_are_wrong),
        cmocka_unit_test(partitions_and_tensors_that_changed_places_are_wrong),
        cmocka_unit_test(nothing_outside_the_elements_is_read_or_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
