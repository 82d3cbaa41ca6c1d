/* fuzz_safetensors.c - any bytes as a safetensors file, then as matrices.
 *
 * The first byte says how: 'F' a file follows as it is; else a header up to a NUL and
 * then the data, for which the length is put in front, so that mutations get past it:
 * with the configuration of AutoGPTQ ('G'), AutoAWQ ('A') or compressed-tensors. */
#include "tests/fuzz/ckpt_fuzz.h"

static const char quant[] = "{\"quantization_config\":{\"quant_method\":\"compressed-"
                            "tensors\",\"config_groups\":{"
                            "\"a\":{\"weights\":{\"num_bits\":4,\"type\":\"int\","
                            "\"strategy\":\"group\",\"group_size\":32}},"
                            "\"b\":{\"weights\":{\"num_bits\":4,\"type\":\"int\","
                            "\"strategy\":\"group\",\"group_size\":8,"
                            "\"symmetric\":false}},"
                            "\"c\":{\"weights\":{\"num_bits\":8,\"type\":\"float\","
                            "\"block_structure\":[2,4]}}}}}";

static const char gptq[] =
    "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,"
    "\"group_size\":8,\"desc_act\":false,\"sym\":true}}";
static const char awq[] = "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,"
                          "\"group_size\":8,\"zero_point\":true,\"version\":\"gemm\"}}";

int mc_fuzz(const uint8_t *data, size_t n);

int mc_fuzz(const uint8_t *data, size_t n)
{
    const uint8_t *nul = n > 1 ? memchr(data + 1, 0, n - 1) : NULL;
    uint64_t n_head = nul ? (uint64_t)(nul - data - 1) : n > 1 ? n - 1 : 0;
    size_t n_data = nul ? n - n_head - 2 : 0, size;
    struct mc_err err = {0};
    struct mc_ckpt *c;
    uint8_t *file;

    if (n == 0)
        return 0;
    if (data[0] == 'F') {
        size = n - 1;
        file = malloc(size + 1);
        if (!file)
            abort();
        memcpy(file, data + 1, size);
    } else {
        size = 8 + n_head + n_data;
        file = malloc(size);
        if (!file)
            abort();
        memcpy(file, &n_head, 8);
        memcpy(file + 8, data + 1, n_head);
        if (nul)
            memcpy(file + 8 + n_head, nul + 1, n_data);
    }
    c = ckpt_of(MC_CKPT_HF, file, size);
    c->config = json_loads(data[0] == 'G' ? gptq : data[0] == 'A' ? awq : quant, 0, NULL);
    if (mc_safetensors_read(c, 0, &err) == 0 && mc_ckpt_sort(c, &err) == 0)
        ask_tensors(c);
    ckpt_free(c);
    free(file);
    return 0;
}
