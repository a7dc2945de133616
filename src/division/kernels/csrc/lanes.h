// Rows that lie side by side, one row a lane: how they are read, and how their codes are written and read.
#pragma once

#include "noise.h"
#include "rounding.h"
#include "transpose.h"

namespace division {
namespace DIVISION_ISA {

// Planes side by side, W at a time: element (i0, i1, j) of plane p is at i0 * stride0 + i1 * stride1 + j * step + p.
template <class T>
struct Lanes {
  T* data;
  int64_t stride0, stride1, step;
  int64_t planes;

  INLINE T* row(int64_t i0, int64_t i1) const { return data + i0 * stride0 + i1 * stride1; }
  INLINE int groups() const { return int((planes + W - 1) / W); }
  INLINE int count(int group) const { return int(least(W, planes - group * W)); }
};

// So many vectors of planes are taken together: the bytes of one element's planes then fill a few cache lines.
constexpr int kGroups = 64 / W;
constexpr int kUnit = 16;  // elements of a plane quantised at a time: 8 words of noise, 2 * Q bytes of codes

template <class T>
INLINE F load_lanes(const T* p, int count) {
  return count == W ? load(p) : load_some(p, count, F{});
}

template <class T>
INLINE void store_lanes(T* p, F x, int count) {
  if (count == W) {
    store(p, x);
  } else {
    store_some(p, x, count);
  }
}

// A few bytes, up to 16.
INLINE void copy_few(void* to, const void* from, int64_t count) {
  for (int64_t i = 0; i < count; i++) static_cast<uint8_t*>(to)[i] = static_cast<const uint8_t*>(from)[i];
}

template <int Q>
constexpr int kUnitPer = Q == 1 ? kUnit : 32 / Q;  // codes of a word
template <int Q>
constexpr int kUnitWords = kUnit / kUnitPer<Q>;

// The codes of `count` elements of W rows from `element`, a multiple of kUnit, on: in words of 32 bits, or of 16 where
// they fill no more. t(k) is what element k is rounded from, times kOne where it is to be done in whole numbers.
template <int Q, bool kWhole, class At>
INLINE void unit_words(const At& t, U keys, int64_t element, int count, I word[kUnitWords<Q>]) {
  constexpr int per = kUnitPer<Q>;
  constexpr int32_t levels = (1 << Q) - 1;
  // Adds the codes at their place of a word.
  const auto put = [&](F t, I rest, F u, int k) {
    const int at = k % per * Q;
    I& to = word[k / per];
    if (!kWhole) {
      to |= stochastic(t, u, splat(levels)) << at;
      return;
    }
    const I code = stochastic_whole(t, rest, levels);
    to |= (at < kShift ? code >> (kShift - at) : code << (at - kShift)) & splat(int32_t(uint32_t(levels) << at));
  };
  for (int w = 0; w < kUnitWords<Q>; w++) word[w] = splat(0);
#pragma GCC unroll 8
  for (int k = 0; k < kUnit / 2; k++) {
    if (k >= count) break;
    const U noise = almost(splat(uint32_t(element / 2 + k) * kGolden) ^ keys), done = noise ^ noise >> 16;
    put(t(k), rest_low(noise), uniform_low(done), k);
    if (k + 8 < count) put(t(k + 8), rest_high(noise), uniform_high(done), k + 8);
  }
}

// Such words to the codes of `planes` rows, those of each `bytes` after those of the one before.
template <int Q>
INLINE void put_words(const I word[kUnitWords<Q>], int planes, int count, uint8_t* to, int64_t bytes) {
  uint32_t lanes[kUnitWords<Q>][W];
  for (int w = 0; w < kUnitWords<Q>; w++) store_bits(lanes[w], word[w]);
  for (int l = 0; l < planes; l++, to += bytes) {
    uint32_t own[kUnitWords<Q>];
    for (int w = 0; w < kUnitWords<Q>; w++) own[w] = lanes[w][l];
    if (count == kUnit) {
      std::memcpy(to, own, 2 * Q);
    } else {
      copy_few(to, own, (count * Q + 7) / 8);
    }
  }
}

// The codes of rows side by side, up to W * kGroups at a time, a word of 32 bits of each after the other.
class Words {
 public:
  // Of `rows` rows in all, of `bytes` each.
  Words(const uint8_t* codes, int64_t bytes, int64_t rows)
      : codes_(codes), bytes_(bytes), rows_(rows), words_(W * kGroups * W) {}

  // The rows `row` to `row + count`, before their first words.
  void begin(int64_t row, int64_t count) { row_ = row, count_ = count, byte_ = 0, word_ = W - 1; }

  // On to the next word of each.
  void next() {
    if (++word_ < W) return;
    for (int64_t first = 0; first < count_; first += W) {
      gather(row_ + first, int(least(W, count_ - first)), words_ + first);
    }
    byte_ += 4 * W, word_ = 0;
  }

  // The words of group g, W rows.
  INLINE U of(int g) { return load_bits<U>(words_ + (word_ * kGroups + g) * W); }

 private:
  // The W words of codes of up to W rows from byte_ on: to words[W, kGroups, W].
  void gather(int64_t row, int count, float* words) const {
    if (bytes_ - byte_ <= 16 && (rows_ - row - count + 1) * bytes_ - byte_ >= 16) {
      const uint8_t* from = codes_ + row * bytes_ + byte_;
      F columns[4];
      transpose_four([&](int l) { return from + least(l, count - 1) * bytes_; }, columns);
      for (int w = 0; w < 4; w++) store(words + w * kGroups * W, columns[w]);
      return;
    }
    F rows[W];
    for (int l = 0; l < W; l++) {
      const int64_t start = (row + least(l, count - 1)) * bytes_ + byte_;
      // What lies beyond a row's codes is not used, but has to be there.
      const int64_t left = rows_ * bytes_ - start;
      if (left >= 4 * W) {
        rows[l] = load_bits<F>(codes_ + start);
      } else {
        float some[W] = {};
        std::memcpy(some, codes_ + start, left);
        rows[l] = load(some);
      }
    }
    transpose(rows);
    for (int w = 0; w < W; w++) store(words + w * kGroups * W, rows[w]);
  }

  const uint8_t* codes_;
  int64_t bytes_, rows_, row_ = 0, count_ = 0, byte_ = 0;
  int word_ = 0;
  Scratch<float> words_;
};

}  // namespace DIVISION_ISA
}  // namespace division
