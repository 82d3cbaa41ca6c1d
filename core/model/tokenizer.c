/* tokenizer.c - text to ids: added tokens, normalisation, pieces, merging.
 *
 * Owns struct mc_tok. THREAD: close: one; everything else: any, at the same time; scratch
 * belongs to the call.
 * The order is that of Hugging Face's tokenizers: added tokens that are not normalised are
 * found in the text as it came; what lies between is normalised; then the other added
 * tokens are found; what lies between those is cut into pieces, and pieces are merged. */
#include "core/model/tokenizer_int.h"

#include <stdlib.h>
#include <string.h>

#include "core/model/nfc.h"
#include "core/base/utf8.h"

struct encode {
    const struct mc_tok *t;
    struct mc_ids *out;
    struct mc_merger merger;
    bool find_added;
    const char *text;                /* as it came */
    struct mc_chunks chunks;         /* of text */
    const struct mc_tok_part *parts; /* NULL: added tokens may be anywhere */
    int n_parts;
    bool first; /* nothing or an added token came before */
};

int mc_ids_push(struct mc_ids *ids, int32_t id)
{
    size_t cap = ids->cap ? ids->cap * 2 : 64;
    int32_t *v;

    if (ids->n == ids->cap) {
        v = realloc(ids->v, cap * sizeof *v);
        if (!v)
            return MC_ENOMEM;
        ids->v = v;
        ids->cap = cap;
    }
    ids->v[ids->n++] = id;
    return 0;
}

void mc_ids_free(struct mc_ids *ids)
{
    free(ids->v);
    *ids = (struct mc_ids){0};
}

void mc_tok_close(struct mc_tok *t)
{
    if (!t)
        return;
    free(t->token);
    free(t->text);
    free(t->slot);
    free(t->merge);
    free(t->score_rank);
    free(t->raw.v);
    free(t->normal.v);
    mc_ids_free(&t->head);
    mc_ids_free(&t->tail);
    free(t->chat);
    free(t);
}

static int encode_piece(void *ctx, const char *s, size_t n)
{
    struct encode *e = ctx;

    return mc_bpe_piece(e->t, &e->merger, s, n, e->out);
}

/* The same as encode_text where a long text falls into chunks. */
static int encode_chunks(struct encode *e, size_t at, size_t end)
{
    size_t stop;
    int rc = 0;

    for (; at < end && rc >= 0; at = stop) {
        while (e->chunks.cut <= at)
            mc_chunk_next(&e->chunks);
        stop = e->chunks.cut < end ? e->chunks.cut : end;
        rc = mc_pretok_split(&e->t->pretok, e->text + at, stop - at, encode_piece, e);
    }
    return rc;
}

/* Text without added tokens, normalised. */
static int encode_text(struct encode *e, const char *s, size_t n)
{
    bool first = e->first;

    e->first = false;
    if (e->t->score_rank)
        return mc_spm_text(e->t, &e->merger, s, n, first, e->out);
    if (e->t->chunked)
        return encode_chunks(e, (size_t)(s - e->text), (size_t)(s - e->text) + n);
    return mc_pretok_split(&e->t->pretok, s, n, encode_piece, e);
}

typedef int (*between_fn)(struct encode *e, const char *s, size_t n);

/* Whether bytes [at, end) of the text as it came lie wholly in parts that may have added
 * tokens. */
static bool trusted(const struct encode *e, size_t at, size_t end)
{
    int lo = 0, hi = e->n_parts - 1, mid;

    if (!e->parts)
        return true;
    while (lo < hi) { /* the part that holds byte at */
        mid = (lo + hi) / 2;
        if (e->parts[mid].end <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    while (e->parts[lo].special && e->parts[lo].end < end)
        lo++;
    return e->parts[lo].special;
}

/* Pushes the added tokens of set and hands what lies between to between. */
static int encode_added(struct encode *e, const struct mc_added_set *set, const char *s,
                        size_t n, between_fn between)
{
    const struct mc_added *a;
    size_t from = 0, look = 0, at = 0, end = 0;
    bool raw = set == &e->t->raw;
    int rc = 0;

    while (rc == 0 && from < n) {
        a = e->find_added && set->n > 0
                ? mc_added_next(e->t, set, s, look, n, &at, &end) : NULL;
        if (a && raw && !trusted(e, at, end)) {
            look = at + 1;
            continue;
        }
        if (!a)
            return between(e, s + from, n - from);
        if (at > from)
            rc = between(e, s + from, at - from);
        if (rc == 0)
            rc = mc_ids_push(e->out, a->id);
        e->first = true;
        from = look = end;
    }
    return rc;
}

static int encode_unnormalised(struct encode *e, const char *s, size_t n)
{
    bool find_added = e->find_added;
    char *nfc = NULL;
    size_t n_nfc = n;
    int rc = 0;

    /* offsets move when it is normalised: only a run of one origin is searched */
    e->find_added = find_added &&
                    trusted(e, (size_t)(s - e->text), (size_t)(s - e->text) + n);

    if (e->t->nfc)
        rc = mc_nfc(s, n, &nfc, &n_nfc);
    if (rc == 0)
        rc = encode_added(e, &e->t->normal, nfc ? nfc : s, n_nfc, encode_text);
    e->find_added = find_added;
    free(nfc);
    return rc;
}

static int push_all(struct mc_ids *out, const struct mc_ids *from)
{
    size_t i;
    int rc = 0;

    for (i = 0; i < from->n && rc == 0; i++)
        rc = mc_ids_push(out, from->v[i]);
    return rc;
}

static int encode(struct encode *e, size_t n, unsigned flags, struct mc_err *err)
{
    const struct mc_tok *t = e->t;
    size_t before = e->out->n;
    int rc = 0;

    if (n > INT32_MAX / 4)
        return mc_fail(err, MC_EBIG, "a text of %zu bytes is too long to tokenize", n);
    if (!mc_utf8_valid(e->text, n))
        return mc_fail(err, MC_EFORMAT, "the text is not valid UTF-8");
    e->chunks = (struct mc_chunks){.s = e->text, .n = n};
    if (flags & MC_TOK_BOS)
        rc = push_all(e->out, &t->head);
    if (rc == 0)
        rc = encode_added(e, &t->raw, e->text, n, encode_unnormalised);
    if (rc == 0 && flags & MC_TOK_BOS)
        rc = push_all(e->out, &t->tail);
    mc_merger_free(&e->merger);
    if (rc < 0) {
        e->out->n = before;
        return mc_fail(err, rc, "no memory to tokenize %zu bytes", n);
    }
    return 0;
}

int mc_tok_encode(const struct mc_tok *t, const char *text, size_t n, unsigned flags,
                  struct mc_ids *out, struct mc_err *err)
{
    struct encode e = {.t = t, .out = out, .text = text, .first = true,
                       .find_added = flags & MC_TOK_SPECIAL};

    return encode(&e, n, flags, err);
}

int mc_tok_encode_parts(const struct mc_tok *t, const char *text, size_t n,
                        const struct mc_tok_part *parts, int n_parts, struct mc_ids *out,
                        struct mc_err *err)
{
    struct encode e = {.t = t, .out = out, .text = text, .first = true, .find_added = true,
                       .parts = parts, .n_parts = n_parts};

    return encode(&e, n, 0, err);
}

const char *mc_tok_piece(const struct mc_tok *t, int32_t id, size_t *n, bool *special)
{
    static const struct mc_token none = {0};
    const struct mc_token *k = id >= 0 && id < t->n ? &t->token[id] : &none;

    *n = k->len;
    *special = k->kind == MC_TOKEN_CONTROL;
    return k->len ? t->text + k->off : "";
}

int32_t mc_tok_n(const struct mc_tok *t)
{
    return t->n;
}

static int32_t find_added(const struct mc_tok *t, const struct mc_added_set *set,
                          const char *s, size_t n)
{
    const struct mc_token *k;
    uint32_t i;

    for (i = 0; i < set->n; i++) {
        k = &t->token[set->v[i].id];
        if (k->len == n && memcmp(t->text + k->off, s, n) == 0)
            return set->v[i].id;
    }
    return -1;
}

int32_t mc_tok_find(const struct mc_tok *t, const char *piece, size_t n)
{
    int32_t id = find_added(t, &t->raw, piece, n);

    if (id < 0)
        id = find_added(t, &t->normal, piece, n);
    return id < 0 ? mc_tok_text_id(t, piece, n) : id;
}

int32_t mc_tok_bos(const struct mc_tok *t)
{
    return t->bos;
}

int32_t mc_tok_eos(const struct mc_tok *t)
{
    return t->eos;
}

bool mc_tok_adds_bos(const struct mc_tok *t)
{
    return t->head.n > 0;
}

const char *mc_tok_chat_template(const struct mc_tok *t, size_t *n)
{
    *n = t->n_chat;
    return t->chat;
}
