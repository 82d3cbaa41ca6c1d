/* weights.h - checkpoints on disk: Hugging Face directories and GGUF files.
 *
 * A checkpoint is opened read-only and mapped; every offset, count and shape is checked
 * against the real file before use, since files are hostile. Names are handed out in
 * Hugging Face spelling whatever the file's kind ("model.layers.0.self_attn.q_proj"), so
 * that a family's loader is written once. OWNS the maps; every pointer handed out is
 * borrowed until mc_ckpt_close. THREAD: open and close one; reading any.
 *
 * A file that shrinks while it is mapped reads as zeros from there on: who has read what it
 * needs asks mc_ckpt_intact. Replace checkpoints by renaming, never in place. */
#ifndef MC_WEIGHTS_H
#define MC_WEIGHTS_H

#include <jansson.h>

#include "core/base/err.h"
#include "kernels/kernels.h"

struct mc_ckpt;
struct mc_gguf;

enum mc_ckpt_kind { MC_CKPT_HF, MC_CKPT_GGUF };
enum { MC_CKPT_DIMS = 8 }; /* vision towers have five */

/* One tensor as stored. */
struct mc_stored {
    const char *name;  /* as in the file */
    const char *dtype; /* as in the file: "BF16", "Q4_1" */
    int32_t n_dim;     /* 0: a scalar */
    int64_t dim[MC_CKPT_DIMS]; /* row-major, slowest first (GGUF's order reversed) */
    uint64_t bytes;
    const void *data; /* old safetensors files do not align it */
};

/* path: a directory with config.json and model.safetensors or its index and shards, a .gguf
 * file, or a directory with exactly one of those; one that holds several is refused with
 * the list. Files of a directory are opened by plain name inside it; of links only those of
 * a hub cache (snapshots/REV/NAME -> ../../blobs/HASH) and to a neighbour are followed. */
int mc_ckpt_open(const char *path, struct mc_ckpt **out, struct mc_err *err);
/* One safetensors file and nothing beside it: no config, no model. */
int mc_ckpt_open_tensors(const char *path, struct mc_ckpt **out, struct mc_err *err);
/* One config.json, under whatever name, and no tensors: for plans. */
int mc_ckpt_open_config(const char *path, struct mc_ckpt **out, struct mc_err *err);
void mc_ckpt_close(struct mc_ckpt *c);
/* 0, or MC_EIO when a file could not be read where it was: what was read is not the
 * checkpoint. To be asked after reading, whatever the reading said. */
int mc_ckpt_intact(const struct mc_ckpt *c, struct mc_err *err);
enum mc_ckpt_kind mc_ckpt_kind(const struct mc_ckpt *c);
const char *mc_ckpt_path(const struct mc_ckpt *c);

int32_t mc_ckpt_n(const struct mc_ckpt *c);
const struct mc_stored *mc_ckpt_at(const struct mc_ckpt *c, int32_t i);
const char *mc_ckpt_hf_name(const struct mc_ckpt *c, int32_t i);
/* By Hugging Face name, for GGUF too; a GGUF tensor that has none goes by its own name
 * ("rope_freqs.weight"). NULL when absent. */
const struct mc_stored *mc_ckpt_find(const struct mc_ckpt *c, const char *name);

/* A matrix by module name without suffix: resolves .weight, .weight_scale_inv,
 * .weight_scale, .weight_packed, .weight_global_scale, ... to one disk slice and checks
 * that the parts' shapes agree with each other and with quantization_config, that no part
 * is left over, and that each is aligned to its elements. MC_ENOENT when no tensor of the
 * name is there. */
int mc_ckpt_matrix(const struct mc_ckpt *c, const char *module, struct mc_disk *out,
                   struct mc_err *err);
/* The same, and also of an order that is no disk format (AutoGPTQ, AutoAWQ; a GGUF's kv_b in
 * two parts): *own gets a malloced copy in one, to which *out points, or NULL. own NULL: *out
 * tells the form, and of such an order its pointers mean nothing. */
int mc_ckpt_matrix_own(const struct mc_ckpt *c, const char *module, struct mc_disk *out,
                       void **own, struct mc_err *err);
/* A vector of n floats (norm weights, biases) by its full name, converted to f32 into out. */
int mc_ckpt_vector(const struct mc_ckpt *c, const char *name, int32_t n, float *out,
                   struct mc_err *err);

/* The caller has copied or packed the n bytes at p, which lie in a tensor's data: whole
 * pages among them leave memory, and come back from the file if they are read again. */
void mc_ckpt_drop(const struct mc_ckpt *c, const void *p, size_t n);

/* Whether the n bytes at p lie in one of the files, and not in a copy. */
bool mc_ckpt_is_file(const struct mc_ckpt *c, const void *p, size_t n);
/* The n bytes at p, which lie in a tensor's data, copied to out; from the file itself, not
 * through the map. */
int mc_ckpt_read(const struct mc_ckpt *c, const void *p, size_t n, void *out,
                 struct mc_err *err);
/* They were read for the last time: of a checkpoint over half of this machine's memory they
 * leave the page cache too. */
void mc_ckpt_forget(const struct mc_ckpt *c, const void *p, size_t n);

/* HF: the parsed config.json / generation_config.json / tokenizer_config.json; NULL when the
 * file is absent. Borrowed. Duplicate keys were refused. A file that holds an integer beyond
 * 64 bits (tokenizer_config's model_max_length often does) has all its numbers as reals. */
json_t *mc_ckpt_config(const struct mc_ckpt *c);
json_t *mc_ckpt_generation_config(const struct mc_ckpt *c);
json_t *mc_ckpt_tokenizer_config(const struct mc_ckpt *c);
/* HF: opens a file of the directory by plain basename for reading whole; *text is malloced,
 * NUL-terminated. MC_ENOENT when absent. */
int mc_ckpt_file(const struct mc_ckpt *c, const char *name, size_t max_bytes, char **text,
                 size_t *n, struct mc_err *err);
/* GGUF: its metadata, or NULL for HF. */
const struct mc_gguf *mc_ckpt_gguf(const struct mc_ckpt *c);

/* GGUF metadata by key. These return false when absent, of another type or out of range. */
bool mc_gguf_has(const struct mc_gguf *g, const char *key);
bool mc_gguf_u64(const struct mc_gguf *g, const char *key, uint64_t *out); /* any integer */
bool mc_gguf_f64(const struct mc_gguf *g, const char *key, double *out);   /* any number */
bool mc_gguf_bool(const struct mc_gguf *g, const char *key, bool *out);
/* Not NUL-terminated in the file; *s is borrowed, n bytes. */
bool mc_gguf_str(const struct mc_gguf *g, const char *key, const char **s, size_t *n);
bool mc_gguf_arr_n(const struct mc_gguf *g, const char *key, uint64_t *n);
bool mc_gguf_arr_str(const struct mc_gguf *g, const char *key, uint64_t i, const char **s,
                     size_t *n); /* O(1): an index is built at open */
bool mc_gguf_arr_f32(const struct mc_gguf *g, const char *key, uint64_t i, float *out);
bool mc_gguf_arr_i32(const struct mc_gguf *g, const char *key, uint64_t i,
                     int32_t *out); /* of integers or truth values */

/* Bytes of n rows of k columns in a disk format, quantised parts without scales; 0 when k
 * does not divide. formats.c */
uint64_t mc_disk_bytes(uint16_t fmt, int64_t n, int64_t k);
const char *mc_disk_name(uint16_t fmt); /* "bf16", "q4_1" */

#endif
