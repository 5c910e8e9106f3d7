#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bench/machine.h"

#define MIB ((size_t)1 << 20)

static void a_cache_size_is_read_as_the_kernel_writes_it(void **state)
{
    (void)state;
    assert_int_equal(tly_machine_parse_cache("32K"), 32768);
    assert_int_equal(tly_machine_parse_cache("32768K"), 32 * MIB);
    assert_int_equal(tly_machine_parse_cache("64"), 64);
    assert_int_equal(tly_machine_parse_cache("unknown"), 0);
    assert_int_equal(tly_machine_parse_cache(""), 0);
}

static void a_buffer_exceeds_the_cache_twice_within_64_mib_and_1_gib(void **state)
{
    (void)state;
    assert_int_equal(tly_machine_exceeding_bytes(0), 64 * MIB);
    assert_int_equal(tly_machine_exceeding_bytes(32 * MIB), 64 * MIB);
    assert_int_equal(tly_machine_exceeding_bytes(33 * MIB), 66 * MIB);
    assert_int_equal(tly_machine_exceeding_bytes(512 * MIB), 1024 * MIB);
    assert_int_equal(tly_machine_exceeding_bytes(SIZE_MAX), 1024 * MIB);
}

static void this_machine_has_a_kernel_and_a_processor(void **state)
{
    (void)state;
    tly_machine m;
    tly_machine_look(&m);
    assert_true(m.processors >= 1);
    assert_memory_equal(m.kernel, "Linux ", 6);
    assert_string_not_equal(m.congestion_control, "");
    assert_string_not_equal(m.processor, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cache_size_is_read_as_the_kernel_writes_it),
        cmocka_unit_test(a_buffer_exceeds_the_cache_twice_within_64_mib_and_1_gib),
        cmocka_unit_test(this_machine_has_a_kernel_and_a_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
