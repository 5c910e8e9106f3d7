#include "bench/transport.h"

#define PATTERN_PERIOD 251 /* no power of two is a multiple, so pieces that changed places show */

void tly_block_fill(unsigned char block[TLY_BLOCK_BYTES])
{
    for (size_t i = 0; i < TLY_BLOCK_BYTES; i++)
        block[i] = (unsigned char)(i % PATTERN_PERIOD);
}

tally_status tly_block_check(const unsigned char *block, size_t len_bytes)
{
    if (len_bytes != TLY_BLOCK_BYTES)
        return tly_error(TALLY_EFAILED, "a block of %zu bytes came, expected %zu", len_bytes,
                         TLY_BLOCK_BYTES);
    for (size_t i = 0; i < TLY_BLOCK_BYTES; i++)
        if (block[i] != i % PATTERN_PERIOD)
            return tly_error(TALLY_EFAILED, "byte %zu of a block is %d, expected %d", i, block[i],
                             (int)(i % PATTERN_PERIOD));
    return TALLY_OK;
}
