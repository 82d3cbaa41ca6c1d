/* config_json.h - reading checked fields of config.json.
 *
 * The reader is sticky: the first field that is wrong sets err and rc, later reads give
 * defaults, and the caller looks once. OWNS nothing. THREAD: any. */
#ifndef MC_MODEL_CONFIG_JSON_H
#define MC_MODEL_CONFIG_JSON_H

#include "core/model/config_int.h"

struct mc_cfg_reader {
    const json_t *o;
    const char *where; /* "config.json" */
    struct mc_err *err;
    int rc;
};

void mc_cfg_bad(struct mc_cfg_reader *r, int code, const char *key, const char *what);
/* NULL when absent or null. */
const json_t *mc_cfg_field(const struct mc_cfg_reader *r, const char *key);
/* In [lo, hi]; `absent` when it is not there. */
double mc_cfg_number(struct mc_cfg_reader *r, const char *key, double absent, double lo,
                     double hi);
int32_t mc_cfg_integer(struct mc_cfg_reader *r, const char *key, int32_t absent,
                       int32_t lo, int32_t hi);
int32_t mc_cfg_required(struct mc_cfg_reader *r, const char *key, int32_t lo, int32_t hi);
bool mc_cfg_boolean(struct mc_cfg_reader *r, const char *key, bool absent);
void mc_cfg_must_be(struct mc_cfg_reader *r, const char *key, const char *want);
void mc_cfg_must_be_false(struct mc_cfg_reader *r, const char *key);

/* config_rope.c: after the sizes of heads */
void mc_cfg_read_rope(struct mc_cfg_reader *r, struct mc_config *out);
/* config_blocks.c: what only some families have. */
void mc_cfg_read_latents(struct mc_cfg_reader *r, struct mc_config *out);
void mc_cfg_read_indexers(struct mc_cfg_reader *r, struct mc_config *out);
void mc_cfg_read_experts_qwen(struct mc_cfg_reader *r, bool shared,
                              struct mc_config *out);
void mc_cfg_read_experts_deepseek(struct mc_cfg_reader *r, struct mc_config *out);
void mc_cfg_read_drafts(struct mc_cfg_reader *r, const struct mc_ckpt *c,
                        struct mc_config *out);

#endif
