/* ucat.h - what kind of character a code point is, as pre-tokenizers ask.
 *
 * One bit of L, N, M, P, S, OTHER by general category (separators have none of them),
 * plus SPACE for Unicode's White_Space, NEWLINE for CR and LF, UPPER and LOWER for letters
 * that are Lu or Lt and Ll, HAN for the script Han (not all of it letters). Never 0.
 * OWNS nothing. THREAD: any. */
#ifndef MC_MODEL_UCAT_H
#define MC_MODEL_UCAT_H

#include <stdint.h>

enum {
    MC_U_L = 1,   /* letters */
    MC_U_N = 2,   /* numbers */
    MC_U_M = 4,   /* marks */
    MC_U_P = 8,   /* punctuation */
    MC_U_S = 16,  /* symbols */
    MC_U_OTHER = 32,
    MC_U_SPACE = 64,
    MC_U_NEWLINE = 128,
    MC_U_UPPER = 256,
    MC_U_LOWER = 512,
    MC_U_HAN = 1024,
};

extern const uint16_t mc_ucat_ascii[128];
unsigned mc_ucat_wide(uint32_t cp); /* cp >= 128 */

static inline unsigned mc_ucat(uint32_t cp)
{
    return cp < 128 ? mc_ucat_ascii[cp] : mc_ucat_wide(cp);
}

#endif
