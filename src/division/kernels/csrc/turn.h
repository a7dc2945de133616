// Rows to columns, for elements of any kind: their bits are moved and not looked at.
#pragma once

#include "transpose.h"

namespace division {
namespace DIVISION_ISA {

// A square of `side` elements a side: to[c * to_stride + r] = from[r * from_stride + c].
template <int bytes>
struct Square {
  static constexpr int side = 8;

  template <class T>
  static INLINE void turn(const T* from, int64_t from_stride, T* to, int64_t to_stride) {
    for (int r = 0; r < side; r++) {
      for (int c = 0; c < side; c++) to[c * to_stride + r] = from[r * from_stride + c];
    }
  }
};

#if defined(__AVX2__)
// Of 2 and 4 bytes: as floats, of which the former are the upper halves.
template <class Lane>
struct AsFloats {
  static constexpr int side = W;

  template <class T>
  static INLINE void turn(const T* from, int64_t from_stride, T* to, int64_t to_stride) {
    F lanes[W];
    for (int r = 0; r < W; r++) lanes[r] = load(reinterpret_cast<const Lane*>(from + r * from_stride));
    transpose(lanes);
    for (int c = 0; c < W; c++) store_rounded(reinterpret_cast<Lane*>(to + c * to_stride), lanes[c]);
  }
};
template <>
struct Square<2> : AsFloats<BFloat16> {};
template <>
struct Square<4> : AsFloats<float> {};

template <>
struct Square<8> {
  static constexpr int side = 4;

  template <class T>
  static INLINE void turn(const T* from, int64_t from_stride, T* to, int64_t to_stride) {
    __m256i row[4];
    for (int r = 0; r < 4; r++) row[r] = load_bits<__m256i>(from + r * from_stride);
    const __m256i even01 = _mm256_unpacklo_epi64(row[0], row[1]), odd01 = _mm256_unpackhi_epi64(row[0], row[1]);
    const __m256i even23 = _mm256_unpacklo_epi64(row[2], row[3]), odd23 = _mm256_unpackhi_epi64(row[2], row[3]);
    store_bits(to, _mm256_permute2x128_si256(even01, even23, 0x20));
    store_bits(to + to_stride, _mm256_permute2x128_si256(odd01, odd23, 0x20));
    store_bits(to + 2 * to_stride, _mm256_permute2x128_si256(even01, even23, 0x31));
    store_bits(to + 3 * to_stride, _mm256_permute2x128_si256(odd01, odd23, 0x31));
  }
};
#endif

// to[c * to_stride + r] = from[r * from_stride + c]
template <class T>
void turn(const T* from, int64_t from_stride, int64_t rows, int64_t columns, T* to, int64_t to_stride) {
  typedef Square<sizeof(T)> S;
  const auto square = [&](int64_t r0, int64_t c0) {
    const int64_t height = least(S::side, rows - r0), width = least(S::side, columns - c0);
    const T* const source = from + r0 * from_stride + c0;
    T* const target = to + c0 * to_stride + r0;
    if (height == S::side && width == S::side) return S::turn(source, from_stride, target, to_stride);
    for (int64_t r = 0; r < height; r++) {
      for (int64_t c = 0; c < width; c++) target[c * to_stride + r] = source[r * from_stride + c];
    }
  };
  // Along the longer side, so that whole cache lines are done at a time.
  if (rows >= columns) {
    for (int64_t r = 0; r < rows; r += S::side) {
      for (int64_t c = 0; c < columns; c += S::side) square(r, c);
    }
  } else {
    for (int64_t c = 0; c < columns; c += S::side) {
      for (int64_t r = 0; r < rows; r += S::side) square(r, c);
    }
  }
}

}  // namespace DIVISION_ISA
}  // namespace division
