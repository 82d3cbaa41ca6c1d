/* tokenizer_chunk.c - where Kimi's tokenizer cuts a long text before it splits it.
 *
 * Owns nothing. THREAD: any. Upstream's rule, kept because ids depend on it: the text falls
 * into windows of WINDOW characters, and within a window a run of white space or of other
 * characters is cut after each RUN. (It guards tiktoken's backtracking, not our scanner.)
 * What we do not copy: upstream also cuts through a control token that lies there. */
#include "core/model/tokenizer_int.h"

#include "core/base/utf8.h"
#include "core/model/ucat.h"

enum { WINDOW = 400000, RUN = 25000 };

/* Python's str.isspace: White_Space and the four separators of ASCII. */
static bool is_space(uint32_t cp)
{
    return mc_ucat(cp) & MC_U_SPACE || (cp >= 0x1c && cp <= 0x1f);
}

void mc_chunk_next(struct mc_chunks *c)
{
    size_t here = c->at;
    bool space, full, cut = false;

    while (c->at < c->n && !cut) {
        here = c->at;
        space = is_space(mc_utf8_get(c->s + here));
        full = c->chars == WINDOW;
        if (full)
            c->chars = 0;
        c->run = c->chars > 0 && space == c->space ? c->run + 1 : 1;
        cut = full || c->run > RUN;
        if (cut)
            c->run = 1;
        c->space = space;
        c->chars++;
        c->at += mc_utf8_len(c->s[here]);
    }
    c->cut = cut ? here : SIZE_MAX;
}
