// One block of the error-bounded code: kernels/reference/error_bound.py says what it holds, bit for bit.
#pragma once

#include "masks.h"
#include "planes.h"

namespace division {
namespace DIVISION_ISA {

constexpr int kBlock = 2048, kWords = kBlock / kWord, kPer = kWord / W;
constexpr int kHead = 2, kLevels = 6, kBits = 25, kLowBytes = 3;
constexpr int kNone = 0, kFlags = 1, kTree = 2, kExact = 3;
constexpr float kMost = float(1 << 22), kRound = float(3 << 22);
// The most bytes that the planes of a block take, with what is written beyond them.
constexpr int kRoom = kHead + kBlock * (kBits + kLevels + 1 + kBits) / 8 + 64;

template <class T>
struct Factor;
template <>
struct Factor<float> { static constexpr float value = 2 - 0x1p-9f; };
template <>
struct Factor<Float16> { static constexpr float value = 1.875f; };
template <>
struct Factor<BFloat16> { static constexpr float value = 1.75f; };

template <class T>
INLINE F nearest(F x) { return rounded<T>(x); }
template <>
INLINE F nearest<float>(F x) { return x; }

// A step: of twice the bound and a little less, or of the bound.
template <class T>
INLINE float step_of(float bound, bool fine) {
  const float step = fine ? bound : bound * Factor<T>::value;
  return step > std::numeric_limits<float>::max() ? std::numeric_limits<float>::max() : step;
}

// What a block's numbers look like before and while they are written, and once they are read.
struct Block {
  alignas(64) int32_t whole[W + kBlock];  // numbers of steps, from W on, after a 0
  alignas(64) int32_t apart[kBlock];      // how they differ from the one before, signs folded in
  // The same in bytes, if that is enough: after a 0 too; with their signs folded in; and how they differ.
  alignas(64) uint8_t narrow[kWord + kBlock], narrow_plain[kBlock], narrow_apart[kBlock];
  // Of the numbers that planes say something of, side by side: bytes of the low bits, and what is above those.
  alignas(64) uint8_t low[kLowBytes][kBlock + kWord], above[2][kBlock + kWord];
  uint64_t is_nonzero[2][kWords];  // of `whole` and of `apart`
  uint64_t there[kWords], live[kWords];
  int64_t total[2];
  int most[2];  // binary digits of the greatest
  int words, count;
  bool has_sign, is_narrow;

  void begin(int64_t elements) {
    count = int(elements), words = (count + kWord - 1) / kWord;
    whole[W - 1] = 0, narrow[kWord - 1] = 0;
    for (int w = 0; w < words; w++) there[w] = ~uint64_t(0);
    if (count % kWord) there[words - 1] = (uint64_t(1) << count % kWord) - 1;
  }

  // Which numbers the planes say something of; how many.
  int64_t keep(const uint64_t* mask) {
    int64_t all = 0;
    for (int w = 0; w < words; w++) live[w] = mask[w], all += ones(mask[w]);
    return all;
  }
};

// 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
INLINE I folded(I x, int by) { return (x << by) ^ (x >> 31); }
INLINE I unfolded(I x) { return (I)((U)x >> 1) ^ -(x & 1); }

INLINE int words_of(int64_t count) { return int((count + kWord - 1) / kWord); }

// Whether a whole number of so many steps, rounded to the type, may be beyond its range.
template <class T>
INLINE bool may_overflow(float step) { return !(step * (2 * kMost) < limit<T>()[0]); }

}  // namespace DIVISION_ISA
}  // namespace division
