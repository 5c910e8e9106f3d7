#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "worker/tally.h"

#define LIMIT_MS 20000

/* ---- a worker alone: everything but the network ---- */

static const char *const alone_settings[] = { "DMLC_NUM_WORKER=1", "BYTEPS_PARTITION_BYTES=4096", NULL };

static tally *alone(void)
{
    const tally_options options = { .size = sizeof options, .settings = alone_settings };
    tally *ctx = NULL;
    assert_int_equal(tally_open(&options, &ctx), TALLY_OK);
    assert_non_null(ctx);
    return ctx;
}

static tally_tensor *declare(tally *ctx, const char *name, tally_dtype dtype, size_t count)
{
    tally_tensor *tensor = NULL;
    assert_int_equal(tally_declare(ctx, name, dtype, count, NULL, &tensor), TALLY_OK);
    assert_non_null(tensor);
    return tensor;
}

static void undeclare(tally_tensor *tensor)
{
    assert_int_equal(tally_undeclare(&tensor), TALLY_OK);
    assert_null(tensor);
}

static void wait_well(tally_request *request)
{
    assert_int_equal(tally_wait(&request, LIMIT_MS), TALLY_OK);
    assert_null(request);
}

static void check_error(tally_status status, tally_status expected, const char *sentence)
{
    if (status != expected || strcmp(tally_last_error(), sentence) != 0)
        fail_msg("%s \"%s\" instead of %s \"%s\"", tally_status_name(status), tally_last_error(),
                 tally_status_name(expected), sentence);
}

/* ---- opening ---- */

static void opening_refuses_a_context_pointer_that_is_null_and_options_of_another_size(void **state)
{
    (void)state;
    tally *ctx = NULL;
    char sentence[256];
    check_error(tally_open(NULL, NULL), TALLY_EINVAL, "tally_open: ctx is NULL");
    const tally_options options = { .size = 1 };
    snprintf(sentence, sizeof sentence,
             "tally_open: the options' size is 1 and must be %zu; was the program compiled "
             "for another version than 0.1.0?",
             sizeof options);
    check_error(tally_open(&options, &ctx), TALLY_EINVAL, sentence);
    assert_null(ctx);
}

static void keep_line(void *arg, tally_log_level level, const char *line)
{
    (void)level;
    snprintf(arg, 1024, "%s", line);
}

static void a_wrong_setting_is_named_with_its_value(void **state)
{
    (void)state;
    static const struct {
        const char *setting, *inside;
    } cases[] = {
        { "BYTEPS_PARTITION_BYTES=12", "BYTEPS_PARTITION_BYTES=\"12\"" },
        { "BYTEPS_PARTITION_BYTES=many", "BYTEPS_PARTITION_BYTES=\"many\"" },
        { "BYTEPS_LOCAL_SIZE=2", "BYTEPS_LOCAL_SIZE=\"2\"" },
        { "TALLY_NONSENSE=1", "TALLY_NONSENSE" },
        { "DMLC_ROLE=server", "DMLC_ROLE" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *const settings[] = { "DMLC_NUM_WORKER=1", cases[i].setting, NULL };
        char line[1024] = "";
        const tally_options options = { sizeof options, settings, keep_line, line };
        tally *ctx = NULL;
        assert_int_equal(tally_open(&options, &ctx), TALLY_ECONFIG);
        if (!strstr(tally_last_error(), cases[i].inside))
            fail_msg("\"%s\" does not say %s", tally_last_error(), cases[i].inside);
        assert_null(ctx);
    }
}

static void a_worker_alone_is_rank_0_of_1_without_servers(void **state)
{
    (void)state;
    tally *ctx = alone();
    assert_int_equal(tally_rank(ctx), 0);
    assert_int_equal(tally_size(ctx), 1);
    assert_int_equal(tally_local_rank(ctx), 0);
    assert_int_equal(tally_local_size(ctx), 1);
    assert_int_equal(tally_server_count(ctx), 0);
    tally_server_stats stats;
    check_error(tally_server_stats_get(ctx, 0, &stats), TALLY_EINVAL,
                "tally_server_stats_get: there is no server 0");
    check_error(tally_server_stats_get(ctx, -1, &stats), TALLY_EINVAL,
                "tally_server_stats_get: there is no server -1");
    assert_int_equal(tally_barrier(ctx, -1), TALLY_OK);
    assert_int_equal(tally_barrier(ctx, LIMIT_MS), TALLY_OK);
    assert_int_equal(tally_close(ctx), TALLY_OK);
    assert_int_equal(tally_rank(NULL), 0);
    assert_int_equal(tally_size(NULL), 0);
    assert_int_equal(tally_local_rank(NULL), 0);
    assert_int_equal(tally_local_size(NULL), 0);
    assert_int_equal(tally_server_count(NULL), 0);
}

static void the_version_is_told(void **state)
{
    (void)state;
    char expected[32];
    snprintf(expected, sizeof expected, "%d.%d.%d", TALLY_VERSION_MAJOR, TALLY_VERSION_MINOR,
             TALLY_VERSION_PATCH);
    assert_string_equal(tally_version(), expected);
}

static void several_contexts_of_one_process_do_not_meet(void **state)
{
    (void)state;
    tally *a = alone(), *b = alone();
    tally_tensor *x = declare(a, "x", TALLY_DTYPE_F32, 1), *y = declare(b, "x", TALLY_DTYPE_F64, 2);
    float in = 1, out = 0;
    double in2[2] = { 2, 3 }, out2[2] = { 0 };
    tally_request *r, *s;
    assert_int_equal(tally_push_pull(x, &in, &out, 0, &r), TALLY_OK);
    assert_int_equal(tally_push_pull(y, in2, out2, 0, &s), TALLY_OK);
    wait_well(r);
    undeclare(x);
    assert_int_equal(tally_close(a), TALLY_OK);
    wait_well(s);
    assert_true(out == 1 && out2[0] == 2 && out2[1] == 3);
    undeclare(y);
    assert_int_equal(tally_close(b), TALLY_OK);
}

/* ---- bad arguments ---- */

static void pointers_that_are_null_are_named(void **state)
{
    (void)state;
    tally *ctx = alone();
    tally_tensor *tensor = declare(ctx, "x", TALLY_DTYPE_F32, 1), *no_tensor = NULL;
    tally_request *request = NULL;
    tally_server_stats stats;
    float value = 1;
    check_error(tally_close(NULL), TALLY_EINVAL, "tally_close: ctx is NULL");
    check_error(tally_barrier(NULL, 0), TALLY_EINVAL, "tally_barrier: ctx is NULL");
    check_error(tally_declare(NULL, "x", TALLY_DTYPE_F32, 1, NULL, &tensor), TALLY_EINVAL,
                "tally_declare: ctx is NULL");
    check_error(tally_declare(ctx, NULL, TALLY_DTYPE_F32, 1, NULL, &tensor), TALLY_EINVAL,
                "tally_declare: name is NULL");
    check_error(tally_declare(ctx, "x", TALLY_DTYPE_F32, 1, NULL, NULL), TALLY_EINVAL,
                "tally_declare: tensor is NULL");
    check_error(tally_undeclare(NULL), TALLY_EINVAL, "tally_undeclare: tensor is NULL");
    check_error(tally_undeclare(&no_tensor), TALLY_EINVAL, "tally_undeclare: tensor is NULL");
    check_error(tally_push_pull(NULL, &value, &value, 0, &request), TALLY_EINVAL,
                "tally_push_pull: tensor is NULL");
    check_error(tally_push_pull(tensor, &value, &value, 0, NULL), TALLY_EINVAL,
                "tally_push_pull: request is NULL");
    check_error(tally_push_pull(tensor, NULL, &value, 0, &request), TALLY_EINVAL,
                "tally_push_pull: tensor \"x\" of 4 bytes: input is NULL");
    check_error(tally_push_pull(tensor, &value, NULL, 0, &request), TALLY_EINVAL,
                "tally_push_pull: tensor \"x\" of 4 bytes: output is NULL");
    check_error(tally_broadcast(NULL, &value, 0, &request), TALLY_EINVAL, "tally_broadcast: tensor is NULL");
    check_error(tally_broadcast(tensor, &value, 0, NULL), TALLY_EINVAL, "tally_broadcast: request is NULL");
    check_error(tally_broadcast(tensor, NULL, 0, &request), TALLY_EINVAL,
                "tally_broadcast: tensor \"x\": buffer is NULL");
    check_error(tally_test(NULL), TALLY_EINVAL, "tally_test: request is NULL");
    check_error(tally_test(&request), TALLY_EINVAL, "tally_test: request is NULL");
    check_error(tally_wait(NULL, 0), TALLY_EINVAL, "tally_wait: request is NULL");
    check_error(tally_wait(&request, -1), TALLY_EINVAL, "tally_wait: request is NULL");
    check_error(tally_server_stats_get(NULL, 0, &stats), TALLY_EINVAL,
                "tally_server_stats_get: there is no server 0");
    assert_null(request);
    undeclare(tensor);
    assert_int_equal(tally_close(ctx), TALLY_OK);
}

static void a_completion_function_that_is_null_is_refused_and_the_request_kept(void **state)
{
    (void)state;
    tally *ctx = alone();
    tally_tensor *tensor = declare(ctx, "x", TALLY_DTYPE_F32, 1);
    tally_request *request = NULL;
    float value = 1;
    assert_int_equal(tally_push_pull(tensor, &value, &value, 0, &request), TALLY_OK);
    check_error(tally_on_done(&request, NULL, NULL), TALLY_EINVAL, "tally_on_done: fn is NULL");
    assert_non_null(request);
    wait_well(request);
    undeclare(tensor);
    assert_int_equal(tally_close(ctx), TALLY_OK);
}

static void a_name_has_1_to_1023_bytes(void **state)
{
    (void)state;
    tally *ctx = alone();
    tally_tensor *tensor = NULL;
    char name[1025];
    memset(name, 'n', sizeof name);
    name[1024] = 0;
    check_error(tally_declare(ctx, "", TALLY_DTYPE_F32, 1, NULL, &tensor), TALLY_EINVAL,
                "tally_declare: a name has 1 to 1023 bytes, \"\" has none");
    check_error(tally_declare(ctx, name, TALLY_DTYPE_F32, 1, NULL, &tensor), TALLY_EINVAL,
                "tally_declare: a name has 1 to 1023 bytes, \"nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn...\" "
                "has more");
    assert_null(tensor);
    name[1023] = 0;
    undeclare(declare(ctx, name, TALLY_DTYPE_F32, 1));
    undeclare(declare(ctx, "n", TALLY_DTYPE_F32, 1));
    assert_int_equal(tally_close(ctx), TALLY_OK);
}

static void a_declaration_that_makes_no_sense_is_refused_with_its_values(void **state)
{
    (void)state;
    tally *ctx = alone();
    tally_tensor *tensor = NULL;
    char sentence[256];
    tally_tensor_options options = TALLY_TENSOR_OPTIONS_INIT;
    check_error(tally_declare(ctx, "x", (tally_dtype)8, 1, NULL, &tensor), TALLY_EINVAL,
                "tally_declare: tensor \"x\" has the unknown data type 8");
    check_error(tally_declare(ctx, "x", (tally_dtype)-1, 1, NULL, &tensor), TALLY_EINVAL,
                "tally_declare: tensor \"x\" has the unknown data type -1");
    snprintf(sentence, sizeof sentence,
             "tally_declare: tensor \"x\" has %zu elements of 8 bytes, more than memory can "
             "hold",
             SIZE_MAX / 8);
    check_error(tally_declare(ctx, "x", TALLY_DTYPE_F64, SIZE_MAX / 8, NULL, &tensor), TALLY_EINVAL,
                sentence);
    check_error(
        tally_declare(ctx, "x", TALLY_DTYPE_U8, ((size_t)4096 << 20) + 1, NULL, &tensor), TALLY_EINVAL,
        "tally_declare: tensor \"x\" of 4294967297 bytes would have 1048577 partitions, more than 1048576; "
        "raise BYTEPS_PARTITION_BYTES");
    options.op = (tally_op)4;
    check_error(tally_declare(ctx, "x", TALLY_DTYPE_F32, 1, &options, &tensor), TALLY_EINVAL,
                "tally_declare: tensor \"x\" has the unknown operation 4");
    options.op = TALLY_OP_SUM;
    options.size = 3;
    snprintf(sentence, sizeof sentence, "tally_declare: the options' size is 3 and must be %zu",
             sizeof options);
    check_error(tally_declare(ctx, "x", TALLY_DTYPE_F32, 1, &options, &tensor), TALLY_EINVAL, sentence);
    assert_null(tensor);
    undeclare(declare(ctx, "x", TALLY_DTYPE_F32, 1)); /* none of these has taken the name */
    assert_int_equal(tally_close(ctx), TALLY_OK);
}

static void a_name_gives_the_same_tensor_with_the_same_values_and_a_conflict_with_others(void **state)
{
    (void)state;
    tally *ctx = alone();
    tally_tensor *x = declare(ctx, "x", TALLY_DTYPE_F32, 3), *other = NULL;
    assert_ptr_equal(declare(ctx, "x", TALLY_DTYPE_F32, 3), x);
    check_error(tally_declare(ctx, "x", TALLY_DTYPE_F16, 3, NULL, &other), TALLY_ECONFLICT,
                "tensor \"x\": this worker (0) declared float32 x 3 (sum) before, and now float16 x 3 (sum)");
    check_error(tally_declare(ctx, "x", TALLY_DTYPE_F32, 4, NULL, &other), TALLY_ECONFLICT,
                "tensor \"x\": this worker (0) declared float32 x 3 (sum) before, and now float32 x 4 (sum)");
    tally_tensor_options options = TALLY_TENSOR_OPTIONS_INIT;
    options.op = TALLY_OP_AVERAGE;
    check_error(
        tally_declare(ctx, "x", TALLY_DTYPE_F32, 3, &options, &other), TALLY_ECONFLICT,
        "tensor \"x\": this worker (0) declared float32 x 3 (sum) before, and now float32 x 3 (average)");
    assert_null(other);
    undeclare(x);
    undeclare(x);
    /* The name keeps its values for the life of the job. */
    assert_int_equal(tally_declare(ctx, "x", TALLY_DTYPE_F16, 3, NULL, &other), TALLY_ECONFLICT);
    assert_ptr_equal(declare(ctx, "x", TALLY_DTYPE_F32, 3), x);
    undeclare(x);
    assert_int_equal(tally_close(ctx), TALLY_OK);
}

static void input_and_output_are_equal_or_apart(void **state)
{
    (void)state;
    tally *ctx = alone();
    tally_tensor *tensor = declare(ctx, "x", TALLY_DTYPE_F32, 4);
    tally_request *request = NULL;
    float values[12] = { 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0 };
    char *at = (char *)(values + 4);
    for (int shift = -15; shift <= 15; shift++)
        if (shift != 0)
            check_error(tally_push_pull(tensor, at, at + shift, 0, &request), TALLY_EINVAL,
                        "tally_push_pull: tensor \"x\": input and output overlap; pass the same pointer for "
                        "in place");
    assert_null(request);
    for (int shift = -16; shift <= 16; shift += 16) { /* neighbours, and in place */
        assert_int_equal(tally_push_pull(tensor, at, at + shift, 0, &request), TALLY_OK);
        wait_well(request);
        assert_memory_equal(at, at + shift, 16);
    }
    undeclare(tensor);
    assert_int_equal(tally_close(ctx), TALLY_OK);
}

static void a_root_outside_the_job_is_refused(void **state)
{
    (void)state;
    tally *ctx = alone();
    tally_tensor *tensor = declare(ctx, "x", TALLY_DTYPE_F32, 1);
    tally_request *request = NULL;
    float value = 5;
    check_error(tally_broadcast(tensor, &value, -1, &request), TALLY_EINVAL,
                "tally_broadcast: tensor \"x\": root -1 is not a rank");
    check_error(tally_broadcast(tensor, &value, 1, &request), TALLY_EINVAL,
                "tally_broadcast: tensor \"x\": root 1 is not a rank of this job of 1");
    assert_null(request);
    assert_int_equal(tally_broadcast(tensor, &value, 0, &request), TALLY_OK);
    wait_well(request);
    assert_true(value == 5);
    undeclare(tensor);
    assert_int_equal(tally_close(ctx), TALLY_OK);
}

/* ---- alone, every call does what it says ---- */

static void every_type_and_operation_of_any_count_gives_back_its_own_value(void **state)
{
    (void)state;
    static const size_t counts[] = { 0, 1, 3, 17, 4913, 4096, 4097 };
    tally *ctx = alone();
    static uint8_t in[8 * 4913 + 1], out[8 * 4913 + 1];
    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (uint8_t)(i * 7);
    for (int dtype = 0; dtype < TALLY_DTYPE_COUNT; dtype++)
        for (int op = 0; op < TALLY_OP_COUNT; op++)
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                char name[32];
                tally_tensor *tensor;
                tally_request *request;
                tally_tensor_options options = { sizeof options, (tally_op)op, 3 };
                size_t len = counts[c] * tally_dtype_size((tally_dtype)dtype);
                snprintf(name, sizeof name, "t%d.%d.%zu", dtype, op, counts[c]);
                assert_int_equal(tally_declare(ctx, name, (tally_dtype)dtype, counts[c], &options, &tensor),
                                 TALLY_OK);
                memset(out, 0, sizeof out);
                /* misaligned by one */
                assert_int_equal(tally_push_pull(tensor, len ? in + 1 : NULL, len ? out + 1 : NULL,
                                                 TALLY_PRIORITY_DEFAULT, &request), TALLY_OK);
                wait_well(request);
                assert_memory_equal(out + 1, in + 1, len);
                assert_int_equal(out[0], 0);
                undeclare(tensor);
            }
    assert_int_equal(tally_close(ctx), TALLY_OK);
}

static void testing_says_not_yet_until_it_has_ended_once(void **state)
{
    (void)state;
    tally *ctx = alone();
    tally_tensor *tensor = declare(ctx, "x", TALLY_DTYPE_F32, 1);
    tally_request *request;
    float value = 1;
    tally_status status;
    assert_int_equal(tally_push_pull(tensor, &value, &value, 0, &request), TALLY_OK);
    while ((status = tally_test(&request)) == TALLY_EAGAIN) {
        assert_non_null(request);
        assert_string_equal(tally_last_error(), "not finished yet");
        status = tally_wait(&request, 1); /* rather than spin */
        if (status == TALLY_OK)
            break;
        assert_int_equal(status, TALLY_ETIMEDOUT);
    }
    assert_int_equal(status, TALLY_OK);
    assert_null(request);
    undeclare(tensor);
    assert_int_equal(tally_close(ctx), TALLY_OK);
}

static void a_tensor_has_one_request_in_flight_and_is_not_given_back_meanwhile(void **state)
{
    (void)state;
    enum { COUNT = 16 << 20 };
    tally *ctx = alone();
    tally_tensor *tensor = declare(ctx, "x", TALLY_DTYPE_F32, COUNT), *same = tensor;
    float *in = calloc(COUNT, sizeof *in), *out = calloc(COUNT, sizeof *out);
    tally_request *first, *second = NULL;
    bool busy = false, kept = false;
    /* Copying 64 MB takes the engine longer than the next call, nearly always. */
    for (int i = 0; i < 100 && !(busy && kept); i++) {
        assert_int_equal(tally_push_pull(tensor, in, out, 0, &first), TALLY_OK);
        tally_status status = tally_push_pull(tensor, in, out, 0, &second);
        if (status == TALLY_EBUSY) {
            assert_string_equal(tally_last_error(), "tensor \"x\" has a request in flight already");
            assert_null(second);
            busy = true;
        } else {
            assert_int_equal(status, TALLY_OK);
            wait_well(second);
            second = NULL;
        }
        status = tally_undeclare(&same);
        if (status == TALLY_EBUSY) {
            assert_string_equal(tally_last_error(), "tensor \"x\" has a request in flight");
            assert_ptr_equal(same, tensor);
            kept = true;
        } else {
            assert_int_equal(status, TALLY_OK);
            same = declare(ctx, "x", TALLY_DTYPE_F32, COUNT);
        }
        wait_well(first);
    }
    assert_true(busy && kept);
    undeclare(tensor);
    assert_int_equal(tally_close(ctx), TALLY_OK);
    free(in);
    free(out);
}

/* ---- completion functions ---- */

typedef struct done {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int calls;
    tally_status status;
    bool with_error;
    pthread_t thread;
    tally *ctx;
    tally_tensor *tensor;
    float value;
    tally_status in_wait, in_barrier, in_close, in_issue; /* of calls from inside */
} done;

static void done_init(done *d, tally *ctx, tally_tensor *tensor)
{
    *d = (done){ .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .ctx = ctx,
                 .tensor = tensor };
}

static void note(void *arg, tally_status status, const char *error)
{
    done *d = arg;
    pthread_mutex_lock(&d->lock);
    d->calls++;
    d->status = status;
    d->with_error = error != NULL;
    d->thread = pthread_self();
    pthread_cond_signal(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

static void await_calls(done *d, int calls)
{
    pthread_mutex_lock(&d->lock);
    while (d->calls < calls)
        pthread_cond_wait(&d->changed, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

static void call_from_inside(void *arg, tally_status status, const char *error)
{
    done *d = arg;
    tally_request *request = NULL;
    d->in_issue = tally_push_pull(d->tensor, &d->value, &d->value, 0, &request);
    d->in_wait = request ? tally_wait(&request, 100) : TALLY_OK;
    if (request)
        tally_on_done(&request, note, d);
    d->in_barrier = tally_barrier(d->ctx, 100);
    d->in_close = tally_close(d->ctx);
    note(d, status, error);
}

/* One thread closes while another gives requests up. */
typedef struct closing {
    tally *ctx;
    pthread_barrier_t start;
} closing;

static void *close_at_once(void *arg)
{
    closing *c = arg;
    pthread_barrier_wait(&c->start);
    assert_int_equal(tally_close(c->ctx), TALLY_OK);
    return NULL;
}

static void a_completion_function_that_was_accepted_while_the_context_closes_is_called(void **state)
{
    (void)state;
    enum { ROUNDS = 300, REQUESTS = 7 };
    for (int round = 0; round < ROUNDS; round++) {
        done d = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
        closing c = { .ctx = alone() };
        tally_tensor *tensors[REQUESTS];
        tally_request *requests[REQUESTS];
        float values[REQUESTS] = { 0 };
        int accepted = 0;
        pthread_t closer;
        for (int i = 0; i < REQUESTS; i++) {
            char name[16];
            snprintf(name, sizeof name, "t%d", i);
            tensors[i] = declare(c.ctx, name, TALLY_DTYPE_F32, 1);
            assert_int_equal(tally_push_pull(tensors[i], &values[i], &values[i], 0, &requests[i]), TALLY_OK);
        }
        pthread_barrier_init(&c.start, NULL, 2);
        pthread_create(&closer, NULL, close_at_once, &c);
        pthread_barrier_wait(&c.start);
        for (int i = 0; i < REQUESTS; i++)
            accepted += tally_on_done(&requests[i], note, &d) == TALLY_OK;
        pthread_join(closer, NULL);
        /* tally_close has returned: nothing is called any more. */
        assert_int_equal(d.calls, accepted);
        for (int i = 0; i < REQUESTS; i++) {
            if (requests[i])
                tally_wait(&requests[i], LIMIT_MS);
            undeclare(tensors[i]);
        }
        pthread_barrier_destroy(&c.start);
    }
}

static void a_completion_function_is_called_once_on_a_thread_of_the_librarys(void **state)
{
    (void)state;
    tally *ctx = alone();
    tally_tensor *tensor = declare(ctx, "x", TALLY_DTYPE_F32, 1);
    done d;
    done_init(&d, ctx, tensor);
    for (int i = 1; i <= 20; i++) {
        tally_request *request;
        assert_int_equal(tally_push_pull(tensor, &d.value, &d.value, 0, &request), TALLY_OK);
        assert_int_equal(tally_on_done(&request, note, &d), TALLY_OK);
        assert_null(request);
        await_calls(&d, i);
        assert_int_equal(d.status, TALLY_OK);
        assert_false(d.with_error);
        assert_false(pthread_equal(d.thread, pthread_self()));
    }
    undeclare(tensor);
    assert_int_equal(tally_close(ctx), TALLY_OK);
    assert_int_equal(d.calls, 20);
}

static void a_completion_function_may_issue_but_not_wait_and_not_close(void **state)
{
    (void)state;
    tally *ctx = alone();
    tally_tensor *tensor = declare(ctx, "x", TALLY_DTYPE_F32, 1);
    tally_request *request;
    done d;
    done_init(&d, ctx, tensor);
    assert_int_equal(tally_push_pull(tensor, &d.value, &d.value, 0, &request), TALLY_OK);
    assert_int_equal(tally_on_done(&request, call_from_inside, &d), TALLY_OK);
    await_calls(&d, 2);
    assert_int_equal(d.in_issue, TALLY_OK);
    assert_int_equal(d.in_wait, TALLY_EINVAL);
    assert_int_equal(d.in_barrier, TALLY_EINVAL);
    assert_int_equal(d.in_close, TALLY_EINVAL);
    undeclare(tensor);
    assert_int_equal(tally_close(ctx), TALLY_OK);
}

static void closing_calls_every_completion_function_that_is_left(void **state)
{
    (void)state;
    enum { COUNT = 200 };
    tally *ctx = alone();
    static tally_tensor *tensors[COUNT];
    static float values[COUNT];
    done d;
    done_init(&d, ctx, NULL);
    for (int i = 0; i < COUNT; i++) {
        char name[16];
        tally_request *request;
        snprintf(name, sizeof name, "t%d", i);
        tensors[i] = declare(ctx, name, TALLY_DTYPE_F32, 1);
        assert_int_equal(tally_push_pull(tensors[i], &values[i], &values[i], 0, &request), TALLY_OK);
        assert_int_equal(tally_on_done(&request, note, &d), TALLY_OK);
    }
    assert_int_equal(tally_close(ctx), TALLY_OK);
    assert_int_equal(d.calls, COUNT);
    for (int i = 0; i < COUNT; i++)
        undeclare(tensors[i]);
}

/* ---- after the end ---- */

static void handles_outlive_the_context_and_say_that_it_is_closed(void **state)
{
    (void)state;
    tally *ctx = alone();
    tally_tensor *tensor = declare(ctx, "x", TALLY_DTYPE_F32, 1);
    tally_request *ended, *request = NULL;
    done d;
    done_init(&d, NULL, NULL);
    float in = 1, out = 0;
    assert_int_equal(tally_push_pull(tensor, &in, &out, 0, &ended), TALLY_OK);
    assert_int_equal(tally_close(ctx), TALLY_OK);
    check_error(tally_push_pull(tensor, &in, &out, 0, &request), TALLY_ECLOSED, "the context is closed");
    check_error(tally_broadcast(tensor, &in, 0, &request), TALLY_ECLOSED, "the context is closed");
    assert_null(request);
    check_error(tally_on_done(&ended, note, &d), TALLY_ECLOSED, "the context is closed");
    assert_non_null(ended);
    tally_status status = tally_wait(&ended, 0); /* it has ended, well or by the close */
    assert_true(status == TALLY_OK || status == TALLY_ECLOSED);
    assert_null(ended);
    undeclare(tensor);
    assert_int_equal(d.calls, 0);
}

/* ---- fork ---- */

/* What the child finds: 0, or the number of the call that did not refuse. */
static int child(tally *ctx, tally_tensor *tensor, tally_request *request)
{
    tally_tensor *other = NULL;
    tally_request *more = NULL;
    float value = 0;
    done d;
    done_init(&d, NULL, NULL);
    const tally_status statuses[] = {
        tally_push_pull(tensor, &value, &value, 0, &more),
        tally_broadcast(tensor, &value, 0, &more),
        tally_declare(ctx, "y", TALLY_DTYPE_F32, 1, NULL, &other),
        tally_barrier(ctx, 0),
        tally_test(&request),
        tally_wait(&request, -1),
        tally_on_done(&request, note, &d),
        tally_undeclare(&tensor),
        tally_close(ctx),
    };
    for (size_t i = 0; i < sizeof statuses / sizeof statuses[0]; i++)
        if (statuses[i] != TALLY_EFORKED)
            return (int)i + 1;
    return strcmp(tally_last_error(),
                  "this process was forked from the one that opened the context (worker 0); only "
                  "that one may use it") == 0
               ? 0
               : 100;
}

static void in_a_forked_child_every_call_is_refused_and_the_parent_goes_on(void **state)
{
    (void)state;
    tally *ctx = alone();
    tally_tensor *tensor = declare(ctx, "x", TALLY_DTYPE_F32, 1);
    tally_request *request;
    float value = 7;
    assert_int_equal(tally_push_pull(tensor, &value, &value, 0, &request), TALLY_OK);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(child(ctx, tensor, request));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    wait_well(request);
    assert_int_equal(tally_push_pull(tensor, &value, &value, 0, &request), TALLY_OK);
    wait_well(request);
    undeclare(tensor);
    assert_int_equal(tally_close(ctx), TALLY_OK);
}

/* ---- threads ---- */

#define THREADS 4
#define ROUNDS 200

typedef struct user {
    pthread_t thread;
    tally *ctx;
    int index, wrong;
} user;

static void *use(void *arg)
{
    user *u = arg;
    char name[16];
    tally_tensor *tensor = NULL;
    snprintf(name, sizeof name, "thread%d", u->index);
    u->wrong += tally_declare(u->ctx, name, TALLY_DTYPE_I32, 2, NULL, &tensor) != TALLY_OK;
    for (int round = 0; round < ROUNDS && u->wrong == 0; round++) {
        const int32_t in[2] = { u->index, round };
        int32_t out[2] = { -1, -1 };
        tally_request *request;
        u->wrong += tally_push_pull(tensor, in, out, round % 3, &request) != TALLY_OK;
        u->wrong += u->wrong == 0 && tally_wait(&request, LIMIT_MS) != TALLY_OK;
        u->wrong += memcmp(in, out, sizeof in) != 0;
        /* A failure's sentence belongs to the thread that failed. */
        tally_undeclare(NULL);
        u->wrong += strcmp(tally_last_error(), "tally_undeclare: tensor is NULL") != 0;
    }
    u->wrong += tally_undeclare(&tensor) != TALLY_OK;
    return NULL;
}

static void several_threads_use_one_context_at_once(void **state)
{
    (void)state;
    tally *ctx = alone();
    user users[THREADS];
    for (int i = 0; i < THREADS; i++) {
        users[i] = (user){ .ctx = ctx, .index = i };
        assert_int_equal(pthread_create(&users[i].thread, NULL, use, &users[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(users[i].thread, NULL);
        assert_int_equal(users[i].wrong, 0);
    }
    assert_int_equal(tally_close(ctx), TALLY_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opening_refuses_a_context_pointer_that_is_null_and_options_of_another_size),
        cmocka_unit_test(a_wrong_setting_is_named_with_its_value),
        cmocka_unit_test(a_worker_alone_is_rank_0_of_1_without_servers),
        cmocka_unit_test(the_version_is_told),
        cmocka_unit_test(several_contexts_of_one_process_do_not_meet),
        cmocka_unit_test(pointers_that_are_null_are_named),
        cmocka_unit_test(a_completion_function_that_is_null_is_refused_and_the_request_kept),
        cmocka_unit_test(a_name_has_1_to_1023_bytes),
        cmocka_unit_test(a_declaration_that_makes_no_sense_is_refused_with_its_values),
        cmocka_unit_test(a_name_gives_the_same_tensor_with_the_same_values_and_a_conflict_with_others),
        cmocka_unit_test(input_and_output_are_equal_or_apart),
        cmocka_unit_test(a_root_outside_the_job_is_refused),
        cmocka_unit_test(every_type_and_operation_of_any_count_gives_back_its_own_value),
        cmocka_unit_test(testing_says_not_yet_until_it_has_ended_once),
        cmocka_unit_test(a_tensor_has_one_request_in_flight_and_is_not_given_back_meanwhile),
        cmocka_unit_test(a_completion_function_is_called_once_on_a_thread_of_the_librarys),
        cmocka_unit_test(a_completion_function_may_issue_but_not_wait_and_not_close),
        cmocka_unit_test(closing_calls_every_completion_function_that_is_left),
        cmocka_unit_test(handles_outlive_the_context_and_say_that_it_is_closed),
        cmocka_unit_test(in_a_forked_child_every_call_is_refused_and_the_parent_goes_on),
        cmocka_unit_test(several_threads_use_one_context_at_once),
        cmocka_unit_test(a_completion_function_that_was_accepted_while_the_context_closes_is_called),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
