/* model.h - tables of neural networks: layers, their tensors and their multiply-adds.
 *
 * A table is text, one statement a line; '#' begins a comment. All of name, batch and images_per_s
 * are given once, anywhere; layers stand in the order of the forward pass:
 *
 *     name vgg16
 *     batch 64                  images (or sequences) of one step on one GPU
 *     images_per_s 208.5        of one GPU, forward and backward
 *     layer features.0 86704128 weight=64x3x3x3 bias=64
 *           (name)     (multiply-adds of one image, forward)  (tensor=shape, any number)
 *
 * A tensor's full name is "features.0.weight". The built-in tables are the files bench/models/,
 * which are part of the program (tables.c); a user's file has the same format.
 *
 * A model is immutable once loaded; any thread may read it. */
#ifndef TLY_BENCH_MODEL_H
#define TLY_BENCH_MODEL_H

#include "common/status.h"

typedef struct tly_model_tensor {
    char *name;   /* with its layer's: "features.0.weight" */
    char *shape;  /* as written: "64x3x3x3" */
    size_t count; /* elements, 1 or more */
} tly_model_tensor;

typedef struct tly_model_layer {
    char *name;
    uint64_t macs;       /* multiply-adds of one image's forward pass */
    size_t first_tensor; /* index into the model's tensors; a layer's tensors are neighbours */
    size_t tensor_count;
} tly_model_layer;

typedef struct tly_model {
    char *name;
    int batch;           /* images of one step on one GPU */
    double images_per_s; /* of one GPU */
    tly_model_layer *layers;
    size_t layer_count;  /* 1 or more */
    tly_model_tensor *tensors;
    size_t tensor_count;
    uint64_t params;     /* sum of the tensors' counts */
    uint64_t macs;       /* sum over the layers, 1 or more */
} tly_model;

/* Read a table.
 *
 * text:    len_bytes bytes. source: how errors call it.
 * Memory:  *model is the caller's; tly_model_destroy ends it.
 * Returns: TALLY_OK
 *          TALLY_EINVAL  the sentence says "source:line: expected ..., found ..."
 *          TALLY_ENOMEM */
tally_status tly_model_parse(const char *text, size_t len_bytes, const char *source, tly_model **model);

/* Load a built-in model by name, or else the file of that name.
 * Returns: as tly_model_parse; TALLY_EINVAL also when there is neither: the sentence names the
 *          built-in ones and says why the file cannot be read. */
tally_status tly_model_load(const char *name_or_path, tly_model **model);

/* NULL is allowed. */
void tly_model_destroy(tly_model *model);

/* Divide one step's compute time among the layers, in nanoseconds.
 *
 * With U = 3 * sum(MAC) - MAC_first, a layer's forward takes step_s * MAC / U; its backward twice
 * that (a gradient for the weights and one for the input), once for the first layer, whose input
 * needs none. All together take step_s.
 * forward_ns, backward_ns: layer_count values each. */
void tly_model_times(const tly_model *model, double step_s, double *forward_ns, double *backward_ns);

/* A table inside the program. */
typedef struct tly_model_table {
    const char *name;
    const char *text, *end;
} tly_model_table;

/* All of them, ended by a NULL name. */
extern const tly_model_table tly_model_tables[];

#endif
