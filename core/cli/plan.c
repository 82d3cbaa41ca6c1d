/* plan.c - `mascon plan MODEL|config.json`: what a model needs, before there is a machine.
 *
 * Weights by class and a rank, bytes of a token, tokens that fit, and when spreading tokens
 * over ranks pays: all from the configuration (core/model/budget.c); of a checkpoint that is
 * there the tensors say how they are stored. What can't be known without the device is
 * estimated and marked so. OWNS nothing after it returns. THREAD: main. */
#include "core/cli/plan.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/cli/cli.h"
#include "core/cli/lua_half.h"
#include "core/compress/recipe.h"
#include "core/model/load.h"
#include "core/weights/weights.h"

#define GIB (1024.0 * 1024 * 1024)

enum {
    ROWS_GPU = 8192, /* a step's rows */
    ROWS_CPU = 256,
    MAX_RANKS = 64,
};

/* Memory as nvidia-smi reports it; bandwidth and bf16 rate of the data sheets, of which
 * good attention kernels reach 0.85 and 0.67 (FlashMLA on Hopper); a small collective
 * between eight cards takes 5 us, NVLink moves 0.75 of its 450 (900) GB/s a direction. */
static const struct mc_gpu gpus[] = {
    {"h100", 81559.0 * (1 << 20), 3.35e12, 989e12, 450e9},
    {"h200", 143771.0 * (1 << 20), 4.8e12, 989e12, 450e9},
    {"b200", 183359.0 * (1 << 20), 8.0e12, 2250e12, 900e9},
};
_Static_assert(sizeof gpus / sizeof *gpus == MC_PLAN_CARDS, "a card each");
#define HBM_SHARE 0.85
#define EXCHANGE 5e-6

/* ---- flags ------------------------------------------------------------------------- */

static int count_of(const char *text, const char *flag, int32_t *out, struct mc_err *err)
{
    char *end;
    long n = strtol(text, &end, 10);

    if (end == text || *end || n < 1 || n > MAX_RANKS)
        return mc_fail_param(err, MC_EARG, flag, "--%s: '%.40s' is not within 1..%d",
                             flag, text, MAX_RANKS);
    *out = (int32_t)n;
    return 0;
}

const struct mc_gpu *mc_plan_gpu(const char *name)
{
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++)
        if (strcmp(gpus[i].name, name) == 0)
            return &gpus[i];
    return NULL;
}

static int find_gpu(struct mc_plan_job *p, struct mc_err *err)
{
    if (p->gpu_name)
        p->gpu = mc_plan_gpu(p->gpu_name);
    if (p->gpu_name && !p->gpu)
        return mc_fail_param(err, MC_EARG, "gpu",
                             "--gpu %.40s: not one of h100, h200, b200", p->gpu_name);
    p->memory = p->gpu ? p->gpu->bytes
                       : (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) /
                             p->ranks;
    return 0;
}

/* Ranks that would store the same tokens may share them. */
static int check_shard(const struct mc_plan_job *p, struct mc_err *err)
{
    int32_t same = p->cfg.attn == MC_ATTN_MLA ? p->ranks : p->ranks / p->cfg.n_kv_head;

    if (p->shard == 1 || (p->shard <= same && p->ranks % p->shard == 0))
        return 0;
    return mc_fail_param(err, MC_EARG, "shard-tokens",
                         "--shard-tokens %d: of %d ranks %d "
                         "store the same tokens, and the number must divide them",
                         p->shard, p->ranks, same > 1 ? same : 1);
}

/* ---- the model --------------------------------------------------------------------- */

/* How a tensor is stored. A checkpoint's first that can't be read is kept for open_model to
 * report. */
static struct mc_form source_form(void *ctx, const struct mc_tensor_spec *t,
                                  const char *name)
{
    struct mc_plan_job *p = ctx;
    const struct mc_stored *s;
    struct mc_disk d;

    if (p->scheme)
        return mc_scheme_of(p->scheme, t, name);
    if (!t->vector && p->unread.code == 0 &&
        mc_ckpt_matrix_own(p->ckpt, name, &d, NULL, &p->unread) == 0)
        return mc_form_of(&d);
    s = mc_ckpt_find(p->ckpt, name);
    return mc_form_plain(s && strcmp(s->dtype, "F32") == 0 ? MC_D_F32 : MC_D_BF16);
}

struct mc_form mc_target_form(const struct mc_target *t)
{
    return t->fmt == MC_D_INT4    ? mc_form_int4(t->group)
           : t->fmt == MC_D_NVFP4 ? mc_form_nvfp4()
           : t->fmt == MC_D_E4M3  ? mc_form_fp8()
                                  : mc_form_plain(t->fmt);
}

/* How it is going to be. */
static struct mc_form form_of(void *ctx, const struct mc_tensor_spec *t, const char *name)
{
    const struct mc_plan_job *p = ctx;
    struct mc_target to = {.keep = true};

    if (p->rules && !t->vector)
        to = mc_recipe_decide(p->rules, name, t->k);
    if (to.keep)
        return source_form(ctx, t, name);
    return mc_target_form(&to);
}

static int open_recipe(struct mc_plan_job *p, const struct mc_lua_half *lua,
                       struct mc_err *err)
{
    json_t *table = NULL;
    int rc = p->recipe ? lua->recipe(p->recipe, &table, err) : 0;

    if (rc == 0 && table)
        rc = mc_recipe_read(table, &p->rules, err);
    json_decref(table);
    return rc;
}

static int open_model(struct mc_plan_job *p, struct mc_err *err)
{
    size_t n = strlen(p->path);
    bool alone = n > 5 && strcmp(p->path + n - 5, ".json") == 0;
    int rc = (alone ? mc_ckpt_open_config : mc_ckpt_open)(p->path, &p->ckpt, err);

    if (rc == 0)
        rc = mc_config_load(p->ckpt, &p->cfg, err);
    if (rc == 0 && alone)
        rc = mc_scheme_open(mc_ckpt_config(p->ckpt), &p->scheme, err);
    if (rc == 0)
        rc = mc_kv_layout_of(&p->cfg, p->kv_name, &p->layout, err);
    if (rc == 0)
        rc = check_shard(p, err);
    if (rc == 0)
        rc = mc_budget_weights(&p->cfg, p->ranks, form_of, p, &p->w, err);
    if (rc == 0)
        rc = mc_budget_weights(&p->cfg, p->ranks, source_form, p, &p->source, err);
    if (rc == 0 && p->unread.code != 0) {
        rc = p->unread.code;
        *err = p->unread;
    }
    return rc;
}

/* The model that reads prompts is as it is, whatever the recipe makes of the other. */
static int open_reader(struct mc_plan_job *p, struct mc_err *err)
{
    struct mc_plan_job r = {.path = p->reader_path, .kv_name = p->kv_name,
                            .ranks = p->ranks, .shard = p->shard};
    int rc = p->reader_path ? open_model(&r, err) : 0;

    if (rc == 0 && p->reader_path &&
        (strcmp(r.cfg.family, p->cfg.family) != 0 || r.cfg.hidden != p->cfg.hidden ||
         r.cfg.n_layer != p->cfg.n_layer))
        rc = mc_fail_param(err, MC_EARG, "prefill-model",
                           "--prefill-model %.80s is not the same model: %s of %d layers, "
                           "not %s of %d", p->reader_path, r.cfg.family, r.cfg.n_layer,
                           p->cfg.family, p->cfg.n_layer);
    p->reader = (double)r.w.all.bytes_rank;
    mc_scheme_close(r.scheme);
    mc_ckpt_close(r.ckpt);
    return rc;
}

/* Two models that do not fit are refused with their sum. */
static int check_both(const struct mc_plan_job *p, struct mc_err *err)
{
    double own = (double)p->w.all.bytes_rank;

    if (!p->reader_path || p->fits)
        return 0;
    return mc_fail_param(err, MC_ELIMIT, "prefill-model",
                         "--prefill-model: %.1f GiB of weights and %.1f GiB of the prefill "
                         "model's are %.1f GiB, with %.1f GiB besides: that does not fit "
                         "%.1f GiB of %s", own / GIB, p->reader / GIB,
                         (own + p->reader) / GIB, (p->used - own - p->reader) / GIB,
                         p->memory / GIB, p->gpu ? p->gpu->name : "this machine");
}

/* ---- a rank's memory --------------------------------------------------------------- */

static void size_pool(struct mc_plan_job *p)
{
    struct mc_pass_caps caps = {.rows = p->gpu ? ROWS_GPU : ROWS_CPU, .seqs = MC_PLAN_SEQS,
                                .outs = MC_PLAN_SEQS};
    double v = p->cfg.vocab, left, blocks = p->cfg.max_context / MC_PAGE + 1;

    for (int32_t r = 0; r < p->ranks; r++) {
        struct mc_kv kv = mc_kv_of(&p->cfg, (struct mc_slice){r, p->ranks}, p->layout);

        if (kv.page_stride > p->kv.page_stride)
            p->kv = kv;
    }
    p->context = p->gpu ? 0.6 * GIB : 0;
    p->collectives = p->ranks > 1 && p->gpu ? 0.5 * GIB : 0;
    p->scratch = (double)mc_budget_scratch(&p->cfg, p->ranks, caps.rows);
    p->logits = MC_PLAN_SEQS * v * (2 * sizeof(float) + sizeof(uint16_t));
    p->staging = (double)mc_rows_bytes(&caps) +
                 MC_PLAN_SEQS * blocks * 2 * sizeof(int32_t);
    p->used = (double)p->w.all.bytes_rank + p->reader + p->context + p->collectives +
              p->scratch + p->logits + p->staging;
    left = 0.9 * p->memory - p->used;
    p->pool = p->pool_asked > 0 ? p->pool_asked : left > 0 ? left : 0;
    p->tokens = (int64_t)(p->pool / (double)p->kv.page_stride) * MC_PAGE * p->shard;
    p->used += p->pool;
    p->fits = p->used <= p->memory && p->tokens >= 2 * MC_PAGE;
}

static double crossover(const struct mc_plan_job *p, int32_t batch)
{
    const struct mc_gpu *g = p->gpu ? p->gpu : &gpus[1];
    struct mc_speed speed = {.hbm = HBM_SHARE * g->hbm, .flops = 0.67 * g->flops,
                             .link = 0.75 * g->link, .exchange = EXCHANGE};
    int32_t shard = p->shard > 1                      ? p->shard
                    : p->cfg.attn == MC_ATTN_MLA      ? p->ranks
                    : p->ranks > p->cfg.n_kv_head     ? p->ranks / p->cfg.n_kv_head
                                                      : 1;

    return mc_budget_crossover(&p->cfg, &p->kv, p->ranks, shard, batch, &speed);
}

/* ---- a step's time, and other cards ------------------------------------------------ */

double mc_plan_step_us(const struct mc_gpu *g, int32_t ranks, int32_t n_layer,
                       double bytes_rank)
{
    return 1e6 * (bytes_rank / (HBM_SHARE * g->hbm) +
                  (ranks > 1 ? 2 * n_layer * EXCHANGE : 0));
}

static double step_us(const struct mc_plan_job *p, const struct mc_budget_read *r,
                      int32_t n)
{
    return mc_plan_step_us(p->gpu ? p->gpu : &gpus[1], p->ranks, p->cfg.n_layer,
                           mc_budget_step_bytes(&p->cfg, r, n));
}

static void time_steps(struct mc_plan_job *p)
{
    static const int32_t seqs[MC_PLAN_STEPS] = {1, 16, MC_PLAN_SEQS};

    for (int i = 0; i < MC_PLAN_STEPS; i++) {
        struct mc_plan_step *s = &p->step[i];

        s->seqs = seqs[i];
        s->bytes_token = mc_budget_step_bytes(&p->cfg, &p->w.read, seqs[i]) / seqs[i];
        s->bytes_rank = mc_budget_step_bytes(&p->cfg, &p->w.read_rank, seqs[i]);
        s->us = step_us(p, &p->w.read_rank, seqs[i]);
        s->source_us = step_us(p, &p->source.read_rank, seqs[i]);
    }
}

static void try_cards(struct mc_plan_job *p)
{
    for (int i = 0; i < MC_PLAN_CARDS; i++) {
        struct mc_plan_job other = *p;

        other.gpu = &gpus[i];
        other.memory = gpus[i].bytes;
        size_pool(&other);
        p->card[i] = (struct mc_plan_card){gpus[i].name, other.tokens, other.fits};
    }
}

int mc_cmd_plan(int argc, char **argv, const struct mc_lua_half *lua)
{
    struct mc_plan_job p = {.ranks = 1, .shard = 1, .kv_name = "auto"};
    const char *ranks = "1", *shard = "1", *memory = NULL;
    bool json = false;
    const struct mc_flag flags[] = {
        {"ranks", "N", &ranks, "devices that share the model [1]"},
        {"gpu", "h100|h200|b200", &p.gpu_name, "what a rank is [this machine]"},
        {"kv", "LAYOUT", &p.kv_name, "auto, bf16, fp8, fp8-plain, fp8-656, f32 [auto]"},
        {"kv-memory", "SIZE|P%", &memory, "pool of a rank [what is left of 90 % of its memory]"},
        {"shard-tokens", "N", &shard, "ranks that share the tokens they would all store [1]"},
        {"recipe", "R", &p.recipe, "as mascon compress would make it by this recipe"},
        {"prefill-model", "MODEL|config.json", &p.reader_path,
         "beside it: reads the prompts, as serve does it"},
        {"json", NULL, &json, "one JSON object"},
        {0},
    };
    struct mc_args a = {.word = "plan", .usage = "MODEL|config.json [flags]", .flags = flags,
                        .min = 1, .max = 1};
    struct mc_err err = {0};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc >= 0)
        return rc;
    p.path = a.pos[0];
    rc = count_of(ranks, "ranks", &p.ranks, &err);
    if (rc == 0)
        rc = count_of(shard, "shard-tokens", &p.shard, &err);
    if (rc == 0)
        rc = find_gpu(&p, &err);
    if (rc == 0 && memory &&
        (!mc_size_of(memory, p.memory, &p.pool_asked) || !p.pool_asked))
        rc = mc_fail_param(&err, MC_EARG, "kv-memory",
                           "--kv-memory: '%.40s' is no size (write "
                           "512M, 44.9G or 60%%)",
                           memory);
    if (rc == 0)
        rc = open_recipe(&p, lua, &err);
    if (rc == 0)
        rc = open_model(&p, &err);
    if (rc == 0)
        rc = open_reader(&p, &err);
    if (rc == 0) {
        size_pool(&p);
        rc = check_both(&p, &err);
    }
    if (rc == 0) {
        time_steps(&p);
        try_cards(&p);
        p.cross = crossover(&p, 1);
        p.cross_many = crossover(&p, MC_PLAN_SEQS);
        mc_plan_show(&p, json);
    }
    mc_recipe_free(p.rules);
    mc_scheme_close(p.scheme);
    mc_ckpt_close(p.ckpt);
    return rc < 0 ? mc_cli_fail(&err) : 0;
}
