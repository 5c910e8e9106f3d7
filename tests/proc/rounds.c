/* rounds OPTIONS: a training loop that checks every value. Each step issues all tensors, waits for
 * them and says "round N". When a call fails it says how, what each later call says, and goes on.
 *
 *   --rounds N    steps; 0: until something fails
 *   --tensors N   with counts from 0 upwards
 *   --count N     elements of the largest
 *   --shuffle     declare and issue in an order of this worker's own
 *   --fresh       new buffers in each step
 *   --stay        at the end, wait for the end of standard input before closing
 *   --barrier     a barrier after each step
 * Exit status: 0, 1 for a wrong value, 3 when a call failed. */
#include <getopt.h>
#include <unistd.h>

#include "tests/proc/host.h"

typedef struct tensor {
    tally_tensor *handle;
    tally_request *request;
    size_t count;
    float *input, *output;
} tensor;

static int rounds, tensor_count = 8, largest = 5000;
static bool shuffle, fresh, stay, barrier;
static tally *ctx;
static tensor *tensors;
static int *order;

/* What worker rank contributes; a sum of all is exact in binary32. */
static float value(int rank, int round, int number, size_t element)
{
    return (float)((rank + 1) * (1 + (round * 7 + number * 3 + (int)(element % 11)) % 97));
}

static void failed(const char *call, tally_status status)
{
    int64_t start;
    tally_request *request = NULL;
    tally_tensor *handle = NULL;
    say("failed %s %s %s", call, tally_status_name(status), tally_last_error());
    for (int i = 0; i < tensor_count; i++)
        if (tensors[i].request) {
            status = tally_wait(&tensors[i].request, -1);
            say("later wait %s %s", tally_status_name(status), status ? tally_last_error() : "");
        }
    status = tally_push_pull(tensors[0].handle, tensors[0].input, tensors[0].output, 0, &request);
    say("later push_pull %s %s", tally_status_name(status), tally_last_error());
    status = tally_broadcast(tensors[0].handle, tensors[0].output, 0, &request);
    say("later broadcast %s %s", tally_status_name(status), tally_last_error());
    status = tally_declare(ctx, "late", TALLY_DTYPE_F32, 1, NULL, &handle);
    say("later declare %s %s", tally_status_name(status), tally_last_error());
    status = tally_barrier(ctx, -1);
    say("later barrier %s %s", tally_status_name(status), tally_last_error());
    start = host_now_ms();
    status = tally_close(ctx);
    say("closed %s within %" PRId64 " ms", tally_status_name(status), host_now_ms() - start);
    say("the host program goes on");
    exit(3);
}

static void issue(int round, int number)
{
    tensor *t = &tensors[number];
    if (fresh || !t->input) {
        free(t->input);
        free(t->output);
        t->input = malloc((t->count + 1) * sizeof(float));
        t->output = malloc((t->count + 1) * sizeof(float));
    }
    for (size_t i = 0; i < t->count; i++)
        t->input[i] = value(tally_rank(ctx), round, number, i);
    memset(t->output, 0xff, t->count * sizeof(float));
    tally_status status = tally_push_pull(t->handle, t->input, t->output, number, &t->request);
    if (status != TALLY_OK)
        failed("push_pull", status);
}

static void check(int round, int number)
{
    tensor *t = &tensors[number];
    tally_status status = tally_wait(&t->request, -1);
    if (status != TALLY_OK)
        failed("wait", status);
    int n = tally_size(ctx);
    for (size_t i = 0; i < t->count; i++)
        if (t->output[i] != value(0, round, number, i) * (float)(n * (n + 1) / 2)) {
            say("wrong round %d tensor %d element %zu: %g instead of %g", round, number, i, t->output[i],
                value(0, round, number, i) * (float)(n * (n + 1) / 2));
            exit(1);
        }
}

static void declare_all(void)
{
    tensors = calloc((size_t)tensor_count, sizeof *tensors);
    order = calloc((size_t)tensor_count, sizeof *order);
    for (int i = 0; i < tensor_count; i++)
        order[i] = i;
    uint32_t seed = (uint32_t)tally_rank(ctx) + 1;
    for (int i = tensor_count - 1; shuffle && i > 0; i--) {
        seed = seed * 1664525 + 1013904223;
        int other = (int)((seed >> 8) % (uint32_t)(i + 1)), kept = order[i];
        order[i] = order[other];
        order[other] = kept;
    }
    for (int i = 0; i < tensor_count; i++) {
        char name[32];
        tensor *t = &tensors[order[i]];
        snprintf(name, sizeof name, "layer %d", order[i]);
        t->count = (size_t)largest;
        if (tensor_count > 1)
            t->count = t->count * (size_t)order[i] / (size_t)(tensor_count - 1);
        host_must(tally_declare(ctx, name, TALLY_DTYPE_F32, t->count, NULL, &t->handle), "declare");
    }
}

static void options(int argc, char **argv)
{
    static const struct option known[] = {
        { "rounds", 1, NULL, 'r' }, { "tensors", 1, NULL, 't' }, { "count", 1, NULL, 'c' },
        { "shuffle", 0, NULL, 's' }, { "fresh", 0, NULL, 'f' },  { "stay", 0, NULL, 'y' },
        { "barrier", 0, NULL, 'b' }, { 0 },
    };
    for (int o; (o = getopt_long(argc, argv, "", known, NULL)) != -1;)
        switch (o) {
        case 'r': rounds = atoi(optarg); break;
        case 't': tensor_count = atoi(optarg); break;
        case 'c': largest = atoi(optarg); break;
        case 's': shuffle = true; break;
        case 'f': fresh = true; break;
        case 'y': stay = true; break;
        case 'b': barrier = true; break;
        default: exit(4);
        }
}

int main(int argc, char **argv)
{
    options(argc, argv);
    tally_status status = tally_open(NULL, &ctx);
    say("open %s %s", tally_status_name(status), status ? tally_last_error() : "");
    if (status != TALLY_OK) {
        say("the host program goes on");
        return 3;
    }
    declare_all();
    for (int round = 1; rounds == 0 || round <= rounds; round++) {
        for (int i = 0; i < tensor_count; i++)
            issue(round, order[i]);
        for (int i = 0; i < tensor_count; i++)
            check(round, order[i]);
        if (barrier && (status = tally_barrier(ctx, -1)) != TALLY_OK)
            failed("barrier", status);
        say("round %d", round);
    }
    if (stay)
        while (getchar() != EOF)
            ;
    int64_t start = host_now_ms();
    host_must(tally_close(ctx), "close");
    say("exact %d rounds, closed within %" PRId64 " ms", rounds, host_now_ms() - start);
    for (int i = 0; i < tensor_count; i++) {
        host_must(tally_undeclare(&tensors[i].handle), "undeclare");
        free(tensors[i].input);
        free(tensors[i].output);
    }
    free(tensors);
    free(order);
    return 0;
}
