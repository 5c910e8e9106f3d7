#include "tests/lib/failing.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>

static _Thread_local long left;
static _Thread_local bool failed;

void failing_arm(long number)
{
    left = number;
    failed = false;
}

bool failing_disarm(void)
{
    left = 0;
    return failed;
}

static bool fails(void)
{
    if (left == 0 || --left > 0)
        return false;
    failed = true;
    errno = ENOMEM;
    return true;
}

/* What the linker's --wrap makes of the names. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
char *__real_strdup(const char *text);
int __real_vasprintf(char **out, const char *format, va_list args) __attribute__((format(printf, 2, 0)));
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
char *__wrap_strdup(const char *text);
int __wrap_vasprintf(char **out, const char *format, va_list args) __attribute__((format(printf, 2, 0)));

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *block, size_t size)
{
    return fails() ? NULL : __real_realloc(block, size);
}

void *__wrap_aligned_alloc(size_t align, size_t size)
{
    return fails() ? NULL : __real_aligned_alloc(align, size);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : __real_strdup(text);
}

int __wrap_vasprintf(char **out, const char *format, va_list args)
{
    return fails() ? -1 : __real_vasprintf(out, format, args);
}
