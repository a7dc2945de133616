// 64 bytes taken together: sums, comparisons, planes of their bits, and those that a mask has side by side.
#pragma once

#include "pack.h"

namespace division {
namespace DIVISION_ISA {

constexpr int kWord = 64;

INLINE int ones(uint64_t bits) { return __builtin_popcountll(bits); }

#if defined(__AVX512BW__)
constexpr int kParts = 1;
#elif defined(__AVX2__)
constexpr int kParts = 2;
#else
constexpr int kParts = 4;
#endif
typedef uint8_t Part __attribute__((vector_size(kWord / kParts)));
typedef uint16_t Pairs __attribute__((vector_size(kWord / kParts)));

class Bytes {
 public:
  INLINE Bytes() : part_{} {}
  INLINE explicit Bytes(const uint8_t* from) { std::memcpy(part_, from, sizeof(part_)); }
  INLINE void store(uint8_t* to) const { std::memcpy(to, part_, sizeof(part_)); }
#if defined(__AVX512BW__)
  INLINE explicit Bytes(__m512i bytes) : part_{(Part)bytes} {}
  INLINE __m512i all() const { return (__m512i)part_[0]; }
#endif
  static INLINE Bytes of(int value) {
    Bytes found;
    for (Part& part : found.part_) part += uint8_t(value);
    return found;
  }

#define DIVISION_OPERATOR(op)                                          \
  friend INLINE Bytes operator op(Bytes a, Bytes b) {                  \
    for (int k = 0; k < kParts; k++) a.part_[k] = a.part_[k] op b.part_[k]; \
    return a;                                                          \
  }
  DIVISION_OPERATOR(+)
  DIVISION_OPERATOR(-)
  DIVISION_OPERATOR(&)
  DIVISION_OPERATOR(|)
  DIVISION_OPERATOR(^)
#undef DIVISION_OPERATOR

  // Each times 2^bits, and divided by it; below 8.
  INLINE Bytes up(int bits) const {
    Bytes found;
    for (int k = 0; k < kParts; k++) found.part_[k] = Part(Pairs(part_[k]) << bits) & uint8_t(255 << bits);
    return found;
  }
  INLINE Bytes down(int bits) const {
    Bytes found;
    for (int k = 0; k < kParts; k++) found.part_[k] = Part(Pairs(part_[k]) >> bits) & uint8_t(255 >> bits);
    return found;
  }

  // 0, -1, 1, -2, ... as 0, 1, 2, 3, ..., and back.
  INLINE Bytes folded() const {
    Bytes found;
    for (int k = 0; k < kParts; k++) found.part_[k] = (part_[k] + part_[k]) ^ Part(Signed(part_[k]) < 0);
    return found;
  }
  INLINE Bytes unfolded() const { return down(1) ^ (Bytes() - (*this & of(1))); }

  // Which are `least` or more; 1 to 255.
  INLINE uint64_t at_least(int least) const {
#if defined(__AVX512BW__)
    return _mm512_cmpge_epu8_mask(all(), _mm512_set1_epi8(char(least)));
#else
    Bytes found;
    for (int k = 0; k < kParts; k++) found.part_[k] = Part(part_[k] >= uint8_t(least));
    return found.tops();
#endif
  }

  // Their bit `bit`.
  INLINE uint64_t plane(int bit) const {
#if defined(__AVX512BW__)
    return _mm512_test_epi8_mask(all(), _mm512_set1_epi8(char(1 << bit)));
#else
    return up(7 - bit).tops();
#endif
  }

  // The bits of `plane` times `weight` more.
  INLINE void add(uint64_t plane, int weight) {
#if defined(__AVX512BW__)
    *this = Bytes(_mm512_mask_add_epi8(all(), plane, all(), _mm512_set1_epi8(char(weight))));
#elif defined(__AVX2__)
    const __m256i byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i bit = _mm256_set1_epi64x(int64_t(0x8040201008040201u)), own = _mm256_set1_epi8(char(weight));
    for (int k = 0; k < 2; k++) {
      const __m256i all = _mm256_shuffle_epi8(_mm256_set1_epi32(int32_t(plane >> 32 * k)), byte);
      part_[k] += (Part)_mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(all, bit), bit), own);
    }
#else
    uint8_t bytes[kWord];
    for (int k = 0; k < 8; k++) {
      const uint64_t each = (plane >> 8 * k & 255) * kLowest & 0x8040201008040201u;
      store_bits(bytes + 8 * k, (((each + 0x7F7F7F7F7F7F7F7Fu) | each) >> 7 & kLowest) * uint64_t(weight));
    }
    *this = *this + Bytes(bytes);
#endif
  }

  // All of them or-ed.
  INLINE int joined() const {
    uint64_t found = 0;
    for (int k = 0; k < kWord / 8; k++) found |= word(k);
    found |= found >> 32, found |= found >> 16;
    return int((found | found >> 8) & 255);
  }

 private:
  friend class Sum;
  typedef int8_t Signed __attribute__((vector_size(kWord / kParts)));
  static constexpr uint64_t kLowest = 0x0101010101010101u;

  INLINE uint64_t word(int k) const {
    uint64_t found;
    std::memcpy(&found, reinterpret_cast<const uint8_t*>(part_) + 8 * k, 8);
    return found;
  }

#if !defined(__AVX512BW__)
  // Their highest bits.
  INLINE uint64_t tops() const {
#if defined(__AVX2__)
    return uint32_t(_mm256_movemask_epi8((__m256i)part_[0])) |
           uint64_t(uint32_t(_mm256_movemask_epi8((__m256i)part_[1]))) << 32;
#else
    uint64_t found = 0;
    for (int k = 0; k < 8; k++) found |= ((word(k) >> 7 & kLowest) * 0x0102040810204080u >> 56) << 8 * k;
    return found;
#endif
  }
#endif

  Part part_[kParts];
};

// The sum of many.
class Sum {
 public:
#if defined(__AVX512BW__)
  INLINE void add(Bytes bytes) {
    sum_ = _mm512_add_epi64(sum_, _mm512_sad_epu8(bytes.all(), _mm512_setzero_si512()));
  }
  INLINE int64_t total() const { return _mm512_reduce_add_epi64(sum_); }

 private:
  __m512i sum_ = _mm512_setzero_si512();
#else
  INLINE void add(Bytes bytes) {
    constexpr uint64_t even = 0x00FF00FF00FF00FFu;
    for (int k = 0; k < kWord / 8; k++) {
      const uint64_t eight = bytes.word(k);
      sum_ += ((eight & even) + (eight >> 8 & even)) * 0x0001000100010001u >> 48;
    }
  }
  INLINE int64_t total() const { return int64_t(sum_); }

 private:
  uint64_t sum_ = 0;
#endif
};

// Those that the mask has, side by side, to `to`, where 64 are written. Returns how many they are.
INLINE int squeeze(Bytes bytes, uint64_t mask, uint8_t* to) {
#if defined(__AVX512VBMI2__)
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi8(mask, bytes.all()));
  return ones(mask);
#else
  uint8_t from[kWord];
  bytes.store(from);
  int count = 0;
#if defined(__BMI2__)
  for (int k = 0; k < 8; k++, mask >>= 8) {
    const uint64_t each = _pdep_u64(mask, 0x0101010101010101u) * 255;
    store_bits(to + count, _pext_u64(load_bits<uint64_t>(from + 8 * k), each));
    count += ones(mask & 255);
  }
#else
  for (int i = 0; i < kWord; i++, mask >>= 1) {
    to[count] = from[i];
    count += int(mask & 1);
  }
#endif
  return count;
#endif
}

// And from there, where 64 are read, back to their places; 0 elsewhere.
INLINE Bytes spread(const uint8_t* from, uint64_t mask) {
#if defined(__AVX512VBMI2__)
  return Bytes(_mm512_maskz_expand_epi8(mask, _mm512_loadu_si512(from)));
#else
  uint8_t to[kWord];
#if defined(__BMI2__)
  for (int k = 0; k < 8; k++, mask >>= 8) {
    const uint64_t each = _pdep_u64(mask, 0x0101010101010101u) * 255;
    store_bits(to + 8 * k, _pdep_u64(load_bits<uint64_t>(from), each));
    from += ones(mask & 255);
  }
#else
  for (int i = 0; i < kWord; i++, mask >>= 1) {
    to[i] = (mask & 1) ? *from : 0;
    from += mask & 1;
  }
#endif
  return Bytes(to);
#endif
}

// 64 numbers below 256 to bytes.
INLINE void to_bytes(const I numbers[kWord / W], uint8_t* bytes) { pack<8>(numbers, bytes); }

// W bytes as numbers, and those with a sign.
INLINE I from_bytes(const uint8_t* bytes) { return unpack<8>(bytes); }
INLINE I from_signed_bytes(const uint8_t* bytes) {
#if defined(__AVX512BW__)
  return (I)_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
#elif defined(__AVX2__)
  return (I)_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
#else
  return (I)(from_bytes(bytes) << 24) >> 24;
#endif
}

}  // namespace DIVISION_ISA
}  // namespace division
