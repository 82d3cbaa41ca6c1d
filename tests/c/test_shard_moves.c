/* test_shard_moves.c - tokens spread over ranks, on the move: swapped, dropped, forked,
 * in a pool that shrinks. Each sequence has the tokens that it has alone, and that ranks
 * which keep all give it. */
#include "core/engine/engine_int.h"
#include "kernels/host/host.h"
#include "tests/c/engine_help.h"

static const char *const models[] = {"tests/models/tiny-kimi", "tests/models/tiny-glm"};

static struct mc_engine *open_sharded(const char *model, int32_t ranks, int32_t shards,
                                      const struct mc_policy *p)
{
    return engine_open(&(struct mc_engine_opts){.model = model, .ranks = ranks,
                                                .shard_tokens = shards, .max_seqs = 8,
                                                .chunk = 64, .sync = true},
                       p);
}

/* ---- a place of host memory that two ranks use ------------------------------------- */

enum { LEN_A = 290, LEN_B = 291, LIMIT = 25 }; /* five pages each */

struct exchange {
    struct mc_engine *e;
    int32_t stage, first[2]; /* the rank of a's, of b's first page */
};

static int nap(struct mc_par *par, const void *ms)
{
    (void)par;
    nanosleep(&(struct timespec){0, *(const int32_t *)ms * 1000000l}, NULL);
    return 0;
}

static const struct mc_row *row_of(const struct mc_step_view *v, int32_t n_prompt)
{
    for (int32_t i = 0; i < v->n_row; i++)
        if (mc_view_row(v, i)->n_prompt == n_prompt)
            return mc_view_row(v, i);
    return NULL;
}

static struct mc_item item(const struct mc_row *r, uint16_t what)
{
    return (struct mc_item){.seq = r->seq, .gen = r->gen, .what = what};
}

/* a goes to host memory; then, in one step, it comes back and b goes where it was: on a
 * rank that is late, and on another that is not. */
static int plan_exchange(void *self, struct mc_step_view *v, struct mc_plan *p,
                         struct mc_err *err)
{
    struct exchange *x = self;
    const struct mc_row *a = row_of(v, LEN_A), *b = row_of(v, LEN_B);

    if (x->stage == 0 && a && b && a->state == MC_STATE_DECODE && b->n_gen > 2) {
        x->stage++;
        x->first[0] = mc_kv_shard(x->e->kv, x->e->seqs[a->seq - 1].page[0]);
        x->first[1] = mc_kv_shard(x->e->kv, x->e->seqs[b->seq - 1].page[0]);
        p->item[p->n++] = item(a, MC_SWAP);
    } else if (x->stage == 1 && a && b && a->state == MC_STATE_PAUSED) {
        x->stage++;
        for (int32_t i = 0; i < x->e->crew.n; i++)
            mc_stream_push(x->e->crew.run[i].stream, nap,
                           &(int32_t){i == x->first[0] ? 300 : 0}, sizeof(int32_t));
        p->item[p->n++] = item(a, MC_BACK);
        p->item[p->n++] = item(b, MC_SWAP);
    } else {
        return mc_policy_builtin.ops->plan(NULL, v, p, err);
    }
    return 0;
}

/* b begins once a has its pages, so that their first ones lie with different ranks. */
static void run_pair(struct mc_engine *e, struct got *g[2])
{
    static int32_t ids[2][LEN_B];
    struct mc_handle h;
    struct mc_err err = {0};

    for (int i = 0; i < 2; i++) {
        struct mc_request r;

        some_ids(ids[i], LEN_B, 70 + (uint32_t)i);
        g[i] = got_new();
        r = ask_for(ids[i], LEN_A + i, LIMIT, g[i]);
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
        got_wait(g[i], 1);
    }
    for (int i = 0; i < 2; i++)
        got_wait(g[i], -1);
    assert_idle(e);
}

static void moves_leave_a_place_to_the_rank_that_has_yet_to_read_it(void **state)
{
    static const struct mc_policy_ops ops = {.plan = plan_exchange};
    struct exchange x = {0};
    const struct mc_policy p = {&ops, &x};
    struct mc_engine *e = open_sharded(models[0], 2, 2, NULL);
    struct got *want[2], *g[2];

    (void)state;
    run_pair(e, want);
    mc_engine_close(e);
    mc_log_set("engine", MC_LOG_OFF);
    e = open_sharded(models[0], 2, 2, &p);
    x.e = e;
    run_pair(e, g);
    assert_int_equal(x.stage, 2);
    assert_int_not_equal(x.first[0], x.first[1]);
    assert_true(mc_engine_counter(e, MC_C_swapped_total) == 2);
    mc_engine_close(e);
    for (int i = 0; i < 2; i++) {
        same_tokens(want[i], g[i]);
        got_free(want[i]), got_free(g[i]);
    }
}

/* ---- forks ------------------------------------------------------------------------- */

enum { PROMPT = 150, LATE = 30, CHILD = 4, MADE = 60 };

/* Who has made LATE tokens waits until CHILD others run. */
static int plan_family(void *self, struct mc_step_view *v, struct mc_plan *p,
                       struct mc_err *err)
{
    bool *free = self;
    int rc = mc_policy_builtin.ops->plan(NULL, v, p, err);
    int32_t n = 0;

    for (int32_t i = 1; i < v->n_row; i++)
        n += mc_row_runs(mc_view_row(v, i));
    *free = *free || n == CHILD;
    for (int32_t i = 0; i < p->n && !*free; i++)
        if (p->item[i].seq == mc_view_row(v, 0)->seq && mc_view_row(v, 0)->n_gen == LATE)
            p->item[i].what = MC_HOLD;
    return rc;
}

struct family {
    struct got *root, *child[CHILD];
};

/* A root, and forks of its prompt and of all that it has made so far. */
static void run_family(struct mc_engine *e, struct family *f)
{
    int32_t ids[PROMPT + LATE];
    struct mc_request r;
    struct mc_handle root, h;
    struct mc_err err = {0};

    f->root = got_new();
    some_ids(ids, PROMPT, 3);
    r = ask_for(ids, PROMPT, LATE + MADE, f->root);
    assert_ok(mc_engine_submit(e, &r, &root, &err), err);
    got_wait(f->root, LATE);
    memcpy(ids + PROMPT, f->root->id, LATE * sizeof *ids);
    for (int i = 0; i < CHILD; i++) {
        f->child[i] = got_new();
        r = ask_for(ids, i % 2 ? PROMPT : PROMPT + LATE, MADE, f->child[i]);
        r.from = root;
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    }
    got_wait(f->root, -1);
    for (int i = 0; i < CHILD; i++)
        got_wait(f->child[i], -1);
    assert_idle(e);
}

static void moves_forks_have_the_tokens_of_whole_ranks(void **state)
{
    static const struct mc_policy_ops ops = {.plan = plan_family};
    static const int32_t shards[] = {1, 2, 4};

    (void)state;
    for (size_t m = 0; m < 2; m++) {
        struct family f[3];

        for (int k = 0; k < 3; k++) {
            bool go = false;
            const struct mc_policy p = {&ops, &go};
            struct mc_engine *e = open_sharded(models[m], 4, shards[k], &p);

            run_family(e, &f[k]);
            mc_engine_close(e);
            same_tokens(f[0].root, f[k].root);
            for (int i = 0; i < CHILD; i++) {
                int32_t from = i % 2 ? 0 : LATE;

                /* but for the last of it everything was copied or shared */
                assert_int_equal(f[k].child[i]->end.usage.n_cached, PROMPT - 1 + from);
                assert_int_equal(f[k].child[i]->n, MADE);
                assert_memory_equal(f[k].child[i]->id, f[k].root->id + from,
                                    MADE * sizeof(int32_t));
            }
        }
        for (int k = 0; k < 3; k++) {
            for (int i = 0; i < CHILD; i++)
                got_free(f[k].child[i]);
            got_free(f[k].root);
        }
    }
}

/* ---- a pool that shrinks ----------------------------------------------------------- */

static void start_six(struct mc_engine *e, struct got *g[6])
{
    int32_t ids[100];

    for (int i = 0; i < 6; i++) {
        struct mc_request r;
        struct mc_handle h;
        struct mc_err err = {0};

        some_ids(ids, 100, 40 + (uint32_t)i);
        g[i] = got_new();
        r = ask_for(ids, 100, 120, g[i]);
        assert_ok(mc_engine_submit(e, &r, &h, &err), err);
    }
}

static void wait_six(struct got *g[6], int32_t n)
{
    for (int i = 0; i < 6; i++)
        got_wait(g[i], n);
}

static void moves_out_of_a_pool_that_shrinks_change_no_token(void **state)
{
    (void)state;
    for (size_t m = 0; m < 2; m++) {
        struct mc_engine *e = open_sharded(models[m], 2, 2, NULL);
        uint64_t page = (uint64_t)e->crew.run[0].dev.kv.page_stride;
        struct got *want[6], *g[6];
        struct mc_engine_status s;
        struct mc_err err = {0};
        int32_t all;

        start_six(e, want);
        wait_six(want, -1);
        mc_engine_status(e, &s);
        all = s.p_total;
        start_six(e, g);
        wait_six(g, 20);
        assert_ok(mc_engine_set_kv(e, 5 * page, &err), err); /* of each rank */
        wait_six(g, -1);
        assert_true(mc_engine_resized(e, 60));
        mc_engine_status(e, &s);
        assert_int_equal(s.p_total, 10);
        assert_int_equal(s.max_context, 10 * MC_PAGE);
        assert_true(mc_engine_counter(e, MC_C_num_preemptions_total) > 0);
        assert_ok(mc_engine_set_kv(e, (uint64_t)all / 2 * page, &err), err);
        assert_true(mc_engine_resized(e, 60));
        assert_idle(e);
        for (int i = 0; i < 6; i++) {
            same_tokens(want[i], g[i]);
            got_free(want[i]), got_free(g[i]);
        }
        mc_engine_close(e);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(moves_leave_a_place_to_the_rank_that_has_yet_to_read_it),
    cmocka_unit_test(moves_forks_have_the_tokens_of_whole_ranks),
    cmocka_unit_test(moves_out_of_a_pool_that_shrinks_change_no_token),
};

MC_TEST_MAIN(tests)
