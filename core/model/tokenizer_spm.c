/* tokenizer_spm.c - llama's SentencePiece-style BPE: neighbours merge by score.
 *
 * Owns mc_tok.score_rank. THREAD: filling: the one that opens; mc_spm_text: any.
 * There are no pieces: a text's characters are the symbols, any two neighbours whose joint
 * bytes are a token may merge, the best score first. What stays a character without token
 * becomes byte tokens, else unk. Tokens hold spaces as spaces; U+2581, SentencePiece's
 * spelling of a space, is one in texts too, as it is there. */
#include "core/model/tokenizer_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/utf8.h"

struct scored {
    float score;
    int32_t id;
};

static int best_first(const void *x, const void *y)
{
    const struct scored *a = x, *b = y;

    return a->score > b->score ? -1 : a->score < b->score;
}

int mc_spm_seal(struct mc_tok *t, const float *score, struct mc_err *err)
{
    struct scored *order = malloc(((size_t)t->n + 1) * sizeof *order);
    uint32_t rank = 0;
    int32_t i, bad = -1;

    t->score_rank = calloc((size_t)t->n + 1, sizeof *t->score_rank);
    if (!order || !t->score_rank) {
        free(order);
        return mc_fail(err, MC_ENOMEM, "no memory for %d scores", t->n);
    }
    for (i = 0; i < t->n; i++) {
        order[i] = (struct scored){score[i], i};
        if (isnan(score[i]))
            bad = i;
    }
    if (bad < 0 && t->n > 0)
        qsort(order, (size_t)t->n, sizeof *order, best_first);
    for (i = 0; i < t->n && bad < 0; i++) {
        rank += i > 0 && order[i].score != order[i - 1].score;
        t->score_rank[order[i].id] = rank;
    }
    free(order);
    return bad < 0 ? 0 : mc_fail(err, MC_EFORMAT, "score %d is not a number", bad);
}

struct span_ctx {
    const struct mc_tok *t;
    const char *s;
    size_t n;
};

static size_t sym_end(const struct span_ctx *c, const struct mc_merger *m, uint32_t i)
{
    return m->sym[i].next == MC_SYM_END ? c->n : m->sym[m->sym[i].next].off;
}

static struct mc_pair pair_text(const void *ctx, const struct mc_merger *m, uint32_t left)
{
    const struct span_ctx *c = ctx;
    size_t from = m->sym[left].off, end = sym_end(c, m, m->sym[left].next);
    int32_t id = mc_tok_text_id(c->t, c->s + from, end - from);

    return (struct mc_pair){id < 0 ? MC_NO_RANK : c->t->score_rank[id], id};
}

static int push_bytes(const struct mc_tok *t, const char *s, size_t n, struct mc_ids *out)
{
    size_t i;
    int rc = 0;

    for (i = 0; i < n; i++)
        if (t->byte_id[(unsigned char)s[i]] < 0)
            return t->unk < 0 ? 0 : mc_ids_push(out, t->unk);
    for (i = 0; i < n && rc == 0; i++)
        rc = mc_ids_push(out, t->byte_id[(unsigned char)s[i]]);
    return rc;
}

static int merge_text(const struct span_ctx *c, struct mc_merger *m, struct mc_ids *out)
{
    size_t i, end;
    uint32_t k;
    int rc = 0;

    if (mc_merger_reserve(m, c->n) < 0)
        return MC_ENOMEM;
    m->n = 0;
    for (i = 0; i < c->n; i += mc_utf8_len(c->s[i])) {
        m->sym[m->n].id = mc_tok_text_id(c->t, c->s + i, mc_utf8_len(c->s[i]));
        m->sym[m->n++].off = (uint32_t)i;
    }
    if (m->n == 0)
        return 0;
    mc_merger_run(m, pair_text, c);
    for (k = 0; k != MC_SYM_END && rc == 0; k = m->sym[k].next) {
        end = sym_end(c, m, k);
        if (m->sym[k].id >= 0)
            rc = mc_ids_push(out, m->sym[k].id);
        else
            rc = push_bytes(c->t, c->s + m->sym[k].off, end - m->sym[k].off, out);
    }
    return rc;
}

int mc_spm_text(const struct mc_tok *t, struct mc_merger *m, const char *s, size_t n,
                bool first, struct mc_ids *out)
{
    char *text = malloc(n + 1);
    struct span_ctx c = {t, text, 0};
    size_t i, len;
    int rc;

    if (!text)
        return MC_ENOMEM;
    if (first && t->space_prefix)
        text[c.n++] = ' ';
    for (i = 0; i < n; i += len) {
        len = mc_utf8_len(s[i]);
        if (len == 3 && memcmp(s + i, "\xe2\x96\x81", 3) == 0) {
            text[c.n++] = ' ';
            continue;
        }
        memcpy(text + c.n, s + i, len);
        c.n += len;
    }
    rc = merge_text(&c, m, out);
    free(text);
    return rc;
}
