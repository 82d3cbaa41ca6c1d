/* vocab.h - the vocabulary as scripts see it: token texts, and sets of tokens by pattern.
 *
 * OWNS the sets' bits. A set is made once for each pattern and lives as long as the table:
 * a running sequence may be banned by a set whose policy is long gone, so handles are never
 * reused. THREAD: find and add on the builder's; bits on any, without a lock. */
#ifndef MC_LUA_VOCAB_H
#define MC_LUA_VOCAB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MC_N_SET = 1024 };

/* The model's tokens, as core's tokenizer or a test gives them. */
struct mc_vocab {
    int32_t n;
    /* The bytes of one token, borrowed; *special: a control token, not text. Any thread. */
    const char *(*piece)(const void *ctx, int32_t id, size_t *n, bool *special);
    const void *ctx;
};

/* For trials without a model: two control tokens, then a token for each byte. */
struct mc_vocab mc_vocab_bytes(void);

struct mc_sets {
    struct mc_vocab vocab;
    atomic_int n; /* sets below it are complete */
    struct {
        char *pattern;
        size_t n_pattern;
        uint32_t *bits; /* vocab.n / 32 + 1 words */
    } set[MC_N_SET];
};

void mc_sets_fini(struct mc_sets *t);
int32_t mc_sets_find(const struct mc_sets *t, const char *pattern, size_t n); /* or -1 */
/* Copies pattern and bits; -1 when the table or memory is full. */
int32_t mc_sets_add(struct mc_sets *t, const char *pattern, size_t n,
                    const uint32_t *bits);
const uint32_t *mc_sets_bits(const struct mc_sets *t, int32_t handle); /* or NULL */

/* Text of a token as scripts see it: none for control tokens and ids without one. */
const char *mc_vocab_text(const struct mc_vocab *v, int32_t id, size_t *n);

#endif
