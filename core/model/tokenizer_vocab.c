/* tokenizer_vocab.c - the table of tokens, by id and by bytes.
 *
 * Owns mc_tok.token, .text, .slot. THREAD: the one that opens the tokenizer; finding: any.
 * Where a TEXT and an added token have the same bytes the hash knows the TEXT one. */
#include "core/model/tokenizer_int.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum { ID_SLACK = 65536 }; /* real vocabularies have gaps of a few hundred ids at most */

const char *mc_quote(char buf[MC_QUOTE], const char *s, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    size_t i, used = 0;
    unsigned char c;

    for (i = 0; i < n; i++) {
        c = (unsigned char)s[i];
        if (used + 4 + 4 > MC_QUOTE)
            break;
        if (c >= 0x20 && c != 0x7f) {
            buf[used++] = s[i];
            continue;
        }
        memcpy(buf + used, (char[]){'\\', 'x', hex[c >> 4], hex[c & 15]}, 4);
        used += 4;
    }
    while (i < n && used > 0 && ((unsigned char)s[i] & 0xc0) == 0x80) {
        i--; /* cut between characters */
        used--;
    }
    memcpy(buf + used, i < n ? "..." : "", i < n ? 4 : 1);
    return buf;
}

int mc_tok_new(size_t n_entries, struct mc_tok **out, struct mc_err *err)
{
    struct mc_tok *t;
    int b;

    *out = NULL;
    if (n_entries > INT32_MAX / 4)
        return mc_fail(err, MC_EFORMAT, "a vocabulary of %zu tokens is too large",
                       n_entries);
    t = calloc(1, sizeof *t);
    if (!t)
        return mc_fail(err, MC_ENOMEM, "no memory for a tokenizer");
    t->limit = (int32_t)n_entries + ID_SLACK;
    t->bos = t->eos = t->unk = -1;
    for (b = 0; b < 256; b++)
        t->byte_id[b] = -1;
    t->token = calloc((size_t)t->limit, sizeof *t->token);
    if (!t->token) {
        mc_tok_close(t);
        return mc_fail(err, MC_ENOMEM, "no memory for %d tokens", t->limit);
    }
    *out = t;
    return 0;
}

int mc_text_keep(struct mc_tok *t, const char *s, size_t n, uint32_t *off,
                 struct mc_err *err)
{
    size_t cap = t->cap_text ? t->cap_text : 4096;
    char *text;

    if (n > UINT32_MAX - t->n_text)
        return mc_fail(err, MC_EFORMAT, "the vocabulary's text exceeds 4 GiB");
    while (cap < t->n_text + n)
        cap *= 2;
    if (cap > t->cap_text) {
        text = realloc(t->text, cap);
        if (!text)
            return mc_fail(err, MC_ENOMEM, "no memory for the vocabulary's text");
        t->text = text;
        t->cap_text = cap;
    }
    if (n > 0)
        memcpy(t->text + t->n_text, s, n);
    *off = (uint32_t)t->n_text;
    t->n_text += n;
    return 0;
}

int mc_tok_put(struct mc_tok *t, int64_t id, const char *s, size_t n,
               enum mc_token_kind kind, struct mc_err *err)
{
    char quoted[MC_QUOTE];
    struct mc_token *k;

    if (id < 0 || id >= t->limit)
        return mc_fail(err, MC_EFORMAT, "id %lld of token \"%s\" is not in 0..%d",
                       (long long)id, mc_quote(quoted, s, n), t->limit - 1);
    k = &t->token[id];
    if (k->kind != MC_TOKEN_NONE)
        return mc_fail(err, MC_EFORMAT, "id %lld of token \"%s\" is taken already",
                       (long long)id, mc_quote(quoted, s, n));
    k->kind = kind;
    k->len = (uint32_t)n;
    if (id >= t->n)
        t->n = (int32_t)id + 1;
    return mc_text_keep(t, s, n, &k->off, err);
}

int mc_tok_rename(struct mc_tok *t, int32_t id, const char *s, size_t n,
                  enum mc_token_kind kind, struct mc_err *err)
{
    t->token[id].kind = kind;
    t->token[id].len = (uint32_t)n;
    return mc_text_keep(t, s, n, &t->token[id].off, err);
}

static int32_t *slot_of(const struct mc_tok *t, const char *s, size_t n)
{
    uint32_t i = (uint32_t)XXH3_64bits(s, n) & (t->n_slot - 1);
    const struct mc_token *k;

    for (; t->slot[i] >= 0; i = (i + 1) & (t->n_slot - 1)) {
        k = &t->token[t->slot[i]];
        if (k->len == n && memcmp(t->text + k->off, s, n) == 0)
            break;
    }
    return &t->slot[i];
}

static void index_token(struct mc_tok *t, int32_t id)
{
    const struct mc_token *k = &t->token[id];
    int32_t *slot;

    if (k->len == 0)
        return;
    slot = slot_of(t, t->text + k->off, k->len);
    if (k->kind == MC_TOKEN_TEXT || *slot < 0)
        *slot = id;
    if (k->len > t->max_len)
        t->max_len = k->len;
}

int mc_tok_seal(struct mc_tok *t, struct mc_err *err)
{
    const struct mc_token *k;
    int32_t id;

    for (t->n_slot = 64; t->n_slot < 2 * (uint32_t)t->n; t->n_slot *= 2)
        continue;
    t->slot = malloc(t->n_slot * sizeof *t->slot);
    if (!t->slot)
        return mc_fail(err, MC_ENOMEM, "no memory to index %d tokens", t->n);
    memset(t->slot, 0xff, t->n_slot * sizeof *t->slot);
    for (id = 0; id < t->n; id++) {
        k = &t->token[id];
        if (k->kind >= MC_TOKEN_TEXT)
            index_token(t, id);
        if (k->kind == MC_TOKEN_BYTE || (k->kind == MC_TOKEN_TEXT && k->len == 1))
            t->byte_id[(unsigned char)t->text[k->off]] = id;
    }
    return 0;
}

int32_t mc_tok_any_id(const struct mc_tok *t, const char *s, size_t n)
{
    return n == 0 || n > t->max_len ? -1 : *slot_of(t, s, n);
}

int32_t mc_tok_text_id(const struct mc_tok *t, const char *s, size_t n)
{
    int32_t id = mc_tok_any_id(t, s, n);

    return id >= 0 && t->token[id].kind == MC_TOKEN_TEXT ? id : -1;
}
