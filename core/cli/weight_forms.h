/* weight_forms.h - one model in several forms of its weights, served side by side.
 * OWNS: a bench its open engines, until it is cleared. THREAD: main. */
#ifndef MC_CLI_WEIGHT_FORMS_H
#define MC_CLI_WEIGHT_FORMS_H

#include "core/cli/bench.h"
#include "core/cli/scratch.h"
#include "core/mc.h"
#include "core/model/budget.h"

enum { MC_FORMS = 5, MC_LOADS = 3, MC_ROUNDS = 15, MC_FORM_PATH = 400 };
extern const int32_t mc_load_seqs[MC_LOADS]; /* sequences at once: 1, 16, 64 */

struct mc_weight_form {
    const char *recipe;      /* NULL: as it is */
    char name[40];           /* of its rows */
    char dir[MC_FORM_PATH];
    struct mc_engine *e;
    struct mc_budget_read read; /* as this backend keeps them */
    struct mc_config cfg;
    double prefill[MC_ROUNDS], decode[MC_LOADS][MC_ROUNDS]; /* tokens a second */
};

struct mc_forms {
    const struct mc_lua_half *lua;
    const struct mc_settings *set;
    const char *prefix; /* of the rows of this model */
    char scratch[MC_SCRATCH_PATH];
    struct mc_report report;
    json_t *invalid; /* what reads its weights too slowly to be compared with */
    double roof;
    int rounds;
    struct mc_weight_form form[MC_FORMS];
    int n;
};

/* Begins a form; "int4-all" is the name int4_all in rows. */
void mc_forms_name(struct mc_weight_form *f, const char *recipe, const char *name);
/* prefix_form_what; f NULL: prefix_what. */
void mc_forms_row(struct mc_forms *b, const struct mc_weight_form *f, const char *what,
                  double value, const char *unit, const char *mark);
/* Adds the checkpoint at src by a recipe (NULL: itself): its size on disk and in memory, its
 * operations against the roof; then it stands ready. name NULL: the recipe's. */
int mc_forms_add(struct mc_forms *b, const char *src, const char *recipe,
                 const char *name, struct mc_err *err);
/* All forms in turns, then their speeds. */
int mc_forms_serve(struct mc_forms *b, struct mc_err *err);
/* Form a against form with: measured, as the bytes say, and how far apart the two are. */
void mc_forms_compare(struct mc_forms *b, int a, int with,
                      const char *const mark[MC_LOADS]);
void mc_forms_clear(struct mc_forms *b);

#endif
