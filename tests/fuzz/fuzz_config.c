/* fuzz_config.c - any text as config.json, and after a NUL as generation_config.json. */
#include "tests/fuzz/ckpt_fuzz.h"

int mc_fuzz(const uint8_t *data, size_t n);

static json_t *parse(const uint8_t *p, size_t n)
{
    struct mc_err err = {0};
    json_t *o = NULL;

    if (mc_json_parse((const char *)p, n, 0, 1, &o, &err) < 0)
        mc_json_parse((const char *)p, n, JSON_DECODE_INT_AS_REAL, 1, &o, &err);
    return o;
}

int mc_fuzz(const uint8_t *data, size_t n)
{
    const uint8_t *nul = n ? memchr(data, 0, n) : NULL;
    struct mc_ckpt *c = ckpt_of(MC_CKPT_HF, NULL, 0);
    struct mc_config m;
    struct mc_err err = {0};

    c->config = parse(data, nul ? (size_t)(nul - data) : n);
    c->generation = nul ? parse(nul + 1, (size_t)(data + n - nul - 1)) : NULL;
    if (c->config && mc_config_load(c, &m, &err) == 0 &&
        (m.n_head % m.n_kv_head != 0 || m.head_dim < 2 || m.vocab < 1 ||
         m.n_eos > MC_MAX_EOS))
        abort();
    ckpt_free(c);
    return 0;
}
