/* nfc.h - Unicode normalisation form C. OWNS nothing. THREAD: any. */
#ifndef MC_MODEL_NFC_H
#define MC_MODEL_NFC_H

#include <stddef.h>

/* Normalises n bytes of valid UTF-8. *out is malloced, or NULL when s is plainly in form C
 * already. Returns 0 or MC_ENOMEM. Time n log n at worst. */
int mc_nfc(const char *s, size_t n, char **out, size_t *n_out);

#endif
