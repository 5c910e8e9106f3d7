/* pipeline_inner.h - what the files of the pipeline share, and nobody else includes:
 *
 *     pipeline.c  its life, what the caller does, what is due
 *     stages.c    partitions, their stages, the ends of exchanges
 *     table.c     tensors, the placement table, declarations
 *     session.c   the exchange with the shards
 *     watch.c     what happens when nothing happens: acknowledgements, probes, stalls */
#ifndef TLY_PIPELINE_INNER_H
#define TLY_PIPELINE_INNER_H

#include "worker/link.h"

/* A row of the placement table, as this worker knows it. */
typedef struct entry {
    uint32_t id;
    char *name;
    tly_declaration declaration; /* its name points to name */
    uint32_t place_count;
    uint32_t *links;    /* of each partition */
    char *conflict;     /* the tensor is unusable, and why; or NULL */
    tly_tensor *tensor; /* bound to it, or NULL */
    UT_hash_handle by_id, by_name;
} entry;

/* An error RESULT of a tensor that this worker has not bound yet. */
typedef struct stray {
    struct stray *next;
    uint32_t tensor, partition;
    uint64_t round;
    tly_round_error error;
} stray;

struct tly_pipeline {
    const tly_config *config;
    const tly_log *log;
    tly_membership *membership; /* NULL: alone */
    tly_release_fn release;
    void *release_arg;
    tly_link *links;
    uint32_t link_count;
    uint32_t *first_links; /* of each server */
    entry *entries_by_id, *entries_by_name;
    tly_tensor *tensors; /* declared, by name */
    tly_tensor *undeclared, **undeclared_last; /* waiting for DECLARE */
    stray *strays;
    tly_exchange *open_first, *open_last; /* in order of issue */
    tly_exchange *ended_first, *ended_last;
    tly_out_list out;
    uint64_t inputs_out;
    uint32_t next_id_alone;
    uint64_t barrier_seq, barrier_released;
    char barrier_missing[TLY_SENTENCE_MAX];
    int left_rank;
    bool out_of_memory, hurry, stall_said;
    tally_status failed; /* TALLY_OK while well */
    char *failure;
    tly_time next_stall_look;
};

/* ---- stages.c ---- */

/* One way station of a partition. A queued stage is entered through its link's priority queue and
 * started from there when it is ready; the others start as soon as they are. */
typedef struct tly_stage {
    const char *name;
    bool queued;
    bool (*ready)(const tly_pipeline *p, const tly_part *part);
    void (*start)(tly_pipeline *p, tly_part *part);
    bool (*complete)(const tly_pipeline *p, const tly_part *part);
} tly_stage;

/* Stage lists, by where a tensor lives. */
extern const uint8_t tly_stages_alone[], tly_stages_cpu[];
const tly_stage *tly_stage_of(const tly_part *part);

char *tly_format(const char *text, ...) TLY_PRINTF(1, 2); /* on the heap; NULL when memory is short */
uint32_t tly_my_rank(const tly_pipeline *p);

uint64_t tly_part_offset(const tly_part *part);
uint64_t tly_part_len(const tly_part *part);
uint64_t tly_part_payload(const tly_pipeline *p, const tly_part *part);
bool tly_part_awaits_result(const tly_part *part);
void tly_part_run(tly_pipeline *p, tly_part *part);
void tly_part_requeue(tly_pipeline *p, tly_part *part);
void tly_part_to_pull(tly_pipeline *p, tly_part *part);
void tly_part_dequeue(tly_pipeline *p, tly_part *part);
void tly_part_abort(tly_pipeline *p, tly_part *part);
void tly_part_take_early(tly_pipeline *p, tly_part *part, uint64_t round, const tly_round_error *error);
void tly_part_round_error(tly_pipeline *p, tly_part *part, const tly_round_error *error);

void tly_exchange_start(tly_pipeline *p, tly_exchange *x, tly_time now);
void tly_exchange_error(tly_exchange *x, tally_status status, char *sentence); /* takes the sentence */
void tly_exchange_end(tly_pipeline *p, tly_exchange *x);

/* ---- table.c ---- */

entry *tly_table_find(const tly_pipeline *p, uint32_t id);
void tly_table_take(tly_pipeline *p, const tly_placed *placed, tly_time now);
void tly_table_send(tly_pipeline *p);
void tly_table_redeclare(tly_pipeline *p);
void tly_table_fini(tly_pipeline *p);

/* ---- session.c ---- */

bool tly_session_send(tly_pipeline *p, tly_link *link, const tly_record *records, uint32_t count, tly_buf *body);
void tly_session_hello(tly_pipeline *p, tly_link *link, bool resend, tly_time now);
void tly_session_pump(tly_pipeline *p, tly_link *link, tly_time now);

/* ---- watch.c: each lowers *deadline to when it must be called again ---- */

void tly_watch_link(tly_pipeline *p, tly_link *link, tly_time now, tly_time *deadline);
void tly_watch_stalls(tly_pipeline *p, tly_time now, tly_time *deadline);
int tly_watch_first_report_ms(const tly_pipeline *p);

#endif
