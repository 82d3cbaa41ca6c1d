/* test_chaos.c - everything at once, against each sequence alone.
 *
 * Eras of an engine each, of another model, KV layout, chunk, depth and pool, some of
 * them on ranks that each keep a part of the tokens, under a policy that swaps, drops,
 * holds and cuts at random; sequences join in bursts, share prefixes, fork one another
 * and are cancelled. Each one's tokens must be those that its prompt gives alone,
 * greedily, and each era must end with every page and place of host memory back. In the
 * environment: SEED and N, another run, of so many sequences that finish (100); PAGES,
 * pools of just so many; SOAK, one engine for so many seconds. */
#include <unistd.h>

#include "core/base/clock.h"
#include "core/engine/engine_int.h"
#include "tests/c/engine_help.h"

enum {
    ERA = 250,      /* finished sequences of an era at most */
    FAMILIES = 5,   /* prefixes that prompts share */
#ifdef MC_SANITIZE
    PROMPTS = 8,
#else
    PROMPTS = 24,   /* prompts of an era */
#endif
    LONGEST = 340, MORE = 72,
    FLYING = 20,
};

static uint32_t dice = 1;

static uint32_t roll(uint32_t n) /* 0 .. n - 1 */
{
    dice = dice * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)(dice >> 4) * n) >> 28);
}

/* ---- what must come out ------------------------------------------------------------ */

struct prompt {
    int32_t ids[LONGEST + MORE], n; /* prompt, then what it gives alone */
};

static void make_prompts(struct prompt *p)
{
    int32_t base[FAMILIES][LONGEST];

    for (int i = 0; i < FAMILIES; i++)
        some_ids(base[i], LONGEST, roll(1u << 28));
    for (int i = 0; i < PROMPTS; i++) {
        int32_t common = (int32_t)roll(LONGEST - 40), tail = 1 + (int32_t)roll(40);

        memcpy(p[i].ids, base[roll(FAMILIES)], (size_t)common * sizeof *base[0]);
        some_ids(p[i].ids + common, tail, roll(1u << 28));
        p[i].n = common + tail;
    }
}

/* One at a time, without look-ahead, in a pool that never runs out, no prefix reused. */
static void run_alone(const struct mc_engine_opts *o, struct prompt *p)
{
    struct mc_engine *e = engine_open(
        &(struct mc_engine_opts){.model = o->model, .kv = o->kv, .ranks = o->ranks,
                                 .shard_tokens = o->shard_tokens, .max_seqs = 1,
                                 .chunk = 512, .sync = true},
        NULL);

    for (int i = 0; i < PROMPTS; i++) {
        struct got *g = got_new();
        struct mc_request r = ask_for(p[i].ids, p[i].n, MORE, g);
        struct mc_handle h;
        struct mc_err err = {0};

        snprintf(r.salt, sizeof r.salt, "%d", i);
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
        got_wait(g, -1);
        assert_int_equal(g->n, MORE);
        memcpy(p[i].ids + p[i].n, g->id, MORE * sizeof *g->id);
        got_free(g);
    }
    mc_engine_close(e);
}

/* ---- a policy that plays dice ------------------------------------------------------ */

struct wild {
    uint32_t dice;
};

static uint32_t wild_roll(struct wild *w, uint32_t n)
{
    w->dice = w->dice * 1664525u + 1013904223u;
    return (w->dice >> 8) % n;
}

static int plan_wild(void *self, struct mc_step_view *v, struct mc_plan *p,
                     struct mc_err *err)
{
    struct wild *w = self;
    uint32_t mood = wild_roll(w, 40);
    int rc;

    if (mood == 0)
        return mc_fail(err, MC_EPOLICY, "in a bad mood");
    if (mood == 1)
        return 0; /* nothing runs */
    for (uint32_t i = 0; mood == 2 && i < 30; i++) /* stale, wrong, huge */
        p->item[p->n++] = (struct mc_item){.seq = i * 1000003u,
                                           .gen = i,
                                           .what = (uint16_t)i,
                                           .n = (int32_t)(i * 0x7FFFFFF)};
    rc = mc_policy_builtin.ops->plan(NULL, v, p, err);
    for (int32_t i = 0; i < p->n; i++) {
        struct mc_item *it = &p->item[i];

        if (it->what != MC_RUN)
            continue;
        if (mood < 8 && wild_roll(w, 6) == 0)
            it->what = wild_roll(w, 2) ? MC_SWAP : MC_DROP; /* refused of who waits */
        else if (wild_roll(w, 12) == 0)
            it->what = MC_HOLD;
        else if (it->n > 1)
            it->n = 1 + (int32_t)wild_roll(w, (uint32_t)it->n);
    }
    return rc;
}

static int evict_wild(void *self, struct mc_step_view *v, int32_t need, struct mc_plan *p,
                      struct mc_err *err)
{
    int rc = mc_policy_builtin.ops->evict(NULL, v, need, p, err);

    for (int32_t i = 0; i < p->n; i++)
        p->item[i].what = wild_roll(self, 2) ? MC_SWAP : MC_DROP;
    return rc;
}

static const struct mc_policy_ops wild_ops = {.plan = plan_wild, .evict = evict_wild};

/* ---- an era ------------------------------------------------------------------------ */

struct flight {
    struct got *got; /* NULL: free */
    struct mc_handle h;
    const struct prompt *p;
    int32_t n_ids, limit; /* of p's ids its prompt; tokens to come */
    int32_t cancel_at;    /* tokens, or -1 */
};

struct tally {
    int32_t finished, equal, wrong, hits, leaked; /* wrong: cancelled ones too */
    double swaps, drops;
    long mib_early, mib; /* resident, after a quarter of the time and at the end */
};

static void join(struct mc_engine *e, struct flight *f, const struct prompt *p,
                 int32_t n_ids, struct mc_handle from)
{
    int32_t room = p->n + MORE - n_ids;
    struct mc_request r;
    struct mc_err err = {0};

    f->p = p;
    f->n_ids = n_ids;
    f->limit = 1 + (int32_t)roll((uint32_t)room);
    f->cancel_at = roll(8) == 0 ? (int32_t)roll((uint32_t)f->limit + 1) : -1;
    f->got = got_new();
    r = ask_for(p->ids, n_ids, f->limit, f->got);
    r.from = from;
    r.lane = roll(2);
    r.priority = (int32_t)roll(3);
    assert_ok(mc_engine_submit(e, &r, &f->h, &err), err);
}

/* A new prompt, or a fork of one in flight: of its prompt or of what it has made so far.
 */
static void join_any(struct mc_engine *e, struct flight *all, struct flight *f,
                     const struct prompt *p)
{
    const struct flight *of = &all[roll(FLYING)];
    int32_t made;

    if (roll(3) > 0 || !of->got || of == f) {
        const struct prompt *q = &p[roll(PROMPTS)];

        join(e, f, q, q->n, (struct mc_handle){0});
        return;
    }
    pthread_mutex_lock(&of->got->lock);
    made = of->n_ids + of->got->n;
    pthread_mutex_unlock(&of->got->lock);
    if (made >= of->p->n + MORE)
        made = of->p->n + MORE - 1;
    join(e, f, of->p, roll(2) ? made : of->n_ids, of->h);
}

/* Takes what ended; cancels who is to be. */
static void look_at(struct mc_engine *e, struct flight *f, struct tally *t)
{
    bool ended, cancel;
    int32_t n;

    pthread_mutex_lock(&f->got->lock);
    ended = f->got->ended;
    n = f->got->n;
    cancel = !ended && f->cancel_at >= 0 && n >= f->cancel_at;
    pthread_mutex_unlock(&f->got->lock);
    if (cancel) {
        mc_engine_cancel(e, f->h, "by chance");
        f->cancel_at = -1;
    }
    if (!ended)
        return;
    if (memcmp(f->got->id, f->p->ids + f->n_ids, (size_t)n * sizeof *f->got->id) != 0) {
        print_message("sequence %u.%u: not what its prompt gives alone\n", f->h.seq,
                      f->h.gen);
        t->wrong++;
    } else if (f->got->end.finish == MC_FINISH_LENGTH && n == f->limit)
        t->equal++;
    else if (f->got->end.finish != MC_FINISH_CANCEL)
        print_message("sequence %u.%u: ended by %d after %d of %d: %s\n", f->h.seq,
                      f->h.gen, (int)f->got->end.finish, n, f->limit,
                      f->got->end.err.text);
    t->finished += f->got->end.finish != MC_FINISH_CANCEL;
    t->hits += f->got->end.usage.n_cached > 0;
    got_free(f->got);
    f->got = NULL;
}

/* Pages and places that did not come back. */
static int32_t leaked(struct mc_engine *e)
{
    struct mc_engine_status s;

    for (int i = 0; i < 500; i++) {
        mc_engine_status(e, &s);
        if (s.p_pending == 0 && s.n_running + s.n_waiting + s.n_paused == 0)
            break;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    return s.p_total - s.p_free - s.p_cached + s.p_host - s.p_host_free;
}

/* Pool and host memory of an era's engine stay resident; what grows beyond is a leak. */
static long resident_mib(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    if (!f || fscanf(f, "%*d %ld", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return pages * sysconf(_SC_PAGESIZE) >> 20;
}

/* Until n more have finished, or (seconds > 0) that time is over. */
static void run_era(const struct mc_engine_opts *o, int32_t n, double seconds,
                    struct tally *t)
{
    static struct prompt p[PROMPTS];
    double begun, quarter = seconds / 4;
    struct flight f[FLYING] = {{0}};
    struct wild wild = {roll(1u << 28)};
    const struct mc_policy policy = {&wild_ops, &wild};
    struct mc_engine *e;
    int32_t goal = t->finished + n, busy = 1;

    make_prompts(p);
    run_alone(o, p);
    e = engine_open(o, &policy);
    begun = mc_now();
    while (busy > 0) {
        double past = mc_now() - begun;

        if (quarter > 0 && past > quarter) {
            t->mib_early = resident_mib();
            quarter = 0;
        }
        if (seconds > 0 && past > seconds)
            goal = 0;
        busy = 0;
        for (int i = 0; i < FLYING; i++) {
            if (f[i].got)
                look_at(e, &f[i], t);
            busy += f[i].got != NULL;
        }
        for (int i = 0; i < FLYING && roll(3) == 0; i++)
            if (!f[i].got && t->finished + busy < goal) {
                join_any(e, f, &f[i], p);
                busy++;
            }
        busy += t->finished < goal; /* who was cancelled is replaced */
        nanosleep(&(struct timespec){0, 500000}, NULL);
    }
    t->mib = resident_mib();
    t->leaked += leaked(e);
    t->swaps += mc_engine_counter(e, MC_C_swapped_total);
    t->drops += mc_engine_counter(e, MC_C_dropped_total);
    mc_engine_close(e);
}

static int32_t from_env(const char *name, int32_t def)
{
    const char *s = getenv(name);

    return s && *s ? (int32_t)strtol(s, NULL, 10) : def;
}

/* One page of tiny-llama, tiny-kimi and tiny-glm at most: 4 layers. */
static uint64_t bytes_of(const char *model, const char *kv, int32_t n)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){.model = model, .kv = kv},
                                      NULL);
    uint64_t page = (uint64_t)e->crew.run[0].dev.kv.page_stride;

    mc_engine_close(e);
    return page * (uint64_t)n;
}

static void chaos_each_gets_its_solo_tokens_and_no_page_leaks(void **state)
{
    static const struct {
        const char *model, *kv;
        int32_t ranks, shards; /* that each keep a part of the tokens */
    } kind[] = {{"tests/models/tiny-llama", "f32", 1, 1},
                {"tests/models/tiny-llama", "fp8", 1, 1},
                {"tests/models/tiny-kimi", "fp8-656", 2, 2},
                {"tests/models/tiny-llama", "bf16", 1, 1},
                {"tests/models/tiny-glm", "fp8-plain", 4, 4}};
    int32_t n = from_env("N", 100);
    struct tally t = {0};

    (void)state;
    dice = (uint32_t)from_env("SEED", 1);
    for (uint32_t era = roll(5); t.finished < n; era++) {
        int32_t left = n - t.finished, most = n < 2 * ERA ? (n + 1) / 2 : ERA, pages;
        struct mc_engine_opts o = {.model = kind[era % 5].model,
                                   .kv = kind[era % 5].kv,
                                   .ranks = kind[era % 5].ranks,
                                   .shard_tokens = kind[era % 5].shards,
                                   .chunk = 16 << roll(4),
                                   .max_seqs = 4 + (int32_t)roll(9),
                                   .sync = roll(4) == 0,
                                   .max_context = 512};

        pages = from_env("PAGES", 8 + (int32_t)roll(24));
        o.kv_bytes = bytes_of(o.model, o.kv, pages / o.shard_tokens);
        o.swap_bytes = (int64_t)bytes_of(o.model, o.kv, 4 + (int32_t)roll(30));
        run_era(&o, left < most ? left : most, 0, &t);
    }
    print_message(
        "%d finished, %d equal to solo greedy, swaps %.0f, drops %.0f, hits %d, "
        "leaked pages %d\n",
        t.finished, t.equal, t.swaps, t.drops, t.hits, t.leaked);
    assert_int_equal(t.finished, n);
    assert_int_equal(t.equal, n);
    assert_int_equal(t.wrong, 0);
    assert_int_equal(t.leaked, 0);
    assert_true(t.swaps >= 0.06 * n && t.drops >= 0.06 * n && t.hits >= 0.2 * n);
}

/* One engine for so many seconds: SOAK. */
static void soak_ends_with_every_page_and_flat_memory(void **state)
{
    const struct mc_engine_opts o = {
        .model = "tests/models/tiny-llama", .kv = "fp8", .chunk = 64, .max_seqs = 10,
        .max_context = 512, .kv_bytes = bytes_of("tests/models/tiny-llama", "fp8", 24),
        .swap_bytes = (int64_t)bytes_of("tests/models/tiny-llama", "fp8", 20)};
    int32_t seconds = from_env("SOAK", 0);
    struct tally t = {0};

    (void)state;
    if (seconds == 0) {
        print_message("SOAK is not set\n");
        skip();
    }
    run_era(&o, INT32_MAX, seconds, &t);
    print_message(
        "%d s: %d finished, %d equal to solo greedy, swaps %.0f, drops %.0f, hits "
        "%d, leaked pages %d, resident %ld MiB, later %ld MiB\n",
        seconds, t.finished, t.equal, t.swaps, t.drops, t.hits, t.leaked, t.mib_early,
        t.mib);
    assert_true(t.finished > 0 && t.equal == t.finished && t.wrong == 0);
    assert_int_equal(t.leaked, 0);
#ifndef MC_SANITIZE
    assert_true(t.mib <= t.mib_early + 4);
#endif
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(chaos_each_gets_its_solo_tokens_and_no_page_leaks),
    cmocka_unit_test(soak_ends_with_every_page_and_flat_memory),
};

MC_TEST_MAIN(tests)
