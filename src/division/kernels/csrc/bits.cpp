// The exact ops of one and two bits an element: kernels/reference/bits.py defines them, bit for bit.
#include "masks.h"
#include "stream.h"

namespace division {
namespace DIVISION_ISA {
namespace {

// A bound as the dtype holds it: through float32, as torch takes it.
float bound(double x, int type) {
  const float whole = float(x);
  if (type == 1) {
    const uint32_t bits = bits_as<uint32_t>(whole);
    return bits_as<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u);
  }
  if (type != 2) return whole;
  if (whole >= 65520.0f) return kInf;
  if (whole <= -65520.0f) return -kInf;
  return half_to_float(float_to_half(whole));
}

// What lies inside; a bound that isn't given is infinite and closed.
template <bool closed_lo, bool closed_hi, bool nan_inside>
INLINE Mask inside(F x, F lo, F hi) {
  if (nan_inside) {
    const Mask below = closed_lo ? less(x, lo) : at_most(x, lo), above = closed_hi ? less(hi, x) : at_most(hi, x);
    return opposite(either(below, above));
  }
  return both(closed_lo ? at_most(lo, x) : less(lo, x), closed_hi ? at_most(x, hi) : less(x, hi));
}

// 64 bits, one for each element.
template <class T, class Test>
INLINE uint64_t word(const T* x, const Test& test) {
  uint64_t bits = 0;
  for (int k = 0; k < kWord / W; k++) bits |= uint64_t(bits_of(test(load(x + k * W)))) << (k * W);
  return bits;
}

template <bool closed_lo, bool closed_hi, bool nan_inside, class T>
void encode_inside(const T* x, const Strided& of, float lo, float hi, uint8_t* codes) {
  const F low = splat(lo), high = splat(hi);
  encode_stream<1>(x, of, codes, [&](int64_t, const T* from, uint8_t* to) {
    store_bits(to, word(from, [&](F v) { return inside<closed_lo, closed_hi, nan_inside>(v, low, high); }));
  });
}

template <class T>
void encode_inside(const T* x, const Strided& of, float lo, float hi, int kind, uint8_t* codes) {
  switch (kind) {
    case 0: return encode_inside<false, false, false>(x, of, lo, hi, codes);
    case 1: return encode_inside<true, false, false>(x, of, lo, hi, codes);
    case 2: return encode_inside<false, true, false>(x, of, lo, hi, codes);
    case 3: return encode_inside<true, true, false>(x, of, lo, hi, codes);
    case 4: return encode_inside<false, false, true>(x, of, lo, hi, codes);
    case 5: return encode_inside<true, false, true>(x, of, lo, hi, codes);
    case 6: return encode_inside<false, true, true>(x, of, lo, hi, codes);
    default: return encode_inside<true, true, true>(x, of, lo, hi, codes);
  }
}

template <class T>
void encode_mask(const T* x, const Strided& of, uint8_t* codes) {
  encode_stream<1>(x, of, codes, [&](int64_t, const T* from, uint8_t* to) {
    store_bits(to, ~word(from, [](F v) { return equal(v, F{}); }));
  });
}

void encode_bool(const uint8_t* x, const Strided& of, uint8_t* codes) {
  encode_stream<1>(x, of, codes, [&](int64_t, const uint8_t* from, uint8_t* to) {
#if defined(__AVX512BW__)
    const __m512i v = load_bits<__m512i>(from);
    store_bits(to, uint64_t(_mm512_test_epi8_mask(v, v)));
#elif defined(__AVX2__)
    for (int k = 0; k < 2; k++) {
      const __m256i zero = _mm256_cmpeq_epi8(load_bits<__m256i>(from + 32 * k), _mm256_setzero_si256());
      store_bits(to + 4 * k, ~uint32_t(_mm256_movemask_epi8(zero)));
    }
#else
    for (int k = 0; k < 8; k++) {  // of a byte that is not 0, its highest bit
      const uint64_t v = load_bits<uint64_t>(from + 8 * k), low = 0x7F7F7F7F7F7F7F7Fu;
      to[k] = uint8_t(((((v & low) + low) | v) >> 7 & 0x0101010101010101u) * 0x0102040810204080u >> 56);
    }
#endif
  });
}

// 32 bits to the even bits of 64.
INLINE uint64_t apart(uint64_t x) {
  x = (x | x << 16) & 0x0000FFFF0000FFFFu;
  x = (x | x << 8) & 0x00FF00FF00FF00FFu;
  x = (x | x << 4) & 0x0F0F0F0F0F0F0F0Fu;
  x = (x | x << 2) & 0x3333333333333333u;
  return (x | x << 1) & 0x5555555555555555u;
}

// 0 outside, 1 inside, 2 at a bound, 3 NaN.
template <bool has_lo, bool has_hi, class T>
void encode_interval(const T* x, const Strided& of, float lo, float hi, uint8_t* codes) {
  const F low = splat(lo), high = splat(hi);
  encode_stream<2>(x, of, codes, [&](int64_t, const T* from, uint8_t* to) {
    uint64_t odd = 0, high_bit = 0;
    for (int k = 0; k < kWord / W; k++) {
      const F v = load(from + k * W);
      const Mask number = equal(v, v);
      const Mask above = has_lo ? less(low, v) : number, below = has_hi ? less(v, high) : number;
      Mask at_or_nan = opposite(number);
      if (has_lo) at_or_nan = either(at_or_nan, equal(v, low));
      if (has_hi) at_or_nan = either(at_or_nan, equal(v, high));
      odd |= uint64_t(bits_of(either(both(above, below), opposite(number)))) << (k * W);
      high_bit |= uint64_t(bits_of(at_or_nan)) << (k * W);
    }
    store_bits(to, apart(uint32_t(odd)) | apart(uint32_t(high_bit)) << 1);
    store_bits(to + 8, apart(odd >> 32) | apart(high_bit >> 32) << 1);
  });
}

template <class T>
void encode_interval(const T* x, const Strided& of, float lo, float hi, int finite, uint8_t* codes) {
  switch (finite) {
    case 0: return encode_interval<false, false>(x, of, lo, hi, codes);
    case 1: return encode_interval<true, false>(x, of, lo, hi, codes);
    case 2: return encode_interval<false, true>(x, of, lo, hi, codes);
    default: return encode_interval<true, true>(x, of, lo, hi, codes);
  }
}

// Elements chosen by Q-bit codes. E is the whole number of an element's width: its bits, whatever they mean.
template <int Q, class E>
struct Chosen {
  // As many at a time as a byte of codes holds.
  static constexpr int per = 8 / Q;
  E elements[256][per];

  explicit Chosen(const E* values) {
    for (int byte = 0; byte < 256; byte++) {
      for (int k = 0; k < per; k++) elements[byte][k] = values[byte >> (k * Q) & ((1 << Q) - 1)];
    }
  }
  INLINE void operator()(int64_t, const uint8_t* from, E* to) const {
    for (int k = 0; k < kWord / per; k++) std::memcpy(to + k * per, elements[from[k]], sizeof(E) * per);
  }
};

#if defined(__AVX2__)
// By whole vectors.
template <class E>
struct Picked {
  typedef E V __attribute__((vector_size(4 * W)));
  static constexpr int lanes = 4 * W / sizeof(E);
  V no, yes;

  explicit Picked(const E* values) : no(values[0] - V{}), yes(values[1] - V{}) {}
  INLINE void operator()(int64_t, const uint8_t* from, E* to) const {
    const uint64_t bits = load_bits<uint64_t>(from);
    for (int k = 0; k < kWord / lanes; k++) store_bits(to + k * lanes, pick(bits >> (k * lanes)));
  }

 private:
#if defined(__AVX512BW__)
  INLINE __m512i pick(uint64_t bits) const {
    const __m512i zero = (__m512i)no, one = (__m512i)yes;
    return sizeof(E) == 4 ? _mm512_mask_blend_epi32(__mmask16(bits), zero, one)
                          : _mm512_mask_blend_epi16(__mmask32(bits), zero, one);
  }
#else
  INLINE V pick(uint64_t bits) const {
    V lane;
    for (int i = 0; i < lanes; i++) lane[i] = E(1 << i);
    return ((E(bits) - V{}) & lane) == 0 ? no : yes;
  }
#endif
};
template <>
struct Chosen<1, uint32_t> : Picked<uint32_t> {
  using Picked::Picked;
};
template <>
struct Chosen<1, uint16_t> : Picked<uint16_t> {
  using Picked::Picked;
};
#endif

template <int Q, class E>
void decode(const uint8_t* codes, const Strided& of, const void* values, void* x) {
  E value[1 << Q];
  std::memcpy(value, values, sizeof(value));
  decode_stream<Q>(codes, of, static_cast<E*>(x), Chosen<Q, E>(value));
}

template <int Q>
int decode(const void* codes, const int64_t* shape, const void* values, int width, void* x) {
  const Strided of(shape);
  const uint8_t* from = static_cast<const uint8_t*>(codes);
  switch (width) {
    case 1: return decode<Q, uint8_t>(from, of, values, x), 0;
    case 2: return decode<Q, uint16_t>(from, of, values, x), 0;
    case 4: return decode<Q, uint32_t>(from, of, values, x), 0;
    default: return 1;
  }
}

}  // namespace
}  // namespace DIVISION_ISA
}  // namespace division

using namespace division::DIVISION_ISA;

// `shape` is what Strided reads. Elements to encode are float32 (type 0), bfloat16 (1), float16 (2) or, as a mask, bool
// (3); those to decode are known by their width in bytes. All return 0, or 1 for elements they don't take.

// `finite`: which bounds are, 1 the lower and 2 the upper; `closed` likewise, and 4 where NaN is inside.
EXPORT(bits_encode)(const void* x, int type, const int64_t* shape, double lo, double hi, int finite, int closed,
                    void* codes) {
  const Strided of(shape);
  const float low = finite & 1 ? bound(lo, type) : -kInf, high = finite & 2 ? bound(hi, type) : kInf;
  const int kind = closed | (~finite & 3);
  uint8_t* to = static_cast<uint8_t*>(codes);
  switch (type) {
    case 0: return encode_inside(static_cast<const float*>(x), of, low, high, kind, to), 0;
    case 1: return encode_inside(static_cast<const BFloat16*>(x), of, low, high, kind, to), 0;
    case 2: return encode_inside(static_cast<const Float16*>(x), of, low, high, kind, to), 0;
    default: return 1;
  }
}

EXPORT(interval_encode)(const void* x, int type, const int64_t* shape, double lo, double hi, int finite, void* codes) {
  const Strided of(shape);
  const float low = bound(lo, type), high = bound(hi, type);
  uint8_t* to = static_cast<uint8_t*>(codes);
  switch (type) {
    case 0: return encode_interval(static_cast<const float*>(x), of, low, high, finite, to), 0;
    case 1: return encode_interval(static_cast<const BFloat16*>(x), of, low, high, finite, to), 0;
    case 2: return encode_interval(static_cast<const Float16*>(x), of, low, high, finite, to), 0;
    default: return 1;
  }
}

EXPORT(mask_encode)(const void* x, int type, const int64_t* shape, void* codes) {
  const Strided of(shape);
  uint8_t* to = static_cast<uint8_t*>(codes);
  switch (type) {
    case 0: return encode_mask(static_cast<const float*>(x), of, to), 0;
    case 1: return encode_mask(static_cast<const BFloat16*>(x), of, to), 0;
    case 2: return encode_mask(static_cast<const Float16*>(x), of, to), 0;
    case 3: return encode_bool(static_cast<const uint8_t*>(x), of, to), 0;
    default: return 1;
  }
}

// `values`: the elements that the codes 0, 1 and so on stand for.

EXPORT(bits_decode)(const void* codes, const int64_t* shape, const void* values, int width, void* x) {
  return decode<1>(codes, shape, values, width, x);
}

EXPORT(interval_decode)(const void* codes, const int64_t* shape, const void* values, int width, void* x) {
  return decode<2>(codes, shape, values, width, x);
}

// `value`: the element of a bit 1; that of a bit 0 is zero.
EXPORT(mask_decode)(const void* codes, const int64_t* shape, const void* value, int width, void* x) {
  if (width > 4) return 1;
  uint8_t values[8] = {};
  std::memcpy(values + width, value, width);
  return decode<1>(codes, shape, values, width, x);
}
