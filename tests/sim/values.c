#include "tests/sim/values.h"

#include <string.h>

/* ---- bits of the types ---- */

static uint32_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* An integer of at most 11 bits as binary16. */
static uint16_t f16_of(int64_t value)
{
    uint32_t magnitude = (uint32_t)(value < 0 ? -value : value), exponent = 0;
    if (magnitude == 0)
        return 0;
    while (magnitude >> (exponent + 1))
        exponent++;
    uint32_t mantissa = exponent <= 10 ? magnitude << (10 - exponent) : magnitude >> (exponent - 10);
    return (uint16_t)((value < 0 ? 0x8000u : 0) | (exponent + 15) << 10 | (mantissa & 0x3ff));
}

static void store(uint8_t *to, tally_dtype dtype, int64_t value)
{
    uint64_t bits = (uint64_t)value;
    double wide = (double)value;
    switch (dtype) {
    case TALLY_DTYPE_F16:
        bits = f16_of(value);
        break;
    case TALLY_DTYPE_BF16:
        bits = f32_bits((float)value) >> 16;
        break;
    case TALLY_DTYPE_F32:
        bits = f32_bits((float)value);
        break;
    case TALLY_DTYPE_F64:
        memcpy(&bits, &wide, sizeof bits);
        break;
    default:
        break;
    }
    memcpy(to, &bits, tally_dtype_size(dtype)); /* little-endian hosts */
}

/* Numbers near 1 with random low bits, whose sums are not exact. */
static void store_inexact(uint8_t *to, tally_dtype dtype, uint64_t random)
{
    uint64_t sign = random >> 63, exponent = random >> 59 & 3, bits = random;
    switch (dtype) {
    case TALLY_DTYPE_F16:
        bits = sign << 15 | (14 + exponent) << 10 | (random & 0x3ff);
        break;
    case TALLY_DTYPE_BF16:
        bits = sign << 15 | (126 + exponent) << 7 | (random & 0x7f);
        break;
    case TALLY_DTYPE_F32:
        bits = sign << 31 | (126 + exponent) << 23 | (random & 0x7fffff);
        break;
    case TALLY_DTYPE_F64:
        bits = sign << 63 | (1022 + exponent) << 52 | (random & 0xfffffffffffffull);
        break;
    default:
        break;
    }
    memcpy(to, &bits, tally_dtype_size(dtype));
}

static bool is_float(tally_dtype dtype)
{
    return dtype <= TALLY_DTYPE_F64;
}

/* ---- contributions ---- */

static uint64_t raw(const sim_plan *p, uint32_t tensor, uint64_t round, uint32_t worker, uint32_t i)
{
    return sim_mix(p->tensors[tensor].seed ^ (round << 32 | worker << 8 | i));
}

static int64_t exact_value(const sim_plan *p, uint32_t tensor, uint64_t round, uint32_t worker, uint32_t i)
{
    const sim_tensor_plan *t = &p->tensors[tensor];
    uint64_t x = raw(p, tensor, round, worker, i);
    switch (t->dtype) {
    case TALLY_DTYPE_I8:
        return (int8_t)x;
    case TALLY_DTYPE_U8:
        return (uint8_t)x;
    case TALLY_DTYPE_I32:
        return (int32_t)x;
    case TALLY_DTYPE_I64:
        return (int64_t)x >> 8;
    default:
        /* An average of multiples of the number of workers has no remainder; bfloat16 has 8 bits. */
        return ((int64_t)(x % 15) - 7) * (t->op == TALLY_OP_AVERAGE ? (int64_t)p->workers : 1);
    }
}

void sim_values_input(const sim_plan *p, uint32_t tensor, uint64_t round, uint32_t worker,
                      uint8_t pattern[SIM_PATTERN_BYTES])
{
    tally_dtype dtype = p->tensors[tensor].dtype;
    size_t size = tally_dtype_size(dtype);
    for (uint32_t i = 0; i < SIM_PERIOD; i++)
        if (!p->exact && is_float(dtype))
            store_inexact(pattern + i * size, dtype, raw(p, tensor, round, worker, i));
        else
            store(pattern + i * size, dtype, exact_value(p, tensor, round, worker, i));
}

void sim_values_expected(const sim_plan *p, uint32_t tensor, uint64_t round,
                         uint8_t pattern[SIM_PATTERN_BYTES])
{
    const sim_tensor_plan *t = &p->tensors[tensor];
    size_t size = tally_dtype_size(t->dtype);
    if (sim_plan_common_kind(p, tensor, round) == TLY_KIND_BROADCAST) {
        sim_values_input(p, tensor, round, sim_plan_common_root(p, tensor, round), pattern);
        return;
    }
    for (uint32_t i = 0; i < SIM_PERIOD; i++) {
        int64_t result = exact_value(p, tensor, round, 0, i);
        for (uint32_t w = 1; w < p->workers; w++) {
            int64_t value = exact_value(p, tensor, round, w, i);
            if (t->op == TALLY_OP_MIN)
                result = value < result ? value : result;
            else if (t->op == TALLY_OP_MAX)
                result = value > result ? value : result;
            else
                result = result + value;
        }
        if (t->op == TALLY_OP_AVERAGE)
            result /= (int64_t)p->workers;
        store(pattern + i * size, t->dtype, result);
    }
}

void sim_values_fill(void *memory, const uint8_t *pattern, size_t element_bytes, size_t count)
{
    uint8_t *to = memory;
    size_t total = element_bytes * count, done = element_bytes * SIM_PERIOD;
    memcpy(to, pattern, total < done ? total : done);
    while (done < total) {
        size_t step = total - done < done ? total - done : done;
        memcpy(to + done, to, step);
        done += step;
    }
}

bool sim_values_match(const void *memory, const uint8_t *pattern, size_t element_bytes, size_t count)
{
    const uint8_t *at = memory;
    size_t total = element_bytes * count, period = element_bytes * SIM_PERIOD;
    if (total <= period)
        return total == 0 || memcmp(at, pattern, total) == 0;
    return memcmp(at, pattern, period) == 0 && memcmp(at, at + period, total - period) == 0;
}
