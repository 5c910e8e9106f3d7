#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/control.h"
#include "tests/lib/failing.h"
#include "tests/lib/golden.h"

/* The golden messages have something in every array. */
static size_t message_of(tly_ctl_type type, uint8_t *frame, size_t room)
{
    size_t len_bytes = golden_read("tests/data/control.hex", tly_ctl_name(type), frame, room);
    assert_int_not_equal(len_bytes, 0); /* else: run from the repository's root */
    return len_bytes;
}

static void decoding_whose_memory_is_short_gives_that_error_and_leaves_the_message_alone(void **state)
{
    (void)state;
    long failures = 0;
    for (int type = 1; type < TLY_CTL_TYPE_END; type++) {
        uint8_t frame[1024];
        size_t len_bytes = message_of((tly_ctl_type)type, frame, sizeof frame);
        bool more = true;
        for (long number = 1; more; number++) {
            tly_ctl message = { .job = 1234 };
            failing_arm(number);
            tally_status status = tly_ctl_decode(frame, len_bytes, &message);
            more = failing_disarm();
            assert_int_equal(status, more ? TALLY_ENOMEM : TALLY_OK);
            if (more)
                assert_int_equal(message.job, 1234);
            else
                tly_ctl_fini(&message);
            failures += more;
        }
    }
    assert_int_equal(failures, 1 + 1 + 3 + 2); /* the arrays of REGISTER, DECLARE, EPOCH and PLACED */
}

static void encoding_whose_memory_is_short_gives_that_error_and_no_message(void **state)
{
    (void)state;
    for (int type = 1; type < TLY_CTL_TYPE_END; type++) {
        uint8_t frame[1024];
        tly_ctl message;
        size_t len_bytes = message_of((tly_ctl_type)type, frame, sizeof frame);
        assert_int_equal(tly_ctl_decode(frame, len_bytes, &message), TALLY_OK);
        bool more = true;
        for (long number = 1; more; number++) {
            tly_writer w;
            tly_writer_init(&w);
            failing_arm(number);
            tally_status status = tly_ctl_encode(&message, &w);
            more = failing_disarm();
            assert_int_equal(status, more ? TALLY_ENOMEM : TALLY_OK);
            tly_writer_fini(&w);
        }
        more = true;
        for (long number = 1; more; number++) {
            failing_arm(number);
            tly_out *out = tly_ctl_out(&message);
            more = failing_disarm();
            assert_int_equal(out == NULL, more);
            if (out) {
                assert_int_equal(out->head_len_bytes, len_bytes);
                assert_memory_equal(out->head, frame, len_bytes);
            }
            tly_out_free(out);
            assert_true(more || number > 2);
        }
        tly_ctl_fini(&message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_whose_memory_is_short_gives_that_error_and_leaves_the_message_alone),
        cmocka_unit_test(encoding_whose_memory_is_short_gives_that_error_and_no_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
