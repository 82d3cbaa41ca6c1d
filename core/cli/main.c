/* main.c - the program: the table of subcommands, and the one place that knows both sides.
 *
 * core/ runs without Lua; the Lua half reaches it as the functions of struct mc_lua_half,
 * passed on here. THREAD: main. */
#define _GNU_SOURCE /* pthread_setattr_default_np */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/cli/cli.h"
#include "core/cli/lua_half.h"
#include "core/serve/admin.h"
#include "lua/host/half.h"

enum { STACK_BYTES = 8 << 20 };

const struct mc_cmd mc_cmds[] = {
    {"attach", "[--socket PATH] [-e EXPR] [FILE]", "a Lua REPL in a running server",
     mc_cmd_attach},
    {"bench", "[run] MODEL | kv [MODEL...] | weights [MODEL] | lua [MODEL] [flags]",
     "measure a model's speed; what an fp8 cache and compressed weights gain; what Lua costs",
     mc_cmd_bench},
    {"chat", "MODEL [flags]", "talk with a model in this process", mc_cmd_chat},
    {"compress", "SRC DST --recipe NAME", "write a smaller checkpoint", mc_cmd_compress},
    {"config", "--dump [flags of serve]", "show the settings that serve would use",
     mc_cmd_config},
    {"doctor", "[MODEL] [flags]", "what this machine can do, and a model needs",
     mc_cmd_doctor},
    {"eval", "MODEL (--golden DIR | --text FILE | --task FILE)",
     "is a model right? how well does it predict?",
     mc_cmd_eval},
    {"key", "new TENANT [--api-key-file FILE]", "a fresh API key", mc_cmd_key},
    {"kv", "[MODEL] | dump --page N [flags]", "KV pages of a running server; a page's bytes",
     mc_cmd_kv},
    {"man", "", "this program's manual page, as roff", mc_cmd_man},
    {"plan", "MODEL|config.json [flags]", "what a model needs of memory, and what fits",
     mc_cmd_plan},
    {"policy", "[list | check | diff | test | shadow | init]",
     "what policies run; tries, tests, compares, begins them", mc_cmd_policy},
    {"render", "MODEL|FILE.jinja [flags]", "the prompt that a conversation becomes",
     mc_cmd_render},
    {"replay", "FILE --policy P [--json]", "recorded requests under another scheduler",
     mc_cmd_replay},
    {"serve", "MODEL... [flags]", "serve models over HTTP", mc_cmd_serve},
    {"tokenize", "MODEL [flags]", "standard input's text as token ids",
     mc_cmd_tokenize},
    {"top", "[MODEL] [--every SECONDS]", "what a running server does, live", mc_cmd_top},
    {"version", "", "print the version", mc_cmd_version},
    {"why", "ID", "what a request went through, and why it waited", mc_cmd_why},
    {0},
};

static const struct mc_cmd *find(const char *word)
{
    const struct mc_cmd *c = mc_cmds;

    while (c->name && strcmp(c->name, word) != 0)
        c++;
    return c->name ? c : NULL;
}

static int help(FILE *f)
{
    const struct mc_cmd *c;

    fprintf(f, "mascon %s: a Lua-scriptable LLM inference server\n"
               "usage: mascon COMMAND ...; mascon COMMAND --help says more\n",
            MC_VERSION);
    for (c = mc_cmds; c->name; c++)
        fprintf(f, "  %-10s %s\n", c->name, c->help);
    fprintf(f, "of a running server:\n");
    for (const struct mc_verb *v = mc_verbs; v->name; v++)
        if (v->flags & MC_VERB_WORD && !find(v->name))
            fprintf(f, "  %-10s %s\n", v->name, v->help);
    return f == stdout ? 0 : 2;
}

static int unknown(const char *word)
{
    const char *names[64], *near;
    int n = 0;

    for (const struct mc_cmd *c = mc_cmds; c->name && n < 63; c++)
        names[n++] = c->name;
    for (const struct mc_verb *v = mc_verbs; v->name && n < 63; v++)
        if (v->flags & MC_VERB_WORD)
            names[n++] = v->name;
    names[n] = NULL;
    near = mc_nearest(word, names);
    fprintf(stderr, "mascon: no command '%.60s'", word);
    if (near)
        fprintf(stderr, "; did you mean '%s'?", near);
    fprintf(stderr, "%s\n", near ? "" : "; mascon --help lists them");
    return 2;
}

/* Makes what the caller left of the process (a supervisor, a shell's limits) what the rest
 * takes for granted. */
static void settle_process(void)
{
    pthread_attr_t attr;
    int fd = 0;

    /* a socket that got a standard stream's number would be sent the log's lines */
    while (fd >= 0 && fd <= STDERR_FILENO)
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF)
            fd++;
        else if (open("/dev/null", O_RDWR) != fd)
            fd = -1;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a log that may grow no more */
    /* whatever ulimit -s says: kernels keep 256 KiB of tiles on a stack, Lua's C functions
     * 8 KiB a level, and an overrun that steps over the guard page corrupts silently */
    if (pthread_attr_init(&attr) == 0) {
        if (pthread_attr_setstacksize(&attr, STACK_BYTES) == 0)
            pthread_setattr_default_np(&attr);
        pthread_attr_destroy(&attr);
    }
}

int main(int argc, char **argv)
{
    const struct mc_cmd *c;

    settle_process();
    if (argc == 3 && strcmp(argv[1], "help") == 0) {
        argv[1] = argv[2]; /* help COMMAND is COMMAND --help */
        argv[2] = "--help";
    }
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0)
        return help(stdout);
    if (strcmp(argv[1], "--version") == 0)
        return mc_cmd_version(1, argv + 1, &mc_lua_half);
    c = find(argv[1]);
    if (c)
        return c->run(argc - 1, argv + 1, &mc_lua_half);
    if (mc_cli_verb(argv[1]))
        return mc_cmd_verb(argc - 1, argv + 1, &mc_lua_half);
    return unknown(argv[1]);
}
