// Planes of bits, 64 elements a word, of which some elements are kept: written and read.
#pragma once

#include "bytes.h"

namespace division {
namespace DIVISION_ISA {

// The bits that `mask` has, side by side from the lowest on; and back to their places.
INLINE uint64_t squeezed(uint64_t bits, uint64_t mask) {
#if defined(__BMI2__)
  return _pext_u64(bits, mask);
#else
  uint64_t found = 0;
  for (int i = 0; mask != 0; i++, mask &= mask - 1) found |= uint64_t((bits & (mask & -mask)) != 0) << i;
  return found;
#endif
}

INLINE uint64_t parted(uint64_t bits, uint64_t mask) {
#if defined(__BMI2__)
  return _pdep_u64(bits, mask);
#else
  uint64_t found = 0;
  for (; mask != 0; bits >>= 1, mask &= mask - 1) found |= (bits & 1) ? mask & -mask : 0;
  return found;
#endif
}

// Writes bits, the first of a byte its lowest; up to 8 bytes beyond the last are written too.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* to) : start_(to), to_(to) {}

  // The lowest `count` bits, up to 64; those above are 0.
  INLINE void put(uint64_t bits, int count) {
    const uint64_t all = held_ | bits << filled_, beyond = bits >> 1 >> (63 - filled_);
    store_bits(to_, all);
    filled_ += count;
    const uint64_t full = uint64_t(filled_) / kWord;  // 0 or 1; a branch would often be guessed wrong
    to_ += full * 8;
    held_ = all ^ ((all ^ beyond) & -full);
    filled_ &= kWord - 1;
  }

  // All 64 of them.
  INLINE void put_word(uint64_t bits) {
    store_bits(to_, held_ | bits << filled_);
    held_ = bits >> 1 >> (63 - filled_);
    to_ += 8;
  }

  // How many bytes there are, once all is put.
  INLINE int64_t finish() {
    store_bits(to_, held_);
    return to_ - start_ + (filled_ + 7) / 8;
  }

 private:
  uint8_t* start_;
  uint8_t* to_;
  uint64_t held_ = 0;
  int filled_ = 0;
};

// 64 bits from bit `at` on; up to 9 bytes are read.
INLINE uint64_t bits_at(const uint8_t* from, int64_t at) {
  const uint8_t* const p = from + (at >> 3);
  const int skip = int(at & 7);
  return load_bits<uint64_t>(p) >> skip | uint64_t(p[8]) << 1 << (63 - skip);
}

// 64 bits: which of the numbers are not 0.
INLINE uint64_t nonzero(const I numbers[kWord / W]) {
  uint64_t found = 0;
  for (int k = 0; k < kWord / W; k++) {
#if defined(__AVX512BW__)
    found |= uint64_t(_mm512_test_epi32_mask((__m512i)numbers[k], (__m512i)numbers[k])) << (k * W);
#elif defined(__AVX2__)
    const I zero = (I)(numbers[k] == 0);
    found |= uint64_t(uint8_t(~_mm256_movemask_ps((__m256)zero))) << (k * W);
#else
    for (int i = 0; i < W; i++) found |= uint64_t(numbers[k][i] != 0) << (k * W + i);
#endif
  }
  return found;
}

// Lane i: the sum of lanes 0 to i.
INLINE I running_sum(I x) {
#if defined(__AVX512BW__)
  const __m512i zero = _mm512_setzero_si512();
  __m512i sum = (__m512i)x;
  sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 15));
  sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 14));
  sum = _mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 12));
  return (I)_mm512_add_epi32(sum, _mm512_alignr_epi32(sum, zero, 8));
#elif defined(__AVX2__)
  __m256i sum = (__m256i)x;
  sum = _mm256_add_epi32(sum, _mm256_slli_si256(sum, 4));
  sum = _mm256_add_epi32(sum, _mm256_slli_si256(sum, 8));
  const __m256i low = _mm256_permute2x128_si256(sum, sum, 0x08);  // the lower half above, nothing below
  return (I)_mm256_add_epi32(sum, _mm256_shuffle_epi32(low, 0xFF));
#else
  for (int i = 1; i < W; i++) x[i] += x[i - 1];
  return x;
#endif
}

// The last lane in all.
INLINE I last_lane(I x) {
#if defined(__AVX512BW__)
  return (I)_mm512_permutexvar_epi32(_mm512_set1_epi32(15), (__m512i)x);
#elif defined(__AVX2__)
  return (I)_mm256_permutevar8x32_epi32((__m256i)x, _mm256_set1_epi32(7));
#else
  return splat(x[W - 1]);
#endif
}

// All lanes together: or, and sum.
INLINE uint32_t joined(U x) {
  uint32_t all = 0;
  for (int i = 0; i < W; i++) all |= x[i];
  return all;
}

INLINE uint64_t total(U x) {
  uint64_t sum = 0;
  for (int i = 0; i < W; i++) sum += x[i];
  return sum;
}

}  // namespace DIVISION_ISA
}  // namespace division
