/* term.c - see term.h. OWNS nothing. */
#define _GNU_SOURCE
#include "core/cli/term.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>

void mc_term_put(const char *s, size_t n, bool terminal)
{
    size_t i;

    if (!terminal) {
        fwrite(s, 1, n, stdout);
        return;
    }
    for (i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];

        if ((c < 32 && c != '\n' && c != '\t') || c == 127)
            printf("\\x%02x", c);
        else if (c == 0xC2 && i + 1 < n && (unsigned char)s[i + 1] < 0xA0)
            printf("\\u%04x", (unsigned char)s[++i]); /* C1 controls */
        else
            putchar(c);
    }
}

int mc_term_wait(int fd, volatile sig_atomic_t *interrupt)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    sigset_t block, old;
    int rc = 0;

    /* blocked but in ppoll: one that comes between the check and the wait is not lost */
    sigemptyset(&block);
    sigaddset(&block, SIGINT);
    pthread_sigmask(SIG_BLOCK, &block, &old);
    while (rc <= 0 && !(interrupt && *interrupt)) {
        rc = ppoll(&p, 1, NULL, &old);
        if (rc < 0 && errno != EINTR)
            rc = 1; /* the read will say what is wrong */
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc > 0)
        return 1;
    *interrupt = 0;
    return 0;
}
