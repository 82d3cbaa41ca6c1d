/* cors.c - pages of other origins: whom browsers may hand our answers to.
 *
 * Off until --cors names origins ("*": all). Preflights are answered here, for every
 * path, as no handler knows of them; keys travel in a header, so that cookies are never
 * asked for. OWNS nothing. THREAD: the HTTP thread; add_headers any. */
#include <string.h>

#include "core/serve/http_int.h"

static const char EXPOSED[] =
    "x-request-id, x-mascon-generation, retry-after, retry-after-ms";
static const char METHODS[] = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/* What access-control-allow-origin says to this request, or NULL. */
static const char *allowed(const struct mc_req *r)
{
    const char *list = r->http->o.cors, *origin = mc_req_header(r, "origin"), *at;
    size_t n = origin ? strlen(origin) : 0;

    if (!list || !*list || n == 0)
        return NULL;
    for (at = list; *at; at += strcspn(at, ", ")) {
        at += strspn(at, ", ");
        if (at[0] == '*' && strcspn(at, ", ") == 1)
            return "*";
        if (strcspn(at, ", ") == n && strncmp(at, origin, n) == 0)
            return origin;
    }
    return NULL;
}

void mc_cors_headers(const struct mc_req *r, struct MHD_Response *resp)
{
    const char *origin = allowed(r);

    if (!r->http->o.cors || !*r->http->o.cors)
        return;
    if (strcmp(r->http->o.cors, "*") != 0)
        MHD_add_response_header(resp, "Vary", "Origin");
    if (!origin)
        return;
    MHD_add_response_header(resp, "Access-Control-Allow-Origin", origin);
    MHD_add_response_header(resp, "Access-Control-Expose-Headers", EXPOSED);
}

bool mc_cors_preflight(struct mc_req *r)
{
    const char *wanted = mc_req_header(r, "access-control-request-headers");

    if (strcmp(r->method, "OPTIONS") != 0 || !allowed(r) ||
        !mc_req_header(r, "access-control-request-method"))
        return false;
    mc_res_header(r, "access-control-allow-methods", METHODS);
    if (wanted)
        mc_res_header(r, "access-control-allow-headers", wanted);
    mc_res_header(r, "access-control-max-age", "86400");
    mc_res_send(r, 204, NULL, "", 0);
    return true;
}
