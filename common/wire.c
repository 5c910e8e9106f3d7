#include "common/wire.h"

#include <stdlib.h>
#include <string.h>

/* Writes and reads little-endian fields at a moving place; the compiler makes plain moves of them. */

static uint8_t *put16(uint8_t *at, uint16_t v)
{
    at[0] = (uint8_t)v;
    at[1] = (uint8_t)(v >> 8);
    return at + 2;
}

static uint8_t *put32(uint8_t *at, uint32_t v)
{
    at = put16(at, (uint16_t)v);
    return put16(at, (uint16_t)(v >> 16));
}

static uint8_t *put64(uint8_t *at, uint64_t v)
{
    at = put32(at, (uint32_t)v);
    return put32(at, (uint32_t)(v >> 32));
}

static uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint32_t get32(const uint8_t *at)
{
    return get16(at) | (uint32_t)get16(at + 2) << 16;
}

static uint64_t get64(const uint8_t *at)
{
    return get32(at) | (uint64_t)get32(at + 4) << 32;
}

void tly_wire_put_header(uint8_t out[TLY_HEADER_BYTES], const tly_header *header)
{
    uint8_t *at = put32(out, TLY_WIRE_MAGIC);
    at = put16(at, TLY_WIRE_VERSION);
    at = put16(at, header->plane);
    at = put32(at, header->job);
    at = put32(at, header->sender);
    at = put64(at, header->epoch);
    at = put64(at, header->acked);
    at = put64(at, header->stable);
    at = put32(at, header->session);
    put32(at, header->record_count);
}

void tly_wire_put_record(uint8_t out[TLY_RECORD_BYTES], const tly_record *record)
{
    uint8_t *at = out;
    *at++ = record->type;
    *at++ = record->kind;
    *at++ = record->dtype;
    *at++ = record->op;
    *at++ = record->codec;
    *at++ = record->flags;
    at = put16(at, record->contributors);
    at = put32(at, record->tensor);
    at = put32(at, record->partition);
    at = put64(at, record->round);
    at = put64(at, record->seq);
    at = put32(at, record->root);
    at = put32(at, record->len_bytes);
    put64(at, 0);
}

tally_status tly_wire_get_header(const void *frame, size_t len_bytes, tly_header *header)
{
    const uint8_t *in = frame;
    if (len_bytes < 8 || get32(in) != TLY_WIRE_MAGIC)
        return tly_error(TALLY_EPROTO, "a message of %zu bytes does not begin as Tally's do", len_bytes);
    if (get16(in + 4) != TLY_WIRE_VERSION)
        return tly_error(TALLY_EVERSION, "the peer speaks wire version %u, this is wire version %d (Tally %s)",
                         get16(in + 4), TLY_WIRE_VERSION, TLY_VERSION);
    if (len_bytes < TLY_HEADER_BYTES)
        return tly_error(TALLY_EPROTO, "a message of %zu bytes is shorter than its header", len_bytes);
    tly_header h = {
        .plane = get16(in + 6),
        .job = get32(in + 8),
        .sender = get32(in + 12),
        .epoch = get64(in + 16),
        .acked = get64(in + 24),
        .stable = get64(in + 32),
        .session = get32(in + 40),
        .record_count = get32(in + 44),
    };
    if (h.plane != TLY_PLANE_CONTROL && h.plane != TLY_PLANE_DATA)
        return tly_error(TALLY_EPROTO, "a message belongs to the unknown plane %u", h.plane);
    if (h.plane == TLY_PLANE_DATA &&
        len_bytes != TLY_HEADER_BYTES + (uint64_t)h.record_count * TLY_RECORD_BYTES)
        return tly_error(TALLY_EPROTO, "a frame of %zu bytes cannot hold a header and %u records", len_bytes,
                         h.record_count);
    *header = h;
    return TALLY_OK;
}

tally_status tly_wire_get_record(const void *frame, size_t index, tly_record *record)
{
    const uint8_t *in = (const uint8_t *)frame + TLY_HEADER_BYTES + index * TLY_RECORD_BYTES;
    if (in[0] == 0 || in[0] >= TLY_RECORD_TYPE_END)
        return tly_error(TALLY_EPROTO, "record %zu has the unknown type %u", index, in[0]);
    if (in[1] >= TLY_KIND_END || in[2] >= TALLY_DTYPE_COUNT || in[3] >= TALLY_OP_COUNT || in[4] != 0)
        return tly_error(TALLY_EPROTO, "record %zu has kind %u, data type %u, operation %u, codec %u", index, in[1],
                         in[2], in[3], in[4]);
    *record = (tly_record){
        .type = in[0],
        .kind = in[1],
        .dtype = in[2],
        .op = in[3],
        .codec = in[4],
        .flags = in[5],
        .contributors = get16(in + 6),
        .tensor = get32(in + 8),
        .partition = get32(in + 12),
        .round = get64(in + 16),
        .seq = get64(in + 24),
        .root = get32(in + 32),
        .len_bytes = get32(in + 36),
    };
    return TALLY_OK;
}

tally_status tly_wire_check_data(const void *frame, size_t len_bytes, size_t body_len_bytes, tly_header *header)
{
    tly_header h;
    tally_status status = tly_wire_get_header(frame, len_bytes, &h);
    if (status != TALLY_OK)
        return status;
    if (h.plane != TLY_PLANE_DATA)
        return tly_error(TALLY_EPROTO, "a message of the control plane came on the data plane");
    uint64_t total = 0;
    for (uint32_t i = 0; i < h.record_count; i++) {
        tly_record record;
        status = tly_wire_get_record(frame, i, &record);
        if (status != TALLY_OK)
            return status;
        total += record.len_bytes;
    }
    if (total != body_len_bytes)
        return tly_error(TALLY_EPROTO, "the records announce %llu bytes and the body has %zu",
                         (unsigned long long)total, body_len_bytes);
    *header = h;
    return TALLY_OK;
}

void tly_wire_put_round_error(uint8_t out[TLY_ROUND_ERROR_BYTES], const tly_round_error *error)
{
    uint8_t *at = put32(out, error->reason);
    at = put32(at, error->rank_a);
    at = put32(at, error->rank_b);
    at = put32(at, error->value_a);
    at = put32(at, error->value_b);
    put32(at, 0);
}

tally_status tly_wire_get_round_error(const void *payload, size_t len_bytes, tly_round_error *error)
{
    const uint8_t *in = payload;
    if (len_bytes != TLY_ROUND_ERROR_BYTES)
        return tly_error(TALLY_EPROTO, "an error result has %zu bytes instead of %d", len_bytes,
                         TLY_ROUND_ERROR_BYTES);
    *error = (tly_round_error){ get32(in), get32(in + 4), get32(in + 8), get32(in + 12), get32(in + 16), 0 };
    return TALLY_OK;
}

tly_out *tly_out_create(size_t head_len_bytes)
{
    tly_out *out = calloc(1, sizeof *out + head_len_bytes);
    if (out)
        out->head_len_bytes = head_len_bytes;
    return out;
}

void tly_out_free(tly_out *out)
{
    if (!out)
        return;
    tly_buf_put(out->body);
    free(out);
}

void tly_out_list_init(tly_out_list *list)
{
    list->first = NULL;
    list->last = &list->first;
}

void tly_out_push(tly_out_list *list, tly_out *out)
{
    out->next = NULL;
    *list->last = out;
    list->last = &out->next;
}

tly_out *tly_out_pop(tly_out_list *list)
{
    tly_out *out = list->first;
    if (!out)
        return NULL;
    list->first = out->next;
    if (!list->first)
        list->last = &list->first;
    return out;
}

void tly_out_list_fini(tly_out_list *list)
{
    if (!list->last) /* zeroed, never initialised */
        return;
    for (tly_out *out; (out = tly_out_pop(list));)
        tly_out_free(out);
}

void tly_writer_init(tly_writer *w)
{
    memset(w, 0, sizeof *w);
}

void tly_writer_fini(tly_writer *w)
{
    free(w->data);
    memset(w, 0, sizeof *w);
}

/* Room for len more bytes, or NULL. */
static uint8_t *writer_room(tly_writer *w, size_t len_bytes)
{
    if (w->failed)
        return NULL;
    if (len_bytes > w->room_bytes - w->len_bytes) {
        size_t room = w->room_bytes ? w->room_bytes : 128;
        while (room - w->len_bytes < len_bytes) {
            if (room > SIZE_MAX / 2) {
                w->failed = true;
                return NULL;
            }
            room *= 2;
        }
        uint8_t *data = realloc(w->data, room);
        if (!data) {
            w->failed = true;
            return NULL;
        }
        w->data = data;
        w->room_bytes = room;
    }
    uint8_t *at = w->data + w->len_bytes;
    w->len_bytes += len_bytes;
    return at;
}

void tly_write_bytes(tly_writer *w, const void *data, size_t len_bytes)
{
    uint8_t *at = writer_room(w, len_bytes);
    if (at && len_bytes)
        memcpy(at, data, len_bytes);
}

void tly_write_u8(tly_writer *w, uint8_t value)
{
    tly_write_bytes(w, &value, 1);
}

void tly_write_u16(tly_writer *w, uint16_t value)
{
    uint8_t *at = writer_room(w, 2);
    if (at)
        put16(at, value);
}

void tly_write_u32(tly_writer *w, uint32_t value)
{
    uint8_t *at = writer_room(w, 4);
    if (at)
        put32(at, value);
}

void tly_write_u64(tly_writer *w, uint64_t value)
{
    uint8_t *at = writer_room(w, 8);
    if (at)
        put64(at, value);
}

void tly_write_string(tly_writer *w, const char *text)
{
    size_t len_bytes = strlen(text);
    if (len_bytes > UINT32_MAX) {
        w->failed = true;
        return;
    }
    tly_write_u32(w, (uint32_t)len_bytes);
    tly_write_bytes(w, text, len_bytes + 1);
}

void tly_reader_init(tly_reader *r, const void *data, size_t len_bytes)
{
    r->at = data;
    r->end = r->at + len_bytes;
    r->failed = false;
}

const void *tly_read_bytes(tly_reader *r, size_t len_bytes)
{
    if (r->failed || (size_t)(r->end - r->at) < len_bytes) {
        r->failed = true;
        return NULL;
    }
    const void *at = r->at;
    r->at += len_bytes;
    return at;
}

uint8_t tly_read_u8(tly_reader *r)
{
    const uint8_t *at = tly_read_bytes(r, 1);
    return at ? *at : 0;
}

uint16_t tly_read_u16(tly_reader *r)
{
    const uint8_t *at = tly_read_bytes(r, 2);
    return at ? get16(at) : 0;
}

uint32_t tly_read_u32(tly_reader *r)
{
    const uint8_t *at = tly_read_bytes(r, 4);
    return at ? get32(at) : 0;
}

uint64_t tly_read_u64(tly_reader *r)
{
    const uint8_t *at = tly_read_bytes(r, 8);
    return at ? get64(at) : 0;
}

const char *tly_read_string(tly_reader *r)
{
    size_t len_bytes = tly_read_u32(r);
    const char *text = r->failed ? NULL : tly_read_bytes(r, len_bytes + 1);
    if (!text || text[len_bytes] != 0 || memchr(text, 0, len_bytes)) {
        r->failed = true;
        return "";
    }
    return text;
}
