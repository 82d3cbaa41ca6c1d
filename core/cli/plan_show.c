/* plan_show.c - the answer of `mascon plan`, for people and as JSON.
 *
 * Owns nothing. THREAD: main. */
#include <math.h>
#include <stdio.h>

#include <jansson.h>

#include "core/cli/plan.h"
#include "core/model/load.h"

#define GIB (1024.0 * 1024 * 1024)
#define CROSSOVER_MODEL                                                                    \
    "attention of one decode step: bytes at 0.85 of HBM or flops at 0.67 of bf16, 16 heads " \
    "at least; sharded: two exchanges a layer (three with an index) of 5 us and their bytes"

#define STEP_MODEL                                                                         \
    "a rank's weights at 0.85 of its memory's speed and, of several ranks, two collectives " \
    "of 5 us a layer; experts chosen evenly; attention is not in it"

/* Bytes of a token: of the layers, of the indexes, and what MTP has of both. */
struct parts {
    int64_t layers, index, mtp;
};

static struct parts parts_of(const struct mc_plan_job *p)
{
    const struct mc_config *c = &p->cfg;
    int32_t drafts = c->n_mtp, indexes = 0;
    struct parts b;

    for (int32_t i = c->n_layer; i < c->n_layer + c->n_mtp; i++)
        indexes += c->layer[i] & MC_LAYER_INDEX ? 1 : 0;
    b.layers = (c->n_layer * p->kv.layer_stride) / MC_PAGE;
    b.index = ((p->kv.n_index - indexes) * p->kv.index_stride) / MC_PAGE;
    b.mtp = (drafts * p->kv.layer_stride + indexes * p->kv.index_stride) / MC_PAGE;
    return b;
}

static json_t *class_json(const char *name, const struct mc_budget_class *b)
{
    return json_pack("{s:s, s:s, s:I, s:I, s:I, s:I, s:I}", "name", name, "format",
                     b->form, "n_tensors", (json_int_t)b->n_tensor, "n_params",
                     (json_int_t)b->n_param, "bytes", (json_int_t)b->bytes, "bytes_rank",
                     (json_int_t)b->bytes_rank, "replicated_bytes",
                     (json_int_t)b->bytes_each);
}

static void add_bytes(json_t *o, const char *key, double bytes)
{
    json_object_set_new(o, key, json_integer((json_int_t)bytes));
}

static void add_crossover(json_t *o, const char *key, double tokens)
{
    json_object_set_new(o, key, tokens < 0 ? json_null() : json_integer(llround(tokens)));
}

static json_t *steps_json(const struct mc_plan_job *p)
{
    json_t *all = json_array();

    for (int i = 0; i < MC_PLAN_STEPS; i++) {
        const struct mc_plan_step *s = &p->step[i];

        json_array_append_new(all,
                              json_pack("{s:i, s:I, s:I, s:f, s:f, s:f}", "seqs", s->seqs,
                                        "bytes_token", (json_int_t)s->bytes_token,
                                        "bytes_rank", (json_int_t)s->bytes_rank,
                                        "step_us", s->us, "source_step_us", s->source_us,
                                        "ratio", s->source_us / s->us));
    }
    return all;
}

static json_t *cards_json(const struct mc_plan_job *p)
{
    json_t *all = json_array();

    for (int i = 0; i < MC_PLAN_CARDS; i++)
        json_array_append_new(all, json_pack("{s:s, s:I, s:b}", "gpu", p->card[i].name,
                                             "kv_tokens", (json_int_t)p->card[i].tokens,
                                             "fits", p->card[i].fits));
    return all;
}

static json_t *plan_json(const struct mc_plan_job *p)
{
    json_t *classes = json_array(), *o;
    struct parts b = parts_of(p);

    for (int i = 0; i < MC_N_B; i++)
        if (p->w.cls[i].n_tensor)
            json_array_append_new(classes, class_json(mc_budget_name(i), &p->w.cls[i]));
    o = json_pack("{s:s, s:s, s:s?, s:i, s:s, s:i, s:o}", "family", p->cfg.family,
                  "source", p->path, "recipe", p->recipe, "ranks", p->ranks, "kv",
                  mc_kv_layout_name(p->layout), "shard_tokens", p->shard, "classes",
                  classes);
    add_bytes(o, "n_tensors", (double)p->w.all.n_tensor);
    add_bytes(o, "n_params", (double)p->w.all.n_param);
    add_bytes(o, "weights_bytes", (double)p->w.all.bytes);
    add_bytes(o, "weights_bytes_rank", (double)p->w.all.bytes_rank);
    add_bytes(o, "replicated_bytes", (double)p->w.all.bytes_each);
    add_bytes(o, "decode_bytes", (double)p->w.decode_bytes);
    add_bytes(o, "kv_bytes_token", (double)p->kv.page_stride / MC_PAGE);
    json_object_set_new(o, "kv_parts", json_pack("{s:I, s:I, s:I}", "layers",
                        (json_int_t)b.layers, "index", (json_int_t)b.index, "mtp",
                        (json_int_t)b.mtp));
    add_bytes(o, "kv_tokens", (double)p->tokens);
    add_bytes(o, "max_context", p->cfg.max_context);
    json_object_set_new(o, "gpu", p->gpu ? json_string(p->gpu->name) : json_null());
    add_bytes(o, "memory_bytes", p->memory);
    add_bytes(o, "prefill_bytes_rank", p->reader);
    add_bytes(o, "context_bytes", p->context);
    add_bytes(o, "collectives_bytes", p->collectives);
    add_bytes(o, "scratch_bytes", p->scratch);
    add_bytes(o, "logits_bytes", p->logits);
    add_bytes(o, "staging_bytes", p->staging);
    add_bytes(o, "pool_bytes", p->pool);
    add_bytes(o, "used_bytes", p->used);
    json_object_set_new(o, "fits", json_boolean(p->fits));
    add_crossover(o, "crossover_tokens", p->cross);
    add_crossover(o, "crossover_tokens_64", p->cross_many);
    json_object_set_new(o, "steps", steps_json(p));
    json_object_set_new(o, "step_model", json_string(STEP_MODEL));
    json_object_set_new(o, "cards", cards_json(p));
    json_object_set_new(o, "crossover_model", json_string(CROSSOVER_MODEL));
    return o;
}

static void show_class(const char *name, const struct mc_budget_class *b)
{
    printf("  %-10s %8lld %9.2f GB %8.2f GiB %8.2f GiB  %s\n", name,
           (long long)b->n_tensor, (double)b->bytes / 1e9, (double)b->bytes_rank / GIB,
           (double)b->bytes_each / GIB, b->form);
}

static void show_item(const char *name, double bytes, const char *note)
{
    printf("  %-12s %8.2f GiB  %s\n", name, bytes / GIB, note);
}

static void show_crossover(const struct mc_plan_job *p)
{
    if (p->ranks == 1)
        return;
    if (p->cross < 0)
        printf("spreading tokens over ranks is never faster here: they store no token "
               "twice, or "
               "computing is the limit\n");
    else
        printf(
            "spreading tokens over ranks is faster from a context of %.0f tokens for one "
            "sequence, %.0f for %d\n  (%s)\n",
            p->cross, p->cross_many, MC_PLAN_SEQS, CROSSOVER_MODEL);
}

static void show_steps(const struct mc_plan_job *p)
{
    printf("\n  decode of   weights a token   a rank's step   computed%s\n",
           p->recipe ? "   as it is   ratio" : "");
    for (int i = 0; i < MC_PLAN_STEPS; i++) {
        const struct mc_plan_step *s = &p->step[i];

        printf("  %3d at once    %8.2f GB    %8.2f GB   %5.2f ms", s->seqs,
               s->bytes_token / 1e9, s->bytes_rank / 1e9, s->us / 1e3);
        if (p->recipe)
            printf("   %5.2f ms    %.2f", s->source_us / 1e3, s->source_us / s->us);
        printf("\n");
    }
    printf("  (%s, %s)\n\n  ", p->gpu ? p->gpu->name : "h200", STEP_MODEL);
    for (int i = 0; i < MC_PLAN_CARDS; i++)
        if (p->card[i].fits)
            printf("%s%s: %lld tokens", i ? "; " : "", p->card[i].name,
                   (long long)p->card[i].tokens);
        else
            printf("%s%s: does not fit", i ? "; " : "", p->card[i].name);
    printf("\n");
}

static void plan_text(const struct mc_plan_job *p)
{
    struct parts b = parts_of(p);
    char note[96];

    printf("%s, %.1f billion parameters, %d rank%s of %s with %.1f GiB\n\n",
           p->cfg.family, (double)p->w.all.n_param / 1e9, p->ranks,
           p->ranks > 1 ? "s" : "", p->gpu ? p->gpu->name : "this machine",
           p->memory / GIB);
    if (p->recipe)
        printf("  as compressed by the recipe %s\n\n", p->recipe);
    printf("  weights     tensors      on disk       a rank  all ranks'  format\n");
    for (int i = 0; i < MC_N_B; i++)
        if (p->w.cls[i].n_tensor)
            show_class(mc_budget_name(i), &p->w.cls[i]);
    show_class("all", &p->w.all);
    printf("  one token of one sequence reads %.2f GB of them\n\n",
           (double)p->w.decode_bytes / 1e9);
    printf("  a token: %lld bytes, %s (layers %lld, index %lld, draft layer %lld)\n\n",
           (long long)(p->kv.page_stride / MC_PAGE), mc_kv_layout_name(p->layout),
           (long long)b.layers, (long long)b.index, (long long)b.mtp);
    show_item("weights", (double)p->w.all.bytes_rank, "");
    if (p->reader_path)
        show_item("prefill", p->reader, p->reader_path);
    show_item("context", p->context, "(estimated)");
    show_item("collectives", p->collectives, "(estimated)");
    show_item("scratch", p->scratch, "(estimated)");
    show_item("logits", p->logits, "");
    show_item("staging", p->staging, "");
    snprintf(note, sizeof note, "%lld tokens%s", (long long)p->tokens,
             p->shard > 1 ? " over all ranks" : "");
    show_item("pool", p->pool, note);
    snprintf(note, sizeof note, "%.0f %% of the memory: it %s", 100 * p->used / p->memory,
             p->fits ? "fits" : "does not fit");
    show_item("all", p->used, note);
    show_steps(p);
    show_crossover(p);
}

void mc_plan_show(const struct mc_plan_job *p, bool json)
{
    json_t *o;

    if (!json) {
        plan_text(p);
        return;
    }
    o = plan_json(p);
    json_dumpf(o, stdout, JSON_INDENT(2));
    printf("\n");
    json_decref(o);
}
