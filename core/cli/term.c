/* term.c - see term.h. OWNS nothing. */
#include "core/cli/term.h"

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
