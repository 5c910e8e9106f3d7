/* wire.h - bytes on the network: the header, the records of the data plane, and the reader and
 * writer that the control plane (control.h) is made of. Pure functions; all fields little-endian.
 *
 * Every message begins with the header. On the data plane (worker and shard) record_count records
 * follow in the same frame, and one body frame holds the payloads of those records one after the
 * other, without gaps. On the control plane (node and scheduler) the rest of the frame belongs to
 * control.h. Magic and version stand first and never move, so that every version can refuse every
 * other one in words. Decoders check before they read; a peer's bytes never trip an assertion. */
#ifndef TLY_WIRE_H
#define TLY_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/status.h"

#define TLY_WIRE_MAGIC 0x594c4154u /* "TALY" */
#define TLY_WIRE_VERSION 1
#define TLY_HEADER_BYTES 48
#define TLY_RECORD_BYTES 48

typedef enum tly_plane { TLY_PLANE_CONTROL = 1, TLY_PLANE_DATA = 2 } tly_plane;

typedef struct tly_header {
    uint16_t plane;    /* tly_plane */
    uint32_t job;      /* drawn by the scheduler at its start; 0 before a node knows it */
    uint64_t epoch;    /* scheduler start counter << 32 | counter; 0 before a node has one */
    uint32_t sender;   /* node id; 0: the scheduler, or a node that has none yet */
    uint32_t session;  /* n: the number of the worker's HELLO to this shard in this epoch */
    uint64_t acked;    /* worker: has all RESULTs of this shard up to this seq */
    uint64_t stable;   /* shard: the lowest acked of the roster */
    uint32_t record_count;
} tly_header;

typedef enum tly_record_type {
    TLY_HELLO = 1,    /* worker: flags RESEND; one HAVE record per known key follows */
    TLY_HAVE = 2,     /* worker: round = the highest round of the key whose RESULT it has */
    TLY_PUSH = 3,     /* worker: contribution to a round; seq = the partition's length in bytes, which
                         is also the payload's, but for a broadcast's non-roots, who send none */
    TLY_ACK = 4,      /* worker: nothing but the header's acked */
    TLY_ASK = 5,      /* worker: who is missing in this round? */
    TLY_READY = 6,    /* shard: seq = nseq; one KEY record per known key follows */
    TLY_KEY = 7,      /* shard: round = F, seq = open, flags RELAY, IN */
    TLY_RECEIVED = 8, /* shard: seq = count of PUSH records of this session that arrived */
    TLY_RESULT = 9,   /* shard: seq, contributors, payload; flags ERROR: the payload is a tly_round_error */
    TLY_STABLE = 10,  /* shard: nothing but the header's stable */
    TLY_MISSING = 11, /* shard: answer to ASK; payload: uint32 ranks that have not pushed; 0 if none */
    TLY_RECORD_TYPE_END
} tly_record_type;

typedef enum tly_kind { TLY_KIND_PUSH_PULL = 0, TLY_KIND_BROADCAST = 1, TLY_KIND_END } tly_kind;

#define TLY_FLAG_RESEND 1u
#define TLY_FLAG_RELAY 2u
#define TLY_FLAG_IN 4u
#define TLY_FLAG_ERROR 8u
#define TLY_FLAG_WANT 16u /* PUSH: the next one may not fit the sender's credit, so say RECEIVED when idle */

/* Small tensors travel in bundles: records of at most RECORD bytes, BODY bytes and COUNT of them. */
#define TLY_BUNDLE_RECORD_BYTES 16384
#define TLY_BUNDLE_BODY_BYTES 65536
#define TLY_BUNDLE_RECORD_COUNT 256

/* What was received is acknowledged, and what became stable is said, by a message of its own only
 * after this time or this many bytes: the next PUSH or RESULT usually brings it along. */
#define TLY_SETTLE_MS 20
#define TLY_SETTLE_BYTES (4u << 20)

typedef struct tly_record {
    uint8_t type;          /* tly_record_type */
    uint8_t kind;          /* tly_kind */
    uint8_t dtype;         /* tally_dtype */
    uint8_t op;            /* tally_op */
    uint8_t codec;         /* 0: as it is */
    uint8_t flags;
    uint16_t contributors; /* RESULT: how many workers are in it */
    uint32_t tensor;
    uint32_t partition;
    uint64_t round;        /* counts the exchanges of this key, from 1 */
    uint64_t seq;
    uint32_t root;         /* broadcast: the root's rank */
    uint32_t len_bytes;    /* of this record's payload in the body */
} tly_record;              /* 40 bytes of fields and 8 spare bytes on the wire, zero */

void tly_wire_put_header(uint8_t out[TLY_HEADER_BYTES], const tly_header *header);
void tly_wire_put_record(uint8_t out[TLY_RECORD_BYTES], const tly_record *record);

/* Check and read a header.
 * Returns: TALLY_OK
 *          TALLY_EVERSION  our magic and another version; the sentence names both
 *          TALLY_EPROTO    too short, another magic or plane, or record_count does not fit the frame
 *                          (data plane: the frame is exactly the header and its records) */
tally_status tly_wire_get_header(const void *frame, size_t len_bytes, tly_header *header);

/* Read record index of a frame whose header was accepted.
 * Returns: TALLY_OK, TALLY_EPROTO (type, kind, dtype, op or codec out of range) */
tally_status tly_wire_get_record(const void *frame, size_t index, tly_record *record);

/* Check a whole data message: header, every record, and that the payload lengths add up to the body.
 * body_len 0 also stands for "no body frame". */
tally_status tly_wire_check_data(const void *frame, size_t len_bytes, size_t body_len_bytes,
                                 tly_header *header);

/* Why a round failed, as every worker must word it alike. 24 bytes on the wire. */
typedef struct tly_round_error {
    uint32_t reason;  /* tly_round_error_reason */
    uint32_t rank_a, rank_b;
    uint32_t value_a, value_b;
    uint32_t spare;
} tly_round_error;

typedef enum tly_round_error_reason {
    TLY_ROUND_KIND = 1,   /* rank_a push_pulls (0) or broadcasts (1): value_a; rank_b: value_b */
    TLY_ROUND_ROOT = 2,
    TLY_ROUND_DTYPE = 3,
    TLY_ROUND_OP = 4,
    TLY_ROUND_LENGTH = 5, /* bytes of the partition */
    TLY_ROUND_NO_ROOT = 6, /* a broadcast whose root value_a is not in the roster */
    TLY_ROUND_LEFT = 7,    /* worker rank_a left the job before it contributed */
    TLY_ROUND_MEMORY = 8   /* the server had no memory for value_a bytes */
} tly_round_error_reason;

#define TLY_ROUND_ERROR_BYTES 24
void tly_wire_put_round_error(uint8_t out[TLY_ROUND_ERROR_BYTES], const tly_round_error *error);
tally_status tly_wire_get_round_error(const void *payload, size_t len_bytes, tly_round_error *error);

/* A server names its connections by what the transport calls them. */
typedef struct tly_peer {
    uint8_t len;
    uint8_t id[31];
} tly_peer;

/* A message that a core wants sent; the shell sends, then frees it with tly_out_free. */
typedef struct tly_out {
    struct tly_out *next;
    tly_peer peer;     /* scheduler and shard: to whom */
    uint32_t link;     /* worker: over which link */
    tly_buf *body;     /* one reference, or NULL */
    size_t head_len_bytes;
    uint8_t head[];
} tly_out;

/* Messages in the order in which they are to be sent. */
typedef struct tly_out_list {
    tly_out *first, **last; /* last is set by tly_out_list_init */
} tly_out_list;

tly_out *tly_out_create(size_t head_len_bytes); /* NULL when memory is short; the head is zero */
void tly_out_free(tly_out *out);
void tly_out_list_init(tly_out_list *list);
void tly_out_push(tly_out_list *list, tly_out *out);
tly_out *tly_out_pop(tly_out_list *list); /* NULL when empty */
void tly_out_list_fini(tly_out_list *list);

/* Appends values to a growing block. After a failed allocation nothing more is written and failed
 * is set. fini frees the block; tly_writer_init gives an empty one. */
typedef struct tly_writer {
    uint8_t *data;
    size_t len_bytes, room_bytes;
    bool failed;
} tly_writer;

void tly_writer_init(tly_writer *w);
void tly_writer_fini(tly_writer *w);
void tly_write_bytes(tly_writer *w, const void *data, size_t len_bytes);
void tly_write_u8(tly_writer *w, uint8_t value);
void tly_write_u16(tly_writer *w, uint16_t value);
void tly_write_u32(tly_writer *w, uint32_t value);
void tly_write_u64(tly_writer *w, uint64_t value);
void tly_write_string(tly_writer *w, const char *text); /* u32 length, bytes, a final 0 */

/* Reads values in turn. Past the end or after a malformed string it gives 0 or "" and failed is
 * set: check once, at the end. Strings point into the frame. */
typedef struct tly_reader {
    const uint8_t *at, *end;
    bool failed;
} tly_reader;

void tly_reader_init(tly_reader *r, const void *data, size_t len_bytes);
const void *tly_read_bytes(tly_reader *r, size_t len_bytes); /* NULL when there are fewer */
uint8_t tly_read_u8(tly_reader *r);
uint16_t tly_read_u16(tly_reader *r);
uint32_t tly_read_u32(tly_reader *r);
uint64_t tly_read_u64(tly_reader *r);
const char *tly_read_string(tly_reader *r);

#endif
