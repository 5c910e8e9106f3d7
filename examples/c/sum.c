/* sum.c - the smallest worker: sums one tensor over all workers, a few steps long.
 *
 *     cc sum.c $(pkg-config --cflags --libs tally) -o sum
 *     tally-launch --local --workers 2 --servers 1 -- ./sum
 */
#include <stdio.h>
#include <stdlib.h>

#include <tally.h>

#define COUNT 1000000
#define STEPS 3

/* Print the library's sentence and end the program; the library itself never does. */
static void check(tally_status status, const char *what)
{
    if (status == TALLY_OK)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, tally_last_error(), tally_status_name(status));
    exit(1);
}

int main(void)
{
    static float gradient[COUNT], sum[COUNT];
    tally *ctx;
    tally_tensor *tensor;

    /* Blocks until everybody is there. NULL: the settings come from the environment. */
    check(tally_open(NULL, &ctx), "joining the job");
    int rank = tally_rank(ctx), size = tally_size(ctx);

    /* Every worker declares the same name, type and count, in any order. */
    check(tally_declare(ctx, "gradient", TALLY_DTYPE_F32, COUNT, NULL, &tensor), "declaring the tensor");

    for (int step = 1; step <= STEPS; step++) {
        tally_request *request;
        for (int i = 0; i < COUNT; i++)
            gradient[i] = (float)(step * (rank + 1));

        /* Returns at once; gradient and sum belong to the library until the request has ended. */
        check(tally_push_pull(tensor, gradient, sum, TALLY_PRIORITY_DEFAULT, &request), "starting push_pull");
        check(tally_wait(&request, -1), "push_pull");

        float right = (float)(step * size * (size + 1) / 2);
        for (int i = 0; i < COUNT; i++) {
            if (sum[i] != right) {
                fprintf(stderr, "step %d: element %d is %g, not %g\n", step, i, sum[i], right);
                return 1;
            }
        }
        printf("worker %d of %d, step %d: every element is %g\n", rank, size, step, right);
    }

    check(tally_barrier(ctx, -1), "waiting for the others");
    check(tally_undeclare(&tensor), "giving the tensor back");
    check(tally_close(ctx), "leaving the job");
    return 0;
}
