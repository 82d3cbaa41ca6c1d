/* man.c - `mascon man`: the manual page, as roff, out of the same tables as everything
 * else.
 *
 * Commands come from main.c's table, verbs from admin.c's, settings from config.def. OWNS
 * nothing. THREAD: main. */
#include <stdio.h>
#include <string.h>

#include "core/cli/cli.h"
#include "core/serve/admin.h"

/* Text in which nothing is a request: backslashes and hyphens are escaped, a leading dot
 * too. */
static void put(const char *s)
{
    for (; *s; s++) {
        if (*s == '\\')
            fputs("\\e", stdout);
        else if (*s == '-')
            fputs("\\-", stdout);
        else if (*s == '\'')
            fputs("\\(aq", stdout);
        else
            putchar(*s);
    }
}

static void item(const char *bold, const char *rest, const char *text)
{
    fputs(".TP\n.B ", stdout);
    put(bold);
    if (*rest) {
        fputs("\\fR ", stdout);
        put(rest);
    }
    fputs("\n\\&", stdout);
    put(text);
    putchar('\n');
}

static void setting(const struct mc_setting *row)
{
    char flag[64];
    const char *limits = row->kind == MC_SET_TRUE || row->kind == MC_SET_SWITCH
                             ? ""
                             : row->limits;
    bool text = strchr(row->help, '[') || !*row->def || row->kind == MC_SET_TRUE;
    char *p;

    snprintf(flag, sizeof flag, "--%s%s", row->kind == MC_SET_TRUE ? "no-" : "",
             row->key);
    for (p = flag; *p; p++)
        *p = *p == '_' ? '-' : *p;
    item(flag, limits, row->help);
    if (!text) {
        fputs(" [", stdout);
        put(row->def);
        fputs("]\n", stdout);
    }
    printf("(key \\fB%s\\fR%s)\n", row->key, row->live ? ", live" : "");
}

static const char head[] =
    ".SH NAME\nmascon \\- a Lua\\-scriptable LLM inference server\n"
    ".SH SYNOPSIS\n.B mascon\n.I command\n[\\fIarguments\\fR]\n"
    ".SH DESCRIPTION\n"
    "mascon loads a large language model and serves it over HTTP to OpenAI clients. "
    "Which\n"
    "request runs next, how a token is picked and which routes exist is decided by short "
    "Lua\n"
    "files that may be edited while it runs.\n"
    ".PP\n"
    ".I MODEL\nis a Hugging Face directory or a GGUF file, or NAME=PATH of one.\n"
    ".B mascon\n.I command\n.B \\-\\-help\nlists a command's flags.\n";

static const char tail[] =
    ".SH SIGNALS\n"
    "SIGTERM and SIGINT finish open requests (\\fB\\-\\-drain\\fR), a second one ends at "
    "once;\n"
    "SIGHUP loads the policies again.\n"
    ".SH EXIT STATUS\n"
    "0; 1 when it failed; 2 when it was called wrongly; \\fBreplay\\fR: 3 when a request "
    "would\n"
    "starve.\n"
    ".SH ENVIRONMENT\n"
    ".TP\n.B XDG_RUNTIME_DIR\nwhere mascon.sock is, the socket of verbs and sessions; "
    "without it\n"
    "/run/mascon.\n"
    ".TP\n.B MASCON_ADMIN_KEY\nthe key for \\fB\\-\\-socket tcp:HOST:PORT\\fR, a server's "
    "\\fB\\-\\-admin\\-listen\\fR.\n"
    ".TP\n.B NOTIFY_SOCKET, WATCHDOG_USEC, LISTEN_FDS\na service manager's: told when "
    "the model is\n"
    "loaded and that the engine's loop goes round; gives the listening socket.\n"
    ".SH FILES\n"
    ".TP\n.I /etc/mascon/policies\npolicies, when no \\fB\\-\\-policies\\fR says "
    "otherwise and an\n"
    "init.lua is there; else those built in.\n"
    ".TP\n.I ~/.local/state/mascon/history\nwhat was typed at \\fBmascon attach\\fR.\n"
    ".TP\n.I ~/.local/state/mascon/crash\\-PID\na report of a fatal signal; of a service "
    "in\n"
    "/var/lib/mascon.\n";

int mc_cmd_man(int argc, char **argv, const struct mc_lua_half *lua)
{
    struct mc_args a = {.word = "man", .usage = ""};
    int rc = mc_args_parse(&a, argc, argv, lua);

    if (rc >= 0)
        return rc;
    printf(".TH MASCON 1 \"\" \"mascon %s\" \"User Commands\"\n%s.SH COMMANDS\n",
           MC_VERSION, head);
    for (const struct mc_cmd *c = mc_cmds; c->name; c++)
        item(c->name, c->args, c->help);
    printf(
        ".SH VERBS\nOf a running server, over its socket; each is a function of the Lua "
        "prompt\n(\\fBmascon attach\\fR) too, and takes \\fB\\-\\-json\\fR.\n");
    for (const struct mc_verb *v = mc_verbs; v->name; v++)
        if (v->flags & MC_VERB_WORD)
            item(v->name, v->args, v->help);
    printf(".SH SETTINGS\nFlags of \\fBmascon serve\\fR, and keys of the Lua table that "
           "the file "
           "given\nby \\fB\\-\\-config\\fR returns. Live ones change by \\fBmascon "
           "set\\fR.\n");
    for (int i = 0; i < MC_N_SETTING; i++)
        if (mc_setting_list[i].who & MC_FOR_SERVE)
            setting(&mc_setting_list[i]);
    fputs(tail, stdout);
    return 0;
}
