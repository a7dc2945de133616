// What the bodies of the dual codec share: one value of a block, and how a row of blocks is read back.
#pragma once

#include "map.h"
#include "noise.h"
#include "pack.h"
#include "rounding.h"

namespace division {
namespace DIVISION_ISA {

// The parts of a dual code, plane by plane.
struct DualCode {
  uint16_t* lfc;    // bfloat16 [planes, cells]
  uint8_t* codes;   // [planes, bytes]
  uint16_t* scale;  // bfloat16 [planes, (offset, step)]
  int64_t bytes;    // of the codes of one plane
  int bits;
};

constexpr float kBFloat16Max = 3.3895313892515355e38f;
constexpr float kRectified = 1.25f;  // RECTIFIED of the reference

// The mean of a block as the code keeps it; NaN stays NaN.
INLINE F block_value(F sum, F count) {
  const F mean = (sum + 0.0f) / count;
  const F bound = splat(kBFloat16Max);
  return round_nearest(max(-bound, min(bound, mean)));
}

// Whether the residual, `low` to `high`, is too wide beside the elements themselves for the means to be kept.
INLINE I wider_apart(F least, F most, F low, F high) {
  const F reach = high - low;
  const F bound = select((I)(least == splat(0.0f)), reach * kRectified, reach);
  return (I)(most - least < bound) & (I)(reach < splat(kInf));
}

// The sum of `width` (a power of two) values by halves; overwrites them.
template <class V>
INLINE V tree_sum(V* values, int64_t width) {
  while (width > 1) {
    width /= 2;
    for (int64_t i = 0; i < width; i++) values[i] = values[i] + values[i + width];
  }
  return values[0];
}

// The same of `width` vectors [width, W].
INLINE F tree_sum_of_vectors(float* values, int64_t width) {
  for (width /= 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; i++) store(values + i * W, load(values + i * W) + load(values + (i + width) * W));
  }
  return load(values);
}

// Up to so many columns of a block are summed from memory, more as they come.
constexpr int64_t kTree = 512;

// The same sum of the values at(0) to at(count - 1), zeros up to `width`: of those at `first` and every `step` after.
template <class At>
F sum_by_halves(int64_t first, int64_t step, int64_t width, int64_t count, const At& at) {
  if (step == width) return at(first);
  const F even = sum_by_halves(first, 2 * step, width, count, at);
  return first + step < count ? even + sum_by_halves(first + step, 2 * step, width, count, at) : even;
}

INLINE int64_t power_of_two(int64_t at_least) {
  int64_t width = 1;
  while (width < at_least) width *= 2;
  return width;
}

// The greatest magnitude among bfloat16 values.
INLINE float greatest(const uint16_t* values, int64_t count) {
  uint16_t found = 0;
  for (int64_t i = 0; i < count; i++) {
    const uint16_t size = values[i] & 0x7FFF;
    found = size > found ? size : found;
  }
  return from_upper(found);
}

// Whether `reach`, a bound of what is decoded, lies so far within the type's range that nothing needs to be held to it.
template <class T>
INLINE bool roomy(float reach) {
  return reach < 0.5f * limit<T>()[0];
}

template <class T, bool kRoomy>
INLINE F held(F x) {
  return kRoomy ? x : clamp<T>(x);
}

// Fills the codes of a plane with one value; the bits beyond the last code stay 0.
INLINE void fill_codes(uint8_t* codes, int64_t elements, int bits, int value) {
  const int per = 8 / bits;
  int byte = 0;
  for (int k = 0; k < per; k++) byte |= value << (k * bits);
  const int64_t full = elements / per, rest = elements % per;
  std::memset(codes, byte, full);
  if (rest) codes[full] = uint8_t(byte & ((1 << (rest * bits)) - 1));
}

// step * code + offset of W codes
template <int Q>
struct Values {
  F offset, step, table;

  Values(float offset_, float step_)
      : offset(splat(offset_)), step(splat(step_)), table(step * to_float(iota() & ((1 << Q) - 1)) + offset) {}

  // A bound of the magnitude of all of them; NaN where they are NaN.
  INLINE float reach() const {
    const F bound = absolute(offset) + float((1 << Q) - 1) * absolute(step);
    return bound[0];
  }

  // Whether they are looked up in `table`, not computed.
#if defined(__AVX2__)
  static constexpr bool kTable = Q == 2;
#else
  static constexpr bool kTable = false;
#endif

  INLINE F at(const uint8_t* bytes) const {
    if (!kTable) return step * to_float(unpack<Q>(bytes)) + offset;
    uint32_t word = 0;
    std::memcpy(&word, bytes, W / 4);
    // Of an index the lookup reads the lowest bits alone: those of the lane's own code and, in AVX-512, the next one's.
    const U index = splat(word) >> bits_as<U>(iota() * 2);
#if defined(__AVX2__) && !defined(__AVX512BW__)
    return (F)_mm256_permutevar_ps((__m256)table, (__m256i)index);
#else
    return lookup(table, (I)index);
#endif
  }
};

}  // namespace DIVISION_ISA
}  // namespace division
