/* One tensor of 2^31+5 bytes, summed in place. */
#include "tests/proc/host.h"

#define COUNT ((size_t)2147483648u + 5)

static int8_t value(size_t element, int rank)
{
    return (int8_t)((element * 7 + (element >> 12)) % 31 + (size_t)rank);
}

int main(void)
{
    tally *ctx;
    tally_tensor *tensor;
    tally_request *request;
    host_must(tally_open(NULL, &ctx), "open");
    int n = tally_size(ctx), rank = tally_rank(ctx);
    int8_t *data = malloc(COUNT);
    if (!data)
        return 4;
    for (size_t i = 0; i < COUNT; i++)
        data[i] = value(i, rank);
    host_must(tally_declare(ctx, "large", TALLY_DTYPE_I8, COUNT, NULL, &tensor), "declare");
    host_must(tally_push_pull(tensor, data, data, TALLY_PRIORITY_DEFAULT, &request), "push_pull");
    host_must(tally_wait(&request, -1), "wait");
    for (size_t i = 0; i < COUNT; i++)
        if (data[i] != n * value(i, 0) + n * (n - 1) / 2) {
            say("wrong element %zu: %d", i, data[i]);
            return 1;
        }
    host_must(tally_close(ctx), "close");
    host_must(tally_undeclare(&tensor), "undeclare");
    say("exact %zu", COUNT);
    free(data);
    return 0;
}
