/* compress.c - the job: checks, shards in order, small files, index, config.json last.
 *
 * Owns the plan and the directory's descriptor for the length of a call. THREAD: one.
 *
 * DST/compress.json is the record of a run: what is made of what, and after each shard
 * what was lost in it. It is what a later run compares itself with, and what stays as a
 * report. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "core/base/log.h"
#include "core/compress/compress_int.h"
#include "core/model/tokenizer.h"

#define RECORD "compress.json"
#define INDEX "model.safetensors.index.json"

enum { SMALL_MAX = 256 << 20 }; /* a tokenizer.json; more is no description */

struct run {
    struct mc_plan_of plan;
    int dir; /* of DST */
    const char *dst;
    json_t *record;
    struct mc_press_report *report;
};

/* ---- files of DST ------------------------------------------------------------------ */

static int write_file(int dir, const char *name, const char *text, size_t n,
                      struct mc_err *err)
{
    char part[300];
    int fd, rc = 0;

    snprintf(part, sizeof part, "%.255s.part", name);
    fd = openat(dir, part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    for (size_t at = 0; fd >= 0 && rc == 0 && at < n;) {
        ssize_t got = write(fd, text + at, n - at);

        if (got > 0)
            at += (size_t)got;
        else if (got == 0 || errno != EINTR)
            rc = -1;
    }
    if (fd < 0 || rc < 0 || fsync(fd) != 0 || renameat(dir, part, dir, name) != 0)
        rc = mc_fail(err, MC_EIO, "writing %.120s: %s", name, strerror(errno));
    if (fd >= 0)
        close(fd);
    return rc;
}

static int write_json(int dir, const char *name, const json_t *v, struct mc_err *err)
{
    char *text = json_dumps(v, JSON_INDENT(2) | JSON_PRESERVE_ORDER);
    int rc = text ? write_file(dir, name, text, strlen(text), err)
                  : mc_fail(err, MC_ENOMEM, "no memory for %s", name);

    free(text);
    return rc;
}

static bool has(int dir, const char *name)
{
    struct stat st;

    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
}

static json_t *read_record(int dir)
{
    int fd = openat(dir, RECORD, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    json_t *v = f ? json_loadf(f, JSON_REJECT_DUPLICATES, NULL) : NULL;

    if (f)
        fclose(f);
    return v;
}

/* ---- the record -------------------------------------------------------------------- */

/* Of what calibration says of every matrix; 0 without one. */
static uint64_t digest(const struct mc_press *p, const struct mc_plan_of *pl)
{
    uint64_t sum = 0;

    for (int32_t i = 0; i < pl->n_item && p->importance; i++) {
        int32_t k = pl->item[i].disk.k;
        const float *w = p->importance(p->ctx, pl->item[i].module, k);

        sum = w ? XXH3_64bits_withSeed(w, (size_t)k * sizeof *w, sum) : sum + 1;
    }
    return sum;
}

/* What decides every byte of the result, and how it is cut. */
static json_t *identity(const struct mc_plan_of *pl)
{
    const struct mc_ckpt *c = pl->p->src;
    json_t *to = json_object();
    uint64_t bytes = 0;
    char name[16];

    for (int32_t i = 0; i < mc_ckpt_n(c); i++)
        bytes += mc_ckpt_at(c, i)->bytes;
    for (int32_t i = 0; i < pl->n_item; i++)
        json_object_set_new(to, pl->item[i].module,
                            json_string(
                                mc_target_name(&pl->item[i].to, name, sizeof name)));
    return json_pack("{s:s, s:I, s:i, s:i, s:I, s:o}", "recipe", pl->p->recipe_name,
                     "calibration", (json_int_t)digest(pl->p, pl), "shards", pl->n_shard,
                     "tensors", mc_ckpt_n(c), "bytes", (json_int_t)bytes, "to", to);
}

static json_t *loss_json(const struct mc_loss *l)
{
    return json_pack("[f,f,f,f]", l->ref2, l->err2, l->dot, l->got2);
}

/* The losses of a shard's items, by module. */
static void record_shard(struct run *r, int32_t i)
{
    const struct mc_shard *s = &r->plan.shard[i];
    json_t *losses = json_object(), *shards = json_object_get(r->record, "shards");

    for (int32_t j = s->first; j < s->first + s->n_out; j++) {
        const struct mc_out_tensor *o = &r->plan.out[j];

        if (o->part == MC_PART_Q)
            json_object_set_new(losses, r->plan.item[o->item].module,
                                loss_json(&r->plan.item[o->item].loss));
    }
    json_object_set_new(shards, s->file, losses);
}

/* The reverse, for a shard that an earlier run wrote; false when the record lacks it. */
static bool recall_shard(struct run *r, int32_t i)
{
    const struct mc_shard *s = &r->plan.shard[i];
    json_t *losses = json_object_get(json_object_get(r->record, "shards"), s->file);

    for (int32_t j = s->first; j < s->first + s->n_out && losses; j++) {
        const struct mc_out_tensor *o = &r->plan.out[j];
        json_t *l;

        if (o->part != MC_PART_Q)
            continue;
        l = json_object_get(losses, r->plan.item[o->item].module);
        if (json_array_size(l) != 4)
            return false;
        r->plan.item[o->item].loss =
            (struct mc_loss){json_real_value(json_array_get(l, 0)),
                             json_real_value(json_array_get(l, 1)),
                             json_real_value(json_array_get(l, 2)),
                             json_real_value(json_array_get(l, 3))};
    }
    return losses != NULL;
}

/* ---- opening DST ------------------------------------------------------------------- */

static bool is_empty(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;
    bool empty = true;

    while (d && (e = readdir(d)))
        empty &= strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    if (d)
        closedir(d);
    return empty;
}

/* A fresh record, or the one of a run that made the same. */
static int take_record(struct run *r, struct mc_err *err)
{
    json_t *mine = identity(&r->plan), *old = read_record(r->dir);
    int rc = 0;

    if (!mine)
        rc = mc_fail(err, MC_ENOMEM, "no memory for the record");
    else if (has(r->dir, "config.json"))
        rc = mc_fail(err, MC_EEXIST, "%.120s holds a whole checkpoint already", r->dst);
    else if (!old && !is_empty(r->dst))
        rc = mc_fail(err, MC_EEXIST, "%.120s is not empty and no earlier run's", r->dst);
    else if (old && !json_equal(json_object_get(old, "made"), mine))
        rc = mc_fail(err, MC_EEXIST,
                     "%.120s was begun from another source or recipe, text or size: remove "
                     "it, or name another",
                     r->dst);
    if (rc == 0 && old) {
        r->record = json_incref(old);
    } else if (rc == 0) {
        r->record = json_pack("{s:O, s:{}}", "made", mine, "shards");
        if (r->plan.p->calibration)
            json_object_set_new(r->record, "calibration",
                                json_deep_copy(r->plan.p->calibration));
        rc = write_json(r->dir, RECORD, r->record, err);
    }
    json_decref(old);
    json_decref(mine);
    return rc;
}

static int open_dst(struct run *r, struct mc_err *err)
{
    if (mkdir(r->dst, 0755) != 0 && errno != EEXIST)
        return mc_fail(err, MC_EIO, "%.120s: %s", r->dst, strerror(errno));
    r->dir = open(r->dst, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->dir < 0)
        return mc_fail(err, MC_EIO, "%.120s: %s", r->dst, strerror(errno));
    return take_record(r, err);
}

/* Room for what is still to be written, and a little. */
static int check_room(const struct run *r, struct mc_err *err)
{
    uint64_t need = UINT64_C(64) << 20, room;
    struct statvfs v;

    for (int32_t i = 0; i < r->plan.n_shard; i++)
        if (!mc_shard_done(&r->plan.shard[i], r->dir))
            need += r->plan.shard[i].bytes;
    if (fstatvfs(r->dir, &v) != 0)
        return mc_fail(err, MC_EIO, "%.120s: %s", r->dst, strerror(errno));
    room = (uint64_t)v.f_bavail * v.f_frsize;
    if (room < need)
        return mc_fail(err, MC_EIO,
                       "%.120s has room for %.1f GB, the result needs %.1f GB", r->dst,
                       (double)room / 1e9, (double)need / 1e9);
    return 0;
}

/* ---- what is not a weight ---------------------------------------------------------- */

static bool has_end(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n > m && strcmp(name + n - m, end) == 0;
}

/* Tokenizer, templates, generation defaults: text beside the weights. */
static bool is_small(const char *name)
{
    static const char *const ends[] = {".json", ".jinja", ".model", ".txt", ".md", ".py"};

    if (strcmp(name, "config.json") == 0 || strcmp(name, INDEX) == 0)
        return false;
    if (strcmp(name, "LICENSE") == 0)
        return true;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (has_end(name, ends[i]))
            return true;
    return false;
}

static int copy_small(struct run *r, struct mc_err *err)
{
    const struct mc_ckpt *c = r->plan.p->src;
    DIR *d = opendir(mc_ckpt_path(c));
    struct dirent *e;
    int rc = 0;

    if (!d)
        return mc_fail(err, MC_EIO, "%.120s: %s", mc_ckpt_path(c), strerror(errno));
    while (rc == 0 && (e = readdir(d))) {
        char *text = NULL;
        size_t n = 0;

        if (!is_small(e->d_name))
            continue;
        rc = mc_ckpt_file(c, e->d_name, SMALL_MAX, &text, &n, err);
        if (rc == 0)
            rc = write_file(r->dir, e->d_name, text, n, err);
        free(text);
    }
    closedir(d);
    return rc;
}

static int write_made(struct run *r, const char *name, json_t *v, struct mc_err *err)
{
    int rc = v ? write_json(r->dir, name, v, err) : 0;

    json_decref(v);
    return rc;
}

/* The same out of a GGUF's metadata. */
static int make_small(struct run *r, struct mc_err *err)
{
    const struct mc_plan_of *pl = &r->plan;
    struct mc_tok *tok = NULL;
    json_t *text = NULL;
    int rc = mc_tok_open(pl->p->src, &tok, err);

    if (rc == 0) {
        text = mc_tok_to_json(tok, err);
        rc = text ? write_made(r, "tokenizer.json", text, err) : err->code;
    }
    if (rc == 0)
        rc = write_made(r, "tokenizer_config.json",
                        mc_tok_config_json(tok, pl->cfg.max_context), err);
    if (rc == 0)
        rc = write_made(r, "generation_config.json", mc_from_gguf_sampling(&pl->cfg),
                        err);
    mc_tok_close(tok);
    return rc;
}

static int write_index(struct run *r, struct mc_err *err)
{
    json_t *map = json_object(), *index;
    int rc;

    for (int32_t i = 0; i < r->plan.n_shard; i++)
        for (int32_t j = 0; j < r->plan.shard[i].n_out; j++)
            json_object_set_new(map, r->plan.out[r->plan.shard[i].first + j].name,
                                json_string(r->plan.shard[i].file));
    index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size",
                      (json_int_t)r->plan.bytes, "weight_map", map);
    rc = index ? write_json(r->dir, INDEX, index, err)
               : mc_fail(err, MC_ENOMEM, "no memory for the index");
    json_decref(index);
    return rc;
}

static int finish(struct run *r, struct mc_err *err)
{
    json_t *config = mc_describe(&r->plan, err);
    bool gguf = mc_ckpt_kind(r->plan.p->src) == MC_CKPT_GGUF;
    int rc = !config ? err->code : gguf ? make_small(r, err) : copy_small(r, err);

    if (rc == 0 && r->plan.n_shard > 1)
        rc = write_index(r, err);
    if (rc == 0)
        rc = write_json(r->dir, "config.json", config, err);
    if (rc == 0 && fsync(r->dir) != 0)
        rc = mc_fail(err, MC_EIO, "%.120s: %s", r->dst, strerror(errno));
    json_decref(config);
    return rc;
}

/* ---- the border -------------------------------------------------------------------- */

static int write_shards(struct run *r, struct mc_err *err)
{
    int rc = 0;

    for (int32_t i = 0; i < r->plan.n_shard && rc == 0; i++) {
        if (mc_shard_done(&r->plan.shard[i], r->dir) && recall_shard(r, i)) {
            r->report->n_before++;
            continue;
        }
        rc = mc_shard_write(&r->plan, i, r->dir, err);
        if (rc == 0)
            record_shard(r, i);
        if (rc == 0)
            rc = write_json(r->dir, RECORD, r->record, err);
    }
    return rc;
}

int mc_press_run(const struct mc_press *p, const char *dst, struct mc_press_report *out,
                 struct mc_err *err)
{
    struct mc_press own = *p;
    struct run r = {.dir = -1, .dst = dst, .report = out};
    int rc;

    *out = (struct mc_press_report){0};
    if (own.jobs <= 0)
        own.jobs = (int)sysconf(_SC_NPROCESSORS_ONLN);
    rc = mc_layout(&own, &r.plan, err);
    if (rc < 0)
        return rc;
    mc_layout_report(&r.plan, out);
    rc = open_dst(&r, err);
    if (rc == 0)
        rc = check_room(&r, err);
    if (rc == 0)
        rc = mc_shard_measure(&r.plan, err);
    if (rc == 0)
        rc = write_shards(&r, err);
    if (rc == 0)
        rc = finish(&r, err);
    for (int32_t i = 0; i < r.plan.n_item && rc == 0; i++)
        mc_layout_add(&r.plan.item[i], out);
    json_decref(r.record);
    if (r.dir >= 0)
        close(r.dir);
    mc_layout_free(&r.plan);
    return rc;
}

int mc_press_explain(const struct mc_press *p,
                     void (*line)(void *, const struct mc_press_line *), void *ctx,
                     struct mc_press_report *out, struct mc_err *err)
{
    struct mc_plan_of plan;
    int rc = mc_layout(p, &plan, err);

    *out = (struct mc_press_report){0};
    if (rc < 0)
        return rc;
    mc_layout_report(&plan, out);
    for (int32_t i = 0; i < plan.n_item; i++) {
        const struct mc_item *it = &plan.item[i];

        line(ctx, &(struct mc_press_line){it->module, mc_disk_name(it->disk.fmt),
                                          it->disk.n, it->disk.k, it->role, it->to,
                                          it->from_bytes, it->to_bytes});
        mc_layout_add(it, out);
    }
    mc_layout_free(&plan);
    return 0;
}
