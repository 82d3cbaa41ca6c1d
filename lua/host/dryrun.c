/* dryrun.c - every hook is called on the scenes of scene.c and on what was recorded.
 *
 * Owns nothing. THREAD: the builder's. */
#include "lua/host/dryrun.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/sample.h"
#include "lua/host/scene.h"

enum { ROUNDS = 16 };

static void note_time(struct mc_tried *t, double seconds)
{
    t->n++;
    if (t->warm)
        t->us[t->n_us++ % MC_N_TRIED] = (float)(seconds * 1e6);
}

static int try_view(struct mc_stepvm *s, const char *what, const struct mc_record *r,
                    struct mc_plan *p, struct mc_tried *tried, struct mc_err *err)
{
    struct mc_step_view *v = r->view;
    double state[MC_N_STATE], t0;
    int rc = 0, answer;

    memcpy(state, s->layout[0].start, sizeof state);
    for (enum mc_hook h = MC_HOOK_PLAN; rc >= 0 && h <= MC_HOOK_ADMIT; h++) {
        *p = (struct mc_plan){.abi = MC_ABI, .cap = MC_PLAN_CAP, .tok_left = r->tok_left,
                              .row_left = r->row_left, .page_left = r->page_left};
        t0 = mc_now();
        if (!mc_stepvm_has(s, h) || (h == MC_HOOK_ADMIT && v->n_row == 0))
            continue;
        rc = h == MC_HOOK_PLAN ? mc_stepvm_plan(s, v, p, state, err)
             : h == MC_HOOK_EVICT
                 ? mc_stepvm_evict(s, v, 4, p, state, err)
                 : mc_stepvm_admit(s, mc_view_row(v, v->n_row - 1), state, &answer, err);
        if (rc < 0)
            mc_err_while(err, "trying %s with %s", mc_hook_names[h], what);
        else if (h == MC_HOOK_PLAN)
            note_time(tried, mc_now() - t0);
    }
    return rc;
}

static int try_sampler(struct mc_stepvm *s, int done, int n, struct mc_err *err)
{
    int32_t n_vocab = s->opts.sets->vocab.n > 0 ? s->opts.sets->vocab.n : 1, id;
    struct mc_params want = {.temperature = 1, .top_p = 0.95, .repetition_penalty = 1,
                             .ban = {-1, -1}}, out;
    struct mc_pick_seq seq = {.seq = 1, .gen = 1, .done = done, .n_prompt = 10,
                              .seed_lo = 7, .n_tail = done < 32 ? done : 32};
    struct mc_cands c = {.n = n, .rest = 0.25f, .lse = 12};
    int rc;

    memcpy(seq.state, s->layout[1].start, sizeof seq.state);
    for (int i = 0; i < 32; i++)
        seq.tail[i] = (i * 31 + 5) % n_vocab;
    for (int i = 0; i < n; i++) {
        c.id[i] = (i * 17 + 3) % n_vocab;
        c.p[i] = 0.75f / (float)n;
        c.logit[i] = (float)(10 - i);
    }
    c.drawn = c.id[0];
    rc = mc_stepvm_chain(s, &seq, &want, &out, err);
    if (rc < 0) {
        mc_err_while(err, "trying chain");
        return rc;
    }
    if (!mc_stepvm_has(s, MC_HOOK_PICK))
        return 0;
    rc = mc_stepvm_pick(s, &c, &seq, &id, err);
    if (rc < 0)
        mc_err_while(err, "trying pick with %d candidates after %d tokens", n, done);
    return rc;
}

static int try_keep(struct mc_stepvm *s, int n, struct mc_err *err)
{
    struct mc_block b[MC_KEEP_CAP];
    int rc;

    if (!mc_stepvm_has(s, MC_HOOK_KEEP))
        return 0;
    for (int i = 0; i < n; i++)
        b[i] = (struct mc_block){.tenant = (uint32_t)i % 3, .depth = i % 7, .hits = i % 5,
                                 .t_used = 1000 + i, .score = 1000 + i};
    rc = mc_stepvm_keep(s, b, n, err);
    if (rc < 0)
        mc_err_while(err, "trying keep with %d blocks", n);
    return rc;
}

int mc_dryrun(struct mc_stepvm *s, const struct mc_record *recorded, int n_recorded,
              struct mc_tried *tried, struct mc_err *err)
{
    static const int done[] = {0, 1, 100}, n_cand[] = {1, 32, MC_CAND_CAP};
    struct mc_scene *b = malloc(sizeof *b);
    const char *name;
    struct mc_plan *p = malloc(sizeof *p);
    struct mc_tried mine;
    int rc = 0, n;

    tried = tried ? tried : &mine;
    tried->n = tried->n_us = 0;
    if (!b || !p)
        rc = mc_fail(err, MC_ENOMEM, "no memory to try a policy");
    for (int round = 0; round < ROUNDS; round++) {
        tried->warm = round >= ROUNDS / 2;
        for (int i = 0; rc >= 0 && (name = mc_scene_make(b, i)); i++)
            rc = try_view(s, name, &b->record, p, tried, err);
        for (int i = 0; rc >= 0 && i < 9; i++)
            rc = try_sampler(s, done[i % 3], n_cand[i / 3], err);
        for (int i = 1; rc >= 0 && i <= MC_KEEP_CAP; i *= 16)
            rc = try_keep(s, i, err);
    }
    for (int i = 0; rc >= 0 && i < n_recorded; i++)
        if (recorded[i].bytes > 0)
            rc = try_view(s,
                          n_recorded == 1 ? "the last recorded step" : "a recorded step",
                          &recorded[i], p, tried, err);
    n = tried->n_us = tried->n_us < MC_N_TRIED ? tried->n_us : MC_N_TRIED;
    mc_sort_floats(tried->us, n);
    free(b);
    free(p);
    return rc < 0 ? rc : 0;
}
