/* kv.c - host.kv: contexts that are held, saved to a file and read back.
 *
 * Files are read and written by the thread of the tensors' pool, as jobs that a fence
 * awaits (lua/mc/kv.lua). A context is counted: its handle's and a save's, which may
 * outlive it. OWNS both. THREAD: the loop's; jobs run on the pool's. */
#include "lua/bind/kv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/serve/server.h"
#include "lua/bind/bind.h"
#include "lua/bind/ids.h"
#include "lua/bind/tensor.h"
#include "lua/host/task.h"

static const char KV[] = "mc.kv", JOB[] = "mc.kv.job";

struct kept {
    atomic_int refs;
    const struct mc_served *model;
    struct mc_held *h;
};

struct lkv {
    struct mc_owned own;
    struct kept *k; /* NULL: dropped */
};

/* Shared by its handle and the pool's thread; done after everything else. */
struct job {
    atomic_int refs;
    atomic_bool done;
    bool save;
    const struct mc_served *model;
    struct kept *k; /* of a save; a load's result */
    char path[512], salt[64];
    uint32_t tenant;
    int rc;
    struct mc_err err;
};

struct ljob {
    struct mc_owned own;
    struct job *j;
};

static void kept_drop(struct kept *k)
{
    if (!k || atomic_fetch_sub(&k->refs, 1) != 1)
        return;
    mc_engine_release(k->model->engine, k->h);
    free(k);
}

static struct kept *kept_new(const struct mc_served *m, struct mc_held *h)
{
    struct kept *k = calloc(1, sizeof *k);

    if (!k) {
        mc_engine_release(m->engine, h);
        return NULL;
    }
    atomic_init(&k->refs, 1);
    k->model = m;
    k->h = h;
    return k;
}

static void job_drop(struct job *j)
{
    if (!j || atomic_fetch_sub(&j->refs, 1) != 1)
        return;
    kept_drop(j->k);
    free(j);
}

/* ---- the pool's thread ------------------------------------------------------------- */

static int write_all(int fd, const uint8_t *data, size_t n)
{
    while (n > 0) {
        ssize_t got = write(fd, data, n);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        data += got;
        n -= (size_t)got;
    }
    return 0;
}

/* To a new file beside it, which then takes its name. */
static int write_file(struct job *j, const uint8_t *data, size_t n)
{
    char fresh[sizeof j->path + 8];
    int fd, rc = 0;

    snprintf(fresh, sizeof fresh, "%s.new", j->path);
    unlink(fresh);
    fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || write_all(fd, data, n) < 0)
        rc = mc_fail(&j->err, MC_EIO, "%s: %s", fresh, strerror(errno));
    if (fd >= 0 && close(fd) < 0 && rc == 0)
        rc = mc_fail(&j->err, MC_EIO, "%s: %s", fresh, strerror(errno));
    if (rc == 0 && rename(fresh, j->path) < 0)
        rc = mc_fail(&j->err, MC_EIO, "%s: %s", j->path, strerror(errno));
    if (rc < 0)
        unlink(fresh);
    return rc;
}

static int save(struct job *j)
{
    uint8_t *data = NULL;
    size_t n;
    int rc = mc_engine_pack(j->model->engine, j->k->h, &data, &n, &j->err);

    if (rc < 0)
        return rc;
    rc = write_file(j, data, n);
    free(data);
    return rc;
}

/* All of a regular file of at most `most` bytes. */
static int read_file(struct job *j, uint64_t most, uint8_t **data, size_t *n)
{
    int fd = open(j->path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    size_t at = 0;
    int rc = 0;

    if (fd < 0 || fstat(fd, &st) < 0)
        rc = mc_fail(&j->err, MC_EIO, "%s: %s", j->path, strerror(errno));
    else if (!S_ISREG(st.st_mode) || st.st_size < 1 || (uint64_t)st.st_size > most)
        rc = mc_fail(&j->err, MC_EFORMAT, "%s is no file of up to %llu bytes", j->path,
                     (unsigned long long)most);
    *n = rc == 0 ? (size_t)st.st_size : 0;
    *data = rc == 0 ? malloc(*n) : NULL;
    if (rc == 0 && !*data)
        rc = mc_fail(&j->err, MC_ENOMEM, "no memory for %zu bytes", *n);
    while (rc == 0 && at < *n) {
        ssize_t got = read(fd, *data + at, *n - at);

        if (got <= 0 && !(got < 0 && errno == EINTR))
            rc = mc_fail(&j->err, MC_EIO, "%s: %s", j->path,
                         got < 0 ? strerror(errno) : "it got shorter while it was read");
        else
            at += got > 0 ? (size_t)got : 0;
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

static int load(struct job *j)
{
    const struct mc_who who = {j->tenant, j->salt};
    struct mc_held *h = NULL;
    uint8_t *data = NULL;
    size_t n;
    int rc = read_file(j, mc_engine_pack_most(j->model->engine), &data, &n);

    if (rc == 0) {
        rc = mc_engine_unpack(j->model->engine, data, n, &who, &h, &j->err);
        if (rc < 0)
            mc_err_while(&j->err, "reading %s", j->path);
    }
    free(data);
    if (rc < 0)
        return rc;
    j->k = kept_new(j->model, h);
    return j->k ? 0 : mc_fail(&j->err, MC_ENOMEM, "no memory for a context");
}

static void run(void *ctx)
{
    struct job *j = ctx;

    j->rc = j->save ? save(j) : load(j);
    atomic_store(&j->done, true);
    job_drop(j);
}

/* ---- handles ----------------------------------------------------------------------- */

static void end_kv(struct mc_owned *o)
{
    struct lkv *h = (struct lkv *)o;

    kept_drop(h->k);
    h->k = NULL;
}

static void end_job(struct mc_owned *o)
{
    struct ljob *h = (struct ljob *)o;

    job_drop(h->j);
    h->j = NULL;
}

static struct kept *check_kv(lua_State *L, int idx)
{
    struct lkv *h = *(struct lkv **)luaL_checkudata(L, idx, KV);

    if (!h || !h->k)
        luaL_argerror(L, idx, "the context was dropped");
    return h->k;
}

/* ---- functions --------------------------------------------------------------------- */

static struct mc_who check_who(lua_State *L, int tenant, int salt)
{
    struct mc_who who = {(uint32_t)luaL_optinteger(L, tenant, 0),
                         luaL_optstring(L, salt, "")};

    luaL_argcheck(L, strlen(who.salt) < sizeof((struct job *)0)->salt, salt,
                  "a salt has at most 63 bytes");
    return who;
}

/* hold(list, model, tenant, salt) -> context of its whole pages; nil, error */
static int l_hold(lua_State *L)
{
    const struct mc_ids *ids = mc_ids_check(L, 1);
    const struct mc_who who = check_who(L, 3, 4);
    const struct mc_served *m = mc_bind_model(L, 2);
    struct mc_held *held;
    struct lkv *h;
    struct mc_err err;

    if (!m)
        return 2;
    if (ids->n > INT32_MAX / 2)
        return luaL_error(L, "a context of %d tokens", INT32_MAX / 2);
    h = mc_bind_own(L, KV, sizeof *h, end_kv);
    if (mc_engine_hold(m->engine, ids->v, (int32_t)ids->n, &who, &held, &err) < 0)
        return mc_bind_fail(L, &err);
    h->k = kept_new(m, held);
    return h->k ? 1 : luaL_error(L, "not enough memory");
}

/* The path of a name in --kv-dir, whose names have no "/" and no "." in front. */
static int path_of(lua_State *L, int idx, char *out, size_t cap, struct mc_err *err)
{
    size_t n;
    const char *name = lua_tolstring(L, idx, &n);
    const json_t *dir = json_object_get(mc_tvm_of(L)->server->config, "kv_dir");
    const char *at = json_is_string(dir) ? json_string_value(dir) : "";

    if (!*at)
        return mc_fail(err, MC_EFORBID,
                       "contexts are saved nowhere: --kv-dir is not set");
    if (!*name || *name == '.' ||
        strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRST"
                     "UVWXYZ0123456789._-") != n ||
        n > 100)
        return mc_fail_param(err, MC_EARG, "name",
                             "a context's name is letters, digits, '_', "
                             "'-' and '.', not first, at most 100");
    if (snprintf(out, cap, "%s/%s", at, name) >= (int)cap)
        return mc_fail(err, MC_EARG, "--kv-dir is too long");
    return 0;
}

/* Queues a job that the handle at the top shares. */
static int start(lua_State *L, struct ljob *h, int name, struct mc_err *err)
{
    struct mc_account *a = mc_tensor_account_of(L);
    struct job *j = h->j;
    int rc;

    if (!a)
        return MC_EUNSUP; /* nil and the error are pushed */
    rc = path_of(L, name, j->path, sizeof j->path, err);
    if (rc == 0) {
        atomic_fetch_add(&j->refs, 1);
        rc = mc_tensors_call(mc_account_pool(a), run, j, err);
        if (rc < 0)
            atomic_fetch_sub(&j->refs, 1);
    }
    if (rc < 0)
        mc_bind_fail(L, err);
    return rc;
}

static struct ljob *push_job(lua_State *L, const struct mc_served *m, bool is_save)
{
    struct ljob *h = mc_bind_own(L, JOB, sizeof *h, end_job);

    h->j = calloc(1, sizeof *h->j);
    if (!h->j)
        luaL_error(L, "not enough memory");
    atomic_init(&h->j->refs, 1);
    h->j->model = m;
    h->j->save = is_save;
    return h;
}

/* save(context, name) -> job; nil, error */
static int l_save(lua_State *L)
{
    struct kept *k = check_kv(L, 1);
    struct ljob *h;
    struct mc_err err;

    luaL_checkstring(L, 2);
    h = push_job(L, k->model, true);
    atomic_fetch_add(&k->refs, 1);
    h->j->k = k;
    return start(L, h, 2, &err) < 0 ? 2 : 1;
}

/* load(name, model, tenant, salt) -> job; nil, error */
static int l_load(lua_State *L)
{
    const struct mc_who who = check_who(L, 3, 4);
    const struct mc_served *m;
    struct ljob *h;
    struct mc_err err;

    luaL_checkstring(L, 1);
    m = mc_bind_model(L, 2);
    if (!m)
        return 2;
    h = push_job(L, m, false);
    h->j->tenant = who.tenant;
    snprintf(h->j->salt, sizeof h->j->salt, "%s", who.salt);
    return start(L, h, 1, &err) < 0 ? 2 : 1;
}

/* finish(job) -> true or the context; nil, error; false: it is not done */
static int l_finish(lua_State *L)
{
    struct ljob *h = *(struct ljob **)luaL_checkudata(L, 1, JOB);
    struct lkv *out;

    luaL_argcheck(L, h && h->j, 1, "the job is over");
    if (!atomic_load(&h->j->done)) {
        lua_pushboolean(L, 0);
        return 1;
    }
    if (h->j->rc < 0)
        return mc_bind_fail(L, &h->j->err);
    if (h->j->save) {
        lua_pushboolean(L, 1);
        return 1;
    }
    out = mc_bind_own(L, KV, sizeof *out, end_kv);
    out->k = h->j->k;
    h->j->k = NULL;
    return 1;
}

/* ids(context) -> list, its model */
static int l_ids(lua_State *L)
{
    struct kept *k = check_kv(L, 1);
    int32_t n;
    const int32_t *ids = mc_held_ids(k->h, &n);

    mc_ids_push_list(L, ids, (size_t)n);
    lua_pushstring(L, k->model->id);
    return 2;
}

/* bytes(context) -> that its pages take, of all ranks */
static int l_bytes(lua_State *L)
{
    struct kept *k = check_kv(L, 1);

    lua_pushnumber(L, (double)mc_held_bytes(k->model->engine, k->h));
    return 1;
}

static int l_drop(lua_State *L)
{
    struct lkv *h = *(struct lkv **)luaL_checkudata(L, 1, KV);

    if (h)
        end_kv(&h->own);
    return 0;
}

void mc_bind_kv(lua_State *L)
{
    static const luaL_Reg none[] = {{NULL, NULL}};
    static const luaL_Reg fns[] = {
        {"hold", l_hold}, {"save", l_save},   {"load", l_load}, {"finish", l_finish},
        {"ids", l_ids},   {"bytes", l_bytes}, {"drop", l_drop}, {NULL, NULL},
    };

    mc_bind_type(L, KV, none, mc_bind_disown);
    mc_bind_type(L, JOB, none, mc_bind_disown);
    mc_bind_table(L, fns);
    luaL_getmetatable(L, KV); /* lua/mc/kv.lua puts the methods there */
    lua_setfield(L, -2, "meta");
}
