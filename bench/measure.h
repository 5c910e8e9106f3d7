/* measure.h - the benchmarks' clock, processor time and statistics. */
#ifndef TLY_BENCH_MEASURE_H
#define TLY_BENCH_MEASURE_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* Nanoseconds of a clock that only moves forward. */
int64_t tly_measure_now_ns(void);

/* Return at that time, or at once when it is past; burns no processor time meanwhile. It stands for a
 * GPU at work and for nothing else. */
void tly_measure_compute_until(int64_t deadline_ns);

/* Processor seconds, user and system, of all threads of this process so far. */
double tly_measure_cpu_s(void);

/* Samples in the order of measurement. init gives room for as many as are ever added. */
typedef struct tly_samples {
    double *values;
    size_t count, room;
} tly_samples;

tally_status tly_samples_init(tly_samples *samples, size_t room); /* TALLY_OK, TALLY_ENOMEM */
void tly_samples_fini(tly_samples *samples);                      /* accepts a zeroed object */
void tly_samples_add(tly_samples *samples, double value);

/* Every field is NaN when there is no sample. */
typedef struct tly_summary {
    double median; /* of an even count: the mean of the two in the middle */
    double min, max;
    double p95;    /* the smallest sample that at least 95 % of them do not exceed */
    double p99;    /* likewise */
} tly_summary;

/* Returns: TALLY_OK, TALLY_ENOMEM */
tally_status tly_samples_summary(const tly_samples *samples, tly_summary *summary);

#endif
