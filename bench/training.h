/* training.h - the exchanges of a data-parallel training run, with a GPU that only takes its time.
 *
 * A step is a forward and a backward pass. The backward pass begins with the last layer; when a
 * layer's time has passed its tensors are issued, first layer with the highest priority. The next
 * step's forward pass waits at each layer for the tensors of that layer only, or with `barrier` at
 * its start for all. So after a step its exchanges are still in flight: tly_training_drain waits.
 *
 * The modelled GPU has its own clock: it moves on by each layer's time, and is held up by tensors
 * that come late, but not by a late wake-up of this thread, as a GPU with a filled queue is not.
 *
 * Gradients are averaged. Owned by one thread. */
#ifndef TLY_BENCH_TRAINING_H
#define TLY_BENCH_TRAINING_H

#include <stdbool.h>

#include "bench/model.h"

typedef struct tly_training_options {
    tally_dtype dtype;
    bool out_of_place;
    bool barrier;
    double compute_s; /* of one step; 0: none */
} tly_training_options;

typedef struct tly_training tly_training;

/* Declare the model's tensors and fill their gradients.
 *
 * Memory:  model must outlive *training. tly_training_destroy ends *training.
 * Returns: TALLY_OK, TALLY_ENOMEM, or what tally_declare returns. On failure what was allocated has
 *          been freed. */
tally_status tly_training_create(tally *ctx, const tly_model *model, const tly_training_options *options,
                                 tly_training **training);

/* Free. Call it after tally_close: only then does the library let go of buffers that are in flight.
 * NULL is allowed. */
void tly_training_destroy(tly_training *training);

/* One step; its number is that of the steps before. compute: false leaves the layers' times out.
 * Blocks:  for the modelled time and for the tensors of the step before.
 * Returns: TALLY_OK, or what a tensor's exchange ended with: the sentence names step and tensor */
tally_status tly_training_step(tly_training *training, bool compute);

/* The same for a step whose tensors are all ready at once, in two parts, so that the second can be
 * timed alone: write what the step contributes (drained only); then issue all tensors, last layer
 * first, and wait for all. */
void tly_training_stamp(tly_training *training);
tally_status tly_training_exchange(tly_training *training);

/* Wait for all exchanges. Returns as tly_training_step. */
tally_status tly_training_drain(tly_training *training);

/* Time that steps have waited for tensors, in seconds, so far. */
double tly_training_waited_s(const tly_training *training);

/* Compare every element of every tensor with what the last step must have given; drained only.
 * Prints a line to standard error for each of the first few tensors that are wrong.
 * Returns: the number of wrong elements. */
size_t tly_training_check(const tly_training *training);

#endif
