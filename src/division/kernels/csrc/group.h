// Groups of consecutive elements, each quantised over its own range: their parameters, their codes and back.
#pragma once

#include "masks.h"
#include "noise.h"
#include "rounding.h"
#include "widths.h"

namespace division {
namespace DIVISION_ISA {

// The least and the greatest of `n` elements; NaN where one is not finite.
template <class T>
INLINE void range(const T* x, int64_t n, float& least_x, float& most_x) {
  F low[2], high[2];
  U unsure = {};
  const auto note = [&](int which, F v) {
    low[which] = min(v, low[which]);
    high[which] = max(v, high[which]);
    unsure |= bits_as<U>(v - v);  // 0 of a finite element, NaN of any other
  };
  low[0] = low[1] = high[0] = high[1] = splat(value(x));
  if (n < W) {
    note(0, load_some(x, int(n), low[0]));
  } else {
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) note(0, load(x + i)), note(1, load(x + i + W));
    if (i + W <= n) note(0, load(x + i)), i += W;
    if (i < n) note(1, load(x + n - W));
  }
  const bool finite = !any(unsure);
  least_x = finite ? lowest(min(low[0], low[1])) : kNaN;
  most_x = finite ? highest(max(high[0], high[1])) : kNaN;
}

// What the codes of a group are where they don't depend on its elements, and one more; else 0.
typedef uint8_t Fixed;

// The parameters of `count` groups from their ranges.
INLINE void settle(const float* low, const float* high, int64_t count, int bits, uint16_t* scale, Fixed* fixed) {
  for (int64_t g = 0; g < count; g += W) {
    const int n = int(least(W, count - g));
    const Scale of = quantisation(load_some(low + g, n, F{}), load_some(high + g, n, F{}), splat(-1),
                                  float((1 << bits) - 1));
    for (int i = 0; i < n; i++) {
      scale[2 * (g + i)] = upper(of.offset[i]);
      scale[2 * (g + i) + 1] = upper(of.step[i]);
      fixed[g + i] = of.special[i] ? Fixed(1 + of.fill[i]) : 0;
    }
  }
}

// A stretch of one row, from element `start`, a multiple of 64: groups of `size`, `scale` being that of the first.
// `beyond` it lie as many elements of later rows, and beyond its codes theirs: they may be read, and written too, since
// they are written later.
struct Stretch {
  int64_t start, count, beyond, size;
  const uint16_t* scale;
  int bits;
  bool padded = false;  // whether the codes of a row fill up eight elements at its end

  int64_t code_bytes(int64_t elements) const {
    return padded ? (elements + 7) / 8 * bits : (elements * bits + 7) / 8;
  }
  // Elements of the stretch that the first group has.
  int64_t first_end() const { return size - start % size; }
};

// Calls `visit(group, from, to)` for the groups of the elements `from` to `to` of a stretch; `group`, which ends at
// `end`, is the first at first and the last at last.
template <class Visit>
INLINE void each_group(int64_t size, int64_t from, int64_t to, int64_t& group, int64_t& end, const Visit& visit) {
  while (true) {
    if (from >= end) group++, end += size;
    visit(group, from, least(end, to));
    if (end >= to) return;
    from = end;
  }
}

// `Outside`: elements may lie beyond what the codes span, and then take the nearest of them.
template <bool Outside>
INLINE I code_of(F x, F origin, F inverse, F u, I most) {
  F t = (x - origin) * inverse;
  if (Outside) t = min(max(t, F{}), to_float(most));
  const I whole = to_int(t);
  return min(add_where_less(whole, u, t - to_float(whole)), most);
}

// The codes of a stretch to `codes`.
template <int Q, bool Outside, class T>
void encode_stretch(const T* x, const Stretch& of, const Fixed* fixed, U key, uint8_t* codes) {
  constexpr int vectors = kBatch / W;
  const int bits = Q ? Q : of.bits;
  const I most = splat(int32_t((1 << bits) - 1));
  U counter = first_counter(of.start);
  int64_t group = 0, end = of.first_end(), known = -1;
  F origin = {}, inverse = {};
  for (int64_t b = 0; b < of.count; b += kBatch, codes += kBatch / 8 * bits) {
    const int64_t count = least(kBatch, of.count - b);
    const bool ends = of.count + of.beyond - b < kBatch;
    T last[kBatch];
    const T* from = x + b;
    if (ends) {
      std::memset(last, 0, sizeof(last));
      std::memcpy(last, from, sizeof(T) * count);
      from = last;
    }
    F u[vectors];
    for (int half = 0; half < kBatch / kStretch; half++) {
      uniform(counter, key, u + half * (kStretch / W));
      counter = next_counter(counter);
    }
    I batch[vectors];
    if (b >= end) group++, end += of.size;
    if (b + count <= end) {
      if (group != known) {
        known = group;
        origin = splat(from_upper(of.scale[2 * group]));
        inverse = splat(1.0f / from_upper(of.scale[2 * group + 1]));
      }
      if (fixed[group]) {
        for (int k = 0; k < vectors; k++) batch[k] = splat(int32_t(fixed[group] - 1));
      } else {
        for (int k = 0; k < vectors; k++) batch[k] = code_of<Outside>(load(from + k * W), origin, inverse, u[k], most);
      }
    } else {
      float origins[kBatch] = {}, inverses[kBatch] = {};
      int32_t free[kBatch] = {}, fill[kBatch] = {};
      each_group(of.size, b, b + count, group, end, [&](int64_t g, int64_t first, int64_t past) {
        const float offset = from_upper(of.scale[2 * g]), reciprocal = 1.0f / from_upper(of.scale[2 * g + 1]);
        for (int64_t e = first - b; e < past - b; e++) {
          origins[e] = offset, inverses[e] = reciprocal;
          free[e] = fixed[g] ? 0 : -1, fill[e] = fixed[g] ? fixed[g] - 1 : 0;
        }
      });
      for (int k = 0; k < vectors; k++) {
        const I code = code_of<Outside>(load(from + k * W), load(origins + k * W), load(inverses + k * W), u[k], most);
        batch[k] = (code & load_bits<I>(free + k * W)) | load_bits<I>(fill + k * W);
      }
    }
    if (count < kBatch) {
      for (int k = 0; k < vectors; k++) batch[k] &= (I)(iota() + k * W < int32_t(count));
    }
    if (ends) {
      uint8_t bytes[kBatch / 8 * kMostBits];
      pack<Q>(batch, bits, bytes);
      std::memcpy(codes, bytes, of.code_bytes(count));
    } else {
      pack<Q>(batch, bits, codes);
    }
  }
}

// What the codes of one group stand for.
template <int Q, class T>
struct Levels {
  F offset, step, table;

  INLINE void of(const uint16_t* scale) {
    offset = splat(from_upper(scale[0])), step = splat(from_upper(scale[1]));
    table = at(iota() & ((1 << Q) - 1));
  }
  INLINE F at(I code) const { return clamp<T>(step * to_float(code) + offset); }

  // Of 64 codes.
  INLINE void put(const uint8_t* codes, int bits, T* to) const {
#if defined(__AVX512BW__)
    if (Q == 2 || Q == 4) {
      for (int k = 0; k < kBatch / W; k++) store(to + k * W, looked_up(codes + k * W * Q / 8));
      return;
    }
#elif defined(__AVX2__)
    if (Q == 2) {
      for (int k = 0; k < kBatch / W; k++) store(to + k * W, looked_up(codes + k * W * Q / 8));
      return;
    }
#endif
    I code[kBatch / W];
    unpack<Q>(codes, bits, code);
    for (int k = 0; k < kBatch / W; k++) store(to + k * W, at(code[k]));
  }

#if defined(__AVX2__)
  // A lane's place in the table is in the lowest bits of its index; what is above is not looked at.
  INLINE F looked_up(const uint8_t* codes) const {
#if defined(__AVX512BW__)
    const I index = Q == 2 ? (I)(splat(load_bits<uint32_t>(codes)) >> bits_as<U>(iota() * 2)) : unpack<4>(codes);
    return (F)_mm512_permutexvar_ps((__m512i)index, (__m512)table);
#else
    const U index = splat(uint32_t(load_bits<uint16_t>(codes))) >> bits_as<U>(iota() * 2);
    return (F)_mm256_permutevar_ps((__m256)table, (__m256i)index);
#endif
  }
#endif
};

// The elements that the codes of a stretch stand for.
template <int Q, class T>
void decode_stretch(const uint8_t* codes, const Stretch& of, T* x) {
  constexpr int vectors = kBatch / W;
  const int bits = Q ? Q : of.bits;
  int64_t group = 0, end = of.first_end(), known = -1;
  Levels<Q, T> levels;
  for (int64_t b = 0; b < of.count; b += kBatch, codes += kBatch / 8 * bits) {
    const int64_t count = least(kBatch, of.count - b);
    const bool ends = of.count + of.beyond - b < kBatch;
    T last[kBatch];
    T* to = x + b;
    uint8_t bytes[kBatch / 8 * kMostBits];
    const uint8_t* from = codes;
    if (ends) {
      std::memset(bytes, 0, sizeof(bytes));
      std::memcpy(bytes, codes, (count * bits + 7) / 8);
      from = bytes, to = last;
    }
    if (b >= end) group++, end += of.size;
    if (b + count <= end) {
      if (group != known) levels.of(of.scale + 2 * group);
      known = group;
      levels.put(from, bits, to);
    } else {
      float offsets[kBatch] = {}, steps[kBatch] = {};
      each_group(of.size, b, b + count, group, end, [&](int64_t g, int64_t first, int64_t past) {
        const float offset = from_upper(of.scale[2 * g]), step = from_upper(of.scale[2 * g + 1]);
        for (int64_t e = first - b; e < past - b; e++) offsets[e] = offset, steps[e] = step;
      });
      I code[vectors];
      unpack<Q>(from, bits, code);
      for (int k = 0; k < vectors; k++) {
        store(to + k * W, clamp<T>(load(steps + k * W) * to_float(code[k]) + load(offsets + k * W)));
      }
    }
    if (ends) std::memcpy(x + b, last, sizeof(T) * count);
  }
}

}  // namespace DIVISION_ISA
}  // namespace division
