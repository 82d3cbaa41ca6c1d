/* pin.c - prefixes whose pages stay, whoever else wants pages.
 *
 * Owns the pins of an engine and the references to pages that they hold. THREAD: any, with
 * `look` held where it is said; the rest takes it.
 * Always true: pins hold at most half of the pool, and one is given up, the oldest first,
 * before a sequence can't go on for want of pages. */
#include <stdlib.h>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/engine/engine_int.h"

static int32_t held(const struct mc_engine *e)
{
    int32_t n = 0;

    for (int i = 0; i < e->n_pin; i++)
        n += e->pin[i].info.n_page;
    return n;
}

/* With look held. */
static void drop(struct mc_engine *e, int i)
{
    struct mc_pin *p = &e->pin[i];
    uint64_t ticket = mc_crew_mark(&e->crew) + (e->planning ? 1 : 0);

    while (p->info.n_page > 0)
        mc_kv_give(e->kv, p->page[--p->info.n_page], 0, ticket);
    free(p->page);
    e->n_pin--;
    for (; i < e->n_pin; i++)
        e->pin[i] = e->pin[i + 1];
}

bool mc_pins_yield(struct mc_engine *e)
{
    if (e->n_pin == 0)
        return false;
    mc_warn("engine", "pin %u of %d pages is given up: a sequence needs them", e->pin[0].info.id,
            e->pin[0].info.n_page);
    drop(e, 0);
    return true;
}

void mc_pins_turn(struct mc_engine *e)
{
    double now = e->n_pin > 0 ? mc_now() : 0;

    for (int i = e->n_pin - 1; i >= 0; i--)
        if (e->pin[i].info.until > 0 && e->pin[i].info.until <= now)
            drop(e, i);
}

void mc_pins_close(struct mc_engine *e)
{
    while (e->n_pin > 0)
        drop(e, 0);
}

int32_t mc_engine_cached(struct mc_engine *e, const int32_t *ids, int32_t n, uint32_t tenant,
                         const char *salt)
{
    int32_t pages;

    pthread_mutex_lock(&e->look);
    pages = mc_kv_find_all(e->kv, mc_seq_root(tenant, salt), ids, n, NULL);
    pthread_mutex_unlock(&e->look);
    return pages * MC_PAGE;
}

/* With look held. */
static int add(struct mc_engine *e, const int32_t *ids, int32_t n, uint32_t tenant,
               const char *salt, int32_t *page, struct mc_err *err)
{
    struct mc_hash root = mc_seq_root(tenant, salt);
    int32_t room = mc_kv_total(e->kv) / 2 - held(e);
    int32_t pages = mc_kv_find_all(e->kv, root, ids, n, NULL);

    if (e->n_pin == MC_MAX_PINS)
        return mc_fail(err, MC_ELIMIT, "%d prefixes are pinned already", MC_MAX_PINS);
    if (pages == 0)
        return mc_fail(err, MC_ENOENT, "no page of these %d tokens is cached: a pin keeps whole "
                       "pages, of %d tokens", n, MC_PAGE);
    if (pages > room)
        return mc_fail(err, MC_ELIMIT, "%d pages: pins may hold %d more, half of the pool in all",
                       pages, room);
    mc_kv_find_all(e->kv, root, ids, pages * MC_PAGE, page);
    e->pin[e->n_pin++] = (struct mc_pin){
        .page = page,
        .info = {.id = ++e->pin_id, .tenant = tenant, .n_page = pages,
                 .bytes = (double)pages * (double)e->swap.page_bytes}};
    return 0;
}

int mc_engine_pin(struct mc_engine *e, const int32_t *ids, int32_t n, uint32_t tenant,
                  const char *salt, double seconds, struct mc_pin_info *out, struct mc_err *err)
{
    int32_t *page = malloc(((size_t)(n > 0 ? n : 0) / MC_PAGE + 1) * sizeof *page);
    int rc;

    if (!page)
        return mc_fail(err, MC_ENOMEM, "no memory for a pin");
    pthread_mutex_lock(&e->look);
    rc = add(e, ids, n, tenant, salt, page, err);
    if (rc == 0) {
        e->pin[e->n_pin - 1].info.until = seconds > 0 ? mc_now() + seconds : 0;
        *out = e->pin[e->n_pin - 1].info;
    }
    pthread_mutex_unlock(&e->look);
    if (rc < 0)
        free(page);
    return rc;
}

int mc_engine_unpin(struct mc_engine *e, uint32_t id, struct mc_err *err)
{
    int i = 0;

    pthread_mutex_lock(&e->look);
    while (i < e->n_pin && e->pin[i].info.id != id)
        i++;
    if (i < e->n_pin)
        drop(e, i);
    else
        i = -1;
    pthread_mutex_unlock(&e->look);
    mc_engine_wake(e); /* its pages settle */
    return i >= 0 ? 0 : mc_fail_param(err, MC_ENOENT, "id", "there is no pin %u", id);
}

int mc_engine_pins(struct mc_engine *e, struct mc_pin_info out[MC_MAX_PINS])
{
    int n;

    pthread_mutex_lock(&e->look);
    n = e->n_pin;
    for (int i = 0; i < n; i++)
        out[i] = e->pin[i].info;
    pthread_mutex_unlock(&e->look);
    return n;
}
