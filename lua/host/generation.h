/* generation.h - the files of one policy generation, read once.
 *
 * A generation is what a policy directory said at one moment: init.lua and the files that
 * it names, with what it lacks taken from the built-in set. Every VM of the generation, step
 * and edge, is built from these texts, so that an edit in the middle of a reload is seen
 * whole or not at all.
 * OWNS its texts; counted references. THREAD: one while it is being read; after
 * mc_generation_seal it is immutable and any. */
#ifndef MC_LUA_GENERATION_H
#define MC_LUA_GENERATION_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/base/err.h"

enum { MC_SOURCE_MAX = 1 << 20, MC_N_SOURCE = 64, MC_SOURCE_NAME = 64 };

struct mc_source {
    char name[MC_SOURCE_NAME]; /* as asked for: "init", "sched_fair", "routes/openai" */
    char file[MC_SOURCE_NAME + 16]; /* as messages show it: "sched_fair.lua" */
    const char *text;               /* NUL after n bytes */
    size_t n;
    bool builtin; /* text lies in the binary */
};

/* What init.lua chose, noted while the first VM is built. */
struct mc_choice {
    char kind[16], name[MC_SOURCE_NAME];
};

struct mc_generation {
    atomic_int refs;
    uint32_t number; /* 1, 2, ...; 0 while it is not accepted */
    uint64_t hash;   /* over names and texts */
    char dir[256];   /* "" for the built-in set */
    int dirfd;       /* -1 once sealed, or for the built-in set */
    bool sealed;
    struct mc_source source[MC_N_SOURCE];
    int n_source;
    struct mc_choice choice[MC_N_SOURCE];
    int n_choice;
    /* When tests are run for their own sake: told of each, error NULL when it passed. */
    void (*tested)(void *ctx, const char *file, const char *name, const char *error);
    void *tested_ctx;
    struct mc_choice only; /* one file that runs as its kind, whatever init.lua names */
};

/* dir NULL or "": the built-in set. Fails when the directory can't be opened, or when
 * others than root and this user may change it. */
int mc_generation_open(const char *dir, struct mc_generation **out, struct mc_err *err);
/* To try things: path is a directory, a shipped policy's name ("sched_fair"), or one file
 * of a directory, "sched.lua" or "routes/x.lua",
 * which then runs as the kind that it says it is. A directory that the file lies in may be
 * anybody's. */
int mc_generation_open_path(const char *path, struct mc_generation **out,
                            struct mc_err *err);
struct mc_generation *mc_generation_ref(struct mc_generation *g);
void mc_generation_unref(struct mc_generation *g);

/* The text of a name: from the directory, else built in; "init" only from the directory,
 * "builtin/X" only built in. *out NULL when there is none. Before the seal it reads the
 * file, and those that it requires by a name written out; refuses links that lead outside,
 * files that are not regular, too big, world-writable or owned by someone else, and binary
 * chunks. Borrowed from g. */
int mc_generation_source(struct mc_generation *g, const char *name,
                         const struct mc_source **out, struct mc_err *err);
/* Notes what runs as what; twice is one. */
int mc_generation_choose(struct mc_generation *g, const char *kind, const char *name,
                         struct mc_err *err);
/* The i-th name chosen for a kind ("scheduler", "sampler", "cache", ...), or NULL. */
const char *mc_generation_choice(const struct mc_generation *g, const char *kind, int i);
/* Nothing is read after this. */
void mc_generation_seal(struct mc_generation *g);

#endif
