/* test_sim.c - recordings of an engine, and the scheduler simulated on them. */
#include "tests/c/engine_help.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/engine/sim.h"

static char path[64];

static const char *new_path(void)
{
    static int n;

    snprintf(path, sizeof path, "/tmp/mascon-rec-%d-%d", (int)getpid(), n++);
    unlink(path);
    return path;
}

/* An engine with a recorder runs STREAMS prompts; what was recorded. */
static struct mc_recording record(uint64_t max_bytes, bool tokens)
{
    const struct mc_engine_opts eo = {.model = "tests/models/tiny-llama", .kv = "f32",
                                      .max_seqs = 4};
    const struct mc_recorder_opts ro = {new_path(), max_bytes, tokens};
    struct mc_engine *e;
    struct mc_recorder *r;
    struct mc_recording rec;
    struct mc_err err = {0};
    struct got *g[STREAMS];

    mc_log_set("record", MC_LOG_OFF);
    assert_ok(mc_engine_open(&eo, &e, &err), err);
    assert_ok(mc_recorder_open(&ro, &r, &err), err);
    assert_int_equal(mc_recorder_open(&ro, &(struct mc_recorder *){NULL}, &err),
                     MC_EEXIST);
    assert_ok(mc_engine_set_weight(e, false, 1, 2.5, &err), err);
    assert_int_equal(mc_engine_set_weight(e, false, 8, 1, &err), MC_EARG);
    assert_int_equal(mc_engine_set_weight(e, true, 1, 0, &err), MC_EARG);
    assert_ok(mc_engine_record(e, r, &err), err);
    assert_ok(mc_engine_start(e, &err), err);
    run_all(e, true, g);
    assert_idle(e);
    mc_engine_close(e);
    mc_recorder_close(r);
    for (int i = 0; i < STREAMS; i++)
        got_free(g[i]);
    assert_ok(mc_recording_load(path, &rec, &err), err);
    return rec;
}

static void record_holds_what_the_engine_did(void **st)
{
    struct mc_recording r = record(1 << 24, false);
    int32_t tokens = 0, prompt = 0, run = 0, published = 0;

    (void)st;
    assert_int_equal(r.n_req, STREAMS);
    assert_true(!r.cut && r.lost == 0 && r.n_view >= 1 && r.head.row_cap == 4);
    assert_true(r.head.weight[1] == 2.5f && r.head.weight[0] == 1);
    for (int i = 0; i < r.n_req; i++) {
        const struct mc_rec_req *q = &r.req[i];

        assert_int_equal(q->n_gen, q->in.limit);
        assert_int_equal(q->finish, MC_FINISH_LENGTH);
        assert_true(q->in.t >= 0 && q->in.t < q->t_first && q->t_first < q->t_last);
        assert_int_equal(q->in.n_ids, 0);
        tokens += q->n_gen;
        prompt += q->in.n_prompt - q->n_hit;
    }
    for (int i = 0; i < r.n_step; i++) {
        assert_true(r.step[i].cost.us > 0);
        published += (int32_t)r.step[i].n_tok;
        run += r.step[i].cost.n_prompt_tok;
    }
    assert_int_equal(published, tokens);
    assert_int_equal(run, prompt);
    assert_int_equal(r.n_gap, tokens - STREAMS);
    mc_recording_free(&r);
    unlink(path);
}

static void record_keeps_prompts_only_when_asked(void **st)
{
    struct mc_recording with = record(1 << 24, true);
    struct stat a, b;

    (void)st;
    assert_int_equal(with.req[3].in.n_ids, with.req[3].in.n_prompt);
    assert_int_equal(stat(path, &a), 0);
    assert_int_equal(a.st_mode & 077, 0);
    unlink(path);
    mc_recording_free(&with);
    with = record(1 << 24, false);
    assert_int_equal(stat(path, &b), 0);
    assert_true(b.st_size + 1000 < a.st_size);
    mc_recording_free(&with);
    unlink(path);
}

static void record_ends_at_its_size_and_a_cut_file_is_read(void **st)
{
    struct mc_recording r;
    struct mc_err err = {0};
    struct stat s;
    FILE *f;
    char *data;

    (void)st;
    r = record(1 << 24, false);
    mc_recording_free(&r);
    assert_int_equal(stat(path, &s), 0);
    data = malloc((size_t)s.st_size);
    f = fopen(path, "rb");
    assert_int_equal(fread(data, 1, (size_t)s.st_size, f), s.st_size);
    fclose(f);
    for (size_t n = 0; n < (size_t)s.st_size; n += 1 + (size_t)s.st_size / 50) {
        if (mc_recording_parse(data, n, &r, &err) == 0) {
            /* unseen only where a frame of zstd begins */
            assert_true(r.cut || n + 200 > (size_t)s.st_size ||
                        memcmp(data + n, "\x28\xb5\x2f\xfd", 4) == 0);
            mc_recording_free(&r);
        }
    }
    free(data);
    unlink(path);
    {
        const struct mc_recorder_opts o = {new_path(), 4096, false};
        struct mc_recorder *rec;
        struct mc_rec_head h = {.abi = MC_ABI, .depth = 2, .p_tokens = 64, .p_total = 9,
                                .tok_cap = 64, .row_cap = 4};
        uint64_t noise[512];

        for (int i = 0; i < MC_REC_LANES; i++)
            h.weight[i] = 1;
        assert_ok(mc_recorder_open(&o, &rec, &err), err);
        mc_recorder_put(rec, MC_REC_HEAD, &h, sizeof h, NULL, 0);
        for (int i = 0; i < 1000 && (stat(path, &s) < 0 || s.st_size <= 8); i++)
            nanosleep(&(struct timespec){0, 10000000}, NULL);
        for (int i = 0; i < 512; i++)
            noise[i] = (uint64_t)i * 0x9E3779B97F4A7C15ull;
        mc_recorder_put(rec, MC_REC_START, noise, sizeof noise, NULL, 0);
        mc_recorder_close(rec);
        assert_int_equal(stat(path, &s), 0);
        assert_true(s.st_size <= 4096);
        assert_ok(mc_recording_load(path, &r, &err), err);
        assert_true(r.cut);
        mc_recording_free(&r);
        unlink(path);
    }
}

/* ---- simulating -------------------------------------------------------------------- */

static struct mc_sim simulate(const struct mc_recording *r, const struct mc_policy *p)
{
    const struct mc_sim_opts o = {.rec = r, .policy = p, .host_us = 10,
                                  .decode = {.us_base = 20000, .us_row = 500},
                                  .prefill = {.us_tok = 400}};
    struct mc_sim sim;
    struct mc_err err = {0};

    assert_ok(mc_sim_run(&o, &sim, &err), err);
    return sim;
}

static void sim_serves_all_of_the_shipped_arrivals(void **st)
{
    struct mc_recording r;
    struct mc_sim s;
    int32_t gaps = 0;

    (void)st;
    assert_int_equal(mc_sim_shipped(&r), 0);
    s = simulate(&r, &mc_policy_builtin);
    for (int i = 0; i < r.n_req; i++) {
        assert_int_equal(s.req[i].n_gen, r.req[i].n_gen);
        assert_true(s.req[i].t_first > r.req[i].in.t &&
                    s.req[i].t_end >= s.req[i].t_last);
        gaps += s.req[i].n_gen - 1;
    }
    assert_int_equal(s.n_gap, gaps);
    assert_true(s.preempted > 0 && s.failed == 0 && s.trimmed == 0 && s.starved == 0);
    mc_sim_free(&s);
    mc_recording_free(&r);
}

/* n requests that come at once to a server that runs one at a time. */
static struct mc_recording one_by_one(int n)
{
    struct mc_recording r;

    assert_int_equal(mc_sim_shipped(&r), 0);
    r.n_req = n;
    r.head.row_cap = 1;
    for (int i = 0; i < n; i++)
        r.req[i].in.t = 1;
    return r;
}

/* First come, last served. */
static int plan_last(void *self, struct mc_step_view *v, struct mc_plan *p,
                     struct mc_err *err)
{
    int32_t pick = -1;

    (void)self, (void)err;
    for (int32_t i = 0; i < v->n_row; i++)
        if (pick < 0 || mc_view_row(v, pick)->state == MC_STATE_WAITING)
            pick = i;
    p->item[p->n++] = (struct mc_item){.seq = mc_view_row(v, pick)->seq, .gen = 1,
                                       .what = MC_RUN, .n = 1000};
    return 0;
}

static void sim_a_reversed_order_finishes_in_reverse(void **st)
{
    static const struct mc_policy_ops last = {.plan = plan_last};
    const struct mc_policy reversed = {&last, NULL};
    struct mc_recording r = one_by_one(20);
    struct mc_sim a = simulate(&r, &mc_policy_builtin), b = simulate(&r, &reversed);

    (void)st;
    for (int i = 1; i < 20; i++) {
        assert_true(a.req[i - 1].t_end < a.req[i].t_end);
        assert_true(b.req[i - 1].t_end > b.req[i].t_end);
    }
    mc_sim_free(&a);
    mc_sim_free(&b);
    mc_recording_free(&r);
}

/* Only lane 0. */
static int plan_unfair(void *self, struct mc_step_view *v, struct mc_plan *p,
                       struct mc_err *err)
{
    (void)self, (void)err;
    for (int32_t i = 0; i < v->n_row; i++) {
        const struct mc_row *row = mc_view_row(v, i);

        if (row->lane == 0)
            p->item[p->n++] = (struct mc_item){
                .seq = row->seq, .gen = 1,
                .what = row->state == MC_STATE_PAUSED ? MC_BACK : MC_RUN, .n = 64};
    }
    return 0;
}

static int plan_fails(void *self, struct mc_step_view *v, struct mc_plan *p,
                      struct mc_err *err)
{
    (void)self, (void)p;
    return v->p_free < 15 ? mc_fail(err, MC_EPOLICY, "dry") : plan_last(self, v, p, err);
}

static void sim_tells_who_starves_and_what_fails(void **st)
{
    static const struct mc_policy_ops unfair_ops = {.plan = plan_unfair};
    static const struct mc_policy_ops failing_ops = {.plan = plan_fails};
    const struct mc_policy unfair = {&unfair_ops, NULL}, failing = {&failing_ops, NULL};
    struct mc_recording r;
    struct mc_sim s;

    (void)st;
    assert_int_equal(mc_sim_shipped(&r), 0);
    r.head.p_total = 4000; /* pages are not the reason */
    s = simulate(&r, &unfair);
    assert_true(s.stuck && s.starved > 10);
    for (int i = 0; i < r.n_req; i++)
        assert_int_equal(s.req[i].starved, r.req[i].in.lane == 1);
    mc_sim_free(&s);
    r.head.p_total = 24;
    s = simulate(&r, &failing);
    assert_true(s.failed > 0 && s.err.code == MC_EPOLICY);
    mc_sim_free(&s);
    mc_recording_free(&r);
}

/* ---- a recording under one scheduler, replayed as another -------------------------- */

/* Short prompts first, in chunks of 64. */
static int plan_shortest(void *self, struct mc_step_view *v, struct mc_plan *p,
                         struct mc_err *err)
{
    int32_t tokens = p->tok_left, pages = p->page_left;

    (void)self, (void)err;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < v->n_row && p->n < p->cap; i++) {
            const struct mc_row *r = mc_view_row(v,
                                                 mc_view_order(v, MC_ORDER_SHORTEST)[i]);
            bool decode = r->state == MC_STATE_DECODE;
            int32_t n = decode ? 1 : r->n_left < 64 ? r->n_left : 64, take;

            if (decode != (pass == 0) || r->state == MC_STATE_PAUSED)
                continue;
            n = n < tokens ? n : tokens;
            take = decode ? r->p_step : mc_row_prompt_pages(v, r, n);
            if (n < 1 || take > pages)
                continue;
            tokens -= n;
            pages -= take;
            p->item[p->n++] =
                (struct mc_item){.seq = r->seq, .gen = r->gen, .what = MC_RUN, .n = n};
        }
    for (int32_t i = 0; i < v->n_row && p->n < p->cap; i++) {
        const struct mc_row *r = mc_view_row(v, i);

        if (r->state != MC_STATE_PAUSED || r->p_step > pages)
            continue;
        pages -= r->p_step;
        p->item[p->n++] = (struct mc_item){.seq = r->seq, .gen = r->gen, .what = MC_BACK};
    }
    return 0;
}

/* The machine that both run on: what steps take there, with slow spells and now and then
 * a step that is held up. */
static void true_machine(struct mc_sim_opts *o, struct mc_sim_miss *m, int32_t n)
{
    uint32_t x = 7;

    o->decode = (struct mc_cost){.us_base = 9000, .us_row = 350, .us_ktok_kv = 90};
    o->prefill = (struct mc_cost){.us_base = 800, .us_tok = 140, .us_ktok_kv = 60};
    o->host_us = 150;
    for (int32_t i = 0; i < n; i++) {
        uint32_t dice = (x = x * 1664525u + 1013904223u) >> 16;
        bool slow = (i / 300) % 3 == 1; /* three seconds of nine */

        m[i] = (struct mc_sim_miss){i * 0.01, (slow ? 1.5f : 0.9f) +
                                                  (float)(dice % 100) * 0.003f +
                                                  (dice % 23 == 0 ? 2.5f : 0)};
    }
    o->miss[0] = o->miss[1] = m;
    o->n_miss[0] = o->n_miss[1] = n;
}

static double share_of(float *v, int32_t n, double at)
{
    for (int32_t i = 1; i < n; i++) /* insertion: sorted twice only */
        for (int32_t k = i; k > 0 && v[k] < v[k - 1]; k--) {
            float t = v[k];

            v[k] = v[k - 1];
            v[k - 1] = t;
        }
    return (double)v[(int32_t)(at * (n - 1))];
}

static double mean_ttft(const struct mc_recording *rec, const struct mc_sim *s)
{
    double sum = 0;
    int32_t n = 0;

    for (int32_t i = 0; i < rec->n_req; i++)
        if (s->req[i].t_first > 0) {
            sum += s->req[i].t_first - rec->req[i].in.t;
            n++;
        }
    return sum / n;
}

static void assert_within(const char *what, double want, double got, double share)
{
    print_message("# %s: live %.1f ms, replayed %.1f ms\n", what, want * 1e3, got * 1e3);
    if (!(got > want * (1 - share) && got < want * (1 + share)))
        fail_msg("%s: %g instead of %g", what, got, want);
}

/* What one scheduler's recording says of another, against that other's own run on the
 * same machine: both directions. */
static void sim_of_another_policy_comes_within_15_percent_of_its_run(void **st)
{
    static const struct mc_policy_ops ops = {.plan = plan_shortest};
    const struct mc_policy other = {&ops, NULL}, *const policy[] = {&mc_policy_builtin,
                                                                    &other};
    enum { MISSES = 40000 };
    struct mc_sim_miss *m = calloc(MISSES, sizeof *m);
    struct mc_recording rec, seen;
    struct mc_err err = {0};
    double moved = 0;

    (void)st;
    assert_int_equal(mc_sim_shipped(&rec), 0);
    rec.head.p_total = 400;
    for (int from = 0; from < 2; from++) {
        struct mc_sim_opts truth = {.rec = &rec,
                                    .policy = policy[from],
                                    .keep_steps = true};
        struct mc_sim_opts told = {.rec = &rec, .policy = policy[!from]};
        struct mc_sim was, live, would;

        true_machine(&truth, m, MISSES);
        assert_ok(mc_sim_run(&truth, &was, &err), err);
        truth.policy = policy[!from];
        truth.keep_steps = false;
        assert_ok(mc_sim_run(&truth, &live, &err), err);
        seen = rec;
        seen.step = was.step;
        seen.n_step = was.steps;
        assert_ok(mc_sim_fit(&seen, &told, &err), err);
        assert_ok(mc_sim_run(&told, &would, &err), err);
        assert_within("first token, mean", mean_ttft(&rec, &live),
                      mean_ttft(&rec, &would), 0.15);
        assert_int_equal(live.n_gap, would.n_gap);
        for (int k = 0; k < 3; k++) {
            static const double at[] = {0.5, 0.9, 0.99};

            assert_within("between tokens", share_of(live.gap, live.n_gap, at[k]),
                          share_of(would.gap, would.n_gap, at[k]), 0.15);
        }
        moved += fabs(mean_ttft(&rec, &was) / mean_ttft(&rec, &live) - 1);
        mc_sim_unfit(&told);
        mc_sim_free(&was), mc_sim_free(&live), mc_sim_free(&would);
    }
    assert_true(moved > 0.1); /* the two differ */
    free(m);
    free(rec.req);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(sim_of_another_policy_comes_within_15_percent_of_its_run),
    cmocka_unit_test(record_holds_what_the_engine_did),
    cmocka_unit_test(record_keeps_prompts_only_when_asked),
    cmocka_unit_test(record_ends_at_its_size_and_a_cut_file_is_read),
    cmocka_unit_test(sim_serves_all_of_the_shipped_arrivals),
    cmocka_unit_test(sim_a_reversed_order_finishes_in_reverse),
    cmocka_unit_test(sim_tells_who_starves_and_what_fails),
};
MC_TEST_MAIN(tests)
