/* service.c - see service.h. OWNS nothing. THREAD: main. */
#include "core/cli/service.h"

#include <stdio.h>

#include "core/base/clock.h"
#include "core/base/notify.h"

void mc_service_begin(struct mc_service *s)
{
    *s = (struct mc_service){.every = mc_notify_watchdog() / 4};
    mc_notify("STATUS=loading the model");
}

void mc_service_ready(struct mc_service *s, const char *model, uint16_t port)
{
    char lines[256];

    snprintf(lines, sizeof lines, "READY=1\nSTATUS=serving %.120s on port %u\n", model,
             port);
    mc_notify(lines);
    s->fed = mc_now();
}

void mc_service_stopping(void)
{
    mc_notify("STOPPING=1\nSTATUS=finishing open requests\n");
}

void mc_service_tick(struct mc_service *s, const struct mc_server *m)
{
    double now = mc_now();
    bool all = true;

    if (s->every <= 0 || now - s->fed < s->every)
        return;
    s->fed = now;
    for (int i = 0; i < m->n_model; i++) {
        uint64_t turns = mc_engine_turns(m->model[i].engine);

        all &= turns != s->turns[i];
        s->turns[i] = turns;
        mc_engine_wake(m->model[i].engine);
    }
    if (all)
        mc_notify("WATCHDOG=1");
}
