#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/round.h"
#include "tests/lib/failing.h"

#define JOB 77
#define EPOCH 0x100000001ull
#define NODE 9
#define RANKS_MAX 130
#define GOT_MAX 8192

/* ---- a shard with its workers, played by the test ---- */

/* One record that the shard has sent. */
typedef struct got {
    uint32_t rank;
    tly_peer peer;
    tly_header header;
    tly_record record;
    tly_buf *body;          /* of the whole message; a reference */
    const uint8_t *payload; /* this record's part of it */
    uint32_t message;       /* number of the message that it came in */
} got;

typedef struct shard {
    tly_rounds *rounds;
    tly_log log;
    int warnings;
    char warning[512];
    uint64_t epoch;
    uint32_t worker_count;
    uint32_t ids[RANKS_MAX];
    uint32_t session[RANKS_MAX]; /* what each worker's messages carry */
    uint64_t acked[RANKS_MAX];
    tly_time now;
    got got[GOT_MAX];
    uint32_t got_count, message_count;
} shard;

static void count_line(void *arg, tally_log_level level, const char *line)
{
    shard *s = arg;
    if (level != TALLY_LOG_WARN)
        return;
    s->warnings++;
    snprintf(s->warning, sizeof s->warning, "%s", line);
}

static tly_peer peer_of(uint32_t rank)
{
    return (tly_peer){ .len = 5, .id = { 0, (uint8_t)rank, (uint8_t)(rank >> 8), 'p', 1 } };
}

static shard *shard_create(uint32_t worker_count, bool deterministic)
{
    shard *s = test_calloc(1, sizeof *s);
    s->log = (tly_log){ .level = TALLY_LOG_WARN, .sink = count_line, .sink_arg = s };
    s->worker_count = worker_count;
    s->epoch = EPOCH;
    s->now = 1000;
    for (uint32_t i = 0; i < worker_count; i++)
        s->ids[i] = 10 + (i * 37) % 131; /* not in the order of ranks */
    assert_int_equal(tly_rounds_create(NODE, JOB, deterministic, &s->log, &s->rounds), TALLY_OK);
    assert_int_equal(tly_rounds_install(s->rounds, EPOCH, worker_count, s->ids, s->now), TALLY_OK);
    return s;
}

/* Forget what the shard has sent so far. */
static void forget(shard *s)
{
    for (uint32_t i = 0; i < s->got_count; i++)
        tly_buf_put(s->got[i].body);
    s->got_count = 0;
}

static uint32_t rank_of_peer(const shard *s, const tly_peer *peer)
{
    uint32_t rank = peer->id[1] | (uint32_t)peer->id[2] << 8;
    assert_int_equal(peer->len, 5);
    assert_true(rank < s->worker_count);
    return rank;
}

/* Take all that the shard wants sent. */
static void collect(shard *s)
{
    for (tly_out *out; (out = tly_out_pop(tly_rounds_out(s->rounds)));) {
        tly_header h;
        size_t offset = 0;
        assert_int_equal(
            tly_wire_check_data(out->head, out->head_len_bytes, out->body ? out->body->len_bytes : 0, &h),
            TALLY_OK);
        assert_int_equal(h.job, JOB);
        assert_true(h.epoch == s->epoch);
        assert_int_equal(h.sender, NODE);
        for (uint32_t i = 0; i < h.record_count; i++) {
            assert_true(s->got_count < GOT_MAX);
            got *g = &s->got[s->got_count++];
            *g = (got){ .rank = rank_of_peer(s, &out->peer), .peer = out->peer, .header = h,
                        .message = s->message_count };
            tly_wire_get_record(out->head, i, &g->record);
            g->body = out->body ? tly_buf_get(out->body) : NULL;
            g->payload = out->body ? (const uint8_t *)out->body->data + offset : NULL;
            offset += g->record.len_bytes;
        }
        s->message_count++;
        tly_out_free(out);
    }
}

static void shard_destroy(shard *s)
{
    forget(s);
    tly_rounds_destroy(s->rounds);
    test_free(s);
}

/* How many records of a type a worker was sent since forget. */
static uint32_t count_of(shard *s, uint32_t rank, tly_record_type type)
{
    uint32_t count = 0;
    collect(s);
    for (uint32_t i = 0; i < s->got_count; i++)
        count += s->got[i].rank == rank && s->got[i].record.type == type;
    return count;
}

/* The index-th of them. */
static const got *nth(shard *s, uint32_t rank, tly_record_type type, uint32_t index)
{
    collect(s);
    for (uint32_t i = 0; i < s->got_count; i++)
        if (s->got[i].rank == rank && s->got[i].record.type == type && index-- == 0)
            return &s->got[i];
    fail_msg("worker %u was not sent record %u of type %d", rank, index, type);
    return NULL;
}

static void nothing_was_sent(shard *s)
{
    collect(s);
    assert_int_equal(s->got_count, 0);
}

static uint64_t stat_of(const shard *s, size_t offset)
{
    tly_rounds_stats stats;
    tly_rounds_stats_get(s->rounds, &stats);
    return *(uint64_t *)((char *)&stats + offset);
}
#define STAT(s, field) stat_of(s, offsetof(tly_rounds_stats, field))

/* One message of a worker; takes the reference to body. */
static void say_as(shard *s, uint32_t rank, const tly_header *header, const tly_record *records,
                   uint32_t count, tly_buf *body)
{
    uint8_t frame[TLY_HEADER_BYTES + 1024 * TLY_RECORD_BYTES];
    tly_header h = *header;
    h.record_count = count;
    tly_wire_put_header(frame, &h);
    for (uint32_t i = 0; i < count; i++)
        tly_wire_put_record(frame + TLY_HEADER_BYTES + i * TLY_RECORD_BYTES, &records[i]);
    tly_peer peer = peer_of(rank);
    tly_rounds_message(s->rounds, &peer, frame, TLY_HEADER_BYTES + count * TLY_RECORD_BYTES, body, s->now);
    tly_buf_put(body);
}

static tly_header header_of(const shard *s, uint32_t rank)
{
    return (tly_header){ .plane = TLY_PLANE_DATA, .job = JOB, .epoch = s->epoch, .sender = s->ids[rank],
                         .session = s->session[rank], .acked = s->acked[rank] };
}

static void say(shard *s, uint32_t rank, const tly_record *records, uint32_t count, tly_buf *body)
{
    tly_header h = header_of(s, rank);
    say_as(s, rank, &h, records, count, body);
}

/* A HELLO that begins the worker's next session. */
static void hello(shard *s, uint32_t rank, bool resend)
{
    s->session[rank]++;
    say(s, rank, &(tly_record){ .type = TLY_HELLO, .flags = resend ? TLY_FLAG_RESEND : 0 }, 1, NULL);
}

static void all_hello(shard *s)
{
    for (uint32_t rank = 0; rank < s->worker_count; rank++)
        hello(s, rank, true);
    collect(s);
    forget(s);
}

static shard *ready_shard(uint32_t worker_count)
{
    shard *s = shard_create(worker_count, false);
    all_hello(s);
    return s;
}

static tly_buf *bytes_of(const void *data, size_t len_bytes)
{
    tly_buf *buf = tly_buf_alloc(len_bytes);
    memcpy(buf->data, data, len_bytes);
    return buf;
}

static tly_record push_record(uint32_t tensor, uint64_t round, tally_dtype dtype, tally_op op,
                              size_t len_bytes)
{
    return (tly_record){ .type = TLY_PUSH,
                         .kind = TLY_KIND_PUSH_PULL,
                         .dtype = dtype,
                         .op = op,
                         .tensor = tensor,
                         .round = round,
                         .seq = len_bytes,
                         .len_bytes = (uint32_t)len_bytes };
}

/* A contribution of any type, alone in its message. */
static void push(shard *s, uint32_t rank, uint32_t tensor, uint64_t round, tally_dtype dtype, tally_op op,
                 const void *data, size_t len_bytes)
{
    tly_record record = push_record(tensor, round, dtype, op, len_bytes);
    say(s, rank, &record, 1, len_bytes ? bytes_of(data, len_bytes) : NULL);
}

/* A contribution of one float32 to a sum. */
static void push1(shard *s, uint32_t rank, uint32_t tensor, uint64_t round, float value)
{
    push(s, rank, tensor, round, TALLY_DTYPE_F32, TALLY_OP_SUM, &value, sizeof value);
}

static float value_of(const got *g)
{
    float value;
    assert_int_equal(g->record.flags, 0);
    assert_int_equal(g->record.len_bytes, sizeof value);
    memcpy(&value, g->payload, sizeof value);
    return value;
}

static tly_round_error error_of(const got *g)
{
    tly_round_error error;
    assert_int_equal(g->record.flags, TLY_FLAG_ERROR);
    assert_int_equal(tly_wire_get_round_error(g->payload, g->record.len_bytes, &error), TALLY_OK);
    return error;
}

static void ack(shard *s, uint32_t rank, uint64_t acked)
{
    s->acked[rank] = acked;
    say(s, rank, &(tly_record){ .type = TLY_ACK }, 1, NULL);
}

/* ---- sums ---- */

static void the_first_contribution_becomes_the_accumulator_that_goes_to_all(void **state)
{
    (void)state;
    shard *s = ready_shard(3);
    static float values[3][10000];
    for (int rank = 0; rank < 3; rank++)
        for (int i = 0; i < 10000; i++)
            values[rank][i] = (float)(i * (rank + 1));
    tly_record record = push_record(4, 1, TALLY_DTYPE_F32, TALLY_OP_SUM, sizeof values[0]);
    tly_buf *bodies[3];
    const uint32_t order[3] = { 2, 0, 1 };
    for (int i = 0; i < 3; i++) {
        bodies[i] = bytes_of(values[order[i]], sizeof values[0]);
        say(s, order[i], &record, 1, tly_buf_get(bodies[i]));
    }
    for (uint32_t rank = 0; rank < 3; rank++) {
        const got *g = nth(s, rank, TLY_RESULT, 0);
        assert_ptr_equal(g->payload, bodies[0]->data); /* the same memory, not a copy */
        assert_ptr_equal(g->body, bodies[0]);
        assert_int_equal(g->record.contributors, 3);
        assert_int_equal(g->record.tensor, 4);
        assert_true(g->record.round == 1 && g->record.seq == 1);
        assert_int_equal(g->header.session, 1);
        assert_int_equal(count_of(s, rank, TLY_RESULT), 1);
    }
    for (int i = 0; i < 10000; i++)
        assert_true(((float *)bodies[0]->data)[i] == (float)(6 * i));
    assert_int_equal(bodies[1]->refs, 1); /* what was added is let go at once */
    assert_int_equal(bodies[2]->refs, 1);
    for (int i = 0; i < 3; i++)
        tly_buf_put(bodies[i]);
    shard_destroy(s);
}

static void one_worker_alone_gets_its_own_value_back(void **state)
{
    (void)state;
    shard *s = ready_shard(1);
    int8_t value = -7;
    push(s, 0, 1, 1, TALLY_DTYPE_I8, TALLY_OP_AVERAGE, &value, 1);
    assert_int_equal(*(const int8_t *)nth(s, 0, TLY_RESULT, 0)->payload, -7);
    assert_int_equal(nth(s, 0, TLY_RESULT, 0)->record.contributors, 1);
    shard_destroy(s);
}

static void keys_are_told_apart_by_tensor_and_partition(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    for (uint32_t rank = 0; rank < 2; rank++)
        for (uint32_t key = 0; key < 4; key++) {
            tly_record record = push_record(key / 2, 1, TALLY_DTYPE_F32, TALLY_OP_SUM, 4);
            float value = (float)(key + 1);
            record.partition = key % 2;
            say(s, rank, &record, 1, bytes_of(&value, 4));
        }
    for (uint32_t key = 0; key < 4; key++) {
        const got *g = nth(s, 0, TLY_RESULT, key);
        assert_int_equal(g->record.tensor, key / 2);
        assert_int_equal(g->record.partition, key % 2);
        assert_true(value_of(g) == (float)(2 * (key + 1)));
        assert_true(g->record.seq == key + 1);
    }
    assert_true(STAT(s, keys) == 4);
    shard_destroy(s);
}

/* The arrival orders of three workers. */
static const uint32_t orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                       { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };

static void deterministic_sums_have_the_same_bits_whatever_the_order_of_arrival(void **state)
{
    (void)state;
    const float values[3] = { 1e8f, -1e8f, 3.25f };
    const float expected = (values[0] + values[1]) + values[2];
    assert_true(expected != values[0] + (values[1] + values[2])); /* else this test proves nothing */
    shard *s = shard_create(3, true);
    all_hello(s);
    for (uint64_t i = 0; i < 6; i++) {
        for (int j = 0; j < 3; j++)
            push1(s, orders[i][j], 1, i + 1, values[orders[i][j]]);
        assert_true(value_of(nth(s, 0, TLY_RESULT, (uint32_t)i)) == expected);
    }
    /* With 16-bit floats too, where the sum is wide. */
    const uint16_t halves[3] = { 0x6800, 0x3c00, 0x3c00 }; /* 2048, 1, 1 */
    for (uint64_t i = 0; i < 6; i++) {
        for (int j = 0; j < 3; j++)
            push(s, orders[i][j], 2, i + 1, TALLY_DTYPE_F16, TALLY_OP_SUM, &halves[orders[i][j]], 2);
        assert_int_equal(*(const uint16_t *)nth(s, 1, TLY_RESULT, (uint32_t)i + 6)->payload,
                         0x6801); /* 2050 */
    }
    shard_destroy(s);
}

static void sixteen_bit_floats_of_three_workers_round_once(void **state)
{
    (void)state;
    shard *s = ready_shard(3);
    const uint16_t halves[3] = { 0x6800, 0x3c00, 0x3c00 }; /* 2048 + 1 rounds to 2048, 2048 + 1 + 1 to 2050 */
    const uint16_t large = 0x74e2; /* 20000: three of them are more than an f16 holds */
    for (uint64_t i = 0; i < 6; i++) {
        for (int j = 0; j < 3; j++) {
            push(s, orders[i][j], 1, i + 1, TALLY_DTYPE_F16, TALLY_OP_SUM, &halves[orders[i][j]], 2);
            push(s, orders[i][j], 2, i + 1, TALLY_DTYPE_F16, TALLY_OP_AVERAGE, &large, 2);
        }
        assert_int_equal(*(const uint16_t *)nth(s, 0, TLY_RESULT, (uint32_t)(2 * i))->payload, 0x6801);
        assert_int_equal(*(const uint16_t *)nth(s, 0, TLY_RESULT, (uint32_t)(2 * i) + 1)->payload, large);
    }
    shard_destroy(s);
}

static void eight_workers_of_20000_in_float16_average_20000_and_bfloat16_ones_1(void **state)
{
    (void)state;
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        shard *s = shard_create(8, deterministic);
        all_hello(s);
        const uint16_t large = 0x74e2, one = 0x3f80;
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t rank = i * 3 % 8;
            push(s, rank, 1, 1, TALLY_DTYPE_F16, TALLY_OP_AVERAGE, &large, 2);
            push(s, rank, 2, 1, TALLY_DTYPE_BF16, TALLY_OP_AVERAGE, &one, 2);
        }
        assert_int_equal(*(const uint16_t *)nth(s, 5, TLY_RESULT, 0)->payload, large);
        assert_int_equal(*(const uint16_t *)nth(s, 5, TLY_RESULT, 1)->payload, one);
        shard_destroy(s);
    }
}

static void integer_averages_of_three_workers_add_wide_and_truncate(void **state)
{
    (void)state;
    shard *s = ready_shard(3);
    const int8_t values[3] = { 127, 127, 126 };
    const int8_t negative[3] = { -1, -2, -2 };
    for (uint32_t rank = 0; rank < 3; rank++) {
        push(s, rank, 1, 1, TALLY_DTYPE_I8, TALLY_OP_AVERAGE, &values[rank], 1);
        push(s, rank, 2, 1, TALLY_DTYPE_I8, TALLY_OP_AVERAGE, &negative[rank], 1);
    }
    assert_int_equal(*(const int8_t *)nth(s, 2, TLY_RESULT, 0)->payload, 126); /* 380 / 3 */
    assert_int_equal(*(const int8_t *)nth(s, 2, TLY_RESULT, 1)->payload, -1);  /* -5 / 3 */
    shard_destroy(s);
}

static void a_wide_sum_goes_out_in_the_memory_of_the_last_contribution(void **state)
{
    (void)state;
    shard *s = ready_shard(3);
    const uint16_t one = 0x3c00;
    tly_record record = push_record(1, 1, TALLY_DTYPE_F16, TALLY_OP_SUM, 2);
    tly_buf *last = bytes_of(&one, 2);
    say(s, 0, &record, 1, bytes_of(&one, 2));
    say(s, 1, &record, 1, bytes_of(&one, 2));
    say(s, 2, &record, 1, tly_buf_get(last));
    assert_ptr_equal(nth(s, 0, TLY_RESULT, 0)->payload, last->data);
    assert_int_equal(*(uint16_t *)last->data, 0x4200); /* 3 */
    tly_buf_put(last);
    shard_destroy(s);
}

static void more_than_64_workers_are_counted_each(void **state)
{
    (void)state;
    shard *s = ready_shard(RANKS_MAX);
    for (uint32_t rank = 0; rank < RANKS_MAX; rank++) {
        nothing_was_sent(s);
        push1(s, rank, 1, 1, (float)rank);
        if (rank + 1 < RANKS_MAX)
            push1(s, rank, 1, 1, 1e6f);
    }
    for (uint32_t rank = 0; rank < RANKS_MAX; rank++)
        assert_true(value_of(nth(s, rank, TLY_RESULT, 0)) == RANKS_MAX * (RANKS_MAX - 1) / 2);
    assert_int_equal(nth(s, 0, TLY_RESULT, 0)->record.contributors, RANKS_MAX);
    shard_destroy(s);
}

static void a_broadcast_gives_the_roots_memory_to_all_from_each_root_in_each_order(void **state)
{
    (void)state;
    shard *s = ready_shard(3);
    uint64_t round = 0;
    for (uint32_t root = 0; root < 3; root++)
        for (int i = 0; i < 6; i++) {
            const double value = 100.0 * root + i;
            tly_buf *body = bytes_of(&value, sizeof value);
            round++;
            for (int j = 0; j < 3; j++) {
                uint32_t rank = orders[i][j];
                tly_record record = push_record(1, round, TALLY_DTYPE_F64, TALLY_OP_SUM, sizeof value);
                record.kind = TLY_KIND_BROADCAST;
                record.root = root;
                record.len_bytes = rank == root ? sizeof value : 0;
                nothing_was_sent(s);
                say(s, rank, &record, 1, rank == root ? tly_buf_get(body) : NULL);
            }
            for (uint32_t rank = 0; rank < 3; rank++) {
                const got *g = nth(s, rank, TLY_RESULT, 0);
                assert_ptr_equal(g->payload, body->data);
                assert_int_equal(g->record.kind, TLY_KIND_BROADCAST);
                assert_int_equal(g->record.root, root);
                assert_int_equal(g->record.len_bytes, sizeof value);
            }
            assert_true(*(double *)body->data == value); /* unscaled, unadded */
            tly_buf_put(body);
            forget(s);
        }
    shard_destroy(s);
}

static void empty_tensors_have_rounds_like_all_others(void **state)
{
    (void)state;
    shard *s = ready_shard(3);
    for (uint64_t round = 1; round <= 2; round++) {
        for (uint32_t rank = 0; rank < 3; rank++) {
            tly_record record = push_record(2, round, TALLY_DTYPE_F32, TALLY_OP_SUM, 0);
            record.kind = TLY_KIND_BROADCAST;
            say(s, rank, &record, 1, NULL);
            push(s, rank, 1, round, TALLY_DTYPE_F16, TALLY_OP_AVERAGE, NULL, 0);
        }
        for (uint32_t i = 0; i < 2; i++) {
            const got *g = nth(s, 1, TLY_RESULT, i);
            assert_int_equal(g->record.len_bytes, 0);
            assert_int_equal(g->record.flags, 0);
            assert_true(g->record.round == round);
            assert_null(g->body);
        }
        forget(s);
    }
    assert_true(STAT(s, open) == 0);
    shard_destroy(s);
}

/* ---- what is ignored ---- */

static void a_repeated_contribution_is_ignored(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    push1(s, 0, 1, 1, 5);
    push1(s, 0, 1, 1, 100);
    nothing_was_sent(s);
    push1(s, 1, 1, 1, 7);
    assert_true(value_of(nth(s, 0, TLY_RESULT, 0)) == 12);
    assert_int_equal(count_of(s, 0, TLY_RESULT), 1);
    shard_destroy(s);
}

static void a_push_of_a_finished_round_is_ignored(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    push1(s, 0, 1, 1, 5);
    push1(s, 1, 1, 1, 7);
    collect(s);
    forget(s);
    push1(s, 0, 1, 1, 100);
    push1(s, 1, 1, 1, 100);
    push1(s, 1, 1, 0, 100);
    nothing_was_sent(s);
    assert_true(STAT(s, open) == 0);
    push1(s, 0, 1, 2, 1);
    push1(s, 1, 1, 2, 2);
    assert_true(value_of(nth(s, 1, TLY_RESULT, 0)) == 3);
    shard_destroy(s);
}

static void a_push_of_a_future_round_is_dropped_with_a_warning(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    push1(s, 0, 1, 2, 100);
    assert_int_equal(s->warnings, 1);
    assert_non_null(
        strstr(s->warning, "tensor 1 partition 0: worker 0 pushed round 2 while round 1 is open; dropped"));
    push1(s, 0, 1, 1, 5);
    push1(s, 1, 1, 1, 7);
    assert_true(value_of(nth(s, 0, TLY_RESULT, 0)) == 12);
    push1(s, 1, 1, 2, 1);
    assert_int_equal(count_of(s, 0, TLY_RESULT), 1); /* worker 0's early one did not count */
    push1(s, 0, 1, 2, 2);
    assert_true(value_of(nth(s, 0, TLY_RESULT, 1)) == 3);
    shard_destroy(s);
}

static void messages_of_another_job_are_dropped_and_counted(void **state)
{
    (void)state;
    shard *s = ready_shard(1);
    tly_header h = header_of(s, 0);
    tly_record record = push_record(1, 1, TALLY_DTYPE_F32, TALLY_OP_SUM, 0);
    h.job = JOB + 1;
    say_as(s, 0, &h, &record, 1, NULL);
    nothing_was_sent(s);
    assert_true(STAT(s, dropped) == 1);
    assert_true(STAT(s, keys) == 0);
    shard_destroy(s);
}

static void messages_of_another_epoch_are_dropped_without_a_word(void **state)
{
    (void)state;
    shard *s = ready_shard(1);
    tly_header h = header_of(s, 0);
    tly_record record = push_record(1, 1, TALLY_DTYPE_F32, TALLY_OP_SUM, 0);
    for (int step = -1; step <= 1; step += 2) {
        h.epoch = EPOCH + (uint64_t)(int64_t)step;
        say_as(s, 0, &h, &record, 1, NULL);
    }
    h.epoch = EPOCH - 1;
    h.session = 99;
    say_as(s, 0, &h, &(tly_record){ .type = TLY_HELLO }, 1, NULL);
    nothing_was_sent(s);
    assert_true(STAT(s, keys) == 0);
    assert_int_equal(s->warnings, 0);
    shard_destroy(s);
}

static void messages_of_a_node_outside_the_roster_are_dropped_and_counted(void **state)
{
    (void)state;
    shard *s = ready_shard(3);
    const uint32_t strangers[] = { 0, 9, 11, 0xffffffff };
    for (int i = 0; i < 4; i++) {
        tly_header h = header_of(s, 0);
        h.sender = strangers[i];
        say_as(s, 0, &h, &(tly_record){ .type = TLY_HELLO }, 1, NULL);
    }
    nothing_was_sent(s);
    assert_true(STAT(s, dropped) == 4);
    shard_destroy(s);
}

static void malformed_messages_are_dropped_with_one_warning_a_minute(void **state)
{
    (void)state;
    shard *s = ready_shard(1);
    tly_peer peer = peer_of(0);
    for (int i = 0; i < 5; i++)
        tly_rounds_message(s->rounds, &peer, "garbage", 7, NULL, s->now);
    assert_int_equal(s->warnings, 1);
    s->now += 60000;
    tly_rounds_message(s->rounds, &peer, "garbage", 7, NULL, s->now);
    assert_int_equal(s->warnings, 2);
    assert_non_null(strstr(s->warning,
                           "dropped 5 messages, the last because: a message of 7 bytes does not begin as "
                           "Tally's do"));
    assert_true(STAT(s, dropped) == 6);
    shard_destroy(s);
}

static void what_comes_before_ready_is_dropped(void **state)
{
    (void)state;
    shard *s = shard_create(2, false);
    push1(s, 0, 1, 1, 5); /* before its HELLO */
    hello(s, 0, true);
    push1(s, 0, 1, 1, 5); /* before the other's */
    hello(s, 1, true);
    assert_true(STAT(s, keys) == 0);
    assert_true(STAT(s, dropped) == 2);
    push1(s, 0, 1, 1, 1);
    push1(s, 1, 1, 1, 2);
    assert_true(value_of(nth(s, 0, TLY_RESULT, 0)) == 3);
    shard_destroy(s);
}

/* ---- sessions ---- */

static void ready_waits_for_all_workers(void **state)
{
    (void)state;
    shard *s = shard_create(3, false);
    hello(s, 2, true);
    hello(s, 0, true);
    hello(s, 0, true);
    nothing_was_sent(s);
    hello(s, 1, true);
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_int_equal(count_of(s, rank, TLY_READY), 1);
        assert_int_equal(nth(s, rank, TLY_READY, 0)->header.session, rank == 0 ? 2 : 1);
        assert_true(nth(s, rank, TLY_READY, 0)->record.seq == 0);
        assert_int_equal(nth(s, rank, TLY_READY, 0)->header.record_count, 1);
    }
    shard_destroy(s);
}

static void ready_says_of_every_key_which_round_is_open_and_whether_this_worker_is_in(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    push1(s, 0, 7, 1, 1);
    push1(s, 1, 7, 1, 1);
    push1(s, 0, 7, 2, 1);
    push1(s, 1, 8, 1, 1);
    collect(s);
    forget(s);
    for (uint32_t rank = 0; rank < 2; rank++) {
        hello(s, rank, false);
        assert_true(nth(s, rank, TLY_READY, 0)->record.seq == 1); /* nseq */
        assert_int_equal(nth(s, rank, TLY_READY, 0)->header.session, 2);
        assert_int_equal(count_of(s, rank, TLY_KEY), 2);
        for (uint32_t i = 0; i < 2; i++) {
            const tly_record *key = &nth(s, rank, TLY_KEY, i)->record;
            bool seven = key->tensor == 7;
            assert_true(seven || key->tensor == 8);
            assert_true(key->round == (seven ? 1 : 0));
            assert_true(key->seq == (seven ? 2 : 1));
            assert_int_equal(key->flags, (seven ? 0u : 1u) == rank ? TLY_FLAG_IN : 0);
        }
    }
    shard_destroy(s);
}

static void a_hello_of_a_lower_session_is_dropped(void **state)
{
    (void)state;
    shard *s = ready_shard(1);
    hello(s, 0, true);
    hello(s, 0, true);
    collect(s);
    forget(s);
    tly_header h = header_of(s, 0);
    h.session = 2;
    say_as(s, 0, &h, &(tly_record){ .type = TLY_HELLO, .flags = TLY_FLAG_RESEND }, 1, NULL);
    nothing_was_sent(s);
    push1(s, 0, 1, 1, 1);
    assert_int_equal(nth(s, 0, TLY_RESULT, 0)->header.session, 3);
    shard_destroy(s);
}

static void results_go_where_the_newest_hello_came_from(void **state)
{
    (void)state;
    shard *s = ready_shard(1);
    uint8_t frame[TLY_HEADER_BYTES + TLY_RECORD_BYTES];
    tly_peer elsewhere = { .len = 5, .id = { 0, 0, 0, 'p', 2 } };
    tly_header h = header_of(s, 0);
    h.session = s->session[0] = 2;
    h.record_count = 1;
    tly_wire_put_header(frame, &h);
    tly_wire_put_record(frame + TLY_HEADER_BYTES, &(tly_record){ .type = TLY_HELLO });
    tly_rounds_message(s->rounds, &elsewhere, frame, sizeof frame, NULL, s->now);
    push1(s, 0, 1, 1, 1);
    assert_int_equal(nth(s, 0, TLY_RESULT, 0)->peer.id[4], 2);
    shard_destroy(s);
}

static void a_hello_of_a_later_epoch_is_stored_and_handled_when_that_epoch_is_installed(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    push1(s, 0, 1, 1, 5);
    for (uint32_t rank = 0; rank < 2; rank++) {
        tly_header h = header_of(s, rank);
        h.epoch = EPOCH + 1;
        h.session = 1;
        say_as(s, rank, &h, &(tly_record){ .type = TLY_HELLO, .flags = TLY_FLAG_RESEND }, 1, NULL);
    }
    nothing_was_sent(s);
    s->epoch = EPOCH + 1;
    assert_int_equal(tly_rounds_install(s->rounds, EPOCH + 1, 2, s->ids, s->now), TALLY_OK);
    for (uint32_t rank = 0; rank < 2; rank++)
        assert_int_equal(count_of(s, rank, TLY_READY), 1);
    /* The open round of the older epoch is forgotten. */
    assert_int_equal(count_of(s, 0, TLY_KEY), 0);
    s->session[0] = s->session[1] = 1;
    push1(s, 0, 1, 1, 1);
    push1(s, 1, 1, 1, 2);
    assert_true(value_of(nth(s, 0, TLY_RESULT, 0)) == 3);
    shard_destroy(s);
}

static void of_stored_hellos_the_newest_of_each_worker_counts(void **state)
{
    (void)state;
    shard *s = ready_shard(1);
    /* epoch, session in the order of arrival; epoch +2, session 3 is the newest */
    const uint32_t arrivals[][2] = { { 1, 5 }, { 2, 3 }, { 2, 2 }, { 1, 9 } };
    for (int i = 0; i < 4; i++) {
        tly_header h = header_of(s, 0);
        h.epoch = EPOCH + arrivals[i][0];
        h.session = arrivals[i][1];
        say_as(s, 0, &h, &(tly_record){ .type = TLY_HELLO }, 1, NULL);
    }
    s->epoch = EPOCH + 2;
    assert_int_equal(tly_rounds_install(s->rounds, EPOCH + 2, 1, s->ids, s->now), TALLY_OK);
    assert_int_equal(count_of(s, 0, TLY_READY), 1);
    assert_int_equal(nth(s, 0, TLY_READY, 0)->header.session, 3);
    shard_destroy(s);
}

static void a_stored_hello_of_an_epoch_that_is_skipped_is_dropped(void **state)
{
    (void)state;
    shard *s = ready_shard(1);
    tly_header h = header_of(s, 0);
    h.epoch = EPOCH + 1;
    say_as(s, 0, &h, &(tly_record){ .type = TLY_HELLO }, 1, NULL);
    s->epoch = EPOCH + 2;
    assert_int_equal(tly_rounds_install(s->rounds, EPOCH + 2, 1, s->ids, s->now), TALLY_OK);
    nothing_was_sent(s);
    shard_destroy(s);
}

static void a_new_epoch_lets_go_of_all_that_the_old_one_held(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    const float value = 1;
    tly_buf *bodies[2] = { bytes_of(&value, 4), bytes_of(&value, 4) };
    tly_record record = push_record(1, 1, TALLY_DTYPE_F32, TALLY_OP_SUM, 4);
    say(s, 0, &record, 1, tly_buf_get(bodies[0]));
    push1(s, 1, 1, 1, 1); /* a result */
    record.round = 2;
    say(s, 0, &record, 1, tly_buf_get(bodies[1])); /* an open round */
    collect(s);
    forget(s);
    assert_int_equal(bodies[0]->refs, 2);
    assert_int_equal(bodies[1]->refs, 2);
    assert_int_equal(tly_rounds_install(s->rounds, EPOCH + 1, 2, s->ids, s->now), TALLY_OK);
    assert_int_equal(bodies[0]->refs, 1);
    assert_int_equal(bodies[1]->refs, 1);
    assert_true(STAT(s, keys) == 0 && STAT(s, open) == 0 && STAT(s, log_count) == 0);
    tly_buf_put(bodies[0]);
    tly_buf_put(bodies[1]);
    shard_destroy(s);
}

/* ---- RECEIVED ---- */

static void push_wanting(shard *s, uint32_t rank, uint32_t tensor, bool want)
{
    const float value = 1;
    tly_record record = push_record(tensor, 1, TALLY_DTYPE_F32, TALLY_OP_SUM, 4);
    record.flags = want ? TLY_FLAG_WANT : 0;
    say(s, rank, &record, 1, bytes_of(&value, 4));
}

static void received_is_sent_only_to_who_wants_it_and_only_when_idle_with_rounds_open(void **state)
{
    (void)state;
    shard *s = ready_shard(3);
    push_wanting(s, 0, 1, true);
    push_wanting(s, 1, 1, false);
    nothing_was_sent(s);
    tly_rounds_idle(s->rounds);
    assert_int_equal(count_of(s, 0, TLY_RECEIVED), 1);
    assert_true(nth(s, 0, TLY_RECEIVED, 0)->record.seq == 1);
    assert_int_equal(nth(s, 0, TLY_RECEIVED, 0)->header.session, 1);
    assert_int_equal(count_of(s, 1, TLY_RECEIVED), 0);
    assert_int_equal(count_of(s, 2, TLY_RECEIVED), 0);
    push_wanting(s, 2, 1, true); /* which completes the round: its RESULT returns the credit */
    forget(s);
    tly_rounds_idle(s->rounds);
    assert_int_equal(count_of(s, 2, TLY_RECEIVED), 0);
    shard_destroy(s);
}

static void received_counts_all_pushes_of_the_session_and_is_not_repeated(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    for (uint32_t tensor = 0; tensor < 5; tensor++)
        push_wanting(s, 0, tensor, true);
    tly_rounds_idle(s->rounds);
    tly_rounds_idle(s->rounds);
    assert_int_equal(count_of(s, 0, TLY_RECEIVED), 1);
    assert_true(nth(s, 0, TLY_RECEIVED, 0)->record.seq == 5);
    push_wanting(s, 0, 3, true); /* a repeat has arrived all the same */
    tly_rounds_idle(s->rounds);
    assert_true(nth(s, 0, TLY_RECEIVED, 1)->record.seq == 6);
    push_wanting(s, 0, 6, false); /* the newest PUSH decides */
    tly_rounds_idle(s->rounds);
    assert_int_equal(count_of(s, 0, TLY_RECEIVED), 2);
    shard_destroy(s);
}

static void pushes_of_an_old_session_do_not_count_in_received(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    push_wanting(s, 0, 1, true);
    hello(s, 0, false);
    s->session[0] = 1;
    push_wanting(s, 0, 2, true);
    s->session[0] = 2;
    collect(s);
    forget(s);
    tly_rounds_idle(s->rounds);
    nothing_was_sent(s);
    push_wanting(s, 0, 3, true);
    tly_rounds_idle(s->rounds);
    assert_true(nth(s, 0, TLY_RECEIVED, 0)->record.seq == 1);
    assert_int_equal(nth(s, 0, TLY_RECEIVED, 0)->header.session, 2);
    /* As contributions they count in every session. */
    for (uint32_t tensor = 1; tensor <= 3; tensor++)
        push1(s, 1, tensor, 1, 1);
    assert_int_equal(count_of(s, 0, TLY_RESULT), 3);
    shard_destroy(s);
}

/* ---- acked, stable, the log ---- */

/* Rounds 1 .. count of tensor 1, seq 1 .. count, all results taken. */
static void do_rounds(shard *s, uint64_t count)
{
    for (uint64_t round = 1; round <= count; round++)
        for (uint32_t rank = 0; rank < s->worker_count; rank++)
            push1(s, rank, 1, round, (float)round);
    collect(s);
    forget(s);
}

static void the_log_is_freed_up_to_the_lowest_acked(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    const float value = 1;
    tly_buf *bodies[3];
    for (uint64_t i = 0; i < 3; i++) {
        tly_record record = push_record(1, i + 1, TALLY_DTYPE_F32, TALLY_OP_SUM, 4);
        bodies[i] = bytes_of(&value, 4);
        say(s, 0, &record, 1, tly_buf_get(bodies[i]));
        push1(s, 1, 1, i + 1, 1);
    }
    collect(s);
    forget(s);
    ack(s, 0, 3);
    assert_true(STAT(s, log_count) == 3); /* worker 1 may lack all of them */
    ack(s, 1, 2);
    assert_true(STAT(s, log_count) == 1);
    assert_int_equal(bodies[0]->refs, 1);
    assert_int_equal(bodies[1]->refs, 1);
    assert_int_equal(bodies[2]->refs, 2);
    ack(s, 1, 3);
    assert_true(STAT(s, log_count) == 0);
    for (int i = 0; i < 3; i++)
        tly_buf_put(bodies[i]);
    shard_destroy(s);
}

static void acked_is_never_lowered_and_never_above_nseq(void **state)
{
    (void)state;
    shard *s = ready_shard(1);
    do_rounds(s, 4);
    ack(s, 0, 5);
    assert_true(STAT(s, log_count) == 4); /* what was not sent cannot have come */
    ack(s, 0, UINT64_MAX);
    assert_true(STAT(s, log_count) == 4);
    ack(s, 0, 3);
    assert_true(STAT(s, log_count) == 1);
    ack(s, 0, 1);
    assert_true(STAT(s, log_count) == 1);
    hello(s, 0, true); /* which says 1 too, and is late in that */
    assert_int_equal(count_of(s, 0, TLY_RESULT), 1);
    assert_true(nth(s, 0, TLY_RESULT, 0)->record.seq == 4);
    shard_destroy(s);
}

static void every_push_carries_acked_and_every_result_stable(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    do_rounds(s, 1);
    s->acked[0] = s->acked[1] = 1;
    push1(s, 0, 1, 2, 1);
    push1(s, 1, 1, 2, 1);
    assert_true(nth(s, 0, TLY_RESULT, 0)->header.stable == 1);
    assert_true(STAT(s, log_count) == 1);
    shard_destroy(s);
}

static void one_stable_is_said_when_all_is_settled(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    do_rounds(s, 2);
    assert_true(tly_rounds_tick(s->rounds, s->now) == TLY_NEVER);
    ack(s, 0, 2);
    ack(s, 1, 1);
    assert_true(tly_rounds_tick(s->rounds, s->now) == TLY_NEVER);
    ack(s, 1, 2);
    assert_true(tly_rounds_tick(s->rounds, s->now) == s->now + TLY_SETTLE_MS);
    nothing_was_sent(s);
    s->now += TLY_SETTLE_MS;
    assert_true(tly_rounds_tick(s->rounds, s->now) == TLY_NEVER);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(count_of(s, rank, TLY_STABLE), 1);
        assert_true(nth(s, rank, TLY_STABLE, 0)->header.stable == 2);
    }
    s->now += 1000;
    assert_true(tly_rounds_tick(s->rounds, s->now) == TLY_NEVER);
    ack(s, 0, 2);
    assert_true(tly_rounds_tick(s->rounds, s->now) == TLY_NEVER);
    assert_int_equal(count_of(s, 0, TLY_STABLE), 1);
    shard_destroy(s);
}

static void no_stable_is_said_when_a_result_will_bring_it(void **state)
{
    (void)state;
    shard *s = ready_shard(1);
    do_rounds(s, 1);
    ack(s, 0, 1);
    push1(s, 0, 1, 2, 1); /* its RESULT has said stable 1 */
    collect(s);
    forget(s);
    s->now += TLY_SETTLE_MS;
    assert_true(tly_rounds_tick(s->rounds, s->now) == TLY_NEVER);
    nothing_was_sent(s);
    ack(s, 0, 2);
    s->now += TLY_SETTLE_MS;
    tly_rounds_tick(s->rounds, s->now);
    assert_true(nth(s, 0, TLY_STABLE, 0)->header.stable == 2);
    shard_destroy(s);
}

static void a_resend_repeats_the_results_above_acked_only(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    do_rounds(s, 5);
    s->acked[0] = 3;
    hello(s, 0, false);
    assert_true(nth(s, 0, TLY_READY, 0)->record.seq == 5);
    assert_int_equal(count_of(s, 0, TLY_RESULT), 0);
    hello(s, 0, true);
    assert_int_equal(count_of(s, 0, TLY_RESULT), 2);
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(nth(s, 0, TLY_RESULT, i)->record.seq == 4 + i);
        assert_true(value_of(nth(s, 0, TLY_RESULT, i)) == (float)(2 * (4 + i)));
        assert_int_equal(nth(s, 0, TLY_RESULT, i)->header.session, 3);
    }
    assert_int_equal(count_of(s, 1, TLY_RESULT), 0);
    shard_destroy(s);
}

/* ---- errors ---- */

/* A PUSH of worker rank that begins like all others; the test then changes one field. */
static tly_record plain(void)
{
    return push_record(1, 1, TALLY_DTYPE_F32, TALLY_OP_SUM, 8);
}

static tly_record cast(uint32_t rank, uint32_t root)
{
    tly_record record = plain();
    record.kind = TLY_KIND_BROADCAST;
    record.root = root;
    record.len_bytes = rank == root ? 8 : 0;
    return record;
}

static void say_record(shard *s, uint32_t rank, const tly_record *record)
{
    static const uint8_t zeros[64];
    say(s, rank, record, 1, record->len_bytes ? bytes_of(zeros, record->len_bytes) : NULL);
}

/* Three workers of which 1 comes first and 2 disagrees; all get this error, and the next round works. */
static void check_disagreement(const tly_record *a, const tly_record *b, const tly_round_error *expected)
{
    shard *s = ready_shard(3);
    say_record(s, 1, a);
    say_record(s, 2, b);
    nothing_was_sent(s); /* an error too waits for all, so that all know of the round */
    assert_true(STAT(s, open) == 1);
    say_record(s, 0, a);
    for (uint32_t rank = 0; rank < 3; rank++) {
        tly_round_error error = error_of(nth(s, rank, TLY_RESULT, 0));
        assert_int_equal(count_of(s, rank, TLY_RESULT), 1);
        assert_memory_equal(&error, expected, sizeof error);
        assert_true(nth(s, rank, TLY_RESULT, 0)->record.round == 1);
    }
    forget(s);
    for (uint32_t rank = 0; rank < 3; rank++)
        push1(s, rank, 1, 2, (float)rank);
    for (uint32_t rank = 0; rank < 3; rank++)
        assert_true(value_of(nth(s, rank, TLY_RESULT, 0)) == 3);
    shard_destroy(s);
}

static void workers_that_disagree_about_the_kind_all_get_the_error_and_the_next_round_works(void **state)
{
    (void)state;
    tly_record a = plain(), b = cast(2, 2);
    check_disagreement(&a, &b,
                       &(tly_round_error){ TLY_ROUND_KIND, 1, 2, TLY_KIND_PUSH_PULL, TLY_KIND_BROADCAST, 0 });
}

static void workers_that_disagree_about_the_root_all_get_the_error_and_the_next_round_works(void **state)
{
    (void)state;
    tly_record a = cast(1, 2), b = cast(2, 0);
    check_disagreement(&a, &b, &(tly_round_error){ TLY_ROUND_ROOT, 1, 2, 2, 0, 0 });
}

static void workers_that_disagree_about_the_data_type_all_get_the_error_and_the_next_round_works(void **state)
{
    (void)state;
    tly_record a = plain(), b = plain();
    b.dtype = TALLY_DTYPE_F64;
    check_disagreement(&a, &b,
                       &(tly_round_error){ TLY_ROUND_DTYPE, 1, 2, TALLY_DTYPE_F32, TALLY_DTYPE_F64, 0 });
}

static void workers_that_disagree_about_the_operation_all_get_the_error_and_the_next_round_works(void **state)
{
    (void)state;
    tly_record a = plain(), b = plain();
    b.op = TALLY_OP_MIN;
    check_disagreement(&a, &b, &(tly_round_error){ TLY_ROUND_OP, 1, 2, TALLY_OP_SUM, TALLY_OP_MIN, 0 });
}

static void workers_that_disagree_about_the_length_all_get_the_error_and_the_next_round_works(void **state)
{
    (void)state;
    tly_record a = plain(), b = plain();
    b.seq = b.len_bytes = 12;
    check_disagreement(&a, &b, &(tly_round_error){ TLY_ROUND_LENGTH, 1, 2, 8, 12, 0 });
}

static void a_payload_that_is_not_as_long_as_announced_is_an_error(void **state)
{
    (void)state;
    tly_record a = plain(), b = plain();
    b.len_bytes = 4;
    check_disagreement(&a, &b, &(tly_round_error){ TLY_ROUND_LENGTH, 1, 2, 8, 4, 0 });
}

static void a_broadcast_payload_of_a_worker_that_is_not_the_root_is_an_error(void **state)
{
    (void)state;
    tly_record a = cast(1, 0), b = cast(2, 0);
    b.len_bytes = 8;
    shard *s = ready_shard(3);
    say_record(s, 1, &a);
    say_record(s, 2, &b);
    tly_record root = cast(0, 0);
    say_record(s, 0, &root);
    tly_round_error error = error_of(nth(s, 1, TLY_RESULT, 0));
    assert_memory_equal(&error, &((tly_round_error){ TLY_ROUND_LENGTH, 1, 2, 0, 8, 0 }), sizeof error);
    shard_destroy(s);
}

static void a_broadcast_from_a_root_outside_the_roster_is_an_error(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    tly_record record = cast(0, 2);
    say_record(s, 0, &record);
    say_record(s, 1, &record);
    tly_round_error error = error_of(nth(s, 1, TLY_RESULT, 0));
    assert_memory_equal(&error, &((tly_round_error){ TLY_ROUND_NO_ROOT, 0, 0, 2, 2, 0 }), sizeof error);
    shard_destroy(s);
}

static void a_length_that_is_no_whole_number_of_elements_is_an_error(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    tly_record record = plain();
    record.seq = record.len_bytes = 7;
    say_record(s, 0, &record);
    say_record(s, 1, &record);
    assert_int_equal(error_of(nth(s, 1, TLY_RESULT, 0)).reason, TLY_ROUND_LENGTH);
    shard_destroy(s);
}

static void a_round_that_has_failed_holds_no_memory_of_its_contributions(void **state)
{
    (void)state;
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        shard *s = shard_create(4, deterministic);
        all_hello(s);
        tly_record record = plain();
        tly_buf *bodies[4];
        for (uint32_t rank = 0; rank < 4; rank++) {
            bodies[rank] = bytes_of("12345678", 8);
            record.op = rank == 2 ? TALLY_OP_MAX : TALLY_OP_SUM;
            say(s, rank, &record, 1, tly_buf_get(bodies[rank]));
            if (rank >= 2)
                for (uint32_t i = 0; i <= rank; i++)
                    assert_int_equal(bodies[i]->refs, 1);
        }
        for (uint32_t rank = 0; rank < 4; rank++)
            tly_buf_put(bodies[rank]);
        shard_destroy(s);
    }
}

/* ---- leaving ---- */

static void a_worker_that_left_fails_the_rounds_it_is_missing_in_and_only_those(void **state)
{
    (void)state;
    shard *s = ready_shard(3);
    push1(s, 1, 1, 1, 1); /* tensor 1: worker 1 is in */
    push1(s, 0, 2, 1, 1); /* tensor 2: it is not */
    push1(s, 0, 1, 1, 1);
    tly_rounds_left(s->rounds, 1, s->now);
    assert_int_equal(count_of(s, 0, TLY_RESULT), 1);
    assert_int_equal(count_of(s, 1, TLY_RESULT), 0); /* it listens no more */
    tly_round_error error = error_of(nth(s, 2, TLY_RESULT, 0));
    assert_memory_equal(&error, &((tly_round_error){ TLY_ROUND_LEFT, 1, 1, 0, 0, 0 }), sizeof error);
    assert_int_equal(nth(s, 2, TLY_RESULT, 0)->record.tensor, 2);
    push1(s, 2, 1, 1, 5);
    assert_true(value_of(nth(s, 0, TLY_RESULT, 1)) == 7);
    assert_int_equal(nth(s, 0, TLY_RESULT, 1)->record.contributors, 3);
    forget(s);
    push1(s, 2, 1, 2, 5); /* the first to open a round without it hears at once, and all do */
    assert_int_equal(error_of(nth(s, 0, TLY_RESULT, 0)).reason, TLY_ROUND_LEFT);
    assert_true(nth(s, 0, TLY_RESULT, 0)->record.round == 2);
    push1(s, 0, 1, 2, 5); /* late for it: the result is on its way */
    assert_int_equal(count_of(s, 0, TLY_RESULT), 1);
    shard_destroy(s);
}

static void who_left_holds_back_neither_stable_nor_ready(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    do_rounds(s, 2);
    ack(s, 0, 2);
    tly_rounds_left(s->rounds, 1, s->now);
    assert_true(STAT(s, log_count) == 0);
    s->now += TLY_SETTLE_MS;
    tly_rounds_tick(s->rounds, s->now);
    assert_int_equal(count_of(s, 0, TLY_STABLE), 1);
    assert_int_equal(count_of(s, 1, TLY_STABLE), 0);
    shard_destroy(s);

    s = shard_create(3, false);
    hello(s, 0, true);
    hello(s, 2, true);
    nothing_was_sent(s);
    tly_rounds_left(s->rounds, 1, s->now); /* it was the last that was waited for */
    assert_int_equal(count_of(s, 0, TLY_READY), 1);
    assert_int_equal(count_of(s, 2, TLY_READY), 1);
    shard_destroy(s);
}

static void when_all_have_left_nothing_is_kept(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    do_rounds(s, 3);
    tly_rounds_left(s->rounds, 0, s->now);
    assert_true(STAT(s, log_count) == 3);
    tly_rounds_left(s->rounds, 1, s->now);
    assert_true(STAT(s, log_count) == 0);
    s->now += TLY_SETTLE_MS;
    tly_rounds_tick(s->rounds, s->now);
    nothing_was_sent(s);
    shard_destroy(s);
}

static void messages_of_a_worker_that_left_are_ignored(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    tly_rounds_left(s->rounds, 1, s->now);
    tly_rounds_left(s->rounds, 1, s->now);
    tly_rounds_left(s->rounds, 2, s->now); /* there is no such worker */
    hello(s, 1, true);
    push1(s, 1, 1, 1, 1);
    nothing_was_sent(s);
    assert_true(STAT(s, keys) == 0);
    shard_destroy(s);
}

/* ---- bundles ---- */

static void the_records_of_a_bundle_are_contributions_each(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    for (uint32_t rank = 0; rank < 2; rank++) {
        tly_record records[100];
        float values[100];
        for (uint32_t i = 0; i < 100; i++) {
            records[i] = push_record(i, 1, TALLY_DTYPE_F32, TALLY_OP_SUM, i % 10 ? 4 : 0);
            values[i] = (float)(i + 1000 * rank);
        }
        float packed[90];
        uint32_t count = 0;
        for (uint32_t i = 0; i < 100; i++)
            if (i % 10)
                packed[count++] = values[i];
        say(s, rank, records, 100, bytes_of(packed, sizeof packed));
    }
    assert_int_equal(count_of(s, 0, TLY_RESULT), 100);
    for (uint32_t i = 0; i < 100; i++) {
        const got *g = nth(s, 1, TLY_RESULT, i);
        assert_int_equal(g->record.tensor, i);
        assert_true(g->record.seq == i + 1);
        assert_int_equal(g->message, nth(s, 1, TLY_RESULT, 0)->message); /* all in one */
        if (i % 10)
            assert_true(value_of(g) == (float)(2 * i + 1000));
        else
            assert_int_equal(g->record.len_bytes, 0);
    }
    shard_destroy(s);
}

static void results_are_bundled_in_order_and_never_above_the_limits(void **state)
{
    (void)state;
    shard *s = ready_shard(1);
    static const uint32_t lens[] = { 4, 16384, 16388, 4, 0, 16384, 16384, 16384, 16384, 4, 100000, 0 };
    uint32_t count = 0, total = 0;
    tly_record records[900];
    for (uint32_t i = 0; i < 12; i++, count++) {
        records[count] = push_record(count, 1, TALLY_DTYPE_F32, TALLY_OP_SUM, lens[i]);
        total += lens[i];
    }
    for (uint32_t i = 0; i < 600; i++, count++)
        records[count] = push_record(count, 1, TALLY_DTYPE_F32, TALLY_OP_SUM, 0);
    uint8_t *body = calloc(1, total);
    say(s, 0, records, count, bytes_of(body, total));
    free(body);
    assert_int_equal(count_of(s, 0, TLY_RESULT), count);
    uint32_t messages = s->message_count - 1; /* without READY */
    for (uint32_t i = 0, at = 0; at < count; i++) {
        const got *g = nth(s, 0, TLY_RESULT, at);
        uint32_t in_message = g->header.record_count, len_bytes = g->body ? (uint32_t)g->body->len_bytes : 0;
        assert_true(in_message <= TLY_BUNDLE_RECORD_COUNT);
        assert_true(in_message == 1 || len_bytes <= TLY_BUNDLE_BODY_BYTES);
        for (uint32_t j = 0; j < in_message; j++, at++) {
            assert_true(in_message == 1 ||
                        nth(s, 0, TLY_RESULT, at)->record.len_bytes <= TLY_BUNDLE_RECORD_BYTES);
            assert_true(nth(s, 0, TLY_RESULT, at)->record.seq == at + 1);
        }
        assert_true(i < messages);
    }
    /* 4+16384 | 16388 | 4,0,16384 x 3 | 16384,4 | 100000 | the empty ones: 256, 256, 89 */
    assert_int_equal(messages, 8);
    shard_destroy(s);
}

static void the_sum_of_a_bundled_record_touches_only_its_own_bytes(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    const uint8_t first[9] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    tly_record records[3] = { push_record(1, 1, TALLY_DTYPE_U8, TALLY_OP_SUM, 3),
                              push_record(2, 1, TALLY_DTYPE_U8, TALLY_OP_SUM, 3),
                              push_record(3, 1, TALLY_DTYPE_U8, TALLY_OP_SUM, 3) };
    say(s, 0, records, 3, bytes_of(first, 9));
    say(s, 1, &records[1], 1, bytes_of("\x10\x20\x30", 3));
    const got *g = nth(s, 0, TLY_RESULT, 0);
    assert_memory_equal(g->payload, "\x14\x25\x36", 3);
    say(s, 1, &records[0], 1, bytes_of("\1\1\1", 3));
    say(s, 1, &records[2], 1, bytes_of("\1\1\1", 3));
    assert_memory_equal(nth(s, 0, TLY_RESULT, 1)->payload, "\2\3\4", 3);
    assert_memory_equal(nth(s, 0, TLY_RESULT, 2)->payload, "\10\11\12", 3);
    shard_destroy(s);
}

/* ---- who is missing ---- */

static void ask(shard *s, uint32_t rank, uint32_t tensor, uint64_t round)
{
    collect(s);
    forget(s);
    say(s, rank, &(tly_record){ .type = TLY_ASK, .tensor = tensor, .partition = 0, .round = round }, 1, NULL);
}

static void check_missing(shard *s, uint32_t rank, const char *ranks, uint32_t count)
{
    const got *g = nth(s, rank, TLY_MISSING, 0);
    assert_int_equal(g->record.len_bytes, 4 * count);
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t expected[4] = { (uint8_t)ranks[i], 0, 0, 0 };
        assert_memory_equal(g->payload + 4 * i, expected, 4);
    }
}

static void who_asks_hears_who_is_missing_in_the_open_round(void **state)
{
    (void)state;
    shard *s = ready_shard(4);
    push1(s, 2, 1, 1, 1);
    ask(s, 2, 1, 1);
    check_missing(s, 2, "\0\1\3", 3);
    assert_int_equal(s->got_count, 1); /* nobody else is told */
    assert_int_equal(s->got[0].record.tensor, 1);
    assert_true(s->got[0].record.round == 1);
    push1(s, 0, 1, 1, 1);
    push1(s, 3, 1, 1, 1);
    ask(s, 0, 1, 1);
    check_missing(s, 0, "\1", 1);
    shard_destroy(s);
}

static void who_asks_about_a_round_that_is_over_hears_that_nobody_is_missing(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    do_rounds(s, 1);
    ask(s, 0, 1, 1);
    check_missing(s, 0, "", 0);
    assert_null(nth(s, 0, TLY_MISSING, 0)->body);
    ask(s, 0, 1, 3); /* not even open yet */
    check_missing(s, 0, "", 0);
    shard_destroy(s);
}

static void of_a_key_that_nobody_has_pushed_all_are_missing(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    ask(s, 1, 5, 1);
    check_missing(s, 1, "\0\1", 2);
    ask(s, 1, 5, 2);
    check_missing(s, 1, "", 0);
    assert_true(STAT(s, keys) == 0);
    shard_destroy(s);
}

static void an_answer_names_64_ranks_at_most(void **state)
{
    (void)state;
    shard *s = ready_shard(RANKS_MAX);
    push1(s, 0, 1, 1, 1);
    ask(s, 0, 1, 1);
    assert_int_equal(nth(s, 0, TLY_MISSING, 0)->record.len_bytes, 64 * 4);
    shard_destroy(s);
}

static void the_counters_say_what_is_held(void **state)
{
    (void)state;
    shard *s = ready_shard(2);
    do_rounds(s, 3);
    push1(s, 0, 2, 1, 1);
    assert_true(STAT(s, keys) == 2);
    assert_true(STAT(s, open) == 1);
    assert_true(STAT(s, rounds) == 3);
    assert_true(STAT(s, log_count) == 3);
    assert_true(STAT(s, dropped) == 0);
    assert_false(tly_rounds_failed(s->rounds));
    tly_rounds_destroy(NULL);
    shard_destroy(s);
}

/* ---- memory ---- */

#define WALK_ROUNDS 4

/* A short life of a shard that takes every path that allocates; any step may fail. bodies: of the three
 * workers' messages and of one more.
 * Returns: whether the shard said so */
static bool walk(shard *s, bool deterministic, tly_buf *const *bodies)
{
    if (tly_rounds_create(NODE, JOB, deterministic, &s->log, &s->rounds) != TALLY_OK)
        return true;
    /* HELLOs that come early: one that gets lost is said again. */
    for (uint32_t rank = 0; rank < 3; rank++)
        hello(s, rank, true);
    if (tly_rounds_install(s->rounds, EPOCH, 3, s->ids, s->now) != TALLY_OK)
        return true;
    for (uint32_t rank = 0; rank < 3; rank++)
        hello(s, rank, true);
    for (uint32_t rank = 0; rank < 3; rank++) {
        tly_record records[WALK_ROUNDS] = {
            push_record(0, 1, TALLY_DTYPE_F16, TALLY_OP_AVERAGE, 2),
            push_record(1, 1, TALLY_DTYPE_F16, TALLY_OP_SUM, 2),
            push_record(2, 1, rank ? TALLY_DTYPE_F32 : TALLY_DTYPE_F64, TALLY_OP_SUM, 0), /* an error */
            push_record(3, 1, TALLY_DTYPE_I32, TALLY_OP_SUM, 0),
        };
        records[3].kind = TLY_KIND_BROADCAST;
        say(s, rank, records, WALK_ROUNDS, tly_buf_get(bodies[rank]));
        say(s, rank, &(tly_record){ .type = TLY_ASK, .tensor = 0, .round = 1 }, 1, NULL);
        tly_rounds_idle(s->rounds);
    }
    hello(s, 1, true); /* all results again */
    tly_record wanting = push_record(9, 1, TALLY_DTYPE_F32, TALLY_OP_SUM, 4);
    wanting.flags = TLY_FLAG_WANT;
    say(s, 0, &wanting, 1, tly_buf_get(bodies[3]));
    tly_rounds_idle(s->rounds);
    tly_rounds_left(s->rounds, 2, s->now);
    return tly_rounds_failed(s->rounds);
}

/* Has a worker heard of each round, by its value or by an error? */
static bool has_all_results(shard *s, uint32_t rank)
{
    bool seen[WALK_ROUNDS] = { false };
    for (uint32_t i = 0; i < s->got_count; i++) {
        const got *g = &s->got[i];
        if (g->rank != rank || g->record.type != TLY_RESULT || g->record.tensor >= WALK_ROUNDS)
            continue;
        seen[g->record.tensor] = true;
        if (g->record.tensor == 0 && !(g->record.flags & TLY_FLAG_ERROR))
            assert_memory_equal(g->payload, "\0\x3c", 2); /* the average of ones */
        if (g->record.tensor == 1 && !(g->record.flags & TLY_FLAG_ERROR))
            assert_memory_equal(g->payload, "\0\x42", 2); /* 3 */
    }
    return seen[0] && seen[1] && seen[2] && seen[3];
}

static void a_shard_whose_memory_runs_out_anywhere_says_so_or_tells_the_workers(void **state)
{
    (void)state;
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        bool more = true;
        for (long number = 1; more; number++) {
            shard *s = test_calloc(1, sizeof *s);
            s->log = (tly_log){ .level = TALLY_LOG_WARN, .sink = count_line, .sink_arg = s };
            s->worker_count = 3;
            s->epoch = EPOCH;
            s->ids[0] = 5;
            s->ids[1] = 6;
            s->ids[2] = 7;
            tly_buf *bodies[4];
            for (int i = 0; i < 4; i++)
                bodies[i] = bytes_of("\0\x3c\0\x3c", 4); /* twice 1 */
            failing_arm(number);
            bool told = walk(s, deterministic, bodies);
            more = failing_disarm();
            for (int i = 0; i < 4; i++)
                tly_buf_put(bodies[i]);
            if (s->rounds)
                collect(s);
            if (!told && (!has_all_results(s, 0) || !has_all_results(s, 1)))
                fail_msg("allocation %ld failed unheard", number);
            if (!more) {
                assert_false(told);
                assert_true(number > 30); /* else the allocations do not pass through the wrapper */
            }
            shard_destroy(s);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_contribution_becomes_the_accumulator_that_goes_to_all),
        cmocka_unit_test(one_worker_alone_gets_its_own_value_back),
        cmocka_unit_test(keys_are_told_apart_by_tensor_and_partition),
        cmocka_unit_test(deterministic_sums_have_the_same_bits_whatever_the_order_of_arrival),
        cmocka_unit_test(sixteen_bit_floats_of_three_workers_round_once),
        cmocka_unit_test(eight_workers_of_20000_in_float16_average_20000_and_bfloat16_ones_1),
        cmocka_unit_test(integer_averages_of_three_workers_add_wide_and_truncate),
        cmocka_unit_test(a_wide_sum_goes_out_in_the_memory_of_the_last_contribution),
        cmocka_unit_test(more_than_64_workers_are_counted_each),
        cmocka_unit_test(a_broadcast_gives_the_roots_memory_to_all_from_each_root_in_each_order),
        cmocka_unit_test(empty_tensors_have_rounds_like_all_others),
        cmocka_unit_test(a_repeated_contribution_is_ignored),
        cmocka_unit_test(a_push_of_a_finished_round_is_ignored),
        cmocka_unit_test(a_push_of_a_future_round_is_dropped_with_a_warning),
        cmocka_unit_test(messages_of_another_job_are_dropped_and_counted),
        cmocka_unit_test(messages_of_another_epoch_are_dropped_without_a_word),
        cmocka_unit_test(messages_of_a_node_outside_the_roster_are_dropped_and_counted),
        cmocka_unit_test(malformed_messages_are_dropped_with_one_warning_a_minute),
        cmocka_unit_test(what_comes_before_ready_is_dropped),
        cmocka_unit_test(ready_waits_for_all_workers),
        cmocka_unit_test(ready_says_of_every_key_which_round_is_open_and_whether_this_worker_is_in),
        cmocka_unit_test(a_hello_of_a_lower_session_is_dropped),
        cmocka_unit_test(results_go_where_the_newest_hello_came_from),
        cmocka_unit_test(a_hello_of_a_later_epoch_is_stored_and_handled_when_that_epoch_is_installed),
        cmocka_unit_test(of_stored_hellos_the_newest_of_each_worker_counts),
        cmocka_unit_test(a_stored_hello_of_an_epoch_that_is_skipped_is_dropped),
        cmocka_unit_test(a_new_epoch_lets_go_of_all_that_the_old_one_held),
        cmocka_unit_test(received_is_sent_only_to_who_wants_it_and_only_when_idle_with_rounds_open),
        cmocka_unit_test(received_counts_all_pushes_of_the_session_and_is_not_repeated),
        cmocka_unit_test(pushes_of_an_old_session_do_not_count_in_received),
        cmocka_unit_test(the_log_is_freed_up_to_the_lowest_acked),
        cmocka_unit_test(acked_is_never_lowered_and_never_above_nseq),
        cmocka_unit_test(every_push_carries_acked_and_every_result_stable),
        cmocka_unit_test(one_stable_is_said_when_all_is_settled),
        cmocka_unit_test(no_stable_is_said_when_a_result_will_bring_it),
        cmocka_unit_test(a_resend_repeats_the_results_above_acked_only),
        cmocka_unit_test(workers_that_disagree_about_the_kind_all_get_the_error_and_the_next_round_works),
        cmocka_unit_test(workers_that_disagree_about_the_root_all_get_the_error_and_the_next_round_works),
        cmocka_unit_test(
            workers_that_disagree_about_the_data_type_all_get_the_error_and_the_next_round_works),
        cmocka_unit_test(
            workers_that_disagree_about_the_operation_all_get_the_error_and_the_next_round_works),
        cmocka_unit_test(workers_that_disagree_about_the_length_all_get_the_error_and_the_next_round_works),
        cmocka_unit_test(a_payload_that_is_not_as_long_as_announced_is_an_error),
        cmocka_unit_test(a_broadcast_payload_of_a_worker_that_is_not_the_root_is_an_error),
        cmocka_unit_test(a_broadcast_from_a_root_outside_the_roster_is_an_error),
        cmocka_unit_test(a_length_that_is_no_whole_number_of_elements_is_an_error),
        cmocka_unit_test(a_round_that_has_failed_holds_no_memory_of_its_contributions),
        cmocka_unit_test(a_worker_that_left_fails_the_rounds_it_is_missing_in_and_only_those),
        cmocka_unit_test(who_left_holds_back_neither_stable_nor_ready),
        cmocka_unit_test(when_all_have_left_nothing_is_kept),
        cmocka_unit_test(messages_of_a_worker_that_left_are_ignored),
        cmocka_unit_test(the_records_of_a_bundle_are_contributions_each),
        cmocka_unit_test(results_are_bundled_in_order_and_never_above_the_limits),
        cmocka_unit_test(the_sum_of_a_bundled_record_touches_only_its_own_bytes),
        cmocka_unit_test(who_asks_hears_who_is_missing_in_the_open_round),
        cmocka_unit_test(who_asks_about_a_round_that_is_over_hears_that_nobody_is_missing),
        cmocka_unit_test(of_a_key_that_nobody_has_pushed_all_are_missing),
        cmocka_unit_test(an_answer_names_64_ranks_at_most),
        cmocka_unit_test(the_counters_say_what_is_held),
        cmocka_unit_test(a_shard_whose_memory_runs_out_anywhere_says_so_or_tells_the_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
