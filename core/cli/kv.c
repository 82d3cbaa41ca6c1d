/* kv.c - `mascon kv [MODEL]`: KV pages of a running server; `kv dump --page N`: the bytes
 * of one of them, a layer at a time.
 *
 * The bytes are shown as they lie in memory (kernels/types.h says what lies where), 16 a
 * line behind their offset; --raw writes them as they are. OWNS nothing after it returns.
 * THREAD: main. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/cli/cli.h"
#include "core/cli/client.h"

static void show_bytes(const char *hex, bool raw)
{
    size_t n = strlen(hex) / 2;
    unsigned byte;

    for (size_t i = 0; i < n; i++) {
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return;
        if (raw)
            putchar((int)byte);
        else if (i % 16 == 0)
            printf("%s%06zx ", i ? "\n" : "", i);
        if (!raw)
            printf(" %02x", byte);
    }
    if (!raw)
        putchar('\n');
}

static void show(json_t *d, bool raw, bool json)
{
    json_t *bytes = json_incref(json_object_get(d, "bytes"));

    if (json) {
        mc_cli_show(d, true);
    } else {
        json_object_del(d, "bytes");
        if (!raw)
            mc_cli_show(d, false);
        show_bytes(json_string_value(bytes), raw);
    }
    json_decref(bytes);
}

static int dump(const char *socket, json_t *params, bool raw, bool json)
{
    struct mc_client *c = NULL;
    struct mc_err err = {0};
    json_t *result = NULL;
    int rc = mc_client_open(socket, &c, &err);

    if (rc < 0)
        json_decref(params);
    else
        rc = mc_client_call(c, "kv.dump", params, &result, &err);
    if (rc == 0)
        show(result, raw, json);
    json_decref(result);
    mc_client_close(c);
    return rc < 0 ? mc_cli_fail(&err) : 0;
}

int mc_cmd_kv(int argc, char **argv, const struct mc_lua_half *lua)
{
    const char *page = NULL, *layer = "0", *index = NULL, *rank = "0";
    bool json = false, raw = false;
    const struct mc_flag flags[] = {
        {"page", "N", &page, "which page"},
        {"layer", "N", &layer, "which layer of it [0]"},
        {"index", "N", &index, "instead of a layer: an index's keys"},
        {"rank", "N", &rank, "of which rank [0]"},
        {"raw", NULL, &raw, "nothing but the bytes"},
        {"json", NULL, &json, "the answer as JSON, the bytes in hexadecimal"},
        {0},
    };
    struct mc_settings set;
    struct mc_args a = {.word = "kv dump", .usage = "--page N [flags] [MODEL]",
                        .who = MC_FOR_SOCK, .flags = flags, .max = 1, .set = &set};
    char part[32];
    int rc;

    if (argc < 2 || strcmp(argv[1], "dump") != 0)
        return mc_cmd_verb(argc, argv, lua);
    rc = mc_args_parse(&a, argc - 1, argv + 1, lua);
    if (rc < 0 && !page) {
        fprintf(stderr, "mascon: kv dump: which --page?\n");
        rc = 2;
    }
    if (rc < 0) {
        json_t *params;

        snprintf(part, sizeof part, "%s%.20s", index ? "index" : "",
                 index ? index : layer);
        params = json_pack("[s, s, s]", page, part, rank);
        if (a.n_pos > 0)
            json_array_append_new(params, json_string(a.pos[0]));
        rc = dump(set.socket, params, raw, json);
    }
    mc_settings_free(&set);
    return rc;
}
