#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/mailbox.h"

static bool is_readable(const tly_mailbox *box)
{
    struct pollfd p = { .fd = box->fd, .events = POLLIN };
    return poll(&p, 1, 0) == 1;
}

static void letters_come_all_at_once_in_the_order_of_posting(void **state)
{
    (void)state;
    tly_mailbox box;
    tly_letter letters[5] = { { .type = 0 } };
    assert_int_equal(tly_mailbox_init(&box), TALLY_OK);
    for (int i = 0; i < 5; i++) {
        letters[i].type = i;
        assert_true(tly_mailbox_post(&box, &letters[i]));
    }
    tly_letter *letter = tly_mailbox_take(&box);
    for (int i = 0; i < 5; i++, letter = letter->next) {
        assert_ptr_equal(letter, &letters[i]);
        assert_int_equal(letter->type, i);
    }
    assert_null(letter);
    assert_null(tly_mailbox_take(&box));
    tly_mailbox_fini(&box);
}

static void the_descriptor_is_readable_exactly_while_letters_wait(void **state)
{
    (void)state;
    tly_mailbox box;
    tly_letter a = { 0 }, b = { 0 };
    assert_int_equal(tly_mailbox_init(&box), TALLY_OK);
    for (int turn = 0; turn < 3; turn++) {
        assert_false(is_readable(&box));
        assert_true(tly_mailbox_post(&box, &a));
        assert_true(is_readable(&box));
        assert_true(tly_mailbox_post(&box, &b));
        assert_true(is_readable(&box));
        assert_ptr_equal(tly_mailbox_take(&box), &a);
        assert_ptr_equal(a.next, &b);
        assert_false(is_readable(&box));
    }
    tly_mailbox_fini(&box);
}

static void a_closed_box_refuses_letters_and_still_gives_out_those_it_has(void **state)
{
    (void)state;
    tly_mailbox box;
    tly_letter early = { 0 }, late = { .next = &early, .type = 7 };
    assert_int_equal(tly_mailbox_init(&box), TALLY_OK);
    assert_true(tly_mailbox_post(&box, &early));
    tly_mailbox_close(&box);
    assert_false(tly_mailbox_post(&box, &late));
    assert_ptr_equal(late.next, &early); /* the letter stays the caller's, untouched */
    assert_ptr_equal(tly_mailbox_take(&box), &early);
    assert_null(early.next);
    assert_null(tly_mailbox_take(&box));
    tly_mailbox_fini(&box);
}

static void the_descriptor_does_not_pass_to_programs_that_are_started(void **state)
{
    (void)state;
    tly_mailbox box;
    assert_int_equal(tly_mailbox_init(&box), TALLY_OK);
    assert_int_equal(fcntl(box.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    tly_mailbox_fini(&box);
}

static void fini_of_a_zeroed_box_does_nothing(void **state)
{
    (void)state;
    tly_mailbox box = { 0 };
    tly_mailbox_fini(&box);
    assert_false(box.made);
}

#define THREADS 3
#define LETTERS 2000

typedef struct poster {
    pthread_t thread;
    tly_mailbox *box;
    tly_letter letters[LETTERS];
} poster;

static void *post_all(void *arg)
{
    poster *p = arg;
    for (int i = 0; i < LETTERS; i++)
        tly_mailbox_post(p->box, &p->letters[i]);
    return NULL;
}

static void no_letter_of_many_threads_is_lost_and_each_threads_order_is_kept(void **state)
{
    (void)state;
    static poster posters[THREADS];
    tly_mailbox box;
    assert_int_equal(tly_mailbox_init(&box), TALLY_OK);
    for (int i = 0; i < THREADS; i++) {
        posters[i].box = &box;
        for (int j = 0; j < LETTERS; j++)
            posters[i].letters[j].type = i * LETTERS + j;
        assert_int_equal(pthread_create(&posters[i].thread, NULL, post_all, &posters[i]), 0);
    }
    int next[THREADS] = { 0 }, count = 0;
    while (count < THREADS * LETTERS) {
        struct pollfd p = { .fd = box.fd, .events = POLLIN };
        assert_int_equal(poll(&p, 1, 10000), 1);
        for (tly_letter *letter = tly_mailbox_take(&box); letter; letter = letter->next, count++)
            assert_int_equal(letter->type % LETTERS, next[letter->type / LETTERS]++);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(posters[i].thread, NULL);
    assert_false(is_readable(&box));
    tly_mailbox_fini(&box);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(letters_come_all_at_once_in_the_order_of_posting),
        cmocka_unit_test(the_descriptor_is_readable_exactly_while_letters_wait),
        cmocka_unit_test(a_closed_box_refuses_letters_and_still_gives_out_those_it_has),
        cmocka_unit_test(the_descriptor_does_not_pass_to_programs_that_are_started),
        cmocka_unit_test(fini_of_a_zeroed_box_does_nothing),
        cmocka_unit_test(no_letter_of_many_threads_is_lost_and_each_threads_order_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
