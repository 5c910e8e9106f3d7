#include "bench/plain.h"

#include <stdint.h>
#include <string.h>

/* One loop for each width; the compiler may use what the function's target has. */
#define ADD_FUNCTION(name, width, attributes)                                          \
    attributes static void name(void *acc, const void *in, size_t count)               \
    {                                                                                  \
        typedef float vector __attribute__((vector_size(width)));                      \
        uint8_t *a = acc;                                                              \
        const uint8_t *b = in;                                                         \
        size_t left = count * sizeof(float);                                           \
        for (; left >= (width); left -= (width), a += (width), b += (width)) {         \
            vector x, y;                                                               \
            memcpy(&x, a, sizeof(x));                                                  \
            memcpy(&y, b, sizeof(y));                                                  \
            x += y;                                                                    \
            memcpy(a, &x, sizeof(x));                                                  \
        }                                                                              \
        for (; left; left -= sizeof(float), a += sizeof(float), b += sizeof(float)) {  \
            float x, y;                                                                \
            memcpy(&x, a, sizeof(x));                                                  \
            memcpy(&y, b, sizeof(y));                                                  \
            x += y;                                                                    \
            memcpy(a, &x, sizeof(x));                                                  \
        }                                                                              \
    }

ADD_FUNCTION(add_16, 16, )

#if defined(__x86_64__)

ADD_FUNCTION(add_32, 32, __attribute__((target("avx2"))))
ADD_FUNCTION(add_64, 64, __attribute__((target("avx512f"))))

void tly_plain_add_f32(void *acc, const void *in, size_t count)
{
    if (__builtin_cpu_supports("avx512f"))
        add_64(acc, in, count);
    else if (__builtin_cpu_supports("avx2"))
        add_32(acc, in, count);
    else
        add_16(acc, in, count);
}

#else

void tly_plain_add_f32(void *acc, const void *in, size_t count)
{
    add_16(acc, in, count);
}

#endif
