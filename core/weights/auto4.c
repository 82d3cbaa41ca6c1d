/* auto4.c - 4-bit matrices in the orders of AutoGPTQ and AutoAWQ, turned to compressed-
 * tensors' order (MC_D_INT4).
 *
 * Owns nothing: the copy is the caller's. THREAD: any.
 * Both store the transpose: scales [K/group, N], zero points eight columns a word.
 *   gptq  qweight [K/8, N], element k of a column in word k/8 at bits 4*(k%8); zero
 * points less one (format gptq_v2: as they are); g_idx [K] names each row's group awq
 * qweight [K, N/8], column 8j + order[i] in word j at bits 4*i; zero points so too */
#include "core/weights/auto4.h"

#include <stdlib.h>
#include <string.h>

struct shape {
    bool awq;
    int32_t less; /* what stored zero points are less by */
    int64_t n, k, groups;
};

static const uint8_t awq_place[8] = {0, 4, 1, 5,
                                     2, 6, 3, 7}; /* of column j%8 in its word */

static uint32_t word(const struct mc_stored *t, int64_t i)
{
    uint32_t v;

    memcpy(&v, (const uint8_t *)t->data + 4 * i, sizeof v);
    return v;
}

static bool is(const struct mc_stored *t, const char *dtype, int64_t rows, int64_t cols)
{
    return t && strcmp(t->dtype, dtype) == 0 && t->n_dim == 2 && t->dim[0] == rows &&
           t->dim[1] == cols;
}

static int refuse(const struct mc_auto4 *a, const char *what, struct mc_err *err)
{
    return mc_fail(err, MC_EUNSUP, "%.110s: %s", a->module, what);
}

/* What the config says of the method, as far as it changes how bytes are read. */
static int read_method(const struct mc_auto4 *a, struct shape *s, struct mc_err *err)
{
    const char *method = json_string_value(json_object_get(a->config, "quant_method"));
    const char *version = json_string_value(json_object_get(a->config, "version"));
    const char *format = json_string_value(
        json_object_get(a->config, "checkpoint_format"));
    const json_t *bits = json_object_get(a->config, "bits");

    if (!method || (strcmp(method, "awq") != 0 && strcmp(method, "gptq") != 0))
        return mc_fail(err, MC_EFORMAT,
                       "%.110s.qweight is there, but quantization_config."
                       "quant_method is %.40s",
                       a->module, method ? method : "absent");
    if (json_integer_value(bits) != 4)
        return refuse(a, "quantization_config.bits is not 4", err);
    s->awq = method[0] == 'a';
    s->less = !s->awq && !(format && strcmp(format, "gptq_v2") == 0);
    if (s->awq && version && strcmp(version, "gemm") != 0 && strcmp(version, "GEMM") != 0)
        return refuse(a, "quantization_config.version is not gemm", err);
    if (!s->awq && format && strcmp(format, "gptq") != 0 &&
        strcmp(format, "gptq_v2") != 0)
        return refuse(a,
                      "quantization_config.checkpoint_format is neither gptq nor gptq_v2",
                      err);
    return 0;
}

/* Activation order: rows of a group are not neighbours. */
static int check_order(const struct mc_auto4 *a, const struct shape *s,
                       struct mc_err *err)
{
    if (!a->g_idx)
        return 0;
    if (strcmp(a->g_idx->dtype, "I32") != 0 || a->g_idx->n_dim != 1 ||
        a->g_idx->dim[0] != s->k)
        return mc_fail(err, MC_EFORMAT, "%.110s.g_idx is not I32 [%lld]", a->module,
                       (long long)s->k);
    for (int64_t k = 0; k < s->k; k++)
        if (word(a->g_idx, k) != (uint32_t)(k / (s->k / s->groups)))
            return refuse(a, "g_idx: activation order (desc_act) is not supported", err);
    return 0;
}

static int read_shape(const struct mc_auto4 *a, struct shape *s, struct mc_err *err)
{
    const struct mc_stored *q = a->qweight;
    json_int_t said = json_integer_value(json_object_get(a->config, "group_size"));

    if (q->n_dim != 2 || !a->scales || a->scales->n_dim != 2)
        return mc_fail(err, MC_EFORMAT, "%.110s: qweight and scales are not two matrices",
                       a->module);
    s->k = s->awq ? q->dim[0] : 8 * q->dim[0];
    s->n = s->awq ? 8 * q->dim[1] : q->dim[1];
    s->groups = a->scales->dim[0];
    if (s->n < 8 || s->n % 8 != 0 || s->n > INT32_MAX || s->k < 8 || s->k % 8 != 0 ||
        s->k > INT32_MAX || s->groups < 1 || s->k % s->groups != 0)
        return mc_fail(err, MC_EFORMAT, "%.110s: %lld x %lld in %lld groups", a->module,
                       (long long)s->n, (long long)s->k, (long long)s->groups);
    if (said != s->k / s->groups && !(said == -1 && s->groups == 1))
        return mc_fail(err, MC_EFORMAT, "%.110s.scales has groups of %lld, but "
                       "quantization_config.group_size is %lld", a->module,
                       (long long)(s->k / s->groups), (long long)said);
    if (!is(q, "I32", s->awq ? s->k : s->k / 8, s->awq ? s->n / 8 : s->n) ||
        !is(a->scales, "F16", s->groups, s->n) ||
        !is(a->qzeros, "I32", s->groups, s->n / 8))
        return mc_fail(err, MC_EFORMAT,
                       "%.110s: qweight I32, qzeros I32 and scales F16 of "
                       "%lld x %lld in %lld groups are needed",
                       a->module, (long long)s->n, (long long)s->k, (long long)s->groups);
    return check_order(a, s, err);
}

/* Column n of a row of words that hold eight each. */
static uint32_t nibble(const struct shape *s, const struct mc_stored *t, int64_t row,
                       int64_t n)
{
    int at = s->awq ? awq_place[n % 8] : (int)(n % 8);

    return word(t, row * (s->n / 8) + n / 8) >> 4 * at & 15;
}

static void turn_codes(const struct mc_auto4 *a, const struct shape *s, uint8_t *q)
{
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t k = 0; k < s->k; k++) {
            uint32_t v = s->awq ? nibble(s, a->qweight, k, n)
                                : word(a->qweight, k / 8 * s->n + n) >> 4 * (k % 8) & 15;

            q[(n * s->k + k) / 2] |= (uint8_t)(v << 4 * (k % 2));
        }
}

static int turn_groups(const struct mc_auto4 *a, const struct shape *s, uint16_t *scale,
                       uint32_t *zero, struct mc_err *err)
{
    for (int64_t g = 0; g < s->groups; g++)
        for (int64_t n = 0; n < s->n; n++) {
            uint32_t z = nibble(s, a->qzeros, g, n) + (uint32_t)s->less;

            if (z > 15)
                return refuse(a, "qzeros: a zero point of 16", err);
            memcpy(&scale[n * s->groups + g],
                   (const uint8_t *)a->scales->data + 2 * (g * s->n + n), 2);
            zero[n / 8 * s->groups + g] |= z << 4 * (n % 8);
        }
    return 0;
}

int mc_auto4_read(const struct mc_auto4 *a, struct mc_disk *d, void **own,
                  struct mc_err *err)
{
    struct shape s = {0};
    size_t codes, zeros;
    uint8_t *p;
    int rc = read_method(a, &s, err);

    if (rc == 0)
        rc = read_shape(a, &s, err);
    if (rc < 0)
        return rc;
    *d = (struct mc_disk){.fmt = MC_D_INT4, .scale_dt = MC_F16, .n = (int32_t)s.n,
                          .k = (int32_t)s.k, .group = (int32_t)(s.k / s.groups)};
    codes = (size_t)s.n * (size_t)s.k / 2;
    zeros = (size_t)s.n / 8 * (size_t)s.groups * 4;
    if (!own) {
        d->zero = a->qzeros->data; /* there are some: part of the form */
        return 0;
    }
    p = calloc(1, codes + zeros + (size_t)s.n * (size_t)s.groups * 2);
    if (!p)
        return mc_fail(err, MC_ENOMEM, "no memory to convert %.110s", a->module);
    *own = p;
    d->q = p;
    d->zero = p + codes; /* codes are a multiple of 4 bytes: k and n are of 8 */
    d->scale = p + codes + zeros;
    turn_codes(a, &s, p);
    return turn_groups(a, &s, (uint16_t *)(p + codes + zeros), (uint32_t *)(p + codes),
                       err);
}
