/* key.c - `mascon key new TENANT`: a fresh API key, and the line that lets it in.
 *
 * The key is shown once and kept nowhere; with --api-key-file its line is added to that file
 * (made with mode 0600), which a running server reads again at `mascon reload`. OWNS nothing.
 * THREAD: main. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "core/cli/cli.h"
#include "core/serve/keys.h"
#include "core/serve/sha256.h"

enum { RANDOM_BYTES = 24, KEY_TEXT = 3 + 2 * RANDOM_BYTES + 1, LINE_TEXT = 160 };

static int make_key(char key[KEY_TEXT], struct mc_err *err)
{
    unsigned char bytes[RANDOM_BYTES];

    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return mc_fail(err, MC_EIO, "no random bytes: %s", strerror(errno));
    memcpy(key, "mk-", 4);
    for (int i = 0; i < RANDOM_BYTES; i++)
        snprintf(key + 3 + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

static void make_line(const char *key, const char *tenant, char line[LINE_TEXT])
{
    uint8_t sum[MC_SHA256];
    char hex[MC_SHA256_HEX];

    mc_sha256(key, strlen(key), sum);
    mc_sha256_hex(sum, hex);
    snprintf(line, LINE_TEXT, "sha256:%s %s", hex, tenant);
}

/* One write, so that a server that reads meanwhile sees no half of it. */
static int append(const char *path, const char *line, struct mc_err *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    char text[LINE_TEXT + 2], last = '\n';
    int n;
    ssize_t done = -1;

    if (fd >= 0 && lseek(fd, -1, SEEK_END) >= 0 && read(fd, &last, 1) < 0)
        last = '\n';
    n = snprintf(text, sizeof text, "%s%s\n", last == '\n' ? "" : "\n", line);
    if (fd >= 0)
        done = write(fd, text, (size_t)n);
    if (done != n || close(fd) < 0)
        return mc_fail_param(err, MC_EIO, "api-key-file", "%s: %s", path,
                             strerror(errno));
    return 0;
}

int mc_cmd_key(int argc, char **argv, const struct mc_lua_half *lua)
{
    const char *file = NULL;
    bool json = false;
    const struct mc_flag flags[] = {
        {"api-key-file", "FILE", &file, "add the line to this file"},
        {"json", NULL, &json, "{key, line, tenant}"},
        {0},
    };
    struct mc_args a = {.word = "key", .usage = "new TENANT [--api-key-file FILE] [--json]",
                        .flags = flags, .min = 2, .max = 2};
    char key[KEY_TEXT], line[LINE_TEXT];
    struct mc_err err;
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc >= 0)
        return rc;
    if (strcmp(a.pos[0], "new") != 0 || !mc_is_tenant(a.pos[1])) {
        fprintf(stderr, "mascon: key: %s\n",
                strcmp(a.pos[0], "new")
                    ? "say key new TENANT"
                    : "a tenant's name is 1 to 63 letters, digits, dots and dashes");
        return 2;
    }
    rc = make_key(key, &err);
    make_line(key, a.pos[1], line);
    if (rc == 0 && file)
        rc = append(file, line, &err);
    if (rc < 0)
        return mc_cli_fail(&err);
    if (json)
        printf("{\"key\": \"%s\", \"line\": \"%s\", \"tenant\": \"%s\"}\n", key, line,
               a.pos[1]);
    else if (file)
        printf("%s\n", key);
    else
        printf("%s\n# its line for --api-key-file:\n%s\n", key, line);
    return 0;
}
