/* seats.h - the places of a job and who has them: one for each DMLC_WORKER_ID, one for each server in
 * the order of registration. Decides who may sit down, and words why not. Part of the roster's core:
 * pure, one owner thread. Before the start of the job a silent node loses its seat; from then on
 * seats are for good. */
#ifndef TLY_SEATS_H
#define TLY_SEATS_H

#include "common/address.h"
#include "common/clock.h"
#include "common/control.h"

/* An allocation that fails inside uthash leaves the item out, and says so by its hh.tbl. */
#define HASH_NONFATAL_OOM 1
#include <uthash.h>

typedef struct tly_endpoint tly_endpoint;

typedef struct tly_member {
    UT_hash_handle hh; /* by id */
    uint32_t id;
    uint32_t rank; /* a server's is given at the start */
    tly_role role;
    uint64_t nonce;
    uint32_t local_size;
    tly_peer peer;  /* of its last message: where answers go */
    tly_peer rival; /* of the newest process that waits to know whether this one died; len 0: none */
    tly_time heard;
    bool left;
    uint64_t arrived;      /* the last barrier that it has reached */
    uint64_t beat_version; /* of the placement table, in its last beat */
    uint32_t endpoint_count;
    tly_endpoint *endpoints;
    const char **endpoint_names; /* the same, as the announcement has them */
    char host[];
} tly_member;

struct tly_endpoint {
    UT_hash_handle hh; /* by name */
    tly_member *owner;
    char name[TLY_ENDPOINT_MAX];
};

typedef struct tly_seats {
    const tly_config *config;
    const tly_log *log;
    bool started;         /* the owner sets it when everybody is there */
    tly_member **workers; /* by rank; num_worker places, NULL while one is missing */
    tly_member **servers; /* num_server places, the first server_count taken */
    uint32_t worker_count, server_count;
    tly_member *by_id;
    tly_endpoint *endpoints;
    uint32_t next_id;
} tly_seats;

/* config and log must outlive the seats. Returns: TALLY_OK, TALLY_ENOMEM */
tally_status tly_seats_init(tly_seats *seats, const tly_config *config, const tly_log *log);
void tly_seats_fini(tly_seats *seats);

/* What a process that is not seated finds. */
typedef enum tly_verdict {
    TLY_ADMITTED, /* there is a seat; tly_seats_take gives it */
    TLY_REFUSED,  /* why says why not */
    TLY_LATER     /* that shows when the silent holder of the place beats or is dead; why says so */
} tly_verdict;

/* May the sender of this REGISTER sit down? Frees the seat of a silent node that is in its way. */
tly_verdict tly_seats_admit(tly_seats *seats, const tly_ctl *message, tly_time now,
                            char why[TLY_SENTENCE_MAX]);

/* Seat a node that was admitted. NULL when memory is short: nothing has changed. */
tly_member *tly_seats_take(tly_seats *seats, const tly_peer *peer, const tly_ctl *message, tly_time now);

/* Before the start: forget a node. */
void tly_seats_free(tly_seats *seats, tly_member *member);

bool tly_seats_full(const tly_seats *seats);

/* The number of seats, and one of them: workers by rank, then servers; NULL where nobody is. */
uint32_t tly_seats_count(const tly_seats *seats);
tly_member *tly_seats_at(const tly_seats *seats, uint32_t index);

/* Find a node by the nonce of its REGISTER, by the id that it was given, by its connection. */
tly_member *tly_seats_by_nonce(const tly_seats *seats, const tly_ctl *message);
tly_member *tly_seats_by_id(const tly_seats *seats, uint32_t id);
tly_member *tly_seats_by_peer(const tly_seats *seats, const tly_peer *peer);

/* Has this node been heard so lately (two and a half beats) that it counts as alive? */
bool tly_seats_beating(const tly_seats *seats, const tly_member *member, tly_time now);

/* Before the start: after how long a silence a node loses its seat. */
int tly_seats_patience_ms(const tly_seats *seats);

/* Append formatted text within room bytes. */
void tly_append(char *text, size_t room, const char *format, ...) TLY_PRINTF(3, 4);

/* Append "worker 1" or "workers 1, 2, 5 and 3 more": those ranks whose worker (NULL: none) fits.
 * Returns: how many there are. */
uint32_t tly_seats_append_ranks(const tly_seats *seats, char *text, size_t room,
                                bool (*fits)(const tly_member *worker, const void *arg), const void *arg);

/* "waiting for 1 of 2 workers (worker 1) and 1 of 2 servers" */
void tly_seats_waiting(const tly_seats *seats, char text[TLY_SENTENCE_MAX]);

/* The same when the start limit has passed: "only 1 of 2 workers and 2 of 2 servers came within
 * 120 s (TALLY_START_LIMIT_MS); missing: worker 1" */
void tly_seats_too_few(const tly_seats *seats, char text[TLY_SENTENCE_MAX]);

#endif
