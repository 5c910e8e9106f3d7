#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "bench/plain.h"

#define COUNT_MAX 70 /* more than four of the widest vectors, and a rest */
#define ROOM (COUNT_MAX * sizeof(float) + 128)

/* Sums are exact, and no byte outside is written. */
static void assert_adds(size_t count, size_t acc_offset, size_t in_offset)
{
    uint8_t acc[ROOM], in[ROOM], expected[ROOM];
    memset(acc, 0xa5, sizeof(acc));
    memset(in, 0x5a, sizeof(in));
    for (size_t i = 0; i < count; i++) {
        float x = (float)i, y = (float)(1000 * i + 1);
        memcpy(acc + acc_offset + i * sizeof(float), &x, sizeof(x));
        memcpy(in + in_offset + i * sizeof(float), &y, sizeof(y));
    }
    memcpy(expected, acc, sizeof(acc));
    for (size_t i = 0; i < count; i++) {
        float sum = (float)(1001 * i + 1);
        memcpy(expected + acc_offset + i * sizeof(float), &sum, sizeof(sum));
    }
    tly_plain_add_f32(acc + acc_offset, in + in_offset, count);
    assert_memory_equal(acc, expected, sizeof(acc));
}

static void the_plain_addition_is_right_for_every_count_and_alignment(void **state)
{
    (void)state;
    for (size_t count = 0; count <= COUNT_MAX; count++) {
        assert_adds(count, 0, 0);
        assert_adds(count, 1, 3);
        assert_adds(count, 8, 63);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plain_addition_is_right_for_every_count_and_alignment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
