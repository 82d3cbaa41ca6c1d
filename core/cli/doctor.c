/* doctor.c - `mascon doctor [MODEL]`: what this machine can do, and what a model needs.
 *
 * One line a finding: "ok", or "no" with what is missing and what fixes it. With MODEL
 * everything is loaded, so that what would be refused is said with its reason. Exit 1
 * when what is asked for does not work; a CPU alone is enough for status 0. OWNS nothing
 * after it returns. THREAD: main. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <jansson.h>

#include "core/cli/cli.h"
#include "core/mc.h"
#include "core/model/strangers.h"
#include "core/weights/weights.h"

struct doctor {
    bool json;
    json_t *lines;
    int bad;
};

/* LACK: not there, and fine without. */
enum finding { OK, LACK, BAD };

static void say(struct doctor *d, enum finding f, const char *what, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static void say(struct doctor *d, enum finding f, const char *what, const char *fmt, ...)
{
    bool ok = f == OK;
    char text[400];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    d->bad += f == BAD;
    if (d->json)
        json_array_append_new(d->lines, json_pack("{s:b, s:s, s:s}", "ok", ok, "what",
                                                  what, "text", text));
    else
        printf("%-3s %-10s %s\n", ok ? "ok" : "no", what, text);
    fflush(stdout);
}

/* ---- the machine ------------------------------------------------------------------- */

static void look_at_cuda(struct doctor *d)
{
    const struct mc_backend_opts o = {.threads = 1, .ref_act = -1};
    const char *why = NULL;
    struct mc_backend *be = mc_cuda_open(&o, &why);

    if (be)
        say(d, OK, "cuda", "backend cuda runs here: %s", be->what);
    else
        say(d, LACK, "cuda",
            "%s; --backend cuda is refused, cpu (the default) needs nothing",
            why ? why : "it can't be opened");
    if (be)
        be->close(be);
}

static void look_at_backends(struct doctor *d)
{
    static const char *const bodies[] = {"avx512", "avx2", "portable"};
    char list[80] = "", best[80] = "none";

    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        struct mc_backend_opts o = {.threads = 1, .cpu = bodies[i], .ref_act = -1};
        const char *why = NULL;
        struct mc_backend *be = mc_cpu_open(&o, &why);

        if (!be)
            continue;
        if (!list[0])
            snprintf(best, sizeof best, "%s", bodies[i]);
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s",
                 list[0] ? ", " : "", bodies[i]);
        be->close(be);
    }
    say(d, list[0] ? OK : BAD, "cpu",
        "backend cpu runs %s here (bodies: %s), %ld cores", best, list,
        sysconf(_SC_NPROCESSORS_ONLN));
    say(d, OK, "ref", "backend ref, the scalar oracle, runs everywhere");
    look_at_cuda(d);
}

static void look_at_limits(struct doctor *d)
{
    double gib = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) /
                 (1 << 30);
    struct rlimit files;

    say(d, OK, "memory", "%.1f GiB; the KV pool takes a quarter at most unless "
        "--kv-memory says otherwise", gib);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        say(d, files.rlim_max >= 2048 ? OK : BAD, "files",
            "%llu open files are allowed%s", (unsigned long long)files.rlim_max,
            files.rlim_max >= 2048 ? ""
                                   : ": raise it (ulimit -Hn, LimitNOFILE=) for many "
                                     "clients");
}

/* ---- a model ----------------------------------------------------------------------- */

static void describe_blocks(struct doctor *d, const struct mc_config *cfg)
{
    int moe = 0, index = 0;

    for (int32_t i = 0; i < cfg->n_layer; i++) {
        moe += cfg->layer[i] & MC_LAYER_MOE ? 1 : 0;
        index += cfg->layer[i] & MC_LAYER_INDEX ? 1 : 0;
    }
    if (cfg->attn == MC_ATTN_MLA)
        say(d, OK, "attention",
            "latents of %d + %d; indexers on %d layers choose %d positions", cfg->kv_lora,
            cfg->rope_dim, index, cfg->index_topk);
    if (moe > 0)
        say(d, OK, "experts", "%d of %d a token, on %d layers; %d draft layers",
            cfg->top_k_expert, cfg->n_expert, moe, cfg->n_mtp);
}

static void describe(struct doctor *d, const struct mc_ckpt *c,
                     const struct mc_config *cfg)
{
    uint64_t bytes = 0;

    for (int32_t i = 0; i < mc_ckpt_n(c); i++)
        bytes += mc_ckpt_at(c, i)->bytes;
    say(d, OK, "config",
        "%s: %d layers, hidden %d, %d heads (%d kv) of %d, vocabulary %d, "
        "context %d",
        cfg->family, cfg->n_layer, cfg->hidden, cfg->n_head, cfg->n_kv_head,
        mc_q_dim(cfg), cfg->vocab, cfg->max_context);
    describe_blocks(d, cfg);
    say(d, OK, "tensors", "%d tensors, %.1f MB on disk", mc_ckpt_n(c),
        (double)bytes / 1e6);
}

static void say_strangers(struct doctor *d, const struct mc_strangers *s)
{
    if (s->images + s->drafts + s->copies > 0)
        say(d, OK, "skipped", "%d tensors of images, %d of draft layers not counted, %d "
            "copies of shared ones", s->images, s->drafts, s->copies);
    if (s->unknown > 0)
        say(d, OK, "unknown", "%d tensors have no part in this model: %s%s", s->unknown,
            s->first, s->unknown > 1 ? ", ..." : "");
}

static int look_at_files(struct doctor *d, const char *path, struct mc_err *err)
{
    struct mc_ckpt *c = NULL;
    struct mc_tok *tok = NULL;
    struct mc_config cfg;
    struct mc_strangers strange;
    size_t n = 0;
    int rc = mc_ckpt_open(path, &c, err);

    if (rc == 0)
        rc = mc_config_load(c, &cfg, err);
    if (rc == 0)
        describe(d, c, &cfg);
    if (rc == 0)
        rc = mc_strangers_find(c, &cfg, &strange, err);
    if (rc == 0)
        say_strangers(d, &strange);
    if (rc == 0)
        rc = mc_tok_open(c, &tok, err);
    if (rc == 0)
        say(d, OK, "tokenizer", "%d tokens", mc_tok_n(tok));
    if (rc == 0 && mc_tok_chat_template(tok, &n))
        say(d, OK, "template", "a chat template of %zu bytes", n);
    else if (rc == 0)
        say(d, LACK, "template",
            "no chat template: /v1/chat/completions and mascon chat are "
            "refused; a chat_template.jinja beside config.json adds one");
    mc_tok_close(tok);
    mc_ckpt_close(c);
    return rc;
}

static void look_at_model(struct doctor *d, const char *path, const struct mc_settings *s)
{
    struct mc_engine *e = NULL;
    struct mc_engine_status st;
    struct mc_err err = {0};
    int rc = look_at_files(d, path, &err);

    if (rc == 0)
        rc = mc_cli_engine(s, path, &e, &err);
    if (rc < 0) {
        say(d, BAD, "model", "%s", err.text);
        return;
    }
    mc_engine_status(e, &st);
    say(d, OK, "model", "loads on %s: %.1f MB of packed weights, kv %s for %d tokens",
        st.backend, (double)st.weight_bytes / 1e6, st.kv, st.kv_tokens);
    mc_engine_close(e);
}

int mc_cmd_doctor(int argc, char **argv, const struct mc_lua_half *lua)
{
    struct doctor d = {.lines = json_array()};
    const struct mc_flag flags[] = {
        {"json", NULL, &d.json, "one JSON array instead of lines"},
        {0},
    };
    struct mc_settings set;
    struct mc_args a = {.word = "doctor", .usage = "[MODEL] [flags]", .who = MC_FOR_BENCH,
                        .flags = flags, .min = 0, .max = 1, .set = &set};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc < 0) {
        look_at_backends(&d);
        look_at_limits(&d);
        if (a.n_pos)
            look_at_model(&d, a.pos[0], &set);
        if (d.json) {
            json_dumpf(d.lines, stdout, JSON_INDENT(2));
            printf("\n");
        }
        rc = d.bad > 0;
    }
    json_decref(d.lines);
    mc_settings_free(&set);
    return rc;
}
