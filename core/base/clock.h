/* clock.h - the one monotonic clock of the program. THREAD: any. */
#ifndef MC_BASE_CLOCK_H
#define MC_BASE_CLOCK_H

#include <time.h>

/* Seconds, CLOCK_MONOTONIC. */
static inline double mc_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

#endif
