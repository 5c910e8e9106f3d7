#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS_MAX 6

static void drop_line(void *arg, tally_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

const tly_log fuzz_log = { .level = TALLY_LOG_TRACE, .sink = drop_line, .who = "fuzz" };

void fuzz_fail(const char *file, int line, const char *what)
{
    fprintf(stderr, "%s:%d: not true: %s\n", file, line, what);
    abort();
}

uint8_t fuzz_u8(fuzz_input *in)
{
    return in->at < in->end ? *in->at++ : 0;
}

uint16_t fuzz_u16(fuzz_input *in)
{
    uint16_t low = fuzz_u8(in);
    return (uint16_t)(low | fuzz_u8(in) << 8);
}

uint8_t *fuzz_block(fuzz_input *in, size_t *len_bytes)
{
    if (*len_bytes > (size_t)(in->end - in->at))
        *len_bytes = (size_t)(in->end - in->at);
    uint8_t *block = malloc(*len_bytes ? *len_bytes : 1);
    FUZZ_CHECK(block);
    if (*len_bytes)
        memcpy(block, in->at, *len_bytes);
    in->at += *len_bytes;
    return block;
}

/* A body whose bytes are the script's as far as they last. */
static tly_buf *body_read(fuzz_input *in, size_t len_bytes)
{
    tly_buf *body = len_bytes ? tly_buf_alloc(len_bytes) : NULL;
    for (size_t i = 0; body && i < len_bytes; i++)
        ((uint8_t *)body->data)[i] = fuzz_u8(in);
    return body;
}

static void raw_read(fuzz_input *in, fuzz_message *message)
{
    message->len_bytes = fuzz_u16(in) % 512;
    size_t body_bytes = fuzz_u8(in);
    message->frame = fuzz_block(in, &message->len_bytes);
    message->body = body_read(in, body_bytes);
}

static void record_read(fuzz_input *in, tly_record *record)
{
    *record = (tly_record){
        .type = fuzz_u8(in) % (TLY_RECORD_TYPE_END + 1),
        .kind = fuzz_u8(in) % TLY_KIND_END,
        .dtype = fuzz_u8(in) % TALLY_DTYPE_COUNT,
        .op = fuzz_u8(in) % TALLY_OP_COUNT,
        .flags = fuzz_u8(in),
        .tensor = fuzz_u8(in) % 4,
        .partition = fuzz_u8(in) % 4,
        .round = fuzz_u8(in),
        .seq = fuzz_u8(in),
        .root = fuzz_u8(in) % 4,
        .len_bytes = fuzz_u8(in),
        .contributors = 2,
    };
}

void fuzz_message_read(fuzz_input *in, uint32_t job, uint64_t epoch, uint32_t sender, fuzz_message *message)
{
    uint8_t how = fuzz_u8(in);
    if (how == 0xff) {
        raw_read(in, message);
        return;
    }
    tly_header header = { .plane = TLY_PLANE_DATA,
                          .job = job,
                          .epoch = epoch + (how >> 6 == 1) - (how >> 6 == 2),
                          .sender = sender,
                          .session = fuzz_u8(in),
                          .acked = fuzz_u8(in),
                          .stable = fuzz_u8(in),
                          .record_count = how % RECORDS_MAX };
    size_t body_bytes = 0;
    message->len_bytes = TLY_HEADER_BYTES + header.record_count * TLY_RECORD_BYTES;
    message->frame = malloc(message->len_bytes);
    FUZZ_CHECK(message->frame);
    tly_wire_put_header(message->frame, &header);
    for (uint32_t i = 0; i < header.record_count; i++) {
        tly_record record;
        record_read(in, &record);
        tly_wire_put_record(message->frame + TLY_HEADER_BYTES + i * TLY_RECORD_BYTES, &record);
        body_bytes += record.len_bytes;
    }
    message->body = body_read(in, body_bytes + (how >> 6 == 3));
}

void fuzz_message_fini(fuzz_message *message)
{
    free(message->frame);
    tly_buf_put(message->body);
}
