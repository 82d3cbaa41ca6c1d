/* sample.h - what measurements are made of: sorted samples, the memory in use.
 *
 * OWNS nothing. THREAD: any. */
#ifndef MC_BASE_SAMPLE_H
#define MC_BASE_SAMPLE_H

/* Of n >= 1, which it sorts; of an even number the mean of the two in the middle. */
double mc_median(double *v, int n);
void mc_sort_floats(float *v, int n);
/* Bytes of memory that the process has now; 0: the system does not say. */
double mc_resident_bytes(void);

#endif
