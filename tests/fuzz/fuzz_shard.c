/* A shard with two or three workers, who and strangers besides say anything. Whatever comes, the shard's own
 * messages are well formed and within their limits, memory does not run out, and its counters hold. */
#include "server/round.h"
#include "tests/fuzz/fuzz.h"

#define JOB 7
#define NODE 9
#define WORKERS_MAX 3

typedef struct target {
    tly_rounds *rounds;
    uint64_t epoch;
    tly_time now;
    uint32_t worker_count;
    uint8_t session; /* of the last HELLO */
} target;

static const uint32_t ids[WORKERS_MAX + 1] = { 12, 11, 13, 99 }; /* the last is a stranger's */

static void install(target *t)
{
    FUZZ_CHECK(tly_rounds_install(t->rounds, t->epoch, t->worker_count, ids, t->now) == TALLY_OK);
}

static void say(target *t, uint32_t sender, const void *frame, size_t len_bytes, tly_buf *body)
{
    tly_peer peer = { .len = 1, .id = { (uint8_t)sender } };
    tly_rounds_message(t->rounds, &peer, frame, len_bytes, body, t->now);
}

/* A HELLO of all workers, so that the script need not find that. */
static void hello(target *t, uint8_t session)
{
    t->session = session;
    for (uint32_t i = 0; i < t->worker_count; i++) {
        uint8_t frame[TLY_HEADER_BYTES + TLY_RECORD_BYTES];
        tly_wire_put_header(frame, &(tly_header){ .plane = TLY_PLANE_DATA, .job = JOB, .epoch = t->epoch,
                                                  .sender = ids[i], .session = session, .record_count = 1 });
        tly_wire_put_record(frame + TLY_HEADER_BYTES,
                            &(tly_record){ .type = TLY_HELLO, .flags = TLY_FLAG_RESEND });
        say(t, ids[i], frame, sizeof frame, NULL);
    }
}

/* A sound PUSH, which a script could hardly write; the next one may not agree with it. */
static void push(target *t, fuzz_input *in)
{
    uint8_t who = fuzz_u8(in), what = fuzz_u8(in), round = fuzz_u8(in);
    tly_record record = { .type = TLY_PUSH, .kind = what >> 6 & 1, .dtype = what & 7, .op = what >> 3 & 3,
                          .flags = who & 0x80 ? TLY_FLAG_WANT : 0, .tensor = who >> 2 & 3, .round = round % 8,
                          .root = round >> 4 & 3, .seq = (what >> 7) * 1024u };
    if (record.kind == TLY_KIND_PUSH_PULL || record.root == who % 4)
        record.len_bytes = (uint32_t)record.seq;
    uint8_t frame[TLY_HEADER_BYTES + TLY_RECORD_BYTES];
    tly_wire_put_header(frame, &(tly_header){ .plane = TLY_PLANE_DATA,
                                              .job = JOB,
                                              .epoch = t->epoch,
                                              .sender = ids[who % 4],
                                              .session = t->session,
                                              .acked = round >> 6,
                                              .record_count = 1 });
    tly_wire_put_record(frame + TLY_HEADER_BYTES, &record);
    tly_buf *body = record.len_bytes ? tly_buf_alloc(record.len_bytes) : NULL;
    for (uint32_t i = 0; i < record.len_bytes; i++)
        ((uint8_t *)body->data)[i] = (uint8_t)(i ^ who);
    say(t, ids[who % 4], frame, sizeof frame, body);
    tly_buf_put(body);
}

static void message(target *t, fuzz_input *in)
{
    fuzz_message m;
    uint32_t sender = ids[fuzz_u8(in) % 4];
    fuzz_message_read(in, JOB, t->epoch, sender, &m);
    say(t, sender, m.frame, m.len_bytes, m.body);
    fuzz_message_fini(&m);
}

static void step(target *t, fuzz_input *in)
{
    switch (fuzz_u8(in) % 10) {
    case 0:
        hello(t, fuzz_u8(in));
        break;
    case 1:
        tly_rounds_idle(t->rounds);
        break;
    case 2:
        t->now += fuzz_u8(in);
        tly_rounds_tick(t->rounds, t->now);
        break;
    case 3:
        tly_rounds_left(t->rounds, fuzz_u8(in) % 4, t->now);
        break;
    case 4:
        t->epoch++;
        install(t);
        break;
    case 5:
    case 6:
    case 7:
        push(t, in);
        break;
    default:
        message(t, in);
        break;
    }
}

static void check_out(target *t)
{
    for (tly_out *out; (out = tly_out_pop(tly_rounds_out(t->rounds)));) {
        tly_header h;
        size_t body_bytes = out->body ? out->body->len_bytes : 0;
        FUZZ_CHECK(tly_wire_check_data(out->head, out->head_len_bytes, body_bytes, &h) == TALLY_OK);
        FUZZ_CHECK(h.job == JOB && h.epoch == t->epoch && h.sender == NODE && h.record_count > 0);
        FUZZ_CHECK(h.record_count == 1 || body_bytes <= TLY_BUNDLE_BODY_BYTES);
        tly_out_free(out);
    }
    tly_rounds_stats stats;
    tly_rounds_stats_get(t->rounds, &stats);
    FUZZ_CHECK(stats.open <= stats.keys);
    FUZZ_CHECK(!tly_rounds_failed(t->rounds));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
    fuzz_input in = { data, data + len_bytes };
    target t = { .epoch = 100, .now = 1000 };
    uint8_t how = fuzz_u8(&in);
    t.worker_count = how & 2 ? 3 : 2;
    FUZZ_CHECK(tly_rounds_create(NODE, JOB, how & 1, &fuzz_log, &t.rounds) == TALLY_OK);
    install(&t);
    while (in.at < in.end) {
        step(&t, &in);
        check_out(&t);
    }
    tly_rounds_destroy(t.rounds);
    return 0;
}
