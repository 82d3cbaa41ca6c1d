/* tokenizer_gguf.c - a tokenizer from GGUF metadata (tokenizer.ggml.*).
 *
 * Owns what it builds until it hands it out. THREAD: the one that opens.
 * A GGUF names a pre-tokenizer instead of spelling it, and leaves normalisation and
 * defaults to the reader: here they follow the model's own tokenizer, and llama.cpp where
 * that leaves them open. */
#include "core/model/tokenizer_int.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/log.h"
#include "core/weights/weights.h"

#define KEY(name) "tokenizer.ggml." name

/* tokenizer.ggml.token_type */
enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

static const struct pre {
    const char *name;
    bool ignore_merges, add_bos, nfc, chunked;
} pres[] = {
    {"llama-bpe", .ignore_merges = true, .add_bos = true},
    {"llama3", .ignore_merges = true, .add_bos = true},
    {"llama-v3", .ignore_merges = true, .add_bos = true},
    {"glm4", .ignore_merges = true}, {"glm5", .ignore_merges = true},
    {"qwen2", .nfc = true},
    {"kimi-k2", .ignore_merges = true, .chunked = true},
};

struct build {
    const struct mc_gguf *g;
    struct mc_tok *t;
    bool spm;
    bool add_bos; /* unless the file says */
    struct mc_err *err;
};

static int read_pre(struct build *b)
{
    const char *name = "default";
    char quoted[MC_QUOTE];
    size_t n = strlen(name), i;

    if (!mc_gguf_str(b->g, KEY("pre"), &name, &n))
        mc_warn("model",
                "the GGUF names no pre-tokenizer (tokenizer.ggml.pre): text may be "
                "cut otherwise than the model was trained with");
    if (!mc_pretok_add_named(&b->t->pretok, name, n))
        return mc_fail(b->err, MC_EUNSUP, "tokenizer.ggml.pre \"%s\" is not supported",
                       mc_quote(quoted, name, n));
    for (i = 0; i < sizeof pres / sizeof *pres; i++) {
        if (strlen(pres[i].name) != n || memcmp(pres[i].name, name, n) != 0)
            continue;
        b->t->ignore_merges = pres[i].ignore_merges;
        b->t->nfc = pres[i].nfc;
        b->t->chunked = pres[i].chunked;
        b->add_bos = pres[i].add_bos;
    }
    return 0;
}

/* SentencePiece spells a space U+2581. */
static size_t spm_unspell(const char *s, size_t n, char *out)
{
    size_t i, used = 0;

    for (i = 0; i < n; i++) {
        if (n - i >= 3 && memcmp(s + i, "\xe2\x96\x81", 3) == 0) {
            out[used++] = ' ';
            i += 2;
        } else {
            out[used++] = s[i];
        }
    }
    return used;
}

/* "<0x0A>" */
static int put_byte(struct build *b, int32_t id, const char *s, size_t n)
{
    char quoted[MC_QUOTE], digits[3] = {0}, *end, byte;

    if (n == 6 && memcmp(s, "<0x", 3) == 0 && s[5] == '>') {
        memcpy(digits, s + 3, 2);
        byte = (char)strtol(digits, &end, 16);
        if (end == digits + 2)
            return mc_tok_put(b->t, id, &byte, 1, MC_TOKEN_BYTE, b->err);
    }
    return mc_fail(b->err, MC_EFORMAT, "byte token %d is \"%s\", not <0xXX>", id,
                   mc_quote(quoted, s, n));
}

static int put_text(struct build *b, int32_t id, const char *s, size_t n)
{
    char *bytes = malloc(n + 1);
    enum mc_token_kind kind = MC_TOKEN_TEXT;
    size_t n_bytes = 0;
    int rc;

    if (!bytes)
        return mc_fail(b->err, MC_ENOMEM, "no memory for the vocabulary");
    if (b->spm)
        n_bytes = spm_unspell(s, n, bytes);
    else if (!mc_bpe_unspell(s, n, bytes, &n_bytes))
        kind = MC_TOKEN_INERT;
    rc = mc_tok_put(b->t, id, kind == MC_TOKEN_TEXT ? bytes : s,
                    kind == MC_TOKEN_TEXT ? n_bytes : n, kind, b->err);
    free(bytes);
    return rc;
}

static int put_added(struct build *b, int32_t id, const char *s, size_t n,
                     enum mc_token_kind kind)
{
    int rc = mc_tok_put(b->t, id, s, n, n ? kind : MC_TOKEN_INERT, b->err);

    if (rc < 0 || n == 0)
        return rc;
    return mc_added_put(b->t, id, (struct mc_added_flags){0}, b->err);
}

static int read_token(struct build *b, uint64_t i)
{
    int32_t type = NORMAL, id = (int32_t)i;
    const char *s;
    size_t n;

    if (!mc_gguf_arr_str(b->g, KEY("tokens"), i, &s, &n))
        return mc_fail(b->err, MC_EFORMAT,
                       "tokenizer.ggml.tokens is not a list of strings");
    if (mc_gguf_has(b->g, KEY("token_type")) &&
        !mc_gguf_arr_i32(b->g, KEY("token_type"), i, &type))
        return mc_fail(b->err, MC_EFORMAT, "tokenizer.ggml.token_type has no integer %d",
                       id);
    switch (type) {
    case NORMAL:
        return put_text(b, id, s, n);
    case UNKNOWN:
    case CONTROL:
        return put_added(b, id, s, n, MC_TOKEN_CONTROL);
    case USER_DEFINED:
        return put_added(b, id, s, n, MC_TOKEN_ADDED);
    case UNUSED:
        return 0;
    case BYTE:
        return put_byte(b, id, s, n);
    default:
        return mc_fail(b->err, MC_EFORMAT,
                       "tokenizer.ggml.token_type[%d] is %d, not 1 to 6", id, type);
    }
}

static int read_tokens(struct build *b)
{
    uint64_t i, n = 0;
    int rc;

    if (!mc_gguf_arr_n(b->g, KEY("tokens"), &n) || n == 0)
        return mc_fail(b->err, MC_EFORMAT, "tokenizer.ggml.tokens is missing or empty");
    rc = mc_tok_new(n, &b->t, b->err);
    for (i = 0; i < n && rc == 0; i++)
        rc = read_token(b, i);
    if (rc == 0)
        rc = mc_added_seal(b->t, b->err);
    return rc < 0 ? rc : mc_tok_seal(b->t, b->err);
}

/* "left right"; a token may begin with a space of its own, so not at the first byte. */
static int read_merges(struct build *b)
{
    const char *s, *space;
    uint64_t i, n = 0;
    size_t len;
    int rc;

    if (!mc_gguf_arr_n(b->g, KEY("merges"), &n))
        return mc_fail(b->err, MC_EFORMAT, "tokenizer.ggml.merges is missing");
    rc = mc_bpe_reserve(b->t, n, b->err);
    for (i = 0; i < n && rc == 0; i++) {
        space = NULL;
        if (mc_gguf_arr_str(b->g, KEY("merges"), i, &s, &len) && len > 1)
            space = memchr(s + 1, ' ', len - 1);
        if (!space)
            return mc_fail(b->err, MC_EFORMAT,
                           "tokenizer.ggml.merges[%llu] is not a pair of "
                           "tokens",
                           (unsigned long long)i);
        rc = mc_bpe_merge(b->t, (uint32_t)i, s, (size_t)(space - s), space + 1,
                          len - (size_t)(space - s) - 1, b->err);
    }
    return rc;
}

static int read_scores(struct build *b)
{
    float *score = calloc((size_t)b->t->n + 1, sizeof *score);
    int32_t i;
    int rc = 0;

    if (!score)
        return mc_fail(b->err, MC_ENOMEM, "no memory for %d scores", b->t->n);
    for (i = 0; i < b->t->n && rc == 0; i++)
        if (!mc_gguf_arr_f32(b->g, KEY("scores"), (uint64_t)i, &score[i]))
            rc = mc_fail(b->err, MC_EFORMAT, "tokenizer.ggml.scores has no number %d", i);
    if (rc == 0)
        rc = mc_spm_seal(b->t, score, b->err);
    free(score);
    return rc;
}

/* An id by key; fallback when the key is absent. */
static int read_id(struct build *b, const char *key, int32_t fallback, int32_t *out)
{
    uint64_t id;

    *out = fallback < b->t->n ? fallback : -1;
    if (!mc_gguf_has(b->g, key))
        return 0;
    if (!mc_gguf_u64(b->g, key, &id) || id >= (uint64_t)b->t->n)
        return mc_fail(b->err, MC_EFORMAT, "%s is not the id of a token (0 to %d)", key,
                       b->t->n - 1);
    *out = (int32_t)id;
    return 0;
}

/* Appends id to ids when key, or its default, says so. */
static int read_adds(struct build *b, const char *key, bool adds, int32_t id,
                     struct mc_ids *ids)
{
    if (mc_gguf_has(b->g, key) && !mc_gguf_bool(b->g, key, &adds))
        return mc_fail(b->err, MC_EFORMAT, "%s is not a boolean", key);
    if (!adds)
        return 0;
    if (id < 0)
        return mc_fail(b->err, MC_EFORMAT, "%s is true, but there is no such token", key);
    return mc_ids_push(ids, id) < 0 ? mc_fail(b->err, MC_ENOMEM, "no memory") : 0;
}

static int read_specials(struct build *b)
{
    struct mc_tok *t = b->t;
    int rc = read_id(b, KEY("bos_token_id"), b->spm ? 1 : -1, &t->bos);

    if (rc == 0)
        rc = read_id(b, KEY("eos_token_id"), b->spm ? 2 : -1, &t->eos);
    if (rc == 0 && b->spm)
        rc = read_id(b, KEY("unknown_token_id"), 0, &t->unk);
    if (rc == 0)
        rc = read_adds(b, KEY("add_bos_token"), b->add_bos, t->bos, &t->head);
    return rc < 0 ? rc : read_adds(b, KEY("add_eos_token"), false, t->eos, &t->tail);
}

static int read_chat(struct build *b)
{
    const char *s;
    size_t n;

    if (!mc_gguf_str(b->g, "tokenizer.chat_template", &s, &n))
        return 0;
    b->t->chat = malloc(n + 1);
    if (!b->t->chat)
        return mc_fail(b->err, MC_ENOMEM, "no memory for the chat template");
    memcpy(b->t->chat, s, n);
    b->t->chat[n] = 0;
    b->t->n_chat = n;
    return 0;
}

static int read_all(struct build *b)
{
    const char *model = "";
    char quoted[MC_QUOTE];
    size_t n = 0;
    int rc;

    if (!mc_gguf_str(b->g, KEY("model"), &model, &n))
        return mc_fail(b->err, MC_EFORMAT,
                       "the GGUF has no tokenizer (tokenizer.ggml.model)");
    b->spm = b->add_bos = n == 5 && memcmp(model, "llama", 5) == 0;
    if (!b->spm && (n != 4 || memcmp(model, "gpt2", 4) != 0))
        return mc_fail(b->err, MC_EUNSUP,
                       "tokenizer.ggml.model \"%s\" is not supported: only "
                       "gpt2 and llama are",
                       mc_quote(quoted, model, n));
    rc = read_tokens(b);
    if (rc == 0)
        rc = b->spm ? read_scores(b) : read_merges(b);
    if (rc == 0 && !b->spm)
        rc = read_pre(b);
    if (rc < 0)
        return rc;
    b->t->space_prefix = true;
    mc_gguf_bool(b->g, KEY("add_space_prefix"), &b->t->space_prefix);
    rc = read_specials(b);
    return rc < 0 ? rc : read_chat(b);
}

int mc_tok_from_gguf(const struct mc_gguf *g, struct mc_tok **out, struct mc_err *err)
{
    struct build b = {.g = g, .err = err};
    int rc = read_all(&b);

    *out = NULL;
    if (rc < 0) {
        mc_tok_close(b.t);
        return rc;
    }
    *out = b.t;
    return 0;
}
