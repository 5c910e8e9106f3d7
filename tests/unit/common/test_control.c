#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/control.h"

static const char *const endpoints[] = { "tcp://10.0.0.9:5000", "tcp://[::1]:5001" };

static const tly_node workers[] = {
    { .id = 3, .rank = 0, .local_size = 8, .host = "a:1" },
    { .id = 1, .rank = 1, .local_size = 4, .host = "b:2" },
};
static const tly_node servers[] = {
    { .id = 2, .rank = 0, .host = "c:3", .endpoint_count = 2, .endpoints = endpoints },
};
static const tly_declaration declarations[] = {
    { "x", TALLY_DTYPE_BF16, TALLY_OP_AVERAGE, 1ull << 40, 4096 },
    { "a.b/c", TALLY_DTYPE_I64, TALLY_OP_MAX, 0, 1u << 30 },
};
static const tly_place places[] = { { 0, 1 }, { 1023, 65534 }, { 7, 0 } };

/* One message of each type, every field of it set. */
static tly_ctl sample(tly_ctl_type type)
{
    static const tly_placed placed[] = {
        { .tensor = 5, .declaration = { "x", TALLY_DTYPE_BF16, TALLY_OP_AVERAGE, 6000, 4096 },
          .first_rank = 1, .place_count = 3, .places = places },
        { .tensor = 5, .conflict = "they disagree", .declaration = { .name = "x" } },
    };
    tly_ctl m = { .type = type, .job = 0xdeadbeef, .epoch = 1ull << 32 | 1, .sender = 7 };
    m.reg.role = TLY_ROLE_SERVER;
    m.reg.nonce = 0x123456789abcdef0;
    m.reg.id = 9;
    m.reg.rank = 1;
    m.reg.num_worker = 2;
    m.reg.num_server = 3;
    m.reg.local_size = 4;
    m.reg.placed_version = 1ull << 33;
    m.reg.host = "host:123";
    m.reg.endpoint_count = 2;
    m.reg.endpoints = endpoints;
    m.beat.placed_version = 77;
    m.declare.count = 2;
    m.declare.items = declarations;
    m.barrier.seq = 1ull << 40;
    m.epoch_info.id = 2;
    m.epoch_info.rank = 0;
    m.epoch_info.death_limit_ms = 10000;
    m.epoch_info.worker_count = 2;
    m.epoch_info.server_count = 1;
    m.epoch_info.workers = workers;
    m.epoch_info.servers = servers;
    m.placed.base = 4;
    m.placed.count = 2;
    m.placed.items = placed;
    m.peer = 11;
    m.rank = 12;
    m.status = TALLY_EREFUSED;
    m.text = "a sentence";
    return m;
}

static void check_strings(uint32_t count, const char *const *a, const char *const *b)
{
    for (uint32_t i = 0; i < count; i++)
        assert_string_equal(a[i], b[i]);
}

static void check_nodes(uint32_t count, const tly_node *a, const tly_node *b)
{
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(a[i].id, b[i].id);
        assert_int_equal(a[i].rank, b[i].rank);
        assert_int_equal(a[i].local_size, b[i].local_size);
        assert_string_equal(a[i].host, b[i].host);
        assert_int_equal(a[i].endpoint_count, b[i].endpoint_count);
        check_strings(a[i].endpoint_count, a[i].endpoints, b[i].endpoints);
    }
}

static void check_declaration(const tly_declaration *a, const tly_declaration *b)
{
    assert_string_equal(a->name, b->name);
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->op, b->op);
    assert_true(a->count == b->count);
    assert_int_equal(a->partition_bytes, b->partition_bytes);
}

static void check_register(const tly_ctl *a, const tly_ctl *b)
{
    assert_int_equal(a->reg.role, b->reg.role);
    assert_true(a->reg.nonce == b->reg.nonce);
    assert_int_equal(a->reg.id, b->reg.id);
    assert_int_equal(a->reg.rank, b->reg.rank);
    assert_int_equal(a->reg.num_worker, b->reg.num_worker);
    assert_int_equal(a->reg.num_server, b->reg.num_server);
    assert_int_equal(a->reg.local_size, b->reg.local_size);
    assert_true(a->reg.placed_version == b->reg.placed_version);
    assert_string_equal(a->reg.host, b->reg.host);
    assert_int_equal(a->reg.endpoint_count, b->reg.endpoint_count);
    check_strings(a->reg.endpoint_count, a->reg.endpoints, b->reg.endpoints);
}

static void check_beat(const tly_ctl *a, const tly_ctl *b)
{
    assert_true(a->beat.placed_version == b->beat.placed_version);
}

static void check_declare(const tly_ctl *a, const tly_ctl *b)
{
    assert_int_equal(a->declare.count, b->declare.count);
    for (uint32_t i = 0; i < a->declare.count; i++)
        check_declaration(&a->declare.items[i], &b->declare.items[i]);
}

static void check_barrier(const tly_ctl *a, const tly_ctl *b)
{
    assert_true(a->barrier.seq == b->barrier.seq);
}

static void check_nothing(const tly_ctl *a, const tly_ctl *b)
{
    (void)a;
    (void)b;
}

static void check_unreachable(const tly_ctl *a, const tly_ctl *b)
{
    assert_int_equal(a->peer, b->peer);
    assert_string_equal(a->text, b->text);
}

static void check_status(const tly_ctl *a, const tly_ctl *b)
{
    assert_int_equal(a->status, b->status);
    assert_string_equal(a->text, b->text);
}

static void check_epoch(const tly_ctl *a, const tly_ctl *b)
{
    assert_int_equal(a->epoch_info.id, b->epoch_info.id);
    assert_int_equal(a->epoch_info.rank, b->epoch_info.rank);
    assert_int_equal(a->epoch_info.death_limit_ms, b->epoch_info.death_limit_ms);
    assert_int_equal(a->epoch_info.worker_count, b->epoch_info.worker_count);
    assert_int_equal(a->epoch_info.server_count, b->epoch_info.server_count);
    check_nodes(a->epoch_info.worker_count, a->epoch_info.workers, b->epoch_info.workers);
    check_nodes(a->epoch_info.server_count, a->epoch_info.servers, b->epoch_info.servers);
}

static void check_placed(const tly_ctl *a, const tly_ctl *b)
{
    assert_true(a->placed.base == b->placed.base);
    assert_int_equal(a->placed.count, b->placed.count);
    for (uint32_t i = 0; i < a->placed.count; i++) {
        const tly_placed *x = &a->placed.items[i], *y = &b->placed.items[i];
        assert_int_equal(x->tensor, y->tensor);
        assert_true(!x->conflict == !y->conflict);
        if (x->conflict)
            assert_string_equal(x->conflict, y->conflict);
        check_declaration(&x->declaration, &y->declaration);
        assert_int_equal(x->first_rank, y->first_rank);
        assert_int_equal(x->place_count, y->place_count);
        if (x->place_count)
            assert_memory_equal(x->places, y->places, x->place_count * sizeof *x->places);
    }
}

static void check_left(const tly_ctl *a, const tly_ctl *b)
{
    assert_int_equal(a->peer, b->peer);
    assert_int_equal(a->rank, b->rank);
}

static void check_waiting(const tly_ctl *a, const tly_ctl *b)
{
    assert_true(a->barrier.seq == b->barrier.seq);
    assert_string_equal(a->text, b->text);
}

static void (*const checks[TLY_CTL_TYPE_END])(const tly_ctl *a, const tly_ctl *b) = {
    [TLY_CTL_REGISTER] = check_register,
    [TLY_CTL_BEAT] = check_beat,
    [TLY_CTL_DECLARE] = check_declare,
    [TLY_CTL_BARRIER] = check_barrier,
    [TLY_CTL_LEAVE] = check_nothing,
    [TLY_CTL_UNREACHABLE] = check_unreachable,
    [TLY_CTL_FAIL] = check_status,
    [TLY_CTL_EPOCH] = check_epoch,
    [TLY_CTL_PLACED] = check_placed,
    [TLY_CTL_LEFT] = check_left,
    [TLY_CTL_REFUSED] = check_status,
    [TLY_CTL_WAITING] = check_waiting,
    [TLY_CTL_END] = check_nothing,
};

static void encode(tly_ctl_type type, tly_writer *w)
{
    tly_ctl m = sample(type);
    tly_writer_init(w);
    assert_int_equal(tly_ctl_encode(&m, w), TALLY_OK);
}

/* A copy in a block of just this size, so that a sanitizer sees every byte read beyond it. */
static tally_status decode_exact(const uint8_t *data, size_t len_bytes, tly_ctl *m)
{
    uint8_t *copy = malloc(len_bytes ? len_bytes : 1);
    if (len_bytes)
        memcpy(copy, data, len_bytes);
    tally_status status = tly_ctl_decode(copy, len_bytes, m);
    if (status == TALLY_OK)
        tly_ctl_fini(m);
    free(copy);
    return status;
}

static void every_type_comes_back_as_it_was_sent(void **state)
{
    (void)state;
    for (int type = 1; type < TLY_CTL_TYPE_END; type++) {
        tly_ctl sent = sample((tly_ctl_type)type), got;
        tly_writer w;
        encode((tly_ctl_type)type, &w);
        assert_int_equal(tly_ctl_decode(w.data, w.len_bytes, &got), TALLY_OK);
        assert_int_equal(got.type, type);
        assert_int_equal(got.job, sent.job);
        assert_true(got.epoch == sent.epoch);
        assert_int_equal(got.sender, sent.sender);
        assert_non_null(got.text);
        checks[type](&sent, &got);
        tly_ctl_fini(&got);
        tly_writer_fini(&w);
    }
}

static void a_message_cut_anywhere_or_longer_is_malformed(void **state)
{
    (void)state;
    for (int type = 1; type < TLY_CTL_TYPE_END; type++) {
        tly_writer w;
        tly_ctl got;
        encode((tly_ctl_type)type, &w);
        for (size_t len = 0; len < w.len_bytes; len++)
            assert_int_equal(decode_exact(w.data, len, &got), TALLY_EPROTO);
        tly_write_u8(&w, 0);
        assert_int_equal(decode_exact(w.data, w.len_bytes, &got), TALLY_EPROTO);
        tly_writer_fini(&w);
    }
}

static void no_changed_byte_makes_the_decoder_read_outside_or_trip(void **state)
{
    (void)state;
    for (int type = 1; type < TLY_CTL_TYPE_END; type++) {
        tly_writer w;
        tly_ctl got;
        encode((tly_ctl_type)type, &w);
        for (size_t at = 0; at < w.len_bytes; at++) {
            uint8_t before = w.data[at];
            static const uint8_t values[] = { 0, 1, 0x7f, 0x80, 0xff };
            for (size_t v = 0; v < sizeof values; v++) {
                w.data[at] = values[v];
                tally_status status = decode_exact(w.data, w.len_bytes, &got);
                assert_true(status == TALLY_OK || status == TALLY_EPROTO || status == TALLY_EVERSION);
            }
            w.data[at] = before;
        }
        tly_writer_fini(&w);
    }
}

static void an_announced_length_beyond_the_frame_allocates_nothing(void **state)
{
    (void)state;
    tly_writer w;
    tly_ctl got, m = sample(TLY_CTL_DECLARE);
    m.declare.count = 0;
    tly_writer_init(&w);
    assert_int_equal(tly_ctl_encode(&m, &w), TALLY_OK);
    memset(w.data + w.len_bytes - 4, 0xff, 4); /* the count */
    assert_int_equal(decode_exact(w.data, w.len_bytes, &got), TALLY_EPROTO);
    assert_string_equal(tly_error_text(), "a DECLARE message of 54 bytes is malformed");
    tly_writer_fini(&w);
}

static void unknown_types_roles_and_planes_are_malformed_and_other_versions_are_named(void **state)
{
    (void)state;
    tly_writer w;
    tly_ctl got;
    encode(TLY_CTL_REGISTER, &w);
    w.data[TLY_HEADER_BYTES] = 0;
    assert_int_equal(decode_exact(w.data, w.len_bytes, &got), TALLY_EPROTO);
    w.data[TLY_HEADER_BYTES] = TLY_CTL_TYPE_END;
    assert_int_equal(decode_exact(w.data, w.len_bytes, &got), TALLY_EPROTO);
    w.data[TLY_HEADER_BYTES] = TLY_CTL_REGISTER;
    w.data[TLY_HEADER_BYTES + 2] = TLY_ROLE_SCHEDULER;
    assert_int_equal(decode_exact(w.data, w.len_bytes, &got), TALLY_EPROTO);
    w.data[TLY_HEADER_BYTES + 2] = TLY_ROLE_WORKER;
    assert_int_equal(decode_exact(w.data, w.len_bytes, &got), TALLY_OK);
    w.data[4] = TLY_WIRE_VERSION + 1;
    assert_int_equal(decode_exact(w.data, w.len_bytes, &got), TALLY_EVERSION);
    tly_writer_fini(&w);

    uint8_t data_plane[TLY_HEADER_BYTES];
    tly_wire_put_header(data_plane, &(tly_header){ .plane = TLY_PLANE_DATA });
    assert_int_equal(decode_exact(data_plane, sizeof data_plane, &got), TALLY_EPROTO);
}

static void a_beat_has_these_bytes(void **state)
{
    (void)state;
    static const uint8_t expected[] = {
        'T', 'A', 'L', 'Y', 1, 0, 1, 0,               /* magic, version, plane */
        0xef, 0xbe, 0xad, 0xde, 7, 0, 0, 0,           /* job, sender */
        1, 0, 0, 0, 1, 0, 0, 0,                       /* epoch */
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        2, 0,                                         /* BEAT */
        77, 0, 0, 0, 0, 0, 0, 0,                      /* placed_version */
    };
    tly_writer w;
    encode(TLY_CTL_BEAT, &w);
    assert_int_equal(w.len_bytes, sizeof expected);
    assert_memory_equal(w.data, expected, sizeof expected);
    tly_writer_fini(&w);
}

static void partitions_have_whole_elements_and_there_is_always_one(void **state)
{
    (void)state;
    assert_int_equal(tly_partition_elements(TALLY_DTYPE_F32, 4096), 1024);
    assert_int_equal(tly_partition_elements(TALLY_DTYPE_F64, 4100), 512);
    assert_int_equal(tly_partition_elements(TALLY_DTYPE_I64, 4), 1);
    assert_int_equal(tly_partition_count(TALLY_DTYPE_F32, 0, 4096), 1);
    assert_int_equal(tly_partition_count(TALLY_DTYPE_F32, 1, 4096), 1);
    assert_int_equal(tly_partition_count(TALLY_DTYPE_F32, 1024, 4096), 1);
    assert_int_equal(tly_partition_count(TALLY_DTYPE_F32, 1025, 4096), 2);
    assert_true(tly_partition_count(TALLY_DTYPE_U8, UINT64_MAX, 4096) == 1ull << 52);
}

static void beats_and_silence_follow_from_the_death_limit(void **state)
{
    (void)state;
    assert_int_equal(tly_beat_ms(10000), 1000);
    assert_int_equal(tly_beat_ms(3600000), 1000);
    assert_int_equal(tly_beat_ms(5000), 500);
    assert_int_equal(tly_beat_ms(100), 20);
    assert_int_equal(tly_silence_ms(10000), 9000);
    char text[TLY_DURATION_MAX];
    assert_string_equal(tly_duration(text, 10000), "10 s");
    assert_string_equal(tly_duration(text, 1500), "1500 ms");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_comes_back_as_it_was_sent),
        cmocka_unit_test(a_message_cut_anywhere_or_longer_is_malformed),
        cmocka_unit_test(no_changed_byte_makes_the_decoder_read_outside_or_trip),
        cmocka_unit_test(an_announced_length_beyond_the_frame_allocates_nothing),
        cmocka_unit_test(unknown_types_roles_and_planes_are_malformed_and_other_versions_are_named),
        cmocka_unit_test(a_beat_has_these_bytes),
        cmocka_unit_test(partitions_have_whole_elements_and_there_is_always_one),
        cmocka_unit_test(beats_and_silence_follow_from_the_death_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
