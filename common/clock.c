#include "common/clock.h"

#include <time.h>

tly_time tly_clock_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (tly_time)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

int tly_clock_timeout(tly_time then, tly_time now)
{
    if (then == TLY_NEVER)
        return -1;
    if (then <= now)
        return 0;
    return then - now > 3600000 ? 3600000 : (int)(then - now);
}
