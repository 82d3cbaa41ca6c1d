/* recipe.h - which format each matrix of a checkpoint is to have.
 *
 * A recipe is a short Lua file that returns a table (policies/recipes/):
 *
 *   return {
 *     about = "experts int4 in groups of 128, other linears fp8 in blocks of 128",
 *     rules = {
 *       { role = "expert", to = "int4", group = { 128, 64, 32 } },
 *       { name = "*.self_attn.kv_b_proj", to = "bf16" },
 *       { role = { "attention", "mlp", "shared" }, to = "fp8" },
 *     },
 *   }
 *
 * The first rule that fits a matrix decides: its role is one of `role` and its name
 * matches the glob `name`, where those are given. What no rule fits stays as it is. `to`:
 * keep, bf16, fp8 (e4m3 in blocks of 128 x 128), int4 (group: the first that divides the
 * columns; when none does the next rule is tried), nvfp4. OWNS its rules. THREAD: any,
 * once read. */
#ifndef MC_COMPRESS_RECIPE_H
#define MC_COMPRESS_RECIPE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/base/err.h"

/* What a matrix is for, told by its name. */
enum mc_role {
    MC_ROLE_EMBED,     /* embed_tokens */
    MC_ROLE_HEAD,      /* lm_head */
    MC_ROLE_ATTENTION, /* self_attn.* */
    MC_ROLE_INDEXER,   /* self_attn.indexer.{wq_b,wk} */
    MC_ROLE_GATES,     /* self_attn.indexer.weights_proj */
    MC_ROLE_MLP,       /* mlp.{gate,up,down}_proj */
    MC_ROLE_EXPERT,    /* mlp.experts.N.* */
    MC_ROLE_SHARED,    /* mlp.shared_expert(s).* */
    MC_ROLE_ROUTER,    /* mlp.gate, mlp.shared_expert_gate */
    MC_ROLE_OTHER,     /* eh_proj, vision towers, what is not known: never touched */
    MC_N_ROLE,
};

const char *mc_role_name(enum mc_role role);
/* Of a module's name without .weight ("model.layers.3.mlp.gate"). */
enum mc_role mc_role_of(const char *module);

/* A decision: a format, with its columns a scale. */
struct mc_target {
    bool keep;
    uint16_t fmt;  /* MC_D_BF16, MC_D_E4M3, MC_D_INT4, MC_D_NVFP4 */
    int32_t group; /* INT4: 32, 64, 128; NVFP4: 16 */
    int rule;      /* counted from 1; 0: none fits */
};

struct mc_recipe;
/* table: what the file returned, borrowed. An error names the rule and the field. */
int mc_recipe_read(const json_t *table, struct mc_recipe **out, struct mc_err *err);
void mc_recipe_free(struct mc_recipe *r);
const char *mc_recipe_about(const struct mc_recipe *r);
struct mc_target mc_recipe_decide(const struct mc_recipe *r, const char *module,
                                  int32_t columns);

/* Bytes of a matrix of n rows and k columns in a target's format, scales and all. */
uint64_t mc_target_bytes(const struct mc_target *t, int64_t n, int64_t k);
/* "int4-g128", "fp8", "bf16" */
const char *mc_target_name(const struct mc_target *t, char *buf, size_t cap);

#endif
