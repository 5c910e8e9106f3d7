#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "worker/pipeline.h"

#define COUNT 500

/* A partition with all that decides its place. */
typedef struct item {
    tly_part part;
    tly_tensor tensor;
    tly_exchange exchange;
} item;

static void item_init(item *i, int priority, uint32_t id, uint32_t index)
{
    memset(i, 0, sizeof *i);
    i->part.tensor = &i->tensor;
    i->part.exchange = &i->exchange;
    i->part.index = index;
    i->tensor.id = id;
    i->exchange.priority = priority;
}

static tly_part *take(tly_queue *queue)
{
    tly_part *part = tly_queue_first(queue);
    if (part)
        tly_queue_remove(queue, part);
    return part;
}

static void higher_priority_goes_first_then_the_order_of_placement_then_the_index(void **state)
{
    (void)state;
    static const int keys[][3] = { /* priority, tensor, index, in the order in which they must leave */
        { INT32_MAX, 9, 9 }, { 5, 0, 1 }, { 5, 0, 2 }, { 5, 1, 0 }, { 0, 0, 0 }, { -1, 0, 0 }, { -1, 2, 7 },
        { -1, 2, 8 }, { INT32_MIN, 0, 0 },
    };
    enum { N = sizeof keys / sizeof keys[0] };
    for (int shift = 0; shift < N; shift++) {
        item items[N];
        tly_queue queue = { 0 };
        assert_true(tly_queue_reserve(&queue, N));
        for (int i = 0; i < N; i++)
            item_init(&items[i], keys[i][0], (uint32_t)keys[i][1], (uint32_t)keys[i][2]);
        for (int i = 0; i < N; i++)
            tly_queue_add(&queue, &items[(i * 4 + shift) % N].part);
        for (int i = 0; i < N; i++)
            assert_ptr_equal(take(&queue), &items[i].part);
        assert_null(take(&queue));
        tly_queue_fini(&queue);
    }
}

/* Does a have to leave before b? */
static bool before(const item *a, const item *b)
{
    if (a->exchange.priority != b->exchange.priority)
        return a->exchange.priority > b->exchange.priority;
    if (a->tensor.id != b->tensor.id)
        return a->tensor.id < b->tensor.id;
    return a->part.index < b->part.index;
}

static void any_partition_can_be_taken_out_and_the_rest_keeps_its_order(void **state)
{
    (void)state;
    static item items[COUNT];
    tly_queue queue = { 0 };
    uint32_t random = 1, inside = 0;
    assert_true(tly_queue_reserve(&queue, COUNT));
    for (uint32_t i = 0; i < COUNT; i++)
        item_init(&items[i], (int)(i * 7919 % 5), i * 31 % 11, i);
    for (int step = 0; step < 20000; step++) {
        random = random * 1664525 + 1013904223;
        item *i = &items[(random >> 8) % COUNT];
        if (i->part.queued_at) {
            tly_queue_remove(&queue, &i->part);
            assert_int_equal(i->part.queued_at, 0);
            inside--;
        } else {
            tly_queue_add(&queue, &i->part);
            assert_int_not_equal(i->part.queued_at, 0);
            inside++;
        }
        assert_int_equal(queue.count, inside);
        if (inside > 0)
            assert_ptr_equal(queue.items[i->part.queued_at ? i->part.queued_at - 1 : 0],
                             i->part.queued_at ? &i->part : tly_queue_first(&queue));
    }
    const item *last = NULL;
    for (tly_part *part; (part = take(&queue)); inside--) {
        const item *i = (const item *)((char *)part - offsetof(item, part));
        assert_true(!last || before(last, i));
        last = i;
    }
    assert_int_equal(inside, 0);
    tly_queue_fini(&queue);
}

static void room_that_is_there_is_not_made_again(void **state)
{
    (void)state;
    tly_queue queue = { 0 };
    assert_true(tly_queue_reserve(&queue, 100));
    struct tly_part **items = queue.items;
    assert_true(queue.room >= 100);
    assert_true(tly_queue_reserve(&queue, 100));
    assert_true(tly_queue_reserve(&queue, 1));
    assert_ptr_equal(queue.items, items);
    tly_queue_fini(&queue);
    tly_queue_fini(&queue);
    assert_null(tly_queue_first(&queue));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(higher_priority_goes_first_then_the_order_of_placement_then_the_index),
        cmocka_unit_test(any_partition_can_be_taken_out_and_the_rest_keeps_its_order),
        cmocka_unit_test(room_that_is_there_is_not_made_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
