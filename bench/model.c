#include "bench/model.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bounds that keep every sum below 2^63. */
#define LAYERS_MAX 100000
#define MACS_MAX UINT64_C(10000000000000)      /* 10^13 of one layer */
#define COUNT_MAX UINT64_C(1000000000000)      /* 10^12 elements of one tensor */
#define TENSORS_MAX 1000000
#define NAME_MAX_BYTES 1023                    /* the library's limit for a tensor's name */
#define FILE_MAX_BYTES (16u << 20)

/* A word of a line; not ended by 0. */
typedef struct word {
    const char *at;
    size_t len;
} word;

/* What is read so far, and where. */
typedef struct parser {
    const char *source;
    size_t line;
    const char *at, *end; /* the rest of the current line, without its comment */
    tly_model *model;
} parser;

/* The next word; len 0 at the end of the line. */
static word next_word(parser *p)
{
    while (p->at < p->end && isspace((unsigned char)*p->at))
        p->at++;
    word w = { p->at, 0 };
    while (p->at < p->end && !isspace((unsigned char)*p->at))
        p->at++;
    w.len = (size_t)(p->at - w.at);
    return w;
}

static tally_status unexpected(const parser *p, const char *expected, word found)
{
    if (found.len == 0)
        return tly_error(TALLY_EINVAL, "%s:%zu: expected %s, found the end of the line", p->source,
                         p->line, expected);
    return tly_error(TALLY_EINVAL, "%s:%zu: expected %s, found '%.*s'", p->source, p->line, expected,
                     (int)(found.len < 60 ? found.len : 60), found.at);
}

static bool is_name(word w)
{
    for (size_t i = 0; i < w.len; i++)
        if (!isgraph((unsigned char)w.at[i]) || w.at[i] == '=')
            return false;
    return w.len > 0 && w.len <= NAME_MAX_BYTES;
}

/* A decimal number without a sign, from min to max, that fills the word. */
static bool read_integer(word w, uint64_t min, uint64_t max, uint64_t *value)
{
    uint64_t v = 0;
    for (size_t i = 0; i < w.len; i++) {
        if (!isdigit((unsigned char)w.at[i]))
            return false;
        unsigned digit = (unsigned)(w.at[i] - '0');
        if (v > (max - digit) / 10)
            return false;
        v = v * 10 + digit;
    }
    if (w.len == 0 || v < min)
        return false;
    *value = v;
    return true;
}

static bool read_positive(word w, double *value)
{
    char digits[64];
    if (w.len == 0 || w.len >= sizeof(digits))
        return false;
    memcpy(digits, w.at, w.len);
    digits[w.len] = 0;
    char *rest;
    double v = strtod(digits, &rest);
    if (*rest || !isfinite(v) || v <= 0)
        return false;
    *value = v;
    return true;
}

/* Elements of a shape such as 64x3x3x3. */
static bool read_shape(word w, size_t *count)
{
    uint64_t product = 1;
    const char *at = w.at, *end = w.at + w.len;
    while (at <= end) {
        const char *x = memchr(at, 'x', (size_t)(end - at));
        word dim = { at, (size_t)((x ? x : end) - at) };
        uint64_t value;
        if (!read_integer(dim, 1, COUNT_MAX, &value) || value > COUNT_MAX / product)
            return false;
        product *= value;
        if (!x)
            break;
        at = x + 1;
    }
    *count = (size_t)product;
    return true;
}

/* Room for one more in an array that doubles. */
static tally_status grow(void **array, size_t count, size_t item_bytes, const char *purpose)
{
    if (count & (count - 1))
        return TALLY_OK;
    size_t room = count ? 2 * count : 1;
    void *grown = realloc(*array, room * item_bytes);
    if (!grown)
        return tly_error_memory(room * item_bytes, purpose);
    *array = grown;
    return TALLY_OK;
}

static tally_status copy_word(word w, char **copy)
{
    char *text = strndup(w.at, w.len);
    if (!text)
        return tly_error_memory(w.len + 1, "a model table");
    *copy = text;
    return TALLY_OK;
}

static tally_status end_of_line(parser *p)
{
    word extra = next_word(p);
    return extra.len ? unexpected(p, "the end of the line", extra) : TALLY_OK;
}

static tally_status read_name(parser *p)
{
    word w = next_word(p);
    if (!is_name(w))
        return unexpected(p, "a name for the model", w);
    tally_status status = copy_word(w, &p->model->name);
    return status ? status : end_of_line(p);
}

static tally_status read_batch(parser *p)
{
    uint64_t value;
    word w = next_word(p);
    if (!read_integer(w, 1, 1000000, &value))
        return unexpected(p, "a batch of 1 to 1000000 images", w);
    p->model->batch = (int)value;
    return end_of_line(p);
}

static tally_status read_rate(parser *p)
{
    word w = next_word(p);
    if (!read_positive(w, &p->model->images_per_s))
        return unexpected(p, "images per second, above 0", w);
    return end_of_line(p);
}

/* One "weight=64x3x3x3" of a layer. */
static tally_status read_tensor(parser *p, tly_model_layer *layer, word w)
{
    tly_model *model = p->model;
    const char *equals = memchr(w.at, '=', w.len);
    word name = { w.at, equals ? (size_t)(equals - w.at) : w.len };
    word shape = { equals ? equals + 1 : w.at + w.len, 0 };
    shape.len = (size_t)(w.at + w.len - shape.at);
    size_t count;
    if (!equals || !is_name(name) || !read_shape(shape, &count))
        return unexpected(p, "a tensor such as weight=64x3x3x3", w);
    size_t full_len = strlen(layer->name) + 1 + name.len;
    if (full_len > NAME_MAX_BYTES)
        return unexpected(p, "at most 1023 bytes of layer and tensor name", name);
    if (model->tensor_count == TENSORS_MAX)
        return unexpected(p, "at most 1000000 tensors", name);

    tally_status status = grow((void **)&model->tensors, model->tensor_count, sizeof(*model->tensors),
                               "a model's tensors");
    if (status)
        return status;
    tly_model_tensor *tensor = &model->tensors[model->tensor_count];
    *tensor = (tly_model_tensor){ .count = count };
    model->tensor_count++;
    layer->tensor_count++;
    tensor->name = malloc(full_len + 1);
    if (!tensor->name)
        return tly_error_memory(full_len + 1, "a tensor's name");
    snprintf(tensor->name, full_len + 1, "%s.%.*s", layer->name, (int)name.len, name.at);
    status = copy_word(shape, &tensor->shape);
    if (status)
        return status;
    model->params += count;
    return TALLY_OK;
}

static tally_status read_layer(parser *p)
{
    tly_model *model = p->model;
    word name = next_word(p);
    if (!is_name(name))
        return unexpected(p, "the layer's name", name);
    word macs = next_word(p);
    uint64_t value;
    if (!read_integer(macs, 0, MACS_MAX, &value))
        return unexpected(p, "the layer's multiply-adds, 0 to 10^13", macs);
    if (model->layer_count == LAYERS_MAX)
        return unexpected(p, "at most 100000 layers", name);

    tally_status status = grow((void **)&model->layers, model->layer_count, sizeof(*model->layers),
                               "a model's layers");
    if (status)
        return status;
    tly_model_layer *layer = &model->layers[model->layer_count];
    *layer = (tly_model_layer){ .macs = value, .first_tensor = model->tensor_count };
    status = copy_word(name, &layer->name);
    if (status)
        return status;
    model->layer_count++;
    model->macs += value;
    for (word w = next_word(p); w.len; w = next_word(p)) {
        status = read_tensor(p, layer, w);
        if (status)
            return status;
    }
    return TALLY_OK;
}

typedef struct statement {
    const char *word;
    tally_status (*read)(parser *p);
    bool once;
} statement;

static const statement statements[] = {
    { "name", read_name, true },
    { "batch", read_batch, true },
    { "images_per_s", read_rate, true },
    { "layer", read_layer, false },
};
#define STATEMENT_COUNT (sizeof(statements) / sizeof(statements[0]))

/* seen: a line number per statement, 0 for none yet. */
static tally_status read_line(parser *p, size_t seen[STATEMENT_COUNT])
{
    word first = next_word(p);
    if (first.len == 0)
        return TALLY_OK;
    for (size_t i = 0; i < STATEMENT_COUNT; i++) {
        const statement *s = &statements[i];
        if (strlen(s->word) != first.len || memcmp(s->word, first.at, first.len) != 0)
            continue;
        if (s->once && seen[i])
            return tly_error(TALLY_EINVAL, "%s:%zu: expected '%s' once, found it again after line %zu",
                             p->source, p->line, s->word, seen[i]);
        seen[i] = p->line;
        return s->read(p);
    }
    return unexpected(p, "name, batch, images_per_s or layer", first);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(const tly_model_tensor *const *)a)->name, (*(const tly_model_tensor *const *)b)->name);
}

/* Two tensors of one name would be one tensor in the job. */
static tally_status check_names(const parser *p)
{
    const tly_model *model = p->model;
    if (model->tensor_count == 0)
        return TALLY_OK;
    const tly_model_tensor **sorted = malloc(model->tensor_count * sizeof(*sorted));
    if (!sorted)
        return tly_error_memory(model->tensor_count * sizeof(*sorted), "a model's tensor names");
    for (size_t i = 0; i < model->tensor_count; i++)
        sorted[i] = &model->tensors[i];
    qsort(sorted, model->tensor_count, sizeof(*sorted), by_name);
    tally_status status = TALLY_OK;
    for (size_t i = 1; i < model->tensor_count && !status; i++)
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0)
            status = tly_error(TALLY_EINVAL, "%s:%zu: expected each tensor once, found '%s' twice",
                               p->source, p->line, sorted[i]->name);
    free(sorted);
    return status;
}

/* At the end of the text: is everything there? */
static tally_status check_complete(const parser *p, const size_t seen[STATEMENT_COUNT])
{
    for (size_t i = 0; i < STATEMENT_COUNT; i++)
        if (!seen[i])
            return tly_error(TALLY_EINVAL, "%s:%zu: expected a line '%s', found the end of the table",
                             p->source, p->line, statements[i].word);
    if (p->model->macs == 0)
        return tly_error(TALLY_EINVAL, "%s:%zu: expected multiply-adds in at least one layer, found none",
                         p->source, p->line);
    return check_names(p);
}

static tally_status read_table(parser *p, const char *text, const char *text_end)
{
    size_t seen[STATEMENT_COUNT] = { 0 };
    while (text < text_end) {
        const char *newline = memchr(text, '\n', (size_t)(text_end - text));
        const char *line_end = newline ? newline : text_end;
        const char *comment = memchr(text, '#', (size_t)(line_end - text));
        p->line++;
        p->at = text;
        p->end = comment ? comment : line_end;
        tally_status status = read_line(p, seen);
        if (status)
            return status;
        text = newline ? newline + 1 : text_end;
    }
    return check_complete(p, seen);
}

tally_status tly_model_parse(const char *text, size_t len_bytes, const char *source, tly_model **model)
{
    parser p = { .source = source, .model = calloc(1, sizeof(tly_model)) };
    if (!p.model)
        return tly_error_memory(sizeof(tly_model), "a model");
    tally_status status = read_table(&p, text, text + len_bytes);
    if (status) {
        tly_model_destroy(p.model);
        return status;
    }
    *model = p.model;
    return TALLY_OK;
}

/* The names of the built-in models, "vgg16, resnet50". */
static void list_tables(char *out, size_t room)
{
    size_t used = 0;
    out[0] = 0;
    for (const tly_model_table *t = tly_model_tables; t->name && used < room; t++) {
        int n = snprintf(out + used, room - used, "%s%s", t == tly_model_tables ? "" : ", ", t->name);
        used += n > 0 ? (size_t)n : 0;
    }
}

static tally_status load_file(const char *path, tly_model **model)
{
    tally_status status;
    FILE *file = fopen(path, "rb");
    if (!file) {
        int error = errno;
        char names[256];
        list_tables(names, sizeof(names));
        return tly_error(TALLY_EINVAL,
                         "'%s' is neither a built-in model (%s) nor a file that can be read: %s", path, names,
                         strerror(error));
    }
    char *text = malloc(FILE_MAX_BYTES + 1);
    if (!text) {
        status = tly_error_memory(FILE_MAX_BYTES + 1, "a model's file");
        goto close_file;
    }
    errno = 0;
    size_t len = fread(text, 1, FILE_MAX_BYTES + 1, file);
    if (ferror(file))
        status = tly_error(TALLY_EINVAL, "%s: cannot be read: %s", path, strerror(errno));
    else if (len > FILE_MAX_BYTES)
        status = tly_error(TALLY_EINVAL, "%s: expected at most %u bytes, found more", path, FILE_MAX_BYTES);
    else
        status = tly_model_parse(text, len, path, model);
    free(text);
close_file:
    fclose(file);
    return status;
}

tally_status tly_model_load(const char *name_or_path, tly_model **model)
{
    for (const tly_model_table *t = tly_model_tables; t->name; t++)
        if (strcmp(t->name, name_or_path) == 0)
            return tly_model_parse(t->text, (size_t)(t->end - t->text), t->name, model);
    return load_file(name_or_path, model);
}

void tly_model_destroy(tly_model *model)
{
    if (!model)
        return;
    for (size_t i = 0; i < model->tensor_count; i++) {
        free(model->tensors[i].name);
        free(model->tensors[i].shape);
    }
    for (size_t i = 0; i < model->layer_count; i++)
        free(model->layers[i].name);
    free(model->tensors);
    free(model->layers);
    free(model->name);
    free(model);
}

void tly_model_times(const tly_model *model, double step_s, double *forward_ns, double *backward_ns)
{
    double units = 3.0 * (double)model->macs - (double)model->layers[0].macs;
    for (size_t i = 0; i < model->layer_count; i++) {
        forward_ns[i] = step_s * 1e9 * (double)model->layers[i].macs / units;
        backward_ns[i] = i == 0 ? forward_ns[i] : 2 * forward_ns[i];
    }
}
