/* rope.c - rotary frequencies of a config. Owns nothing. THREAD: any. */
#include "core/model/rope.h"

#include <math.h>
#include <stdlib.h>

#include "core/weights/weights.h"

static double llama3(const struct mc_config *c, double freq)
{
    double wave = 2 * M_PI / freq;
    double blend;

    if (wave > c->rope_original / c->rope_low)
        return freq / c->rope_factor;
    if (wave < c->rope_original / c->rope_high)
        return freq;
    blend = (c->rope_original / wave - c->rope_low) / (c->rope_high - c->rope_low);
    return (1 - blend) * freq / c->rope_factor + blend * freq;
}

/* A GGUF stores llama3's scaling as one divisor a pair. */
static int divide_by_file(const struct mc_ckpt *ck, int32_t n, float *out,
                          struct mc_err *err)
{
    float *f;
    int rc;

    if (!mc_ckpt_find(ck, "rope_freqs.weight"))
        return 0;
    f = malloc((size_t)n * sizeof *f);
    if (!f)
        return mc_fail(err, MC_ENOMEM, "no memory for rope_freqs.weight");
    rc = mc_ckpt_vector(ck, "rope_freqs.weight", n, f, err);
    for (int32_t i = 0; i < n && rc == 0; i++) {
        if (!(f[i] > 0) || !isfinite(f[i]))
            rc = mc_fail(err, MC_EFORMAT, "rope_freqs.weight[%d] is %g", i, (double)f[i]);
        else
            out[i] /= f[i];
    }
    free(f);
    return rc;
}

/* The pair that turns so often in the original context, as a real number. */
static double pair_of(const struct mc_config *c, int32_t dim, double turns)
{
    return dim * log(c->rope_original / (turns * 2 * M_PI)) / (2 * log(c->rope_theta));
}

static double yarn(const struct mc_config *c, int32_t dim, int32_t i, double freq)
{
    double low = floor(pair_of(c, dim, c->beta_fast));
    double high = ceil(pair_of(c, dim, c->beta_slow)), ramp;

    low = low > 0 ? low : 0;
    high = high < dim - 1 ? high : dim - 1;
    ramp = (i - low) / (high - low > 0 ? high - low : 0.001);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return freq * (1 - ramp) + freq / c->rope_factor * ramp;
}

int mc_rope_freqs(const struct mc_config *c, const struct mc_ckpt *ck, float *out,
                  struct mc_err *err)
{
    int32_t dim = mc_rope_dim(c), n = dim / 2;

    for (int32_t i = 0; i < n; i++) {
        double freq = pow(c->rope_theta, -2.0 * i / dim);

        switch (c->rope) {
        case MC_ROPE_PLAIN:
            break;
        case MC_ROPE_LINEAR:
            freq /= c->rope_factor;
            break;
        case MC_ROPE_LLAMA3:
            freq = llama3(c, freq);
            break;
        case MC_ROPE_YARN:
            freq = yarn(c, dim, i, freq);
            break;
        }
        out[i] = (float)freq;
    }
    return mc_ckpt_kind(ck) == MC_CKPT_GGUF ? divide_by_file(ck, n, out, err) : 0;
}
