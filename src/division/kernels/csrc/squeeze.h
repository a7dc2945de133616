// Values without their zeros, and the bits that say where those were: W planes at a time, 32 places after another.
#pragma once

#include "frequency.h"

namespace division {
namespace DIVISION_ISA {

// The words of W masks, one after the other.
class Masks {
 public:
  Masks(const Blocks& of, int64_t plane) : bytes_(of.mask_bytes()), plane_(plane), places_(of.map.elements()) {}

  INLINE uint32_t read(const uint8_t* masks, int lane, int64_t word) const {
    const uint8_t* const from = masks + (plane_ + lane) * bytes_ + 4 * word;
    if (4 * word + 4 <= bytes_) return load_bits<uint32_t>(from);
    uint32_t found = 0;
    for (int64_t i = 0; i < bytes_ - 4 * word; i++) found |= uint32_t(from[i]) << (8 * i);
    return found;
  }
  INLINE void write(uint8_t* masks, int lane, int64_t word, uint32_t bits) const {
    uint8_t* const to = masks + (plane_ + lane) * bytes_ + 4 * word;
    if (4 * word + 4 <= bytes_) return store_bits(to, bits);
    for (int64_t i = 0; i < bytes_ - 4 * word; i++) to[i] = uint8_t(bits >> (8 * i));
  }
  int64_t words() const { return (places_ + kWordPlaces - 1) / kWordPlaces; }
  int64_t ones(const uint8_t* masks, int lane) const {
    int64_t count = 0;
    const uint8_t* const from = masks + (plane_ + lane) * bytes_;
    int64_t byte = 0;
    for (; byte + 8 <= bytes_; byte += 8) count += __builtin_popcountll(load_bits<uint64_t>(from + byte));
    for (; byte < bytes_; byte++) count += __builtin_popcount(from[byte]);
    return count;
  }

 private:
  int64_t bytes_, plane_, places_;
};

// From ring[place, lane] of a word's places those that a lane's bits say, to where the lane's values go on.
INLINE void squeeze(const float* ring, const uint32_t bits[W], int lanes, int8_t* next[W]) {
#if defined(__AVX512BW__)
  for (int half = 0; half < kWordPlaces; half += W) {
    F rows[W];
    for (int p = 0; p < W; p++) rows[p] = load(ring + (half + p) * W);
    transpose(rows);
    for (int l = 0; l < lanes; l++) {
      const uint32_t mask = bits[l] >> half & 0xFFFF;
      const int count = __builtin_popcount(mask);
      const __m512i kept = _mm512_maskz_compress_epi32(__mmask16(mask), _mm512_cvtps_epi32((__m512)rows[l]));
      _mm_mask_storeu_epi8(next[l], __mmask16((1u << count) - 1), _mm512_cvtepi32_epi8(kept));
      next[l] += count;
    }
  }
#else
  for (int l = 0; l < lanes; l++) {
    int8_t* to = next[l];
    for (uint32_t left = bits[l]; left != 0; left &= left - 1) {
      *to++ = int8_t(int32_t(ring[__builtin_ctz(left) * W + l]));
    }
    next[l] = to;
  }
#endif
}

// And back; 0 elsewhere.
INLINE void spread(const int8_t* next[W], const uint32_t bits[W], int lanes, float* ring) {
#if defined(__AVX512BW__)
  for (int half = 0; half < kWordPlaces; half += W) {
    F rows[W];
    for (int l = 0; l < lanes; l++) {
      const uint32_t mask = bits[l] >> half & 0xFFFF;
      const int count = __builtin_popcount(mask);
      const __m512i some = _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(__mmask16((1u << count) - 1), next[l]));
      rows[l] = (F)_mm512_cvtepi32_ps(_mm512_maskz_expand_epi32(__mmask16(mask), some));
      next[l] += count;
    }
    for (int l = lanes; l < W; l++) rows[l] = splat(0.0f);
    transpose(rows);
    for (int p = 0; p < W; p++) store(ring + (half + p) * W, rows[p]);
  }
#else
  for (int p = 0; p < kWordPlaces; p++) store(ring + p * W, splat(0.0f));
  for (int l = 0; l < lanes; l++) {
    const int8_t* from = next[l];
    for (uint32_t left = bits[l]; left != 0; left &= left - 1) ring[__builtin_ctz(left) * W + l] = float(*from++);
    next[l] = from;
  }
#endif
}

}  // namespace DIVISION_ISA
}  // namespace division
