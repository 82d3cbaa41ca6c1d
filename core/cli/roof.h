/* roof.h - the memory bandwidth that this machine gives now. THREAD: any. */
#ifndef MC_CLI_ROOF_H
#define MC_CLI_ROOF_H

/* Bytes a second that n threads (0: one a core) read from memory, the best of several. */
double mc_roof(int n);

#endif
