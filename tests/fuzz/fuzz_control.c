/* The decoder of the control plane and the scheduler's roster behind it: three peers say anything. What was
 * decoded can be encoded, and comes back the same; what the roster answers can be decoded. */
#include <stdlib.h>
#include <string.h>

#include "scheduler/roster.h"
#include "tests/fuzz/fuzz.h"

#define JOB 7

/* Header and type are the script's numbers, the rest its bytes; by its first byte all of it raw. */
static uint8_t *frame_read(fuzz_input *in, size_t *len_bytes)
{
    uint8_t how = fuzz_u8(in);
    size_t rest_bytes = fuzz_u16(in) % 1024;
    if (how == 0xff) {
        *len_bytes = rest_bytes;
        return fuzz_block(in, len_bytes);
    }
    tly_header header = { .plane = TLY_PLANE_CONTROL,
                          .job = how & 0x80 ? fuzz_u8(in) : JOB,
                          .epoch = (uint64_t)1 << 32 | (how & 0x40 ? fuzz_u8(in) : 1),
                          .sender = fuzz_u8(in) % 8 };
    uint8_t *rest = fuzz_block(in, &rest_bytes);
    uint8_t *frame = malloc(TLY_HEADER_BYTES + 2 + rest_bytes);
    FUZZ_CHECK(frame);
    tly_wire_put_header(frame, &header);
    frame[TLY_HEADER_BYTES] = how % 16;
    frame[TLY_HEADER_BYTES + 1] = 0;
    memcpy(frame + TLY_HEADER_BYTES + 2, rest, rest_bytes);
    free(rest);
    *len_bytes = TLY_HEADER_BYTES + 2 + rest_bytes;
    return frame;
}

static void check_round_trip(const tly_ctl *message)
{
    tly_writer first, second;
    tly_ctl again;
    tly_writer_init(&first);
    tly_writer_init(&second);
    FUZZ_CHECK(tly_ctl_encode(message, &first) == TALLY_OK);
    FUZZ_CHECK(tly_ctl_decode(first.data, first.len_bytes, &again) == TALLY_OK);
    FUZZ_CHECK(tly_ctl_encode(&again, &second) == TALLY_OK);
    FUZZ_CHECK(first.len_bytes == second.len_bytes && memcmp(first.data, second.data, first.len_bytes) == 0);
    tly_ctl_fini(&again);
    tly_writer_fini(&first);
    tly_writer_fini(&second);
}

static void check_out(tly_roster *roster)
{
    for (tly_out *out; (out = tly_out_pop(tly_roster_out(roster)));) {
        tly_ctl message;
        FUZZ_CHECK(!out->body);
        FUZZ_CHECK(tly_ctl_decode(out->head, out->head_len_bytes, &message) == TALLY_OK);
        tly_ctl_fini(&message);
        tly_out_free(out);
    }
}

static void tick(tly_roster *roster, fuzz_input *in, tly_time *now)
{
    *now += fuzz_u16(in) % 2000;
    tly_roster_tick(roster, *now);
}

/* A sound REGISTER of one of a few processes, so that a script can start the job. */
static void registers(tly_roster *roster, fuzz_input *in, tly_time now)
{
    static const char *const endpoints[] = { "tcp://10.0.0.1:1", "tcp://10.0.0.1:2" };
    uint8_t who = fuzz_u8(in), told = fuzz_u8(in);
    bool server = (who & 3) == 0;
    tly_peer peer = { .len = 1, .id = { who & 3 } };
    const tly_ctl message = {
        .type = TLY_CTL_REGISTER,
        .job = told & 1 ? JOB : 0,
        .reg = { .role = server ? TLY_ROLE_SERVER : TLY_ROLE_WORKER,
                 .nonce = 1 + (who & 7),
                 .id = told >> 1 & 3,
                 .rank = server ? 0 : (who & 3) - 1u,
                 .num_worker = told & 0x80 ? 3 : 2,
                 .num_server = 1,
                 .local_size = 1,
                 .placed_version = told >> 4 & 3,
                 .host = "host",
                 .endpoint_count = server ? 2 : 0,
                 .endpoints = endpoints },
    };
    tly_roster_message(roster, &peer, &message, now);
}

static void declares(tly_roster *roster, fuzz_input *in, tly_time now)
{
    static const char *const names[] = { "a", "b", "c", "" };
    uint8_t who = fuzz_u8(in), what = fuzz_u8(in);
    tly_peer peer = { .len = 1, .id = { who & 3 } };
    const tly_declaration item = { names[who >> 2 & 3], what & 15, what >> 4 & 7, fuzz_u16(in),
                                   what & 0x80 ? 4096 : 8192 };
    const tly_ctl message = { .type = TLY_CTL_DECLARE, .job = JOB, .epoch = (uint64_t)1 << 32 | 1,
                              .sender = who >> 4 & 3, .declare = { 1, &item } };
    tly_roster_message(roster, &peer, &message, now);
}

static void step(tly_roster *roster, fuzz_input *in, tly_time *now)
{
    uint8_t what = fuzz_u8(in);
    if (what % 8 == 0) {
        tick(roster, in, now);
        return;
    }
    if (what % 8 == 1) {
        registers(roster, in, *now);
        return;
    }
    if (what % 8 == 2) {
        declares(roster, in, *now);
        return;
    }
    tly_peer peer = { .len = 1, .id = { what >> 3 & 3 } };
    tly_ctl message;
    size_t len_bytes;
    uint8_t *frame = frame_read(in, &len_bytes);
    if (tly_ctl_decode(frame, len_bytes, &message) == TALLY_OK) {
        check_round_trip(&message);
        tly_roster_message(roster, &peer, &message, *now);
        tly_ctl_fini(&message);
    }
    free(frame);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
    fuzz_input in = { data, data + len_bytes };
    const tly_config config = { .role = TLY_ROLE_SCHEDULER, .num_worker = 2, .num_server = 1, .local_size = 1,
                                .partition_bytes = 4096, .death_limit_ms = 10000, .start_limit_ms = 100000,
                                .stall_warn_ms = 10000, .stall_limit_ms = 600000, .close_limit_ms = 5000 };
    tly_time now = 1000;
    tly_roster *roster;
    FUZZ_CHECK(tly_roster_create(&config, &fuzz_log, JOB, 1, now, &roster) == TALLY_OK);
    while (in.at < in.end) {
        step(roster, &in, &now);
        check_out(roster);
    }
    tly_roster_destroy(roster);
    return 0;
}
