#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/ring.h"

static void push(tly_ring *ring, uint64_t value)
{
    assert_true(tly_ring_push(ring, &value));
}

static uint64_t at(const tly_ring *ring, size_t index)
{
    return *(uint64_t *)tly_ring_at(ring, index);
}

static void items_leave_in_the_order_in_which_they_came(void **state)
{
    (void)state;
    tly_ring ring;
    tly_ring_init(&ring, sizeof(uint64_t));
    for (uint64_t i = 0; i < 1000; i++)
        push(&ring, i * i);
    assert_int_equal(ring.count, 1000);
    for (uint64_t i = 0; i < 1000; i++) {
        assert_int_equal(at(&ring, 0), i * i);
        assert_int_equal(at(&ring, ring.count - 1), 999 * 999);
        tly_ring_pop(&ring);
    }
    assert_int_equal(ring.count, 0);
    tly_ring_fini(&ring);
}

static void order_holds_when_the_block_wraps_and_grows_while_wrapped(void **state)
{
    (void)state;
    /* Every distance of the first item from the block's start when it must grow. */
    for (uint64_t shift = 0; shift < 20; shift++) {
        tly_ring ring;
        tly_ring_init(&ring, sizeof(uint64_t));
        uint64_t in = 0, out = 0;
        for (; in < 10; in++)
            push(&ring, in);
        for (uint64_t i = 0; i < shift; i++) {
            push(&ring, in++);
            assert_int_equal(at(&ring, 0), out++);
            tly_ring_pop(&ring);
        }
        for (int i = 0; i < 50; i++)
            push(&ring, in++);
        assert_int_equal(ring.count, in - out);
        for (size_t i = 0; i < ring.count; i++)
            assert_int_equal(at(&ring, i), out + i);
        tly_ring_fini(&ring);
    }
}

static void a_queue_of_steady_length_never_grows(void **state)
{
    (void)state;
    tly_ring ring;
    tly_ring_init(&ring, sizeof(uint64_t));
    for (uint64_t i = 0; i < 16; i++)
        push(&ring, i);
    size_t room = ring.room;
    for (uint64_t i = 16; i < 100000; i++) {
        tly_ring_pop(&ring);
        push(&ring, i);
    }
    assert_int_equal(ring.room, room);
    assert_int_equal(at(&ring, 0), 100000 - 16);
    tly_ring_fini(&ring);
}

typedef struct odd {
    char bytes[13];
} odd;

static void items_of_any_size_are_copied_whole(void **state)
{
    (void)state;
    tly_ring ring;
    tly_ring_init(&ring, sizeof(odd));
    for (int i = 0; i < 40; i++) {
        odd item;
        memset(item.bytes, i, sizeof item.bytes);
        assert_true(tly_ring_push(&ring, &item));
        memset(item.bytes, 0xff, sizeof item.bytes);
    }
    for (int i = 0; i < 40; i++) {
        odd expected;
        memset(expected.bytes, i, sizeof expected.bytes);
        assert_memory_equal(tly_ring_at(&ring, (size_t)i), &expected, sizeof expected);
    }
    tly_ring_fini(&ring);
}

static void a_ring_may_be_used_again_after_fini_and_fini_may_be_repeated(void **state)
{
    (void)state;
    tly_ring ring;
    tly_ring_init(&ring, sizeof(uint64_t));
    push(&ring, 1);
    tly_ring_fini(&ring);
    tly_ring_fini(&ring);
    assert_int_equal(ring.count, 0);
    push(&ring, 2);
    assert_int_equal(at(&ring, 0), 2);
    tly_ring_fini(&ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_leave_in_the_order_in_which_they_came),
        cmocka_unit_test(order_holds_when_the_block_wraps_and_grows_while_wrapped),
        cmocka_unit_test(a_queue_of_steady_length_never_grows),
        cmocka_unit_test(items_of_any_size_are_copied_whole),
        cmocka_unit_test(a_ring_may_be_used_again_after_fini_and_fini_may_be_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
