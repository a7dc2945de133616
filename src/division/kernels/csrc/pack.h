// Codes of 1, 2, 4 or 8 bits to bytes, 64 at a time: the first of a byte in its low bits.
#pragma once

#include "simd.h"

namespace division {
namespace DIVISION_ISA {

constexpr int kBatch = 64;

// `codes[e]` below 2^Q to the 8 * Q bytes of 64 codes.
template <int Q>
INLINE void pack(const I codes[kBatch / W], uint8_t* bytes) {
#if defined(__AVX512BW__)
  const __m128i quarter[4] = {
      _mm512_cvtepi32_epi8((__m512i)codes[0]), _mm512_cvtepi32_epi8((__m512i)codes[1]),
      _mm512_cvtepi32_epi8((__m512i)codes[2]), _mm512_cvtepi32_epi8((__m512i)codes[3])};
  __m512i all = _mm512_castsi128_si512(quarter[0]);
  all = _mm512_inserti32x4(all, quarter[1], 1);
  all = _mm512_inserti32x4(all, quarter[2], 2);
  all = _mm512_inserti32x4(all, quarter[3], 3);
  if (Q == 8) {
    _mm512_storeu_si512(bytes, all);
  } else if (Q == 4) {
    const __m512i pairs = _mm512_maddubs_epi16(all, _mm512_set1_epi16(0x1001));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bytes), _mm512_cvtepi16_epi8(pairs));
  } else if (Q == 2) {
    const __m512i pairs = _mm512_maddubs_epi16(all, _mm512_set1_epi16(0x0401));
    const __m512i fours = _mm512_madd_epi16(pairs, _mm512_set1_epi32(0x00100001));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bytes), _mm512_cvtepi32_epi8(fours));
  } else {
    const uint64_t mask = _mm512_test_epi8_mask(all, _mm512_set1_epi8(1));
    std::memcpy(bytes, &mask, 8);
  }
#elif defined(__AVX2__)
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  __m256i half[2];
  for (int k = 0; k < 2; k++) {
    const __m256i a = _mm256_packs_epi32((__m256i)codes[4 * k], (__m256i)codes[4 * k + 1]);
    const __m256i b = _mm256_packs_epi32((__m256i)codes[4 * k + 2], (__m256i)codes[4 * k + 3]);
    half[k] = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order);
  }
  if (Q == 8) {
    store_bits(bytes, half[0]);
    store_bits(bytes + 32, half[1]);
  } else if (Q == 4) {
    const __m256i ones = _mm256_set1_epi16(0x1001);
    const __m256i both = _mm256_packus_epi16(_mm256_maddubs_epi16(half[0], ones), _mm256_maddubs_epi16(half[1], ones));
    store_bits(bytes, _mm256_permute4x64_epi64(both, 0xD8));
  } else if (Q == 2) {
    const __m256i first = _mm256_set1_epi16(0x0401), second = _mm256_set1_epi32(0x00100001);
    const __m256i a = _mm256_madd_epi16(_mm256_maddubs_epi16(half[0], first), second);
    const __m256i b = _mm256_madd_epi16(_mm256_maddubs_epi16(half[1], first), second);
    const __m256i words = _mm256_packs_epi32(a, b);  // of a and b, their lower halves, then their upper ones
    const __m256i fours = _mm256_packus_epi16(words, words);
    const __m256i joined = _mm256_permutevar8x32_epi32(fours, _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5));
    store_bits(bytes, _mm256_castsi256_si128(joined));
  } else {
    for (int k = 0; k < 2; k++) {
      const int mask = _mm256_movemask_epi8(_mm256_slli_epi16(half[k], 7));
      std::memcpy(bytes + 4 * k, &mask, 4);
    }
  }
#else
  constexpr int per = 8 / Q;
  for (int byte = 0; byte < kBatch / per; byte++) {
    uint32_t together = 0;
    for (int k = 0; k < per; k++) {
      const int e = byte * per + k;
      together |= uint32_t(codes[e / W][e % W]) << (k * Q);
    }
    bytes[byte] = uint8_t(together);
  }
#endif
}

// The W codes that begin at `bytes` (on a byte boundary: W * Q is a multiple of 8).
template <int Q>
INLINE I unpack(const uint8_t* bytes) {
#if defined(__AVX2__)
  if (Q == 8) {
#if defined(__AVX512BW__)
    return (I)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#else
    return (I)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
#endif
  }
  const I shifts = (iota() * Q) & 31;
  if (Q * W <= 32) {
    uint32_t word = 0;
    std::memcpy(&word, bytes, Q * W / 8);
    return (I)((splat(word) >> bits_as<U>(shifts)) & ((1u << Q) - 1));
  }
  uint32_t words[2];
  std::memcpy(words, bytes, 8);
  const U both = iota() < W / 2 ? splat(words[0]) : splat(words[1]);
  return (I)((both >> bits_as<U>(shifts)) & ((1u << Q) - 1));
#else
  constexpr uint32_t low = (1u << Q) - 1;
  const U::Half masks = {low, low << Q, low << (2 * Q), low << (3 * Q)};
  const U::Half up = {1u << (3 * Q), 1u << (2 * Q), 1u << Q, 1u};
  U codes;
  for (int h = 0; h < 2; h++) {
    uint32_t word = 0;
    std::memcpy(&word, bytes + h * Q / 2, (Q + 1) / 2);
    if (Q == 1) word >>= 4 * h;
    codes.half[h] = (((word - U::Half{}) & masks) * up) >> (3 * Q);
  }
  return (I)codes;
#endif
}

}  // namespace DIVISION_ISA
}  // namespace division
