#include "bench/training.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/measure.h"
#include "bench/values.h"

/* Tensors that tly_training_check prints. */
#define WRONG_LINES 5

/* One tensor of the model in the job. */
typedef struct slot {
    const tly_model_tensor *model;
    tally_tensor *tensor;
    tally_request *request; /* NULL when none is in flight */
    void *input, *output;   /* equal in place */
} slot;

struct tly_training {
    const tly_model *model;
    tly_training_options options;
    tly_values values;
    slot *slots;                        /* as the model's tensors */
    int64_t *forward_ns, *backward_ns;  /* per layer */
    int64_t gpu_ns;                     /* when the modelled GPU is done with all it was given */
    int64_t waited_ns;
    unsigned steps;                     /* taken */
};

/* A buffer for a tensor, from the start of a cache line. */
static void *allocate(size_t len_bytes)
{
    return aligned_alloc(64, (len_bytes + 63) / 64 * 64);
}

static tally_status slot_init(slot *s, tally *ctx, const tly_model_tensor *model, int priority,
                              const tly_training *training)
{
    size_t len_bytes = model->count * training->values.element_bytes;
    s->model = model;
    s->input = allocate(len_bytes);
    s->output = training->options.out_of_place ? allocate(len_bytes) : s->input;
    if (!s->input || !s->output)
        return tly_error_memory(len_bytes, model->name);
    tally_tensor_options options = TALLY_TENSOR_OPTIONS_INIT;
    options.op = TALLY_OP_AVERAGE;
    options.priority = priority;
    return tally_declare(ctx, model->name, training->options.dtype, model->count, &options, &s->tensor);
}

static void slot_fini(slot *s)
{
    /* After tally_close every request has ended; this gives up the handle. */
    if (s->request)
        tally_wait(&s->request, 0);
    if (s->tensor)
        tally_undeclare(&s->tensor);
    if (s->output != s->input)
        free(s->output);
    free(s->input);
}

static tally_status set_times(tly_training *t)
{
    size_t layers = t->model->layer_count;
    double *forward = calloc(2 * layers, sizeof(double)), *backward = forward + layers;
    t->forward_ns = calloc(layers, sizeof(int64_t));
    t->backward_ns = calloc(layers, sizeof(int64_t));
    tally_status status = TALLY_OK;
    if (!forward || !t->forward_ns || !t->backward_ns)
        status = tly_error_memory(layers * sizeof(double), "the layers' times");
    else {
        tly_model_times(t->model, t->options.compute_s, forward, backward);
        for (size_t i = 0; i < layers; i++) {
            t->forward_ns[i] = llround(forward[i]);
            t->backward_ns[i] = llround(backward[i]);
        }
    }
    free(forward);
    return status;
}

/* Higher priority for layers that the next forward pass needs sooner. */
static int priority_of(size_t layer)
{
    return -(int)layer;
}

static tally_status set_slots(tly_training *t, tally *ctx)
{
    const tly_model *model = t->model;
    t->slots = calloc(model->tensor_count ? model->tensor_count : 1, sizeof(slot));
    if (!t->slots)
        return tly_error_memory(model->tensor_count * sizeof(slot), "the model's tensors");
    for (size_t l = 0; l < model->layer_count; l++) {
        const tly_model_layer *layer = &model->layers[l];
        for (size_t i = layer->first_tensor; i < layer->first_tensor + layer->tensor_count; i++) {
            slot *s = &t->slots[i];
            tally_status status = slot_init(s, ctx, &model->tensors[i], priority_of(l), t);
            if (status)
                return status;
            tly_values_fill(&t->values, (unsigned)i, 0, s->input, s->model->count);
        }
    }
    return TALLY_OK;
}

tally_status tly_training_create(tally *ctx, const tly_model *model, const tly_training_options *options,
                                 tly_training **training)
{
    tly_training *t = calloc(1, sizeof(*t));
    if (!t)
        return tly_error_memory(sizeof(*t), "the training run");
    t->model = model;
    t->options = *options;
    tly_values_init(&t->values, options->dtype, TALLY_OP_AVERAGE, tally_rank(ctx), tally_size(ctx));
    tally_status status = set_times(t);
    if (!status)
        status = set_slots(t, ctx);
    if (status) {
        tly_training_destroy(t);
        return status;
    }
    *training = t;
    return TALLY_OK;
}

void tly_training_destroy(tly_training *training)
{
    if (!training)
        return;
    for (size_t i = 0; training->slots && i < training->model->tensor_count; i++)
        slot_fini(&training->slots[i]);
    free(training->slots);
    free(training->forward_ns);
    free(training->backward_ns);
    free(training);
}

/* Give the modelled GPU that much more to do, and wait until it has done it. */
static void compute(tly_training *t, int64_t duration_ns)
{
    if (duration_ns == 0)
        return;
    t->gpu_ns += duration_ns;
    tly_measure_compute_until(t->gpu_ns);
}

static tally_status wait_slot(tly_training *t, slot *s)
{
    if (!s->request)
        return TALLY_OK;
    tally_status status = tally_test(&s->request);
    if (status == TALLY_EAGAIN) {
        int64_t from_ns = tly_measure_now_ns();
        status = tally_wait(&s->request, -1);
        int64_t now_ns = tly_measure_now_ns();
        t->waited_ns += now_ns - from_ns;
        if (t->gpu_ns < now_ns)
            t->gpu_ns = now_ns;
    }
    if (status)
        return tly_error_context(status, "step %u, tensor %s", t->steps - 1, s->model->name);
    return TALLY_OK;
}

static tally_status wait_layer(tly_training *t, const tly_model_layer *layer)
{
    for (size_t i = layer->first_tensor; i < layer->first_tensor + layer->tensor_count; i++) {
        tally_status status = wait_slot(t, &t->slots[i]);
        if (status)
            return status;
    }
    return TALLY_OK;
}

tally_status tly_training_drain(tly_training *training)
{
    for (size_t i = 0; i < training->model->tensor_count; i++) {
        tally_status status = wait_slot(training, &training->slots[i]);
        if (status)
            return status;
    }
    return TALLY_OK;
}

static tally_status forward(tly_training *t, bool with_compute)
{
    tally_status status = t->options.barrier ? tly_training_drain(t) : TALLY_OK;
    for (size_t l = 0; l < t->model->layer_count && !status; l++) {
        status = wait_layer(t, &t->model->layers[l]);
        if (!status && with_compute)
            compute(t, t->forward_ns[l]);
    }
    return status;
}

static void stamp_layer(tly_training *t, size_t index)
{
    const tly_model_layer *layer = &t->model->layers[index];
    for (size_t i = layer->first_tensor; i < layer->first_tensor + layer->tensor_count; i++)
        tly_values_stamp(&t->values, (unsigned)i, t->steps, t->slots[i].input, t->slots[i].model->count);
}

static tally_status issue_layer(tly_training *t, size_t index)
{
    const tly_model_layer *layer = &t->model->layers[index];
    for (size_t i = layer->first_tensor; i < layer->first_tensor + layer->tensor_count; i++) {
        slot *s = &t->slots[i];
        tally_status status =
            tally_push_pull(s->tensor, s->input, s->output, priority_of(index), &s->request);
        if (status)
            return tly_error_context(status, "step %u, tensor %s", t->steps, s->model->name);
    }
    return TALLY_OK;
}

static tally_status backward(tly_training *t, bool with_compute)
{
    for (size_t l = t->model->layer_count; l-- > 0;) {
        if (with_compute)
            compute(t, t->backward_ns[l]);
        stamp_layer(t, l);
        tally_status status = issue_layer(t, l);
        if (status)
            return status;
    }
    return TALLY_OK;
}

/* Is anything of the step before in flight? If not, the modelled GPU begins now. */
static bool is_idle(const tly_training *t)
{
    for (size_t i = 0; i < t->model->tensor_count; i++)
        if (t->slots[i].request)
            return false;
    return true;
}

tally_status tly_training_step(tly_training *training, bool compute_too)
{
    if (is_idle(training))
        training->gpu_ns = tly_measure_now_ns();
    tally_status status = forward(training, compute_too);
    if (!status)
        status = backward(training, compute_too);
    if (!status)
        training->steps++;
    return status;
}

void tly_training_stamp(tly_training *training)
{
    assert(is_idle(training));
    for (size_t l = 0; l < training->model->layer_count; l++)
        stamp_layer(training, l);
}

tally_status tly_training_exchange(tly_training *training)
{
    tally_status status = TALLY_OK;
    for (size_t l = training->model->layer_count; l-- > 0 && !status;)
        status = issue_layer(training, l);
    if (!status) {
        training->steps++;
        status = tly_training_drain(training);
    }
    return status;
}

double tly_training_waited_s(const tly_training *training)
{
    return (double)training->waited_ns * 1e-9;
}

size_t tly_training_check(const tly_training *training)
{
    assert(training->steps > 0 && is_idle(training));
    unsigned step = training->steps - 1, lines = 0;
    size_t all = 0;
    for (size_t i = 0; i < training->model->tensor_count; i++) {
        const slot *s = &training->slots[i];
        tly_values_wrong first;
        size_t wrong = tly_values_check(&training->values, (unsigned)i, 0, step, s->output, s->model->count,
                                        &first);
        if (wrong && lines++ < WRONG_LINES)
            fprintf(stderr, "tally-bench: step %u, tensor %s: element %zu is %.9g, expected %.9g "
                            "(%zu of %zu elements are wrong)\n",
                    step, s->model->name, first.index, first.found, first.right, wrong, s->model->count);
        all += wrong;
    }
    return all;
}
