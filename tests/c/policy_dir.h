/* policy_dir.h - for tests of the Lua host: policy directories, a vocabulary, steps. */
#ifndef MC_TEST_POLICY_DIR_H
#define MC_TEST_POLICY_DIR_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/engine/policy.h"
#include "lua/host/vocab.h"

#define UNUSED __attribute__((unused))

/* ---- directories ------------------------------------------------------------------- */

static UNUSED char *dir_new(void)
{
    static char name[8][128];
    static int n;
    const char *base = getenv("TMPDIR");
    char *d = name[n++ % 8];

    snprintf(d, sizeof name[0], "%.100s/mascon-test-XXXXXX",
             base && *base ? base : "/tmp");
    if (!mkdtemp(d))
        abort();
    return d;
}

static UNUSED void dir_write_n(const char *dir, const char *file, const char *text,
                               size_t n)
{
    char path[256], tmp[270];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, file);
    snprintf(tmp, sizeof tmp, "%s.new", path);
    f = fopen(tmp, "w");
    if (!f || fwrite(text, 1, n, f) != n || fclose(f) || chmod(tmp, 0644) ||
        rename(tmp, path))
        abort();
}

static UNUSED void dir_write(const char *dir, const char *file, const char *text)
{
    dir_write_n(dir, file, text, strlen(text));
}

static UNUSED void dir_free(const char *dir)
{
    char cmd[128];

    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    if (system(cmd))
        abort();
}

/* A scheduler whose plan is this body (locals view, plan), with `more` at the file's level
 * after the table P is made. */
static UNUSED void dir_scheduler(const char *dir, const char *body, const char *more)
{
    char text[8192];

    snprintf(text, sizeof text,
             "local P = { api = 1, kind = 'scheduler' }\n"
             "%s\nP.plan = P.plan or function(view, plan)\n%s\nend\nreturn P\n", more, body);
    dir_write(dir, "s.lua", text);
    dir_write(dir, "init.lua", "return { scheduler = 's' }");
}

/* ---- a vocabulary: token i is a word; 0 and 1 are control tokens ------------------- */

static const char *const test_words[] = {
    "<s>", "<end>", "a", "e", " the", "The", ".", "no.", " end", "b", "x", "yes", "\xc3\xa9",
    "mo", "re", "EE",
};
enum { N_TEST_WORD = sizeof test_words / sizeof *test_words };

static UNUSED const char *test_piece(const void *ctx, int32_t id, size_t *n,
                                     bool *special)
{
    (void)ctx;
    if (id < 0 || id >= N_TEST_WORD)
        return NULL;
    *special = id < 2;
    *n = strlen(test_words[id]);
    return test_words[id];
}

static UNUSED struct mc_vocab test_vocab(void)
{
    return (struct mc_vocab){.n = N_TEST_WORD, .piece = test_piece};
}

/* ---- steps ------------------------------------------------------------------------- */

enum { STEP_ROWS = 512, STEP_LANES = 4 };

struct step_block {
    struct mc_step_view view;
    struct mc_row row[STEP_ROWS];
    struct mc_party lane[STEP_LANES], tenant[1];
    int32_t order[MC_N_ORDER * STEP_ROWS];
};

/* Empty, with `pages` free pages of 64 tokens. */
static UNUSED struct step_block *step_new(int n_lane, int pages)
{
    struct step_block *b = calloc(1, sizeof *b);

    b->view = (struct mc_step_view){
        .abi = MC_ABI, .bytes = sizeof *b, .step = 1, .now = 100, .n_lane = n_lane,
        .n_tenant = 1, .n_order = MC_N_ORDER, .tok_cap = 256, .row_cap = 64, .p_tokens = 64,
        .p_total = 1000, .p_free = pages, .p_host_free = 100,
        .off_row = offsetof(struct step_block, row),
        .off_lane = offsetof(struct step_block, lane),
        .off_tenant = offsetof(struct step_block, tenant),
        .off_order = offsetof(struct step_block, order),
    };
    for (int i = 0; i < n_lane; i++)
        b->lane[i] = (struct mc_party){.id = (uint32_t)i + 10, .weight = 1};
    b->tenant[0].id = 77;
    return b;
}

static UNUSED struct mc_row *step_row(struct step_block *b, int lane, int state,
                                      int n_prompt)
{
    int i = b->view.n_row++;
    struct mc_row *r = &b->row[i];

    *r = (struct mc_row){.seq = (uint32_t)i + 1, .gen = 1, .lane = (uint32_t)lane,
                         .state = (uint16_t)state, .n_prompt = n_prompt, .t_arrive = i};
    if (state == MC_STATE_WAITING)
        r->n_left = n_prompt;
    if (state == MC_STATE_DECODE)
        r->n_ctx = n_prompt;
    r->p_held = r->p_own = (r->n_ctx + 63) / 64;
    for (int o = 0; o < MC_N_ORDER; o++)
        for (int k = 0; k <= i; k++)
            b->order[o * b->view.n_row + k] = o == MC_ORDER_YOUNGEST ? i - k : k;
    return r;
}

static UNUSED struct mc_plan *plan_new(int tokens, int rows, int pages)
{
    struct mc_plan *p = calloc(1, sizeof *p);

    p->abi = MC_ABI;
    p->cap = MC_PLAN_CAP;
    p->tok_left = tokens;
    p->row_left = rows;
    p->page_left = pages;
    return p;
}

static UNUSED const struct mc_item *plan_item(const struct mc_plan *p, uint32_t seq)
{
    for (int i = 0; i < p->n; i++)
        if (p->item[i].seq == seq)
            return &p->item[i];
    return NULL;
}

static UNUSED size_t rss_bytes(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long pages = 0;

    if (!f || fscanf(f, "%*d %ld", &pages) != 1)
        abort();
    fclose(f);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

#endif
