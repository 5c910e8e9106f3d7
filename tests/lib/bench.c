#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/lib/bench.h"

static void keep_line(void *arg, tally_log_level level, const char *line)
{
    bench *b = arg;
    size_t len = strlen(b->lines);
    (void)level;
    snprintf(b->lines + len, sizeof b->lines - len, "%s\n", line);
}

static void keep_input(void *arg, tly_input *input)
{
    bench *b = arg;
    b->returned[b->returned_count++] = input;
}

static const char *const endpoints_a[] = { "tcp://10.0.0.1:1000", "tcp://10.0.0.1:1001" };
static const char *const endpoints_b[] = { "tcp://10.0.0.2:1000" };
static const tly_node workers[] = { { .id = 12, .rank = 0, .host = "a:1" },
                                    { .id = MY_ID, .rank = MY_RANK, .host = "me:2" },
                                    { .id = 13, .rank = 2, .host = "c:3" } };
static const tly_node servers[] = {
    { .id = 21, .rank = 0, .host = "s:4", .endpoint_count = 2, .endpoints = endpoints_a },
    { .id = 22, .rank = 1, .host = "s:5", .endpoint_count = 1, .endpoints = endpoints_b }
};

bench *bench_prepare(void)
{
    bench *b = test_calloc(1, sizeof *b);
    b->config = (tly_config){ .role = TLY_ROLE_WORKER, .num_worker = 3, .num_server = 2, .worker_id = MY_RANK,
                              .local_size = 1, .partition_bytes = PARTITION, .credit = CREDIT,
                              .death_limit_ms = 10000, .start_limit_ms = 10000, .stall_warn_ms = 10000,
                              .stall_limit_ms = 60000, .close_limit_ms = 5000, .io_threads = 1 };
    b->log = (tly_log){ .level = TALLY_LOG_WARN, .sink = keep_line, .sink_arg = b };
    b->now = 100000;
    return b;
}

/* Join the job: false when memory was short. */
bool bench_join(bench *b)
{
    if (tly_membership_init(&b->membership, &b->config, &b->log, TLY_ROLE_WORKER, 1, "tcp://10.0.0.9:1",
                            "me:2", 0, NULL, b->now) != TALLY_OK)
        return false;
    const tly_ctl epoch = { .type = TLY_CTL_EPOCH, .job = JOB, .epoch = EPOCH,
                            .epoch_info = { MY_ID, MY_RANK, 10000, 3, 2, workers, servers } };
    return tly_membership_message(&b->membership, &epoch, b->now) &&
           tly_pipeline_create(&b->config, &b->log, &b->membership, keep_input, b, &b->pipeline) ==
               TALLY_OK &&
           tly_pipeline_install(b->pipeline, b->now) == TALLY_OK;
}

/* Take all that the pipeline wants sent. */
void bench_collect(bench *b)
{
    for (tly_out *out; b->pipeline && (out = tly_out_pop(tly_pipeline_out(b->pipeline)));) {
        tly_header h;
        size_t offset = 0;
        assert_int_equal(
            tly_wire_check_data(out->head, out->head_len_bytes, out->body ? out->body->len_bytes : 0, &h),
            TALLY_OK);
        assert_int_equal(h.job, JOB);
        assert_true(h.epoch == EPOCH);
        assert_int_equal(h.sender, MY_ID);
        assert_true(out->link < LINKS);
        for (uint32_t i = 0; i < h.record_count; i++) {
            assert_true(b->sent_count < SENT_MAX);
            sent *s = &b->sent[b->sent_count++];
            *s = (sent){ .link = out->link, .message = b->message_count, .header = h };
            tly_wire_get_record(out->head, i, &s->record);
            s->body = out->body ? tly_buf_get(out->body) : NULL;
            s->payload = out->body ? (const uint8_t *)out->body->data + offset : NULL;
            offset += s->record.len_bytes;
            if (s->record.type == TLY_HELLO)
                b->session[out->link] = h.session;
        }
        b->message_count++;
        tly_out_free(out);
    }
    for (tly_out *out; (out = tly_out_pop(&b->membership.out));) {
        tly_ctl *c = &b->ctl[b->control_count];
        assert_int_equal(tly_ctl_decode(out->head, out->head_len_bytes, c), TALLY_OK);
        if (c->type == TLY_CTL_REGISTER || c->type == TLY_CTL_BEAT) {
            tly_ctl_fini(c);
            tly_out_free(out);
            continue;
        }
        assert_true(b->control_count < 63);
        b->control[b->control_count++] = out;
    }
}

/* Forget what was sent; the transport lets go of it, which the pipeline does not know yet. */
void bench_forget(bench *b)
{
    bench_collect(b);
    for (uint32_t i = 0; i < b->sent_count; i++)
        tly_buf_put(b->sent[i].body);
    for (uint32_t i = 0; i < b->control_count; i++) {
        tly_ctl_fini(&b->ctl[i]);
        tly_out_free(b->control[i]);
    }
    b->sent_count = b->control_count = 0;
}

/* The transport lets go of all that was sent, and the pipeline hears of it. */
void bench_let_go(bench *b)
{
    bench_forget(b);
    for (uint32_t i = 0; i < b->returned_count; i++)
        tly_pipeline_released(b->pipeline, b->returned[i]);
    b->returned_count = 0;
}

void bench_destroy(bench *b)
{
    bench_forget(b);
    if (b->pipeline)
        bench_let_go(b);
    for (tly_exchange *x; b->pipeline && (x = tly_pipeline_ended(b->pipeline));)
        free(x->error);
    tly_pipeline_destroy(b->pipeline);
    tly_membership_fini(&b->membership);
    test_free(b);
}

tly_time bench_run(bench *b)
{
    tly_time due = tly_pipeline_run(b->pipeline, b->now);
    bench_collect(b);
    return due;
}

/* How many records of a type went over a link since forget; link LINKS: over any. */
uint32_t bench_count_of(bench *b, uint32_t link, tly_record_type type)
{
    uint32_t count = 0;
    bench_collect(b);
    for (uint32_t i = 0; i < b->sent_count; i++)
        count += (b->sent[i].link == link || link == LINKS) && b->sent[i].record.type == type;
    return count;
}

const sent *bench_nth(bench *b, uint32_t link, tly_record_type type, uint32_t index)
{
    bench_collect(b);
    for (uint32_t i = 0; i < b->sent_count; i++)
        if ((b->sent[i].link == link || link == LINKS) && b->sent[i].record.type == type && index-- == 0)
            return &b->sent[i];
    fail_msg("record %u of type %d was not sent over link %u", index, type, link);
    return NULL;
}

const tly_ctl *bench_control_of(bench *b, tly_ctl_type type, uint32_t index)
{
    bench_collect(b);
    for (uint32_t i = 0; i < b->control_count; i++)
        if (b->ctl[i].type == type && index-- == 0)
            return &b->ctl[i];
    return NULL;
}

/* One message of a shard's; takes the reference to body. */
void bench_hear_as(bench *b, uint32_t link, const tly_header *header, const tly_record *records,
                   uint32_t count, tly_buf *body)
{
    uint8_t frame[TLY_HEADER_BYTES + 300 * TLY_RECORD_BYTES];
    tly_header h = *header;
    h.record_count = count;
    tly_wire_put_header(frame, &h);
    for (uint32_t i = 0; i < count; i++)
        tly_wire_put_record(frame + TLY_HEADER_BYTES + i * TLY_RECORD_BYTES, &records[i]);
    tly_pipeline_message(b->pipeline, link, frame, TLY_HEADER_BYTES + count * TLY_RECORD_BYTES, body, b->now);
    tly_buf_put(body);
}

tly_header bench_header_of(const bench *b, uint32_t link)
{
    return (tly_header){ .plane = TLY_PLANE_DATA, .job = JOB, .epoch = EPOCH, .sender = link < 2 ? 21 : 22,
                         .session = b->session[link], .stable = b->stable };
}

void bench_hear(bench *b, uint32_t link, const tly_record *records, uint32_t count, tly_buf *body)
{
    tly_header h = bench_header_of(b, link);
    bench_hear_as(b, link, &h, records, count, body);
}

tly_record bench_key_record(uint32_t tensor, uint32_t partition, uint64_t open, bool in)
{
    return (tly_record){ .type = TLY_KEY,
                         .tensor = tensor,
                         .partition = partition,
                         .round = open - 1,
                         .seq = open,
                         .flags = in ? TLY_FLAG_IN : 0 };
}

/* READY to the newest HELLO, with at most one key. */
void bench_ready(bench *b, uint32_t link, uint64_t nseq, const tly_record *key)
{
    bench_collect(b);
    tly_record records[2] = { { .type = TLY_READY, .seq = nseq } };
    if (key)
        records[1] = *key;
    bench_hear(b, link, records, key ? 2 : 1, NULL);
}

void bench_received(bench *b, uint32_t link, uint64_t count)
{
    bench_hear(b, link, &(tly_record){ .type = TLY_RECEIVED, .seq = count }, 1, NULL);
}

tly_buf *bench_bytes_of(const void *data, size_t len_bytes)
{
    tly_buf *buf = len_bytes ? tly_buf_alloc(len_bytes) : NULL;
    if (buf)
        memcpy(buf->data, data, len_bytes);
    return buf;
}

tly_record bench_result_record(bench *b, uint32_t link, const tly_tensor *t, uint32_t partition,
                               uint64_t round, size_t len_bytes)
{
    return (tly_record){ .type = TLY_RESULT,
                         .dtype = (uint8_t)t->dtype,
                         .op = (uint8_t)t->op,
                         .contributors = 3,
                         .tensor = t->id,
                         .partition = partition,
                         .round = round,
                         .seq = ++b->seq[link],
                         .len_bytes = (uint32_t)len_bytes };
}

/* The next RESULT of a link. */
void bench_result(bench *b, uint32_t link, const tly_tensor *t, uint32_t partition, uint64_t round,
                  const void *data, size_t len_bytes)
{
    tly_record record = bench_result_record(b, link, t, partition, round, len_bytes);
    bench_hear(b, link, &record, 1, bench_bytes_of(data, len_bytes));
}

void bench_error_result(bench *b, uint32_t link, uint32_t tensor, uint32_t partition, uint64_t round,
                         const tly_round_error *error)
{
    uint8_t bytes[TLY_ROUND_ERROR_BYTES];
    tly_wire_put_round_error(bytes, error);
    tly_record record = { .type = TLY_RESULT,
                          .flags = TLY_FLAG_ERROR,
                          .tensor = tensor,
                          .partition = partition,
                          .round = round,
                          .seq = ++b->seq[link],
                          .len_bytes = sizeof bytes };
    bench_hear(b, link, &record, 1, bench_bytes_of(bytes, sizeof bytes));
}

/* A worker that is in, with every link up and ready. */
bench *bench_ready_all(void)
{
    bench *b = bench_prepare();
    assert_true(bench_join(b));
    for (uint32_t link = 0; link < LINKS; link++) {
        tly_pipeline_connected(b->pipeline, link, b->now);
        bench_ready(b, link, 0, NULL);
    }
    bench_forget(b);
    return b;
}

tly_tensor *bench_declare(bench *b, tally_dtype dtype, tally_op op, uint64_t count)
{
    assert_true(b->tensor_count < TENSORS_MAX);
    uint32_t i = b->tensor_count++;
    snprintf(b->names[i], sizeof b->names[i], "t%u", i);
    b->tensors[i] = (tly_tensor){ .name = b->names[i], .dtype = dtype, .op = op, .count = count };
    tly_pipeline_declare(b->pipeline, &b->tensors[i], b->now);
    return &b->tensors[i];
}

const tly_place bench_place_of_link[LINKS] = { { 0, 0 }, { 0, 1 }, { 1, 0 } };

void bench_placed(bench *b, uint64_t base, const tly_placed *items, uint32_t count)
{
    const tly_ctl message = {
        .type = TLY_CTL_PLACED, .job = JOB, .epoch = EPOCH, .placed = { base, count, items }
    };
    tly_pipeline_control(b->pipeline, &message, b->now);
}

/* Place the newest rows of the table: one tensor, its partitions over the links in turn
 * from first_link on. */
void bench_place(bench *b, const tly_tensor *t, uint32_t id, uint32_t first_link)
{
    tly_place places[64];
    uint32_t count = (uint32_t)tly_partition_count(t->dtype, t->count, PARTITION);
    assert_true(count <= 64);
    for (uint32_t i = 0; i < count; i++)
        places[i] = bench_place_of_link[(first_link + i) % LINKS];
    tly_placed item = { .tensor = id,
                        .declaration = { t->name, (uint8_t)t->dtype, (uint8_t)t->op, t->count, PARTITION },
                        .place_count = count,
                        .places = places };
    bench_placed(b, b->membership.placed_version, &item, 1);
}

/* A float32 sum of count elements, declared and placed; its id is its number. */
tly_tensor *bench_tensor_f32(bench *b, uint64_t count, uint32_t link)
{
    tly_tensor *t = bench_declare(b, TALLY_DTYPE_F32, TALLY_OP_SUM, count);
    bench_place(b, t, b->tensor_count - 1, link);
    return t;
}

void bench_issue(bench *b, tly_exchange *x, tly_tensor *t, const void *input, void *output, int priority)
{
    *x = (tly_exchange){ .tensor = t, .kind = TLY_KIND_PUSH_PULL, .input = input, .output = output,
                         .priority = priority };
    tly_pipeline_issue(b->pipeline, x, b->now);
}

void bench_broadcast(bench *b, tly_exchange *x, tly_tensor *t, uint32_t root, void *buffer)
{
    *x = (tly_exchange){
        .tensor = t, .kind = TLY_KIND_BROADCAST, .root = root, .input = buffer, .output = buffer
    };
    tly_pipeline_issue(b->pipeline, x, b->now);
}

/* This exchange, and no other, is the next that has ended well. */
void bench_ended_well(bench *b, const tly_exchange *x)
{
    assert_ptr_equal(tly_pipeline_ended(b->pipeline), x);
    assert_int_equal(x->status, TALLY_OK);
    assert_null(x->error);
}

void bench_ended_with(bench *b, tly_exchange *x, tally_status status, const char *sentence)
{
    assert_ptr_equal(tly_pipeline_ended(b->pipeline), x);
    assert_int_equal(x->status, status);
    assert_non_null(x->error);
    assert_string_equal(x->error, sentence);
    free(x->error);
    x->error = NULL;
}

void bench_not_ended(bench *b)
{
    assert_null(tly_pipeline_ended(b->pipeline));
}


void bench_conflict(bench *b, uint32_t id, const char *name)
{
    tly_placed item = { .tensor = id, .conflict = CONFLICT, .declaration = { .name = name } };
    bench_placed(b, b->membership.placed_version, &item, 1);
}
