/* transport.h - bare transports over the loopback, between the two sides of a pair: what the kernel
 * and ZeroMQ cost without Tally. A transport is a row of functions. */
#ifndef TLY_BENCH_TRANSPORT_H
#define TLY_BENCH_TRANSPORT_H

#include "bench/pair.h"

#define TLY_BLOCK_BYTES ((size_t)1 << 20)
#define TLY_TRIP_BYTES 64
#define TLY_TRANSPORT_LIMIT_MS 10000 /* after which a side gives the other up */

typedef struct tly_transport {
    const char *name;
    size_t link_bytes; /* of its link, which the caller provides zeroed */

    /* Connect the two sides. close accepts what open left, also when open failed. */
    tally_status (*open)(const tly_pair_side *side, void *link);
    void (*close)(void *link);

    /* Send and receive so many blocks, both at the same time. On return all were received, and all to
     * send were handed over: the other side's end is theirs too. Values are checked. */
    tally_status (*move)(void *link, size_t send_blocks, size_t receive_blocks);

    /* One round trip of TLY_TRIP_BYTES: ask on one side, answer on the other. */
    tally_status (*ask)(void *link);
    tally_status (*answer)(void *link);
} tly_transport;

extern const tly_transport tly_transport_tcp, tly_transport_zmq;

/* What blocks hold. */
void tly_block_fill(unsigned char block[TLY_BLOCK_BYTES]);

/* Returns: TALLY_OK; TALLY_EFAILED when the block holds something else, or is not of a block's size */
tally_status tly_block_check(const unsigned char *block, size_t len_bytes);

#endif
