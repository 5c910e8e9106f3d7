/* options.h - what the values of a command's options may be, as rows of a table: one parser for all
 * commands, and one wording of what is wrong. */
#ifndef TLY_BENCH_OPTIONS_H
#define TLY_BENCH_OPTIONS_H

#include <argp.h>
#include <stddef.h>
#include <stdint.h>

typedef enum tly_option_type {
    TLY_OPTION_FLAG,     /* bool: true when given */
    TLY_OPTION_TEXT,     /* const char *: as it stands */
    TLY_OPTION_INT,      /* int from low to high */
    TLY_OPTION_SIZE,     /* size_t in bytes from low to high, with K, M or G */
    TLY_OPTION_POSITIVE, /* double above 0 */
    TLY_OPTION_DTYPE,    /* tally_dtype */
    TLY_OPTION_OP        /* tally_op */
} tly_option_type;

typedef struct tly_option {
    int key;              /* argp's; 0 ends the table */
    tly_option_type type;
    size_t offset;        /* of the value in the command's arguments, which are argp's input */
    const char *expected; /* "--steps from 1 to 100": said when the text is something else; names of types
                             and operations are listed by themselves */
    int64_t low, high;
} tly_option;

/* Store the value of key. A wrong one ends the program with argp's usage error.
 * Returns: 0, or ARGP_ERR_UNKNOWN for a key that the table does not have */
error_t tly_option_parse(const tly_option *table, int key, const char *text, struct argp_state *state);

#endif
