/* pretok.h - cutting text into the pieces that BPE merges within.
 *
 * A pre-tokenizer is a short list of rules, each of which cuts every piece that the rule
 * before left. The rules are those of known model families, written by hand: linear in the
 * text, constant stack. A checkpoint's own pattern text only selects one.
 * OWNS nothing; plain data. THREAD: any. */
#ifndef MC_MODEL_PRETOK_H
#define MC_MODEL_PRETOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the match that starts at s (n > 0 bytes of valid UTF-8 to the end of the
 * piece), or 0. */
typedef size_t (*mc_pretok_rule)(const char *s, size_t n);

enum { MC_PRETOK_RULES = 8 };

struct mc_pretok {
    mc_pretok_rule rule[MC_PRETOK_RULES];
    int n;
};

/* Adds the rule of a Split pattern, which must be one of the known texts (CR and LF may
 * stand in it as themselves or as \r and \n). False when it is not, or the list is full. */
bool mc_pretok_add(struct mc_pretok *p, const char *pattern, size_t n);
/* The rules of GGUF's tokenizer.ggml.pre; false when the name is not known. */
bool mc_pretok_add_named(struct mc_pretok *p, const char *name, size_t n);
bool mc_pretok_add_gpt2(struct mc_pretok *p); /* ByteLevel's own pattern */
bool mc_pretok_add_digits(struct mc_pretok *p, bool individual);
bool mc_pretok_cased(uint32_t cp); /* pretok_cased.c: DeepSeek-LLM's letters */

/* How rule i is written in a tokenizer.json: a Split's pattern, or NULL for individual
 * digits; false where it can't be. */
bool mc_pretok_spell(const struct mc_pretok *p, int i, const char **pattern);

/* Calls piece for each piece in order, never an empty one; stops at its first negative
 * return and returns that. */
typedef int (*mc_piece_fn)(void *ctx, const char *s, size_t n);
int mc_pretok_split(const struct mc_pretok *p, const char *s, size_t n, mc_piece_fn piece,
                    void *ctx);

#endif
