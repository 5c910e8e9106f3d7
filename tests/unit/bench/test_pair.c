#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/pair.h"

static tally_status give_values(tly_pair_side *side, void *arg)
{
    side->values[0] = side->index + 1;
    side->values[1] = *(const int *)arg + side->index;
    return TALLY_OK;
}

static void each_side_gives_its_own_values(void **state)
{
    (void)state;
    double values[6] = { 9, 9, 9, 9, 9, 9 };
    int arg = 40;
    assert_int_equal(tly_pair_run(give_values, &arg, values, 3), TALLY_OK);
    const double expected[6] = { 1, 40, 0, 2, 41, 0 };
    for (int i = 0; i < 6; i++)
        assert_true(values[i] == expected[i]);
}

static tally_status talk(tly_pair_side *side, void *arg)
{
    (void)arg;
    int said = side->index + 7, heard = 0;
    tally_status status = tly_pair_tell(side, &said, sizeof(said));
    if (!status)
        status = tly_pair_hear(side, &heard, sizeof(heard));
    if (!status)
        status = tly_pair_meet(side);
    side->values[0] = heard;
    side->values[1] = getpid();
    return status;
}

static void the_sides_are_two_processes_that_hear_each_other(void **state)
{
    (void)state;
    double values[4];
    assert_int_equal(tly_pair_run(talk, NULL, values, 2), TALLY_OK);
    assert_true(values[0] == 8 && values[2] == 7);
    assert_true(values[1] != values[3] && values[1] != getpid() && values[3] != getpid());
}

static tally_status fail_on(tly_pair_side *side, void *arg)
{
    if (side->index == *(const int *)arg)
        return tly_error(TALLY_ESYSTEM, "side %d cannot", side->index);
    return tly_pair_meet(side); /* and so hears that the other has ended */
}

static void the_sentence_is_that_of_the_side_that_failed_and_not_of_the_one_it_left_alone(void **state)
{
    (void)state;
    double values[2] = { 5, 6 };
    for (int side = 0; side < 2; side++) {
        char sentence[32] = "side 0 cannot";
        sentence[5] = (char)('0' + side);
        assert_int_equal(tly_pair_run(fail_on, &side, values, 1), TALLY_ESYSTEM);
        assert_string_equal(tly_error_text(), sentence);
        assert_true(values[0] == 5 && values[1] == 6);
    }
}

static tally_status vanish(tly_pair_side *side, void *arg)
{
    (void)arg;
    if (side->index == 1)
        _exit(0);
    return tly_pair_meet(side);
}

static void a_side_that_ends_without_a_word_is_an_error(void **state)
{
    (void)state;
    double values[2];
    assert_int_equal(tly_pair_run(vanish, NULL, values, 1), TALLY_EFAILED);
    assert_string_equal(tly_error_text(), "process 1 of the measurement ended by itself");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_side_gives_its_own_values),
        cmocka_unit_test(the_sides_are_two_processes_that_hear_each_other),
        cmocka_unit_test(the_sentence_is_that_of_the_side_that_failed_and_not_of_the_one_it_left_alone),
        cmocka_unit_test(a_side_that_ends_without_a_word_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
