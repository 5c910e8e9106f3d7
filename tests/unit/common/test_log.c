#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"

typedef struct captured {
    int count;
    tally_log_level level;
    char line[4096];
} captured;

static void capture(void *arg, tally_log_level level, const char *line)
{
    captured *c = arg;
    c->count++;
    c->level = level;
    snprintf(c->line, sizeof c->line, "%s", line);
}

/* The time has its fixed form; returns what follows it. */
static const char *after_time(const char *line)
{
    static const char form[] = "dddd-dd-dd dd:dd:dd.ddd ";
    for (size_t i = 0; i < sizeof form - 1; i++) {
        if (form[i] == 'd')
            assert_in_range(line[i], '0', '9');
        else
            assert_int_equal(line[i], form[i]);
    }
    return line + sizeof form - 1;
}

/* Standard error goes to the write end of a pipe meanwhile. */
static int stderr_to(int fd)
{
    int saved = dup(STDERR_FILENO);
    assert_true(saved >= 0);
    assert_true(dup2(fd, STDERR_FILENO) >= 0);
    return saved;
}

static void stderr_back(int saved)
{
    assert_true(dup2(saved, STDERR_FILENO) >= 0);
    close(saved);
}

static void a_line_has_time_role_rank_level_and_text(void **state)
{
    (void)state;
    captured c = { 0 };
    tly_log log = { TALLY_LOG_TRACE, capture, &c, "worker 1" };
    static const char *const names[] = { "error", "warn", "info", "debug", "trace" };
    for (int level = TALLY_LOG_ERROR; level <= TALLY_LOG_TRACE; level++) {
        char expected[64];
        snprintf(expected, sizeof expected, "worker 1 %s credit 8", names[level]);
        tly_log_line(&log, (tally_log_level)level, "credit %d", 8);
        assert_int_equal(c.level, level);
        assert_string_equal(after_time(c.line), expected);
    }
    assert_int_equal(c.count, 5);
}

static void a_line_above_the_level_is_dropped(void **state)
{
    (void)state;
    captured c = { 0 };
    tly_log log = { TALLY_LOG_WARN, capture, &c, "server 0" };
    tly_log_info(&log, "not wanted");
    assert_int_equal(c.count, 0);
    tly_log_warn(&log, "wanted");
    assert_int_equal(c.count, 1);
}

static void control_characters_become_question_marks(void **state)
{
    (void)state;
    captured c = { 0 };
    tly_log log = { TALLY_LOG_WARN, capture, &c, "server 0" };
    tly_log_warn(&log, "a\nb\033[31m\x7f\tg\xc3\xbc");
    assert_string_equal(after_time(c.line), "server 0 warn a?b?[31m??g\xc3\xbc");
}

static void a_long_line_is_cut_and_ends_in_dots(void **state)
{
    (void)state;
    captured c = { 0 };
    tly_log log = { TALLY_LOG_WARN, capture, &c, "server 0" };
    char text[3000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    tly_log_warn(&log, "%s", text);
    assert_int_equal(strlen(c.line), 1500);
    assert_string_equal(c.line + 1496, "x...");

    /* exactly as long as there is room: not cut */
    size_t head = (size_t)(after_time(c.line) - c.line) + strlen("server 0 warn ");
    text[1500 - head] = 0;
    tly_log_warn(&log, "%s", text);
    assert_int_equal(strlen(c.line), 1500);
    assert_string_equal(c.line + 1496, "xxxx");
}

static void a_cut_leaves_no_half_character(void **state)
{
    (void)state;
    captured c = { 0 };
    tly_log log = { TALLY_LOG_WARN, capture, &c, "server 0" };
    for (int shift = 0; shift < 2; shift++) {
        char text[3000] = "x";
        for (int i = shift; i < 2000; i += 2)
            memcpy(text + i, "\xc3\xbc", 3);
        tly_log_warn(&log, "%s", text);
        size_t len = strlen(c.line);
        assert_string_equal(c.line + len - 5, "\xc3\xbc...");
        assert_in_range(len, 1499, 1500);
    }
}

static void a_line_goes_to_standard_error_in_one_write(void **state)
{
    (void)state;
    /* a packet pipe keeps writes apart */
    int ends[2];
    assert_int_equal(pipe2(ends, O_DIRECT | O_CLOEXEC), 0);
    int saved = stderr_to(ends[1]);
    tly_log log = { TALLY_LOG_WARN, NULL, NULL, "scheduler" };
    tly_log_warn(&log, "one");
    tly_log_warn(NULL, "two");
    tly_log_info(NULL, "not wanted");
    tly_log_error(&(tly_log){ .level = TALLY_LOG_ERROR }, "three");
    stderr_back(saved);
    close(ends[1]);

    static const char *const expected[] = { "scheduler warn one\n", "tally warn two\n",
                                            "tally error three\n" };
    char line[4096];
    for (int i = 0; i < 3; i++) {
        ssize_t len = read(ends[0], line, sizeof line - 1);
        assert_true(len > 0);
        line[len] = 0;
        assert_string_equal(after_time(line), expected[i]);
    }
    assert_int_equal(read(ends[0], line, sizeof line), 0);
    close(ends[0]);
}

static void a_closed_standard_error_does_not_end_the_program(void **state)
{
    (void)state;
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    close(ends[0]);
    int saved = stderr_to(ends[1]);
    tly_log_error(NULL, "nobody reads this");
    stderr_back(saved);
    close(ends[1]);
    sigset_t mask, pending;
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    sigpending(&pending);
    assert_false(sigismember(&mask, SIGPIPE));
    assert_false(sigismember(&pending, SIGPIPE));
}

static void logging_keeps_errno(void **state)
{
    (void)state;
    captured c = { 0 };
    tly_log log = { TALLY_LOG_WARN, capture, &c, "server 0" };
    errno = EPROTO;
    tly_log_warn(&log, "%m");
    assert_int_equal(errno, EPROTO);
    assert_string_equal(after_time(c.line), "server 0 warn Protocol error");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_time_role_rank_level_and_text),
        cmocka_unit_test(a_line_above_the_level_is_dropped),
        cmocka_unit_test(control_characters_become_question_marks),
        cmocka_unit_test(a_long_line_is_cut_and_ends_in_dots),
        cmocka_unit_test(a_cut_leaves_no_half_character),
        cmocka_unit_test(a_line_goes_to_standard_error_in_one_write),
        cmocka_unit_test(a_closed_standard_error_does_not_end_the_program),
        cmocka_unit_test(logging_keeps_errno),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
