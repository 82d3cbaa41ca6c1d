/* config_gguf.h - reading checked keys of GGUF metadata.
 *
 * Sticky, as config_json.h. Keys are those of r->arch: "block_count" is read as
 * "llama.block_count". OWNS nothing. THREAD: any. */
#ifndef MC_MODEL_CONFIG_GGUF_H
#define MC_MODEL_CONFIG_GGUF_H

#include "core/model/config_int.h"

struct mc_gguf_reader {
    const struct mc_gguf *g;
    const struct mc_ckpt *c;
    const char *arch;
    struct mc_err *err;
    int rc;
};

enum { MC_GGUF_KEY = 128 };

/* "llama" + "block_count" -> "llama.block_count" */
const char *mc_gguf_key(const struct mc_gguf_reader *r, const char *key,
                        char out[MC_GGUF_KEY]);
bool mc_gguf_says(const struct mc_gguf_reader *r, const char *key);
void mc_gguf_bad(struct mc_gguf_reader *r, int code, const char *key, const char *what);
/* In [lo, hi]; `absent` when it is not there. */
double mc_gguf_number(struct mc_gguf_reader *r, const char *key, double absent, double lo,
                      double hi);
int32_t mc_gguf_integer(struct mc_gguf_reader *r, const char *key, int32_t absent,
                        int32_t lo, int32_t hi);
int32_t mc_gguf_required(struct mc_gguf_reader *r, const char *key, int32_t hi);
/* A key that must be absent, since it changes what a layer computes. */
void mc_gguf_must_lack(struct mc_gguf_reader *r, const char *key);

/* config_gguf_blocks.c: what only some architectures have. */
void mc_gguf_read_latents(struct mc_gguf_reader *r, struct mc_config *out);
void mc_gguf_read_indexers(struct mc_gguf_reader *r, struct mc_config *out);
void mc_gguf_read_experts_qwen(struct mc_gguf_reader *r, bool shared,
                               struct mc_config *out);
void mc_gguf_read_experts_deepseek(struct mc_gguf_reader *r, struct mc_config *out);
void mc_gguf_read_drafts(struct mc_gguf_reader *r, struct mc_config *out);

#endif
