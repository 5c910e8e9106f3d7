/* priority SMALL_PRIORITY: a tensor of 400 MB at priority 0 is in flight when one of 4 KB is issued.
 * Says the two times, from the moment when the small one was issued, of some repetitions. */
#include "tests/proc/host.h"

#define LARGE (100u * 1000 * 1000)
#define SMALL 1024u
#define REPEATS 3

int main(int argc, char **argv)
{
    tally *ctx;
    tally_tensor *large, *small;
    tally_request *large_request, *small_request;
    float *large_data = calloc(LARGE, sizeof(float)), small_data[SMALL];
    if (argc != 2 || !large_data)
        return 4;
    host_must(tally_open(NULL, &ctx), "open");
    host_must(tally_declare(ctx, "large", TALLY_DTYPE_F32, LARGE, NULL, &large), "declare");
    host_must(tally_declare(ctx, "small", TALLY_DTYPE_F32, SMALL, NULL, &small), "declare");
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        for (size_t i = 0; i < SMALL; i++)
            small_data[i] = (float)(tally_rank(ctx) + 1);
        host_must(tally_barrier(ctx, -1), "barrier");
        host_must(tally_push_pull(large, large_data, large_data, 0, &large_request), "push_pull");
        int64_t start = host_now_ms();
        host_must(tally_push_pull(small, small_data, small_data, atoi(argv[1]), &small_request), "push_pull");
        host_must(tally_wait(&small_request, -1), "wait");
        int64_t small_ms = host_now_ms() - start;
        host_must(tally_wait(&large_request, -1), "wait");
        int64_t large_ms = host_now_ms() - start;
        for (size_t i = 0; i < SMALL; i++)
            if (small_data[i] != (float)(tally_size(ctx) * (tally_size(ctx) + 1) / 2))
                return 1;
        say("large %" PRId64 " small %" PRId64, large_ms, small_ms);
    }
    host_must(tally_close(ctx), "close");
    host_must(tally_undeclare(&large), "undeclare");
    host_must(tally_undeclare(&small), "undeclare");
    free(large_data);
    return 0;
}
