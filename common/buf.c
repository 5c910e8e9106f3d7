#include "common/buf.h"

#include <stdlib.h>

#define DATA_ALIGN 64

void tly_buf_init(tly_buf *buf, void *data, size_t len_bytes, void (*free_fn)(tly_buf *buf))
{
    buf->data = data;
    buf->len_bytes = len_bytes;
    atomic_init(&buf->refs, 1);
    buf->free_fn = free_fn;
}

static void block_free(tly_buf *buf)
{
    free(buf);
}

tly_buf *tly_buf_alloc(size_t len_bytes)
{
    /* One block: the structure, padding to the alignment, the data. */
    size_t head = (sizeof(tly_buf) + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
    if (len_bytes > SIZE_MAX - head - DATA_ALIGN)
        return NULL;
    size_t total = (head + len_bytes + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
    tly_buf *buf = aligned_alloc(DATA_ALIGN, total);
    if (buf)
        tly_buf_init(buf, (char *)buf + head, len_bytes, block_free);
    return buf;
}

typedef struct slice {
    tly_buf base;
    tly_buf *parent;
} slice;

static void slice_free(tly_buf *buf)
{
    slice *s = (slice *)buf;
    tly_buf_put(s->parent);
    free(s);
}

tly_buf *tly_buf_slice(tly_buf *parent, size_t offset, size_t len_bytes)
{
    slice *s = malloc(sizeof *s);
    if (!s)
        return NULL;
    s->parent = tly_buf_get(parent);
    tly_buf_init(&s->base, (char *)parent->data + offset, len_bytes, slice_free);
    return &s->base;
}

tly_buf *tly_buf_get(tly_buf *buf)
{
    atomic_fetch_add_explicit(&buf->refs, 1, memory_order_relaxed);
    return buf;
}

void tly_buf_put(tly_buf *buf)
{
    if (buf && atomic_fetch_sub_explicit(&buf->refs, 1, memory_order_acq_rel) == 1)
        buf->free_fn(buf);
}
