#include "server/round.h"

#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/reduce.h"
#include "common/ring.h"

/* HELLOs that may be stored for an epoch that is not installed yet. */
#define STORED_MAX 4096
/* Ranks that an answer to ASK names. */
#define MISSING_MAX 64
#define DROP_WARNING_MS 60000

/* One partition of one tensor, and its open round. */
typedef struct key {
    uint64_t id; /* tensor << 32 | partition */
    UT_hash_handle hh;
    uint64_t open;         /* number of the open round */
    uint32_t in_count;     /* contributions to it */
    uint32_t absorbed;     /* of these, added up */
    uint32_t first_rank;   /* whose contribution describes the round */
    tly_record first;      /* that description */
    tly_round_error error; /* reason 0: none */
    tly_buf *sum;          /* the accumulator */
    tly_buf *wide;         /* sum of all before the last, where one rounding needs more bits */
    tly_buf **held;        /* deterministic: contributions that wait for their turn, by rank */
    uint64_t in[];         /* bit per rank */
} key;

/* A finished round that some worker may still lack. */
typedef struct result {
    tly_record record; /* as it is sent */
    tly_buf *value;    /* NULL when empty */
} result;

typedef struct worker {
    uint32_t id;
    tly_peer peer;
    bool heard; /* a HELLO of this epoch */
    bool left;
    bool want;  /* the newest PUSH asked for RECEIVED */
    uint32_t session;
    uint64_t acked;
    uint64_t count, count_said; /* PUSH records of this session, and what RECEIVED has told */
} worker;

typedef struct stored_hello {
    struct stored_hello *next;
    uint32_t sender, session;
    uint64_t epoch;
    tly_peer peer;
    size_t len_bytes;
    uint8_t frame[];
} stored_hello;

struct tly_rounds {
    uint32_t node_id, job;
    bool deterministic, failed;
    const tly_log *log;
    uint64_t epoch;
    bool ready; /* every worker of the roster was heard */
    uint32_t worker_count, left_count;
    worker *workers;    /* by rank */
    uint32_t *by_id;    /* ranks in order of node id */
    key *keys;
    uint64_t open;      /* keys with contributions to their open round */
    tly_ring results; /* of result: seq stable+1 .. nseq */
    uint64_t nseq, stable, stable_said, sent;
    tly_time settle_at;
    stored_hello *stored;
    uint32_t stored_count;
    tly_out_list out;
    uint64_t rounds_done, dropped, dropped_said;
    tly_time next_drop_warning;
};

static uint64_t key_id(uint32_t tensor, uint32_t partition)
{
    return (uint64_t)tensor << 32 | partition;
}

static bool is_in(const key *k, uint32_t rank)
{
    return k->in[rank / 64] >> (rank % 64) & 1;
}

static size_t in_words(const tly_rounds *r)
{
    return (r->worker_count + 63) / 64;
}

/* ---- life ---- */

tally_status tly_rounds_create(uint32_t node_id, uint32_t job, bool deterministic, const tly_log *log,
                               tly_rounds **rounds)
{
    tly_rounds *r = calloc(1, sizeof *r);
    if (!r)
        return tly_error_memory(sizeof *r, "a shard");
    r->node_id = node_id;
    r->job = job;
    r->deterministic = deterministic;
    r->log = log;
    r->settle_at = TLY_NEVER;
    tly_out_list_init(&r->out);
    tly_ring_init(&r->results, sizeof(result));
    *rounds = r;
    return TALLY_OK;
}

/* Let go of what the open round of a key holds. */
static void round_release(tly_rounds *r, key *k)
{
    tly_buf_put(k->sum);
    tly_buf_put(k->wide);
    k->sum = k->wide = NULL;
    for (uint32_t i = 0; k->held && i < r->worker_count; i++)
        tly_buf_put(k->held[i]);
    free(k->held);
    k->held = NULL;
}

/* Forget the epoch: keys, results, workers. */
static void forget(tly_rounds *r)
{
    key *k, *next;
    HASH_ITER(hh, r->keys, k, next)
    {
        HASH_DEL(r->keys, k);
        round_release(r, k);
        free(k);
    }
    for (size_t i = 0; i < r->results.count; i++)
        tly_buf_put(((result *)tly_ring_at(&r->results, i))->value);
    tly_ring_fini(&r->results);
    free(r->workers);
    free(r->by_id);
    r->workers = NULL;
    r->by_id = NULL;
    r->nseq = r->stable = r->stable_said = r->sent = 0;
    r->settle_at = TLY_NEVER;
    r->worker_count = r->left_count = 0;
    r->open = 0;
    r->ready = false;
}

void tly_rounds_destroy(tly_rounds *r)
{
    if (!r)
        return;
    forget(r);
    for (stored_hello *s = r->stored, *next; s; s = next) {
        next = s->next;
        free(s);
    }
    tly_out_list_fini(&r->out);
    free(r);
}

tly_out_list *tly_rounds_out(tly_rounds *r)
{
    return &r->out;
}

bool tly_rounds_failed(const tly_rounds *r)
{
    return r->failed;
}

void tly_rounds_stats_get(const tly_rounds *r, tly_rounds_stats *stats)
{
    *stats = (tly_rounds_stats){
        .keys = HASH_COUNT(r->keys),
        .open = r->open,
        .log_count = r->nseq - r->stable,
        .rounds = r->rounds_done,
        .dropped = r->dropped,
    };
}

/* ---- sending ---- */

/* Queue one message of records (and body, of which a reference is taken) to one worker. */
static void send_to(tly_rounds *r, const worker *w, const tly_record *records, uint32_t count, tly_buf *body)
{
    tly_out *out = tly_out_create(TLY_HEADER_BYTES + (size_t)count * TLY_RECORD_BYTES);
    if (!out) {
        r->failed = true;
        return;
    }
    tly_wire_put_header(out->head, &(tly_header){ .plane = TLY_PLANE_DATA,
                                                  .job = r->job,
                                                  .epoch = r->epoch,
                                                  .sender = r->node_id,
                                                  .session = w->session,
                                                  .stable = r->stable,
                                                  .record_count = count });
    for (uint32_t i = 0; i < count; i++)
        tly_wire_put_record(out->head + TLY_HEADER_BYTES + (size_t)i * TLY_RECORD_BYTES, &records[i]);
    out->peer = w->peer;
    out->body = body ? tly_buf_get(body) : NULL;
    tly_out_push(&r->out, out);
}

static bool is_listening(const worker *w)
{
    return w->heard && !w->left;
}

static const result *result_of(const tly_rounds *r, uint64_t seq)
{
    return tly_ring_at(&r->results, (size_t)(seq - r->stable - 1));
}

/* Send results from..to, to one worker or (NULL) to all. Large ones go alone, by reference; small
 * neighbours share a message and are copied into it. */
static void send_results(tly_rounds *r, uint64_t from, uint64_t to, const worker *only)
{
    tly_record records[TLY_BUNDLE_RECORD_COUNT];
    while (from <= to) {
        uint32_t count = 0;
        size_t total = 0;
        for (uint64_t seq = from; seq <= to && count < TLY_BUNDLE_RECORD_COUNT; seq++) {
            uint32_t len_bytes = result_of(r, seq)->record.len_bytes;
            if (count > 0 && (len_bytes > TLY_BUNDLE_RECORD_BYTES || total + len_bytes > TLY_BUNDLE_BODY_BYTES))
                break;
            records[count++] = result_of(r, seq)->record;
            total += len_bytes;
            if (len_bytes > TLY_BUNDLE_RECORD_BYTES)
                break;
        }
        tly_buf *body = NULL;
        if (count == 1 && result_of(r, from)->value) {
            body = tly_buf_get(result_of(r, from)->value);
        } else if (total > 0) {
            body = tly_buf_alloc(total);
            if (!body) {
                r->failed = true;
                return;
            }
            uint8_t *at = body->data;
            for (uint32_t i = 0; i < count; i++) {
                const result *res = result_of(r, from + i);
                if (res->value)
                    memcpy(at, res->value->data, res->record.len_bytes);
                at += res->record.len_bytes;
            }
        }
        for (uint32_t rank = 0; rank < r->worker_count; rank++)
            if (only ? &r->workers[rank] == only : is_listening(&r->workers[rank]))
                send_to(r, &r->workers[rank], records, count, body);
        tly_buf_put(body);
        from += count;
    }
}

/* Send what was published since the last time. */
static void flush_results(tly_rounds *r)
{
    if (r->sent < r->nseq) {
        uint64_t from = r->sent + 1;
        r->sent = r->nseq;
        send_results(r, from, r->nseq, NULL);
    }
}

/* ---- results ---- */

/* Set stable to the lowest acked of who is still there, and free what nobody can lack. */
static void settle(tly_rounds *r, tly_time now)
{
    uint64_t lowest = UINT64_MAX;
    for (uint32_t rank = 0; rank < r->worker_count; rank++)
        if (!r->workers[rank].left && r->workers[rank].acked < lowest)
            lowest = r->workers[rank].acked;
    if (lowest == UINT64_MAX)
        lowest = r->nseq;
    while (r->stable < lowest) {
        tly_buf_put(((result *)tly_ring_at(&r->results, 0))->value);
        tly_ring_pop(&r->results);
        r->stable++;
    }
    if (r->stable == r->nseq && r->stable > r->stable_said && r->settle_at == TLY_NEVER)
        r->settle_at = now + TLY_SETTLE_MS;
}

/* The open round of a key is over: publish its value or its error, and open the next. */
static void publish(tly_rounds *r, key *k)
{
    result res = { .record = k->first };
    res.record.type = TLY_RESULT;
    res.record.flags = 0;
    res.record.round = k->open;
    res.record.seq = r->nseq + 1;
    res.record.contributors = (uint16_t)k->in_count;
    res.record.tensor = (uint32_t)(k->id >> 32);
    res.record.partition = (uint32_t)k->id;
    if (k->error.reason) {
        res.record.flags = TLY_FLAG_ERROR;
        res.value = tly_buf_alloc(TLY_ROUND_ERROR_BYTES);
        if (res.value)
            tly_wire_put_round_error(res.value->data, &k->error);
        else
            r->failed = true;
    } else if (k->sum) {
        res.value = tly_buf_get(k->sum);
    }
    res.record.len_bytes = res.value ? (uint32_t)res.value->len_bytes : 0;
    if (tly_ring_push(&r->results, &res)) {
        r->nseq++;
    } else {
        tly_buf_put(res.value);
        r->failed = true;
    }
    round_release(r, k);
    k->error.reason = 0;
    if (k->in_count > 0)
        r->open--;
    k->open++;
    k->in_count = k->absorbed = 0;
    memset(k->in, 0, in_words(r) * sizeof k->in[0]);
    r->rounds_done++;
}

/* ---- contributions ---- */

static void round_error(key *k, uint32_t reason, uint32_t rank, uint32_t value_a, uint32_t value_b)
{
    if (!k->error.reason)
        k->error = (tly_round_error){ .reason = reason,
                                      .rank_a = k->first_rank,
                                      .rank_b = rank,
                                      .value_a = value_a,
                                      .value_b = value_b };
}

static uint32_t low32(uint64_t value)
{
    return value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

/* Does a contribution agree with the first one of its round, and with itself? */
static void check_contribution(const tly_rounds *r, key *k, uint32_t rank, const tly_record *push)
{
    const tly_record *first = &k->first;
    if (push->kind != first->kind)
        round_error(k, TLY_ROUND_KIND, rank, first->kind, push->kind);
    else if (push->kind == TLY_KIND_BROADCAST && push->root != first->root)
        round_error(k, TLY_ROUND_ROOT, rank, first->root, push->root);
    else if (push->dtype != first->dtype)
        round_error(k, TLY_ROUND_DTYPE, rank, first->dtype, push->dtype);
    else if (push->op != first->op)
        round_error(k, TLY_ROUND_OP, rank, first->op, push->op);
    else if (push->seq != first->seq)
        round_error(k, TLY_ROUND_LENGTH, rank, low32(first->seq), low32(push->seq));
    else if (push->kind == TLY_KIND_BROADCAST && push->root >= r->worker_count)
        round_error(k, TLY_ROUND_NO_ROOT, rank, push->root, push->root);
    else {
        bool has_payload = push->kind == TLY_KIND_PUSH_PULL || push->root == rank;
        uint64_t expected = has_payload ? push->seq : 0;
        if (push->len_bytes != expected || push->seq % tally_dtype_size((tally_dtype)push->dtype) != 0)
            round_error(k, TLY_ROUND_LENGTH, rank, low32(expected), push->len_bytes);
    }
}

/* Add one contribution. Takes the reference; a NULL value is an empty one. */
static void absorb(tly_rounds *r, key *k, tly_buf *value)
{
    const tly_record *f = &k->first;
    tally_dtype dtype = (tally_dtype)f->dtype;
    tally_op op = (tally_op)f->op;
    uint32_t n = r->worker_count;
    size_t count = value ? value->len_bytes / tally_dtype_size(dtype) : 0;
    uint32_t turn = k->absorbed++;
    bool last = k->absorbed == n;
    int divisor = op == TALLY_OP_AVERAGE && last ? (int)n : 1;

    if (!value)
        return;
    if (turn == 0) {
        k->sum = value;
        return;
    }
    if (!tly_reduce_is_wide(dtype, op, (int)n)) {
        tly_reduce(k->sum->data, value->data, count, dtype, op, divisor);
    } else if (turn == 1) {
        k->wide = tly_buf_alloc(count * tly_reduce_wide_size(dtype));
        if (k->wide)
            tly_reduce_widen(k->wide->data, k->sum->data, value->data, count, dtype);
        else
            round_error(k, TLY_ROUND_MEMORY, k->first_rank, low32(count * tly_reduce_wide_size(dtype)), 0);
        tly_buf_put(k->sum);
        k->sum = NULL;
    } else if (!last) {
        tly_reduce_wide_add(k->wide->data, value->data, count, dtype);
    } else {
        /* The last one's own memory takes the result. */
        tly_reduce_narrow(value->data, k->wide->data, value->data, count, dtype, divisor);
        k->sum = value;
        tly_buf_put(k->wide);
        k->wide = NULL;
        return;
    }
    tly_buf_put(value);
}

/* Deterministic: hold a contribution until all lower ranks' are in, then add all whose turn it is. */
static void absorb_in_order(tly_rounds *r, key *k, uint32_t rank, tly_buf *value)
{
    if (!k->held)
        k->held = calloc(r->worker_count, sizeof *k->held);
    if (!k->held) {
        round_error(k, TLY_ROUND_MEMORY, rank, low32(r->worker_count * sizeof *k->held), 0);
        tly_buf_put(value);
        return;
    }
    k->held[rank] = value;
    while (!k->error.reason && k->absorbed < r->worker_count && is_in(k, k->absorbed)) {
        tly_buf *next = k->held[k->absorbed];
        k->held[k->absorbed] = NULL;
        absorb(r, k, next);
    }
}

static key *key_find(tly_rounds *r, uint64_t id)
{
    key *k;
    HASH_FIND(hh, r->keys, &id, sizeof id, k);
    return k;
}

static key *key_make(tly_rounds *r, uint64_t id)
{
    key *k = calloc(1, sizeof *k + in_words(r) * sizeof k->in[0]);
    if (!k)
        return NULL;
    k->id = id;
    k->open = 1;
    HASH_ADD(hh, r->keys, id, sizeof id, k);
    if (!key_find(r, id)) { /* no memory for the table */
        free(k);
        return NULL;
    }
    return k;
}

/* The lowest rank that left without contributing to the open round; worker_count if there is none. */
static uint32_t leaver_missing(const tly_rounds *r, const key *k)
{
    uint32_t rank = 0;
    if (r->left_count == 0)
        return r->worker_count;
    while (rank < r->worker_count && !(r->workers[rank].left && !is_in(k, rank)))
        rank++;
    return rank;
}

static void publish_left(tly_rounds *r, key *k, uint32_t leaver)
{
    k->error = (tly_round_error){ .reason = TLY_ROUND_LEFT, .rank_a = leaver, .rank_b = leaver };
    publish(r, k);
}

/* One PUSH record of a worker; payload is where its bytes are in the body. */
static void push(tly_rounds *r, uint32_t rank, const tly_record *p, tly_buf *body, size_t offset)
{
    uint64_t id = key_id(p->tensor, p->partition);
    key *k = key_find(r, id);
    if (!k && !(k = key_make(r, id))) {
        r->failed = true;
        return;
    }
    if (p->round > k->open) {
        tly_log_warn(r->log, "tensor %u partition %u: worker %u pushed round %llu while round %llu is open; dropped",
                     p->tensor, p->partition, rank, (unsigned long long)p->round, (unsigned long long)k->open);
        return;
    }
    if (p->round < k->open || is_in(k, rank))
        return; /* came twice or late */
    if (k->in_count++ == 0) {
        k->first = *p;
        k->first_rank = rank;
        r->open++;
    }
    k->in[rank / 64] |= 1ull << (rank % 64);
    if (!k->error.reason)
        check_contribution(r, k, rank, p);

    tly_buf *value = NULL;
    if (!k->error.reason && p->len_bytes > 0) {
        value = p->len_bytes == body->len_bytes ? tly_buf_get(body) : tly_buf_slice(body, offset, p->len_bytes);
        if (!value)
            round_error(k, TLY_ROUND_MEMORY, rank, p->len_bytes, 0);
    }
    if (k->error.reason)
        tly_buf_put(value);
    else if (p->kind == TLY_KIND_BROADCAST)
        k->sum = value ? value : k->sum;
    else if (r->deterministic)
        absorb_in_order(r, k, rank, value);
    else
        absorb(r, k, value);
    if (k->error.reason)
        round_release(r, k);

    uint32_t leaver = leaver_missing(r, k);
    if (leaver < r->worker_count)
        publish_left(r, k, leaver);
    else if (k->in_count == r->worker_count)
        publish(r, k);
}

/* Tell who asks which workers have not pushed this round. */
static void answer_missing(tly_rounds *r, const worker *w, const tly_record *ask)
{
    key *k = key_find(r, key_id(ask->tensor, ask->partition));
    uint32_t count = 0, ranks[MISSING_MAX];
    bool open = k ? ask->round == k->open : ask->round == 1;
    for (uint32_t rank = 0; open && rank < r->worker_count && count < MISSING_MAX; rank++)
        if (!k || !is_in(k, rank))
            ranks[count++] = rank;
    tly_buf *body = count ? tly_buf_alloc(count * 4) : NULL;
    tly_record answer = *ask;
    answer.type = TLY_MISSING;
    answer.len_bytes = body ? count * 4 : 0;
    for (uint32_t i = 0; body && i < count; i++)
        for (int b = 0; b < 4; b++)
            ((uint8_t *)body->data)[4 * i + b] = (uint8_t)(ranks[i] >> (8 * b));
    send_to(r, w, &answer, 1, body);
    tly_buf_put(body);
}

/* ---- sessions ---- */

static void send_ready(tly_rounds *r, worker *w)
{
    uint32_t rank = (uint32_t)(w - r->workers), count = 1;
    tly_record *records = malloc((1 + (size_t)HASH_COUNT(r->keys)) * sizeof *records);
    if (!records) {
        r->failed = true;
        return;
    }
    records[0] = (tly_record){ .type = TLY_READY, .seq = r->nseq };
    for (key *k = r->keys; k; k = k->hh.next)
        records[count++] = (tly_record){ .type = TLY_KEY,
                                         .tensor = (uint32_t)(k->id >> 32),
                                         .partition = (uint32_t)k->id,
                                         .round = k->open - 1,
                                         .seq = k->open,
                                         .flags = is_in(k, rank) ? TLY_FLAG_IN : 0 };
    send_to(r, w, records, count, NULL);
    free(records);
}

static void become_ready_when_all_heard(tly_rounds *r)
{
    for (uint32_t rank = 0; rank < r->worker_count; rank++)
        if (!r->workers[rank].heard && !r->workers[rank].left)
            return;
    r->ready = true;
    tly_log_debug(r->log, "all workers heard %u", r->worker_count);
    for (uint32_t rank = 0; rank < r->worker_count; rank++)
        if (is_listening(&r->workers[rank]))
            send_ready(r, &r->workers[rank]);
}

void tly_rounds_left(tly_rounds *r, uint32_t rank, tly_time now)
{
    if (rank >= r->worker_count || r->workers[rank].left)
        return;
    r->workers[rank].left = true;
    r->left_count++;
    for (key *k = r->keys; k; k = k->hh.next)
        if (k->in_count > 0 && !is_in(k, rank))
            publish_left(r, k, rank);
    flush_results(r);
    settle(r, now);
    if (!r->ready)
        become_ready_when_all_heard(r); /* it may be the last that was waited for */
}

static void take_acked(tly_rounds *r, worker *w, uint64_t acked, tly_time now)
{
    if (acked <= w->acked || acked > r->nseq)
        return;
    bool was_lowest = w->acked == r->stable;
    w->acked = acked;
    if (was_lowest)
        settle(r, now);
}

static void hello(tly_rounds *r, worker *w, const tly_peer *peer, const tly_header *h, const tly_record *record,
                  tly_time now)
{
    if (h->session < w->session)
        return;
    w->peer = *peer;
    w->session = h->session;
    w->heard = true;
    w->count = w->count_said = 0;
    w->want = false;
    take_acked(r, w, h->acked, now);
    if (!r->ready) {
        become_ready_when_all_heard(r);
        return;
    }
    flush_results(r);
    send_ready(r, w);
    if (record->flags & TLY_FLAG_RESEND && w->acked < r->nseq)
        send_results(r, w->acked + 1, r->nseq, w);
}

/* A HELLO of an epoch that this server has not heard of yet: keep the newest of each worker. */
static void store_hello(tly_rounds *r, const tly_peer *peer, const tly_header *h, const void *frame,
                        size_t len_bytes)
{
    for (stored_hello **s = &r->stored; *s; s = &(*s)->next) {
        if ((*s)->sender != h->sender)
            continue;
        if ((*s)->epoch > h->epoch || ((*s)->epoch == h->epoch && (*s)->session > h->session))
            return;
        stored_hello *old = *s;
        *s = old->next;
        r->stored_count--;
        free(old);
        break;
    }
    stored_hello *s = r->stored_count < STORED_MAX ? malloc(sizeof *s + len_bytes) : NULL;
    if (!s)
        return; /* the worker's probe says it again */
    *s = (stored_hello){ .next = r->stored, .sender = h->sender, .session = h->session, .epoch = h->epoch,
                         .peer = *peer, .len_bytes = len_bytes };
    memcpy(s->frame, frame, len_bytes);
    r->stored = s;
    r->stored_count++;
}

static int compare_ids(const void *a, const void *b, void *arg)
{
    const worker *workers = arg;
    uint32_t x = workers[*(const uint32_t *)a].id, y = workers[*(const uint32_t *)b].id;
    return x < y ? -1 : x > y;
}

static worker *worker_of(const tly_rounds *r, uint32_t id)
{
    uint32_t low = 0, high = r->worker_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        worker *w = &r->workers[r->by_id[middle]];
        if (w->id == id)
            return w;
        if (w->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

tally_status tly_rounds_install(tly_rounds *r, uint64_t epoch, uint32_t worker_count, const uint32_t *worker_ids,
                                tly_time now)
{
    forget(r);
    r->workers = calloc(worker_count, sizeof *r->workers);
    r->by_id = calloc(worker_count, sizeof *r->by_id);
    if (!r->workers || !r->by_id)
        return tly_error_memory(worker_count * sizeof *r->workers, "the roster of a shard");
    r->epoch = epoch;
    r->worker_count = worker_count;
    for (uint32_t i = 0; i < worker_count; i++) {
        r->workers[i].id = worker_ids[i];
        r->by_id[i] = i;
    }
    qsort_r(r->by_id, worker_count, sizeof *r->by_id, compare_ids, r->workers);
    stored_hello *stored = r->stored;
    r->stored = NULL;
    r->stored_count = 0;
    while (stored) {
        stored_hello *s = stored;
        stored = s->next;
        tly_rounds_message(r, &s->peer, s->frame, s->len_bytes, NULL, now);
        free(s);
    }
    return TALLY_OK;
}

/* ---- events ---- */

static void drop(tly_rounds *r, const char *why, tly_time now)
{
    r->dropped++;
    if (now < r->next_drop_warning)
        return;
    r->next_drop_warning = now + DROP_WARNING_MS;
    tly_log_warn(r->log, "dropped %llu messages, the last because: %s",
                 (unsigned long long)(r->dropped - r->dropped_said), why);
    r->dropped_said = r->dropped;
}

/* The PUSH, ACK and ASK records of one message. */
static void data(tly_rounds *r, worker *w, const tly_header *h, const void *frame, tly_buf *body)
{
    size_t offset = 0;
    for (uint32_t i = 0; i < h->record_count; i++) {
        tly_record record;
        if (tly_wire_get_record(frame, i, &record) != TALLY_OK)
            return;
        if (record.type == TLY_PUSH) {
            if (h->session == w->session) {
                w->count++;
                w->want = record.flags & TLY_FLAG_WANT;
            }
            push(r, (uint32_t)(w - r->workers), &record, body, offset);
        } else if (record.type == TLY_ASK) {
            answer_missing(r, w, &record);
        }
        offset += record.len_bytes;
    }
}

void tly_rounds_message(tly_rounds *r, const tly_peer *peer, const void *frame, size_t len_bytes, tly_buf *body,
                        tly_time now)
{
    tly_header h;
    tly_record first = { 0 };
    if (tly_wire_check_data(frame, len_bytes, body ? body->len_bytes : 0, &h) != TALLY_OK) {
        drop(r, tly_error_text(), now);
        return;
    }
    if (h.job != r->job) {
        drop(r, "it belongs to another job", now);
        return;
    }
    if (h.record_count == 0 || h.epoch < r->epoch)
        return;
    tly_wire_get_record(frame, 0, &first);
    if (h.epoch > r->epoch) {
        if (first.type == TLY_HELLO)
            store_hello(r, peer, &h, frame, len_bytes);
        return;
    }
    worker *w = worker_of(r, h.sender);
    if (!w) {
        drop(r, "its sender is not in the roster", now);
        return;
    }
    if (w->left)
        return;
    if (first.type == TLY_HELLO) {
        hello(r, w, peer, &h, &first, now);
        return;
    }
    if (!r->ready || !w->heard) {
        drop(r, "it came before READY", now);
        return;
    }
    take_acked(r, w, h.acked, now);
    data(r, w, &h, frame, body);
    flush_results(r);
}

void tly_rounds_idle(tly_rounds *r)
{
    if (r->open == 0)
        return;
    for (uint32_t rank = 0; rank < r->worker_count; rank++) {
        worker *w = &r->workers[rank];
        if (!w->want || w->count == w->count_said || !is_listening(w))
            continue;
        w->count_said = w->count;
        send_to(r, w, &(tly_record){ .type = TLY_RECEIVED, .seq = w->count }, 1, NULL);
    }
}

tly_time tly_rounds_tick(tly_rounds *r, tly_time now)
{
    if (now < r->settle_at)
        return r->settle_at;
    r->settle_at = TLY_NEVER;
    if (r->stable == r->nseq && r->stable > r->stable_said) {
        r->stable_said = r->stable;
        for (uint32_t rank = 0; rank < r->worker_count; rank++)
            if (is_listening(&r->workers[rank]))
                send_to(r, &r->workers[rank], &(tly_record){ .type = TLY_STABLE }, 1, NULL);
    }
    return r->settle_at;
}
