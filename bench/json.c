#include "bench/json.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 8

struct tly_json {
    FILE *file;
    json_t *open[DEPTH_MAX]; /* open[0] is ours, the others belong to their parents */
    int depth;
    bool failed;
    char path[];
};

tally_status tly_json_open(const char *path, tly_json **json)
{
    tally_status status;
    if (!path) {
        *json = NULL;
        return TALLY_OK;
    }
    size_t path_bytes = strlen(path) + 1;
    tly_json *j = calloc(1, sizeof(*j) + path_bytes);
    if (!j)
        return tly_error_memory(sizeof(*j) + path_bytes, "the JSON file");
    memcpy(j->path, path, path_bytes);
    j->open[0] = json_object();
    if (!j->open[0]) {
        status = tly_error_memory(sizeof(json_t), "the JSON file");
        goto free_json;
    }
    j->file = fopen(path, "w");
    if (!j->file) {
        status = tly_error(TALLY_ESYSTEM, "--json %s: cannot be written: %s", path, strerror(errno));
        goto free_object;
    }
    *json = j;
    return TALLY_OK;
free_object:
    json_decref(j->open[0]);
free_json:
    free(j);
    return status;
}

/* Takes the value, which may be NULL when memory was short. */
static void set(tly_json *json, const char *key, json_t *value)
{
    if (json_object_set_new(json->open[json->depth], key, value))
        json->failed = true;
}

/* jansson refuses what JSON has no number for. */
static json_t *number(double value)
{
    json_t *real = json_real(value);
    return real ? real : json_null();
}

void tly_json_text(tly_json *json, const char *key, const char *value)
{
    if (json)
        set(json, key, value ? json_string(value) : json_null());
}

void tly_json_integer(tly_json *json, const char *key, int64_t value)
{
    if (json)
        set(json, key, json_integer(value));
}

void tly_json_number(tly_json *json, const char *key, double value)
{
    if (json)
        set(json, key, number(value));
}

void tly_json_samples(tly_json *json, const char *key, const tly_samples *samples)
{
    if (!json)
        return;
    json_t *array = json_array();
    for (size_t i = 0; i < samples->count; i++)
        if (json_array_append_new(array, number(samples->values[i])))
            json->failed = true;
    set(json, key, array);
}

/* Go into an object that has a parent already; NULL when memory was short. Members then go to the
 * parent, which does no harm: the file will not be written. */
static void go_into(tly_json *json, json_t *object)
{
    assert(json->depth + 1 < DEPTH_MAX);
    json_t *parent = json->open[json->depth];
    json->failed = json->failed || !object;
    json->open[++json->depth] = object ? object : parent;
}

void tly_json_enter(tly_json *json, const char *key)
{
    if (!json)
        return;
    set(json, key, json_object());
    go_into(json, json_object_get(json->open[json->depth], key));
}

void tly_json_enter_row(tly_json *json, const char *array_key)
{
    if (!json)
        return;
    json_t *array = json_object_get(json->open[json->depth], array_key);
    if (!array) {
        set(json, array_key, json_array());
        array = json_object_get(json->open[json->depth], array_key);
    }
    json_t *row = json_object();
    go_into(json, json_array_append_new(array, row) ? NULL : row);
}

void tly_json_leave(tly_json *json)
{
    if (!json)
        return;
    assert(json->depth > 0);
    json->depth--;
}

tally_status tly_json_close(tly_json *json)
{
    if (!json)
        return TALLY_OK;
    assert(json->depth == 0);
    if (json->failed) {
        tally_status status = tly_error(TALLY_ENOMEM, "--json %s: out of memory", json->path);
        tly_json_discard(json);
        return status;
    }
    errno = 0;
    bool written = json_dumpf(json->open[0], json->file, JSON_INDENT(1) | JSON_REAL_PRECISION(12)) == 0
                   && fputc('\n', json->file) != EOF && fflush(json->file) == 0;
    tally_status status = TALLY_OK;
    if (!written)
        status = tly_error(TALLY_ESYSTEM, "--json %s: cannot be written: %s", json->path, strerror(errno));
    fclose(json->file);
    json_decref(json->open[0]);
    free(json);
    return status;
}

void tly_json_discard(tly_json *json)
{
    if (!json)
        return;
    fclose(json->file);
    json_decref(json->open[0]);
    free(json);
}
