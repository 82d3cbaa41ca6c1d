/* verify.c - drafts held against the tokens that were drawn at their places.
 *
 * Owns nothing; the body runs on a stream's thread. */
#include "kernels/host/host.h"

/* Rows of a sequence, in order; the loop's state is the sequence at hand. */
static int verify(struct mc_par *par, const struct mc_verify_p *p)
{
    const struct mc_rows *r = &p->rows;
    int32_t n = r->live[MC_LIVE_OUT], before = -1, i, s, t;
    bool stands = false;

    (void)par;
    for (s = 0; s < r->live[MC_LIVE_SEQS]; s++) {
        p->accepted[s] = 0;
        p->next[s] = -1;
    }
    for (i = 0; i < n; i++, before = s) {
        t = r->out_row[i];
        s = r->row_seq[t];
        if (s != before) {
            stands = true;
        } else {
            stands = stands && t == r->out_row[i - 1] + 1 && p->out[i - 1].tok >= 0 &&
                     r->tok[t] == p->out[i - 1].tok;
            p->accepted[s] += stands;
        }
        if (stands)
            p->next[s] = p->out[i].tok;
    }
    return 0;
}

static int verify_need(const struct mc_verify_p *p, struct mc_need *need,
                       const char **why)
{
    (void)need;
    return p->out && p->accepted && p->next
               ? 0
               : mc_refuse(why, "verify: nothing to read or no place for results");
}

MC_HOST_OP(mc_host_verify, verify, verify_need, verify);
