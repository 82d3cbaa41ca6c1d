/* ckpt_int.h - what the files of core/weights share: the open checkpoint and its parts.
 *
 * OWNS nothing by itself; see ckpt.c. THREAD: as weights.h. */
#ifndef MC_WEIGHTS_CKPT_INT_H
#define MC_WEIGHTS_CKPT_INT_H

#include "core/weights/guard.h"
#include "core/weights/weights.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "checkpoints are read in place, which needs a little-endian machine"
#endif

/* A file mapped read-only. */
struct mc_map {
    char *name; /* basename, for messages */
    const uint8_t *p;
    size_t n;
    int fd; /* stays open for mc_ckpt_read; -1: of many files the later ones */
    struct mc_guard *guard;
};

struct mc_tensor_ref {
    struct mc_stored s;
    char *hf;    /* Hugging Face name; the same pointer as s.name when that is one */
    int32_t map; /* index of the file that holds it */
};

struct mc_name_ref {
    const char *name;
    int32_t i;
};

struct mc_ckpt {
    enum mc_ckpt_kind kind;
    char *path;
    int dir;              /* HF: the open directory; else -1 */
    struct mc_map *map;   /* [n_map] */
    int32_t n_map;
    struct mc_tensor_ref *tensor; /* [n], file order */
    int32_t n, cap;
    struct mc_name_ref *by_name; /* [n], sorted by Hugging Face name, no two equal */
    json_t *config, *generation, *tokenizer;
    struct mc_gguf *gguf;
};

/* ckpt.c: s is copied, its name (n bytes) and the HF name (NULL: the same) too. */
int mc_ckpt_add(struct mc_ckpt *c, const struct mc_stored *s, const char *name, size_t n,
                const char *hf, int32_t map, struct mc_err *err);
/* What names of tensors and keys may be: 1 to 255 bytes of printable ASCII. */
bool mc_ckpt_name_ok(const char *name, size_t n);
/* Maps an open file as the next of c->map; takes the descriptor. */
int mc_ckpt_map(struct mc_ckpt *c, int fd, int64_t size, const char *name,
                struct mc_err *err);
/* After the last add: builds by_name; refuses two tensors of one name. */
int mc_ckpt_sort(struct mc_ckpt *c, struct mc_err *err);
/* By Hugging Face name, or NULL. */
const struct mc_tensor_ref *mc_ckpt_ref(const struct mc_ckpt *c, const char *name);

/* hf.c: reads the directory c->dir. */
#define MC_HF_SINGLE "model.safetensors"
#define MC_HF_INDEX "model.safetensors.index.json"
int mc_hf_open(struct mc_ckpt *c, struct mc_err *err);
/* The file of that name alone, as its config.json. */
int mc_hf_open_config(struct mc_ckpt *c, const char *name, struct mc_err *err);

/* safetensors.c, gguf.c: check c->map[map] and add its tensors. */
int mc_safetensors_read(struct mc_ckpt *c, int32_t map, struct mc_err *err);
int mc_gguf_read(struct mc_ckpt *c, int32_t map, struct mc_err *err);
void mc_gguf_free(struct mc_gguf *g);
/* gguf_name.c: the HF name of a GGUF tensor into out, of a model that spells its blocks as
 * DeepSeek's or else as Qwen's; false when it has none. */
bool mc_gguf_hf_name(const char *name, bool deepseek, char *out, size_t cap);

/* dir.c: opens a regular file of a directory by plain name, never waiting and never
 * leaving the directory. Returns the descriptor or an error. */
int mc_dir_open(int dir, const char *name, int64_t *size, struct mc_err *err);
bool mc_dir_has(int dir, const char *name); /* anything of the name, not followed */
bool mc_name_plain(const char *name);
int mc_map_fd(int fd, int64_t size, const char *name, struct mc_map *out,
              struct mc_err *err);
void mc_map_close(struct mc_map *m);

/* json.c: parses n bytes, duplicate keys refused; *out is a new reference. flags: more of
 * jansson's. An error names the last key at nesting level `depth` (1: the outermost). */
int mc_json_parse(const char *text, size_t n, size_t flags, int depth, json_t **out,
                  struct mc_err *err);

/* formats.c: enum mc_disk_fmt or -1; and back ("" where dtype does not tell it). */
int mc_format_of_dtype(const char *dtype);
int mc_format_of_gguf(uint32_t type);
const char *mc_format_dtype(int fmt);

#endif
