/* A worker between one server of two shards and a scheduler that say anything, time passing. What it sends is
 * well formed and within its limits, its memory does not run out, and every exchange ends exactly once, at
 * the latest when the job is made to fail. */
#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "worker/pipeline.h"

#define JOB 7
#define EPOCH 100
#define LINKS 2
#define TENSORS 4
#define PARTITION 20000
#define LARGE_COUNT 4000 /* of 8 bytes: two partitions, of which one is sent by reference and one copied */

typedef struct target {
    tly_config config;
    tly_membership membership;
    tly_pipeline *pipeline;
    tly_time now;
    tly_tensor tensors[TENSORS];
    tly_exchange exchanges[TENSORS];
    bool issued[TENSORS];
    uint32_t session[LINKS]; /* of the newest HELLO */
    uint64_t seq[LINKS];     /* of the newest RESULT in turn */
    bool ready[LINKS];       /* before the first READY no RESULT counts */
    double in[LARGE_COUNT], out[LARGE_COUNT];
    tly_buf *held[256]; /* bodies that the transport has not let go */
    uint8_t held_count;
    tly_input *back[256]; /* let go, and not yet told */
    uint32_t back_count;
} target;

static const char *const endpoints[LINKS] = { "tcp://10.0.0.1:1", "tcp://10.0.0.1:2" };
static const tly_node workers[] = { { .id = 11, .rank = 0, .host = "a" },
                                    { .id = 12, .rank = 1, .host = "b" } };
static const tly_node servers[] = { { .id = 21, .rank = 0, .host = "s", .endpoint_count = LINKS,
                                      .endpoints = endpoints } };

static void take_back(void *arg, tly_input *input)
{
    target *t = arg;
    FUZZ_CHECK(t->back_count < 256);
    t->back[t->back_count++] = input;
}

/* The transport lets go of all, and the pipeline hears of it. */
static void let_go(target *t)
{
    while (t->held_count > 0)
        tly_buf_put(t->held[--t->held_count]);
    for (uint32_t i = 0; i < t->back_count; i++)
        tly_pipeline_released(t->pipeline, t->back[i]);
    t->back_count = 0;
}

static void check_out(target *t)
{
    for (tly_out *out; (out = tly_out_pop(tly_pipeline_out(t->pipeline)));) {
        tly_header h;
        size_t body_bytes = out->body ? out->body->len_bytes : 0;
        FUZZ_CHECK(out->link < LINKS);
        FUZZ_CHECK(tly_wire_check_data(out->head, out->head_len_bytes, body_bytes, &h) == TALLY_OK);
        FUZZ_CHECK(h.job == JOB && h.epoch == EPOCH && h.sender == 12 && h.record_count > 0);
        FUZZ_CHECK(h.record_count == 1 || body_bytes <= TLY_BUNDLE_BODY_BYTES);
        t->session[out->link] = h.session;
        if (out->body && t->held_count < 255) {
            t->held[t->held_count++] = out->body;
            out->body = NULL;
        }
        tly_out_free(out);
        if (t->held_count == 255)
            let_go(t);
    }
    for (tly_out *out; (out = tly_out_pop(&t->membership.out));)
        tly_out_free(out);
    for (tly_exchange *x; (x = tly_pipeline_ended(t->pipeline));) {
        ptrdiff_t i = x - t->exchanges;
        FUZZ_CHECK(i >= 0 && i < TENSORS && t->issued[i]); /* once each */
        FUZZ_CHECK((x->status == TALLY_OK) == (x->error == NULL));
        t->issued[i] = false;
        free(x->error);
        x->error = NULL;
    }
    FUZZ_CHECK(!tly_pipeline_out_of_memory(t->pipeline));
}

static void issue(target *t, uint8_t how)
{
    int i = how % TENSORS;
    if (t->issued[i])
        return;
    t->issued[i] = true;
    t->exchanges[i] = (tly_exchange){ .tensor = &t->tensors[i], .kind = how & 0x10 ? TLY_KIND_BROADCAST
                                                                                  : TLY_KIND_PUSH_PULL,
                                      .root = how >> 5 & 1, .input = t->in, .priority = how >> 6,
                                      .output = how & 0x10 || how & 0x80 ? t->in : t->out };
    tly_pipeline_issue(t->pipeline, &t->exchanges[i], t->now);
}

static void place(target *t, uint32_t i)
{
    static const tly_place places[2] = { { 0, 0 }, { 0, 1 } };
    const tly_tensor *tensor = &t->tensors[i];
    const tly_placed item = {
        .tensor = i,
        .declaration = { tensor->name, (uint8_t)tensor->dtype, (uint8_t)tensor->op, tensor->count,
                         PARTITION },
        .place_count = (uint32_t)tly_partition_count(tensor->dtype, tensor->count, PARTITION),
        .places = places,
    };
    const tly_ctl message = { .type = TLY_CTL_PLACED, .placed = { t->membership.placed_version, 1, &item } };
    tly_pipeline_control(t->pipeline, &message, t->now);
}

static void setup(target *t)
{
    static const struct {
        const char *name;
        tally_dtype dtype;
        tally_op op;
        uint64_t count;
    } tensors[TENSORS] = { { "small", TALLY_DTYPE_F32, TALLY_OP_SUM, 3 },
                           { "large", TALLY_DTYPE_F64, TALLY_OP_AVERAGE, LARGE_COUNT },
                           { "empty", TALLY_DTYPE_F16, TALLY_OP_MIN, 0 },
                           { "later", TALLY_DTYPE_U8, TALLY_OP_SUM, 9 } };
    t->config = (tly_config){ .role = TLY_ROLE_WORKER,
                              .num_worker = 2,
                              .num_server = 1,
                              .worker_id = 1,
                              .local_size = 1,
                              .partition_bytes = PARTITION,
                              .credit = 3,
                              .death_limit_ms = 10000,
                              .start_limit_ms = 10000,
                              .stall_warn_ms = 1000,
                              .stall_limit_ms = 10000 };
    t->now = 1000;
    FUZZ_CHECK(tly_membership_init(&t->membership, &t->config, &fuzz_log, TLY_ROLE_WORKER, 1,
                                   "tcp://10.0.0.9:1", "b", 0, NULL, t->now) == TALLY_OK);
    const tly_ctl epoch = { .type = TLY_CTL_EPOCH, .job = JOB, .epoch = EPOCH,
                            .epoch_info = { 12, 1, 10000, 2, 1, workers, servers } };
    FUZZ_CHECK(tly_membership_message(&t->membership, &epoch, t->now));
    FUZZ_CHECK(tly_pipeline_create(&t->config, &fuzz_log, &t->membership, take_back, t, &t->pipeline) ==
               TALLY_OK);
    FUZZ_CHECK(tly_pipeline_install(t->pipeline, t->now) == TALLY_OK);
    for (uint32_t i = 0; i < TENSORS; i++) {
        t->tensors[i] = (tly_tensor){ .name = tensors[i].name, .dtype = tensors[i].dtype, .op = tensors[i].op,
                                      .count = tensors[i].count };
        tly_pipeline_declare(t->pipeline, &t->tensors[i], t->now);
        if (i < TENSORS - 1)
            place(t, i);
    }
}

static void message(target *t, fuzz_input *in)
{
    fuzz_message m;
    uint32_t link = fuzz_u8(in) % LINKS;
    fuzz_message_read(in, JOB, EPOCH, 21, &m);
    tly_pipeline_message(t->pipeline, link, m.frame, m.len_bytes, m.body, t->now);
    fuzz_message_fini(&m);
}

/* READY to the newest HELLO, of no key or one. */
static void ready(target *t, fuzz_input *in)
{
    uint8_t how = fuzz_u8(in), open = fuzz_u8(in), link = how & 1;
    uint8_t frame[TLY_HEADER_BYTES + 2 * TLY_RECORD_BYTES];
    uint32_t count = how & 2 ? 2 : 1;
    t->ready[link] = true;
    tly_wire_put_header(frame, &(tly_header){ .plane = TLY_PLANE_DATA,
                                              .job = JOB,
                                              .epoch = EPOCH,
                                              .sender = 21,
                                              .session = t->session[link],
                                              .record_count = count });
    tly_wire_put_record(frame + TLY_HEADER_BYTES, &(tly_record){ .type = TLY_READY, .seq = t->seq[link] });
    if (count == 2)
        tly_wire_put_record(frame + TLY_HEADER_BYTES + TLY_RECORD_BYTES,
                            &(tly_record){ .type = TLY_KEY, .tensor = how >> 2 & 3, .partition = how >> 4 & 3,
                                           .seq = open, .flags = how & 0x80 ? TLY_FLAG_IN : 0 });
    tly_pipeline_message(t->pipeline, link, frame, TLY_HEADER_BYTES + count * TLY_RECORD_BYTES, NULL, t->now);
}

/* A RESULT of a link in full length and in turn, which a script could hardly write: a value or an error. */
static void result(target *t, fuzz_input *in)
{
    uint8_t how = fuzz_u8(in), round = fuzz_u8(in);
    const tly_tensor *tensor = &t->tensors[how % TENSORS];
    uint32_t partition = how >> 3 & 1, link = partition;
    bool known = tensor->parts && partition < tensor->part_count, error = how & 4;
    uint64_t len = tensor->count * tally_dtype_size(tensor->dtype), seq = t->ready[link] ? ++t->seq[link] : 1;
    if (error)
        len = TLY_ROUND_ERROR_BYTES;
    else if (len > PARTITION)
        len = partition ? len - PARTITION : PARTITION;
    uint8_t frame[TLY_HEADER_BYTES + TLY_RECORD_BYTES];
    tly_wire_put_header(frame, &(tly_header){ .plane = TLY_PLANE_DATA,
                                              .job = JOB,
                                              .epoch = EPOCH,
                                              .sender = 21,
                                              .stable = how >> 4,
                                              .record_count = 1 });
    tly_wire_put_record(
        frame + TLY_HEADER_BYTES,
        &(tly_record){ .type = TLY_RESULT,
                       .tensor = how % TENSORS,
                       .partition = partition,
                       .round = known && round < 0xc0 ? tensor->parts[partition].have + 1 : round,
                       .seq = seq,
                       .flags = error ? TLY_FLAG_ERROR : 0,
                       .len_bytes = (uint32_t)len });
    tly_buf *body = len ? tly_buf_alloc(len) : NULL;
    if (body)
        memset(body->data, 0, len);
    if (error)
        tly_wire_put_round_error(body->data, &(tly_round_error){ fuzz_u8(in), fuzz_u8(in), fuzz_u8(in),
                                                                 fuzz_u8(in), fuzz_u8(in), 0 });
    tly_pipeline_message(t->pipeline, link, frame, sizeof frame, body, t->now);
    tly_buf_put(body);
}

static void control(target *t, fuzz_input *in)
{
    const tly_placed conflict = { .tensor = fuzz_u8(in) % TENSORS, .conflict = "a conflict",
                                  .declaration = { .name = "later" } };
    tly_ctl message = { .type = TLY_CTL_LEFT, .rank = 0, .peer = 11, .text = "worker 0 is missing" };
    switch (fuzz_u8(in) % 5) {
    case 0:
        message.type = TLY_CTL_PLACED;
        message.placed.base = t->membership.placed_version;
        message.placed.count = 1;
        message.placed.items = &conflict;
        break;
    case 1:
        message.type = TLY_CTL_BARRIER;
        message.barrier.seq = fuzz_u8(in);
        break;
    case 2:
        message.type = TLY_CTL_WAITING;
        message.barrier.seq = fuzz_u8(in);
        break;
    case 3:
        if (t->membership.placed_version < TENSORS)
            place(t, TENSORS - 1);
        return;
    }
    tly_pipeline_control(t->pipeline, &message, t->now);
}

static void step(target *t, fuzz_input *in)
{
    switch (fuzz_u8(in) % 12) {
    case 0:
        t->now += fuzz_u16(in) % 4096;
        tly_pipeline_run(t->pipeline, t->now);
        break;
    case 1:
        issue(t, fuzz_u8(in));
        tly_pipeline_run(t->pipeline, t->now);
        break;
    case 2:
        tly_pipeline_connected(t->pipeline, fuzz_u8(in) % LINKS, t->now);
        break;
    case 3:
        tly_pipeline_reconnect(t->pipeline, fuzz_u8(in) % LINKS, t->now);
        break;
    case 4:
        let_go(t);
        break;
    case 5:
        control(t, in);
        break;
    case 6:
        tly_pipeline_cancel(t->pipeline, TALLY_ECLOSED, "closed");
        break;
    case 7:
        result(t, in);
        break;
    case 8:
        ready(t, in);
        break;
    default:
        message(t, in);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
    fuzz_input in = { data, data + len_bytes };
    target *t = calloc(1, sizeof *t);
    FUZZ_CHECK(t);
    setup(t);
    while (in.at < in.end) {
        step(t, &in);
        check_out(t);
    }
    tly_pipeline_fail(t->pipeline, TALLY_EFAILED, "the end");
    let_go(t);
    check_out(t);
    let_go(t);
    FUZZ_CHECK(tly_pipeline_inputs_out(t->pipeline) == 0);
    for (int i = 0; i < TENSORS; i++)
        FUZZ_CHECK(!t->issued[i]);
    tly_pipeline_destroy(t->pipeline);
    tly_membership_fini(&t->membership);
    free(t);
    return 0;
}
