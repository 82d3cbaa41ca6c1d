/* shown.h - the memory that a step VM's scripts see, and copying in and out of it.
 *
 * Each step VM has one, at addresses that never change, so that a handle kept by a script
 * points at live memory as long as any code of the VM can run. OWNS its mapping. THREAD:
 * the VM's. Holds the arguments of the last hook call after the VM is lost: the builder
 * replays them to find the line. */
#ifndef MC_LUA_SHOWN_H
#define MC_LUA_SHOWN_H

#include "core/base/err.h"
#include "core/mc_abi.h"

enum {
    MC_SHOWN_ROWS = 65536,
    MC_SHOWN_LANES = 1024,
    MC_SHOWN_TENANTS = 4096,
    MC_SHOWN_LISTED = 16 * MC_SHOWN_ROWS,
};

struct mc_shown {
    struct mc_hook_io io;
    struct mc_step_view view; /* offsets are not used here */
    struct mc_plan plan;
    struct mc_cands cands;
    struct mc_pick_seq seq;
    struct mc_params params; /* chain's answer */
    struct mc_block blocks[MC_KEEP_CAP];
    struct mc_row rows[MC_SHOWN_ROWS];
    struct mc_party lanes[MC_SHOWN_LANES];
    struct mc_party tenants[MC_SHOWN_TENANTS];
    int32_t orders[MC_N_ORDER * MC_SHOWN_ROWS]; /* [MC_N_ORDER][n_row] */
    struct mc_hook_lane moving[MC_SHOWN_LANES];
    struct mc_hook_lane moving_tenants[MC_SHOWN_TENANTS]; /* head is not used */
    uint8_t marks[MC_SHOWN_ROWS]; /* 1: the plan has decided on the row */
    int32_t n_list;               /* used of lists, in this hook call */
    int32_t lists[MC_SHOWN_LISTED];
};

struct mc_shown *mc_shown_new(void); /* NULL: no memory; pages are touched on use */
void mc_shown_free(struct mc_shown *s);

/* Copies the engine's block in: orders that it lacks become the rows as they lie. MC_EBIG
 * when it holds more than can be shown. */
int mc_shown_view(struct mc_shown *s, const struct mc_step_view *v, struct mc_err *err);
/* The same for one row without lanes. */
void mc_shown_row(struct mc_shown *s, const struct mc_row *row);
/* Starts a plan with the budget of p. */
void mc_shown_plan(struct mc_shown *s, const struct mc_plan *p);
/* Makes dst's arguments those that src had when its last hook began, but for numbers that
 * the hook wrote to user and state. */
void mc_shown_again(struct mc_shown *dst, const struct mc_shown *src);
/* Lists the rows of a kind (enum mc_list) that are not decided on, of one lane or (-1) all,
 * in an order. Where it begins in lists, io.n_listed long; -1 when there is no room left. */
int32_t mc_shown_list(struct mc_shown *s, enum mc_list kind, int32_t order, int32_t lane);
/* The first ready row of a lane in order of arrival, or -1. */
int32_t mc_shown_head(struct mc_shown *s, int32_t lane);

/* Copies back what a hook may change: user numbers, and the plan's items and budget. */
void mc_shown_users(const struct mc_shown *s, struct mc_step_view *v);
void mc_shown_items(const struct mc_shown *s, struct mc_plan *p);

#endif
