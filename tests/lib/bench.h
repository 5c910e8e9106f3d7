/* bench.h - a worker's pipeline between shards and a scheduler, all of which the test plays: what the
 * pipeline sends is collected and looked at, what the others would say is put in, and time passes as
 * the test says. The job has three workers, of which this one is rank 1, and two servers; server 0
 * has two shards (links 0 and 1), server 1 has one (link 2). */
#ifndef TESTS_BENCH_H
#define TESTS_BENCH_H

#include <string.h>

#include "common/control.h"
#include "worker/link.h"
#include "worker/pipeline.h"

#define JOB 77
#define EPOCH 0x100000002ull
#define MY_RANK 1
#define MY_ID 11
#define PARTITION 32768
#define CREDIT 4
#define LINKS 3
#define SENT_MAX 4096
#define TENSORS_MAX 400

/* One record that the pipeline has sent. */
typedef struct sent {
    uint32_t link, message;
    tly_header header;
    tly_record record;
    tly_buf *body; /* the test's reference: while it lives, the transport has the input */
    const uint8_t *payload;
} sent;

typedef struct bench {
    tly_config config;
    tly_log log;
    char lines[4096]; /* all warnings, one after the other */
    tly_membership membership;
    tly_pipeline *pipeline;
    tly_time now;
    sent sent[SENT_MAX];
    uint32_t sent_count, message_count;
    tly_out *control[64]; /* messages to the scheduler */
    tly_ctl ctl[64];
    uint32_t control_count;
    uint32_t session[LINKS]; /* of the newest HELLO */
    uint64_t seq[LINKS];     /* of the newest RESULT that was sent to the pipeline */
    uint64_t stable;
    tly_input *returned[256]; /* let go by the transport, not yet told to the pipeline */
    uint32_t returned_count;
    tly_tensor tensors[TENSORS_MAX];
    char names[TENSORS_MAX][16];
    uint32_t tensor_count;
} bench;

/* A worker that has not joined yet: config may still be changed. The bench is destroyed
 * when the test ends. */
bench *bench_prepare(void);
bool bench_join(bench *b); /* false when memory was short */

/* A worker that is in, with every link up and ready, and nothing collected. */
bench *bench_ready_all(void);
void bench_destroy(bench *b);

/* ---- what the pipeline sends ---- */

tly_time bench_run(bench *b); /* tly_pipeline_run, and collect */
void bench_collect(bench *b);

/* Forget what was sent; the transport lets go of it, which the pipeline hears of only in let_go. */
void bench_forget(bench *b);
void bench_let_go(bench *b);

/* How many records of a type went over a link (LINKS: over any) since forget, and the index-th of them. */
uint32_t bench_count_of(bench *b, uint32_t link, tly_record_type type);
const sent *bench_nth(bench *b, uint32_t link, tly_record_type type, uint32_t index);

/* The index-th message of a type to the scheduler since forget, or NULL. */
const tly_ctl *bench_control_of(bench *b, tly_ctl_type type, uint32_t index);

/* ---- what the shards say; each takes the reference to body ---- */

tly_header bench_header_of(const bench *b, uint32_t link);
void bench_hear_as(bench *b, uint32_t link, const tly_header *header, const tly_record *records,
                   uint32_t count, tly_buf *body);
void bench_hear(bench *b, uint32_t link, const tly_record *records, uint32_t count, tly_buf *body);
tly_record bench_key_record(uint32_t tensor, uint32_t partition, uint64_t open, bool in);

/* READY to the newest HELLO, with at most one key. */
void bench_ready(bench *b, uint32_t link, uint64_t nseq, const tly_record *key);
void bench_received(bench *b, uint32_t link, uint64_t count);
tly_buf *bench_bytes_of(const void *data, size_t len_bytes); /* NULL for none */

/* The next RESULT of a link: its record, the whole message, and the same with an error. */
tly_record bench_result_record(bench *b, uint32_t link, const tly_tensor *t, uint32_t partition,
                               uint64_t round, size_t len_bytes);
void bench_result(bench *b, uint32_t link, const tly_tensor *t, uint32_t partition, uint64_t round,
                  const void *data, size_t len_bytes);
void bench_error_result(bench *b, uint32_t link, uint32_t tensor, uint32_t partition, uint64_t round,
                        const tly_round_error *error);

/* ---- tensors ---- */

extern const tly_place bench_place_of_link[LINKS];

/* Declare the next tensor; its name is "t" and its number. */
tly_tensor *bench_declare(bench *b, tally_dtype dtype, tally_op op, uint64_t count);
void bench_placed(bench *b, uint64_t base, const tly_placed *items, uint32_t count);

/* The next row of the table: one tensor, its partitions over the links in turn from first_link on. */
void bench_place(bench *b, const tly_tensor *t, uint32_t id, uint32_t first_link);

/* The next row of the table: a conflict with this sentence. */
#define CONFLICT "tensor \"t0\": worker 0 says one thing, worker 1 another"
void bench_conflict(bench *b, uint32_t id, const char *name);

/* A float32 sum of count elements, declared and placed; its id is its number. */
tly_tensor *bench_tensor_f32(bench *b, uint64_t count, uint32_t link);

/* ---- exchanges ---- */

void bench_issue(bench *b, tly_exchange *x, tly_tensor *t, const void *input, void *output, int priority);
void bench_broadcast(bench *b, tly_exchange *x, tly_tensor *t, uint32_t root, void *buffer);

/* This exchange, and no other, is the next that has ended: well; or with this status and sentence. */
void bench_ended_well(bench *b, const tly_exchange *x);
void bench_ended_with(bench *b, tly_exchange *x, tally_status status, const char *sentence);
void bench_not_ended(bench *b); /* none has */

#endif
