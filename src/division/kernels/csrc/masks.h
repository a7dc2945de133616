// Comparisons of whole vectors, and the bits they give.
#pragma once

#include "simd.h"

namespace division {
namespace DIVISION_ISA {

// One truth a lane.
#if defined(__AVX512BW__)
typedef __mmask16 Mask;
INLINE Mask less(F a, F b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ); }
INLINE Mask at_most(F a, F b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LE_OQ); }
INLINE Mask equal(F a, F b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_EQ_OQ); }
INLINE Mask both(Mask a, Mask b) { return Mask(a & b); }
INLINE Mask either(Mask a, Mask b) { return Mask(a | b); }
INLINE Mask opposite(Mask a) { return Mask(~a); }
#else
typedef I Mask;
INLINE Mask less(F a, F b) { return (I)(a < b); }
INLINE Mask at_most(F a, F b) { return (I)(a <= b); }
INLINE Mask equal(F a, F b) { return (I)(a == b); }
INLINE Mask both(Mask a, Mask b) { return a & b; }
INLINE Mask either(Mask a, Mask b) { return a | b; }
INLINE Mask opposite(Mask a) { return ~a; }
#endif

// W bits, that of lane 0 the lowest.
INLINE uint32_t bits_of(Mask mask) {
#if defined(__AVX512BW__)
  return mask;
#elif defined(__AVX2__)
  return uint32_t(_mm256_movemask_ps((__m256)mask));
#else
  const int32_t lane[W] = {1, 2, 4, 8, 16, 32, 64, 128};
  uint64_t pair[W / 2];
  store_bits(pair, mask & load_bits<I>(lane));
  const uint64_t all = (pair[0] | pair[1]) | (pair[2] | pair[3]);
  return uint32_t(all | all >> 32);
#endif
}

// Whether any bit is 1.
INLINE bool any(U bits) {
#if defined(__AVX512BW__)
  return _mm512_test_epi32_mask((__m512i)bits, (__m512i)bits) != 0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)bits, (__m256i)bits);
#else
  uint64_t pair[W / 2];
  store_bits(pair, bits);
  return ((pair[0] | pair[1]) | (pair[2] | pair[3])) != 0;
#endif
}

}  // namespace DIVISION_ISA
}  // namespace division
