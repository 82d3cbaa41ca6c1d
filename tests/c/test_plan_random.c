/* test_plan_random.c - plans made of random items, and what the engine makes of them.
 *
 * The policy names any row with any item, right or wrong, while others join, fork one
 * another, are cancelled, pin prefixes and change the pool's size. Before the next plan
 * it holds the engine against a simple model: what each item may turn a sequence's state
 * into, who holds which page and place of host memory (counted afresh), what the step may
 * contain.
 * OPS and SEED in the environment: items (20,000), and another run. */
#include "core/engine/engine_int.h"
#include "tests/c/engine_help.h"

enum { SEQS = 10, PAGES = 8, PLACES = 6, SLOTS = 5, CHUNK = 32, LONGEST = 150 };

/* On the engine's thread, where a test can't be left. */
#define HOLDS(x)                                                           \
    do {                                                                   \
        if (!(x)) {                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #x); \
            abort();                                                       \
        }                                                                  \
    } while (0)

struct named {
    uint32_t seq, gen;
    enum mc_seq_state state;
    uint16_t what; /* 0: not named */
};

struct play {
    struct mc_engine *e;
    struct named was[SEQS + SLOTS];
    int32_t n_was;
    bool short_of_pages; /* evict was asked since the last plan */
    long items;
    uint32_t dice;
};

static uint32_t roll(struct play *p, uint32_t n)
{
    p->dice = p->dice * 1664525u + 1013904223u;
    return (p->dice >> 8) % n;
}

/* ---- the model --------------------------------------------------------------------- */

#define BIT(state) (1u << MC_STATE_##state)
#define BIT_GONE 1u

/* What a state may be once such an item was dealt with. */
static uint32_t may_become(uint16_t what, enum mc_seq_state s)
{
    uint32_t same = 1u << s;

    switch (what) {
    case MC_RUN:
        return s == MC_STATE_WAITING   ? same | BIT(PREFILL) | BIT(DECODE)
               : s == MC_STATE_PREFILL ? same | BIT(DECODE)
                                       : same;
    case MC_SWAP: /* when there is no room in host memory it stays */
        return s == MC_STATE_PREFILL || s == MC_STATE_DECODE ? same | BIT(PAUSED) : same;
    case MC_DROP:
        return s == MC_STATE_PREFILL || s == MC_STATE_DECODE ? BIT(PAUSED) : same;
    case MC_BACK:
        return s == MC_STATE_PAUSED ? same | BIT(PREFILL) : same;
    case MC_FAIL:
        return BIT_GONE;
    default:
        return same;
    }
}

static void check_states(const struct play *p)
{
    for (int32_t i = 0; i < p->n_was; i++) {
        const struct named *w = &p->was[i];
        const struct mc_seq *q = mc_seq_get(p->e, (struct mc_handle){w->seq, w->gen});
        uint32_t may = may_become(w->what, w->state);

        if (p->short_of_pages && may & (BIT(PREFILL) | BIT(DECODE)))
            may |= BIT(PAUSED); /* the engine's own evict, when nobody gave way */
        HOLDS(!q || (may >> q->state & 1));
    }
}

static int32_t pages_of(int32_t tokens)
{
    return (tokens + MC_PAGE - 1) / MC_PAGE;
}

static void check_holdings(const struct play *p)
{
    struct mc_engine *e = p->e;
    int32_t refs[PAGES] = {0}, placed[PLACES] = {0}, held = 0, free_places = 0;

    for (int i = 0; i < e->n_pin; i++)
        for (int32_t k = 0; k < e->pin[i].info.n_page; k++)
            refs[e->pin[i].page[k]]++;
    for (int32_t i = 0; i < e->n_live; i++) {
        const struct mc_seq *q = &e->seqs[e->live[i]];

        HOLDS(q->n_page == 0 || q->n_place == 0);
        if (q->state == MC_STATE_PAUSED)
            HOLDS(q->n_page == 0);
        if (q->state == MC_STATE_WAITING)
            HOLDS(q->n_page + q->n_place == 0 && q->slot < 0);
        if (q->state == MC_STATE_DECODE)
            HOLDS(q->n_ctx == q->n_ids + q->n_fly - 1);
        HOLDS(q->n_page + q->n_place >= pages_of(q->n_ctx));
        for (int32_t k = 0; k < q->n_page; k++)
            refs[q->page[k]]++;
        for (int32_t k = 0; k < q->n_place; k++)
            placed[q->place[k]]++;
    }
    for (int32_t i = 0; i < PAGES; i++) {
        HOLDS(mc_kv_refs(e->kv, i) == refs[i]);
        held += refs[i] > 0;
    }
    HOLDS(mc_kv_n_held(e->kv) == held);
    HOLDS(mc_kv_n_free(e->kv) + held + mc_kv_n_cached(e->kv) + mc_kv_n_pending(e->kv) ==
          mc_kv_total(e->kv));
    for (int32_t i = 0; i < e->n_live; i++) {
        const struct mc_seq *q = &e->seqs[e->live[i]];
        int32_t own = 0;

        for (int32_t k = 0; k < q->n_page; k++)
            own += refs[q->page[k]] == 1;
        HOLDS(mc_kv_own(e->kv, (int32_t)q->id) == own);
    }
    for (int32_t i = 0; i < PLACES; i++) {
        HOLDS(placed[i] <= 1);
        free_places += placed[i] == 0;
    }
    HOLDS(mc_swap_n_free(e) == free_places);
}

/* The step that was made of the last plan. */
static void check_step(const struct play *p)
{
    const struct mc_engine *e = p->e;
    const struct mc_step *s = &e->step[(e->n_step + MC_DEPTH - 1) % MC_DEPTH];
    int32_t tokens = 0;

    if (e->n_step == 0)
        return;
    HOLDS(s->n_row <= SLOTS && s->n_tok <= e->o.chunk && s->n_out <= SLOTS);
    for (int32_t i = 0; i < s->n_row; i++) {
        tokens += s->rows.q0[i + 1] - s->rows.q0[i];
        for (int32_t k = 0; k < i; k++)
            HOLDS(s->row[i].seq != s->row[k].seq);
    }
    HOLDS(tokens == s->n_tok);
}

/* ---- the policy -------------------------------------------------------------------- */

static void note(struct play *p, const struct mc_row *r, uint16_t what)
{
    for (int32_t i = 0; i < p->n_was; i++) {
        struct named *w = &p->was[i];

        if (w->seq != r->seq || w->gen != r->gen)
            continue;
        if (w->what == 0 || (what == MC_RUN && w->state == MC_STATE_DECODE))
            w->what = what; /* the first counts, and decode rows run before all */
    }
}

static void any_item(struct play *p, const struct mc_step_view *v, struct mc_plan *plan)
{
    static const uint16_t what[] = {MC_RUN,  MC_RUN,  MC_RUN,  MC_RUN,  MC_RUN, MC_BACK,
                                    MC_BACK, MC_SWAP, MC_DROP, MC_HOLD, 99};
    const struct mc_row *r = mc_view_row(v, (int32_t)roll(p, (uint32_t)v->n_row));
    struct mc_item it = {.seq = r->seq, .gen = r->gen,
                         .what = what[roll(p, sizeof what / sizeof *what)],
                         .n = (int32_t)roll(p, 80) - 4};

    if (roll(p, 400) == 0)
        it.what = MC_FAIL;
    if (roll(p, 20) == 0)
        it.gen += 1 + roll(p, 3);
    else
        note(p, r, it.what);
    plan->item[plan->n++] = it;
}

static int plan_any(void *self, struct mc_step_view *v, struct mc_plan *plan,
                    struct mc_err *err)
{
    struct play *p = self;
    int32_t n = v->n_row > 0 ? (int32_t)roll(p, 2 * (uint32_t)v->n_row + 1) : 0;

    (void)err;
    check_holdings(p);
    check_step(p);
    check_states(p);
    p->n_was = 0;
    p->short_of_pages = false;
    for (int32_t i = 0; i < v->n_row; i++) {
        const struct mc_row *r = mc_view_row(v, i);

        p->was[p->n_was++] = (struct named){r->seq, r->gen, (enum mc_seq_state)r->state,
                                            0};
    }
    for (int32_t i = 0; i < n; i++)
        any_item(p, v, plan);
    p->items += n;
    return 0;
}

/* Preempting is left to plans. */
static int evict_nobody(void *self, struct mc_step_view *v, int32_t need,
                        struct mc_plan *plan, struct mc_err *err)
{
    struct play *p = self;

    (void)v, (void)need, (void)plan, (void)err;
    p->short_of_pages = true;
    return 0;
}

/* ---- the play ---------------------------------------------------------------------- */

/* Prefixes of three texts; some are forks of another that lives or did. */
static struct got *join(struct play *p, const struct mc_handle *from, struct mc_handle *h)
{
    struct got *g = got_new();
    int32_t ids[LONGEST], n = 1 + (int32_t)roll(p, LONGEST);
    struct mc_request r;
    struct mc_err err = {0};

    some_ids(ids, n, 1 + roll(p, 3));
    r = ask_for(ids, n, 1 + (int32_t)roll(p, 60), g);
    r.tenant = roll(p, 2);
    r.from = roll(p, 2) ? *from : (struct mc_handle){0};
    assert_ok(mc_engine_submit(p->e, &r, h, &err), err);
    return g;
}

/* Pins a prefix, or lets one go; what is not cached, or too much, is refused. */
static void pin_any(struct play *p)
{
    struct mc_pin_info pin[MC_MAX_PINS], info;
    int n = mc_engine_pins(p->e, pin);
    int32_t ids[LONGEST];

    if (n > 0 && roll(p, 2)) {
        mc_engine_unpin(p->e, pin[roll(p, (uint32_t)n)].id, NULL);
        return;
    }
    some_ids(ids, LONGEST, 1 + roll(p, 3));
    n = MC_PAGE + (int)roll(p, LONGEST - MC_PAGE);
    mc_engine_pin(p->e, ids, n, roll(p, 2), "", 0, &info, NULL);
}

static bool has_ended(struct got *g)
{
    bool ended;

    pthread_mutex_lock(&g->lock);
    ended = g->ended;
    pthread_mutex_unlock(&g->lock);
    return ended;
}

static void plan_random_items_keep_to_the_model(void **state)
{
    static struct play p;
    static const struct mc_policy_ops ops = {.plan = plan_any, .evict = evict_nobody};
    const struct mc_policy policy = {&ops, &p};
    const uint64_t page = 4 * 2 * 2 * MC_PAGE * 32 * 4; /* tiny-llama, f32 */
    struct mc_engine_opts o = {.model = "tests/models/tiny-llama", .kv = "f32",
                               .kv_bytes = PAGES * page, .swap_bytes = PLACES * page,
                               .max_seqs = SLOTS, .max_waiting = SEQS, .chunk = CHUNK};
    long ops_wanted = getenv("OPS") ? atol(getenv("OPS")) : 20000;
    struct mc_handle h[SEQS] = {{0}};
    struct got *g[SEQS] = {0};
    struct mc_pin_info pin[MC_MAX_PINS];
    struct mc_err err = {0};
    uint32_t dice = getenv("SEED") ? (uint32_t)atoi(getenv("SEED")) : 1;

    (void)state;
    p.dice = dice;
    mc_log_set("engine", MC_LOG_OFF);
    assert_ok(mc_engine_open(&o, &p.e, &err), err);
    mc_engine_set_policy(p.e, &policy);
    assert_ok(mc_engine_start(p.e, &err), err);
    while (__atomic_load_n(&p.items, __ATOMIC_RELAXED) < ops_wanted) {
        struct play mine = {.e = p.e, .dice = dice = dice * 1664525u + 1013904223u};

        for (int i = 0; i < SEQS; i++) {
            if (g[i] && roll(&mine, 300) == 0)
                mc_engine_cancel(p.e, h[i], "by chance");
            if (g[i] && has_ended(g[i]))
                got_free(g[i]), g[i] = NULL;
            if (!g[i])
                g[i] = join(&mine, &h[roll(&mine, SEQS)], &h[i]);
        }
        if (roll(&mine, 8) == 0)
            pin_any(&mine);
        if (roll(&mine, 64) == 0) /* refused while a sequence needs more */
            mc_engine_set_kv(p.e, (PAGES - roll(&mine, 4)) * page, NULL);
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    for (int i = 0; i < SEQS; i++)
        if (g[i])
            mc_engine_cancel(p.e, h[i], "enough");
    for (int i = 0; i < SEQS; i++)
        if (g[i])
            got_wait(g[i], -1), got_free(g[i]);
    while (mc_engine_pins(p.e, pin) > 0)
        assert_int_equal(mc_engine_unpin(p.e, pin[0].id, NULL), 0);
    assert_idle(p.e);
    assert_int_equal(mc_swap_n_free(p.e), PLACES);
    mc_engine_close(p.e);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(plan_random_items_keep_to_the_model),
};

MC_TEST_MAIN(tests)
