/* dialect_openai.c - completions and chat completions as OpenAI's clients read them.
 *
 * Owns what struct mc_answer says. THREAD: one at a time.
 *
 * What clients insist on (each is a bug report somewhere): the same id and created in
 * every chunk; role once, in a choice's first chunk, which is that of its first text, for
 * tools take the first chunk's time for the first token's; finish_reason alone in the
 * last one, with an empty delta; usage in no chunk that has choices, unless asked for
 * continuously; no value of finish_reason but theirs; logprobs finite; "data: [DONE]"
 * exactly. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/utf8.h"
#include "core/serve/dialect.h"

/* What -inf is shown as: JSON has no infinities. */
static const float LOGPROB_FLOOR = -9999.0f;

/* ---- logprobs ---------------------------------------------------------------------- */

static void comma(struct mc_buf *b)
{
    if (b->n > 0)
        mc_buf_put(b, ",", 1);
}

static void put_logprob(struct mc_buf *b, float v)
{
    mc_json_float(b, v > LOGPROB_FLOOR ? v : LOGPROB_FLOOR);
}

/* A token's text; one that is no UTF-8 by itself as escapes ("bytes:\xe4\xbd" in
 * completions), so that different tokens stay different. */
static void put_token(struct mc_buf *b, const struct mc_answer *a, int32_t id)
{
    struct mc_buf esc = {0};
    bool special;
    size_t n;
    const char *s = mc_tok_piece(a->tok, id, &n, &special);

    if (mc_utf8_valid(s, n)) {
        mc_json_str(b, s, n);
        return;
    }
    mc_buf_puts(&esc, a->o.dialect == MC_DIALECT_COMPLETION ? "bytes:" : "");
    for (size_t i = 0; i < n; i++)
        mc_buf_fmt(&esc, "\\x%02x", (unsigned char)s[i]);
    mc_json_str(b, esc.p, esc.n);
    b->failed |= esc.failed;
    mc_buf_free(&esc);
}

static bool same_text(const struct mc_tok *tok, int32_t x, int32_t y)
{
    bool special;
    size_t n, m;
    const char *s = mc_tok_piece(tok, x, &n, &special),
               *t = mc_tok_piece(tok, y, &m, &special);

    return n == m && memcmp(s, t, n) == 0;
}

/* {"token":..,"logprob":..,"bytes":[..] and, left open, what follows. */
static void chat_token(struct mc_buf *b, const struct mc_answer *a, int32_t id,
                       float logprob)
{
    bool special;
    size_t n;
    const char *s = mc_tok_piece(a->tok, id, &n, &special);

    mc_buf_puts(b, "{\"token\":");
    put_token(b, a, id);
    mc_buf_puts(b, ",\"logprob\":");
    put_logprob(b, logprob);
    mc_buf_puts(b, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        mc_buf_fmt(b, i ? ",%u" : "%u", (unsigned char)s[i]);
    mc_buf_puts(b, "]");
}

static void gather_chat(const struct mc_answer *a, struct mc_choice *c,
                        const struct mc_token *t, int32_t n_top)
{
    comma(&c->token);
    chat_token(&c->token, a, t->id, t->logprob);
    mc_buf_puts(&c->token, ",\"top_logprobs\":[");
    for (int32_t k = 0; k < n_top; k++) {
        if (k > 0)
            mc_buf_puts(&c->token, ",");
        chat_token(&c->token, a, t->top_id[k], t->top_logprob[k]);
        mc_buf_puts(&c->token, "}");
    }
    mc_buf_puts(&c->token, "]}");
}

/* The chosen token and the likeliest as an object, whose keys must differ. */
static void put_top(struct mc_buf *b, const struct mc_answer *a, const struct mc_token *t,
                    int32_t n_top)
{
    mc_buf_puts(b, "{");
    put_token(b, a, t->id);
    mc_buf_puts(b, ":");
    put_logprob(b, t->logprob);
    for (int32_t k = 0; k < n_top; k++) {
        bool seen = same_text(a->tok, t->top_id[k], t->id);

        for (int32_t j = 0; j < k && !seen; j++)
            seen = same_text(a->tok, t->top_id[k], t->top_id[j]);
        if (seen)
            continue;
        mc_buf_puts(b, ",");
        put_token(b, a, t->top_id[k]);
        mc_buf_puts(b, ":");
        put_logprob(b, t->top_logprob[k]);
    }
    mc_buf_puts(b, "}");
}

static void gather_logprobs(const struct mc_answer *a, struct mc_choice *c,
                            const struct mc_token *t)
{
    int32_t n_top = t->n_top < a->o.n_logprobs ? t->n_top : a->o.n_logprobs;

    if (a->o.dialect == MC_DIALECT_CHAT) {
        gather_chat(a, c, t, n_top);
        return;
    }
    comma(&c->token);
    put_token(&c->token, a, t->id);
    comma(&c->logprob);
    put_logprob(&c->logprob, t->logprob);
    comma(&c->top);
    put_top(&c->top, a, t, n_top);
    comma(&c->offset);
    mc_buf_fmt(&c->offset, "%llu", (unsigned long long)c->n_chars);
}

/* Where the next token begins: bytes that start a character are counted. */
static void count_chars(struct mc_choice *c, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        c->n_chars += ((unsigned char)s[i] & 0xC0) != 0x80;
}

/* Nothing predicts a prompt's first token: null stands for its logprobs. */
static void put_first(const struct mc_answer *a, struct mc_choice *c, int32_t id)
{
    bool special;
    size_t n;
    const char *s = mc_tok_piece(a->tok, id, &n, &special);

    put_token(&c->token, a, id);
    mc_buf_puts(&c->logprob, "null");
    mc_buf_puts(&c->top, "null");
    mc_buf_puts(&c->offset, "0");
    count_chars(c, s, special ? 0 : n);
}

static void put_logprobs(struct mc_buf *b, const struct mc_answer *a,
                         const struct mc_choice *c)
{
    if (a->o.n_logprobs < 0 || c->token.n == 0) {
        mc_buf_puts(b, "null");
    } else if (a->o.dialect == MC_DIALECT_CHAT) {
        mc_buf_puts(b, "{\"content\":[");
        mc_buf_put(b, c->token.p, c->token.n);
        mc_buf_puts(b, "],\"refusal\":null}");
    } else {
        mc_buf_puts(b, "{\"tokens\":[");
        mc_buf_put(b, c->token.p, c->token.n);
        mc_buf_puts(b, "],\"token_logprobs\":[");
        mc_buf_put(b, c->logprob.p, c->logprob.n);
        mc_buf_puts(b, "],\"top_logprobs\":[");
        mc_buf_put(b, c->top.p, c->top.n);
        mc_buf_puts(b, "],\"text_offset\":[");
        mc_buf_put(b, c->offset.p, c->offset.n);
        mc_buf_puts(b, "]}");
    }
}

/* ---- usage, ids -------------------------------------------------------------------- */

static const struct mc_pump_prompt *prompt_of(const struct mc_answer *a, int i)
{
    return &a->o.prompts[i / (a->n / a->o.n_prompts)];
}

/* A prompt is counted once, however many choices it has. While it streams, what is known.
 */
static void put_usage(struct mc_buf *b, const struct mc_answer *a, bool final)
{
    int per = a->n / a->o.n_prompts;
    long long prompt = 0, gen = 0, cached = 0;

    for (int i = 0; i < a->n; i++) {
        const struct mc_choice *c = &a->choice[i];

        gen += c->n_gen;
        if (i % per != 0)
            continue;
        prompt += final ? c->usage.n_prompt : prompt_of(a, i)->n_ids;
        cached += c->usage.n_cached;
    }
    mc_buf_fmt(b,
               "{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld",
               prompt, gen, prompt + gen);
    if (final)
        mc_buf_fmt(b, ",\"prompt_tokens_details\":{\"cached_tokens\":%lld}", cached);
    mc_buf_puts(b, "}");
}

static void put_prompt_ids(struct mc_buf *b, const struct mc_answer *a, int i)
{
    const struct mc_pump_prompt *p = prompt_of(a, i);

    mc_buf_puts(b, ",\"prompt_token_ids\":[");
    for (int32_t k = 0; k < p->n_ids; k++)
        mc_buf_fmt(b, k ? ",%d" : "%d", p->ids[k]);
    mc_buf_puts(b, "]");
}

static void put_ids(struct mc_buf *b, const struct mc_choice *c)
{
    mc_buf_puts(b, ",\"token_ids\":[");
    mc_buf_put(b, c->ids.p, c->ids.n);
    mc_buf_puts(b, "]");
}

/* ---- choices ----------------------------------------------------------------------- */

static void put_reason(struct mc_buf *b, const char *reason)
{
    mc_buf_puts(b, ",\"finish_reason\":");
    mc_json_strz(b, reason);
}

/* From "index" to the end of the choice, without what is only in chunks of chat. */
static void completion_choice(struct mc_buf *b, const struct mc_answer *a, int i,
                              bool first, const char *reason)
{
    const struct mc_choice *c = &a->choice[i];

    mc_buf_fmt(b, "{\"index\":%d,\"text\":", i);
    mc_json_str(b, c->text.p ? c->text.p : "", c->text.n);
    mc_buf_puts(b, ",\"logprobs\":");
    put_logprobs(b, a, c);
    put_reason(b, reason);
    if (a->o.token_ids && first)
        put_prompt_ids(b, a, i);
    if (a->o.token_ids)
        put_ids(b, c);
    mc_buf_puts(b, "}");
}

static void chat_choice(struct mc_buf *b, const struct mc_answer *a, int i, bool first,
                        const char *reason)
{
    const struct mc_choice *c = &a->choice[i];
    const char *text = c->text.p ? c->text.p : "";

    mc_buf_fmt(b, "{\"index\":%d,\"%s\":{", i, a->o.stream ? "delta" : "message");
    if (first)
        mc_buf_puts(b, "\"role\":\"assistant\",");
    if (first || !reason) {
        mc_buf_puts(b, "\"content\":");
        mc_json_str(b, text, c->text.n);
    }
    mc_buf_puts(b, a->o.stream ? "},\"logprobs\":" : ",\"refusal\":null},\"logprobs\":");
    put_logprobs(b, a, c);
    put_reason(b, reason);
    if (a->o.token_ids)
        put_ids(b, c);
    mc_buf_puts(b, "}");
}

static void put_choice(struct mc_buf *b, const struct mc_answer *a, int i, bool first,
                       const char *reason)
{
    if (a->o.dialect == MC_DIALECT_CHAT)
        chat_choice(b, a, i, first, reason);
    else
        completion_choice(b, a, i, first, reason);
}

static void put_chunk(struct mc_buf *b, const struct mc_answer *a, int i, bool first,
                      const char *reason)
{
    mc_buf_puts(b, "data: ");
    mc_buf_put(b, a->head.p, a->head.n);
    mc_buf_puts(b, "\"choices\":[");
    put_choice(b, a, i, first, reason);
    mc_buf_puts(b, "]");
    if (a->o.dialect == MC_DIALECT_CHAT && a->o.token_ids && first && i == 0)
        put_prompt_ids(b, a, i);
    if (a->o.continuous_usage) {
        mc_buf_puts(b, ",\"usage\":");
        put_usage(b, a, false);
    } else if (a->o.include_usage) {
        mc_buf_puts(b, ",\"usage\":null");
    }
    mc_buf_puts(b, "}\n\n");
}

static void forget(struct mc_choice *c)
{
    c->text.n = c->ids.n = 0;
    c->token.n = c->logprob.n = c->top.n = c->offset.n = 0;
}

static void emit(struct mc_answer *a, int i, struct mc_buf *out)
{
    struct mc_choice *c = &a->choice[i];

    put_chunk(out, a, i, !c->begun, NULL);
    c->begun = true;
    forget(c);
}

void mc_answer_piece(struct mc_answer *a, int i, const struct mc_piece *p,
                     struct mc_buf *out)
{
    struct mc_choice *c = &a->choice[i];

    c->n_gen += !p->prompt;
    mc_buf_put(&c->text, p->text, p->n);
    if (a->o.token_ids && !p->prompt) {
        comma(&c->ids);
        mc_buf_fmt(&c->ids, "%d", p->token.id);
    }
    if (a->o.n_logprobs >= 0) {
        bool special;
        size_t n;
        const char *s = mc_tok_piece(a->tok, p->token.id, &n, &special);

        gather_logprobs(a, c, &p->token);
        count_chars(c, s, special ? 0 : n);
    }
    /* what belongs to the prompt goes out with the first token */
    if (a->o.stream && !p->prompt && (c->text.n > 0 || c->token.n > 0 || c->ids.n > 0))
        emit(a, i, out);
}

void mc_answer_end(struct mc_answer *a, int i, const struct mc_end *e, struct mc_buf *out)
{
    struct mc_choice *c = &a->choice[i];

    c->ended = true;
    c->n_gen = e->usage.n_gen;
    c->usage = e->usage;
    c->reason = e->finish == MC_FINISH_LENGTH ? "length" : "stop";
    if (!a->o.stream)
        return;
    if (c->text.n > 0 || (!c->begun && a->o.dialect == MC_DIALECT_CHAT))
        emit(a, i, out); /* echo without a token; a role for an empty message */
    put_chunk(out, a, i, !c->begun, c->reason);
    c->begun = true;
}

/* ---- the whole --------------------------------------------------------------------- */

static void whole(struct mc_answer *a, struct mc_buf *out)
{
    mc_buf_put(out, a->head.p, a->head.n);
    mc_buf_puts(out, "\"choices\":[");
    for (int i = 0; i < a->n; i++) {
        if (i > 0)
            mc_buf_puts(out, ",");
        put_choice(out, a, i, true, a->choice[i].reason);
    }
    mc_buf_puts(out, "]");
    if (a->o.dialect == MC_DIALECT_CHAT && a->o.token_ids)
        put_prompt_ids(out, a, 0);
    mc_buf_puts(out, ",\"usage\":");
    put_usage(out, a, true);
    mc_buf_puts(out, "}");
}

void mc_answer_tail(struct mc_answer *a, struct mc_buf *out)
{
    for (int i = 0; i < a->n; i++) {
        const struct mc_choice *c = &a->choice[i];

        out->failed |= c->text.failed | c->ids.failed | c->token.failed |
                       c->logprob.failed | c->top.failed | c->offset.failed;
    }
    if (!a->o.stream) {
        whole(a, out);
        return;
    }
    if (a->o.include_usage) {
        mc_buf_puts(out, "data: ");
        mc_buf_put(out, a->head.p, a->head.n);
        mc_buf_puts(out, "\"choices\":[],\"usage\":");
        put_usage(out, a, true);
        mc_buf_puts(out, "}\n\n");
    }
    mc_buf_puts(out, "data: [DONE]\n\n");
}

void mc_answer_error(const struct mc_err *e, struct mc_buf *out)
{
    mc_buf_puts(out, "data: ");
    mc_json_error(out, e);
    mc_buf_puts(out, "\n\ndata: [DONE]\n\n");
}

/* ---- life -------------------------------------------------------------------------- */

static void *copy(const void *p, size_t n, bool *ok)
{
    void *mem = malloc(n + 1);

    *ok &= mem != NULL;
    if (mem && n > 0)
        memcpy(mem, p, n);
    if (mem)
        ((char *)mem)[n] = 0;
    return mem;
}

static bool copy_prompts(struct mc_answer *a, const struct mc_pump_opts *o)
{
    struct mc_pump_prompt *p = calloc((size_t)o->n_prompts, sizeof *p);
    bool ok = p != NULL;

    a->o.prompts = p;
    a->o.n_prompts = ok ? o->n_prompts : 0;
    for (int32_t i = 0; i < a->o.n_prompts; i++) {
        const struct mc_pump_prompt *from = &o->prompts[i];
        size_t n_ids = o->token_ids || o->prompt_logprobs ? (size_t)from->n_ids : 0;

        p[i] = *from;
        p[i].n_echo = from->echo ? from->n_echo : 0;
        p[i].ids = copy(from->ids, n_ids * sizeof *from->ids, &ok);
        p[i].echo = copy(from->echo, p[i].n_echo, &ok);
    }
    return ok;
}

int mc_answer_init(struct mc_answer *a, const struct mc_tok *tok,
                   const struct mc_pump_opts *o)
{
    static const char *const object[2][2] = {
        {"text_completion", "text_completion"},
        {"chat.completion", "chat.completion.chunk"},
    };
    bool ok;

    *a = (struct mc_answer){.tok = tok, .o = *o, .created = (long long)time(NULL)};
    ok = copy_prompts(a, o);
    mc_buf_puts(&a->head, "{\"id\":");
    mc_json_strz(&a->head, o->id);
    mc_buf_fmt(&a->head, ",\"object\":\"%s\",\"created\":%lld,\"model\":",
               object[o->dialect == MC_DIALECT_CHAT][o->stream], a->created);
    mc_json_strz(&a->head, o->model);
    mc_buf_puts(&a->head, ",");
    a->o.id = a->o.model = NULL; /* in head now */
    return ok && !a->head.failed ? 0 : MC_ENOMEM;
}

int mc_answer_choices(struct mc_answer *a, int n)
{
    a->choice = calloc((size_t)n, sizeof *a->choice);
    if (!a->choice)
        return MC_ENOMEM;
    a->n = n;
    for (int i = 0; i < n; i++) {
        const struct mc_pump_prompt *p = prompt_of(a, i);

        mc_buf_put(&a->choice[i].text, p->echo, p->n_echo);
        if (a->o.prompt_logprobs && p->n_ids > 0)
            put_first(a, &a->choice[i], p->ids[0]);
        else
            count_chars(&a->choice[i], p->echo, p->n_echo);
    }
    return 0;
}

void mc_answer_fini(struct mc_answer *a)
{
    for (int i = 0; i < a->n; i++) {
        struct mc_choice *c = &a->choice[i];

        mc_buf_free(&c->text);
        mc_buf_free(&c->ids);
        mc_buf_free(&c->token);
        mc_buf_free(&c->logprob);
        mc_buf_free(&c->top);
        mc_buf_free(&c->offset);
    }
    for (int32_t i = 0; i < a->o.n_prompts; i++) {
        free((void *)(uintptr_t)a->o.prompts[i].ids);
        free((void *)(uintptr_t)a->o.prompts[i].echo);
    }
    free((void *)(uintptr_t)a->o.prompts);
    free(a->choice);
    mc_buf_free(&a->head);
    *a = (struct mc_answer){0};
}
