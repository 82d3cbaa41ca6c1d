/* fuzz_scheme.c - a config.json's quantization_config as plan reads it; what opens must have a
 * form for every module. Owns nothing. THREAD: main. */
#include <stdlib.h>

#include "core/model/form.h"

int mc_fuzz(const uint8_t *data, size_t n);

int mc_fuzz(const uint8_t *data, size_t n)
{
    json_t *config = json_loadb((const char *)data, n, 0, NULL);
    struct mc_tensor_spec t = {.n = 100, .k = 300, .count = 1};
    char name[MC_FORM_NAME];
    struct mc_scheme *s;
    struct mc_form f;
    struct mc_err err;
    int rc;

    if (!config)
        return 0;
    rc = mc_scheme_open(config, &s, &err);
    if (rc < 0) {
        json_decref(config);
        return err.code == rc && err.text[0] ? 0 : 1;
    }
    for (t.at = 0; t.at < MC_N_MATRIX; t.at++) {
        f = mc_scheme_of(s, &t, "model.layers.3.mlp.experts.0.gate_proj");
        if (f.n_tensor < 1 || mc_form_bytes(&f, t.n, t.k) == 0 ||
            !mc_form_name(&f, name)[0])
            abort();
    }
    mc_scheme_close(s);
    json_decref(config);
    return 0;
}
