#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/parse.h"

static void a_size_takes_the_suffixes_k_m_and_g(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t value;
    } cases[] = {
        { "0", 0 },          { "4", 4 },           { "1K", 1024 },     { "1k", 1024 },
        { "64M", 67108864 }, { "3g", 3221225472 }, { "007", 7 },       { "0G", 0 },
        { "18446744073709551615", SIZE_MAX },      { "17179869183G", (size_t)17179869183 << 30 },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t value = 99;
        assert_true(tly_parse_size(cases[i].text, &value));
        assert_int_equal(value, cases[i].value);
    }
}

static void a_wrong_size_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    static const char *const texts[] = { "",    "K",  "-1",  "+1", " 1",  "1 ",   "1T",
                                         "1KB", "1.5K", "0x10", "18446744073709551616", "17179869184G" };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        size_t value = 99;
        assert_false(tly_parse_size(texts[i], &value));
        assert_int_equal(value, 99);
    }
}

static void a_whole_number_keeps_within_its_range(void **state)
{
    (void)state;
    int value = 99;
    assert_true(tly_parse_int("5", 5, 7, &value));
    assert_int_equal(value, 5);
    assert_true(tly_parse_int("7", 5, 7, &value));
    assert_int_equal(value, 7);
    static const char *const texts[] = { "4", "8", "", "x", "6x", " 6", "6.0", "99999999999999999999" };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_false(tly_parse_int(texts[i], 5, 7, &value));
        assert_int_equal(value, 7);
    }
}

static void a_positive_number_is_finite_and_above_zero(void **state)
{
    (void)state;
    double value = 99;
    assert_true(tly_parse_positive("2.5", &value));
    assert_true(value == 2.5);
    static const char *const texts[] = { "0", "-1", "", "nan", "inf", "1e999", "2.5x", " 2" };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        assert_false(tly_parse_positive(texts[i], &value));
        assert_true(value == 2.5);
    }
}

static void every_name_of_a_type_and_an_operation_is_known(void **state)
{
    (void)state;
    for (int i = 0; i < TALLY_DTYPE_COUNT; i++) {
        tally_dtype dtype = TALLY_DTYPE_COUNT;
        assert_true(tly_parse_dtype(tally_dtype_name((tally_dtype)i), &dtype));
        assert_int_equal(dtype, i);
    }
    for (int i = 0; i < TALLY_OP_COUNT; i++) {
        tally_op op = TALLY_OP_COUNT;
        assert_true(tly_parse_op(tally_op_name((tally_op)i), &op));
        assert_int_equal(op, i);
    }
    tally_dtype dtype;
    tally_op op;
    assert_false(tly_parse_dtype("float", &dtype));
    assert_false(tly_parse_op("", &op));
}

static void a_list_names_all_and_is_cut_to_its_room(void **state)
{
    (void)state;
    char list[128];
    tly_parse_list_ops(list, sizeof(list));
    assert_string_equal(list, "sum, average, min, max");
    tly_parse_list_dtypes(list, sizeof(list));
    assert_string_equal(list, "float16, bfloat16, float32, float64, int8, uint8, int32, int64");
    tly_parse_list_ops(list, 6);
    assert_string_equal(list, "sum, ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_size_takes_the_suffixes_k_m_and_g),
        cmocka_unit_test(a_wrong_size_is_refused_and_changes_nothing),
        cmocka_unit_test(a_whole_number_keeps_within_its_range),
        cmocka_unit_test(a_positive_number_is_finite_and_above_zero),
        cmocka_unit_test(every_name_of_a_type_and_an_operation_is_known),
        cmocka_unit_test(a_list_names_all_and_is_cut_to_its_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
