#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "scheduler/placement.h"

#define SERVERS 8
#define MIB 1048576u

static tly_placement *create(uint32_t servers, const uint32_t *shards, const double *weights)
{
    tly_placement *p;
    assert_int_equal(tly_placement_create(servers, shards, weights, &p), TALLY_OK);
    return p;
}

static tly_declaration f32(const char *name, uint64_t count)
{
    return (tly_declaration){ .name = name, .dtype = TALLY_DTYPE_F32, .op = TALLY_OP_SUM, .count = count,
                              .partition_bytes = MIB };
}

static void declare(tly_placement *p, uint32_t rank, tly_declaration d)
{
    assert_int_equal(tly_placement_declare(p, rank, &d), TALLY_OK);
}

/* ---- what models are made of: element counts of their tensors, first layer first ---- */

typedef struct shapes {
    uint64_t counts[200];
    int count;
} shapes;

static void add(shapes *s, uint64_t count)
{
    s->counts[s->count++] = count;
}

static uint64_t total(const shapes *s)
{
    uint64_t sum = 0;
    for (int i = 0; i < s->count; i++)
        sum += s->counts[i];
    return sum;
}

/* 13 convolutions 3x3 and 3 fully connected layers, each with a bias. */
static shapes vgg16(void)
{
    static const int conv[] = { 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512 };
    static const int full[] = { 4096, 4096, 1000 };
    shapes s = { .count = 0 };
    uint64_t in = 3;
    for (int i = 0; i < 13; i++) {
        add(&s, 9 * in * (uint64_t)conv[i]);
        add(&s, (uint64_t)conv[i]);
        in = (uint64_t)conv[i];
    }
    in *= 7 * 7;
    for (int i = 0; i < 3; i++) {
        add(&s, in * (uint64_t)full[i]);
        add(&s, (uint64_t)full[i]);
        in = (uint64_t)full[i];
    }
    return s;
}

static void add_conv_bn(shapes *s, uint64_t in, uint64_t out, uint64_t kernel)
{
    add(s, kernel * kernel * in * out);
    add(s, out);
    add(s, out);
}

/* Bottleneck blocks 3, 4, 6, 3; every convolution has a batch norm with scale and shift. */
static shapes resnet50(void)
{
    static const int blocks[] = { 3, 4, 6, 3 };
    shapes s = { .count = 0 };
    add_conv_bn(&s, 3, 64, 7);
    uint64_t in = 64;
    for (int stage = 0; stage < 4; stage++) {
        uint64_t width = 64u << stage;
        for (int block = 0; block < blocks[stage]; block++) {
            add_conv_bn(&s, in, width, 1);
            add_conv_bn(&s, width, width, 3);
            add_conv_bn(&s, width, 4 * width, 1);
            if (block == 0)
                add_conv_bn(&s, in, 4 * width, 1);
            in = 4 * width;
        }
    }
    add(&s, 2048 * 1000);
    add(&s, 1000);
    return s;
}

/* max / mean of the servers' bytes when the tensors are declared in this order */
static double imbalance(const shapes *s, const int *order)
{
    uint32_t shards[SERVERS];
    for (int i = 0; i < SERVERS; i++)
        shards[i] = 2;
    tly_placement *p = create(SERVERS, shards, NULL);
    for (int i = 0; i < s->count; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%d", order[i]);
        declare(p, 0, f32(name, s->counts[order[i]]));
    }
    uint64_t sum = 0, most = 0;
    for (uint32_t i = 0; i < SERVERS; i++) {
        uint64_t bytes = tly_placement_bytes(p, i);
        sum += bytes;
        most = bytes > most ? bytes : most;
    }
    assert_true(sum == 4 * total(s));
    tly_placement_destroy(p);
    return (double)most * SERVERS / (double)sum;
}

static void check_balance(const shapes *s, double limit)
{
    int order[200];
    for (int i = 0; i < s->count; i++)
        order[i] = i;
    assert_true(imbalance(s, order) <= limit);
    for (int i = 0; i < s->count; i++)
        order[i] = s->count - 1 - i;
    assert_true(imbalance(s, order) <= limit);
    uint32_t random = 12345;
    for (int turn = 0; turn < 20; turn++) {
        for (int i = s->count - 1; i > 0; i--) {
            random = random * 1664525u + 1013904223u;
            int j = (int)((random >> 8) % (uint32_t)(i + 1));
            int moved = order[i];
            order[i] = order[j];
            order[j] = moved;
        }
        assert_true(imbalance(s, order) <= limit);
    }
}

static void vgg16_loads_8_servers_within_5_percent_of_the_mean(void **state)
{
    (void)state;
    shapes s = vgg16();
    assert_int_equal(s.count, 32);
    assert_true(total(&s) == 138357544);
    check_balance(&s, 1.05);
}

static void resnet50_loads_8_servers_within_10_percent_of_the_mean(void **state)
{
    (void)state;
    shapes s = resnet50();
    assert_int_equal(s.count, 161);
    assert_true(total(&s) == 25557032);
    check_balance(&s, 1.10);
}

static void each_partition_goes_to_the_least_loaded_server_and_of_its_shards(void **state)
{
    (void)state;
    tly_placement *p = create(2, (uint32_t[]){ 2, 1 }, NULL);
    declare(p, 0, f32("a", 5 * MIB / 4));
    const tly_placed *a = tly_placement_entry(p, 0);
    assert_int_equal(a->place_count, 5);
    const tly_place expected[] = { { 0, 0 }, { 1, 0 }, { 0, 1 }, { 1, 0 }, { 0, 0 } };
    assert_memory_equal(a->places, expected, sizeof expected);
    assert_true(tly_placement_bytes(p, 0) == 3 * MIB);
    assert_true(tly_placement_bytes(p, 1) == 2 * MIB);
    tly_placement_destroy(p);
}

static void a_server_of_twice_the_weight_gets_twice_the_bytes(void **state)
{
    (void)state;
    tly_placement *p = create(3, (uint32_t[]){ 1, 1, 1 }, (double[]){ 1.0, 2.0, 1.0 });
    declare(p, 0, f32("a", 400 * (MIB / 4)));
    assert_true(tly_placement_bytes(p, 0) == 100 * (uint64_t)MIB);
    assert_true(tly_placement_bytes(p, 1) == 200 * (uint64_t)MIB);
    assert_true(tly_placement_bytes(p, 2) == 100 * (uint64_t)MIB);
    tly_placement_destroy(p);
}

static void a_tensor_without_elements_has_one_partition(void **state)
{
    (void)state;
    tly_placement *p = create(1, (uint32_t[]){ 1 }, NULL);
    declare(p, 0, f32("empty", 0));
    assert_int_equal(tly_placement_entry(p, 0)->place_count, 1);
    assert_true(tly_placement_bytes(p, 0) == 0);
    tly_placement_destroy(p);
}

static void an_agreeing_declaration_adds_nothing_whatever_its_partition_bytes(void **state)
{
    (void)state;
    tly_placement *p = create(1, (uint32_t[]){ 1 }, NULL);
    declare(p, 3, f32("x", 10));
    declare(p, 1, f32("x", 10));
    tly_declaration other = f32("x", 10);
    other.partition_bytes = 4096;
    declare(p, 0, other);
    assert_int_equal(tly_placement_version(p), 1);
    const tly_placed *x = tly_placement_entry(p, 0);
    assert_int_equal(x->tensor, 0);
    assert_int_equal(x->first_rank, 3);
    assert_int_equal(x->declaration.partition_bytes, MIB);
    assert_null(x->conflict);
    tly_placement_destroy(p);
}

static void a_disagreeing_declaration_is_worded_once_with_both_values_and_both_workers(void **state)
{
    (void)state;
    tly_placement *p = create(1, (uint32_t[]){ 1 }, NULL);
    declare(p, 0, f32("x", 10));
    declare(p, 0, f32("y", 1));
    declare(p, 1, f32("x", 11));
    declare(p, 2, f32("x", 12));
    declare(p, 2, f32("x", 10));
    assert_int_equal(tly_placement_version(p), 3);
    const tly_placed *conflict = tly_placement_entry(p, 2);
    assert_int_equal(conflict->tensor, 0);
    assert_string_equal(conflict->declaration.name, "x");
    assert_string_equal(conflict->conflict,
                        "tensor \"x\": worker 0 declared float32 x 10 (sum), "
                        "worker 1 declared float32 x 11 (sum)");
    tly_declaration y = f32("y", 1);
    y.dtype = TALLY_DTYPE_I64;
    y.op = TALLY_OP_MAX;
    declare(p, 1, y);
    assert_string_equal(tly_placement_entry(p, 3)->conflict,
                        "tensor \"y\": worker 0 declared float32 x 1 (sum), "
                        "worker 1 declared int64 x 1 (max)");
    tly_placement_destroy(p);
}

static void a_long_name_is_cut_in_the_sentence_so_that_the_values_stay(void **state)
{
    (void)state;
    tly_placement *p = create(1, (uint32_t[]){ 1 }, NULL);
    char name[TLY_NAME_MAX];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    declare(p, 0, f32(name, 10));
    declare(p, 1, f32(name, 11));
    const tly_placed *conflict = tly_placement_entry(p, 1);
    assert_non_null(strstr(conflict->conflict, "nnn...\": worker 0 declared float32 x 10 (sum), worker 1 "));
    assert_true(strlen(conflict->conflict) < TLY_SENTENCE_MAX - 1);
    assert_string_equal(conflict->declaration.name, name);
    tly_placement_destroy(p);
}

static void what_no_worker_of_ours_would_say_is_refused_and_changes_nothing(void **state)
{
    (void)state;
    tly_placement *p = create(1, (uint32_t[]){ 1 }, NULL);
    char long_name[TLY_NAME_MAX + 1];
    memset(long_name, 'n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    tly_declaration bad[] = { f32("", 1),  f32(long_name, 1), f32("d", 1),
                              f32("o", 1), f32("s", 1),       f32("b", 1) };
    bad[2].dtype = TALLY_DTYPE_COUNT;
    bad[3].op = TALLY_OP_COUNT;
    bad[4].partition_bytes = 4095;
    bad[5].partition_bytes = (1u << 30) + 1;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(tly_placement_declare(p, 0, &bad[i]), TALLY_EINVAL);
    assert_int_equal(tly_placement_version(p), 0);
    tly_placement_destroy(p);
}

static void a_tensor_of_too_many_partitions_is_known_as_unusable(void **state)
{
    (void)state;
    tly_placement *p = create(1, (uint32_t[]){ 1 }, NULL);
    tly_declaration most = f32("most", 1024ull << 20), more = f32("more", (1024ull << 20) + 1);
    tly_declaration all = f32("all", UINT64_MAX);
    most.partition_bytes = more.partition_bytes = all.partition_bytes = 4096;
    declare(p, 0, more);
    declare(p, 1, more);
    declare(p, 0, all);
    assert_int_equal(tly_placement_version(p), 2);
    assert_string_equal(tly_placement_entry(p, 0)->conflict,
                        "tensor \"more\": worker 0 declared float32 x 1073741825 (sum), which makes "
                        "1048577 partitions of 4096 bytes (BYTEPS_PARTITION_BYTES); at most 1048576 are "
                        "possible");
    assert_string_equal(tly_placement_entry(p, 0)->declaration.name, "more");
    assert_int_equal(tly_placement_entry(p, 1)->tensor, 1);
    assert_true(tly_placement_bytes(p, 0) == 0);
    declare(p, 0, most);
    assert_int_equal(tly_placement_entry(p, 2)->place_count, 1u << 20);
    assert_true(tly_placement_bytes(p, 0) == 1ull << 32);
    tly_placement_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vgg16_loads_8_servers_within_5_percent_of_the_mean),
        cmocka_unit_test(resnet50_loads_8_servers_within_10_percent_of_the_mean),
        cmocka_unit_test(each_partition_goes_to_the_least_loaded_server_and_of_its_shards),
        cmocka_unit_test(a_server_of_twice_the_weight_gets_twice_the_bytes),
        cmocka_unit_test(a_tensor_without_elements_has_one_partition),
        cmocka_unit_test(an_agreeing_declaration_adds_nothing_whatever_its_partition_bytes),
        cmocka_unit_test(a_disagreeing_declaration_is_worded_once_with_both_values_and_both_workers),
        cmocka_unit_test(a_long_name_is_cut_in_the_sentence_so_that_the_values_stay),
        cmocka_unit_test(what_no_worker_of_ours_would_say_is_refused_and_changes_nothing),
        cmocka_unit_test(a_tensor_of_too_many_partitions_is_known_as_unusable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
