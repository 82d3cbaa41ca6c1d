/* scene.c - the steps in which policies go wrong: something waits, pages run out, the step is
 * full. Owns nothing. THREAD: any. */
#include "lua/host/scene.h"

#include <stddef.h>
#include <string.h>

enum { PAGE = 64, N_PAGE = 1000 };

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
    {"a little of all", 2, 1, 4, 1, 1, N_PAGE, 256, 64},
};

static struct mc_row make_row(const struct scene *sc, int i)
{
    int started = sc->decode + sc->prefill;
    struct mc_row r = {
        .seq = (uint32_t)i + 1, .gen = 1, .n_prompt = 100 + 10 * i, .n_max = 128,
        .lane = (uint32_t)(i % sc->lanes), .priority = (int16_t)(i % 3),
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

const char *mc_scene_make(struct mc_scene *s, int at)
{
    const struct scene *sc = &scenes[at];
    int n;

    if (at < 0 || at >= (int)(sizeof scenes / sizeof *scenes))
        return NULL;
    n = sc->decode + sc->prefill + sc->paused + sc->waiting;
    memset(s, 0, sizeof *s);
    s->view = (struct mc_step_view){
        .abi = MC_ABI, .bytes = sizeof *s - offsetof(struct mc_scene, view), .step = 1000,
        .now = 60, .n_row = n, .n_wait_all = sc->waiting, .n_lane = sc->lanes,
        .n_tenant = 1, .n_order = MC_N_ORDER, .tok_cap = sc->tokens, .row_cap = sc->rows,
        .p_tokens = PAGE, .p_total = N_PAGE, .p_free = sc->free / 2,
        .p_evict = sc->free - sc->free / 2, .p_host_free = 100,
        .decode = {.us_base = 500, .us_row = 5}, .prefill = {.us_base = 500, .us_tok = 20},
    };
#define AT(member) \
    (uint32_t)(offsetof(struct mc_scene, member) - offsetof(struct mc_scene, view))
    s->view.off_row = AT(row);
    s->view.off_lane = AT(lane);
    s->view.off_tenant = AT(tenant);
    s->view.off_order = AT(order);
#undef AT
    for (int i = 0; i < n; i++)
        s->row[i] = make_row(sc, i);
    for (int i = 0; i < sc->lanes; i++)
        s->lane[i] = (struct mc_party){.id = (uint32_t)i, .weight = (float)(i + 1),
                                       .served = 1000 * i};
    mc_view_sort(&s->view);
    s->record = (struct mc_record){sc->tokens, sc->rows, sc->free, s->view.bytes,
                                   &s->view};
    return sc->name;
}
