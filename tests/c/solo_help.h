/* solo_help.h - the logits of a prompt that one sequence reads in chunks. */
#ifndef MC_TEST_SOLO_HELP_H
#define MC_TEST_SOLO_HELP_H

#include "core/model/solo.h"
#include "tests/c/engine_help.h"

enum { SOLO_OUTS = 8 };

/* Who reads, and how. */
struct reader {
    const char *backend, *model, *kv;
    int32_t mla_expand;
    bool prefill_bf16;
};

/* Logits of the last SOLO_OUTS rows of a prompt of n tokens in chunks of `chunk`, to out;
 * returns the size of the vocabulary. */
static inline int32_t read_prompt(const struct reader *w, int32_t n, int32_t chunk,
                                  float *out)
{
    const struct mc_backend_opts bo = {.ref_act = -1};
    struct mc_solo_opts o = {.context = n, .rows = n, .outs = SOLO_OUTS};
    struct mc_ranks r = {0};
    int32_t ids[512], row[SOLO_OUTS], vocab;
    const float *logits = NULL;
    struct mc_tok *tok = NULL;
    struct mc_solo *s = NULL;
    struct mc_err err = {0};

    assert_true(n <= (int32_t)(sizeof ids / sizeof *ids));
    some_ids(ids, n, 5);
    assert_ok(mc_ranks_open(&r, w->backend, &bo, 1, &err), err);
    r.mla_expand = w->mla_expand;
    r.prefill_bf16 = w->prefill_bf16;
    assert_ok(mc_ranks_load(&r, w->model, &tok, &err), err);
    assert_ok(mc_kv_layout_of(&r.rank[0].model.cfg, w->kv, &o.kv, &err), err);
    assert_ok(mc_solo_open(&r, &o, &s, &err), err);
    vocab = r.rank[0].model.cfg.vocab;
    for (int32_t at = 0, m; at < n; at += m) {
        m = n - at < chunk ? n - at : chunk;
        for (int32_t i = 0; i < SOLO_OUTS; i++)
            row[i] = m > SOLO_OUTS ? m - SOLO_OUTS + i : 0;
        assert_ok(mc_solo_run(s, ids + at, m, row, SOLO_OUTS, NULL, &logits, &err), err);
    }
    memcpy(out, logits, (size_t)SOLO_OUTS * (size_t)vocab * sizeof *out);
    mc_solo_close(s);
    mc_ranks_close(&r);
    mc_tok_close(tok);
    return vocab;
}

#endif
