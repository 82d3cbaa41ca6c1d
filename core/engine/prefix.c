/* prefix.c - what of a sequence's context is in pages already, and sharing them.
 *
 * Two places are looked in: the prefix table (full pages of anyone with the same salt,
 * kv.h), and, for a sequence that was forked from another, the pages of that one as long
 * as it lives: those the same way, and the last, partial one by a copy. Owns nothing.
 * THREAD: the engine's. Always true: a page that two hold is full, so nobody writes into
 * it; a page of a parent is copied only up to what steps enqueued before this one have
 * put there. */
#include "core/engine/engine_int.h"

/* Brings the chain up to n full pages of ids. */
static void extend_chain(struct mc_seq *q, int32_t n)
{
    while (q->n_chain < n) {
        struct mc_hash parent = q->n_chain ? q->chain[q->n_chain - 1] : q->root;

        q->chain[q->n_chain] = mc_kv_chain(parent, q->ids + q->n_chain * MC_PAGE);
        q->n_chain++;
    }
}

/* Tokens at the front of q whose KV its parent has; *p: the parent. plan: the one that is
 * being turned into a step, whose own rows are not computed yet, or 0. */
static int32_t parents_part(struct mc_engine *e, const struct mc_seq *q, uint64_t plan,
                            const struct mc_seq **p)
{
    const struct mc_seq *o = q->n_from > 0 ? mc_seq_get(e, q->from) : NULL;
    int32_t n;

    if (!o || o->n_page == 0)
        return 0;
    *p = o;
    n = o->n_ctx - (plan && o->added_in == plan ? o->n_added : 0);
    n = n < q->n_from ? n : q->n_from;
    return n < q->n_ids ? n : q->n_ids - 1;
}

/* May block i of q be in that page, when block 0 is in `first`? */
static bool follows(const struct mc_engine *e, const struct mc_seq *q, int32_t first,
                    int32_t i, int32_t page)
{
    int32_t shard = i > 0 ? mc_kv_next_shard(e->kv, &first, i) : q->shard;

    return page >= 0 && (shard < 0 || mc_kv_shard(e->kv, page) == shard);
}

static int32_t first_page(const struct mc_seq *q)
{
    return q->n_page > 0 ? q->page[0] : -1;
}

/* Page i of q's context where it is already, or -1; its first one is `first`. */
static int32_t page_at(struct mc_engine *e, struct mc_seq *q, int32_t first, int32_t i,
                       const struct mc_seq *p, int32_t n_parent, bool take)
{
    const int32_t *ids = q->ids + i * MC_PAGE;
    int32_t page = mc_kv_find(e->kv, q->chain[i], ids);

    if (follows(e, q, first, i, page))
        return take ? mc_kv_find_take(e->kv, q->chain[i], ids, (int32_t)q->id) : page;
    if ((i + 1) * MC_PAGE > n_parent || !follows(e, q, first, i, p->page[i]))
        return -1;
    if (take)
        mc_kv_ref(e->kv, p->page[i], (int32_t)q->id);
    return p->page[i];
}

/* Positions whose KV is there already have no logits, and no rows to be taken. */
static bool no_reuse(const struct mc_seq *q)
{
    return (q->prompt_logprobs && q->n_told < q->n_prompt) || mc_tap_reruns(q);
}

struct mc_found mc_prefix_look(struct mc_engine *e, struct mc_seq *q)
{
    /* one token at least runs again: its logits are wanted */
    int32_t most = (q->n_ids - 1) / MC_PAGE, first = -1, n_parent, i;
    const struct mc_seq *p = NULL;
    struct mc_found f = {0};

    if (q->lands) /* its pages are there, but not in the pool */
        return (struct mc_found){.n = mc_parcel_tokens(q->lands)};
    if (no_reuse(q))
        return f;
    extend_chain(q, most);
    n_parent = parents_part(e, q, 0, &p);
    for (i = 0; i < most; i++) {
        int32_t page = page_at(e, q, first, i, p, n_parent, false);

        if (page < 0)
            break;
        first = i == 0 ? page : first;
        f.held_on[mc_kv_shard(e->kv, page)] += mc_kv_refs(e->kv, page) > 0;
        f.n_held += mc_kv_refs(e->kv, page) > 0;
    }
    f.n_page = i;
    f.n = i * MC_PAGE;
    if (n_parent > f.n && follows(e, q, first, i, p->page[i]))
        f.n = n_parent;
    return f;
}

void mc_prefix_take(struct mc_engine *e, struct mc_step *s, struct mc_seq *q)
{
    int32_t most = (q->n_ids - 1) / MC_PAGE, n_parent;
    const struct mc_seq *p = NULL;

    q->n_ctx = 0;
    if (!no_reuse(q)) {
        extend_chain(q, most);
        n_parent = parents_part(e, q, e->n_plan, &p);
        while (q->n_page < most) {
            int32_t page = page_at(e, q, first_page(q), q->n_page, p, n_parent, true);

            if (page < 0)
                break;
            q->page[q->n_page++] = page;
        }
        q->n_ctx = q->n_page * MC_PAGE;
        if (s && n_parent > q->n_ctx &&
            follows(e, q, first_page(q), q->n_page, p->page[q->n_page]) &&
            mc_moves_copy(e, s, q, p->page[q->n_page]))
            q->n_ctx = n_parent;
    }
    q->n_pub = q->n_ctx;
    q->n_shared_seen = 0;
}

int32_t mc_prefix_soon(struct mc_engine *e, const struct mc_seq *q, int32_t now)
{
    const struct mc_seq *p = q->n_from > 0 ? mc_seq_get(e, q->from) : NULL;
    int32_t best = now / MC_PAGE, n;

    if (no_reuse(q))
        return now;
    /* a link stands for all before it: who has the next one has more than the best so far
     */
    for (int32_t i = 0; i < e->n_live; i++) {
        const struct mc_seq *o = &e->seqs[e->live[i]];

        while (o->state == MC_STATE_PREFILL && !mc_tap_alone(o) && best < q->n_chain &&
               best < o->n_chain &&
               q->chain[best].lo == o->chain[best].lo &&
               q->chain[best].hi == o->chain[best].hi)
            best++;
    }
    n = best * MC_PAGE;
    if (p && (p->state == MC_STATE_WAITING || p->state == MC_STATE_PREFILL) &&
        q->n_from > n)
        n = q->n_from;
    n = n < q->n_ids ? n : q->n_ids - 1;
    return n > now ? n : now;
}

/* Offers the full pages whose KV is computed and whose ids are known. */
void mc_prefix_share(struct mc_engine *e, struct mc_seq *q)
{
    int32_t n = (q->n_pub < q->n_ids ? q->n_pub : q->n_ids) / MC_PAGE;

    if (n > q->n_page)
        n = q->n_page;
    if (mc_tap_alone(q))
        return;
    extend_chain(q, n);
    for (; q->n_shared_seen < n; q->n_shared_seen++) {
        mc_kv_publish(e->kv, q->page[q->n_shared_seen], q->chain[q->n_shared_seen],
                      q->ids + q->n_shared_seen * MC_PAGE);
        mc_kv_note(e->kv, q->page[q->n_shared_seen], q->tenant, q->n_shared_seen);
    }
}
