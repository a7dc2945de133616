// Decoding small planes that lie one after the other: element by element in the order of memory, each with the value of
// its block from a table of one vector.
#pragma once

#include "dual.h"

namespace division {
namespace DIVISION_ISA {

template <class T>
class FlatDecoder {
 public:
  // Planes without gaps, inside and between, of up to W blocks.
  static bool takes(const Map& map) {
    const int64_t elements = map.elements();
    return map.dense_planes() && map.cells() <= W && (map.channels == 1 || map.channel_stride == elements) &&
           (map.samples == 1 || map.sample_stride == map.channels * elements);
  }

  FlatDecoder(const Map& map, const DualCode& code)
      : map_(map),
        code_(code),
        vectors_(sizeof(T) == 2 ? (map.elements() + 2 * W - 1) / (2 * W) * 2 : (map.elements() + W - 1) / W),
        cell_of_(vectors_ * W),
        first_entry_(vectors_ * W) {
    int64_t e = 0;
    for (int64_t i0 = 0; i0 < map.size[0]; i0++) {
      for (int64_t i1 = 0; i1 < map.size[1]; i1++) {
        const int64_t row = (i0 / map.side[0] * map.grid[1] + i1 / map.side[1]) * map.grid[2];
        for (int64_t j = 0; j < map.width(); j++) cell_of_[e++] = int32_t(row + j / map.side[2]);
      }
    }
    for (; e < vectors_ * W; e++) cell_of_[e] = 0;
    for (e = 0; e < vectors_ * W; e++) first_entry_[e] = uint16_t(4 * cell_of_[e]);
  }

  // The planes `begin` to `end`, the first of which lies `begin` planes after x.
  void decode(T* x, int64_t begin, int64_t end) {
    switch (code_.bits) {
      case 1: return restore<1>(x, begin, end);
      case 2: return restore<2>(x, begin, end);
      case 4: return restore<4>(x, begin, end);
      default: return restore<8>(x, begin, end);
    }
  }

 private:
  template <int Q>
  void restore(T* x, int64_t begin, int64_t end) {
    const int64_t elements = map_.elements(), cells = map_.cells();
    // The last vector of a plane may reach into those behind it, which come next; where there are none, and where its
    // codes end with all codes, the plane goes the slow way.
    const auto fits = [&](int64_t p) {
      return (end - p) * elements >= vectors_ * W && (map_.planes() - p) * code_.bytes >= vectors_ * (W * Q / 8);
    };
    for (; begin < end && fits(begin); begin++) {
      plane<Q>(x + begin * elements, begin, code_.codes + begin * code_.bytes, cells, vectors_);
    }
    Scratch<uint8_t> codes(vectors_ * (W * Q / 8));
    std::memset(codes, 0, vectors_ * (W * Q / 8));
    Scratch<T> whole(vectors_ * W);
    for (int64_t p = begin; p < end; p++) {
      std::memcpy(codes, code_.codes + p * code_.bytes, code_.bytes);
      plane<Q>(whole, p, codes, cells, vectors_);
      std::memcpy(x + p * elements, whole, sizeof(T) * elements);
    }
  }

  template <int Q>
  INLINE void plane(T* x, int64_t index, const uint8_t* codes, int64_t cells, int64_t vectors) {
    const float offset = from_upper(code_.scale[2 * index]), step = from_upper(code_.scale[2 * index + 1]);
    const uint16_t* lfc = code_.lfc + index * cells;
#if defined(__AVX512BW__)
    if constexpr (Q == 2 && sizeof(T) == 2) {
      if (cells == 1) return one_of_four(x, codes, four_values(x, offset, step, from_upper(*lfc)));
    }
#endif
    const Values<Q> values(offset, step);
    // Where a table holds the sums it is held to the range, not they.
    if (Values<Q>::kTable && cells == 1) return vectors_of<Q, false>(x, lfc, codes, values, cells, vectors);
    if (roomy<T>(values.reach() + greatest(lfc, cells))) {
      vectors_of<Q, true>(x, lfc, codes, values, cells, vectors);
    } else {
      vectors_of<Q, false>(x, lfc, codes, values, cells, vectors);
    }
  }

#if defined(__AVX512BW__)
  // Of 16-bit elements in 2 bits there are so few values, of up to 8 blocks, that a table holds them all: 32 at a time.

  // The codes from `bytes` on in the lowest bits of 32 lanes, of 16 bits each; other codes stand above them.
  static INLINE __m512i codes_of(const uint8_t* bytes) {
    const __m512i spread = _mm512_set_epi64(0x0706070607060706, 0x0706070607060706, 0x0504050405040504,
                                            0x0504050405040504, 0x0302030203020302, 0x0302030203020302,
                                            0x0100010001000100, 0x0100010001000100);
    const __m512i shifts = _mm512_set1_epi64(0x0006000400020000);
    const __m512i high = _mm512_mask_add_epi16(shifts, 0xF0F0F0F0u, shifts, _mm512_set1_epi16(8));
    uint64_t word;
    std::memcpy(&word, bytes, 8);
    return _mm512_srlv_epi16(_mm512_shuffle_epi8(_mm512_set1_epi64(int64_t(word)), spread), high);
  }

  // The 4 values of a block, in 64 bits.
  static INLINE __m128i four_values(const T* type, float offset, float step, float up) {
    const __m128 of_codes = _mm_mul_ps(_mm_set1_ps(step), _mm_setr_ps(0.0f, 1.0f, 2.0f, 3.0f));
    const __m128 x = _mm_add_ps(_mm_add_ps(of_codes, _mm_set1_ps(offset)), _mm_set1_ps(up));
    const __m128 most = _mm_set1_ps(limit<T>()[0]), least = _mm_set1_ps(-limit<T>()[0]);
    return sixteen_bits(type, _mm_max_ps(least, _mm_min_ps(most, x)));
  }

  INLINE void one_of_four(T* x, const uint8_t* codes, __m128i four) const {
    const __m512i table = _mm512_broadcastq_epi64(four);  // the same 4 throughout: what stands above a code does no harm
    for (int64_t k = 0; k < vectors_ / 2; k++) {
      _mm512_storeu_si512(x + 32 * k, _mm512_permutexvar_epi16(codes_of(codes + 8 * k), table));
    }
  }

  template <bool kRoomy>
  INLINE void looked_up(T* x, const uint16_t* lfc, const uint8_t* codes, const Values<2>& values, int64_t cells) {
    __m512i table = _mm512_setzero_si512();
    for (int64_t i = 0; i < cells; i++) {  // the 4 values of block i
      const __m256i four = sixteen_bits(x, held<T, kRoomy>(values.table + from_upper(lfc[i])));
      table = _mm512_mask_broadcastq_epi64(table, __mmask8(1 << i), _mm256_castsi256_si128(four));
    }
    const uint16_t* first = first_entry_;
    for (int64_t k = 0; k < vectors_ / 2; k++) {
      const __m512i code = _mm512_and_si512(codes_of(codes + 8 * k), _mm512_set1_epi16(3));
      const __m512i entry = _mm512_or_si512(code, _mm512_loadu_si512(first + 32 * k));
      _mm512_storeu_si512(x + 32 * k, _mm512_permutexvar_epi16(entry, table));
    }
  }
#endif

  template <int Q, bool kRoomy>
  INLINE void vectors_of(T* x, const uint16_t* lfc, const uint8_t* codes, const Values<Q>& values, int64_t cells,
                         int64_t vectors) {
#if defined(__AVX512BW__)
    if constexpr (Q == 2 && sizeof(T) == 2) {
      if (cells <= 8) return looked_up<kRoomy>(x, lfc, codes, values, cells);
    }
#endif
    if (cells == 1) {
      const F up = splat(from_upper(*lfc));
      if (Values<Q>::kTable) {
        Values<Q> sums = values;
        sums.table = rounded<T>(held<T, kRoomy>(values.table + up));
        for (int64_t k = 0; k < vectors; k++) store_rounded(x + k * W, sums.at(codes + k * (W * Q / 8)));
        return;
      }
      for (int64_t k = 0; k < vectors; k++) store(x + k * W, held<T, kRoomy>(values.at(codes + k * (W * Q / 8)) + up));
      return;
    }
    uint32_t bits[W] = {};
    for (int64_t i = 0; i < cells; i++) bits[i] = uint32_t(lfc[i]) << 16;
    const F table = load_bits<F>(bits);
    const int32_t* cell_of = cell_of_;
    for (int64_t k = 0; k < vectors; k++) {
      const F up = lookup(table, load_bits<I>(cell_of + k * W));
      store(x + k * W, held<T, kRoomy>(values.at(codes + k * (W * Q / 8)) + up));
    }
  }

  const Map map_;
  const DualCode code_;
  const int64_t vectors_;
  Scratch<int32_t> cell_of_;
  Scratch<uint16_t> first_entry_;  // of each element's block in the table of `looked_up`
};

}  // namespace DIVISION_ISA
}  // namespace division
