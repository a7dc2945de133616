// The noise of stochastic rounding (kernels/noise.py says what it is).
#pragma once

#include "simd.h"

namespace division {
namespace DIVISION_ISA {

constexpr uint32_t kGolden = 0x9E3779B9u;

template <class V>
INLINE V mix(V h) {
  h ^= h >> 16;
  h *= 0x7FEB352Du;
  h ^= h >> 15;
  h *= 0x846CA68Bu;
  h ^= h >> 16;
  return h;
}

struct Seed {
  uint32_t low, high;
};

INLINE uint32_t row_key(Seed seed, int64_t row) {
  const uint32_t low = uint32_t(row), high = uint32_t(uint64_t(row) >> 32);
  return mix(mix(low ^ seed.low) ^ seed.high ^ (high * kGolden));
}

// Keys of the rows `row` to `row + W`.
INLINE U row_keys(Seed seed, int64_t row) {
  if (uint32_t(row) <= 0xFFFFFFFFu - W) {
    const U low = uint32_t(row) + bits_as<U>(iota());
    return mix(mix(low ^ seed.low) ^ (seed.high ^ uint32_t(uint64_t(row) >> 32) * kGolden));
  }
  U keys;
  for (int i = 0; i < W; i++) keys[i] = row_key(seed, row + i);
  return keys;
}

// u of the elements that take the low, or the high, halves of the words: exact, in (0, 1).
INLINE F uniform_low(U words) { return bits_as<F>(((words << 7) & 0x7FFF80u) | 0x3F800040u) - 1.0f; }
INLINE F uniform_high(U words) { return bits_as<F>(((words >> 9) & 0x7FFF80u) | 0x3F800040u) - 1.0f; }

// 65535 less the halves, as whole numbers: what the shorter way of rounding takes (rounding.h).
INLINE I rest_low(U words) { return (I)(~words & 0xFFFFu); }
INLINE I rest_high(U words) { return (I)(~words >> 16); }

// u of 32 consecutive elements of one row, the first of them a multiple of 32: `counter` is that of their first word,
// which `first_counter` begins and `next_counter` moves on.
constexpr int kStretch = 32;
INLINE U first_counter(int64_t element) {
  return (bits_as<U>(iota()) + uint32_t(element / 2)) * kGolden;
}
INLINE U next_counter(U counter) { return counter + 16u * kGolden; }

INLINE void uniform(U counter, U key, F u[kStretch / W]) {
#if defined(__AVX512BW__)
  const U words = mix(counter ^ key);
  const __m512 low = (__m512)uniform_low(words), high = (__m512)uniform_high(words);
  u[0] = (F)_mm512_shuffle_f32x4(low, high, 0x44);
  u[1] = (F)_mm512_shuffle_f32x4(low, high, 0xEE);
#else
  const U first = mix(counter ^ key), second = mix((counter + 8u * kGolden) ^ key);
  u[0] = uniform_low(first);
  u[1] = uniform_high(first);
  u[2] = uniform_low(second);
  u[3] = uniform_high(second);
#endif
}

// The same elements' 65535 - half.
INLINE void rests(U counter, U key, I rest[kStretch / W]) {
#if defined(__AVX512BW__)
  const U words = mix(counter ^ key);
  const __m512i low = (__m512i)rest_low(words), high = (__m512i)rest_high(words);
  rest[0] = (I)_mm512_shuffle_i32x4(low, high, 0x44);
  rest[1] = (I)_mm512_shuffle_i32x4(low, high, 0xEE);
#else
  const U first = mix(counter ^ key), second = mix((counter + 8u * kGolden) ^ key);
  rest[0] = rest_low(first);
  rest[1] = rest_high(first);
  rest[2] = rest_low(second);
  rest[3] = rest_high(second);
#endif
}

}  // namespace DIVISION_ISA
}  // namespace division
