/* machine.h - what a figure must be read with: the machine that gave it. */
#ifndef TLY_BENCH_MACHINE_H
#define TLY_BENCH_MACHINE_H

#include <stddef.h>

typedef struct tly_machine {
    char processor[128], kernel[128];
    char congestion_control[64]; /* the kernel's default: on a loopback bbr paces to half of what the
                                    others reach, so a result means little without it */
    int processors;              /* that this process may use */
    size_t cache_bytes;          /* the last level of cache that processor 0 has; 0: unknown */
} tly_machine;

/* What cannot be found is "unknown", or 0. */
void tly_machine_look(tly_machine *machine);

/* Bytes of a buffer that a cache of that size holds nothing of when a pass over it ends: at least
 * 64 MiB, twice the cache, at most 1 GiB. */
size_t tly_machine_exceeding_bytes(size_t cache_bytes);

/* A cache's size as the kernel writes it, "32768K"; 0 for anything else. */
size_t tly_machine_parse_cache(const char *text);

#endif
