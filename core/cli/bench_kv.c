/* bench_kv.c - `mascon bench kv [MODEL...]`: what an fp8 cache gains and costs against
 * bf16.
 *
 * Two models are measured: the first MODEL, or one made with random weights in SmolLM2's
 * shape, and one made with latents (MLA) and experts. Throughput: `requests` requests at
 * once, first come first served, in a pool that holds `room` of them in bf16; bf16 and
 * fp8 take turns, and the median of the rounds' ratios counts. Further MODELs are judged
 * for quality alone. OWNS nothing after it returns. THREAD: main. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/sample.h"
#include "core/cli/bench_kv.h"
#include "core/cli/burst.h"
#include "core/cli/invent.h"
#include "core/cli/scratch.h"
#include "core/model/load.h"
#include "core/weights/weights.h"

enum { MAX_ROUNDS = 15 };

static const char gqa_shape[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\","
    " \"vocab_size\": 49152, \"hidden_size\": 576, \"intermediate_size\": 1536,"
    " \"num_hidden_layers\": 30, \"num_attention_heads\": 9, \"num_key_value_heads\": 3,"
    " \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-5, \"rope_theta\": 100000,"
    " \"max_position_embeddings\": 8192, \"tie_word_embeddings\": true,"
    " \"dtype\": \"bfloat16\"}";

static const char mla_shape[] =
    "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"model_type\": \"deepseek_v3\","
    " \"vocab_size\": 8192, \"hidden_size\": 512, \"intermediate_size\": 1536,"
    " \"moe_intermediate_size\": 256, \"num_hidden_layers\": 8,"
    " \"first_k_dense_replace\": 1, \"moe_layer_freq\": 1, \"num_attention_heads\": 8,"
    " \"num_key_value_heads\": 8, \"q_lora_rank\": 256, \"kv_lora_rank\": 512,"
    " \"qk_nope_head_dim\": 64, \"qk_rope_head_dim\": 64, \"v_head_dim\": 64,"
    " \"n_routed_experts\": 16, \"n_shared_experts\": 1, \"num_experts_per_tok\": 2,"
    " \"n_group\": 1, \"topk_group\": 1, \"scoring_func\": \"sigmoid\","
    " \"topk_method\": \"noaux_tc\", \"norm_topk_prob\": true,"
    " \"routed_scaling_factor\": 2.5, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6,"
    " \"rope_theta\": 10000, \"max_position_embeddings\": 16384,"
    " \"tie_word_embeddings\": false, \"dtype\": \"bfloat16\"}";

/* ---- throughput -------------------------------------------------------------------- */

struct storm {
    double tokens_s;  /* generated */
    double rows_step; /* of them, a step */
    double again; /* prompt tokens run, over those submitted: above 1 by recomputing */
    double preempted;
};

static int open_engine(const struct mc_kv_bench *b, const char *path,
                       enum mc_kv_layout layout, uint64_t kv_bytes,
                       struct mc_engine **out, struct mc_err *err)
{
    const struct mc_settings *s = b->set;
    const struct mc_engine_opts o = {
        .model = path,
        .backend = s->backend,
        .cpu = *s->cpu ? s->cpu : NULL,
        .threads = (int)s->threads,
        .ranks = (int32_t)s->ranks,
        .kv = mc_kv_layout_name(layout),
        .kv_bytes = kv_bytes,
        .max_seqs = b->requests,
        .chunk = (int32_t)s->chunk,
        .no_page_tags = !s->page_tags,
    };
    int rc = mc_engine_open(&o, out, err);

    return rc < 0 ? rc : mc_engine_start(*out, err);
}

static int run_storm(const struct mc_kv_bench *b, const char *path,
                     enum mc_kv_layout layout, uint64_t kv_bytes, uint32_t seed,
                     struct storm *out, struct mc_err *err)
{
    const struct mc_burst burst = {.n = b->requests, .n_prompt = b->prompt,
                                   .n_gen = b->tokens, .seed = seed};
    struct mc_engine *e = NULL;
    struct mc_burst_took took;
    double made = (double)b->requests * b->tokens;
    int rc = open_engine(b, path, layout, kv_bytes, &e, err);

    if (rc == 0)
        rc = mc_burst_run(e, &burst, &took, err);
    if (rc == 0)
        *out = (struct storm){
            .tokens_s = made / took.seconds,
            .rows_step = made / mc_engine_counter(e, MC_C_steps_total),
            .again = mc_engine_counter(e, MC_C_prompt_tokens_total) /
                     ((double)b->requests * b->prompt),
            .preempted = mc_engine_counter(e, MC_C_num_preemptions_total)};
    mc_engine_close(e);
    return rc;
}

static void add_storm(struct mc_kv_bench *b, const struct mc_kv_subject *s,
                      const char *kv, const struct storm *x)
{
    char name[64];

    snprintf(name, sizeof name, "storm_tokens_s_%s", kv);
    mc_kv_bench_add(b, s, name, MC_KV_BF16, x->tokens_s, "tokens/s", NULL);
    snprintf(name, sizeof name, "storm_rows_step_%s", kv);
    mc_kv_bench_add(b, s, name, MC_KV_BF16, x->rows_step, "rows", NULL);
    snprintf(name, sizeof name, "storm_prompt_again_%s", kv);
    mc_kv_bench_add(b, s, name, MC_KV_BF16, x->again, "x", NULL);
    snprintf(name, sizeof name, "storm_preempted_%s", kv);
    mc_kv_bench_add(b, s, name, MC_KV_BF16, x->preempted, "times", NULL);
}

/* Bytes of a pool for `room` whole requests in bf16. */
static int pool_of(const struct mc_kv_bench *b, const char *path, struct mc_config *cfg,
                   uint64_t *bytes, struct mc_err *err)
{
    struct mc_ckpt *c = NULL;
    int64_t blocks = (b->prompt + b->tokens + MC_PAGE - 1) / MC_PAGE;
    int rc = mc_ckpt_open(path, &c, err);

    if (rc == 0)
        rc = mc_config_load(c, cfg, err);
    if (rc == 0)
        *bytes = (uint64_t)(b->room * blocks *
                            mc_kv_of(cfg, (struct mc_slice){0, (int32_t)b->set->ranks},
                                     MC_KV_BF16).page_stride);
    mc_ckpt_close(c);
    return rc;
}

static int throughput(struct mc_kv_bench *b, const struct mc_kv_subject *s,
                      struct mc_err *err)
{
    enum mc_kv_layout rival[MC_KV_RIVALS];
    struct mc_config cfg;
    struct storm x[2];
    double ratio[MAX_ROUNDS];
    uint64_t bytes = 0;
    char name[64];
    int rc = pool_of(b, s->path, &cfg, &bytes, err);

    if (rc < 0)
        return rc;
    mc_kv_rivals(&cfg, rival); /* the smallest is the first */
    for (int32_t i = 0; i < b->rounds; i++) {
        for (int k = 0; k < 2 && rc == 0; k++) { /* turn about */
            int fp8 = k ^ (i & 1);

            rc = run_storm(b, s->path, fp8 ? rival[0] : MC_KV_BF16, bytes,
                           (uint32_t)i + 1, &x[fp8], err);
        }
        if (rc < 0)
            return rc;
        ratio[i] = x[1].tokens_s / x[0].tokens_s;
    }
    add_storm(b, s, "bf16", &x[0]);
    add_storm(b, s, "fp8", &x[1]);
    snprintf(name, sizeof name, "throughput_ratio_%d", b->requests);
    mc_kv_bench_add(b, s, name, MC_KV_BF16, mc_median(ratio, b->rounds), "x", "1.41");
    return 0;
}

/* What a preempted prompt costs to bring back: moved to host memory and from there again,
 * at the speed that the engine measured, or read anew in that many seconds. */
static void add_return(struct mc_kv_bench *b, const struct mc_kv_subject *s,
                       struct mc_engine *e, double redo)
{
    const struct mc_kv kv = mc_kv_of(mc_engine_config(e),
                                     (struct mc_slice){0, (int32_t)b->set->ranks},
                                     MC_KV_BF16);
    int64_t blocks = (b->prompt + MC_PAGE - 1) / MC_PAGE;
    struct mc_engine_status st;
    double swap;

    mc_engine_status(e, &st);
    if (st.swap_bytes_us <= 0)
        return;
    swap = 2e-6 * (double)(blocks * kv.page_stride * st.n_rank) / st.swap_bytes_us;
    mc_kv_bench_add(b, s, "back_by_swap", MC_KV_BF16, swap * 1e3, "ms", NULL);
    mc_kv_bench_add(b, s, "back_by_recompute", MC_KV_BF16, redo * 1e3, "ms", NULL);
    mc_kv_bench_add(b, s, "swap_speedup", MC_KV_BF16, redo / swap, "x", "above 1");
}

/* The time to a first token, and when the same prompt comes again. */
static int prefix(struct mc_kv_bench *b, const struct mc_kv_subject *s,
                  struct mc_err *err)
{
    const struct mc_burst one = {.n = 1, .n_prompt = b->prompt, .n_gen = 1, .seed = 99};
    struct mc_burst_took first, again;
    struct mc_engine *e = NULL;
    int rc = open_engine(b, s->path, MC_KV_BF16, 0, &e, err);

    if (rc == 0)
        rc = mc_burst_run(e, &one, &first, err);
    if (rc == 0)
        rc = mc_burst_run(e, &one, &again, err);
    if (rc == 0)
        mc_kv_bench_add(b, s, "prefix_speedup", MC_KV_BF16, first.first / again.first,
                        "x", "above 1");
    if (rc == 0)
        add_return(b, s, e, first.first);
    mc_engine_close(e);
    return rc;
}

/* ---- the command ------------------------------------------------------------------- */

static int subject(struct mc_kv_bench *b, const struct mc_kv_subject *s,
                   struct mc_err *err)
{
    int rc = mc_kv_bench_pages(b, s, err);

    if (rc == 0 && !s->only)
        rc = prefix(b, s, err);
    return rc < 0 || s->only ? rc : throughput(b, s, err);
}

/* A model of that shape, for as long as it is measured. */
static int made_subject(struct mc_kv_bench *b, const char *shape, const char *tag,
                        struct mc_err *err)
{
    json_t *config = json_loads(shape, 0, NULL);
    char dir[MC_SCRATCH_PATH];
    int rc = mc_scratch_new(dir, err);

    if (rc < 0) {
        json_decref(config);
        return rc;
    }
    rc = mc_invent(&(struct mc_invent){.config = config, .seed = 1}, dir, err);
    if (rc == 0)
        rc = subject(b, &(struct mc_kv_subject){.path = dir, .tag = tag}, err);
    mc_scratch_remove(dir);
    json_decref(config);
    return rc;
}

static int run_all(struct mc_kv_bench *b, const struct mc_args *a, struct mc_err *err)
{
    int rc = 0;

    for (int i = 0; i < a->n_pos && rc == 0; i++) {
        const char *path = a->pos[i], *base = strrchr(path, '/');
        char tag[64];

        snprintf(tag, sizeof tag, "_%.60s", base ? base + 1 : path);
        rc = subject(b, &(struct mc_kv_subject){path, i ? tag : "", true, i > 0}, err);
    }
    if (rc == 0 && a->n_pos == 0)
        rc = made_subject(b, gqa_shape, "", err);
    return rc < 0 ? rc : made_subject(b, mla_shape, "_mla", err);
}

static int count_of(const char *text, const char *flag, int32_t lo, int32_t hi,
                    int32_t *out)
{
    char *end;
    long n = text ? strtol(text, &end, 10) : *out;

    if (text && (end == text || *end || n < lo || n > hi)) {
        fprintf(stderr, "mascon: bench kv: --%s: '%.40s' is not within %d..%d\n", flag,
                text, lo, hi);
        return 2;
    }
    *out = (int32_t)n;
    return -1;
}

int mc_bench_kv(int argc, char **argv, const struct mc_lua_half *lua)
{
    const char *n[5] = {0};
    struct mc_kv_bench b = {.requests = 64, .prompt = 2048, .tokens = 128, .room = 24,
                            .rounds = 3};
    bool json = false;
    const struct mc_flag flags[] = {
        {"requests", "N", &n[0], "requests at once [64]"},
        {"prompt", "N", &n[1], "prompt tokens of each [2048]"},
        {"tokens", "N", &n[2], "tokens that each generates [128]"},
        {"room", "N", &n[3], "requests that the pool holds in bf16 [24]"},
        {"rounds", "N", &n[4], "pairs of runs, whose median counts [3]"},
        {"text", "FILE", &b.text, "a text by which MODELs' layouts are judged"},
        {"json", NULL, &json, "one JSON object instead of lines"},
        {0},
    };
    struct mc_settings set;
    struct mc_args a = {.word = "bench kv",
                        .usage = "[MODEL...] [flags]",
                        .who = MC_FOR_BENCH,
                        .flags = flags,
                        .max = 8,
                        .set = &set};
    struct mc_err err = {0};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc < 0)
        rc = count_of(n[0], "requests", 1, 4096, &b.requests);
    if (rc < 0)
        rc = count_of(n[1], "prompt", 1, 1 << 20, &b.prompt);
    if (rc < 0)
        rc = count_of(n[2], "tokens", 2, 1 << 20, &b.tokens);
    if (rc < 0)
        rc = count_of(n[3], "room", 1, 4096, &b.room);
    if (rc < 0)
        rc = count_of(n[4], "rounds", 1, MAX_ROUNDS, &b.rounds);
    if (rc < 0) {
        char command[256];

        snprintf(command, sizeof command,
                 "mascon bench kv %.100s --requests %d --prompt %d "
                 "--tokens %d --room %d --rounds %d",
                 a.n_pos ? a.pos[0] : "", b.requests, b.prompt, b.tokens, b.room,
                 b.rounds);
        b.set = &set;
        mc_report_begin(&b.report, command, json);
        rc = run_all(&b, &a, &err);
        if (rc == 0)
            mc_report_end(&b.report);
        rc = rc < 0 ? mc_cli_fail(&err) : 0;
    }
    mc_settings_free(&set);
    return rc;
}
