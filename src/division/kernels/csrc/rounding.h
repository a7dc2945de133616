// Directed rounding to bfloat16 and the parameters of affine quantisation (kernels/reference/quantize.py says what).
#pragma once

#include "simd.h"

namespace division {
namespace DIVISION_ISA {

// To the next bfloat16 value below or equal.
INLINE F round_down(F x) {
  const I bits = bits_as<I>(x + 0.0f);
  const I cut = bits & ~0xFFFF;
  const I below = (bits < 0) & (cut != bits);
  return bits_as<F>(cut + (below & 0x10000));
}

// Non-negative floats to the next bfloat16 value above or equal.
INLINE F round_up(F x) { return bits_as<F>((bits_as<I>(x) + 0xFFFF) & ~0xFFFF); }

// To the nearest bfloat16 value, ties to even, never -0; for finite values within bfloat16's range.
INLINE F round_nearest(F x) {
  const U bits = bits_as<U>(x);
  return bits_as<F>((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000u) + 0.0f;
}

INLINE I is_finite(F x) { return (bits_as<I>(x) & 0x7F800000) != 0x7F800000; }

// Parameters of W rows, and how their elements become codes.
struct Scale {
  F offset, step;   // what is stored: NaN where the row is to decode to NaN
  F origin, inverse;  // code = floor(t) or one more, t = (r - origin) * inverse
  I special;        // all ones where every code of the row is `fill` instead
  I fill;
};

INLINE Scale quantisation(F low, F high, I finite, float levels) {
  const F offset = round_down(low);
  const F spread = high - offset + 0.0f;
  const F tiny = splat(std::numeric_limits<float>::min());
  // The minimum, unlike the instruction's, is to be NaN where the quotient is.
  const F quotient = spread / levels;
  const F least = select((I)(quotient < tiny), tiny, quotient);
  const F whole = round_up(spread);
  const I constant = (I)(high == low) & (I)(whole == spread);
  const F step = select(constant, whole, round_up(least));
  const I usable = finite & is_finite(step) & is_finite(offset);
  const F nan = splat(kNaN);
  Scale scale;
  scale.offset = select(usable, offset, nan);
  scale.step = select(usable, step, nan);
  scale.special = constant | ~usable;
  scale.fill = constant & 1;
  scale.origin = select(scale.special, F{}, offset);
  scale.inverse = select(scale.special, F{}, 1.0f / step);
  return scale;
}

// Stochastic rounding, code = floor(t) + [u < t - floor(t)] and at most `levels`, the plain way.
INLINE I stochastic(F t, F u, I levels) {
  const I whole = to_int(t);
  return min(add_where_less(whole, u, t - to_float(whole)), levels);
}

// The same in whole numbers: with T = t * kOne and u = (2 * half + 1) / kOne, u lies below the fraction of t where
// 2 * half + 2 is at most that of ceil(T). T is exact, and `rest` is kOne - (2 * half + 2). The code, of up to 8 bits,
// stands above the lowest kShift bits of what is returned.
constexpr int kShift = 17;
constexpr float kOne = 1 << kShift;
INLINE I stochastic_whole(F scaled, I rest, int32_t levels) {
#if defined(__AVX512BW__)
  const I up = (I)_mm512_cvt_roundps_epi32((__m512)scaled, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
  const I up = (I)_mm256_cvttps_epi32(_mm256_ceil_ps((__m256)scaled));
#else
  const I whole = to_int(scaled);
  const I up = whole - (I)(to_float(whole) < scaled);
#endif
  return min(up + rest, splat((levels + 1) << kShift) - 1);
}

// Whether all W inverses, times kOne, are finite: only then do whole numbers serve.
INLINE bool scalable(F inverse) { return !any((I)(inverse > splat(0x1p100f))); }

INLINE uint16_t upper(float x) { return uint16_t(bits_as<uint32_t>(x) >> 16); }
INLINE float from_upper(uint16_t bits) { return bits_as<float>(uint32_t(bits) << 16); }

}  // namespace DIVISION_ISA
}  // namespace division
