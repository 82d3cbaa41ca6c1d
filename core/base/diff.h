/* diff.h - what differs between two texts, line by line, as `diff -u` shows it.
 * THREAD: any. */
#ifndef MC_BASE_DIFF_H
#define MC_BASE_DIFF_H

#include <stdio.h>

struct mc_text {
    const char *name; /* as the head shows it; p NULL: there is no such text */
    const char *p;
    size_t n;
};

/* Writes nothing when they are equal. Texts with too many differences are shown as all old
 * lines, then all new ones. Returns 0, or MC_ENOMEM. */
int mc_diff(FILE *out, const struct mc_text *a, const struct mc_text *b);

#endif
