/* files.c - reads a file of a folder of the policy directory, as it is now.
 *
 * The folder bounds what can be asked for: neither "..", nor a link, nor a name that begins
 * with a dot leads out of it. OWNS nothing. THREAD: the VM's; it reads a local file, of a
 * limited size, where others wait. */
#define _GNU_SOURCE
#include "lua/bind/files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lua/bind/bind.h"
#include "lua/bind/host.h"
#include "lua/host/generation.h"

enum { FILE_MAX_BYTES = 16 << 20 };

static bool hidden(const char *path)
{
    return path[0] == '.' || strstr(path, "/.");
}

static int open_beneath(int at, const char *path, int flags)
{
    struct open_how how = {.flags = (unsigned)(O_RDONLY | O_CLOEXEC | O_NONBLOCK | flags),
                           .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};

    return (int)syscall(SYS_openat2, at, path, &how, sizeof how);
}

/* The file's descriptor, or a code. */
static int open_file(const char *root, const char *dir, const char *name, struct stat *st,
                     struct mc_err *err)
{
    int at = *root ? open(root, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    int in = at >= 0 ? open_beneath(at, dir, O_DIRECTORY) : -1;
    int fd = in >= 0 && !hidden(name) ? open_beneath(in, name, 0) : -1;

    if (in >= 0)
        close(in);
    if (at >= 0)
        close(at);
    if (fd >= 0 && fstat(fd, st) == 0 && S_ISREG(st->st_mode) &&
        st->st_size <= FILE_MAX_BYTES)
        return fd;
    if (fd >= 0)
        close(fd);
    return mc_fail(err, MC_ENOENT, "there is no file %.120s", name);
}

int mc_bind_file(lua_State *L)
{
    const struct mc_generation *g = mc_bind_generation(L);
    const char *dir = luaL_checkstring(L, 1), *name = luaL_checkstring(L, 2);
    struct stat st;
    struct mc_err err;
    char tag[48], *text;
    ssize_t n;
    int fd = open_file(g->dir, dir, name, &st, &err);

    if (fd < 0)
        return mc_bind_fail(L, &err);
    close(fd);
    text = lua_newuserdata(L, (size_t)st.st_size + 1); /* may raise: nothing is held */
    fd = open_file(g->dir, dir, name, &st, &err);
    if (fd < 0)
        return mc_bind_fail(L, &err);
    n = read(fd, text, lua_objlen(L, -1) - 1);
    close(fd);
    if (n < 0) {
        mc_fail(&err, MC_EIO, "%.120s: %s", name, strerror(errno));
        return mc_bind_fail(L, &err);
    }
    snprintf(tag, sizeof tag, "\"%llx-%llx\"", (unsigned long long)n,
             (unsigned long long)st.st_mtim.tv_sec * 1000000000ull +
                 (unsigned long long)st.st_mtim.tv_nsec);
    lua_pushlstring(L, text, (size_t)n);
    lua_pushstring(L, tag);
    return 2;
}
