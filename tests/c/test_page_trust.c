/* test_page_trust.c - what a sequence reads is its own, and nothing but: tables and pages
 * that are spoilt or reused, bytes that nobody wrote, and equal bits in any company. */
#include "core/engine/engine_int.h"
#include "tests/c/engine_help.h"

enum { N = 5, N_GEN = 130, BYTE = 0x7F /* a NaN in e4m3 and in f16 */ };

static const struct {
    const char *model, *kv;
    int64_t page; /* bytes */
} cases[] = {
    {"tests/models/tiny-llama", "bf16", 4 * 2 * 2 * MC_PAGE * 32 * 2},
    {"tests/models/tiny-llama", "fp8", 4 * 2 * 2 * MC_PAGE * 36},
    {"tests/models/tiny-kimi", "fp8-plain", 5 * MC_PAGE * 160},
    {"tests/models/tiny-glm", "fp8-656", 8 * MC_PAGE * 196 + 5 * MC_PAGE * 68},
};
enum { N_CASE = sizeof cases / sizeof *cases };

/* ---- pages that are not its own ---------------------------------------------------- */

enum how { NOBODYS, BEYOND, ANOTHERS, STAMPED };

struct thief {
    struct mc_engine *e;
    enum how how;
    bool done;
};

/* The row that has made five tokens finds another page under its first block, or its page
 * stamped for somebody else, as a reuse does: between two steps, of which one may still
 * run. */
static int plan_theft(void *self, struct mc_step_view *v, struct mc_plan *p,
                      struct mc_err *err)
{
    struct thief *t = self;
    struct mc_run *run = &t->e->crew.run[0];
    struct mc_kv *kv = &run->dev.kv;

    for (int32_t i = 0; i < v->n_row && !t->done; i++) {
        const struct mc_row *r = mc_view_row(v, i);
        struct mc_seq *q = mc_seq_get(t->e, (struct mc_handle){r->seq, r->gen});
        static uint32_t list[2];
        static const int32_t one = 1;

        if (strcmp(q->name, "victim") != 0 || q->n_gen < 5)
            continue;
        t->done = true;
        if (t->how == STAMPED) {
            const struct mc_page_init_p init = {.kv = *kv, .list = list, .n_list = &one,
                                                .cap = 1};

            list[0] = (uint32_t)q->page[0];
            list[1] = mc_kv_tag(t->e->kv, q->page[0]) + 1000;
            mc_k_page_init(run->be, run->stream, &init);
        } else {
            kv->table[q->slot * kv->pitch] = t->how == NOBODYS  ? -1
                                             : t->how == BEYOND ? kv->n_page
                                                                : q->page[0] ^ 1;
        }
    }
    return mc_policy_builtin.ops->plan(NULL, v, p, err);
}

static void page_that_is_not_its_own_ends_one_request_alone(void **state)
{
    static const struct mc_policy_ops ops = {.plan = plan_theft};

    (void)state;
    for (enum how how = NOBODYS; how <= STAMPED; how++) {
        /* a table is written by the host here: not while a step reads it */
        struct mc_engine_opts o = {.model = "tests/models/tiny-llama", .kv = "fp8",
                                   .sync = how != STAMPED};
        struct thief thief = {.how = how};
        const struct mc_policy p = {&ops, &thief};
        struct got *alone, *g[2];
        int32_t ids[2][70];
        struct mc_err err = {0};

        mc_log_set("engine", MC_LOG_OFF);
        assert_ok(mc_engine_open(&o, &thief.e, &err), err);
        mc_engine_set_policy(thief.e, &p);
        assert_ok(mc_engine_start(thief.e, &err), err);
        for (int i = 0; i < 2; i++)
            some_ids(ids[i], 70, (uint32_t)i + 1);
        alone = run_one(thief.e, ids[0], 70, 20);
        for (int i = 0; i < 2; i++) {
            struct mc_request r;
            struct mc_handle h;

            g[i] = got_new();
            r = ask_for(ids[i], 70, 20, g[i]);
            snprintf(r.salt, sizeof r.salt, "%d", i); /* no page is shared */
            snprintf(r.name, sizeof r.name, "%s", i ? "victim" : "bystander");
            assert_ok(mc_engine_submit(thief.e, &r, &h, &err), err);
        }
        got_wait(g[0], -1), got_wait(g[1], -1);
        assert_int_equal(g[1]->end.finish, MC_FINISH_ERROR);
        assert_non_null(strstr(g[1]->end.err.text, "no longer its own"));
        assert_in_range(g[1]->n, 5, 6); /* one more where a step was under way */
        assert_int_equal((int)mc_engine_counter(thief.e, MC_C_page_tag_mismatch_total),
                         1);
        same_tokens(g[0], alone);
        assert_idle(thief.e);
        got_free(alone), got_free(g[0]), got_free(g[1]);
        mc_engine_close(thief.e);
    }
}

/* ---- bytes that nobody wrote ------------------------------------------------------- */

struct poison {
    struct mc_engine *e;
    bool on;
};

/* With nothing in flight: pages that nobody has are filled, as if they had been used. */
static int plan_poisoned(void *self, struct mc_step_view *v, struct mc_plan *p,
                         struct mc_err *err)
{
    struct poison *x = self;
    const struct mc_kv *kv = &x->e->crew.run[0].dev.kv;

    for (int32_t i = 0; i < kv->n_page && x->on; i++)
        if (strcmp(mc_kv_state(x->e->kv, i), "free") == 0)
            memset(kv->base + i * kv->page_stride, BYTE, (size_t)kv->page_stride);
    return mc_policy_builtin.ops->plan(NULL, v, p, err);
}

static void ask_many(struct mc_engine *e, bool together, const char *salt,
                     struct got *g[N])
{
    static const int32_t n_prompt[N] = {1, MC_PAGE - 1, MC_PAGE, MC_PAGE + 1, 150};
    static int32_t ids[N][150];
    struct mc_handle h;
    struct mc_err err = {0};

    for (int i = 0; i < N; i++) {
        struct mc_request r;

        some_ids(ids[i], n_prompt[i], (uint32_t)i + 20);
        g[i] = got_new();
        r = ask_for(ids[i], n_prompt[i], N_GEN, g[i]);
        r.n_top = 0; /* logprobs: their bits tell more than the tokens */
        snprintf(r.salt, sizeof r.salt, "%s", salt);
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
        if (!together)
            got_wait(g[i], -1);
    }
    for (int i = 0; i < N; i++)
        got_wait(g[i], -1);
}

static void same_bits(struct got *const a[N], struct got *const b[N])
{
    for (int i = 0; i < N; i++) {
        same_tokens(a[i], b[i]);
        assert_memory_equal(a[i]->logprob, b[i]->logprob,
                            (size_t)a[i]->n * sizeof *a[i]->logprob);
    }
}

static void free_many(struct got *const g[N])
{
    for (int i = 0; i < N; i++)
        got_free(g[i]);
}

static void unwritten_bytes_change_no_bit(void **state)
{
    static const struct mc_policy_ops ops = {.plan = plan_poisoned};

    (void)state;
    for (int c = 0; c < N_CASE; c++) {
        struct got *g[2][N];

        for (int on = 0; on < 2; on++) {
            struct mc_engine_opts o = {.model = cases[c].model, .kv = cases[c].kv,
                                       .sync = true, .max_seqs = N, .chunk = 100,
                                       .kv_bytes = (uint64_t)(40 * cases[c].page)};
            struct poison x = {.on = on};
            const struct mc_policy p = {&ops, &x};
            struct mc_err err = {0};

            assert_ok(mc_engine_open(&o, &x.e, &err), err);
            mc_engine_set_policy(x.e, &p);
            assert_ok(mc_engine_start(x.e, &err), err);
            ask_many(x.e, true, "", g[on]);
            mc_engine_close(x.e);
        }
        same_bits(g[0], g[1]);
        free_many(g[0]), free_many(g[1]);
    }
}

/* ---- equal bits -------------------------------------------------------------------- */

/* Alone; in a batch with other chunks; with a prefix from the cache; preempted and
 * recomputed, or moved to host memory and back. */
static void logits_have_the_same_bits_in_any_company(void **state)
{
    (void)state;
    for (int c = 0; c < N_CASE; c++) {
        struct mc_engine_opts o = {.model = cases[c].model, .kv = cases[c].kv,
                                   .max_seqs = N};
        struct mc_engine *e = engine_open(&o, NULL);
        struct got *want[N], *g[N];

        ask_many(e, false, "a", want);
        ask_many(e, true, "b", g); /* another salt: nothing is found */
        same_bits(want, g);
        free_many(g);
        ask_many(e, true, "a", g);
        assert_true(g[N - 1]->end.usage.n_cached > 0);
        same_bits(want, g);
        free_many(g);
        mc_engine_close(e);
        for (int how = 0; how < 3; how++) {
            o.chunk = how == 0 ? 16 : 64;
            o.kv_bytes = how == 0 ? 0 : (uint64_t)(11 * cases[c].page);
            o.swap_bytes = how == 1 ? -1 : 0;
            e = engine_open(&o, NULL);
            ask_many(e, true, "", g);
            assert_int_equal(how > 0,
                             mc_engine_counter(e, MC_C_num_preemptions_total) > 0);
            same_bits(want, g);
            free_many(g);
            mc_engine_close(e);
        }
        free_many(want);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(page_that_is_not_its_own_ends_one_request_alone),
    cmocka_unit_test(unwritten_bytes_change_no_bit),
    cmocka_unit_test(logits_have_the_same_bits_in_any_company),
};

MC_TEST_MAIN(tests)
