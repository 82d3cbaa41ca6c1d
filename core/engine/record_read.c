/* record_read.c - reading a recording back: outside bytes, each length and index checked.
 *
 * Owns what struct mc_recording holds. THREAD: any one.
 * Always true: a view kept has a block whose offsets, counts, lanes and tenants lie in it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "core/engine/policy.h"
#include "core/engine/record.h"

enum { PLAIN_MAX = 1 << 30, REQS_MAX = 1 << 22, FRAME_MAX = 2 << 20, N_VIEW = 256 };

/* ---- growing lists ----------------------------------------------------------------- */

static int grow(void *list, int32_t n, size_t size)
{
    void *p;

    if (n & (n - 1)) /* grows at powers of two */
        return 0;
    p = realloc(*(void **)list, (size_t)(n ? n * 2 : 1) * size);
    if (!p)
        return MC_ENOMEM;
    *(void **)list = p;
    return 0;
}

/* The last request of this sequence number; generations only rise. */
static struct mc_rec_req *find(struct mc_recording *r, const int32_t *by_seq,
                               uint32_t seq)
{
    return seq < REQS_MAX && by_seq[seq] ? &r->req[by_seq[seq] - 1] : NULL;
}

/* ---- events ------------------------------------------------------------------------ */

static bool fits(uint64_t at, uint64_t n, uint64_t size, uint64_t bytes)
{
    return at % 8 == 0 && at <= bytes && n <= (bytes - at) / size;
}

static bool view_is_sound(const struct mc_rec_view *b, uint32_t n)
{
    const struct mc_step_view *v = (const struct mc_step_view *)(b + 1);
    uint32_t bytes = n - (uint32_t)sizeof *b;

    if (n < sizeof *b + sizeof *v || v->abi != MC_ABI || v->bytes > bytes ||
        v->n_row < 0 || v->n_lane < 1 || v->n_tenant < 1 || v->n_order != MC_N_ORDER ||
        v->p_tokens < 1 || v->n_row > 65536 || v->n_lane > 1024 || v->n_tenant > 4096 ||
        !fits(v->off_row, (uint64_t)v->n_row, sizeof(struct mc_row), v->bytes) ||
        !fits(v->off_lane, (uint64_t)v->n_lane, sizeof(struct mc_party), v->bytes) ||
        !fits(v->off_tenant, (uint64_t)v->n_tenant, sizeof(struct mc_party), v->bytes) ||
        !fits(v->off_order, (uint64_t)v->n_row * MC_N_ORDER, sizeof(int32_t), v->bytes))
        return false;
    for (int32_t i = 0; i < v->n_row; i++)
        if (mc_view_row(v, i)->lane >= (uint32_t)v->n_lane ||
            mc_view_row(v, i)->tenant >= (uint32_t)v->n_tenant)
            return false;
    return true;
}

static int take_view(struct mc_recording *r, const struct mc_rec_view *b, uint32_t n)
{
    struct mc_step_view *v;

    if (r->n_view == N_VIEW || r->head.abi != MC_ABI) /* views of another version */
        return 0;
    if (!view_is_sound(b, n))
        return MC_EFORMAT;
    r->view[r->n_view] = malloc(n);
    if (!r->view[r->n_view])
        return MC_ENOMEM;
    memcpy(r->view[r->n_view], b, n);
    v = (struct mc_step_view *)(r->view[r->n_view++] + 1);
    mc_view_sort(v); /* whatever the file says the orders are */
    return 0;
}

static int take_arrive(struct mc_recording *r, int32_t *by_seq,
                       const struct mc_rec_arrive *a)
{
    if (r->n_req == REQS_MAX || a->seq >= REQS_MAX || !isfinite(a->t) ||
        a->n_prompt < 1 || a->n_prompt > 1 << 28 || a->limit < 0 ||
        a->lane >= MC_REC_LANES || a->tenant >= 4096)
        return MC_EFORMAT;
    if (grow(&r->req, r->n_req, sizeof *r->req) < 0)
        return MC_ENOMEM;
    r->req[r->n_req++] = (struct mc_rec_req){.in = *a};
    by_seq[a->seq] = r->n_req;
    return 0;
}

static int take_token(struct mc_recording *r, struct mc_rec_req *q, double t)
{
    if (q->t_first == 0) {
        q->t_first = t;
    } else {
        if (grow(&r->gap, r->n_gap, sizeof *r->gap) < 0)
            return MC_ENOMEM;
        r->gap[r->n_gap++] = (float)(t - q->t_last);
    }
    q->t_last = t;
    q->n_gen++;
    return 0;
}

static int take_step(struct mc_recording *r, const int32_t *by_seq,
                     const struct mc_rec_step *s, uint32_t n)
{
    const uint32_t *seq = (const uint32_t *)(s + 1);
    const struct mc_cost_step *c = &s->cost;
    struct mc_rec_req *q;
    int rc = 0;

    if (s->n_tok > (n - sizeof *s) / sizeof *seq || !isfinite(s->t) || !isfinite(c->us) ||
        c->us < 0 || c->n_decode < 0 || c->n_prompt_tok < 0 ||
        !isfinite(c->ktok_decode) || !isfinite(c->ktok_prompt) ||
        r->n_step == INT32_MAX / 2)
        return MC_EFORMAT;
    if (grow(&r->step, r->n_step, sizeof *r->step) < 0)
        return MC_ENOMEM;
    r->step[r->n_step++] = *s;
    for (uint32_t i = 0; i < s->n_tok && rc == 0; i++)
        if ((q = find(r, by_seq, seq[i])))
            rc = take_token(r, q, s->t);
    return rc;
}

static int take_head(struct mc_recording *r, const struct mc_rec_head *h)
{
    r->head = *h;
    r->head.model[sizeof h->model - 1] = 0;
    for (int i = 0; i < MC_REC_LANES; i++)
        if (!(h->weight[i] >= 1e-3f && h->weight[i] <= 1e6f))
            return MC_EFORMAT;
    return h->abi < 1 || h->depth < 1 || h->depth > 8 || h->p_tokens < 1 ||
                   h->p_total < 1 || h->tok_cap < 1 || h->row_cap < 1 ||
                   h->p_total > 1 << 28 || h->tok_cap > 1 << 24 || h->row_cap > 1 << 20
               ? MC_EFORMAT : 0;
}

static int take(struct mc_recording *r, int32_t *by_seq, const struct mc_rec *e,
                const void *body)
{
    static const size_t least[] = {
        [MC_REC_HEAD] = sizeof(struct mc_rec_head),
        [MC_REC_ARRIVE] = sizeof(struct mc_rec_arrive),
        [MC_REC_START] = sizeof(struct mc_rec_start),
        [MC_REC_STEP] = sizeof(struct mc_rec_step),
        [MC_REC_END] = sizeof(struct mc_rec_end),
        [MC_REC_VIEW] = sizeof(struct mc_rec_view),
        [MC_REC_FULL] = 0,
    };
    const struct mc_rec_start *start = body;
    const struct mc_rec_end *end = body;
    struct mc_rec_req *q;

    if (e->kind < MC_REC_HEAD || e->kind > MC_REC_FULL || e->bytes < least[e->kind] ||
        (e->kind == MC_REC_HEAD) != (r->head.abi == 0))
        return MC_EFORMAT;
    r->lost += e->lost;
    switch (e->kind) {
    case MC_REC_HEAD:
        return take_head(r, body);
    case MC_REC_ARRIVE:
        return take_arrive(r, by_seq, body);
    case MC_REC_START:
        if ((q = find(r, by_seq, start->seq)) && start->n_hit >= 0 &&
            start->n_hit < q->in.n_prompt)
            q->n_hit = start->n_hit;
        return 0;
    case MC_REC_STEP:
        return take_step(r, by_seq, body, e->bytes);
    case MC_REC_END:
        if ((q = find(r, by_seq, end->seq)) && isfinite(end->t)) {
            q->t_end = end->t;
            q->finish = end->finish;
        }
        return 0;
    case MC_REC_VIEW:
        return take_view(r, body, e->bytes);
    default:
        r->cut = true;
        return 0;
    }
}

/* The events of one frame; 1: the rest of the file is not to be read. */
static int take_frame(struct mc_recording *r, int32_t *by_seq, const char *p, size_t n)
{
    struct mc_rec e;
    int rc = 0;

    for (size_t at = 0; at < n && rc == 0; at += sizeof e + e.bytes) {
        if (n - at < sizeof e)
            return 1;
        memcpy(&e, p + at, sizeof e);
        if (e.bytes % 8 || e.bytes > n - at - sizeof e)
            return 1;
        rc = take(r, by_seq, &e, p + at + sizeof e);
    }
    return rc;
}

int mc_recording_parse(const void *data, size_t n, struct mc_recording *out,
                       struct mc_err *err)
{
    const char *p = data, *end = p + n;
    int32_t *by_seq = calloc(REQS_MAX, sizeof *by_seq); /* index + 1 of the last one */
    char *plain = malloc(FRAME_MAX);                    /* aligned for all of them */
    size_t total = 0, got;
    int rc = 0;

    memset(out, 0, sizeof *out);
    if (!by_seq || !plain)
        rc = mc_fail(err, MC_ENOMEM, "no memory for a recording");
    else if (n < 8 || memcmp(p, "MASCREC2", 8) != 0)
        rc = mc_fail(err, MC_EFORMAT, "this is no recording of this version of mascon");
    for (p += 8; rc == 0 && p < end; p += got) {
        size_t size;

        got = ZSTD_findFrameCompressedSize(p, (size_t)(end - p));
        size = ZSTD_isError(got) ? got : ZSTD_decompress(plain, FRAME_MAX, p, got);
        total += ZSTD_isError(size) ? 0 : size;
        if (ZSTD_isError(size) || total > PLAIN_MAX) {
            out->cut = true;
            break;
        }
        rc = take_frame(out, by_seq, plain, size);
        if (rc < 0)
            mc_fail(err, rc, "the recording is damaged: %s", mc_code_text(rc));
    }
    free(by_seq), free(plain);
    out->cut |= rc > 0;
    if (rc >= 0)
        rc = out->head.abi ? 0 : mc_fail(err, MC_EFORMAT, "the recording has no head");
    if (rc < 0)
        mc_recording_free(out);
    return rc;
}

int mc_recording_load(const char *path, struct mc_recording *out, struct mc_err *err)
{
    FILE *f = fopen(path, "rb");
    char *data = NULL;
    long n = -1;
    int rc;

    memset(out, 0, sizeof *out);
    if (f && fseek(f, 0, SEEK_END) == 0)
        n = ftell(f);
    if (n < 0 || fseek(f, 0, SEEK_SET) != 0) {
        rc = mc_fail_param(err, MC_EIO, "file", "%s can't be read", path);
    } else if (!(data = malloc((size_t)n + 1))) {
        rc = mc_fail(err, MC_ENOMEM, "no memory for %s", path);
    } else {
        rc = mc_recording_parse(data, fread(data, 1, (size_t)n, f), out, err);
        if (rc < 0)
            mc_err_while(err, "reading %s", path);
    }
    free(data);
    if (f)
        fclose(f);
    return rc;
}

void mc_recording_free(struct mc_recording *r)
{
    for (int32_t i = 0; i < r->n_view; i++)
        free(r->view[i]);
    free(r->req), free(r->step), free(r->gap);
    memset(r, 0, sizeof *r);
}
