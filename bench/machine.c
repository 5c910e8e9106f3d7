#include "bench/machine.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "bench/parse.h"

#define EXCEEDING_MIN ((size_t)64 << 20)
#define EXCEEDING_MAX ((size_t)1 << 30)

/* What follows the colon on the first line that begins with start (the whole first line when start
 * is ""); "unknown" if there is none. */
static void read_line(const char *path, const char *start, char *out, size_t room)
{
    snprintf(out, room, "unknown");
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    char line[512];
    while (fgets(line, sizeof(line), file)) {
        if (strncmp(line, start, strlen(start)) != 0)
            continue;
        const char *colon = *start ? strchr(line, ':') : NULL;
        const char *value = colon ? colon + 1 : line;
        value += strspn(value, " \t");
        snprintf(out, room, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    fclose(file);
}

size_t tly_machine_parse_cache(const char *text)
{
    size_t bytes;
    return tly_parse_size(text, &bytes) ? bytes : 0;
}

/* From the kernel, because sysconf gives a whole package's on some processors. */
static size_t last_cache_bytes(void)
{
    size_t last = 0;
    for (int index = 0; index < 8; index++) {
        char path[96], text[64];
        snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
        read_line(path, "", text, sizeof(text));
        size_t bytes = tly_machine_parse_cache(text);
        last = bytes > last ? bytes : last;
    }
    return last;
}

size_t tly_machine_exceeding_bytes(size_t cache_bytes)
{
    size_t bytes = cache_bytes < EXCEEDING_MAX / 2 ? 2 * cache_bytes : EXCEEDING_MAX;
    return bytes < EXCEEDING_MIN ? EXCEEDING_MIN : bytes;
}

void tly_machine_look(tly_machine *machine)
{
    struct utsname names;
    cpu_set_t set;
    *machine = (tly_machine){ .kernel = "unknown", .cache_bytes = last_cache_bytes() };
    read_line("/proc/cpuinfo", "model name", machine->processor, sizeof(machine->processor));
    read_line("/proc/sys/net/ipv4/tcp_congestion_control", "", machine->congestion_control,
              sizeof(machine->congestion_control));
    if (uname(&names) == 0)
        snprintf(machine->kernel, sizeof(machine->kernel), "%.60s %.60s", names.sysname, names.release);
    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        machine->processors = CPU_COUNT(&set);
}
