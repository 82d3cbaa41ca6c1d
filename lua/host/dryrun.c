/* dryrun.c - the scenes that every policy must get through.
 *
 * Owns nothing. THREAD: the builder's. */
#include "lua/host/dryrun.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"

enum { MAX_ROW = 128, MAX_LANE = 2, PAGE = 64, N_PAGE = 1000, ROUNDS = 16 };

struct scene {
    const char *name;
    int decode, prefill, waiting, paused; /* rows */
    int lanes;
    int free; /* pages */
    int tokens, rows; /* budget */
};

static const struct scene scenes[] = {
    {"nothing to do", 0, 0, 0, 0, 1, N_PAGE, 256, 64},
    {"one row waiting", 0, 0, 1, 0, 1, N_PAGE, 256, 64},
    {"one row decoding", 1, 0, 0, 0, 1, N_PAGE, 256, 64},
    {"a half-read prompt", 3, 2, 0, 0, 1, N_PAGE, 256, 64},
    {"only running rows", 64, 0, 0, 0, 1, N_PAGE, 256, 64},
    {"no pages left", 16, 1, 8, 2, 2, 0, 256, 64},
    {"few pages left", 16, 1, 8, 4, 2, 3, 256, 64},
    {"a full step", 48, 2, 8, 2, 2, N_PAGE, 8, 4},
    {"many waiting in two lanes", 32, 1, 90, 3, 2, N_PAGE, 512, 64},
    {"no lanes", 2, 1, 4, 1, 0, N_PAGE, 256, 64},
};

/* One block as the engine lays it out. */
struct block {
    struct mc_step_view view;
    struct mc_row row[MAX_ROW];
    struct mc_party lane[MAX_LANE], tenant[1];
    int32_t order[MC_N_ORDER][MAX_ROW];
};

static struct mc_row make_row(const struct scene *sc, int i)
{
    int started = sc->decode + sc->prefill;
    struct mc_row r = {
        .seq = (uint32_t)i + 1, .gen = 1, .n_prompt = 100 + 10 * i, .n_max = 128,
        .lane = sc->lanes ? (uint32_t)(i % sc->lanes) : 0, .priority = (int16_t)(i % 3),
        .t_arrive = 10 + i * 0.25, .n_guess = 64, .us_swap = 100, .us_redo = 200,
    };

    if (i < sc->decode) {
        r.state = MC_STATE_DECODE;
        r.n_gen = i % 7 + 1;
        r.n_ctx = r.n_prompt + r.n_gen;
        r.p_step = r.n_ctx % PAGE == 0;
    } else if (i < started) {
        r.state = MC_STATE_PREFILL;
        r.n_ctx = PAGE;
        r.n_left = r.n_prompt - PAGE;
    } else if (i < started + sc->paused) {
        r.state = MC_STATE_PAUSED;
        r.p_host = r.p_step = (r.n_prompt + PAGE - 1) / PAGE;
    } else {
        r.state = MC_STATE_WAITING;
        r.n_hit = i % 4 == 0 ? PAGE : 0;
        r.n_left = r.n_prompt - r.n_hit;
    }
    r.p_held = r.p_own = (r.n_ctx + PAGE - 1) / PAGE;
    return r;
}

static void make_block(struct block *b, const struct scene *sc)
{
    int n = sc->decode + sc->prefill + sc->paused + sc->waiting;

    memset(b, 0, sizeof *b);
    b->view = (struct mc_step_view){
        .abi = MC_ABI, .bytes = sizeof *b, .step = 1000, .now = 60, .n_row = n,
        .n_wait_all = sc->waiting, .n_lane = sc->lanes, .n_tenant = 1, .n_order = MC_N_ORDER,
        .tok_cap = sc->tokens, .row_cap = sc->rows, .p_tokens = PAGE, .p_total = N_PAGE,
        .p_free = sc->free / 2, .p_evict = sc->free - sc->free / 2, .p_host_free = 100,
        .decode = {.us_base = 500, .us_row = 5}, .prefill = {.us_base = 500, .us_tok = 20},
        .off_row = offsetof(struct block, row), .off_lane = offsetof(struct block, lane),
        .off_tenant = offsetof(struct block, tenant),
        .off_order = offsetof(struct block, order),
    };
    for (int i = 0; i < n; i++)
        b->row[i] = make_row(sc, i);
    for (int i = 0; i < sc->lanes; i++)
        b->lane[i] = (struct mc_party){.id = (uint32_t)i, .weight = (float)(i + 1),
                                       .served = 1000 * i};
    for (int o = 0; o < MC_N_ORDER; o++)
        for (int i = 0; i < n; i++)
            (&b->order[0][0])[o * n + i] = o == MC_ORDER_YOUNGEST ? n - 1 - i : i;
}

static void note_time(struct mc_tried *t, double seconds)
{
    t->n++;
    if (t->warm)
        t->us[t->n_us++ % MC_N_TRIED] = (float)(seconds * 1e6);
}

static int try_view(struct mc_stepvm *s, const char *what, struct mc_step_view *v,
                    int32_t tokens, int32_t rows, int32_t pages, struct mc_plan *p,
                    struct mc_tried *tried, struct mc_err *err)
{
    double state[MC_N_STATE], t0;
    int rc = 0, answer;

    memcpy(state, s->layout[0].start, sizeof state);
    for (enum mc_hook h = MC_HOOK_PLAN; rc >= 0 && h <= MC_HOOK_ADMIT; h++) {
        *p = (struct mc_plan){.abi = MC_ABI, .cap = MC_PLAN_CAP, .tok_left = tokens,
                              .row_left = rows, .page_left = pages};
        t0 = mc_now();
        if (!mc_stepvm_has(s, h) || (h == MC_HOOK_ADMIT && v->n_row == 0))
            continue;
        rc = h == MC_HOOK_PLAN    ? mc_stepvm_plan(s, v, p, state, err)
             : h == MC_HOOK_EVICT ? mc_stepvm_evict(s, v, 4, p, state, err)
                                  : mc_stepvm_admit(s, mc_view_row(v, v->n_row - 1), state,
                                                    &answer, err);
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

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

int mc_dryrun(struct mc_stepvm *s, const struct mc_record *recorded, struct mc_tried *tried,
              struct mc_err *err)
{
    static const int done[] = {0, 1, 100}, n_cand[] = {1, 32, MC_CAND_CAP};
    struct block *b = malloc(sizeof *b);
    struct mc_plan *p = malloc(sizeof *p);
    struct mc_tried mine;
    int rc = 0, n;

    tried = tried ? tried : &mine;
    tried->n = tried->n_us = 0;
    if (!b || !p)
        rc = mc_fail(err, MC_ENOMEM, "no memory to try a policy");
    for (int round = 0; round < ROUNDS; round++) {
        tried->warm = round >= ROUNDS / 2;
        for (size_t i = 0; rc >= 0 && i < sizeof scenes / sizeof *scenes; i++) {
            make_block(b, &scenes[i]);
            rc = try_view(s, scenes[i].name, &b->view, scenes[i].tokens, scenes[i].rows,
                          scenes[i].free, p, tried, err);
        }
        for (int i = 0; rc >= 0 && i < 9; i++)
            rc = try_sampler(s, done[i % 3], n_cand[i / 3], err);
    }
    if (rc >= 0 && recorded && recorded->bytes > 0)
        rc = try_view(s, "the last recorded step", recorded->view, recorded->tok_left,
                      recorded->row_left, recorded->page_left, p, tried, err);
    n = tried->n_us = tried->n_us < MC_N_TRIED ? tried->n_us : MC_N_TRIED;
    qsort(tried->us, (size_t)n, sizeof *tried->us, by_size);
    free(b);
    free(p);
    return rc < 0 ? rc : 0;
}
