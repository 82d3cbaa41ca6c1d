/* roof.c - the memory bandwidth that this machine gives now.
 *
 * Each thread sums a block of its own that is far larger than the caches. OWNS nothing
 * after it returns. THREAD: any. */
#include "core/cli/roof.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"

enum { MIB = 1 << 20, BLOCK = 256 * MIB, ROUNDS = 5, MOST = 256 };

struct reader {
    pthread_t thread;
    const uint64_t *block;
    uint64_t sum;
};

static void *read_all(void *arg)
{
    struct reader *r = arg;
    uint64_t s[8] = {0};

    for (size_t i = 0; i < BLOCK / sizeof *r->block; i += 8)
        for (int j = 0; j < 8; j++)
            s[j] += r->block[i + (size_t)j];
    for (int j = 0; j < 8; j++)
        r->sum += s[j];
    return NULL;
}

static double one_round(struct reader *r, int n)
{
    double t0 = mc_now();
    int started = 0;

    while (started < n &&
           pthread_create(&r[started].thread, NULL, read_all, &r[started]) == 0)
        started++;
    for (int i = 0; i < started; i++)
        pthread_join(r[i].thread, NULL);
    return (double)started * BLOCK / (mc_now() - t0);
}

double mc_roof(int n)
{
    struct reader r[MOST] = {0};
    double best = 0;

    if (n <= 0)
        n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    n = n < MOST ? n : MOST;
    for (int i = 0; i < n; i++) {
        void *block = malloc(BLOCK);

        if (!block) {
            n = i;
            break;
        }
        memset(block, i + 1, BLOCK);
        r[i].block = block;
    }
    for (int k = 0; k < ROUNDS && n > 0; k++) {
        double got = one_round(r, n);

        best = got > best ? got : best;
    }
    for (int i = 0; i < n; i++)
        free((void *)(uintptr_t)r[i].block);
    return best;
}
