/* cli.h - subcommands: their table's row, what they may ask of the Lua half, their flags.
 *
 * A subcommand is one file with one function mc_cmd_<name>(argc, argv, lua); argv[0] is
 * its word. It returns the process's exit status: 0, 1 (it failed), 2 (it was called
 * wrongly). Errors go to stderr as "mascon: ...". core/ knows no Lua: main.c passes the
 * Lua half in as functions. THREAD: the main thread. */
#ifndef MC_CLI_H
#define MC_CLI_H

#include <stdbool.h>

#include <jansson.h>

#include "core/base/err.h"
#include "core/cli/config.h"

#define MC_VERSION "0.1"

struct mc_lua_half;

typedef int (*mc_cmd_fn)(int argc, char **argv, const struct mc_lua_half *lua);

struct mc_cmd {
    const char *name;
    const char *args; /* "MODEL... [flags]" */
    const char *help; /* one line */
    mc_cmd_fn run;
};
extern const struct mc_cmd mc_cmds[]; /* ends with a NULL name */

/* A flag of one subcommand that is no setting: --json, -e EXPR. */
struct mc_flag {
    const char *name; /* "json"; one letter makes -e */
    const char *arg;  /* placeholder; NULL: a switch, out is bool *, else const char ** */
    void *out;
    const char *help;
};

struct mc_args {
    const char *word;            /* the subcommand */
    const char *usage;           /* "MODEL [--add-special]" */
    unsigned who;                /* settings that it takes: MC_FOR_... */
    const struct mc_flag *flags; /* ends with a NULL name; or NULL */
    int min, max;                /* positional arguments */
    /* results */
    struct mc_settings *set;     /* given when who is not 0; initialised by the call */
    const char *pos[16];
    int n_pos;
};

/* Parses argv[1..]; settings from --config FILE come before flags. Returns -1 to go on, else
 * the exit status (0 after --help, 2 after a message). */
int mc_args_parse(struct mc_args *a, int argc, char **argv,
                  const struct mc_lua_half *lua);

/* "mascon: " and the error's text, to stderr; returns 1. */
int mc_cli_fail(const struct mc_err *err);
/* The --log and --log-format settings, applied. */
int mc_cli_logs(const struct mc_settings *s, struct mc_err *err);

/* An engine that the settings describe; not started yet. */
struct mc_engine;
int mc_cli_engine(const struct mc_settings *s, const char *model, struct mc_engine **out,
                  struct mc_err *err);

/* A value for people (fields a line, rows as columns), or as JSON. */
void mc_cli_show(const json_t *v, bool json);
/* One request to the server's socket (takes params), and its answer shown; the exit status. */
int mc_cli_call(const char *socket, const char *verb, json_t *params, bool json);

/* The verb that is this word of the command line, or NULL; mc_cmd_verb runs it. */
struct mc_verb;
const struct mc_verb *mc_cli_verb(const char *word);

int mc_cmd_bench(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_compress(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_doctor(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_eval(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_kv(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_key(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_tokenize(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_attach(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_why(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_top(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_verb(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_replay(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_man(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_policy(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_chat(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_plan(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_render(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_serve(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_version(int argc, char **argv, const struct mc_lua_half *lua);
int mc_cmd_config(int argc, char **argv, const struct mc_lua_half *lua);

#endif
