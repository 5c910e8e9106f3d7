#include "common/control.h"

#include <stdlib.h>
#include <string.h>

/* Decoding allocates in a chain of blocks, which tly_ctl_fini frees. */
typedef struct block {
    struct block *next;
    max_align_t data[];
} block;

typedef struct decoder {
    tly_reader r;
    tly_ctl *message;
    bool out_of_memory;
} decoder;

/* An array of count zeroed elements that the message owns. NULL when count is 0 or memory is short,
 * which stops the decoding. */
static void *take(decoder *d, size_t count, size_t size)
{
    if (count == 0 || d->out_of_memory)
        return NULL;
    block *b = calloc(1, sizeof *b + count * size);
    if (!b) {
        d->out_of_memory = true;
        d->r.failed = true;
        return NULL;
    }
    b->next = d->message->memory;
    d->message->memory = b;
    return b->data;
}

/* Read the length of an array. It is believed only if that many of the smallest elements fit in what
 * is left of the frame, so that a peer cannot make us allocate more than a small multiple of what it
 * has sent. */
static uint32_t get_count(decoder *d, size_t smallest_bytes)
{
    uint32_t count = tly_read_u32(&d->r);
    if (d->r.failed || count > (size_t)(d->r.end - d->r.at) / smallest_bytes) {
        d->r.failed = true;
        return 0;
    }
    return count;
}

static void put_text(tly_writer *w, const char *text)
{
    tly_write_string(w, text ? text : "");
}

#define STRING_BYTES 5 /* the empty string: its length and the final 0 */

static void put_strings(tly_writer *w, uint32_t count, const char *const *strings)
{
    tly_write_u32(w, count);
    for (uint32_t i = 0; i < count; i++)
        put_text(w, strings[i]);
}

static const char *const *get_strings(decoder *d, uint32_t *count)
{
    *count = get_count(d, STRING_BYTES);
    const char **strings = take(d, *count, sizeof *strings);
    for (uint32_t i = 0; strings && i < *count; i++)
        strings[i] = tly_read_string(&d->r);
    return strings;
}

static void put_register(tly_writer *w, const tly_ctl *m)
{
    tly_write_u8(w, m->reg.role);
    tly_write_u64(w, m->reg.nonce);
    tly_write_u32(w, m->reg.id);
    tly_write_u32(w, m->reg.rank);
    tly_write_u32(w, m->reg.num_worker);
    tly_write_u32(w, m->reg.num_server);
    tly_write_u32(w, m->reg.local_size);
    tly_write_u64(w, m->reg.placed_version);
    put_text(w, m->reg.host);
    put_strings(w, m->reg.endpoint_count, m->reg.endpoints);
}

static void get_register(decoder *d)
{
    tly_ctl *m = d->message;
    m->reg.role = tly_read_u8(&d->r);
    m->reg.nonce = tly_read_u64(&d->r);
    m->reg.id = tly_read_u32(&d->r);
    m->reg.rank = tly_read_u32(&d->r);
    m->reg.num_worker = tly_read_u32(&d->r);
    m->reg.num_server = tly_read_u32(&d->r);
    m->reg.local_size = tly_read_u32(&d->r);
    m->reg.placed_version = tly_read_u64(&d->r);
    m->reg.host = tly_read_string(&d->r);
    m->reg.endpoints = get_strings(d, &m->reg.endpoint_count);
    if (m->reg.role != TLY_ROLE_SERVER && m->reg.role != TLY_ROLE_WORKER)
        d->r.failed = true;
}

static void put_beat(tly_writer *w, const tly_ctl *m)
{
    tly_write_u64(w, m->beat.placed_version);
}

static void get_beat(decoder *d)
{
    d->message->beat.placed_version = tly_read_u64(&d->r);
}

#define DECLARATION_BYTES (STRING_BYTES + 1 + 1 + 8 + 4)

static void put_declaration(tly_writer *w, const tly_declaration *item)
{
    put_text(w, item->name);
    tly_write_u8(w, item->dtype);
    tly_write_u8(w, item->op);
    tly_write_u64(w, item->count);
    tly_write_u32(w, item->partition_bytes);
}

static void get_declaration(decoder *d, tly_declaration *item)
{
    item->name = tly_read_string(&d->r);
    item->dtype = tly_read_u8(&d->r);
    item->op = tly_read_u8(&d->r);
    item->count = tly_read_u64(&d->r);
    item->partition_bytes = tly_read_u32(&d->r);
}

static void put_declare(tly_writer *w, const tly_ctl *m)
{
    tly_write_u32(w, m->declare.count);
    for (uint32_t i = 0; i < m->declare.count; i++)
        put_declaration(w, &m->declare.items[i]);
}

static void get_declare(decoder *d)
{
    d->message->declare.count = get_count(d, DECLARATION_BYTES);
    tly_declaration *items = take(d, d->message->declare.count, sizeof *items);
    for (uint32_t i = 0; items && i < d->message->declare.count && !d->r.failed; i++)
        get_declaration(d, &items[i]);
    d->message->declare.items = items;
}

static void put_barrier(tly_writer *w, const tly_ctl *m)
{
    tly_write_u64(w, m->barrier.seq);
}

static void get_barrier(decoder *d)
{
    d->message->barrier.seq = tly_read_u64(&d->r);
}

static void put_nothing(tly_writer *w, const tly_ctl *m)
{
    (void)w;
    (void)m;
}

static void get_nothing(decoder *d)
{
    (void)d;
}

static void put_peer_text(tly_writer *w, const tly_ctl *m)
{
    tly_write_u32(w, m->peer);
    put_text(w, m->text);
}

static void get_peer_text(decoder *d)
{
    d->message->peer = tly_read_u32(&d->r);
    d->message->text = tly_read_string(&d->r);
}

static void put_status_text(tly_writer *w, const tly_ctl *m)
{
    tly_write_u32(w, m->status);
    put_text(w, m->text);
}

static void get_status_text(decoder *d)
{
    d->message->status = tly_read_u32(&d->r);
    d->message->text = tly_read_string(&d->r);
}

#define NODE_BYTES (4 + 4 + 4 + STRING_BYTES + 4)

static void put_nodes(tly_writer *w, uint32_t count, const tly_node *nodes)
{
    tly_write_u32(w, count);
    for (uint32_t i = 0; i < count; i++) {
        tly_write_u32(w, nodes[i].id);
        tly_write_u32(w, nodes[i].rank);
        tly_write_u32(w, nodes[i].local_size);
        put_text(w, nodes[i].host);
        put_strings(w, nodes[i].endpoint_count, nodes[i].endpoints);
    }
}

static const tly_node *get_nodes(decoder *d, uint32_t *count)
{
    *count = get_count(d, NODE_BYTES);
    tly_node *nodes = take(d, *count, sizeof *nodes);
    for (uint32_t i = 0; nodes && i < *count && !d->r.failed; i++) {
        nodes[i].id = tly_read_u32(&d->r);
        nodes[i].rank = tly_read_u32(&d->r);
        nodes[i].local_size = tly_read_u32(&d->r);
        nodes[i].host = tly_read_string(&d->r);
        nodes[i].endpoints = get_strings(d, &nodes[i].endpoint_count);
    }
    return nodes;
}

static void put_epoch(tly_writer *w, const tly_ctl *m)
{
    tly_write_u32(w, m->epoch_info.id);
    tly_write_u32(w, m->epoch_info.rank);
    tly_write_u32(w, m->epoch_info.death_limit_ms);
    put_nodes(w, m->epoch_info.worker_count, m->epoch_info.workers);
    put_nodes(w, m->epoch_info.server_count, m->epoch_info.servers);
}

static void get_epoch(decoder *d)
{
    tly_ctl *m = d->message;
    m->epoch_info.id = tly_read_u32(&d->r);
    m->epoch_info.rank = tly_read_u32(&d->r);
    m->epoch_info.death_limit_ms = tly_read_u32(&d->r);
    m->epoch_info.workers = get_nodes(d, &m->epoch_info.worker_count);
    m->epoch_info.servers = get_nodes(d, &m->epoch_info.server_count);
}

#define PLACED_BYTES (4 + 1 + STRING_BYTES + DECLARATION_BYTES + 4 + 4)
#define PLACE_BYTES (2 + 2)

static void put_placed(tly_writer *w, const tly_ctl *m)
{
    tly_write_u64(w, m->placed.base);
    tly_write_u32(w, m->placed.count);
    for (uint32_t i = 0; i < m->placed.count; i++) {
        const tly_placed *item = &m->placed.items[i];
        tly_write_u32(w, item->tensor);
        tly_write_u8(w, item->conflict != NULL);
        put_text(w, item->conflict);
        put_declaration(w, &item->declaration);
        tly_write_u32(w, item->first_rank);
        tly_write_u32(w, item->place_count);
        for (uint32_t j = 0; j < item->place_count; j++) {
            tly_write_u16(w, item->places[j].server);
            tly_write_u16(w, item->places[j].shard);
        }
    }
}

static void get_placed_item(decoder *d, tly_placed *item)
{
    item->tensor = tly_read_u32(&d->r);
    bool conflict = tly_read_u8(&d->r) != 0;
    const char *text = tly_read_string(&d->r);
    item->conflict = conflict ? text : NULL;
    get_declaration(d, &item->declaration);
    item->first_rank = tly_read_u32(&d->r);
    item->place_count = get_count(d, PLACE_BYTES);
    tly_place *places = take(d, item->place_count, sizeof *places);
    for (uint32_t j = 0; places && j < item->place_count; j++) {
        places[j].server = tly_read_u16(&d->r);
        places[j].shard = tly_read_u16(&d->r);
    }
    item->places = places;
}

static void get_placed(decoder *d)
{
    tly_ctl *m = d->message;
    m->placed.base = tly_read_u64(&d->r);
    m->placed.count = get_count(d, PLACED_BYTES);
    tly_placed *items = take(d, m->placed.count, sizeof *items);
    for (uint32_t i = 0; items && i < m->placed.count && !d->r.failed; i++)
        get_placed_item(d, &items[i]);
    m->placed.items = items;
}

static void put_left(tly_writer *w, const tly_ctl *m)
{
    tly_write_u32(w, m->peer);
    tly_write_u32(w, m->rank);
}

static void get_left(decoder *d)
{
    d->message->peer = tly_read_u32(&d->r);
    d->message->rank = tly_read_u32(&d->r);
}

static void put_waiting(tly_writer *w, const tly_ctl *m)
{
    tly_write_u64(w, m->barrier.seq);
    put_text(w, m->text);
}

static void get_waiting(decoder *d)
{
    d->message->barrier.seq = tly_read_u64(&d->r);
    d->message->text = tly_read_string(&d->r);
}

static const struct codec {
    const char *name;
    void (*put)(tly_writer *w, const tly_ctl *m);
    void (*get)(decoder *d);
} codecs[TLY_CTL_TYPE_END] = {
    [TLY_CTL_REGISTER] = { "REGISTER", put_register, get_register },
    [TLY_CTL_BEAT] = { "BEAT", put_beat, get_beat },
    [TLY_CTL_DECLARE] = { "DECLARE", put_declare, get_declare },
    [TLY_CTL_BARRIER] = { "BARRIER", put_barrier, get_barrier },
    [TLY_CTL_LEAVE] = { "LEAVE", put_nothing, get_nothing },
    [TLY_CTL_UNREACHABLE] = { "UNREACHABLE", put_peer_text, get_peer_text },
    [TLY_CTL_FAIL] = { "FAIL", put_status_text, get_status_text },
    [TLY_CTL_EPOCH] = { "EPOCH", put_epoch, get_epoch },
    [TLY_CTL_PLACED] = { "PLACED", put_placed, get_placed },
    [TLY_CTL_LEFT] = { "LEFT", put_left, get_left },
    [TLY_CTL_REFUSED] = { "REFUSED", put_status_text, get_status_text },
    [TLY_CTL_WAITING] = { "WAITING", put_waiting, get_waiting },
    [TLY_CTL_END] = { "END", put_nothing, get_nothing },
};

static bool type_is_known(uint32_t type)
{
    return type > 0 && type < TLY_CTL_TYPE_END;
}

const char *tly_ctl_name(tly_ctl_type type)
{
    return type_is_known(type) ? codecs[type].name : "unknown";
}

tally_status tly_ctl_encode(const tly_ctl *message, tly_writer *out)
{
    uint8_t header[TLY_HEADER_BYTES];
    tly_wire_put_header(header, &(tly_header){
        .plane = TLY_PLANE_CONTROL,
        .job = message->job,
        .epoch = message->epoch,
        .sender = message->sender,
    });
    tly_write_bytes(out, header, sizeof header);
    tly_write_u16(out, (uint16_t)message->type);
    codecs[message->type].put(out, message);
    if (out->failed)
        return tly_error_memory(out->len_bytes, "a message for the control plane");
    return TALLY_OK;
}

tly_out *tly_ctl_out(const tly_ctl *message)
{
    tly_writer w;
    tly_writer_init(&w);
    tly_out *out = NULL;
    if (tly_ctl_encode(message, &w) == TALLY_OK)
        out = tly_out_create(w.len_bytes);
    if (out)
        memcpy(out->head, w.data, w.len_bytes);
    tly_writer_fini(&w);
    return out;
}

tally_status tly_ctl_decode(const void *frame, size_t len_bytes, tly_ctl *message)
{
    tly_header header;
    tally_status status = tly_wire_get_header(frame, len_bytes, &header);
    if (status != TALLY_OK)
        return status;
    if (header.plane != TLY_PLANE_CONTROL)
        return tly_error(TALLY_EPROTO, "a message of the data plane came on the control plane");

    tly_ctl m = { .job = header.job, .epoch = header.epoch, .sender = header.sender, .text = "" };
    decoder d = { .message = &m };
    tly_reader_init(&d.r, (const uint8_t *)frame + TLY_HEADER_BYTES, len_bytes - TLY_HEADER_BYTES);
    uint16_t type = tly_read_u16(&d.r);
    if (d.r.failed || !type_is_known(type))
        return tly_error(TALLY_EPROTO, "a message of the control plane has the unknown type %u", type);
    m.type = type;
    codecs[type].get(&d);
    if (d.out_of_memory)
        status = tly_error_memory(len_bytes, "reading a message of the control plane");
    else if (d.r.failed || d.r.at != d.r.end)
        status = tly_error(TALLY_EPROTO, "a %s message of %zu bytes is malformed", codecs[type].name,
                           len_bytes);
    if (status != TALLY_OK) {
        tly_ctl_fini(&m);
        return status;
    }
    *message = m;
    return TALLY_OK;
}

void tly_ctl_fini(tly_ctl *message)
{
    for (block *b = message->memory, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    message->memory = NULL;
}

int tly_beat_ms(int death_limit_ms)
{
    int beat_ms = death_limit_ms / 10;
    return beat_ms < 20 ? 20 : beat_ms > 1000 ? 1000 : beat_ms;
}

int tly_silence_ms(int death_limit_ms)
{
    return death_limit_ms - death_limit_ms / 10;
}

const char *tly_duration(char text[TLY_DURATION_MAX], int duration_ms)
{
    if (duration_ms % 1000 == 0)
        snprintf(text, TLY_DURATION_MAX, "%d s", duration_ms / 1000);
    else
        snprintf(text, TLY_DURATION_MAX, "%d ms", duration_ms);
    return text;
}

uint64_t tly_partition_elements(tally_dtype dtype, uint32_t partition_bytes)
{
    size_t size = tally_dtype_size(dtype);
    return size == 0 || partition_bytes < size ? 1 : partition_bytes / size;
}

uint64_t tly_partition_count(tally_dtype dtype, uint64_t count, uint32_t partition_bytes)
{
    uint64_t elements = tly_partition_elements(dtype, partition_bytes);
    return count == 0 ? 1 : count / elements + (count % elements != 0);
}
