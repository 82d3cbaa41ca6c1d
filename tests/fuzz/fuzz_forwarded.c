/* fuzz_forwarded.c - X-Forwarded-For lines, and lists of trusted networks. */
#include <stdlib.h>
#include <string.h>

#include "core/serve/proxies.h"

int mc_fuzz(const uint8_t *data, size_t n);

/* The first line is a list of networks, each other one a header's value. */
int mc_fuzz(const uint8_t *data, size_t n)
{
    char *text = malloc(n + 1), *save = NULL, *line, out[MC_IP_TEXT];
    struct mc_proxies *p = NULL;
    struct in6_addr ip;

    memcpy(text, data, n);
    text[n] = 0;
    line = strtok_r(text, "\n", &save);
    if (line && mc_proxies_open(line, &p, NULL) < 0)
        mc_proxies_open("0.0.0.0/0,::/0", &p, NULL);
    mc_ip_parse("10.0.0.1", 8, &ip);
    while (line && (line = strtok_r(NULL, "\n", &save)))
        mc_proxies_follow(p, line, &ip);
    mc_ip_text(&ip, out);
    mc_proxies_close(p);
    free(text);
    return 0;
}
