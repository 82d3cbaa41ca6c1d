/* sample.c - see sample.h. OWNS nothing. THREAD: any. */
#include "core/base/sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int by_float(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

double mc_median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_double);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

void mc_sort_floats(float *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_float);
}

double mc_resident_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long pages = 0;

    if (f && fscanf(f, "%*d %ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}
