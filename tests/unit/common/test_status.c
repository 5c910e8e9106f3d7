#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "common/status.h"

static void *text_of_new_thread(void *arg)
{
    (void)arg;
    assert_string_equal(tly_error_text(), "no error");
    assert_int_equal(tly_error(TALLY_EBUSY, "mine"), TALLY_EBUSY);
    return NULL;
}

static void a_sentence_belongs_to_its_thread(void **state)
{
    (void)state;
    pthread_t thread;
    tly_error(TALLY_EINVAL, "the first thread's");
    assert_int_equal(pthread_create(&thread, NULL, text_of_new_thread, NULL), 0);
    pthread_join(thread, NULL);
    assert_string_equal(tly_error_text(), "the first thread's");
    assert_string_equal(tally_last_error(), "the first thread's");
}

static void error_sets_the_sentence_and_returns_the_status(void **state)
{
    (void)state;
    assert_int_equal(tly_error(TALLY_EPROTO, "worker %d sent %s", 3, "junk"), TALLY_EPROTO);
    assert_string_equal(tly_error_text(), "worker 3 sent junk");
}

static void context_stands_before_the_sentence(void **state)
{
    (void)state;
    tly_error(TALLY_ESYSTEM, "no route");
    assert_int_equal(tly_error_context(TALLY_EFAILED, "server %d", 1), TALLY_EFAILED);
    assert_string_equal(tly_error_text(), "server 1: no route");
}

static void arguments_may_point_into_the_current_sentence(void **state)
{
    (void)state;
    tly_error(TALLY_EFAILED, "abcdef");
    tly_error(TALLY_EFAILED, "%s then %s", tly_error_text(), tly_error_text() + 3);
    assert_string_equal(tly_error_text(), "abcdef then def");
    tly_error_context(TALLY_EFAILED, "%s", tly_error_text());
    assert_string_equal(tly_error_text(), "abcdef then def: abcdef then def");
}

static void a_sentence_that_is_too_long_is_cut(void **state)
{
    (void)state;
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    tly_error(TALLY_EFAILED, "%s", text);
    assert_int_equal(strlen(tly_error_text()), TLY_SENTENCE_MAX - 1);
    tly_error_context(TALLY_EFAILED, "front");
    assert_int_equal(strlen(tly_error_text()), TLY_SENTENCE_MAX - 1);
    assert_memory_equal(tly_error_text(), "front: xxx", 10);
    tly_error_context(TALLY_EFAILED, "%s", text);
    assert_int_equal(strlen(tly_error_text()), TLY_SENTENCE_MAX - 1);
}

static void a_memory_error_names_size_and_purpose(void **state)
{
    (void)state;
    assert_int_equal(tly_error_memory(4096, "the roster"), TALLY_ENOMEM);
    assert_string_equal(tly_error_text(), "out of memory: 4096 bytes for the roster");
}

static void wording_an_error_keeps_errno(void **state)
{
    (void)state;
    errno = ENOENT;
    tly_error(TALLY_ESYSTEM, "%s", strerror(ENOENT));
    tly_error_context(TALLY_ESYSTEM, "context");
    assert_int_equal(errno, ENOENT);
}

static void every_status_has_its_name(void **state)
{
    (void)state;
#define CHECK_NAME(code, value, text) assert_string_equal(tally_status_name((tally_status)value), #code);
    TALLY_STATUS_MAP(CHECK_NAME)
    assert_string_equal(tally_status_name((tally_status)16), "unknown status");
    assert_string_equal(tally_status_name((tally_status)-1), "unknown status");
}

static void header_and_makefile_agree_on_the_version(void **state)
{
    (void)state;
    assert_string_equal(tally_version(), TLY_VERSION);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sentence_belongs_to_its_thread),
        cmocka_unit_test(error_sets_the_sentence_and_returns_the_status),
        cmocka_unit_test(context_stands_before_the_sentence),
        cmocka_unit_test(arguments_may_point_into_the_current_sentence),
        cmocka_unit_test(a_sentence_that_is_too_long_is_cut),
        cmocka_unit_test(a_memory_error_names_size_and_purpose),
        cmocka_unit_test(wording_an_error_keeps_errno),
        cmocka_unit_test(every_status_has_its_name),
        cmocka_unit_test(header_and_makefile_agree_on_the_version),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
