#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/processes.h"

static void the_name_in_a_stat_line_may_hold_anything(void **state)
{
    (void)state;
    tly_process_stat stat;
    assert_true(tly_processes_parse_stat("12 (tally-server) S 34 12 12 0 -1", &stat));
    assert_string_equal(stat.name, "tally-server");
    assert_int_equal(stat.parent, 34);
    assert_true(tly_processes_parse_stat("12 (a) S 5 (b) R 67 12", &stat));
    assert_string_equal(stat.name, "a) S 5 (b");
    assert_int_equal(stat.parent, 67);
    assert_true(tly_processes_parse_stat("12 () S 1", &stat));
    assert_string_equal(stat.name, "");
    assert_true(tly_processes_parse_stat("12 (abcdefghijklmnopqrst) S 1", &stat));
    assert_string_equal(stat.name, "abcdefghijklmno");
}

static void what_is_no_stat_line_is_refused(void **state)
{
    (void)state;
    tly_process_stat stat;
    static const char *const lines[] = { "", "12", "12 (a", "12 a) S 3", ")(", "12 (a) S", "12 (a) S x" };
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        assert_false(tly_processes_parse_stat(lines[i], &stat));
}

static void the_peak_is_read_in_bytes(void **state)
{
    (void)state;
    static const char status[] = "Name:\tx\nVmPeak:\t 9 kB\nVmHWM:\t    1234 kB\nVmRSS:\t 1 kB\n";
    assert_int_equal(tly_processes_parse_peak(status), 1234 * 1024);
    assert_int_equal(tly_processes_parse_peak("Name:\tkthreadd\n"), 0);
    assert_int_equal(tly_processes_parse_peak("\nVmHWM:\t kB\n"), 0);
}

/* A name that no other process has, so that tests that run at the same time do not see each other. */
static void take_a_name(const char *name)
{
    char text[TLY_PROCESS_NAME_ROOM];
    snprintf(text, sizeof(text), "t%d", (int)getpid());
    prctl(PR_SET_NAME, name ? name : text, 0, 0, 0);
}

static void a_worker_alone_finds_itself(void **state)
{
    (void)state;
    tly_processes all;
    take_a_name(NULL);
    assert_int_equal(tly_processes_find(1, 0, &all), TALLY_OK);
    assert_int_equal(all.count, 1);
    assert_int_equal(all.items[0].pid, getpid());
    assert_int_equal(tly_processes_look(&all), TALLY_OK);
    double cpu_s = all.items[0].cpu_s;
    uint64_t peak_bytes = all.items[0].peak_bytes;
    assert_true(cpu_s > 0 && tly_processes_cpu_s(&all) == cpu_s);
    assert_true(peak_bytes > 100000);
    volatile char *more = malloc(64 << 20);
    for (size_t i = 0; i < 64 << 20; i += 1024)
        more[i] = 1;
    assert_int_equal(tly_processes_look(&all), TALLY_OK);
    assert_true(all.items[0].cpu_s > cpu_s);
    assert_true(all.items[0].peak_bytes > peak_bytes + (60 << 20));
    free((char *)more);
    tly_processes_fini(&all);
}

static void a_job_that_is_not_all_here_has_no_cost(void **state)
{
    (void)state;
    tly_processes all;
    take_a_name(NULL);
    assert_int_equal(tly_processes_find(2, 1, &all), TALLY_OK);
    assert_int_equal(all.count, 0);
    assert_int_equal(tly_processes_look(&all), TALLY_OK);
    assert_true(isnan(tly_processes_cpu_s(&all)));
    tly_processes_fini(&all);
    tly_processes_fini(&all);
}

/* A process that lives until the pipe's other end is closed. */
static pid_t start(const char *name, int until_fd[2], int named_fd)
{
    pid_t pid = fork();
    if (pid == 0) {
        char byte = 0;
        close(until_fd[1]);
        take_a_name(name);
        if (write(named_fd, &byte, 1) == 1 && read(until_fd[0], &byte, 1) == 0)
            _exit(0);
        _exit(1);
    }
    return pid;
}

/* In a process of its own, whose children are a job: worker 0 is the last of them. Returns 0 if it
 * finds exactly the job. */
static int play_a_job(void)
{
    static const char *const names[] = { "tally-scheduler", "tally-server", "the-worker", "another" };
    int until[2], named[2], status = 1;
    pid_t pids[4];
    char bytes[4];
    if (pipe(until) || pipe(named))
        return 1;
    for (int i = 0; i < 4; i++)
        pids[i] = start(names[i], until, named[1]);
    for (int i = 0; i < 4; i++)
        if (read(named[0], &bytes[i], 1) != 1)
            return 1;
    pid_t worker = fork();
    if (worker == 0) {
        tly_processes all;
        close(until[1]);
        take_a_name("the-worker");
        bool right = tly_processes_find(2, 1, &all) == TALLY_OK && all.count == 4
                     && tly_processes_look(&all) == TALLY_OK;
        for (int i = 0; i < 3 && right; i++)
            right = all.items[i].pid == pids[i] && strcmp(all.items[i].name, names[i]) == 0;
        right = right && all.items[3].pid == getpid();
        tly_processes_fini(&all);
        _exit(!right);
    }
    waitpid(worker, &status, 0);
    close(until[1]);
    for (int i = 0; i < 4; i++)
        waitpid(pids[i], NULL, 0);
    return status != 0;
}

static void a_worker_finds_the_processes_of_its_job_and_no_other(void **state)
{
    (void)state;
    int status = 1;
    pid_t pid = fork();
    if (pid == 0)
        _exit(play_a_job());
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void a_process_that_has_ended_is_an_error(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    tly_process gone = { .pid = pid, .name = "tally-server" };
    tly_processes all = { &gone, 1 };
    char sentence[128];
    snprintf(sentence, sizeof(sentence), "tally-server (pid %d) cannot be looked at: No such process",
             (int)pid);
    assert_int_equal(tly_processes_look(&all), TALLY_ESYSTEM);
    assert_string_equal(tly_error_text(), sentence);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_name_in_a_stat_line_may_hold_anything),
        cmocka_unit_test(what_is_no_stat_line_is_refused),
        cmocka_unit_test(the_peak_is_read_in_bytes),
        cmocka_unit_test(a_worker_alone_finds_itself),
        cmocka_unit_test(a_job_that_is_not_all_here_has_no_cost),
        cmocka_unit_test(a_worker_finds_the_processes_of_its_job_and_no_other),
        cmocka_unit_test(a_process_that_has_ended_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
