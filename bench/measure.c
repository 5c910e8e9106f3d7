#include "bench/measure.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define NS_PER_S 1000000000

int64_t tly_measure_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

void tly_measure_compute_until(int64_t deadline_ns)
{
    struct timespec t = { .tv_sec = deadline_ns / NS_PER_S, .tv_nsec = deadline_ns % NS_PER_S };
    /* An absolute time: a signal or a late wake-up does not lengthen the modelled work. */
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        continue;
}

double tly_measure_cpu_s(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec * 1e-6
           + (double)usage.ru_stime.tv_sec + (double)usage.ru_stime.tv_usec * 1e-6;
}

tally_status tly_samples_init(tly_samples *samples, size_t room)
{
    *samples = (tly_samples){ .room = room, .values = calloc(room ? room : 1, sizeof(double)) };
    return samples->values ? TALLY_OK : tly_error_memory(room * sizeof(double), "samples");
}

void tly_samples_fini(tly_samples *samples)
{
    free(samples->values);
    *samples = (tly_samples){ 0 };
}

void tly_samples_add(tly_samples *samples, double value)
{
    assert(samples->count < samples->room);
    samples->values[samples->count++] = value;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

tally_status tly_samples_summary(const tly_samples *samples, tly_summary *summary)
{
    size_t n = samples->count;
    if (n == 0) {
        *summary = (tly_summary){ NAN, NAN, NAN, NAN, NAN };
        return TALLY_OK;
    }
    /* A copy: the samples keep their order, because a trend over time is worth seeing. */
    double *sorted = malloc(n * sizeof(double));
    if (!sorted)
        return tly_error_memory(n * sizeof(double), "sorted samples");
    memcpy(sorted, samples->values, n * sizeof(double));
    qsort(sorted, n, sizeof(double), by_value);
    *summary = (tly_summary){
        .median = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2,
        .min = sorted[0],
        .max = sorted[n - 1],
        .p95 = sorted[(n * 95 + 99) / 100 - 1],
        .p99 = sorted[(n * 99 + 99) / 100 - 1],
    };
    free(sorted);
    return TALLY_OK;
}
