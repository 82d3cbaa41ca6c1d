/* tokenizer.h - text to token ids and back.
 *
 * Byte-level BPE from tokenizer.json, tiktoken.model (Kimi's) or GGUF metadata, llama's
 * SentencePiece-style BPE from GGUF. Pre-tokenizer patterns are known ones only (a
 * checkpoint's own regex is never compiled); anything else is refused by name. OWNS its
 * tables; immutable after open.
 * THREAD: any, at the same time: encode keeps its scratch on the heap per call.
 * Linear in the text: a 1 MB run of one character takes under a second. */
#ifndef MC_MODEL_TOKENIZER_H
#define MC_MODEL_TOKENIZER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"

struct mc_ckpt;
struct mc_tok;

struct mc_ids { /* a growable list of ids; zero-initialise, mc_ids_free at the end */
    int32_t *v;
    size_t n, cap;
};
int mc_ids_push(struct mc_ids *ids, int32_t id); /* 0 or MC_ENOMEM */
void mc_ids_free(struct mc_ids *ids);

int mc_tok_open(const struct mc_ckpt *c, struct mc_tok **out, struct mc_err *err);
void mc_tok_close(struct mc_tok *t);

enum {
    MC_TOK_SPECIAL = 1, /* added tokens in the text become their ids; else plain text */
    MC_TOK_BOS = 2,     /* add what the post-processor adds (BOS), when it says so */
};
/* Appends the ids of n bytes of text. Invalid UTF-8 is refused (MC_EFORMAT). */
int mc_tok_encode(const struct mc_tok *t, const char *text, size_t n, unsigned flags,
                  struct mc_ids *out, struct mc_err *err);

/* The same for text of mixed origin, as chat templates make it: an added token is found only
 * where it lies wholly in parts that may have them; apart from that it is one text, so that
 * words are cut as if it had one author. parts are consecutive stretches: their ends rise,
 * the last is n. */
struct mc_tok_part {
    size_t end;
    bool special;
};
int mc_tok_encode_parts(const struct mc_tok *t, const char *text, size_t n,
                        const struct mc_tok_part *parts, int n_parts, struct mc_ids *out,
                        struct mc_err *err);

/* The bytes of one token, borrowed: byte-level bytes for base tokens, the name for added
 * tokens. *special says that it is a control token (left out of text by default).
 * Empty for ids without a token (padding rows). Joined, they are the whole text (in form C
 * where the model normalises; with the space that llama's SPM puts in front). */
const char *mc_tok_piece(const struct mc_tok *t, int32_t id, size_t *n, bool *special);

int32_t mc_tok_n(const struct mc_tok *t);   /* real tokens: largest id + 1 */
int32_t mc_tok_find(const struct mc_tok *t, const char *piece, size_t n); /* added token
                                    or exact vocabulary entry by its bytes; -1 */
int32_t mc_tok_bos(const struct mc_tok *t); /* -1 when there is none */
int32_t mc_tok_eos(const struct mc_tok *t);
bool mc_tok_adds_bos(const struct mc_tok *t);
/* The chat template's text (chat_template.jinja, tokenizer_config or GGUF), or NULL. */
const char *mc_tok_chat_template(const struct mc_tok *t, size_t *n);

/* Bytes as byte-level BPE spells them, into out, which holds 2 n; returns its length. */
size_t mc_bpe_spell(const char *s, size_t n, char *out);
/* As tokenizer.json and tokenizer_config.json say it; new references. The former is NULL
 * for what only other files can say (SentencePiece's, Kimi's, llama.cpp's default cuts). */
json_t *mc_tok_to_json(const struct mc_tok *t, struct mc_err *err);
json_t *mc_tok_config_json(const struct mc_tok *t, int32_t max_context);

#endif
