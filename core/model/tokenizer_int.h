/* tokenizer_int.h - the tokenizer's tables, for the files that fill and use them.
 *
 * Built in this order: mc_tok_new; tokens (mc_tok_put), those found in text whole also by
 * mc_added_put; mc_added_seal, mc_tok_seal; merges (mc_bpe_) or scores (mc_spm_seal).
 * Never changed after.
 * INVARIANTS: ids are in [0, n); every off + len lies in the text arena; a piece of plain
 * text never becomes a control token, whatever the file's merges say. */
#ifndef MC_MODEL_TOKENIZER_INT_H
#define MC_MODEL_TOKENIZER_INT_H

#include <jansson.h>

#include "core/model/pretok.h"
#include "core/model/tokenizer.h"

struct mc_gguf;

enum mc_token_kind {
    MC_TOKEN_NONE,    /* no token has this id */
    MC_TOKEN_INERT,   /* in the vocabulary, but no text becomes it */
    MC_TOKEN_BYTE,    /* SPM's <0xXX> */
    MC_TOKEN_TEXT,    /* made of text by merging; from here on found by bytes */
    MC_TOKEN_ADDED,   /* found in text as a whole */
    MC_TOKEN_CONTROL, /* the same, and not part of what a model says */
};

struct mc_token {
    uint32_t off, len; /* bytes in mc_tok.text */
    enum mc_token_kind kind;
};

struct mc_added {
    int32_t id;
    uint32_t off, len; /* what is searched for, in mc_tok.text */
    bool single_word, lstrip, rstrip;
};

struct mc_added_flags {
    bool normalized, single_word, lstrip, rstrip;
};

/* Sorted by bytes; first[c]..first[c + 1] start with byte c. */
struct mc_added_set {
    struct mc_added *v;
    uint32_t n, cap;
    uint32_t first[257];
};

/* What two neighbours become. Smaller rank first; MC_NO_RANK: they stay apart. */
struct mc_pair {
    uint32_t rank;
    int32_t id;
};
#define MC_NO_RANK UINT32_MAX

struct mc_merge_row {
    uint64_t key; /* left id << 32 | right id; UINT64_MAX: empty */
    struct mc_pair pair;
};

struct mc_tok {
    struct mc_token *token; /* [limit] */
    int32_t n, limit;
    char *text; /* arena of all tokens' bytes */
    size_t n_text, cap_text;

    int32_t *slot; /* tokens hashed by bytes, -1: empty */
    uint32_t n_slot;
    uint32_t max_len; /* of a hashed token, in bytes */
    int32_t byte_id[256]; /* token of a lone byte, or -1 */
    int32_t unk; /* stands for bytes without token, -1: they are dropped */
    bool fuse_unk; /* a run of them is one unk */

    struct mc_merge_row *merge; /* BPE: hashed by key */
    uint32_t n_merge; /* rows, a power of two */
    bool ignore_merges; /* a piece that is a token is that token */
    uint32_t *score_rank; /* SPM: [limit], 0 for the best score; NULL: BPE */
    bool space_prefix; /* SPM: text after nothing or a control token gets a space */

    bool nfc;
    bool chunked; /* a long text is cut before it is split (tokenizer_chunk.c); never with nfc */
    struct mc_pretok pretok;
    struct mc_added_set raw; /* found in the text as it came */
    struct mc_added_set normal; /* found after normalisation, between those of raw */
    struct mc_ids head, tail; /* what the post-processor puts around a text */
    int32_t bos, eos;
    char *chat;
    size_t n_chat;
};

/* A tokenizer of tokenizer.json's text, for tests and mc_tok_open. config is the parsed
 * tokenizer_config.json or NULL; borrowed. */
int mc_tok_from_json(const char *text, size_t n, const json_t *config,
                     struct mc_tok **out, struct mc_err *err);
/* A tokenizer of tiktoken.model's text, Kimi's. config as above. */
int mc_tok_from_tiktoken(const char *text, size_t n, const json_t *config,
                         struct mc_tok **out, struct mc_err *err);
int mc_tok_from_gguf(const struct mc_gguf *g, struct mc_tok **out, struct mc_err *err);

/* tokenizer_pipeline.c: root's normalizer, pre_tokenizer and decoder, before there are
 * tokens; its post_processor, when there are. */
int mc_pipeline_text(struct mc_tok *t, const json_t *root, struct mc_err *err);
int mc_pipeline_post(struct mc_tok *t, const json_t *root, struct mc_err *err);
/* "a list", "missing". */
const char *mc_json_kind(const json_t *v);
/* Leaves *out when o[key] is absent or null. */
int mc_json_bool(const json_t *o, const char *key, bool *out, struct mc_err *err);

/* ---- tokenizer_config.c ------------------------------------------------------------ */

/* The fields of an added token, in tokenizer.json's list or added_tokens_decoder. */
struct mc_added_json {
    const char *content; /* borrowed */
    size_t n;
    enum mc_token_kind kind;
    struct mc_added_flags flags;
};
int mc_added_read(const json_t *a, struct mc_added_json *out, struct mc_err *err);
/* A token that another field names, as a string or {content}: absent or null leaves *id. */
int mc_tok_named(const struct mc_tok *t, const char *key, const json_t *name, int32_t *id,
                 struct mc_err *err);
/* bos_token, eos_token and chat_template of tokenizer_config.json (NULL: none). */
int mc_tok_configure(struct mc_tok *t, const json_t *config, struct mc_err *err);

/* ---- tokenizer_chunk.c ------------------------------------------------------------- */

/* Where a long text is cut. Set s and n, the rest 0; mc_chunk_next moves cut to the next
 * place, SIZE_MAX after the last. */
struct mc_chunks {
    const char *s;
    size_t n, at, cut;
    uint32_t chars, run;
    bool space;
};
void mc_chunk_next(struct mc_chunks *c);

/* ---- tokenizer_vocab.c ------------------------------------------------------------- */

/* Ids may go a little beyond the number of entries a file has, no further: a table's size
 * is bounded by the file's. */
int mc_tok_new(size_t n_entries, struct mc_tok **out, struct mc_err *err);
int mc_tok_put(struct mc_tok *t, int64_t id, const char *s, size_t n,
               enum mc_token_kind kind, struct mc_err *err);
/* Gives a token another name and kind. */
int mc_tok_rename(struct mc_tok *t, int32_t id, const char *s, size_t n,
                  enum mc_token_kind kind, struct mc_err *err);
int mc_text_keep(struct mc_tok *t, const char *s, size_t n, uint32_t *off,
                 struct mc_err *err); /* copies s into the arena */
int mc_tok_seal(struct mc_tok *t, struct mc_err *err);
int32_t mc_tok_text_id(const struct mc_tok *t, const char *s, size_t n); /* TEXT only */
int32_t mc_tok_any_id(const struct mc_tok *t, const char *s, size_t n);

/* s as an operator may see it: escaped, cut. Returns buf. */
enum { MC_QUOTE = 96 };
const char *mc_quote(char buf[MC_QUOTE], const char *s, size_t n);

/* ---- tokenizer_added.c ------------------------------------------------------------- */

int mc_added_put(struct mc_tok *t, int32_t id, struct mc_added_flags flags,
                 struct mc_err *err); /* the token exists; its bytes are searched for */
int mc_added_seal(struct mc_tok *t, struct mc_err *err);
/* The first added token of set in [from, n), the longest at its place; NULL when there is
 * none. *at and *end are what it takes of the text, white space for lstrip and rstrip
 * included; no space before from is taken. */
const struct mc_added *mc_added_next(const struct mc_tok *t,
                                     const struct mc_added_set *set, const char *s,
                                     size_t from, size_t n, size_t *at, size_t *end);

/* ---- merging (tokenizer_merge.c, _bpe.c, _spm.c) ----------------------------------- */

struct mc_sym {
    uint32_t off; /* in the piece's text */
    int32_t id;
    uint32_t prev, next; /* MC_SYM_END: none */
    struct mc_pair pair; /* with next */
};
#define MC_SYM_END UINT32_MAX

/* Scratch of one encode; zero-initialise, mc_merger_free. */
struct mc_merger {
    struct mc_sym *sym; /* [n], the first is always alive */
    uint32_t n;
    uint64_t *heap; /* rank << 32 | left symbol */
    uint32_t n_heap;
    size_t cap;
};
typedef struct mc_pair (*mc_pair_fn)(const void *ctx, const struct mc_merger *m,
                                     uint32_t left);

int mc_merger_reserve(struct mc_merger *m, size_t n); /* room for n symbols */
/* Links sym[0..n) and merges best rank first, leftmost first among equals. */
void mc_merger_run(struct mc_merger *m, mc_pair_fn pair, const void *ctx);
void mc_merger_free(struct mc_merger *m);

/* Byte-level spelling ("\u0120the") to bytes (" the"); out holds n. False when s is none. */
bool mc_bpe_unspell(const char *s, size_t n, char *out, size_t *n_out);
int mc_bpe_reserve(struct mc_tok *t, size_t n_merges, struct mc_err *err);
/* Adds a merge of two tokens in byte-level spelling; a later one of the same pair wins. */
int mc_bpe_merge(struct mc_tok *t, uint32_t rank, const char *left, size_t n_left,
                 const char *right, size_t n_right, struct mc_err *err);
/* The same by ids: left and right become id, which is no control token. */
void mc_bpe_pair(struct mc_tok *t, uint32_t rank, int32_t left, int32_t right,
                 int32_t id);
int mc_bpe_piece(const struct mc_tok *t, struct mc_merger *m, const char *s, size_t n,
                 struct mc_ids *out);

int mc_spm_seal(struct mc_tok *t, const float *score, struct mc_err *err); /* [t->n] */
/* Text between added tokens; first: nothing or an added token came before. */
int mc_spm_text(const struct mc_tok *t, struct mc_merger *m, const char *s, size_t n,
                bool first, struct mc_ids *out);

#endif
