#include "bench/options.h"

#include <errno.h>
#include <stdbool.h>

#include "bench/parse.h"

static bool parse_size(const char *text, const tly_option *option, size_t *value)
{
    size_t size;
    if (!tly_parse_size(text, &size) || size < (uint64_t)option->low || size > (uint64_t)option->high)
        return false;
    *value = size;
    return true;
}

/* Returns: whether the text is what the option takes. */
static bool store(const tly_option *option, const char *text, void *value)
{
    switch (option->type) {
    case TLY_OPTION_FLAG: return *(bool *)value = true;
    case TLY_OPTION_TEXT: *(const char **)value = text; return true;
    case TLY_OPTION_INT: return tly_parse_int(text, (int)option->low, (int)option->high, value);
    case TLY_OPTION_SIZE: return parse_size(text, option, value);
    case TLY_OPTION_POSITIVE: return tly_parse_positive(text, value);
    case TLY_OPTION_DTYPE: return tly_parse_dtype(text, value);
    case TLY_OPTION_OP: return tly_parse_op(text, value);
    }
    return false;
}

error_t tly_option_parse(const tly_option *table, int key, const char *text, struct argp_state *state)
{
    char names[128];
    const tly_option *option = table;
    while (option->key != 0 && option->key != key)
        option++;
    if (option->key == 0)
        return ARGP_ERR_UNKNOWN;
    if (store(option, text, (char *)state->input + option->offset))
        return 0;
    const char *expected = option->expected;
    if (option->type == TLY_OPTION_DTYPE || option->type == TLY_OPTION_OP) {
        (option->type == TLY_OPTION_DTYPE ? tly_parse_list_dtypes : tly_parse_list_ops)(names, sizeof(names));
        expected = names;
    }
    argp_error(state, "expected %s, found '%s'", expected, text);
    return EINVAL;
}
