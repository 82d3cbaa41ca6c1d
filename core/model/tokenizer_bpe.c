/* tokenizer_bpe.c - byte-level BPE: from a piece's bytes to ids.
 *
 * Owns mc_tok.merge. THREAD: filling: the one that opens; mc_bpe_piece: any.
 * Ordinary words are a few bytes: up to SHORT of them a plain search for the best pair is
 * faster than the heap. Both take the leftmost pair of the lowest rank, as the tokenizers
 * these models were trained with do. A merge that would spell a control token is left
 * out: plain text must not become one. */
#include "core/model/tokenizer_int.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/utf8.h"

enum { SHORT = 48 };

/* GPT-2's alphabet: a byte that prints in Latin-1 is itself, the others are U+0100 on in
 * order: 00-20, 7F-A0, AD. Returns the byte or -1. */
static int byte_of(uint32_t cp)
{
    if ((cp > 0x20 && cp < 0x7f) || (cp > 0xa0 && cp <= 0xff && cp != 0xad))
        return (int)cp;
    if (cp >= 0x100 && cp <= 0x120)
        return (int)cp - 0x100;
    if (cp >= 0x121 && cp <= 0x142)
        return (int)cp - 0x121 + 0x7f;
    return cp == 0x143 ? 0xad : -1;
}

bool mc_bpe_unspell(const char *s, size_t n, char *out, size_t *n_out)
{
    size_t i;
    int byte;

    if (!mc_utf8_valid(s, n))
        return false;
    *n_out = 0;
    for (i = 0; i < n; i += mc_utf8_len(s[i])) {
        byte = byte_of(mc_utf8_get(s + i));
        if (byte < 0)
            return false;
        out[(*n_out)++] = (char)byte;
    }
    return true;
}

static uint32_t char_of(uint8_t byte)
{
    if (byte <= 0x20)
        return 0x100 + byte;
    if (byte >= 0x7f && byte <= 0xa0)
        return 0x121 + byte - 0x7f;
    return byte == 0xad ? 0x143 : byte;
}

size_t mc_bpe_spell(const char *s, size_t n, char *out)
{
    size_t used = 0;

    for (size_t i = 0; i < n; i++) {
        uint32_t cp = char_of((uint8_t)s[i]);

        if (cp >= 0x80)
            out[used++] = (char)(0xc0 | cp >> 6);
        out[used++] = (char)(cp < 0x80 ? cp : 0x80 | (cp & 0x3f));
    }
    return used;
}

static struct mc_merge_row *row_of(const struct mc_tok *t, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint32_t mask = t->n_merge - 1;
    uint32_t i = (uint32_t)(key * 0x9e3779b97f4a7c15u >> 32) & mask;

    while (t->merge[i].key != key && t->merge[i].key != UINT64_MAX)
        i = (i + 1) & mask;
    return &t->merge[i];
}

/* An empty row's pair says MC_NO_RANK. */
static inline struct mc_pair pair_of(const struct mc_tok *t, int32_t left, int32_t right)
{
    return row_of(t, left, right)->pair;
}

int mc_bpe_reserve(struct mc_tok *t, size_t n_merges, struct mc_err *err)
{
    uint32_t i;

    if (n_merges > UINT32_MAX / 8)
        return mc_fail(err, MC_EFORMAT, "%zu merges are too many", n_merges);
    for (t->n_merge = 64; t->n_merge < 2 * n_merges; t->n_merge *= 2)
        continue;
    t->merge = malloc(t->n_merge * sizeof *t->merge);
    if (!t->merge)
        return mc_fail(err, MC_ENOMEM, "no memory for %zu merges", n_merges);
    for (i = 0; i < t->n_merge; i++)
        t->merge[i] = (struct mc_merge_row){UINT64_MAX, {MC_NO_RANK, -1}};
    return 0;
}

void mc_bpe_pair(struct mc_tok *t, uint32_t rank, int32_t left, int32_t right, int32_t id)
{
    struct mc_merge_row *row = row_of(t, left, right);

    row->key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    row->pair = (struct mc_pair){rank, id};
}

int mc_bpe_merge(struct mc_tok *t, uint32_t rank, const char *left, size_t n_left,
                 const char *right, size_t n_right, struct mc_err *err)
{
    char quoted[MC_QUOTE], quoted2[MC_QUOTE], *text = malloc(n_left + n_right + 1);
    int32_t l = -1, r = -1, id = -1;
    size_t nl = 0, nr = 0;

    if (!text)
        return mc_fail(err, MC_ENOMEM, "no memory for a merge");
    if (mc_bpe_unspell(left, n_left, text, &nl) &&
        mc_bpe_unspell(right, n_right, text + nl, &nr)) {
        l = mc_tok_any_id(t, text, nl);
        r = mc_tok_any_id(t, text + nl, nr);
        id = mc_tok_any_id(t, text, nl + nr);
    }
    free(text);
    if (l < 0 || r < 0 || id < 0)
        return mc_fail(err, MC_EFORMAT,
                       "merge %u names a token that the vocabulary lacks: "
                       "\"%s\" \"%s\"",
                       rank, mc_quote(quoted, left, n_left),
                       mc_quote(quoted2, right, n_right));
    if (t->token[id].kind != MC_TOKEN_CONTROL)
        mc_bpe_pair(t, rank, l, r, id);
    return 0;
}

static int merge_short(const struct mc_tok *t, int32_t *id, uint32_t n,
                       struct mc_ids *out)
{
    struct mc_pair pair[SHORT];
    uint32_t i, best;
    int rc = 0;

    for (i = 0; i + 1 < n; i++)
        pair[i] = pair_of(t, id[i], id[i + 1]);
    while (n > 1) {
        for (best = 0, i = 1; i + 1 < n; i++)
            if (pair[i].rank < pair[best].rank)
                best = i;
        if (pair[best].rank == MC_NO_RANK)
            break;
        id[best] = pair[best].id;
        n--;
        memmove(id + best + 1, id + best + 2, (n - best - 1) * sizeof *id);
        memmove(pair + best, pair + best + 1, (n - best - 1) * sizeof *pair);
        if (best + 1 < n)
            pair[best] = pair_of(t, id[best], id[best + 1]);
        if (best > 0)
            pair[best - 1] = pair_of(t, id[best - 1], id[best]);
    }
    for (i = 0; i < n && rc == 0; i++)
        rc = mc_ids_push(out, id[i]);
    return rc;
}

static struct mc_pair pair_syms(const void *ctx, const struct mc_merger *m, uint32_t left)
{
    return pair_of(ctx, m->sym[left].id, m->sym[m->sym[left].next].id);
}

static int merge_long(const struct mc_tok *t, struct mc_merger *m, struct mc_ids *out)
{
    uint32_t i;
    int rc = 0;

    mc_merger_run(m, pair_syms, t);
    for (i = 0; i != MC_SYM_END && rc == 0; i = m->sym[i].next)
        rc = mc_ids_push(out, m->sym[i].id);
    return rc;
}

/* The id that byte i of s starts as; -1: none, it leaves no symbol. */
static int32_t first_id(const struct mc_tok *t, const char *s, size_t i)
{
    int32_t id = t->byte_id[(unsigned char)s[i]];

    if (id >= 0 || t->unk < 0)
        return id;
    if (t->fuse_unk && i > 0 && t->byte_id[(unsigned char)s[i - 1]] < 0)
        return -1;
    return t->unk;
}

int mc_bpe_piece(const struct mc_tok *t, struct mc_merger *m, const char *s, size_t n,
                 struct mc_ids *out)
{
    int32_t id, ids[SHORT];
    uint32_t used = 0;
    size_t i;

    if (t->ignore_merges) {
        id = mc_tok_text_id(t, s, n);
        if (id >= 0)
            return mc_ids_push(out, id);
    }
    if (n > SHORT && mc_merger_reserve(m, n) < 0)
        return MC_ENOMEM;
    for (i = 0; i < n; i++) {
        id = first_id(t, s, i);
        if (id < 0)
            continue;
        if (n > SHORT)
            m->sym[used].id = id;
        else
            ids[used] = id;
        used++;
    }
    if (n <= SHORT)
        return merge_short(t, ids, used, out);
    m->n = used;
    return used > 0 ? merge_long(t, m, out) : 0;
}
