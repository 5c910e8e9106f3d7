#include "common/log.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Longer lines are cut: one write of at most PIPE_BUF (4096) is never mixed with another's. */
#define LINE_MAX_BYTES 1500

static const char *level_name(tally_log_level level)
{
    static const char *const names[] = { "error", "warn", "info", "debug", "trace" };
    return (size_t)level < sizeof names / sizeof *names ? names[level] : "log";
}

void tly_log_clean(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if (*c < 0x20 || *c == 0x7f)
            *c = '?';
}

/* End a line that is too long in "...", without leaving half of a UTF-8 character in front. */
static void line_cut(char *line)
{
    size_t end = LINE_MAX_BYTES - 3;
    while (end > 0 && ((unsigned char)line[end] & 0xc0) == 0x80)
        end--;
    strcpy(line + end, "...");
}

/* One write. A closed pipe raises SIGPIPE, which would end the host program; as it is raised for
 * this thread, it can be held back and taken away here. */
static void write_line(const char *line, size_t len)
{
    sigset_t pipe_only, before, pending;
    sigemptyset(&pipe_only);
    sigaddset(&pipe_only, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &pipe_only, &before);
    ssize_t written;
    do
        written = write(STDERR_FILENO, line, len);
    while (written < 0 && errno == EINTR);
    if (written < 0 && errno == EPIPE && !sigismember(&pending, SIGPIPE))
        sigtimedwait(&pipe_only, NULL, &(struct timespec){ 0, 0 });
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* "2026-12-01 00:14:37.123 worker 1 warn " */
static size_t line_head(char *line, size_t len, const char *who, tally_log_level level)
{
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t used = strftime(line, len, "%Y-%m-%d %H:%M:%S", &utc);
    int rest = snprintf(line + used, len - used, ".%03d %s %s ", (int)(now.tv_nsec / 1000000), who,
                        level_name(level));
    return used + (rest > 0 ? (size_t)rest : 0);
}

void tly_log_line(const tly_log *log, tally_log_level level, const char *format, ...)
{
    static const tly_log standard = { TALLY_LOG_WARN, NULL, NULL, "tally" };
    if (!log)
        log = &standard;
    if (level > log->level)
        return;

    int saved = errno;
    char line[LINE_MAX_BYTES + 2]; /* with newline and final 0 */
    size_t head = line_head(line, sizeof line, log->who[0] ? log->who : standard.who, level);
    errno = saved; /* for %m */
    va_list args;
    va_start(args, format);
    int text = vsnprintf(line + head, LINE_MAX_BYTES + 1 - head, format, args);
    va_end(args);
    if (text < 0)
        strcpy(line + head, "(a text that could not be formatted)");
    else if (head + (size_t)text > LINE_MAX_BYTES)
        line_cut(line);
    tly_log_clean(line);

    if (log->sink) {
        log->sink(log->sink_arg, level, line);
    } else {
        size_t len = strlen(line);
        line[len] = '\n';
        write_line(line, len + 1);
    }
    errno = saved;
}
