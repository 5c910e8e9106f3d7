/* values.h - what the workers contribute, and what must come out, computed without Tally's own code.
 *
 * A contribution is a pattern of SIM_PERIOD elements, repeated: a prime, so that a partition in the
 * wrong place does not fit. Where the plan is exact, every sum is, in every order. */
#ifndef SIM_VALUES_H
#define SIM_VALUES_H

#include "tests/sim/plan.h"

#define SIM_PERIOD 61
#define SIM_PATTERN_BYTES (SIM_PERIOD * 8)

/* Worker's pattern in a round, and the pattern of the result. */
void sim_values_input(const sim_plan *p, uint32_t tensor, uint64_t round, uint32_t worker,
                      uint8_t pattern[SIM_PATTERN_BYTES]);
void sim_values_expected(const sim_plan *p, uint32_t tensor, uint64_t round,
                         uint8_t pattern[SIM_PATTERN_BYTES]);

/* Fill memory with a pattern; is memory filled with it? */
void sim_values_fill(void *memory, const uint8_t *pattern, size_t element_bytes, size_t count);
bool sim_values_match(const void *memory, const uint8_t *pattern, size_t element_bytes, size_t count);

#endif
