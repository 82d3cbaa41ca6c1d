/* shown.c - copying between the engine's block and a step VM's.
 *
 * Owns nothing but the mapping of each struct mc_shown. THREAD: the VM's.
 * Always true after mc_shown_view: every index in orders is below n_row, and the counts of
 * moving agree with rows and marks. */
#include "lua/host/shown.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "core/engine/policy.h"

struct mc_shown *mc_shown_new(void)
{
    void *p = mmap(NULL, sizeof(struct mc_shown), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

void mc_shown_free(struct mc_shown *s)
{
    if (s)
        munmap(s, sizeof *s);
}

static void copy_orders(struct mc_shown *s, const struct mc_step_view *v)
{
    int32_t have = v->n_order < MC_N_ORDER ? v->n_order : MC_N_ORDER, n = v->n_row;

    if (have > 0)
        memcpy(s->orders, mc_view_order(v, 0), (size_t)have * (size_t)n * sizeof *s->orders);
    for (int32_t o = have; o < MC_N_ORDER; o++)
        for (int32_t i = 0; i < n; i++)
            s->orders[o * n + i] = i;
}

/* Wants prompt tokens. */
static bool is_ready(const struct mc_row *r)
{
    return r->n_left > 0 && (r->state == MC_STATE_WAITING || r->state == MC_STATE_PREFILL);
}

static void count_row(struct mc_hook_lane *moving, int32_t n, uint32_t at,
                      const struct mc_row *r)
{
    if (at >= (uint32_t)n)
        return;
    moving[at].running += mc_row_runs(r);
    moving[at].ready += is_ready(r);
}

/* Counts lanes and tenants afresh: what the engine counts may include rows that are not
 * shown. */
static void count_parties(struct mc_shown *s)
{
    const struct mc_step_view *v = &s->view;

    for (int32_t i = 0; i < v->n_lane; i++)
        s->moving[i] = (struct mc_hook_lane){.served = s->lanes[i].served};
    for (int32_t i = 0; i < v->n_tenant; i++)
        s->moving_tenants[i] = (struct mc_hook_lane){.served = s->tenants[i].served};
    for (int32_t i = 0; i < v->n_row; i++) {
        count_row(s->moving, v->n_lane, s->rows[i].lane, &s->rows[i]);
        count_row(s->moving_tenants, v->n_tenant, s->rows[i].tenant, &s->rows[i]);
    }
}

int mc_shown_view(struct mc_shown *s, const struct mc_step_view *v, struct mc_err *err)
{
    const char *base = (const char *)v;

    if (v->n_row < 0 || v->n_row > MC_SHOWN_ROWS || v->n_lane < 0 ||
        v->n_lane > MC_SHOWN_LANES || v->n_tenant < 0 || v->n_tenant > MC_SHOWN_TENANTS)
        return mc_fail(err, MC_EBIG, "%d rows, %d lanes, %d tenants: scripts see at most %d, "
                       "%d, %d", v->n_row, v->n_lane, v->n_tenant, MC_SHOWN_ROWS,
                       MC_SHOWN_LANES, MC_SHOWN_TENANTS);
    s->view = *v;
    memcpy(s->rows, base + v->off_row, (size_t)v->n_row * sizeof *s->rows);
    memcpy(s->lanes, base + v->off_lane, (size_t)v->n_lane * sizeof *s->lanes);
    memcpy(s->tenants, base + v->off_tenant, (size_t)v->n_tenant * sizeof *s->tenants);
    memset(s->marks, 0, (size_t)v->n_row);
    copy_orders(s, v);
    count_parties(s);
    return 0;
}

void mc_shown_row(struct mc_shown *s, const struct mc_row *row)
{
    s->view = (struct mc_step_view){.abi = MC_ABI, .n_row = 1, .p_tokens = 1};
    s->rows[0] = *row;
    s->marks[0] = 0;
    for (int o = 0; o < MC_N_ORDER; o++)
        s->orders[o] = 0;
}

void mc_shown_plan(struct mc_shown *s, const struct mc_plan *p)
{
    int32_t room = p->cap - p->n;

    memcpy(&s->plan, p, offsetof(struct mc_plan, item));
    s->plan.n = 0;
    s->plan.cap = room < MC_PLAN_CAP ? room : MC_PLAN_CAP;
    s->io.tok_start = p->tok_left;
    s->io.row_start = p->row_left;
    s->io.page_start = p->page_left;
    s->io.host_left = s->view.p_host_free;
}

int32_t mc_shown_list(struct mc_shown *s, enum mc_list kind, int32_t order, int32_t lane)
{
    const int32_t *from = s->orders + order * s->view.n_row;
    int32_t begin = s->n_list, n = begin;

    if (s->view.n_row > MC_SHOWN_LISTED - begin)
        return -1;
    for (int32_t i = 0; i < s->view.n_row; i++) {
        const struct mc_row *r = &s->rows[from[i]];
        bool wanted = kind == MC_LIST_RUNNING ? mc_row_runs(r)
                      : kind == MC_LIST_READY ? is_ready(r)
                                              : r->state == MC_STATE_PAUSED;

        if (wanted && !s->marks[from[i]] && (lane < 0 || r->lane == (uint32_t)lane))
            s->lists[n++] = from[i];
    }
    s->n_list = n;
    s->io.n_listed = n - begin;
    return begin;
}

/* Rows are only ever taken away while a plan is made, so the place to look from moves on. */
int32_t mc_shown_head(struct mc_shown *s, int32_t lane)
{
    struct mc_hook_lane *l = &s->moving[lane];

    for (; l->head < s->view.n_row; l->head++) {
        int32_t i = s->orders[MC_ORDER_ARRIVAL * s->view.n_row + l->head];

        if (s->rows[i].lane == (uint32_t)lane && is_ready(&s->rows[i]) && !s->marks[i])
            return i;
    }
    return -1;
}

void mc_shown_again(struct mc_shown *dst, const struct mc_shown *src)
{
    size_t n = (size_t)src->view.n_row;

    dst->io.need = src->io.need;
    dst->io.now = src->io.now;
    dst->view = src->view;
    memcpy(dst->rows, src->rows, n * sizeof *dst->rows);
    memcpy(dst->lanes, src->lanes, sizeof dst->lanes);
    memcpy(dst->tenants, src->tenants, sizeof dst->tenants);
    memcpy(dst->orders, src->orders, MC_N_ORDER * n * sizeof *dst->orders);
    memset(dst->marks, 0, n);
    count_parties(dst);
    dst->plan = src->plan;
    dst->plan.n = 0;
    dst->plan.tok_left = src->io.tok_start;
    dst->plan.row_left = src->io.row_start;
    dst->plan.page_left = dst->io.page_start = src->io.page_start;
    dst->io.host_left = src->view.p_host_free;
    dst->cands = src->cands;
    dst->seq = src->seq;
    memcpy(dst->blocks, src->blocks, sizeof dst->blocks);
    dst->io.n_block = src->io.n_block;
}

void mc_shown_users(const struct mc_shown *s, struct mc_step_view *v)
{
    struct mc_row *row = (struct mc_row *)((char *)v + v->off_row);
    struct mc_party *lane = (struct mc_party *)((char *)v + v->off_lane);
    struct mc_party *tenant = (struct mc_party *)((char *)v + v->off_tenant);

    for (int32_t i = 0; i < v->n_row; i++)
        memcpy(row[i].user, s->rows[i].user, sizeof row[i].user);
    for (int32_t i = 0; i < v->n_lane; i++)
        memcpy(lane[i].user, s->lanes[i].user, sizeof lane[i].user);
    for (int32_t i = 0; i < v->n_tenant; i++)
        memcpy(tenant[i].user, s->tenants[i].user, sizeof tenant[i].user);
}

void mc_shown_items(const struct mc_shown *s, struct mc_plan *p)
{
    memcpy(&p->item[p->n], s->plan.item, (size_t)s->plan.n * sizeof *p->item);
    p->n += s->plan.n;
    p->tok_left = s->plan.tok_left;
    p->row_left = s->plan.row_left;
    p->page_left = s->plan.page_left;
    p->page_soon = s->plan.page_soon;
}
