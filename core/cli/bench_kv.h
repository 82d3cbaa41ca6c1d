/* bench_kv.h - between the files of `mascon bench kv`.
 * OWNS nothing. THREAD: main. */
#ifndef MC_CLI_BENCH_KV_H
#define MC_CLI_BENCH_KV_H

#include "core/cli/bench.h"
#include "core/model/ranks.h"

struct mc_kv_bench {
    const struct mc_settings *set;
    struct mc_report report;
    int32_t requests, prompt, tokens; /* of the throughput runs ... */
    int32_t room;                     /* ... whose pool holds so many of them in bf16 */
    int32_t rounds;
    const char *text; /* that layouts are judged by, or NULL */
};

/* A model under test. */
struct mc_kv_subject {
    const char *path;
    const char *tag; /* behind each number's name: "", "_mla" */
    bool given;      /* by the user, not made of random numbers ... */
    bool only;       /* ... and to be judged for quality alone */
};

/* bench_kv_pages.c: tokens at equal memory, bytes of a step, cost of tags, quality */
int mc_kv_bench_pages(struct mc_kv_bench *b, const struct mc_kv_subject *s,
                      struct mc_err *err);

/* The layouts that are held against bf16; returns how many. */
enum { MC_KV_RIVALS = 2 };
int mc_kv_rivals(const struct mc_config *c, enum mc_kv_layout out[MC_KV_RIVALS]);

/* Adds "<what>[_plain|_656]<tag>". */
void mc_kv_bench_add(struct mc_kv_bench *b, const struct mc_kv_subject *s,
                     const char *what, enum mc_kv_layout layout, double value,
                     const char *unit, const char *mark);

#endif
