/* version.c - `mascon version` and `mascon config --dump`. THREAD: main. */
#include <stdio.h>
#include <stdlib.h>

#include "core/base/crash.h"
#include "core/cli/cli.h"

int mc_cmd_version(int argc, char **argv, const struct mc_lua_half *lua)
{
    struct mc_args a = {.word = "version", .usage = ""};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc >= 0)
        return rc;
    printf("mascon %s (build %s)\n", MC_VERSION, mc_build_id());
    return 0;
}

int mc_cmd_config(int argc, char **argv, const struct mc_lua_half *lua)
{
    struct mc_settings set;
    bool dump = false;
    const struct mc_flag flags[] = {
        {"dump", NULL, &dump, "print every setting as a mascon.lua that restores it"},
        {0},
    };
    struct mc_args a = {.word = "config", .usage = "--dump [flags of serve]",
                        .who = MC_FOR_SERVE, .flags = flags, .set = &set};
    int rc = mc_args_parse(&a, argc, argv, lua);
    char *text;

    if (rc < 0 && !dump) {
        fprintf(stderr, "mascon: usage: mascon config --dump [flags of serve]\n");
        rc = 2;
    }
    if (rc < 0) {
        text = mc_settings_dump(&set);
        fputs(text, stdout);
        free(text);
        rc = 0;
    }
    mc_settings_free(&set);
    return rc;
}
