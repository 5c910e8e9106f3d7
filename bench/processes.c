#include "bench/processes.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool tly_processes_parse_stat(const char *text, tly_process_stat *stat)
{
    const char *open = strchr(text, '('), *close = strrchr(text, ')');
    int parent;
    if (!open || !close || close < open || sscanf(close + 1, " %*c %d", &parent) != 1)
        return false;
    *stat = (tly_process_stat){ .parent = parent };
    snprintf(stat->name, sizeof(stat->name), "%.*s", (int)(close - open - 1), open + 1);
    return true;
}

uint64_t tly_processes_parse_peak(const char *text)
{
    const char *line = strstr(text, "\nVmHWM:");
    unsigned long long kib;
    return line && sscanf(line, "\nVmHWM: %llu kB", &kib) == 1 ? kib * 1024 : 0;
}

/* A file of /proc/PID, as text that ends with 0; false when the process is no more. */
static bool read_file(pid_t pid, const char *name, char *text, size_t room)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    size_t len = fread(text, 1, room - 1, file);
    text[len] = 0;
    fclose(file);
    return len > 0;
}

static bool is_of_job(const tly_process_stat *stat, const tly_process_stat *self)
{
    return stat->parent == self->parent
           && (strcmp(stat->name, "tally-scheduler") == 0 || strcmp(stat->name, "tally-server") == 0
               || strcmp(stat->name, self->name) == 0);
}

static int by_pid(const void *a, const void *b)
{
    pid_t x = ((const tly_process *)a)->pid, y = ((const tly_process *)b)->pid;
    return (x > y) - (x < y);
}

/* All that are of the job, at most room of them. Returns how many there are. */
static size_t collect(DIR *proc, const tly_process_stat *self, tly_process *items, size_t room)
{
    size_t count = 0;
    for (struct dirent *entry = readdir(proc); entry; entry = readdir(proc)) {
        char text[512];
        tly_process_stat stat;
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        pid_t pid = (pid_t)atoi(entry->d_name);
        if (!read_file(pid, "stat", text, sizeof(text)) || !tly_processes_parse_stat(text, &stat)
            || !is_of_job(&stat, self))
            continue;
        if (count < room) {
            items[count] = (tly_process){ .pid = pid };
            memcpy(items[count].name, stat.name, sizeof(stat.name));
        }
        count++;
    }
    return count;
}

tally_status tly_processes_find(int workers, int servers, tly_processes *processes)
{
    /* One worker alone has neither servers nor a scheduler. */
    size_t expected = (size_t)workers + (size_t)servers + (servers ? 1 : 0);
    char text[512];
    tly_process_stat self;
    if (!read_file(getpid(), "stat", text, sizeof(text)) || !tly_processes_parse_stat(text, &self))
        return tly_error(TALLY_ESYSTEM, "/proc/%d/stat cannot be read: %s", (int)getpid(), strerror(errno));
    DIR *proc = opendir("/proc");
    if (!proc)
        return tly_error(TALLY_ESYSTEM, "/proc cannot be read: %s", strerror(errno));
    tly_processes found = { .items = calloc(expected, sizeof(tly_process)) };
    if (!found.items) {
        closedir(proc);
        return tly_error_memory(expected * sizeof(tly_process), "the job's processes");
    }
    if (collect(proc, &self, found.items, expected) == expected)
        found.count = expected;
    closedir(proc);
    qsort(found.items, found.count, sizeof(tly_process), by_pid);
    *processes = found;
    return TALLY_OK;
}

void tly_processes_fini(tly_processes *processes)
{
    free(processes->items);
    *processes = (tly_processes){ 0 };
}

tally_status tly_processes_look(tly_processes *processes)
{
    for (size_t i = 0; i < processes->count; i++) {
        tly_process *p = &processes->items[i];
        char text[4096];
        clockid_t clock;
        struct timespec t;
        /* its clock counts nanoseconds, where /proc counts ticks of 10 ms */
        int error = clock_getcpuclockid(p->pid, &clock);
        if (!error)
            error = clock_gettime(clock, &t) ? errno : 0;
        if (error || !read_file(p->pid, "status", text, sizeof(text)))
            return tly_error(TALLY_ESYSTEM, "%s (pid %d) cannot be looked at: %s", p->name, (int)p->pid,
                             strerror(error ? error : ESRCH));
        p->cpu_s = (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
        p->peak_bytes = tly_processes_parse_peak(text);
    }
    return TALLY_OK;
}

double tly_processes_cpu_s(const tly_processes *processes)
{
    double sum = 0;
    for (size_t i = 0; i < processes->count; i++)
        sum += processes->items[i].cpu_s;
    return processes->count ? sum : (double)NAN;
}
