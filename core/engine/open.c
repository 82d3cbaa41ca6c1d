/* open.c - opening an engine part by part, and closing what stands of it.
 *
 * Owns the engine. THREAD: whoever opens and closes; the engine thread does not run.
 * Always true: mc_engine_close takes an engine that opened halfway. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/base/crash.h"
#include "core/base/thread.h"
#include "core/engine/engine_int.h"
#include "core/model/load.h"

_Static_assert((int)MC_K_EARG == (int)MC_EARG && (int)MC_K_EUNSUP == (int)MC_EUNSUP &&
                   (int)MC_K_EINTERNAL == (int)MC_EINTERNAL &&
                   (int)MC_K_ERANK == (int)MC_ERANK && (int)MC_K_ENOMEM == (int)MC_ENOMEM,
               "kernels.h repeats the program's codes");

static int open_ranks(struct mc_engine *e, struct mc_err *err)
{
    const struct mc_backend_opts o = {.threads = e->o.threads,
                                      .cpu = e->o.cpu,
                                      .ref_act = -1};

    int rc = mc_ranks_open(&e->ranks, e->o.backend ? e->o.backend : "cpu", &o, e->o.ranks, err);

    e->ranks.mla_expand = e->o.mla_expand;
    if (e->o.shard_tokens > 1 || (e->o.mla_expand < 0 && e->o.chunk < MC_EXPAND_LEAST))
        e->ranks.mla_expand = 0; /* no chunk will ever be */
    e->ranks.prefill_bf16 = e->o.prefill_bf16;
    if (rc == 0)
        rc = mc_ranks_load(&e->ranks, e->o.model, &e->tok, err);
    if (rc == 0) {
        e->model = &e->ranks.rank[0].model;
        mc_mem_init(&e->mem, e->model->be);
        rc = mc_ranks_shard(&e->ranks, e->o.shard_tokens, err);
    }
    return rc;
}

/* What the pool may take: a context of 2,048 for each slot, at most a quarter of memory. */
static uint64_t default_pool(const struct mc_engine *e, int64_t page_bytes)
{
    uint64_t quarter = (uint64_t)sysconf(_SC_PHYS_PAGES) *
                       (uint64_t)sysconf(_SC_PAGESIZE) / 4 / (uint64_t)e->ranks.n;
    uint64_t enough = (uint64_t)e->n_slot * (2048 / MC_PAGE) * (uint64_t)page_bytes;

    enough /= (uint64_t)mc_ranks_shards(&e->ranks);
    return enough < quarter ? enough : quarter;
}

/* What an engine takes of the host's memory. */
struct needs {
    double pages, records, swap, weights;
};

/* (A device grants no more than it has: there pages and weights are its own affair.) */
static struct needs needs_of(const struct mc_engine *e, int64_t page_bytes)
{
    int32_t shards = mc_ranks_shards(&e->ranks);
    struct needs n = {
        .records = (double)mc_kv_record_bytes(e->pool.n_page * shards),
        .swap = (double)mc_swap_places(e, page_bytes) * (double)page_bytes *
                (e->ranks.n / shards)};

    if (!mc_mem_is_host(e->model->be))
        return n;
    n.pages = (double)e->pool.n_page * (double)page_bytes * e->ranks.n;
    for (int32_t i = 0; i < e->ranks.n; i++)
        n.weights += (double)e->ranks.rank[i].model.mem.bytes;
    return n;
}

double mc_engine_bytes(const struct mc_engine *e)
{
    const struct needs n = needs_of(e, e->crew.run[0].dev.kv.page_stride);

    return n.pages + n.records + n.swap + n.weights;
}

/* All must fit in memory: overcommitted it would be granted, and the process killed when it
 * fills. */
static int check_pool(const struct mc_engine *e, int64_t page_bytes, struct mc_err *err)
{
    const double gib = 1 << 30;
    double have = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const struct needs n = needs_of(e, page_bytes);

    if (n.pages + n.records + n.swap + n.weights <= have)
        return 0;
    return mc_fail_param(err, MC_EARG, "kv-memory",
                         "--kv-memory: %.1f GiB of pages, %.1f GiB of records of them, "
                         "%.1f GiB for preempted ones (--swap-memory) and %.1f GiB of weights "
                         "are more than this machine's %.1f GiB of memory",
                         n.pages / gib, n.records / gib, n.swap / gib, n.weights / gib,
                         have / gib);
}

/* The layout and number of pages; the pools themselves are the crew's. */
static int size_kv(struct mc_engine *e, struct mc_err *err)
{
    struct mc_pool_size *pool = &e->pool;
    uint64_t bytes = e->o.kv_bytes, n, most;
    int64_t page;
    int rc = mc_kv_layout_of(&e->model->cfg, e->o.kv ? e->o.kv : "auto", &pool->layout, err);

    if (rc < 0)
        return rc;
    page = mc_model_kv(e->model, pool->layout).page_stride;
    if (bytes == 0)
        bytes = default_pool(e, page);
    n = bytes / (uint64_t)page;
    most = (uint64_t)(INT32_MAX / MC_PAGE / mc_ranks_shards(&e->ranks));
    pool->n_page = (int32_t)(n < most ? n : most);
    if (pool->n_page < 2)
        return mc_fail_param(
            err, MC_EARG, "kv-memory",
            "--kv-memory %llu holds %d pages of %lld bytes, 2 are needed",
            (unsigned long long)bytes, pool->n_page, (long long)page);
    return check_pool(e, page, err);
}

/* What a step and a sequence may hold at most, now that the pool is known. */
static void set_limits(struct mc_engine *e)
{
    struct mc_pool_size *pool = &e->pool;
    int32_t tokens = pool->n_page * mc_ranks_shards(&e->ranks) * MC_PAGE;

    if (e->o.max_context <= 0 || e->o.max_context > e->model->cfg.max_context)
        e->o.max_context = e->model->cfg.max_context;
    if (e->o.max_context > tokens)
        e->o.max_context = tokens;
    e->pitch = (e->o.max_context + MC_PAGE - 1) / MC_PAGE;
    pool->pitch = e->pitch;
    pool->n_slot = e->n_slot;
    e->caps = (struct mc_pass_caps){.rows = e->o.chunk, .seqs = e->n_slot,
                                    .outs = e->n_slot, .context = e->o.max_context,
                                    .no_page_check = e->o.no_page_tags,
                                    .taps = e->model->be->op[MC_OP_tap] ? MC_STEP_TAPS : 0};
}

static int open_tables(struct mc_engine *e, struct mc_err *err)
{
    int32_t shards = mc_ranks_shards(&e->ranks);

    e->kv = mc_kv_new(e->pool.n_page * shards, shards, e->n_seqs);
    atomic_store(&e->p_goal, e->pool.n_page * shards);
    e->seqs = calloc((size_t)e->n_seqs, sizeof *e->seqs);
    e->live = calloc((size_t)e->n_seqs, sizeof *e->live);
    e->live_gen = calloc((size_t)e->n_seqs, sizeof *e->live_gen);
    e->slot_free = calloc((size_t)e->n_slot, sizeof *e->slot_free);
    e->view = calloc(1, mc_view_cap(e));
    if (!e->kv || !e->seqs || !e->live || !e->live_gen || !e->slot_free || !e->view)
        return mc_fail(err, MC_ENOMEM, "no memory for %d sequences", e->n_seqs);
    for (int32_t i = e->n_seqs - 1; i >= 0; i--) {
        e->seqs[i].id = (uint32_t)i + 1;
        e->seqs[i].gen = 1;
        e->seqs[i].next = e->seq_free;
        e->seq_free = &e->seqs[i];
    }
    for (int32_t i = e->n_slot - 1; i >= 0; i--)
        e->slot_free[e->n_slot_free++] = i;
    for (int i = 0; i < MC_N_LANE; i++)
        e->lane[i].weight = 1;
    for (int i = 0; i < MC_N_TENANT; i++)
        e->tenant[i].weight = 1;
    for (int i = 0; i < MC_MAX_SETS; i++)
        e->set_handle[i] = -1;
    return mc_life_open(e, err);
}

/* What scripts compute with; a backend that has no such operation goes without. */
static int open_tensors(struct mc_engine *e, struct mc_err *err)
{
    struct mc_backend *be = e->model->be;

    if (!be->op[MC_OP_tensor] || !be->stream_low)
        return 0;
    return mc_tensors_open(be, e->o.tensor_bytes, &e->tensors, err);
}

static void defaults(struct mc_engine *e, const struct mc_engine_opts *o)
{
    e->o = *o;
    e->n_slot = o->max_seqs > 0 ? o->max_seqs : 64;
    e->o.max_waiting = o->max_waiting > 0 ? o->max_waiting : 1024;
    e->o.chunk = o->chunk > 0 ? o->chunk : 256;
    e->o.tensor_bytes = o->tensor_bytes > 0 ? o->tensor_bytes : 512u << 20;
    if (e->o.chunk < e->n_slot)
        e->o.chunk = e->n_slot; /* a step has room for every decode row */
    e->n_seqs = e->o.max_waiting + e->n_slot;
    e->depth = o->sync ? 1 : MC_DEPTH;
    e->policy = mc_policy_builtin;
}

int mc_engine_open(const struct mc_engine_opts *o, struct mc_engine **out,
                   struct mc_err *err)
{
    struct mc_engine *e = calloc(1, sizeof *e);
    int rc;

    if (!e)
        return mc_fail(err, MC_ENOMEM, "no memory for an engine");
    pthread_mutex_init(&e->look, NULL);
    pthread_mutex_init(&e->inbox, NULL);
    mc_cond_init(&e->bell);
    defaults(e, o);
    rc = open_ranks(e, err);
    if (rc == 0)
        rc = size_kv(e, err);
    if (rc == 0) {
        set_limits(e);
        rc = open_tables(e, err);
    }
    if (rc == 0)
        rc = mc_step_open(e, err);
    if (rc == 0)
        rc = mc_swap_open(e, err);
    if (rc == 0)
        rc = open_tensors(e, err);
    if (rc < 0) {
        mc_engine_close(e);
        return rc;
    }
    *out = e;
    return 0;
}

void mc_engine_close(struct mc_engine *e)
{
    if (!e)
        return;
    mc_crash_drop(e);
    mc_engine_stop(e);
    mc_engine_close(e->reader);
    mc_tensors_close(e->tensors);
    if (e->crew.n > 0)
        mc_pins_close(e);
    mc_crew_close(&e->crew);
    if (e->ranks.stuck) /* a thread that never came back may still read the engine */
        return;
    mc_mem_fini(&e->mem);
    mc_ranks_close(&e->ranks);
    for (int i = 0; i < MC_DEPTH; i++) {
        mc_pair_passed(&e->step[i]);
        free(e->step[i].row), free(e->step[i].sent), free(e->step[i].landed);
    }
    mc_kv_free(e->kv);
    mc_swap_close(e);
    mc_tok_close(e->tok);
    free(e->rec_tok), free(e->past);
    free(e->seqs), free(e->live), free(e->live_gen), free(e->slot_free), free(e->view);
    pthread_mutex_destroy(&e->look);
    pthread_mutex_destroy(&e->inbox);
    pthread_cond_destroy(&e->bell);
    free(e);
}
