/* ranks.c - a model loaded onto the ranks that will run it together.
 *
 * Owns backends and weights. THREAD: one; while loading a thread a rank, which has its
 * own job and shares the checkpoint to read. Always true: what a stuck thread may touch
 * is never freed. */
#include "core/model/ranks.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/base/thread.h"
#include "core/weights/weights.h"

enum { PATIENCE_MS = 2500 }; /* of ranks with each other, within a step */

/* ---- a planted fault --------------------------------------------------------------- */

static int read_fault(int32_t n, struct mc_fault *out, struct mc_err *err)
{
    static const char *const places[] = {"", "@load", "@prefill", "@decode", "@idle"};
    const char *text = getenv("MC_FAIL");
    char what[8] = "", place[12] = "";
    int rank = -1;

    *out = (struct mc_fault){0};
    if (!text || strncmp(text, "rank:", 5) != 0)
        return 0;
    sscanf(text, "rank:%d:%7[a-z]%11s", &rank, what, place);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (strcmp(place, places[i]) == 0)
            *out = (struct mc_fault){rank, MC_FAULT_NONE, (enum mc_fault_at)i};
    if (strcmp(what, "error") == 0)
        out->what = MC_FAULT_ERROR;
    else if (strcmp(what, "stall") == 0)
        out->what = MC_FAULT_STALL;
    if (!out->what || strcmp(place, places[out->at]) != 0 || rank < 0 || rank >= n)
        return mc_fail(err, MC_EARG, "MC_FAIL=%.60s: rank:0..%d:error|stall"
                       "[@load|prefill|decode|idle] is understood", text, n - 1);
    return 0;
}

/* ---- opening ----------------------------------------------------------------------- */

int mc_ranks_open(struct mc_ranks *r, const char *backend,
                  const struct mc_backend_opts *o, int32_t n, struct mc_err *err)
{
    int rc;

    n = n > 0 ? n : 1;
    if (n > MC_MAX_RANKS)
        return mc_fail_param(err, MC_EARG, "ranks", "--ranks %d: 1 to %d are possible", n,
                             MC_MAX_RANKS);
    rc = read_fault(n, &r->fault, err);
    if (rc == 0 && n > 1 && mc_comm_open(n, PATIENCE_MS, &r->comm) < 0)
        rc = mc_fail(err, MC_ENOMEM, "no memory for %d ranks", n);
    for (; rc == 0 && r->n < n; r->n++) {
        struct mc_backend_opts mine = *o;

        mine.peer = (struct mc_peer){r->comm, r->n, n};
        rc = mc_backend_open(backend, &mine, &r->rank[r->n].be, err);
        if (rc < 0)
            break;
    }
    return rc;
}

void mc_ranks_close(struct mc_ranks *r)
{
    if (r->stuck)
        return;
    for (int32_t i = 0; i < r->n; i++) {
        if (r->rank[i].model.be)
            mc_model_close(&r->rank[i].model);
        r->rank[i].be->close(r->rank[i].be);
    }
    mc_comm_close(r->comm);
    *r = (struct mc_ranks){0};
}

/* ---- which numbers of ranks there can be ------------------------------------------- */

static bool can_share(const struct mc_config *c, int32_t n)
{
    const int32_t width[] = {c->vocab, c->inter, c->moe_inter, c->shared_inter};
    struct mc_span q, kv;
    bool can = mc_share_heads(c, (struct mc_slice){0, n}, &q, &kv);

    for (size_t i = 0; i < sizeof width / sizeof *width; i++)
        can = can && (width[i] == 0 || width[i] >= n);
    return can;
}

static int check_share(const struct mc_config *c, int32_t n, struct mc_err *err)
{
    char can[40] = "";

    if (can_share(c, n))
        return 0;
    for (int32_t i = 1; i <= MC_MAX_RANKS; i++)
        if (can_share(c, i))
            snprintf(can + strlen(can), sizeof can - strlen(can), "%s%d",
                     *can ? ", " : "", i);
    return mc_fail_param(err, MC_EUNSUP, "ranks",
                         "--ranks %d: %d heads over %d kv heads can't "
                         "be shared so; %s can",
                         n, c->n_head, c->n_kv_head, can);
}

int mc_ranks_shard(struct mc_ranks *r, int32_t n, struct mc_err *err)
{
    const struct mc_config *c = &r->rank[0].model.cfg;

    if (n > 1 && c->attn != MC_ATTN_MLA)
        return mc_fail_param(
            err, MC_EUNSUP, "shard-tokens",
            "--shard-tokens %d: ranks share "
            "the heads of this model (%s) and store no token twice; only "
            "latents (MLA) can be spread",
            n, c->family);
    if (n > 1 && r->n % n != 0)
        return mc_fail_param(err, MC_EARG, "shard-tokens",
                             "--shard-tokens %d does not divide "
                             "--ranks %d",
                             n, r->n);
    if (n > 1 && c->prefill_bf16)
        return mc_fail_param(err, MC_EUNSUP, "prefill-kv",
                             "--prefill-kv does not go with "
                             "--shard-tokens");
    r->n_shard = n;
    return 0;
}

/* ---- loading ----------------------------------------------------------------------- */

struct job {
    struct mc_ranks *r;
    int32_t rank, n_real;
    const struct mc_config *cfg;
    const struct mc_ckpt *c;
    pthread_t thread;
    int rc;
    struct mc_err err;
    atomic_bool done;
};

struct loading {
    struct mc_ckpt *c;
    struct mc_config cfg;
    int32_t n_made;
    struct job job[MC_MAX_RANKS];
};

static void *load_rank(void *arg)
{
    struct job *j = arg;
    struct mc_ranks *r = j->r;
    struct mc_rank *me = &r->rank[j->rank];
    bool planted = r->fault.at == MC_AT_LOAD && r->fault.rank == j->rank;

    while (planted && r->fault.what == MC_FAULT_STALL)
        pause();
    if (planted && r->fault.what == MC_FAULT_ERROR)
        j->rc = mc_fail(&j->err, MC_ERANK, "MC_FAIL asks for it");
    else
        j->rc = mc_model_open(me->be, j->c, j->cfg, (struct mc_slice){j->rank, r->n},
                              j->n_real, &me->model, &j->err);
    if (j->rc < 0 && r->comm)
        mc_comm_break(r->comm, "rank %d failed: %s", j->rank, j->err.text);
    atomic_store(&j->done, true);
    return NULL;
}

/* Seconds that one tensor may take: a slow disk's for the largest. */
static double patience_of(const struct mc_config *c)
{
    double most = (double)c->vocab * c->hidden;
    double wide = (double)(c->inter > c->n_head * mc_q_dim(c) ? c->inter
                                                              : c->n_head * mc_q_dim(c));

    most = wide * c->hidden > most ? wide * c->hidden : most;
    return 2.5 + most * 2 / 20e6;
}

/* False when no rank got any further for that long; *who has not finished. */
static bool wait_loaded(struct loading *l, int32_t *who)
{
    const double patience = patience_of(&l->cfg);
    uint64_t seen = UINT64_MAX;
    double waited = 0;

    for (*who = 0; *who < l->n_made; waited += 1e-3) {
        uint64_t got = 0;

        for (int32_t i = 0; i < l->n_made; i++)
            got += atomic_load(&l->job[i].r->rank[i].model.n_packed) +
                   atomic_load(&l->job[i].done);
        if (got != seen)
            waited = 0;
        seen = got;
        while (*who < l->n_made && atomic_load(&l->job[*who].done))
            ++*who;
        if (waited > patience)
            return false;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return true;
}

static int start_loading(struct loading *l, struct mc_ranks *r, int32_t n_real,
                         struct mc_err *err)
{
    for (int32_t i = 0; i < r->n; i++) {
        struct job *j = &l->job[i];

        *j = (struct job){.r = r, .rank = i, .n_real = n_real, .cfg = &l->cfg, .c = l->c};
        if (mc_thread_run(&j->thread, load_rank, j) != 0) {
            mc_comm_break(r->comm, "no thread for rank %d", i);
            return mc_fail(err, MC_EINTERNAL, "no thread to load rank %d", i);
        }
        l->n_made++;
    }
    return 0;
}

/* The error of the rank that failed first: the others only say that one did. */
static int first_error(const struct loading *l, struct mc_err *err)
{
    const struct job *first = NULL;

    for (int32_t i = 0; i < l->n_made; i++)
        if (l->job[i].rc < 0 && (!first || first->rc == MC_ERANK))
            first = &l->job[i];
    if (!first)
        return 0;
    if (first->rc == MC_ERANK && first->r->comm)
        return mc_fail(err, MC_ERANK, "%s", mc_comm_broken(first->r->comm));
    if (err)
        *err = first->err;
    return first->rc;
}

static int load_all(struct loading *l, struct mc_ranks *r, int32_t n_real,
                    struct mc_err *err)
{
    int rc = start_loading(l, r, n_real, err);
    int32_t who;

    if (!wait_loaded(l, &who)) {
        r->stuck = true;
        mc_comm_break(r->comm, "rank %d stalled while it loaded", who);
        return mc_fail(err, MC_ERANK, "rank %d stalled while it loaded", who);
    }
    for (int32_t i = 0; i < l->n_made; i++)
        pthread_join(l->job[i].thread, NULL);
    return rc < 0 ? rc : first_error(l, err);
}

/* What --prefill-kv does not go with. */
static int check_prefill(const struct mc_ranks *r, const struct mc_config *c,
                         struct mc_err *err)
{
    if (r->prefill_bf16 && c->index_topk > 0)
        return mc_fail_param(err, MC_EUNSUP, "prefill-kv",
                             "--prefill-kv: this model (%s) "
                             "chooses tokens by an index, from pages alone",
                             c->family);
    if (r->prefill_bf16 && r->mla_expand > 0)
        return mc_fail_param(err, MC_EARG, "prefill-kv", "--prefill-kv does not go with "
                             "--mla-expand, which reads pages alone");
    return 0;
}

static int32_t expand_from(const struct mc_ranks *r, const struct mc_config *c)
{
    if (c->index_topk > 0 || (r->mla_expand < 0 && r->prefill_bf16))
        return 0;
    return r->mla_expand < 0 ? mc_expand_from(r->rank[0].be, c) : r->mla_expand;
}

int mc_ranks_load(struct mc_ranks *r, const char *path, struct mc_tok **tok,
                  struct mc_err *err)
{
    struct loading *l = calloc(1, sizeof *l);
    int rc;

    if (!l)
        return mc_fail(err, MC_ENOMEM, "no memory to load a model");
    rc = mc_ckpt_open(path, &l->c, err);
    if (rc == 0)
        rc = mc_config_load(l->c, &l->cfg, err);
    if (rc == 0)
        rc = check_prefill(r, &l->cfg, err);
    l->cfg.mla_expand = rc == 0 ? expand_from(r, &l->cfg) : 0;
    l->cfg.prefill_bf16 = r->prefill_bf16;
    if (rc == 0)
        rc = check_share(&l->cfg, r->n, err);
    if (rc == 0)
        rc = mc_tok_open(l->c, tok, err);
    if (rc == 0)
        rc = load_all(l, r, mc_tok_n(*tok), err);
    if (r->stuck)
        return rc;
    mc_ckpt_close(l->c);
    free(l);
    return rc;
}
