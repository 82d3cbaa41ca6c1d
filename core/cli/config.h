/* config.h - settings: defaults, then mascon.lua, then flags, checked by one table.
 *
 * Plain values in a struct made from config.def, plus for each where it came from.
 * OWNS its strings. THREAD: one, until the server starts; constant afterwards. */
#ifndef MC_CLI_CONFIG_H
#define MC_CLI_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "core/base/err.h"

enum mc_setting_kind { MC_SET_STR, MC_SET_INT, MC_SET_SIZE, MC_SET_SIZES, MC_SET_WORD,
                       MC_SET_SWITCH, MC_SET_TRUE, MC_SET_PAIRS };
enum mc_setting_who {
    MC_FOR_SERVE = 1,
    MC_FOR_CHAT = 2,
    MC_FOR_EVAL = 4,
    MC_FOR_BENCH = 8,
    MC_FOR_SOCK = 16
};
enum mc_setting_from { MC_FROM_DEFAULT, MC_FROM_FILE, MC_FROM_FLAG };

enum mc_setting_id {
#define MC_SETTING(key, ...) MC_SETTING_##key,
#include "core/cli/config.def"
#undef MC_SETTING
    MC_N_SETTING
};

/* STR, WORD and PAIRS are never NULL ("" when unset); INT, SIZE and SIZES (their sum) are int64,
 * SWITCH and TRUE bool. */
struct mc_settings {
#define STR const char *
#define WORD const char *
#define PAIRS const char *
#define INT int64_t
#define SIZE int64_t
#define SIZES int64_t
#define SWITCH bool
#define TRUE bool
#define MC_SETTING(key, kind, ...) kind key;
#include "core/cli/config.def"
#undef MC_SETTING
#undef STR
#undef WORD
#undef PAIRS
#undef INT
#undef SIZE
#undef SIZES
#undef SWITCH
#undef TRUE
    char *text[MC_N_SETTING]; /* as typed; what STR, WORD and PAIRS point to */
    enum mc_setting_from from[MC_N_SETTING];
};

struct mc_setting {
    const char *key, *def, *limits, *help;
    enum mc_setting_kind kind;
    bool live;
    unsigned who;
    size_t at; /* of its field in struct mc_settings */
};
extern const struct mc_setting mc_setting_list[MC_N_SETTING];

void mc_settings_init(struct mc_settings *s);
void mc_settings_free(struct mc_settings *s);

/* Sets one from its text. shown is how the user spells it ("--port", "port"), for messages;
 * NULL text is a bare switch. PAIRS add to what is there when it came from the same place. */
int mc_settings_set(struct mc_settings *s, int id, const char *text,
                    enum mc_setting_from from, const char *shown, struct mc_err *err);
/* The table that a mascon.lua returned; a key given by flag before is left alone. */
int mc_settings_file(struct mc_settings *s, const json_t *table, struct mc_err *err);
/* A setting by key ("max_context"), or -1; *nearest is then the closest key. */
int mc_setting_find(const char *key, const char **nearest);

/* "512M", "44.9G" or "60%" of the whole, as bytes; false when text is no size. */
bool mc_size_of(const char *text, double whole, double *out);

/* The bytes of one of n models: its own share of a SIZES setting ("small=1G,large=6G"), else an
 * even part. MC_EARG when there are shares and none is its. */
int mc_settings_share(const struct mc_settings *s, int id, const char *model, int n,
                      int64_t *out, struct mc_err *err);
/* The i-th name that a SIZES setting gives a share, copied; false past the last. */
bool mc_settings_share_name(const struct mc_settings *s, int id, int i, char *name,
                            size_t cap);

/* A mascon.lua that restores these settings; malloced. */
char *mc_settings_dump(const struct mc_settings *s);
/* {key: value}; a new reference. */
json_t *mc_settings_json(const struct mc_settings *s);

/* The word of a NULL-ended list that is nearest to a misspelt one; NULL when none is near. */
const char *mc_nearest(const char *word, const char *const *list);

#endif
