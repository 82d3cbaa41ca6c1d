/* rope.h - rotary frequencies of a config. Pure; THREAD: any. */
#ifndef MC_MODEL_ROPE_H
#define MC_MODEL_ROPE_H

#include "core/base/err.h"
#include "core/model/config.h"

struct mc_ckpt;

/* out: [rotated dims / 2] frequencies, scaled as the config says. Sources: plain
 * theta^(-2i/d); linear divides by factor; llama3 as published with Llama 3.1
 * (wavelengths beyond original/low are divided by factor, those below original/high stay,
 * between them a linear blend); yarn blends over a ramp of pairs that begins at the one
 * that turns beta_fast times in the original context and ends at beta_slow. A GGUF's
 * rope_freqs.weight divides instead. */
int mc_rope_freqs(const struct mc_config *cfg, const struct mc_ckpt *c, float *out,
                  struct mc_err *err);

#endif
