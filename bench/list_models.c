/* tally-bench models: what the model tables say. */
#include <argp.h>
#include <stdbool.h>
#include <stdio.h>

#include "bench/command.h"
#include "bench/model.h"

typedef struct arguments {
    bool verbose;
    char **names; /* the models asked for; count 0: the built-in ones */
    int count;
} arguments;

static const struct argp_option options[] = {
    { "verbose", 'v', NULL, 0, "also list each layer's multiply-adds and tensors", 0 },
    { 0 },
};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    arguments *a = state->input;
    (void)argument;
    switch (key) {
    case 'v':
        a->verbose = true;
        return 0;
    case ARGP_KEY_ARGS:
        a->names = state->argv + state->next;
        a->count = state->argc - state->next;
        state->next = state->argc;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_head(void)
{
    printf("# %-14s %7s %8s %12s %9s %6s %9s %9s\n", "model", "layers", "tensors", "parameters", "MACs",
           "batch", "rate", "step");
    printf("# %-14s %7s %8s %12s %9s %6s %9s %9s\n", "", "", "", "", "(G)", "", "(image/s)", "(s)");
}

static void print_layers(const tly_model *model)
{
    printf("# %-24s %9s  %s\n# %-24s %9s\n", "layer", "MACs", "tensors", "", "(M)");
    for (size_t l = 0; l < model->layer_count; l++) {
        const tly_model_layer *layer = &model->layers[l];
        printf("  %-24s %9.1f ", layer->name, (double)layer->macs * 1e-6);
        for (size_t i = layer->first_tensor; i < layer->first_tensor + layer->tensor_count; i++)
            printf(" %s (%s: %zu)", model->tensors[i].name, model->tensors[i].shape, model->tensors[i].count);
        putchar('\n');
    }
}

static tally_status print_model(const char *name, bool verbose)
{
    tly_model *model;
    tally_status status = tly_model_load(name, &model);
    if (status)
        return status;
    printf("  %-14s %7zu %8zu %12llu %9.3f %6d %9.1f %9.4f\n", model->name, model->layer_count,
           model->tensor_count, (unsigned long long)model->params, (double)model->macs * 1e-9, model->batch,
           model->images_per_s, model->batch / model->images_per_s);
    if (verbose)
        print_layers(model);
    tly_model_destroy(model);
    return TALLY_OK;
}

tally_status tly_command_models(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .args_doc = "[MODEL|FILE...]",
        .doc = "List the built-in models, or the given models and files.",
    };
    arguments a = { 0 };
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    print_head();
    tally_status status = TALLY_OK;
    for (int i = 0; i < a.count && !status; i++)
        status = print_model(a.names[i], a.verbose);
    for (const tly_model_table *t = tly_model_tables; a.count == 0 && t->name && !status; t++)
        status = print_model(t->name, a.verbose);
    return status;
}
