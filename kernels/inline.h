/* inline.h - MC_INLINE: an inline function that device code may call too. */
#ifndef MC_INLINE_H
#define MC_INLINE_H

#ifdef __CUDACC__
#define MC_INLINE static inline __host__ __device__
#else
#define MC_INLINE static inline
#endif

#endif
