// The noise of stochastic rounding (kernels/noise.py says what it is).
#pragma once

#include "simd.h"

namespace division {
namespace DIVISION_ISA {

constexpr uint32_t kGolden = 0x9E3779B9u;

// All of the hash but its last step.
template <class V>
INLINE V almost(V h) {
  h ^= h >> 16;
  h *= 0x7FEB352Du;
  h ^= h >> 15;
  h *= 0x846CA68Bu;
  return h;
}

template <class V>
INLINE V mix(V h) {
  h = almost(h);
  return h ^ h >> 16;
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

// 65535 less the halves, twice: what the shorter way of rounding takes (rounding.h), from words one step short of done.
INLINE I rest_low(U almost) { return (I)(~(almost << 1 ^ almost >> 15) & 0x1FFFEu); }
INLINE I rest_high(U almost) { return (I)(~(almost >> 15) & 0x1FFFEu); }

// u of 32 consecutive elements of one row, the first of them a multiple of 32: `counter` is that of their first word,
// which `first_counter` begins and `next_counter` moves on.
constexpr int kStretch = 32;
INLINE U first_counter(int64_t element) {
  return (bits_as<U>(iota()) + uint32_t(element / 2)) * kGolden;
}
INLINE U next_counter(U counter) { return counter + 16u * kGolden; }

// What `low` and `high` make of the words' halves, in the order of the elements; `hash` makes the words.
template <class V, class Hash, class Low, class High>
INLINE void halves(U counter, U key, const Hash& hash, const Low& low, const High& high, V of[kStretch / W]) {
#if defined(__AVX512BW__)
  const U words = hash(counter ^ key);
  const __m512 first = (__m512)low(words), second = (__m512)high(words);
  of[0] = (V)_mm512_shuffle_f32x4(first, second, 0x44);
  of[1] = (V)_mm512_shuffle_f32x4(first, second, 0xEE);
#else
  const U first = hash(counter ^ key), second = hash((counter + 8u * kGolden) ^ key);
  of[0] = low(first);
  of[1] = high(first);
  of[2] = low(second);
  of[3] = high(second);
#endif
}

INLINE void uniform(U counter, U key, F u[kStretch / W]) {
  halves(
      counter, key, [](U h) { return mix(h); }, [](U words) { return uniform_low(words); },
      [](U words) { return uniform_high(words); }, u);
}

// The same elements' 65535 - half, twice.
INLINE void rests(U counter, U key, I rest[kStretch / W]) {
  halves(
      counter, key, [](U h) { return almost(h); }, [](U words) { return rest_low(words); },
      [](U words) { return rest_high(words); }, rest);
}

}  // namespace DIVISION_ISA
}  // namespace division
