// W vectors to the W vectors of their columns.
#pragma once

#include "simd.h"

namespace division {
namespace DIVISION_ISA {

INLINE void transpose(F rows[W]) {
#if defined(__AVX512BW__)
  __m512 a[16], b[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps((__m512)rows[i], (__m512)rows[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps((__m512)rows[i], (__m512)rows[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xEE);
    b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xEE);
  }
  // b[4 q + k] holds, in its 128-bit lane l, column 4 l + k of rows 4 q to 4 q + 3.
  for (int k = 0; k < 4; k++) {
    const __m512 low01 = _mm512_shuffle_f32x4(b[k], b[4 + k], 0x44), high01 = _mm512_shuffle_f32x4(b[k], b[4 + k], 0xEE);
    const __m512 low23 = _mm512_shuffle_f32x4(b[8 + k], b[12 + k], 0x44);
    const __m512 high23 = _mm512_shuffle_f32x4(b[8 + k], b[12 + k], 0xEE);
    rows[k] = (F)_mm512_shuffle_f32x4(low01, low23, 0x88);
    rows[4 + k] = (F)_mm512_shuffle_f32x4(low01, low23, 0xDD);
    rows[8 + k] = (F)_mm512_shuffle_f32x4(high01, high23, 0x88);
    rows[12 + k] = (F)_mm512_shuffle_f32x4(high01, high23, 0xDD);
  }
#elif defined(__AVX2__)
  __m256 a[8], b[8];
  for (int i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps((__m256)rows[i], (__m256)rows[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps((__m256)rows[i], (__m256)rows[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    b[i] = _mm256_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm256_shuffle_ps(a[i], a[i + 2], 0xEE);
    b[i + 2] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm256_shuffle_ps(a[i + 1], a[i + 3], 0xEE);
  }
  for (int k = 0; k < 4; k++) {
    rows[k] = (F)_mm256_permute2f128_ps(b[k], b[4 + k], 0x20);
    rows[4 + k] = (F)_mm256_permute2f128_ps(b[k], b[4 + k], 0x31);
  }
#else
  F columns[W];
  for (int i = 0; i < W; i++) {
    for (int k = 0; k < W; k++) columns[k][i] = rows[i][k];
  }
  for (int k = 0; k < W; k++) rows[k] = columns[k];
#endif
}

// W rows, `row(l)` where row l begins, to the W vectors of their columns.
template <class T, class Row>
INLINE void transpose_rows(const Row& row, F columns[W]) {
#if defined(__AVX512BW__)
  // Loaded by halves, rows 8 q + i and 8 q + 4 + i in one vector: what then is left takes three steps, not four.
  __m512 a[16], b[16];
  for (int half = 0; half < 2; half++) {
    for (int q = 0; q < 2; q++) {
      for (int i = 0; i < 4; i++) {
        b[8 * half + 4 * q + i] = two_halves(row(8 * q + i) + 8 * half, row(8 * q + 4 + i) + 8 * half);
      }
    }
  }
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps(b[i], b[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps(b[i], b[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    b[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
    b[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xEE);
    b[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    b[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xEE);
  }
  // b[8 half + 4 q + k] holds columns 8 half + k, 8 half + 4 + k of rows 8 q to 8 q + 3, then those of the 4 rows after.
  for (int half = 0; half < 16; half += 8) {
    for (int k = 0; k < 4; k++) {
      columns[half + k] = (F)_mm512_shuffle_f32x4(b[half + k], b[half + 4 + k], 0x88);
      columns[half + 4 + k] = (F)_mm512_shuffle_f32x4(b[half + k], b[half + 4 + k], 0xDD);
    }
  }
#else
  for (int l = 0; l < W; l++) columns[l] = load(row(l));
  transpose(columns);
#endif
}

// The first 4 elements of W rows to the 4 vectors of their columns: `row(l)` is where row l begins, of 16 bytes.
template <class Row>
INLINE void transpose_four(const Row& row, F columns[4]) {
#if defined(__AVX2__)
  const auto part = [&](int l) { return _mm_loadu_ps(reinterpret_cast<const float*>(row(l))); };
#if defined(__AVX512BW__)
  __m512 a[4];
  for (int i = 0; i < 4; i++) {
    a[i] = _mm512_castps128_ps512(part(i));
    a[i] = _mm512_insertf32x4(a[i], part(4 + i), 1);
    a[i] = _mm512_insertf32x4(a[i], part(8 + i), 2);
    a[i] = _mm512_insertf32x4(a[i], part(12 + i), 3);
  }
  const __m512 low01 = _mm512_unpacklo_ps(a[0], a[1]), high01 = _mm512_unpackhi_ps(a[0], a[1]);
  const __m512 low23 = _mm512_unpacklo_ps(a[2], a[3]), high23 = _mm512_unpackhi_ps(a[2], a[3]);
  columns[0] = (F)_mm512_shuffle_ps(low01, low23, 0x44);
  columns[1] = (F)_mm512_shuffle_ps(low01, low23, 0xEE);
  columns[2] = (F)_mm512_shuffle_ps(high01, high23, 0x44);
  columns[3] = (F)_mm512_shuffle_ps(high01, high23, 0xEE);
#else
  __m256 a[4];
  for (int i = 0; i < 4; i++) a[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(part(i)), part(4 + i), 1);
  const __m256 low01 = _mm256_unpacklo_ps(a[0], a[1]), high01 = _mm256_unpackhi_ps(a[0], a[1]);
  const __m256 low23 = _mm256_unpacklo_ps(a[2], a[3]), high23 = _mm256_unpackhi_ps(a[2], a[3]);
  columns[0] = (F)_mm256_shuffle_ps(low01, low23, 0x44);
  columns[1] = (F)_mm256_shuffle_ps(low01, low23, 0xEE);
  columns[2] = (F)_mm256_shuffle_ps(high01, high23, 0x44);
  columns[3] = (F)_mm256_shuffle_ps(high01, high23, 0xEE);
#endif
#else
  for (int l = 0; l < W; l++) {
    float four[4];
    std::memcpy(four, row(l), 16);
    for (int k = 0; k < 4; k++) columns[k][l] = four[k];
  }
#endif
}

}  // namespace DIVISION_ISA
}  // namespace division
