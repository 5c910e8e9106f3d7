/* buf.h - reference-counted memory: the payload of messages, accumulators and kept results.
 *
 * A buffer has one owner per reference. Whoever holds the only reference may write; once a buffer
 * has been handed to a socket it is never written again. The last put frees, on whatever thread it
 * happens (the transport's I/O thread included), so free functions must be short and lock-free or
 * take only leaf locks. */
#ifndef TLY_BUF_H
#define TLY_BUF_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tly_buf tly_buf;

struct tly_buf {
    void *data;
    size_t len_bytes;
    atomic_uint refs;
    void (*free_fn)(tly_buf *buf); /* frees data and the structure itself */
};

/* Prepare the base of a buffer that its maker allocated, with one reference. */
void tly_buf_init(tly_buf *buf, void *data, size_t len_bytes, void (*free_fn)(tly_buf *buf));

/* A new block of len bytes (64-byte aligned data), one reference; NULL when memory is short. */
tly_buf *tly_buf_alloc(size_t len_bytes);

/* A view of part of parent, which it holds a reference to; NULL when memory is short. The caller's
 * own reference to parent stays the caller's. */
tly_buf *tly_buf_slice(tly_buf *parent, size_t offset, size_t len_bytes);

tly_buf *tly_buf_get(tly_buf *buf);
void tly_buf_put(tly_buf *buf); /* NULL is allowed */

#endif
