#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "bench/model.h"

static tly_model *load(const char *name)
{
    tly_model *model = NULL;
    assert_int_equal(tly_model_load(name, &model), TALLY_OK);
    assert_non_null(model);
    return model;
}

static tally_status parse(const char *text, tly_model **model)
{
    return tly_model_parse(text, strlen(text), "t", model);
}

/* Any table that is refused leaves the output as it was and says exactly this. */
static void assert_refused(const char *text, const char *sentence)
{
    tly_model *model = NULL;
    assert_int_equal(parse(text, &model), TALLY_EINVAL);
    assert_null(model);
    assert_string_equal(tly_error_text(), sentence);
}

static void vgg16_has_32_tensors_of_138357544_parameters(void **state)
{
    (void)state;
    tly_model *m = load("vgg16");
    assert_string_equal(m->name, "vgg16");
    assert_int_equal(m->layer_count, 16);
    assert_int_equal(m->tensor_count, 32);
    assert_int_equal(m->params, 138357544);
    assert_int_equal(m->macs, 15470264320);
    assert_int_equal(m->batch, 64);
    assert_true(m->images_per_s == 208.5);
    tly_model_destroy(m);
}

static void resnet50_has_161_tensors_of_25557032_parameters(void **state)
{
    (void)state;
    tly_model *m = load("resnet50");
    assert_string_equal(m->name, "resnet50");
    assert_int_equal(m->layer_count, 107);
    assert_int_equal(m->tensor_count, 161);
    assert_int_equal(m->params, 25557032);
    assert_int_equal(m->macs, 4089184256);
    assert_int_equal(m->batch, 64);
    assert_true(m->images_per_s == 343.2);
    tly_model_destroy(m);
}

static void resnet50_has_109_tensors_under_64_kib(void **state)
{
    (void)state;
    tly_model *m = load("resnet50");
    size_t small = 0;
    for (size_t i = 0; i < m->tensor_count; i++)
        small += m->tensors[i].count * 4 < 64 * 1024;
    assert_int_equal(small, 109);
    tly_model_destroy(m);
}

static void bert_large_has_398_tensors_of_336226108_parameters(void **state)
{
    (void)state;
    tly_model *m = load("bert-large");
    assert_string_equal(m->name, "bert-large");
    assert_int_equal(m->layer_count, 225);
    assert_int_equal(m->tensor_count, 398);
    assert_int_equal(m->params, 336226108);
    assert_int_equal(m->macs, 40107124736);
    assert_int_equal(m->batch, 32);
    assert_true(m->images_per_s == 33.5);
    tly_model_destroy(m);
}

static void gpt2_has_148_tensors_of_124439808_parameters(void **state)
{
    (void)state;
    tly_model *m = load("gpt2");
    assert_string_equal(m->name, "gpt2");
    assert_int_equal(m->layer_count, 88);
    assert_int_equal(m->tensor_count, 148);
    assert_int_equal(m->params, 124439808);
    assert_int_equal(m->macs, 145824153600);
    assert_int_equal(m->batch, 8);
    assert_true(m->images_per_s == 9.2);
    tly_model_destroy(m);
}

static size_t index_of(const tly_model *m, const char *tensor)
{
    for (size_t i = 0; i < m->tensor_count; i++)
        if (strcmp(m->tensors[i].name, tensor) == 0)
            return i;
    return SIZE_MAX;
}

/* Nothing is exchanged twice, and the embedding's gradient is the last that the backward pass completes. */
static void a_tied_decoder_has_no_tensor_of_its_own_and_the_embedding_comes_first(void **state)
{
    (void)state;
    tly_model *m = load("bert-large");
    assert_int_equal(index_of(m, "bert.embeddings.word_embeddings.weight"), 0);
    assert_int_equal(m->tensors[0].count, 30522 * 1024);
    assert_int_equal(index_of(m, "cls.predictions.weight"), SIZE_MAX);
    assert_int_equal(m->tensors[index_of(m, "cls.predictions.bias")].count, 30522);
    tly_model_destroy(m);
    m = load("gpt2");
    assert_int_equal(index_of(m, "transformer.wte.weight"), 0);
    assert_int_equal(m->tensors[0].count, 50257 * 768);
    assert_int_equal(m->layers[m->layer_count - 1].tensor_count, 0);
    assert_int_equal(m->layers[m->layer_count - 1].macs, UINT64_C(1024) * 768 * 50257);
    tly_model_destroy(m);
}

static void every_built_in_model_has_the_totals_of_its_tensors(void **state)
{
    (void)state;
    for (const tly_model_table *t = tly_model_tables; t->name; t++) {
        tly_model *m = load(t->name);
        assert_string_equal(m->name, t->name);
        uint64_t params = 0, macs = 0;
        size_t next = 0;
        for (size_t l = 0; l < m->layer_count; l++) {
            assert_int_equal(m->layers[l].first_tensor, next);
            next += m->layers[l].tensor_count;
            macs += m->layers[l].macs;
        }
        for (size_t i = 0; i < m->tensor_count; i++)
            params += m->tensors[i].count;
        assert_int_equal(next, m->tensor_count);
        assert_int_equal(params, m->params);
        assert_int_equal(macs, m->macs);
        tly_model_destroy(m);
    }
}

static void all_layers_times_together_are_the_step(void **state)
{
    (void)state;
    for (const tly_model_table *t = tly_model_tables; t->name; t++) {
        tly_model *m = load(t->name);
        double *forward = calloc(m->layer_count, sizeof(double));
        double *backward = calloc(m->layer_count, sizeof(double));
        double sum = 0;
        tly_model_times(m, 0.25, forward, backward);
        for (size_t l = 0; l < m->layer_count; l++)
            sum += forward[l] + backward[l];
        assert_true(fabs(sum - 0.25e9) < 1);
        free(forward);
        free(backward);
        tly_model_destroy(m);
    }
}

static void backward_takes_twice_the_forward_but_once_for_the_first_layer(void **state)
{
    (void)state;
    tly_model *m = NULL;
    assert_int_equal(parse("name x\nbatch 1\nimages_per_s 1\n"
                           "layer a 10 w=1\nlayer b 20 w=1\nlayer c 0 w=1\n", &m), TALLY_OK);
    double forward[3], backward[3];
    tly_model_times(m, 80e-9, forward, backward); /* U = 3 * 30 - 10: one nanosecond per multiply-add */
    const double expected_forward[] = { 10, 20, 0 }, expected_backward[] = { 10, 40, 0 };
    for (int i = 0; i < 3; i++) {
        assert_true(fabs(forward[i] - expected_forward[i]) < 1e-9);
        assert_true(fabs(backward[i] - expected_backward[i]) < 1e-9);
    }
    tly_model_destroy(m);
}

static void a_table_gives_its_layers_and_tensors_in_order(void **state)
{
    (void)state;
    tly_model *m = NULL;
    assert_int_equal(parse("# a comment\n\n  layer a 5 w=2x3 b=7 # another\nname x\r\nbatch 3\n"
                           "layer b 0\nimages_per_s 1.5\nlayer c 1 w=9", &m), TALLY_OK);
    assert_string_equal(m->name, "x");
    assert_int_equal(m->batch, 3);
    assert_true(m->images_per_s == 1.5);
    assert_int_equal(m->layer_count, 3);
    assert_int_equal(m->tensor_count, 3);
    assert_string_equal(m->layers[1].name, "b");
    assert_int_equal(m->layers[0].tensor_count, 2);
    assert_int_equal(m->layers[1].tensor_count, 0);
    assert_int_equal(m->layers[2].first_tensor, 2);
    assert_string_equal(m->tensors[0].name, "a.w");
    assert_string_equal(m->tensors[0].shape, "2x3");
    assert_int_equal(m->tensors[0].count, 6);
    assert_string_equal(m->tensors[1].name, "a.b");
    assert_int_equal(m->tensors[1].count, 7);
    assert_string_equal(m->tensors[2].name, "c.w");
    assert_int_equal(m->params, 22);
    tly_model_destroy(m);
}

#define HEAD "name x\nbatch 1\nimages_per_s 1\n"

static void a_wrong_table_is_refused_with_its_line_and_what_was_expected(void **state)
{
    (void)state;
    assert_refused("", "t:0: expected a line 'name', found the end of the table");
    assert_refused("name x\nbatch 1\nlayer a 1 w=1\n",
                   "t:3: expected a line 'images_per_s', found the end of the table");
    assert_refused(HEAD, "t:3: expected a line 'layer', found the end of the table");
    assert_refused(HEAD "layer a 0 w=1\n",
                   "t:4: expected multiply-adds in at least one layer, found none");
    assert_refused("names x\n", "t:1: expected name, batch, images_per_s or layer, found 'names'");
    assert_refused("\nname\n", "t:2: expected a name for the model, found the end of the line");
    assert_refused("name x y\n", "t:1: expected the end of the line, found 'y'");
    assert_refused(HEAD "name y\n", "t:4: expected 'name' once, found it again after line 1");
    assert_refused("batch 0\n", "t:1: expected a batch of 1 to 1000000 images, found '0'");
    assert_refused("batch 1.5\n", "t:1: expected a batch of 1 to 1000000 images, found '1.5'");
    assert_refused("images_per_s -1\n", "t:1: expected images per second, above 0, found '-1'");
    assert_refused("images_per_s inf\n", "t:1: expected images per second, above 0, found 'inf'");
    assert_refused("layer\n", "t:1: expected the layer's name, found the end of the line");
    assert_refused("layer a -1\n", "t:1: expected the layer's multiply-adds, 0 to 10^13, found '-1'");
    assert_refused("layer a 10000000000001\n",
                   "t:1: expected the layer's multiply-adds, 0 to 10^13, found '10000000000001'");
    assert_refused("layer a 99999999999999999999999\n",
                   "t:1: expected the layer's multiply-adds, 0 to 10^13, found '99999999999999999999999'");
    assert_refused(HEAD "layer a 1 w=1\nlayer a 1 w=1\n",
                   "t:5: expected each tensor once, found 'a.w' twice");
}

static void a_wrong_tensor_is_refused(void **state)
{
    (void)state;
    static const char *const tensors[] = { "w",     "w=",       "=1",       "w=0",  "w=1x",
                                           "w=x1",  "w=1x0x2",  "w=1xx2",   "w=-1", "w=1,2",
                                           "w=1.5", "w=1000000x1000000x10", "w==1" };
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
        char text[128], sentence[256];
        snprintf(text, sizeof(text), HEAD "layer a 1 %s\n", tensors[i]);
        snprintf(sentence, sizeof(sentence), "t:4: expected a tensor such as weight=64x3x3x3, found '%s'",
                 tensors[i]);
        assert_refused(text, sentence);
    }
}

static void a_tensor_name_longer_than_the_library_takes_is_refused(void **state)
{
    (void)state;
    char layer[1024], text[2048];
    memset(layer, 'l', 1021);
    layer[1021] = 0;
    tly_model *m = NULL;
    snprintf(text, sizeof(text), HEAD "layer %s 1 w=1\n", layer);
    assert_int_equal(parse(text, &m), TALLY_OK);
    assert_int_equal(strlen(m->tensors[0].name), 1023);
    tly_model_destroy(m);
    snprintf(text, sizeof(text), HEAD "layer %s 1 ww=1\n", layer);
    assert_refused(text, "t:4: expected at most 1023 bytes of layer and tensor name, found 'ww'");
}

static void a_table_cut_anywhere_is_refused_or_read_but_never_crashes(void **state)
{
    (void)state;
    const tly_model_table *t = &tly_model_tables[0];
    for (size_t len = 0; len <= (size_t)(t->end - t->text); len++) {
        /* a copy of that size exactly, so that a read past the end shows */
        char *copy = malloc(len ? len : 1);
        tly_model *m = NULL;
        memcpy(copy, t->text, len);
        tally_status status = tly_model_parse(copy, len, "cut", &m);
        assert_true(status == TALLY_OK || status == TALLY_EINVAL);
        tly_model_destroy(m);
        free(copy);
    }
}

static void a_file_is_read_like_a_built_in_table(void **state)
{
    (void)state;
    char path[] = "/tmp/tally-test-model-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char good[] = HEAD "layer a 1 w=5\n", bad[] = HEAD "layer a b w=5\n";
    assert_int_equal(write(fd, good, sizeof(good) - 1), sizeof(good) - 1);
    tly_model *m = load(path);
    assert_int_equal(m->params, 5);
    tly_model_destroy(m);

    assert_int_equal(pwrite(fd, bad, sizeof(bad) - 1, 0), sizeof(bad) - 1);
    m = NULL;
    assert_int_equal(tly_model_load(path, &m), TALLY_EINVAL);
    assert_null(m);
    char sentence[256];
    snprintf(sentence, sizeof(sentence),
             "%s:4: expected the layer's multiply-adds, 0 to 10^13, found 'b'", path);
    assert_string_equal(tly_error_text(), sentence);
    close(fd);
    unlink(path);
}

static void a_name_that_is_neither_model_nor_file_is_refused_with_the_models_there_are(void **state)
{
    (void)state;
    tly_model *m = NULL;
    assert_int_equal(tly_model_load("/nonexistent/model", &m), TALLY_EINVAL);
    assert_null(m);
    assert_string_equal(tly_error_text(),
                        "'/nonexistent/model' is neither a built-in model (vgg16, resnet50, bert-large, "
                        "gpt2) nor a file that can be read: No such file or directory");
    assert_int_equal(tly_model_load("/tmp", &m), TALLY_EINVAL);
    assert_string_equal(tly_error_text(), "/tmp: cannot be read: Is a directory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(vgg16_has_32_tensors_of_138357544_parameters),
        cmocka_unit_test(resnet50_has_161_tensors_of_25557032_parameters),
        cmocka_unit_test(resnet50_has_109_tensors_under_64_kib),
        cmocka_unit_test(bert_large_has_398_tensors_of_336226108_parameters),
        cmocka_unit_test(gpt2_has_148_tensors_of_124439808_parameters),
        cmocka_unit_test(a_tied_decoder_has_no_tensor_of_its_own_and_the_embedding_comes_first),
        cmocka_unit_test(every_built_in_model_has_the_totals_of_its_tensors),
        cmocka_unit_test(all_layers_times_together_are_the_step),
        cmocka_unit_test(backward_takes_twice_the_forward_but_once_for_the_first_layer),
        cmocka_unit_test(a_table_gives_its_layers_and_tensors_in_order),
        cmocka_unit_test(a_wrong_table_is_refused_with_its_line_and_what_was_expected),
        cmocka_unit_test(a_wrong_tensor_is_refused),
        cmocka_unit_test(a_tensor_name_longer_than_the_library_takes_is_refused),
        cmocka_unit_test(a_table_cut_anywhere_is_refused_or_read_but_never_crashes),
        cmocka_unit_test(a_file_is_read_like_a_built_in_table),
        cmocka_unit_test(a_name_that_is_neither_model_nor_file_is_refused_with_the_models_there_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
