/* test_swap.c - pages that move: preempted to host memory and back, shared and copied by
 * forks, waited for while another row computes them. */
#include "core/engine/engine_int.h"
#include "tests/c/engine_help.h"

enum { MANY = 6, N_PROMPT = 90, N_GEN = 110 };

/* ---- policies ---------------------------------------------------------------------- */

struct force {
    int every, calls; /* each so many plans one row is swapped */
    int what;         /* MC_SWAP or MC_DROP */
    uint32_t dice;
};

/* The built-in plan, but now and then a row that runs is preempted instead. */
static int plan_forced(void *self, struct mc_step_view *v, struct mc_plan *p,
                       struct mc_err *err)
{
    struct force *f = self;
    int32_t victim = -1;
    int rc = mc_policy_builtin.ops->plan(NULL, v, p, err);

    f->dice = f->dice * 1664525u + 1013904223u;
    if (++f->calls % f->every == 0 && v->n_row > 0) {
        victim = (int32_t)((f->dice >> 8) % (uint32_t)v->n_row);
        if (!mc_row_runs(mc_view_row(v, victim)))
            victim = -1;
    }
    for (int32_t i = 0; i < p->n && victim >= 0; i++)
        if (p->item[i].seq == mc_view_row(v, victim)->seq)
            p->item[i].what = (uint16_t)f->what;
    return rc;
}

/* Whoever gives way goes to host memory, whatever it costs. */
static int evict_to_host(void *self, struct mc_step_view *v, int32_t need,
                         struct mc_plan *p, struct mc_err *err)
{
    int rc = mc_policy_builtin.ops->evict(self, v, need, p, err);

    for (int32_t i = 0; i < p->n; i++)
        p->item[i].what = MC_SWAP;
    return rc;
}

static const struct mc_policy_ops forced = {.plan = plan_forced, .evict = evict_to_host};

/* ---- running ----------------------------------------------------------------------- */

static uint64_t pages(const char *kv, int n)
{
    int64_t each = strcmp(kv, "f32") == 0    ? 4 * 32
                   : strcmp(kv, "bf16") == 0 ? 2 * 32
                                             : 36;

    return (uint64_t)(n * 4 * 2 * 2 * MC_PAGE *
                      each); /* tiny-llama: 4 layers, 2 heads of 32 */
}

static void submit_many(struct mc_engine *e, struct got *g[MANY],
                        struct mc_handle h[MANY])
{
    int32_t ids[N_PROMPT];

    for (int i = 0; i < MANY; i++) {
        struct mc_request r;
        struct mc_err err = {0};

        some_ids(ids, N_PROMPT - i, 900 + (uint32_t)i);
        g[i] = got_new();
        r = ask_for(ids, N_PROMPT - i, N_GEN, g[i]);
        assert_ok(mc_engine_submit(e, &r, &h[i], &err), err);
    }
}

static void wait_many(struct got *g[MANY])
{
    for (int i = 0; i < MANY; i++)
        got_wait(g[i], -1);
}

static void assert_host_empty(struct mc_engine *e)
{
    struct mc_engine_status s;

    assert_idle(e);
    mc_engine_status(e, &s);
    assert_int_equal(s.p_host_free, s.p_host);
}

/* MANY sequences under a policy in a small pool, against each alone in a large one. */
static void same_as_alone(const struct mc_engine_opts *o, struct force *f,
                          double *swapped)
{
    const struct mc_policy p = {&forced, f};
    struct mc_engine_opts alone = {.kv = o->kv, .max_seqs = 1, .sync = true};
    struct got *x[MANY], *y[MANY];
    struct mc_handle h[MANY];
    struct mc_engine *e = engine_open(&alone, NULL);

    submit_many(e, x, h);
    wait_many(x);
    mc_engine_close(e);
    e = engine_open(o, &p);
    submit_many(e, y, h);
    wait_many(y);
    *swapped = mc_engine_counter(e, MC_C_swapped_total);
    assert_host_empty(e);
    mc_engine_close(e);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(y[i]->n, N_GEN);
        same_tokens(x[i], y[i]);
        got_free(x[i]), got_free(y[i]);
    }
}

static void swap_and_back_gives_each_its_solo_tokens(void **state)
{
    static const char *const layouts[] = {"f32", "bf16", "fp8"};

    (void)state;
    for (int k = 0; k < 3; k++)
        for (int sync = 0; sync < 2; sync++) {
            const char *kv = layouts[k];
            struct mc_engine_opts o = {.kv = kv, .kv_bytes = pages(kv, 10), .chunk = 64,
                                       .max_seqs = 8, .sync = sync};
            struct force f = {.every = 3, .what = MC_SWAP, .dice = (uint32_t)k};
            double swapped;

            same_as_alone(&o, &f, &swapped);
            if (swapped < 10)
                fail_msg("%.0f swaps in %s", swapped, kv);
        }
}

static void swap_into_a_host_pool_too_small_is_trimmed_and_harms_nothing(void **state)
{
    struct mc_engine_opts o = {.kv = "f32", .kv_bytes = pages("f32", 10), .chunk = 64,
                               .swap_bytes = (int64_t)pages("f32", 2), .max_seqs = 8};
    struct force f = {.every = 3, .what = MC_SWAP};
    double swapped;

    (void)state;
    same_as_alone(&o, &f, &swapped);
    o.swap_bytes = 1;
    same_as_alone(&o, &f, &swapped);
    assert_true(swapped == 0);
}

/* The built-in prefers what is cheaper by the view's numbers: on a CPU copying. */
static void swap_is_chosen_by_measured_costs(void **state)
{
    struct mc_engine *e = engine_open(
        &(struct mc_engine_opts){.kv_bytes = pages("f32", 8), .kv = "f32"}, NULL);
    struct mc_engine_status s;
    struct mc_handle h[MANY];
    struct got *g[MANY];

    (void)state;
    for (int round = 0; round < 3; round++) {
        submit_many(e, g, h);
        wait_many(g);
        for (int i = 0; i < MANY; i++)
            got_free(g[i]);
    }
    mc_engine_status(e, &s);
    assert_true(s.swap_bytes_us > 1);
    assert_true(mc_engine_counter(e, MC_C_swapped_total) > 0);
    assert_host_empty(e);
    mc_engine_close(e);
}

/* ---- ends -------------------------------------------------------------------------- */

static int plan_swap_all(void *self, struct mc_step_view *v, struct mc_plan *p,
                         struct mc_err *err)
{
    int *hold = self; /* nonzero: whatever runs goes to host memory and stays there */

    if (!*hold)
        return mc_policy_builtin.ops->plan(NULL, v, p, err);
    for (int32_t i = 0; i < v->n_row; i++) {
        const struct mc_row *r = mc_view_row(v, i);

        if (mc_row_runs(r))
            p->item[p->n++] = (struct mc_item){.seq = r->seq,
                                               .gen = r->gen,
                                               .what = MC_SWAP};
    }
    return 0;
}

static void wait_host(struct mc_engine *e, int n_paused)
{
    struct mc_engine_status s;

    for (int i = 0; i < 500; i++) {
        mc_engine_status(e, &s);
        if (s.n_paused == n_paused && s.p_held == 0)
            break;
        nanosleep(&(struct timespec){0, 10000000}, NULL);
    }
    assert_int_equal(s.n_paused, n_paused);
    assert_int_equal(s.p_held, 0);
    assert_true(n_paused == 0 || s.p_host_free < s.p_host);
}

static void swapped_sequences_that_are_cancelled_give_host_memory_back(void **state)
{
    static int hold;
    const struct mc_policy_ops ops = {.plan = plan_swap_all};
    const struct mc_policy p = {&ops, &hold};
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){.kv = "f32"}, &p);
    struct mc_handle h[MANY];
    struct got *g[MANY];

    (void)state;
    hold = 0;
    submit_many(e, g, h);
    for (int i = 0; i < MANY; i++)
        got_wait(g[i], 5);
    __atomic_store_n(&hold, 1, __ATOMIC_RELAXED);
    wait_host(e, MANY);
    mc_engine_cancel(e, h[0], "in host memory");
    mc_engine_cancel(e, h[1], NULL);
    got_wait(g[0], -1), got_wait(g[1], -1);
    assert_int_equal(g[0]->end.finish, MC_FINISH_CANCEL);
    wait_host(e, MANY - 2);
    __atomic_store_n(&hold, 0, __ATOMIC_RELAXED);
    for (int i = 2; i < MANY; i++) {
        got_wait(g[i], -1);
        assert_int_equal(g[i]->n, N_GEN);
    }
    assert_host_empty(e);
    for (int i = 0; i < MANY; i++)
        got_free(g[i]);
    mc_engine_close(e);
}

/* ---- forks ------------------------------------------------------------------------- */

static struct got *fork_of(struct mc_engine *e, struct mc_handle from, const int32_t *ids,
                           int32_t n, int32_t limit, struct mc_handle *h)
{
    struct got *g = got_new();
    struct mc_request r = ask_for(ids, n, limit, g);
    struct mc_err err = {0};

    r.from = from;
    assert_ok(mc_engine_submit(e, &r, h, &err), err);
    return g;
}

static void fork_shares_pages_and_copies_the_last(void **state)
{
    enum { N = 150, CHILD = 4, LATE = 30 };
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){.kv = "f32"}, NULL);
    int32_t ids[N + 300];
    struct got *root = got_new(), *child[CHILD], *want;
    struct mc_request r;
    struct mc_handle h, c[CHILD];
    struct mc_err err = {0};
    struct mc_engine_status s;

    (void)state;
    some_ids(ids, N, 3);
    r = ask_for(ids, N, 300, root);
    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    got_wait(root, LATE);
    pthread_mutex_lock(&root->lock);
    memcpy(ids + N, root->id, LATE * sizeof *ids);
    pthread_mutex_unlock(&root->lock);
    for (int i = 0; i < CHILD; i++) /* the whole context so far, and the prompt alone */
        child[i] = fork_of(e, h, ids, i % 2 ? N : N + LATE, 200, &c[i]);
    for (int i = 0; i < CHILD; i++)
        got_wait(child[i], 20);
    mc_engine_status(e, &s);
    assert_true(s.p_held <= 7 + CHILD * 4); /* each holds the root's first two */
    mc_engine_cancel(e, h, "the root leaves first");
    for (int i = 0; i < CHILD; i++) {
        int32_t n = i % 2 ? N : N + LATE;

        got_wait(child[i], -1);
        assert_int_equal(child[i]->end.usage.n_cached, n - 1);
        want = run_one(e, ids, n, 200);
        same_tokens(child[i], want);
        got_free(want), got_free(child[i]);
    }
    got_wait(root, -1);
    assert_idle(e);
    got_free(root);
    mc_engine_close(e);
}

static void fork_of_who_has_gone_or_has_another_salt_is_a_plain_request(void **state)
{
    struct mc_engine *e = engine_open(&(struct mc_engine_opts){.kv = "f32"}, NULL);
    struct got *root, *g, *want;
    struct mc_request r;
    struct mc_handle h = {1, 1}, c;
    struct mc_err err = {0};
    int32_t ids[100];

    (void)state;
    some_ids(ids, 100, 8);
    want = run_one(e, ids, 100, 20);
    g = fork_of(e, h, ids, 100, 20, &c); /* it was 1.1 and has ended */
    got_wait(g, -1);
    same_tokens(g, want);
    got_free(g);
    root = got_new();
    r = ask_for(ids, 100, 200, root);
    assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    got_wait(root, 3);
    g = got_new();
    r = ask_for(ids, 100, 20, g);
    r.from = h;
    strcpy(r.salt, "other");
    assert_ok(mc_engine_submit(e, &r, &c, &err), err);
    got_wait(g, -1);
    assert_int_equal(g->end.usage.n_cached, 0);
    same_tokens(g, want);
    got_wait(root, -1);
    assert_idle(e);
    got_free(g), got_free(root), got_free(want);
    mc_engine_close(e);
}

/* n choices of one prompt come at once: one reads it, the others share its pages. */
static void prefix_that_another_reads_is_waited_for(void **state)
{
    enum { N = 250, CHOICES = 5 };

    (void)state;
    for (int forks = 0; forks < 2; forks++) {
        struct mc_engine *e = engine_open(
            &(struct mc_engine_opts){.kv = "f32", .chunk = 64, .max_seqs = 8}, NULL);
        struct mc_handle h[CHOICES] = {{0}};
        struct got *g[CHOICES];
        int32_t ids[N];
        double read;

        some_ids(ids, N, 12);
        for (int i = 0; i < CHOICES; i++)
            g[i] = fork_of(e, forks ? h[0] : (struct mc_handle){0}, ids, N, 40, &h[i]);
        for (int i = 0; i < CHOICES; i++) {
            got_wait(g[i], -1);
            same_tokens(g[i], g[0]);
        }
        read = mc_engine_counter(e, MC_C_prompt_tokens_total);
        /* a fork runs its last token again; without, what follows the last whole page */
        assert_true(read <= N + (CHOICES - 1) * (forks ? 1 : N % MC_PAGE));
        assert_idle(e);
        for (int i = 0; i < CHOICES; i++)
            got_free(g[i]);
        mc_engine_close(e);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(swap_and_back_gives_each_its_solo_tokens),
    cmocka_unit_test(swap_into_a_host_pool_too_small_is_trimmed_and_harms_nothing),
    cmocka_unit_test(swap_is_chosen_by_measured_costs),
    cmocka_unit_test(swapped_sequences_that_are_cancelled_give_host_memory_back),
    cmocka_unit_test(fork_shares_pages_and_copies_the_last),
    cmocka_unit_test(fork_of_who_has_gone_or_has_another_salt_is_a_plain_request),
    cmocka_unit_test(prefix_that_another_reads_is_waited_for),
};

MC_TEST_MAIN(tests)
