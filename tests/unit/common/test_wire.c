#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/control.h"
#include "tests/lib/golden.h"

#define RECORDS_FILE "tests/data/records.hex"
#define CONTROL_FILE "tests/data/control.hex"

/* ---- samples: every field another value, so that no two can be exchanged unseen ---- */

static const tly_header full_header = {
    .plane = TLY_PLANE_DATA,
    .job = 0x11121314,
    .epoch = 0x2122232425262728,
    .sender = 0x31323334,
    .session = 0x41424344,
    .acked = 0x5152535455565758,
    .stable = 0x6162636465666768,
    .record_count = 0,
};

static tly_record full_record(uint8_t type)
{
    return (tly_record){ .type = type,
                         .kind = TLY_KIND_BROADCAST,
                         .dtype = TALLY_DTYPE_I64,
                         .op = TALLY_OP_MAX,
                         .codec = 0,
                         .flags = 0x95,
                         .contributors = 0xa1a2,
                         .tensor = 0xb1b2b3b4,
                         .partition = 0xc1c2c3c4,
                         .round = 0xd1d2d3d4d5d6d7d8,
                         .seq = 0xe1e2e3e4e5e6e7e8,
                         .root = 0xf1f2f3f4,
                         .len_bytes = 0x01020304 };
}

static void check_header(const tly_header *a, const tly_header *b)
{
    assert_int_equal(a->plane, b->plane);
    assert_int_equal(a->job, b->job);
    assert_true(a->epoch == b->epoch);
    assert_int_equal(a->sender, b->sender);
    assert_int_equal(a->session, b->session);
    assert_true(a->acked == b->acked);
    assert_true(a->stable == b->stable);
    assert_int_equal(a->record_count, b->record_count);
}

static void check_record(const tly_record *a, const tly_record *b)
{
    assert_int_equal(a->type, b->type);
    assert_int_equal(a->kind, b->kind);
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->op, b->op);
    assert_int_equal(a->codec, b->codec);
    assert_int_equal(a->flags, b->flags);
    assert_int_equal(a->contributors, b->contributors);
    assert_int_equal(a->tensor, b->tensor);
    assert_int_equal(a->partition, b->partition);
    assert_true(a->round == b->round);
    assert_true(a->seq == b->seq);
    assert_int_equal(a->root, b->root);
    assert_int_equal(a->len_bytes, b->len_bytes);
}

/* A frame of a header and records of these payload lengths. */
static size_t frame_of(uint8_t *frame, uint32_t count, const uint32_t *lens)
{
    tly_header header = full_header;
    header.record_count = count;
    tly_wire_put_header(frame, &header);
    for (uint32_t i = 0; i < count; i++)
        tly_wire_put_record(frame + TLY_HEADER_BYTES + i * TLY_RECORD_BYTES,
                            &(tly_record){ .type = TLY_PUSH, .len_bytes = lens[i] });
    return TLY_HEADER_BYTES + count * TLY_RECORD_BYTES;
}

/* ---- the header ---- */

static void a_header_comes_back_as_it_was_put(void **state)
{
    (void)state;
    uint8_t bytes[TLY_HEADER_BYTES];
    tly_header back;
    tly_wire_put_header(bytes, &full_header);
    assert_int_equal(tly_wire_get_header(bytes, sizeof bytes, &back), TALLY_OK);
    check_header(&back, &full_header);
}

static void a_frame_shorter_than_its_header_is_malformed(void **state)
{
    (void)state;
    uint8_t bytes[TLY_HEADER_BYTES];
    tly_wire_put_header(bytes, &full_header);
    for (size_t len = 0; len < TLY_HEADER_BYTES; len++) {
        tly_header back = { .job = 77 };
        uint8_t *exact = malloc(len ? len : 1); /* so that a sanitizer sees a read past the end */
        memcpy(exact, bytes, len);
        assert_int_equal(tly_wire_get_header(exact, len, &back), TALLY_EPROTO);
        assert_int_equal(back.job, 77); /* written on success only */
        free(exact);
    }
}

static void another_magic_is_malformed(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        uint8_t bytes[TLY_HEADER_BYTES];
        tly_header back;
        tly_wire_put_header(bytes, &full_header);
        bytes[i] ^= 1;
        assert_int_equal(tly_wire_get_header(bytes, sizeof bytes, &back), TALLY_EPROTO);
        assert_string_equal(tally_last_error(), "a message of 48 bytes does not begin as Tally's do");
    }
}

static void another_version_is_refused_with_both_named_even_where_the_rest_is_unknown(void **state)
{
    (void)state;
    uint8_t bytes[TLY_HEADER_BYTES];
    tly_header back;
    tly_wire_put_header(bytes, &full_header);
    bytes[4] = 0x39;
    bytes[5] = 0x05;
    assert_int_equal(tly_wire_get_header(bytes, sizeof bytes, &back), TALLY_EVERSION);
    assert_string_equal(tally_last_error(),
                        "the peer speaks wire version 1337, this is wire version 1 (Tally " TLY_VERSION ")");
    assert_int_equal(tly_wire_get_header(bytes, 8, &back), TALLY_EVERSION);
    bytes[6] = 0xff; /* a plane that only that version has */
    assert_int_equal(tly_wire_get_header(bytes, sizeof bytes, &back), TALLY_EVERSION);
}

static void an_unknown_plane_is_malformed(void **state)
{
    (void)state;
    const uint16_t planes[] = { 0, 3, 0x0101, 0xffff };
    for (size_t i = 0; i < sizeof planes / sizeof planes[0]; i++) {
        uint8_t bytes[TLY_HEADER_BYTES];
        tly_header header = full_header, back;
        header.plane = planes[i];
        tly_wire_put_header(bytes, &header);
        assert_int_equal(tly_wire_get_header(bytes, sizeof bytes, &back), TALLY_EPROTO);
    }
}

static void a_data_frame_is_exactly_its_header_and_its_records(void **state)
{
    (void)state;
    uint8_t frame[TLY_HEADER_BYTES + 3 * TLY_RECORD_BYTES];
    const uint32_t lens[3] = { 0 };
    tly_header back;
    size_t len = frame_of(frame, 2, lens);
    assert_int_equal(tly_wire_get_header(frame, len, &back), TALLY_OK);
    assert_int_equal(back.record_count, 2);
    assert_int_equal(tly_wire_get_header(frame, len - 1, &back), TALLY_EPROTO);
    assert_int_equal(tly_wire_get_header(frame, len + 1, &back), TALLY_EPROTO);
    assert_int_equal(tly_wire_get_header(frame, len - TLY_RECORD_BYTES, &back), TALLY_EPROTO);
    assert_int_equal(tly_wire_get_header(frame, len + TLY_RECORD_BYTES, &back), TALLY_EPROTO);
    memset(frame + 44, 0xff, 4);
    assert_int_equal(tly_wire_get_header(frame, len, &back), TALLY_EPROTO);
}

static void a_control_frame_may_have_any_length_after_its_header(void **state)
{
    (void)state;
    uint8_t frame[TLY_HEADER_BYTES + 5] = { 0 };
    tly_header header = full_header, back;
    header.plane = TLY_PLANE_CONTROL;
    header.record_count = 0xffffffff;
    tly_wire_put_header(frame, &header);
    assert_int_equal(tly_wire_get_header(frame, sizeof frame, &back), TALLY_OK);
    check_header(&back, &header);
}

/* ---- records ---- */

static void every_record_type_comes_back_as_it_was_put(void **state)
{
    (void)state;
    for (uint8_t type = 1; type < TLY_RECORD_TYPE_END; type++) {
        uint8_t frame[TLY_HEADER_BYTES + 2 * TLY_RECORD_BYTES];
        tly_record record = full_record(type), back;
        tly_wire_put_record(frame + TLY_HEADER_BYTES + TLY_RECORD_BYTES, &record);
        assert_int_equal(tly_wire_get_record(frame, 1, &back), TALLY_OK);
        check_record(&back, &record);
    }
}

static void a_record_with_a_value_out_of_range_is_malformed(void **state)
{
    (void)state;
    static const struct {
        int offset;
        uint8_t lowest_bad;
    } fields[] = { { 0, TLY_RECORD_TYPE_END },
                   { 1, TLY_KIND_END },
                   { 2, TALLY_DTYPE_COUNT },
                   { 3, TALLY_OP_COUNT },
                   { 4, 1 } };
    for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++)
        for (int value = 0; value < 256; value++) {
            uint8_t frame[TLY_HEADER_BYTES + TLY_RECORD_BYTES];
            tly_record record = { .type = TLY_RESULT }, back = { .tensor = 77 };
            tly_wire_put_record(frame + TLY_HEADER_BYTES, &record);
            frame[TLY_HEADER_BYTES + fields[f].offset] = (uint8_t)value;
            bool good = value < fields[f].lowest_bad && !(f == 0 && value == 0);
            assert_int_equal(tly_wire_get_record(frame, 0, &back), good ? TALLY_OK : TALLY_EPROTO);
            assert_int_equal(back.tensor, good ? 0 : 77);
        }
}

/* ---- whole messages ---- */

static void the_payloads_must_add_up_to_the_body(void **state)
{
    (void)state;
    uint8_t frame[TLY_HEADER_BYTES + 3 * TLY_RECORD_BYTES];
    tly_header back = { .job = 77 };
    size_t len = frame_of(frame, 3, (const uint32_t[]){ 5, 0, 7 });
    assert_int_equal(tly_wire_check_data(frame, len, 12, &back), TALLY_OK);
    assert_int_equal(back.job, full_header.job);
    back.job = 77;
    assert_int_equal(tly_wire_check_data(frame, len, 11, &back), TALLY_EPROTO);
    assert_string_equal(tally_last_error(), "the records announce 12 bytes and the body has 11");
    assert_int_equal(tly_wire_check_data(frame, len, 13, &back), TALLY_EPROTO);
    assert_int_equal(tly_wire_check_data(frame, len, 0, &back), TALLY_EPROTO);
    assert_int_equal(back.job, 77);
}

static void payload_lengths_do_not_wrap_when_added(void **state)
{
    (void)state;
    uint8_t frame[TLY_HEADER_BYTES + 3 * TLY_RECORD_BYTES];
    tly_header back;
    size_t len = frame_of(frame, 3, (const uint32_t[]){ 0xffffffff, 0xffffffff, 2 });
    assert_int_equal(tly_wire_check_data(frame, len, 0, &back), TALLY_EPROTO);
    assert_int_equal(tly_wire_check_data(frame, len, 0x200000000, &back), TALLY_OK);
}

static void one_bad_record_spoils_the_message(void **state)
{
    (void)state;
    for (uint32_t bad = 0; bad < 3; bad++) {
        uint8_t frame[TLY_HEADER_BYTES + 3 * TLY_RECORD_BYTES];
        tly_header back;
        size_t len = frame_of(frame, 3, (const uint32_t[]){ 1, 1, 1 });
        frame[TLY_HEADER_BYTES + bad * TLY_RECORD_BYTES] = TLY_RECORD_TYPE_END;
        assert_int_equal(tly_wire_check_data(frame, len, 3, &back), TALLY_EPROTO);
    }
}

static void a_control_message_is_no_data_message(void **state)
{
    (void)state;
    uint8_t frame[TLY_HEADER_BYTES];
    tly_header header = full_header, back;
    header.plane = TLY_PLANE_CONTROL;
    tly_wire_put_header(frame, &header);
    assert_int_equal(tly_wire_check_data(frame, sizeof frame, 0, &back), TALLY_EPROTO);
}

static void a_round_error_comes_back_and_has_one_length_only(void **state)
{
    (void)state;
    const tly_round_error error = { TLY_ROUND_LENGTH, 0x11121314, 0x21222324, 0x31323334, 0x41424344, 0 };
    uint8_t bytes[TLY_ROUND_ERROR_BYTES + 1] = { 0 };
    tly_round_error back;
    tly_wire_put_round_error(bytes, &error);
    assert_int_equal(tly_wire_get_round_error(bytes, TLY_ROUND_ERROR_BYTES, &back), TALLY_OK);
    assert_memory_equal(&back, &error, sizeof error);
    assert_int_equal(tly_wire_get_round_error(bytes, TLY_ROUND_ERROR_BYTES - 1, &back), TALLY_EPROTO);
    assert_int_equal(tly_wire_get_round_error(bytes, TLY_ROUND_ERROR_BYTES + 1, &back), TALLY_EPROTO);
    assert_int_equal(tly_wire_get_round_error(NULL, 0, &back), TALLY_EPROTO);
}

/* ---- messages to send ---- */

static void messages_leave_a_list_in_the_order_of_pushing_also_after_it_was_empty(void **state)
{
    (void)state;
    tly_out_list list;
    tly_out_list_init(&list);
    assert_null(tly_out_pop(&list));
    for (int turn = 0; turn < 2; turn++) {
        tly_out *outs[3];
        for (int i = 0; i < 3; i++) {
            outs[i] = tly_out_create(8);
            assert_int_equal(outs[i]->head_len_bytes, 8);
            assert_memory_equal(outs[i]->head, "\0\0\0\0\0\0\0\0", 8);
            tly_out_push(&list, outs[i]);
        }
        for (int i = 0; i < 3; i++) {
            tly_out *out = tly_out_pop(&list);
            assert_ptr_equal(out, outs[i]);
            tly_out_free(out);
        }
        assert_null(tly_out_pop(&list));
    }
    tly_out_list_fini(&list);
}

static void a_list_that_ends_gives_its_bodies_back(void **state)
{
    (void)state;
    tly_buf *body = tly_buf_alloc(4);
    tly_out_list list, zeroed = { 0 };
    tly_out_list_init(&list);
    for (int i = 0; i < 3; i++) {
        tly_out *out = tly_out_create(0);
        out->body = tly_buf_get(body);
        tly_out_push(&list, out);
    }
    assert_int_equal(body->refs, 4);
    tly_out_list_fini(&list);
    assert_int_equal(body->refs, 1);
    tly_buf_put(body);
    tly_out_list_fini(&zeroed);
    tly_out_free(NULL);
}

/* ---- writer and reader ---- */

static void values_are_written_little_endian_without_gaps(void **state)
{
    (void)state;
    static const uint8_t expected[] = { 0x01, 0x03, 0x02, 0x07, 0x06, 0x05, 0x04, 0x0f, 0x0e, 0x0d, 0x0c,
                                        0x0b, 0x0a, 0x09, 0x08, 2,    0,    0,    0,    'a',  'b',  0 };
    tly_writer w;
    tly_writer_init(&w);
    tly_write_u8(&w, 0x01);
    tly_write_u16(&w, 0x0203);
    tly_write_u32(&w, 0x04050607);
    tly_write_u64(&w, 0x08090a0b0c0d0e0f);
    tly_write_string(&w, "ab");
    assert_false(w.failed);
    assert_int_equal(w.len_bytes, sizeof expected);
    assert_memory_equal(w.data, expected, sizeof expected);
    tly_reader r;
    tly_reader_init(&r, w.data, w.len_bytes);
    assert_int_equal(tly_read_u8(&r), 0x01);
    assert_int_equal(tly_read_u16(&r), 0x0203);
    assert_int_equal(tly_read_u32(&r), 0x04050607);
    assert_true(tly_read_u64(&r) == 0x08090a0b0c0d0e0f);
    assert_string_equal(tly_read_string(&r), "ab");
    assert_false(r.failed);
    assert_ptr_equal(r.at, r.end);
    tly_writer_fini(&w);
}

static void a_writer_grows_as_needed(void **state)
{
    (void)state;
    tly_writer w;
    tly_writer_init(&w);
    uint8_t block[1000];
    for (int i = 0; i < 100; i++) {
        memset(block, i, sizeof block);
        tly_write_bytes(&w, block, sizeof block);
    }
    tly_write_bytes(&w, NULL, 0);
    assert_int_equal(w.len_bytes, 100000);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(w.data[1000 * i], i);
        assert_int_equal(w.data[1000 * i + 999], i);
    }
    tly_writer_fini(&w);
    tly_writer_fini(&w);
}

static void a_writer_that_cannot_grow_fails_for_good(void **state)
{
    (void)state;
    tly_writer w;
    tly_writer_init(&w);
    tly_write_u8(&w, 1);
    tly_write_bytes(&w, "", SIZE_MAX - 1); /* refused before a byte is read */
    assert_true(w.failed);
    tly_write_u8(&w, 2);
    assert_int_equal(w.len_bytes, 1);
    tly_writer_fini(&w);
}

static void reading_past_the_end_gives_zero_and_fails_for_good(void **state)
{
    (void)state;
    static const uint8_t bytes[] = { 1, 2, 3, 4, 5, 6, 7 };
    tly_reader r;
    tly_reader_init(&r, bytes, sizeof bytes);
    assert_int_equal(tly_read_u32(&r), 0x04030201);
    assert_int_equal(tly_read_u32(&r), 0);
    assert_true(r.failed);
    assert_int_equal(tly_read_u8(&r), 0); /* though a byte is left */
    assert_int_equal(tly_read_u16(&r), 0);
    assert_true(tly_read_u64(&r) == 0);
    assert_string_equal(tly_read_string(&r), "");
    assert_null(tly_read_bytes(&r, 0));
    tly_reader_init(&r, bytes, sizeof bytes);
    assert_null(tly_read_bytes(&r, SIZE_MAX));
    assert_true(r.failed);
}

static void a_malformed_string_reads_as_empty_and_fails(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
        bool good;
    } cases[] = {
        { "\3\0\0\0abc\0", 8, true },
        { "\0\0\0\0\0", 5, true },
        { "\3\0\0\0abcd", 8, false },              /* no final 0 */
        { "\3\0\0\0a\0c\0", 8, false },            /* a 0 inside */
        { "\3\0\0\0abc", 7, false },               /* cut */
        { "\3\0\0", 3, false },
        { "\377\377\377\377abcdefgh", 12, false }, /* longer than the frame */
        { "\0\0\0\0", 4, false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *exact = malloc(cases[i].len);
        memcpy(exact, cases[i].bytes, cases[i].len);
        tly_reader r;
        tly_reader_init(&r, exact, cases[i].len);
        const char *text = tly_read_string(&r);
        assert_int_equal(r.failed, !cases[i].good);
        if (cases[i].good)
            assert_ptr_equal(text, exact + 4); /* it points into the frame */
        else
            assert_string_equal(text, "");
        free(exact);
    }
}

/* ---- golden bytes ---- */

static const char *const record_names[TLY_RECORD_TYPE_END] = {
    [TLY_HELLO] = "HELLO",   [TLY_HAVE] = "HAVE",     [TLY_PUSH] = "PUSH",       [TLY_ACK] = "ACK",
    [TLY_ASK] = "ASK",       [TLY_READY] = "READY",   [TLY_KEY] = "KEY",         [TLY_RECEIVED] = "RECEIVED",
    [TLY_RESULT] = "RESULT", [TLY_STABLE] = "STABLE", [TLY_MISSING] = "MISSING",
};

static const char *const endpoints[] = { "tcp://10.0.0.9:5000", "tcp://[::1]:5001" };
static const tly_node workers[] = { { .id = 3, .rank = 0, .local_size = 8, .host = "a:1" },
                                    { .id = 1, .rank = 1, .local_size = 4, .host = "b:2" } };
static const tly_node servers[] = { { .id = 2, .rank = 0, .local_size = 1, .host = "c:3", .endpoint_count = 2,
                                      .endpoints = endpoints } };
static const tly_declaration declarations[] = { { "x", TALLY_DTYPE_BF16, TALLY_OP_AVERAGE, 1ull << 40, 4096 },
                                                { "a.b/c", TALLY_DTYPE_I64, TALLY_OP_MAX, 0, 1u << 30 } };
static const tly_place places[] = { { 0, 1 }, { 1023, 65534 } };
static const tly_placed placed[] = {
    { .tensor = 5, .declaration = { "x", TALLY_DTYPE_BF16, TALLY_OP_AVERAGE, 4000, 4096 }, .first_rank = 1,
      .place_count = 2, .places = places },
    { .tensor = 5, .conflict = "they disagree", .declaration = { .name = "x" } },
};

static tly_ctl control_sample(tly_ctl_type type)
{
    tly_ctl m = { .type = type, .job = 0x11121314, .epoch = 0x2122232425262728, .sender = 0x31323334 };
    m.reg.role = TLY_ROLE_SERVER;
    m.reg.nonce = 0x4142434445464748;
    m.reg.id = 0x51525354;
    m.reg.rank = 0x61626364;
    m.reg.num_worker = 0x71727374;
    m.reg.num_server = 0x81828384;
    m.reg.local_size = 0x91929394;
    m.reg.placed_version = 0xa1a2a3a4a5a6a7a8;
    m.reg.host = "host:123";
    m.reg.endpoint_count = 2;
    m.reg.endpoints = endpoints;
    m.beat.placed_version = 0xb1b2b3b4b5b6b7b8;
    m.declare.count = 2;
    m.declare.items = declarations;
    m.barrier.seq = 0xc1c2c3c4c5c6c7c8;
    m.epoch_info.id = 0xd1d2d3d4;
    m.epoch_info.rank = 0xe1e2e3e4;
    m.epoch_info.death_limit_ms = 10000;
    m.epoch_info.worker_count = 2;
    m.epoch_info.server_count = 1;
    m.epoch_info.workers = workers;
    m.epoch_info.servers = servers;
    m.placed.base = 0xf1f2f3f4f5f6f7f8;
    m.placed.count = 2;
    m.placed.items = placed;
    m.peer = 0x01020304;
    m.rank = 0x05060708;
    m.status = TALLY_EREFUSED;
    m.text = "a sentence";
    return m;
}

/* The bytes of one entry, as the code makes them now. */
typedef struct sample {
    uint8_t bytes[1024];
    size_t len_bytes;
} sample;

static void header_bytes(sample *s)
{
    tly_wire_put_header(s->bytes, &full_header);
    s->len_bytes = TLY_HEADER_BYTES;
}

static void record_bytes(uint8_t type, sample *s)
{
    tly_record record = full_record(type);
    tly_wire_put_record(s->bytes, &record);
    s->len_bytes = TLY_RECORD_BYTES;
}

static void round_error_bytes(sample *s)
{
    tly_wire_put_round_error(
        s->bytes, &(tly_round_error){ TLY_ROUND_LENGTH, 0x11121314, 0x21222324, 0x31323334, 0x41424344, 0 });
    s->len_bytes = TLY_ROUND_ERROR_BYTES;
}

static bool control_bytes(tly_ctl_type type, sample *s)
{
    tly_ctl message = control_sample(type);
    tly_writer w;
    tly_writer_init(&w);
    bool good = tly_ctl_encode(&message, &w) == TALLY_OK && w.len_bytes <= sizeof s->bytes;
    s->len_bytes = good ? w.len_bytes : 0;
    if (good)
        memcpy(s->bytes, w.data, w.len_bytes);
    tly_writer_fini(&w);
    return good;
}

static void check_golden(const char *path, const char *name, const sample *now)
{
    sample then;
    then.len_bytes = golden_read(path, name, then.bytes, sizeof then.bytes);
    if (then.len_bytes == 0)
        fail_msg("%s is not in %s (run from the repository's root)", name, path);
    if (then.len_bytes != now->len_bytes || memcmp(then.bytes, now->bytes, now->len_bytes) != 0)
        fail_msg("%s is not as in %s", name, path);
}

static void header_records_and_round_errors_have_the_recorded_bytes(void **state)
{
    (void)state;
    sample s;
    header_bytes(&s);
    check_golden(RECORDS_FILE, "header", &s);
    round_error_bytes(&s);
    check_golden(RECORDS_FILE, "round_error", &s);
    for (uint8_t type = 1; type < TLY_RECORD_TYPE_END; type++) {
        record_bytes(type, &s);
        check_golden(RECORDS_FILE, record_names[type], &s);
    }
}

static void control_messages_have_the_recorded_bytes(void **state)
{
    (void)state;
    for (int type = 1; type < TLY_CTL_TYPE_END; type++) {
        sample s;
        assert_true(control_bytes((tly_ctl_type)type, &s));
        check_golden(CONTROL_FILE, tly_ctl_name((tly_ctl_type)type), &s);
    }
}

static void the_recorded_bytes_are_read_as_what_they_were_made_of(void **state)
{
    (void)state;
    sample s;
    tly_header header;
    s.len_bytes = golden_read(RECORDS_FILE, "header", s.bytes, sizeof s.bytes);
    assert_int_equal(tly_wire_get_header(s.bytes, s.len_bytes, &header), TALLY_OK);
    check_header(&header, &full_header);
    for (uint8_t type = 1; type < TLY_RECORD_TYPE_END; type++) {
        tly_record record, expected = full_record(type);
        golden_read(RECORDS_FILE, record_names[type], s.bytes + TLY_HEADER_BYTES, TLY_RECORD_BYTES);
        assert_int_equal(tly_wire_get_record(s.bytes, 0, &record), TALLY_OK);
        check_record(&record, &expected);
    }
    /* A control message that is decoded and encoded again has the same bytes. */
    for (int type = 1; type < TLY_CTL_TYPE_END; type++) {
        tly_ctl message;
        tly_writer w;
        s.len_bytes = golden_read(CONTROL_FILE, tly_ctl_name((tly_ctl_type)type), s.bytes, sizeof s.bytes);
        assert_int_equal(tly_ctl_decode(s.bytes, s.len_bytes, &message), TALLY_OK);
        assert_int_equal(message.type, type);
        assert_int_equal(message.job, 0x11121314);
        assert_true(message.epoch == 0x2122232425262728);
        assert_int_equal(message.sender, 0x31323334);
        tly_writer_init(&w);
        assert_int_equal(tly_ctl_encode(&message, &w), TALLY_OK);
        assert_int_equal(w.len_bytes, s.len_bytes);
        assert_memory_equal(w.data, s.bytes, s.len_bytes);
        tly_writer_fini(&w);
        tly_ctl_fini(&message);
    }
}

/* The fields of header and record; after a control message's header come its type and its body. */
static const int header_groups[] = { 4, 2, 2, 4, 4, 8, 8, 8, 4, 4, 0 };
static const int record_groups[] = { 1, 1, 1, 1, 1, 1, 2, 4, 4, 8, 8, 4, 4, 8, 0 };
static const int word_groups[] = { 4, 0 };
static const int control_groups[] = { 4, 2, 2, 4, 4, 8, 8, 8, 4, 4, 2, 4, 0 };

static bool begin_file(const char *path, const char *comment)
{
    FILE *file = fopen(path, "w");
    return file && fputs(comment, file) >= 0 && fclose(file) == 0;
}

static int update(void)
{
    sample s;
    bool good =
        begin_file(
            RECORDS_FILE,
            "# The bytes of the header, of a round error and of each record type, every field with a\n"
            "# value of its own (tests/lib/golden.h says how to read and renew this file).\n"
            "# header: magic, version, plane, job, sender, epoch, acked, stable, session, record count\n"
            "# record: type, kind, dtype, op, codec, flags, contributors, tensor, partition, round, seq,\n"
            "#         root, length, spare\n") &&
        begin_file(
            CONTROL_FILE,
            "# The bytes of each control message (tests/lib/golden.h says how to read and renew this\n"
            "# file): the header as in records.hex, the type, and the body in groups of four bytes.\n");
    header_bytes(&s);
    good = good && golden_append(RECORDS_FILE, "header", s.bytes, s.len_bytes, header_groups);
    round_error_bytes(&s);
    good = good && golden_append(RECORDS_FILE, "round_error", s.bytes, s.len_bytes, word_groups);
    for (uint8_t type = 1; good && type < TLY_RECORD_TYPE_END; type++) {
        record_bytes(type, &s);
        good = golden_append(RECORDS_FILE, record_names[type], s.bytes, s.len_bytes, record_groups);
    }
    for (int type = 1; good && type < TLY_CTL_TYPE_END; type++)
        good = control_bytes((tly_ctl_type)type, &s) &&
               golden_append(CONTROL_FILE, tly_ctl_name((tly_ctl_type)type), s.bytes, s.len_bytes,
                             control_groups);
    if (!good)
        perror("tests/data");
    return !good;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_comes_back_as_it_was_put),
        cmocka_unit_test(a_frame_shorter_than_its_header_is_malformed),
        cmocka_unit_test(another_magic_is_malformed),
        cmocka_unit_test(another_version_is_refused_with_both_named_even_where_the_rest_is_unknown),
        cmocka_unit_test(an_unknown_plane_is_malformed),
        cmocka_unit_test(a_data_frame_is_exactly_its_header_and_its_records),
        cmocka_unit_test(a_control_frame_may_have_any_length_after_its_header),
        cmocka_unit_test(every_record_type_comes_back_as_it_was_put),
        cmocka_unit_test(a_record_with_a_value_out_of_range_is_malformed),
        cmocka_unit_test(the_payloads_must_add_up_to_the_body),
        cmocka_unit_test(payload_lengths_do_not_wrap_when_added),
        cmocka_unit_test(one_bad_record_spoils_the_message),
        cmocka_unit_test(a_control_message_is_no_data_message),
        cmocka_unit_test(a_round_error_comes_back_and_has_one_length_only),
        cmocka_unit_test(messages_leave_a_list_in_the_order_of_pushing_also_after_it_was_empty),
        cmocka_unit_test(a_list_that_ends_gives_its_bodies_back),
        cmocka_unit_test(values_are_written_little_endian_without_gaps),
        cmocka_unit_test(a_writer_grows_as_needed),
        cmocka_unit_test(a_writer_that_cannot_grow_fails_for_good),
        cmocka_unit_test(reading_past_the_end_gives_zero_and_fails_for_good),
        cmocka_unit_test(a_malformed_string_reads_as_empty_and_fails),
        cmocka_unit_test(header_records_and_round_errors_have_the_recorded_bytes),
        cmocka_unit_test(control_messages_have_the_recorded_bytes),
        cmocka_unit_test(the_recorded_bytes_are_read_as_what_they_were_made_of),
    };
    if (argc > 1 && strcmp(argv[1], "--update") == 0)
        return update();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
