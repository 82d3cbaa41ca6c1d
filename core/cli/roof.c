/* roof.c - the memory bandwidth that this machine gives now.
 *
 * Each thread sums a part of a block of its own, the next part each round: by the time that
 * one comes round again the caches have seen all the others. Rounds are short and the best
 * one counts, so that a busy machine's quiet moments are enough. OWNS nothing after it
 * returns. THREAD: any. */
#include "core/cli/roof.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/clock.h"

enum { MIB = 1 << 20, BLOCK = 256 * MIB, PART = BLOCK / 4, ROUNDS = 20, MOST = 256 };

struct reader {
    pthread_t thread;
    const uint64_t *block, *part;
    uint64_t sum;
};

static void *read_all(void *arg)
{
    struct reader *r = arg;
    uint64_t s[8] = {0};

    for (size_t i = 0; i < PART / sizeof *r->part; i += 8)
        for (int j = 0; j < 8; j++)
            s[j] += r->part[i + (size_t)j];
    for (int j = 0; j < 8; j++)
        r->sum += s[j];
    return NULL;
}

static double one_round(struct reader *r, int n, int round)
{
    double t0;
    int started = 0;

    for (int i = 0; i < n; i++)
        r[i].part = r[i].block +
                    (size_t)(round % (BLOCK / PART)) * PART / sizeof *r->block;
    t0 = mc_now();
    while (started < n &&
           pthread_create(&r[started].thread, NULL, read_all, &r[started]) == 0)
        started++;
    for (int i = 0; i < started; i++)
        pthread_join(r[i].thread, NULL);
    return (double)started * PART / (mc_now() - t0);
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
        double got = one_round(r, n, k);

        best = got > best ? got : best;
    }
    for (int i = 0; i < n; i++)
        free((void *)(uintptr_t)r[i].block);
    return best;
}
