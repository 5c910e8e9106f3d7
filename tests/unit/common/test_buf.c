#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"

/* A buffer of the test's own that counts how often it is freed. */
typedef struct counted {
    tly_buf base;
    atomic_int freed;
    char data[16];
} counted;

static void count_free(tly_buf *buf)
{
    atomic_fetch_add(&((counted *)buf)->freed, 1);
}

static void counted_init(counted *c)
{
    memset(c, 0, sizeof *c);
    tly_buf_init(&c->base, c->data, sizeof c->data, count_free);
}

static void data_is_aligned_to_64_bytes_and_writable_to_its_end(void **state)
{
    (void)state;
    const size_t lens[] = { 0, 1, 63, 64, 65, 4096, 1000003 };
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        tly_buf *buf = tly_buf_alloc(lens[i]);
        assert_non_null(buf);
        assert_int_equal((uintptr_t)buf->data % 64, 0);
        assert_int_equal(buf->len_bytes, lens[i]);
        assert_int_equal(atomic_load(&buf->refs), 1);
        memset(buf->data, 0xa5, lens[i]);
        tly_buf_put(buf);
    }
}

static void a_length_beyond_the_address_space_gives_null(void **state)
{
    (void)state;
    assert_null(tly_buf_alloc(SIZE_MAX));
    assert_null(tly_buf_alloc(SIZE_MAX - 64));
    assert_null(tly_buf_alloc(SIZE_MAX - 127));
}

static void the_last_put_frees_and_no_earlier_one(void **state)
{
    (void)state;
    counted c;
    counted_init(&c);
    assert_ptr_equal(tly_buf_get(&c.base), &c.base);
    tly_buf_get(&c.base);
    tly_buf_put(&c.base);
    tly_buf_put(&c.base);
    assert_int_equal(c.freed, 0);
    tly_buf_put(&c.base);
    assert_int_equal(c.freed, 1);
}

static void putting_null_is_allowed(void **state)
{
    (void)state;
    tly_buf_put(NULL);
}

static void a_slice_shows_its_part_and_keeps_its_parent_alive(void **state)
{
    (void)state;
    counted c;
    counted_init(&c);
    tly_buf *slice = tly_buf_slice(&c.base, 5, 7);
    assert_non_null(slice);
    assert_ptr_equal(slice->data, c.data + 5);
    assert_int_equal(slice->len_bytes, 7);
    tly_buf_put(&c.base); /* the caller's own reference was the caller's */
    assert_int_equal(c.freed, 0);
    memset(slice->data, 1, 7);
    tly_buf_put(slice);
    assert_int_equal(c.freed, 1);
    assert_int_equal(c.data[4], 0);
    assert_int_equal(c.data[5], 1);
    assert_int_equal(c.data[11], 1);
    assert_int_equal(c.data[12], 0);
}

static void a_slice_of_a_slice_keeps_the_whole_chain_alive(void **state)
{
    (void)state;
    counted c;
    counted_init(&c);
    tly_buf *outer = tly_buf_slice(&c.base, 4, 8);
    tly_buf *inner = tly_buf_slice(outer, 2, 3);
    assert_ptr_equal(inner->data, c.data + 6);
    tly_buf_put(&c.base);
    tly_buf_put(outer);
    assert_int_equal(c.freed, 0);
    tly_buf_put(inner);
    assert_int_equal(c.freed, 1);
}

#define THREADS 4
#define TURNS 20000

static void *get_and_put(void *arg)
{
    tly_buf *buf = arg;
    for (int i = 0; i < TURNS; i++) {
        tly_buf_get(buf);
        tly_buf_put(buf);
    }
    tly_buf_put(buf);
    return NULL;
}

static void references_of_many_threads_free_once(void **state)
{
    (void)state;
    counted c;
    counted_init(&c);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, get_and_put, tly_buf_get(&c.base)), 0);
    tly_buf_put(&c.base);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(c.freed, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_is_aligned_to_64_bytes_and_writable_to_its_end),
        cmocka_unit_test(a_length_beyond_the_address_space_gives_null),
        cmocka_unit_test(the_last_put_frees_and_no_earlier_one),
        cmocka_unit_test(putting_null_is_allowed),
        cmocka_unit_test(a_slice_shows_its_part_and_keeps_its_parent_alive),
        cmocka_unit_test(a_slice_of_a_slice_keeps_the_whole_chain_alive),
        cmocka_unit_test(references_of_many_threads_free_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
