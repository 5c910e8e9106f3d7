#include "bench/values.h"

#include <math.h>
#include <string.h>

/* Values are BASE_MIN + 0..28: above every offset, and within an int8. */
#define OFFSET_MAX 8
#define BASE_MIN (OFFSET_MAX + 1)

/* The offsets of ranks 0, 1, 2, 3, ... are 1, -1, 2, -2, ..., again from 1 after 8; of an odd number
 * of workers the last has none. */
static int offset_of(int rank, int workers)
{
    if (rank == workers - 1 && workers % 2)
        return 0;
    int magnitude = 1 + rank / 2 % OFFSET_MAX;
    return rank % 2 ? -magnitude : magnitude;
}

/* Of a whole number that is 0 or at least 1, to nearest, ties to even. */
static uint16_t to_f16(float value)
{
    uint32_t bits;
    if (value == 0)
        return 0;
    if (value >= 65520)
        return 0x7c00; /* infinity */
    memcpy(&bits, &value, sizeof(bits));
    bits -= (127u - 15u) << 23;
    return (uint16_t)((bits + 0xfff + (bits >> 13 & 1)) >> 13);
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double from_f16(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double magnitude = exponent == 0    ? ldexp(mantissa, -24)
                       : exponent == 31 ? (mantissa ? (double)NAN : (double)INFINITY)
                                        : ldexp(mantissa + 1024, exponent - 25);
    return bits >> 15 ? -magnitude : magnitude;
}

static double from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof(value));
    return (double)value;
}

#define PUT(type, expression)                \
    do {                                     \
        type element = (type)(expression);   \
        memcpy(out, &element, sizeof(type)); \
    } while (0)

/* Integers wrap. */
static void put(tally_dtype dtype, int64_t value, uint8_t *out)
{
    switch (dtype) {
    case TALLY_DTYPE_F16: PUT(uint16_t, to_f16((float)value)); break;
    case TALLY_DTYPE_BF16: PUT(uint16_t, to_bf16((float)value)); break;
    case TALLY_DTYPE_F32: PUT(float, value); break;
    case TALLY_DTYPE_F64: PUT(double, value); break;
    case TALLY_DTYPE_I8:
    case TALLY_DTYPE_U8: PUT(uint8_t, value); break;
    case TALLY_DTYPE_I32: PUT(uint32_t, value); break;
    case TALLY_DTYPE_I64: PUT(uint64_t, value); break;
    case TALLY_DTYPE_COUNT: break;
    }
}

#define GET(type, expression)                  \
    do {                                       \
        type element;                          \
        memcpy(&element, data, sizeof(type));  \
        return (double)(expression);           \
    } while (0)

static double get(tally_dtype dtype, const uint8_t *data)
{
    switch (dtype) {
    case TALLY_DTYPE_F16: GET(uint16_t, from_f16(element));
    case TALLY_DTYPE_BF16: GET(uint16_t, from_bf16(element));
    case TALLY_DTYPE_F32: GET(float, element);
    case TALLY_DTYPE_F64: GET(double, element);
    case TALLY_DTYPE_I8: GET(int8_t, element);
    case TALLY_DTYPE_U8: GET(uint8_t, element);
    case TALLY_DTYPE_I32: GET(int32_t, element);
    case TALLY_DTYPE_I64: GET(int64_t, element);
    case TALLY_DTYPE_COUNT: break;
    }
    return (double)NAN;
}

static int64_t combined(tally_op op, int64_t base, int workers)
{
    int64_t least = INT64_MAX, most = INT64_MIN, sum = 0;
    for (int rank = 0; rank < workers; rank++) {
        int64_t value = base + offset_of(rank, workers);
        least = value < least ? value : least;
        most = value > most ? value : most;
        sum += value;
    }
    switch (op) {
    case TALLY_OP_SUM: return sum;
    case TALLY_OP_AVERAGE: return sum / workers;
    case TALLY_OP_MIN: return least;
    case TALLY_OP_MAX: return most;
    case TALLY_OP_COUNT: break;
    }
    return 0;
}

void tly_values_init(tly_values *values, tally_dtype dtype, tally_op op, int rank, int workers)
{
    *values = (tly_values){ .dtype = dtype, .element_bytes = tally_dtype_size(dtype) };
    size_t count = TLY_VALUES_CELL_BYTES / values->element_bytes + TLY_VALUES_PERIOD;
    for (size_t i = 0; i < count; i++) {
        int64_t base = BASE_MIN + (int64_t)(i % TLY_VALUES_PERIOD);
        put(dtype, base + offset_of(rank, workers), values->mine + i * values->element_bytes);
        put(dtype, combined(op, base, workers), values->right + i * values->element_bytes);
    }
}

/* Where the pattern stands at an element; 7 and 11 keep neighbouring steps and tensors apart. */
static size_t phase(unsigned tensor, unsigned step, size_t index)
{
    return (index % TLY_VALUES_PERIOD + 7 * (size_t)(step % TLY_VALUES_PERIOD)
            + 11 * (size_t)(tensor % TLY_VALUES_PERIOD))
           % TLY_VALUES_PERIOD;
}

static const uint8_t *element(const tly_values *values, const uint8_t *pattern, size_t at)
{
    return pattern + at * values->element_bytes;
}

void tly_values_fill(const tly_values *values, unsigned tensor, unsigned step, void *data, size_t count)
{
    size_t cell = TLY_VALUES_CELL_BYTES / values->element_bytes;
    for (size_t i = 0; i < count; i += cell) {
        size_t n = count - i < cell ? count - i : cell;
        memcpy((uint8_t *)data + i * values->element_bytes,
               element(values, values->mine, phase(tensor, step, i)), n * values->element_bytes);
    }
}

void tly_values_stamp(const tly_values *values, unsigned tensor, unsigned step, void *data, size_t count)
{
    size_t size = values->element_bytes, cell = TLY_VALUES_CELL_BYTES / size;
    for (size_t i = 0; i < count; i += cell)
        memcpy((uint8_t *)data + i * size, element(values, values->mine, phase(tensor, step, i)), size);
    if (count)
        memcpy((uint8_t *)data + (count - 1) * size,
               element(values, values->mine, phase(tensor, step, count - 1)), size);
}

size_t tly_values_check(const tly_values *values, unsigned tensor, unsigned fill_step, unsigned stamp_step,
                        const void *data, size_t count, tly_values_wrong *first)
{
    size_t size = values->element_bytes, cell = TLY_VALUES_CELL_BYTES / size, wrong = 0;
    uint8_t right[TLY_VALUES_CELL_BYTES];
    for (size_t i = 0; i < count; i += cell) {
        size_t n = count - i < cell ? count - i : cell;
        const uint8_t *found = (const uint8_t *)data + i * size;
        memcpy(right, element(values, values->right, phase(tensor, fill_step, i)), n * size);
        memcpy(right, element(values, values->right, phase(tensor, stamp_step, i)), size);
        if (i + n == count)
            memcpy(right + (n - 1) * size,
                   element(values, values->right, phase(tensor, stamp_step, count - 1)), size);
        if (memcmp(right, found, n * size) == 0)
            continue;
        for (size_t k = 0; k < n; k++) {
            if (memcmp(right + k * size, found + k * size, size) == 0)
                continue;
            if (wrong++ == 0)
                *first = (tly_values_wrong){ i + k, get(values->dtype, found + k * size),
                                             get(values->dtype, right + k * size) };
        }
    }
    return wrong;
}
