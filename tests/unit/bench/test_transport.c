#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "bench/transport.h"

static void a_block_that_changed_is_found(void **state)
{
    (void)state;
    unsigned char *block = malloc(TLY_BLOCK_BYTES);
    tly_block_fill(block);
    assert_int_equal(tly_block_check(block, TLY_BLOCK_BYTES), TALLY_OK);
    assert_int_equal(tly_block_check(block, TLY_BLOCK_BYTES - 1), TALLY_EFAILED);
    assert_string_equal(tly_error_text(), "a block of 1048575 bytes came, expected 1048576");
    block[252]++;
    assert_int_equal(tly_block_check(block, TLY_BLOCK_BYTES), TALLY_EFAILED);
    assert_string_equal(tly_error_text(), "byte 252 of a block is 2, expected 1");
    free(block);
}

/* Blocks one way, then both ways, then trips. */
static tally_status use(tly_pair_side *side, void *arg)
{
    const tly_transport *transport = arg;
    void *link = calloc(1, transport->link_bytes);
    bool asks = side->index == 1;
    tally_status status = transport->open(side, link);
    if (!status)
        status = transport->move(link, asks ? 3 : 0, asks ? 0 : 3);
    if (!status)
        status = transport->move(link, 2, 2);
    for (int i = 0; i < 5 && !status; i++)
        status = asks ? transport->ask(link) : transport->answer(link);
    if (!status)
        status = tly_pair_meet(side);
    transport->close(link);
    free(link);
    return status;
}

static void assert_works(const tly_transport *transport)
{
    tally_status status = tly_pair_run(use, (void *)transport, NULL, 0);
    assert_string_equal(status ? tly_error_text() : "", "");
}

static void blocks_and_trips_arrive_over_tcp(void **state)
{
    (void)state;
    assert_works(&tly_transport_tcp);
}

static void blocks_and_trips_arrive_over_zeromq(void **state)
{
    (void)state;
    assert_works(&tly_transport_zmq);
}

static void a_link_that_was_never_opened_can_be_closed(void **state)
{
    (void)state;
    const tly_transport *const all[] = { &tly_transport_tcp, &tly_transport_zmq };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        void *link = calloc(1, all[i]->link_bytes);
        all[i]->close(link);
        free(link);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_block_that_changed_is_found),
        cmocka_unit_test(blocks_and_trips_arrive_over_tcp),
        cmocka_unit_test(blocks_and_trips_arrive_over_zeromq),
        cmocka_unit_test(a_link_that_was_never_opened_can_be_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
