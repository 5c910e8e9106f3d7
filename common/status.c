#include "common/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"

#define STRING(text) #text
#define EXPANDED(macro) STRING(macro)

static _Thread_local char sentence[TLY_SENTENCE_MAX] = "no error";

/* The arguments may point into the sentence itself, so the new one is made elsewhere. errno is kept,
 * because callers word an error between a failed system call and their look at its number. */
static TLY_PRINTF(1, 0) void sentence_set(const char *format, va_list args)
{
    char text[TLY_SENTENCE_MAX];
    int saved = errno;
    if (vsnprintf(text, sizeof text, format, args) < 0)
        strcpy(text, "an error whose text could not be formatted");
    tly_log_clean(text); /* names and peers' words may hold anything */
    memcpy(sentence, text, strlen(text) + 1);
    errno = saved;
}

tally_status tly_error(tally_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    sentence_set(format, args);
    va_end(args);
    return status;
}

tally_status tly_error_context(tally_status status, const char *format, ...)
{
    char context[TLY_SENTENCE_MAX];
    int saved = errno;
    va_list args;
    va_start(args, format);
    int len = vsnprintf(context, sizeof context, format, args);
    va_end(args);
    errno = saved;
    return len < 0 ? status : tly_error(status, "%s: %s", context, sentence);
}

tally_status tly_error_memory(size_t len_bytes, const char *purpose)
{
    return tly_error(TALLY_ENOMEM, "out of memory: %zu bytes for %s", len_bytes, purpose);
}

const char *tly_error_text(void)
{
    return sentence;
}

const char *tally_last_error(void)
{
    return sentence;
}

const char *tally_status_name(tally_status status)
{
    switch (status) {
#define STATUS_NAME(code, value, text) \
    case code:                         \
        return #code;
        TALLY_STATUS_MAP(STATUS_NAME)
#undef STATUS_NAME
    }
    return "unknown status";
}

/* From the header's numbers, which programs compile against. The Makefile's VERSION names the
 * library's file; the unit test holds the two together. */
const char *tally_version(void)
{
    return EXPANDED(TALLY_VERSION_MAJOR) "." EXPANDED(TALLY_VERSION_MINOR) "." EXPANDED(TALLY_VERSION_PATCH);
}
