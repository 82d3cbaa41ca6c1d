/* server.c - finding a model, naming a sequence. OWNS nothing. THREAD: any. */
#include "core/serve/server.h"

#include <stdio.h>
#include <string.h>

const struct mc_served *mc_served_find(const struct mc_server *s, const char *id)
{
    if (!id)
        return &s->model[0];
    for (int i = 0; i < s->n_model; i++)
        if (strcmp(s->model[i].id, id) == 0)
            return &s->model[i];
    return strcmp(id, "default") == 0 ? &s->model[0] : NULL;
}

void mc_seq_id(const struct mc_server *s, const struct mc_served *m, struct mc_handle h,
               char id[MC_SEQ_ID])
{
    bool several = s->n_model > 1;

    snprintf(id, MC_SEQ_ID, "%s%s%u.%u", several ? m->id : "", several ? "/" : "", h.seq,
             h.gen);
}
