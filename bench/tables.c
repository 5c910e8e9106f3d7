/* The built-in model tables. The assembler puts the files of bench/models/ into the program, so that
 * an installed tally-bench needs no data directory. To add a model, add its file and a row here. */
#include "bench/model.h"

/* symbol, name */
#define MODELS(X)               \
    X(vgg16, "vgg16")           \
    X(resnet50, "resnet50")     \
    X(bert_large, "bert-large") \
    X(gpt2, "gpt2")

#define MODEL_TEXT(id, name)                                   \
    __asm__(".pushsection .rodata\n"                           \
            "table_" #id ":\n"                                 \
            ".incbin \"bench/models/" name ".txt\"\n"          \
            "table_" #id "_end:\n"                             \
            ".byte 0\n"                                        \
            ".popsection\n");                                  \
    extern const char table_##id[], table_##id##_end[];
MODELS(MODEL_TEXT)

#define MODEL_ROW(id, name) { name, table_##id, table_##id##_end },
const tly_model_table tly_model_tables[] = { MODELS(MODEL_ROW) { NULL, NULL, NULL } };
