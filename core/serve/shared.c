/* shared.c - a chained hash table with a use order, under one lock.
 *
 * OWNS its entries. THREAD: any; `lock` is a leaf.
 * Always true: bytes is the sum of the entries' sizes and at most max; every entry is in
 * one chain and in the use list, most recently used first. */
#include "core/serve/shared.h"

#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum { BUCKETS = 4096, OVERHEAD = 96 };
enum kind { NUMBER, TEXT, BUCKET };

struct entry {
    struct entry *chain, *newer, *older;
    enum kind kind;
    double number; /* BUCKET: what is in it */
    double since;  /* BUCKET: when that was */
    double ends;   /* 0: never */
    size_t n_key, n_text;
    char bytes[]; /* key, text */
};

struct mc_shared {
    pthread_mutex_t lock;
    struct entry *table[BUCKETS];
    struct entry *newest, *oldest;
    size_t bytes, max;
};

int mc_shared_open(size_t bytes, struct mc_shared **out, struct mc_err *err)
{
    struct mc_shared *s = calloc(1, sizeof *s);

    if (!s)
        return mc_fail(err, MC_ENOMEM, "no memory for shared values");
    pthread_mutex_init(&s->lock, NULL);
    s->max = bytes;
    *out = s;
    return 0;
}

static size_t size_of(const struct entry *e)
{
    return OVERHEAD + e->n_key + e->n_text;
}

static struct entry **slot_of(struct mc_shared *s, const char *key, size_t n)
{
    struct entry **at = &s->table[XXH3_64bits(key, n) % BUCKETS];

    while (*at && ((*at)->n_key != n || memcmp((*at)->bytes, key, n) != 0))
        at = &(*at)->chain;
    return at;
}

static void unlist(struct mc_shared *s, struct entry *e)
{
    *(e->newer ? &e->newer->older : &s->newest) = e->older;
    *(e->older ? &e->older->newer : &s->oldest) = e->newer;
}

static void list_first(struct mc_shared *s, struct entry *e)
{
    e->newer = NULL;
    e->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = e;
    s->newest = e;
}

static void drop(struct mc_shared *s, struct entry **at)
{
    struct entry *e = *at;

    *at = e->chain;
    unlist(s, e);
    s->bytes -= size_of(e);
    free(e);
}

static void make_room(struct mc_shared *s, size_t need, double now)
{
    struct entry *e, *newer;

    for (e = s->oldest; e && s->bytes + need > s->max; e = newer) {
        newer = e->newer;
        if (e->ends && e->ends <= now)
            drop(s, slot_of(s, e->bytes, e->n_key));
    }
    while (s->oldest && s->bytes + need > s->max)
        drop(s, slot_of(s, s->oldest->bytes, s->oldest->n_key));
}

/* A live entry, moved to the front; NULL when there is none. */
static struct entry *find(struct mc_shared *s, const char *key, size_t n, double now)
{
    struct entry **at = slot_of(s, key, n);
    struct entry *e = *at;

    if (e && e->ends && e->ends <= now) {
        drop(s, at);
        return NULL;
    }
    if (e) {
        unlist(s, e);
        list_first(s, e);
    }
    return e;
}

static struct entry *add(struct mc_shared *s, const char *key, size_t n_key,
                         const char *text, size_t n_text, double ttl, double now,
                         struct mc_err *err)
{
    struct entry **at, *e;

    if (n_key == 0 || n_key > MC_SHARED_KEY || n_text > MC_SHARED_VALUE) {
        mc_fail(err, MC_EARG, "a key has 1..%d bytes, a value at most %d", MC_SHARED_KEY,
                MC_SHARED_VALUE);
        return NULL;
    }
    e = calloc(1, sizeof *e + n_key + n_text);
    if (!e) {
        mc_fail(err, MC_ENOMEM, "no memory for a shared value");
        return NULL;
    }
    e->n_key = n_key;
    e->n_text = n_text;
    e->ends = ttl > 0 ? now + ttl : 0;
    memcpy(e->bytes, key, n_key);
    if (n_text)
        memcpy(e->bytes + n_key, text, n_text);
    at = slot_of(s, key, n_key);
    if (*at)
        drop(s, at);
    make_room(s, size_of(e), now);
    at = slot_of(s, key, n_key);
    *at = e;
    list_first(s, e);
    s->bytes += size_of(e);
    return e;
}

void mc_shared_close(struct mc_shared *s)
{
    if (!s)
        return;
    while (s->oldest)
        drop(s, slot_of(s, s->oldest->bytes, s->oldest->n_key));
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int mc_shared_set(struct mc_shared *s, const char *key, size_t n_key,
                  const struct mc_shared_value *v, double ttl, double now,
                  struct mc_err *err)
{
    struct entry *e;

    pthread_mutex_lock(&s->lock);
    e = add(s, key, n_key, v->text, v->is_text ? v->n : 0, ttl, now, err);
    if (e) {
        e->kind = v->is_text ? TEXT : NUMBER;
        e->number = v->number;
    }
    pthread_mutex_unlock(&s->lock);
    return e ? 0 : err->code;
}

void mc_shared_drop(struct mc_shared *s, const char *key, size_t n_key)
{
    struct entry **at;

    pthread_mutex_lock(&s->lock);
    at = slot_of(s, key, n_key);
    if (*at)
        drop(s, at);
    pthread_mutex_unlock(&s->lock);
}

bool mc_shared_get(struct mc_shared *s, const char *key, size_t n_key, double now,
                   struct mc_shared_value *out)
{
    struct entry *e;

    *out = (struct mc_shared_value){0};
    pthread_mutex_lock(&s->lock);
    e = find(s, key, n_key, now);
    if (e && e->kind == TEXT) {
        out->is_text = true;
        out->n = e->n_text;
        out->text = malloc(e->n_text + 1);
        if (out->text)
            memcpy(out->text, e->bytes + e->n_key, e->n_text);
        else
            e = NULL;
    } else if (e) {
        out->number = e->number;
    }
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}

int mc_shared_incr(struct mc_shared *s, const char *key, size_t n_key, double by,
                   double ttl, double now, double *out, struct mc_err *err)
{
    struct entry *e;
    int rc = 0;

    pthread_mutex_lock(&s->lock);
    e = find(s, key, n_key, now);
    if (!e)
        e = add(s, key, n_key, NULL, 0, ttl, now, err);
    if (!e)
        rc = err->code;
    else if (e->kind != NUMBER)
        rc = mc_fail(err, MC_EARG, "the value is no number");
    if (rc == 0)
        *out = e->number += by;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int mc_shared_take(struct mc_shared *s, const char *key, size_t n_key, double n,
                   double rate, double burst, double now, double *retry_after,
                   struct mc_err *err)
{
    struct entry *e;
    bool fresh;
    int rc = 0;

    *retry_after = 0;
    if (!(n > 0 && rate > 0 && burst >= n))
        return mc_fail(err, MC_EARG, "take: n and rate are positive, burst at least n");
    pthread_mutex_lock(&s->lock);
    e = find(s, key, n_key, now);
    fresh = !e;
    if (fresh)
        e = add(s, key, n_key, NULL, 0, 0, now, err);
    if (!e)
        rc = err->code;
    else if (!fresh && e->kind != BUCKET)
        rc = mc_fail(err, MC_EARG, "the value is no bucket");
    if (rc == 0 && fresh) {
        e->kind = BUCKET;
        e->number = burst;
        e->since = now;
    }
    if (rc == 0) {
        e->number = fmin(burst, e->number + (now - e->since) * rate);
        e->since = now;
        e->ends = now + burst / rate + 1; /* full by then: the same as no entry */
        if (e->number >= n) {
            e->number -= n;
        } else {
            *retry_after = (n - e->number) / rate;
            rc = mc_fail(err, MC_ELIMIT, "rate limit reached: try again in %.1f s",
                         *retry_after);
        }
    }
    pthread_mutex_unlock(&s->lock);
    return rc;
}
