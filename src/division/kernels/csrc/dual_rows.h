// The dual codec along the rows of a plane: for planes whose rows lie in memory element by element.
#pragma once

#include "dual.h"

namespace division {
namespace DIVISION_ISA {

// Elements quantised or restored at a time: what a row leaves over waits for the next.
constexpr int64_t kFlush = 1024;

// All lanes of each eighth: the sum of its 8 lanes, by halves.
INLINE F tree_sum_of_eights(F x) {
#if defined(__AVX512BW__)
  const __m512 four = _mm512_add_ps((__m512)x, _mm512_shuffle_f32x4((__m512)x, (__m512)x, 0xB1));
  const __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4E));
  return (F)_mm512_add_ps(two, _mm512_permute_ps(two, 0xB1));
#elif defined(__AVX2__)
  const __m256 four = _mm256_add_ps((__m256)x, _mm256_permute2f128_ps((__m256)x, (__m256)x, 1));
  const __m256 two = _mm256_add_ps(four, _mm256_permute_ps(four, 0x4E));
  return (F)_mm256_add_ps(two, _mm256_permute_ps(two, 0xB1));
#else
  const F::Half four = x.half[0] + x.half[1];
  const F::Half two = four + F::Half{four[2], four[3], four[0], four[1]};
  const F::Half one = two + F::Half{two[1], two[0], two[3], two[2]};
  return {one, one};
#endif
}

// A long row is taken in stretches, so that what is kept for one stays small: of whole blocks, or of parts of long ones.
class Stretches {
 public:
  explicit Stretches(const Map& map)
      : width_(map.width()), length_(map.side[2] > kTree ? 8 * kTree : map.side[2] * most(8, 256 / map.side[2] * 8)) {}

  // Where the stretch that begins at `begin` ends; none is shorter than a vector but a whole row.
  int64_t end(int64_t begin) const { return width_ - begin < length_ + W ? width_ : begin + length_; }
  bool one() const { return end(0) == width_; }
  // Elements of the longest, and a vector more.
  int64_t room() const { return least(width_, length_ + W) + W; }

 private:
  int64_t width_, length_;
};

// The values of the blocks of elements `begin` to `end` of a row of blocks, each over the cells of its block.
INLINE void expand(const uint16_t* cells, const Map& map, int64_t begin, int64_t end, float* up) {
  const int64_t side = map.side[2];
  cells += begin / side;
  if (side == 8) {
    for (int64_t j = 0; j < end - begin; j += 8) {  // up to 7 elements beyond the end
      const float value = from_upper(*cells++);
      for (int k = 0; k < 8; k++) up[j + k] = value;
    }
    return;
  }
  int64_t stop = side - begin % side;  // where a block ends
  for (int64_t j = 0; j < end - begin; stop += side) {
    const float value = from_upper(*cells++);
    for (; j < least(stop, end - begin); j++) up[j] = value;
  }
}

// Encodes planes one after the other; one object a thread.
template <class T>
class RowEncoder {
 public:
  RowEncoder(const Map& map, const DualCode& code, Seed seed)
      : map_(map),
        code_(code),
        seed_(seed),
        stretches_(map),
        tree_(power_of_two(map.side[2])),
        memory_(5 * stretches_.room() + least(tree_, kTree) + kFlush + W) {
    const int64_t room = stretches_.room();
    up_ = memory_, sum_ = up_ + room, low_ = sum_ + room, high_ = low_ + room;
    columns_ = high_ + room, waiting_ = columns_ + least(tree_, kTree);
  }

  // `next` is the plane that comes after this one, or null.
  void encode(const T* plane, int64_t index, const T* next) {
    next_ = next ? next - plane : 0;
    uint16_t* lfc = code_.lfc + index * map_.cells();
    uint8_t* codes = code_.codes + index * code_.bytes;
    Range range;
    for (int64_t b0 = 0; b0 < map_.grid[0]; b0++) {
      for (int64_t b1 = 0; b1 < map_.grid[1]; b1++) {
        band(plane, b0, b1, lfc + (b0 * map_.grid[1] + b1) * map_.grid[2], range);
      }
    }
    float low = lowest(range.low), high = highest(range.high);
    const float least_x = lowest(range.least), most_x = highest(range.most);
    bool usable = !any(range.unsure);
    if (!usable) {
      const bool finite = all_finite(plane);
      // Of finite elements the sums may have overflowed, which is no harm unless they met with opposite signs.
      usable = finite && !any(range.nan);
      if (!finite) fill(lfc, 0);
    }
    if (usable && least_x == most_x) {
      const float value = block_value(splat(least_x), splat(1.0f))[0];
      fill(lfc, upper(value));
      low = high = least_x - value;
    } else if (usable && map_.cells() > 1 && wider_apart(splat(least_x), splat(most_x), splat(low), splat(high))[0]) {
      fill(lfc, 0);
      low = least_x, high = most_x;
    }
    const float levels = float((1 << code_.bits) - 1);
    const Scale scale = quantisation(splat(low), splat(high), splat(usable ? -1 : 0), levels);
    code_.scale[2 * index] = upper(scale.offset[0]);
    code_.scale[2 * index + 1] = upper(scale.step[0]);
    if (scale.special[0]) {
      fill_codes(codes, map_.elements(), code_.bits, usable ? scale.fill[0] : 0);
      return;
    }
    switch (code_.bits) {
      case 1: return quantise<1>(plane, lfc, codes, index, scale);
      case 2: return quantise<2>(plane, lfc, codes, index, scale);
      case 4: return quantise<4>(plane, lfc, codes, index, scale);
      default: return quantise<8>(plane, lfc, codes, index, scale);
    }
  }

 private:
  struct Range {
    F low = splat(kInf), high = splat(-kInf);     // of the residual
    F least = splat(kInf), most = splat(-kInf);   // of the elements
    I unsure = {}, nan = {};                      // where a block's sum is not finite, or NaN
  };

  INLINE const T* row(const T* plane, int64_t i0, int64_t i1) const {
    return plane + i0 * map_.stride[0] + i1 * map_.stride[1];
  }

  // Sum, least and greatest of each column of a band, of W columns from j on that end at `end`, rows ascending.
  INLINE void columns(const T* plane, int64_t b0, int64_t b1, int64_t j, int64_t end, F& sum, F& low, F& high) const {
    const int64_t count = end - j;
    bool first = true;
    each_row(map_, b0, b1, [&](int64_t i0, int64_t i1) {
      const T* p = row(plane, i0, i1) + j;
      const F x = count >= W ? load(p) : load_last(p + count, end, int(count), F{});
      sum = first ? x : sum + x;
      low = first ? x : min(low, x);
      high = first ? x : max(high, x);
      first = false;
    });
    if (count < W) {
      const I beyond = (I)(iota() >= int32_t(count));
      low = select(beyond, splat(kInf), low);
      high = select(beyond, splat(-kInf), high);
    }
  }

  INLINE void note(Range& range, F value, F sum, F low, F high) const {
    range.unsure |= ~is_finite(sum);
    range.nan |= (I)(sum != sum);
    range.low = min(range.low, low - value);
    range.high = max(range.high, high - value);
    range.least = min(range.least, low);
    range.most = max(range.most, high);
  }

  void band(const T* plane, int64_t b0, int64_t b1, uint16_t* cells, Range& range) {
    const int64_t width = map_.width();
    const float rows = float(least(map_.side[0], map_.size[0] - b0 * map_.side[0]) *
                             least(map_.side[1], map_.size[1] - b1 * map_.side[1]));
    if (map_.side[2] == 8) {
      const F inner = splat(8.0f * rows);
      for (int64_t j = 0; j < width; j += W) {
        F sum = {}, low = {}, high = {};
        columns(plane, b0, b1, j, width, sum, low, high);
        const F blocks = tree_sum_of_eights(sum);
        F count = inner;
        if (j + W > width) {
          for (int k = 0; k < W; k++) count[k] = rows * float(most(1, least(8, width - (j + k / 8 * 8))));
        }
        const F value = block_value(blocks, count);
        for (int k = 0; k < W / 8 && j + 8 * k < width; k++) cells[j / 8 + k] = upper(value[8 * k]);
        note(range, value, blocks, low, high);
      }
      return;
    }
    if (tree_ > kTree) return long_blocks(plane, b0, b1, rows, cells, range);
    for (int64_t begin = 0; begin < width; begin = stretches_.end(begin)) {
      stretch(plane, b0, b1, begin, stretches_.end(begin), rows, cells, range);
    }
  }

  // A band with blocks so wide that W columns are summed as they come.
  void long_blocks(const T* plane, int64_t b0, int64_t b1, float rows, uint16_t* cells, Range& range) {
    for (int64_t b = 0; b < map_.grid[2]; b++) {
      const int64_t start = b * map_.side[2], end = least(map_.width(), start + map_.side[2]);
      F least_x = splat(kInf), most_x = splat(-kInf);
      const F sums = sum_by_halves(0, 1, tree_ / W, (end - start + W - 1) / W, [&](int64_t k) {
        F sum = {}, low = {}, high = {};
        columns(plane, b0, b1, start + k * W, end, sum, low, high);
        least_x = min(least_x, low), most_x = max(most_x, high);
        return sum;
      });
      float lanes[W];
      store(lanes, sums);
      const F sum = splat(tree_sum(lanes, W));
      const F value = block_value(sum, splat(rows * float(end - start)));
      cells[b] = upper(value[0]);
      note(range, value, sum, least_x, most_x);
    }
  }

  // A stretch of a band with blocks of any side.
  void stretch(const T* plane, int64_t b0, int64_t b1, int64_t begin, int64_t end, float rows, uint16_t* cells,
               Range& range) {
    const int64_t side = map_.side[2], width = end - begin;
    for (int64_t j = 0; j < width; j += W) {
      F sum = {}, low = {}, high = {};
      columns(plane, b0, b1, begin + j, end, sum, low, high);
      store(sum_ + j, sum), store(low_ + j, low), store(high_ + j, high);
    }
    for (int64_t start = 0; start < width; start += side) {
      const int64_t count = least(side, width - start);
      for (int64_t k = 0; k < tree_; k++) columns_[k] = k < count ? sum_[start + k] : 0.0f;
      const float sum = tree_sum(columns_, tree_);
      const F value = block_value(splat(sum), splat(rows * float(count)));
      cells[(begin + start) / side] = upper(value[0]);
      for (int64_t k = 0; k < count; k++) sum_[start + k] = sum, up_[start + k] = value[0];
    }
    for (int64_t j = width; j % W; j++) sum_[j] = up_[j] = 0.0f;
    for (int64_t j = 0; j < width; j += W) {
      note(range, load(up_ + j), load(sum_ + j), load(low_ + j), load(high_ + j));
    }
  }

  void fill(uint16_t* lfc, uint16_t value) const {
    for (int64_t i = 0; i < map_.cells(); i++) lfc[i] = value;
  }

  bool all_finite(const T* plane) const {
    for (int64_t i0 = 0; i0 < map_.size[0]; i0++) {
      for (int64_t i1 = 0; i1 < map_.size[1]; i1++) {
        for (int64_t j = 0; j < map_.width(); j++) {
          if ((bits_as<uint32_t>(value(row(plane, i0, i1) + j)) & 0x7F800000u) == 0x7F800000u) return false;
        }
      }
    }
    return true;
  }

  // The residual of `count` elements.
  INLINE void subtract(const T* x, int64_t count, float* to) const {
    if (count < W) {
      store(to, load_some(x, int(count), F{}) - load(up_));
      return;
    }
    for (int64_t j = 0; j < count; j += W) {
      const int64_t at = least(j, count - W);  // the last W may begin before the end of those before
      store(to + at, load(x + at) - load(up_ + at));
      __builtin_prefetch(x + next_ + at, 0, 2);  // memory fetches the next plane while this one is quantised
    }
  }

  template <int Q>
  void quantise(const T* plane, const uint16_t* lfc, uint8_t* codes, int64_t index, const Scale& scale) {
    const int64_t width = map_.width();
    const U key = splat(row_key(seed_, index));
    const F origin = splat(scale.origin[0]), inverse = splat(scale.inverse[0]);
    int64_t waiting = 0, done = 0;
    constexpr int32_t levels = (1 << Q) - 1;
    const bool whole_numbers = scalable(inverse);
    const F scaled = inverse * kOne;
    const auto flush = [&](int64_t batches) {
      U counter = first_counter(done);
      for (int64_t i = 0; i < batches; i++) {
        I batch[kBatch / W];
        for (int half = 0; half < kBatch / kStretch; half++) {
          const float* from = waiting_ + i * kBatch + half * kStretch;
          I* to = batch + half * kStretch / W;
          if (whole_numbers) {
            I rest[kStretch / W];
            rests(counter, key, rest);
            for (int k = 0; k < kStretch / W; k++) {
              to[k] = stochastic_whole((load(from + k * W) - origin) * scaled, rest[k], levels) >> kShift;
            }
          } else {
            F u[kStretch / W];
            uniform(counter, key, u);
            for (int k = 0; k < kStretch / W; k++) {
              to[k] = stochastic((load(from + k * W) - origin) * inverse, u[k], splat(levels));
            }
          }
          counter = next_counter(counter);
        }
        pack<Q>(batch, codes + (done + i * kBatch) / (8 / Q));
      }
      done += batches * kBatch;
    };
    for (int64_t i0 = 0; i0 < map_.size[0]; i0++) {
      for (int64_t i1 = 0; i1 < map_.size[1]; i1++) {
        const uint16_t* cells = lfc + (i0 / map_.side[0] * map_.grid[1] + i1 / map_.side[1]) * map_.grid[2];
        const T* x = row(plane, i0, i1);
        for (int64_t begin = 0, end; begin < width; begin = end) {
          end = stretches_.end(begin);
          if (i1 % map_.side[1] == 0 || !stretches_.one()) expand(cells, map_, begin, end, up_);
          subtract(x + begin, end - begin, waiting_ + waiting);
          waiting += end - begin;
          if (waiting >= kFlush) {
            const int64_t batches = waiting / kBatch;
            flush(batches);
            waiting -= batches * kBatch;
            std::memmove(waiting_, waiting_ + batches * kBatch, sizeof(float) * waiting);
          }
        }
      }
    }
    const int64_t whole = waiting / kBatch, rest = waiting % kBatch;
    flush(whole);
    if (rest == 0) return;
    std::memmove(waiting_, waiting_ + whole * kBatch, sizeof(float) * rest);
    for (int64_t k = rest; k < kBatch; k++) waiting_[k] = scale.origin[0];  // code 0
    uint8_t last[kBatch];
    uint8_t* const end = codes + done / (8 / Q);
    codes = last - done / (8 / Q);
    flush(1);
    std::memcpy(end, last, (rest * Q + 7) / 8);
  }

  const Map map_;
  const DualCode code_;
  const Seed seed_;
  const Stretches stretches_;
  const int64_t tree_;
  Scratch<float> memory_;
  float *up_, *sum_, *low_, *high_, *columns_, *waiting_;
  int64_t next_ = 0;
};

// Decodes planes one after the other; one object a thread.
template <class T>
class RowDecoder {
 public:
  RowDecoder(const Map& map, const DualCode& code)
      : map_(map),
        code_(code),
        stretches_(map),
        memory_(2 * stretches_.room() + kFlush + 2 * kBatch),
        up_(memory_),
        waiting_(up_ + stretches_.room()) {}

  void decode(T* plane, int64_t index) {
    switch (code_.bits) {
      case 1: return restore<1>(plane, index);
      case 2: return restore<2>(plane, index);
      case 4: return restore<4>(plane, index);
      default: return restore<8>(plane, index);
    }
  }

 private:
  template <int Q>
  void restore(T* plane, int64_t index) {
    const uint16_t* lfc = code_.lfc + index * map_.cells();
    const Values<Q> values(from_upper(code_.scale[2 * index]), from_upper(code_.scale[2 * index + 1]));
    if (roomy<T>(values.reach() + greatest(lfc, map_.cells()))) {
      rows<Q, true>(plane, lfc, code_.codes + index * code_.bytes, values);
    } else {
      rows<Q, false>(plane, lfc, code_.codes + index * code_.bytes, values);
    }
  }

  template <int Q, bool kRoomy>
  void rows(T* plane, const uint16_t* lfc, const uint8_t* codes, const Values<Q>& values) {
    const int64_t width = map_.width();
    const bool direct = width >= W && width * Q % 8 == 0;
    int64_t waiting = 0, taken = 0, read = 0;  // in waiting_; of those used; elements of the plane
    for (int64_t i0 = 0; i0 < map_.size[0]; i0++) {
      for (int64_t i1 = 0; i1 < map_.size[1]; i1++) {
        const uint16_t* cells = lfc + (i0 / map_.side[0] * map_.grid[1] + i1 / map_.side[1]) * map_.grid[2];
        T* to = plane + i0 * map_.stride[0] + i1 * map_.stride[1];
        for (int64_t begin = 0, end; begin < width; begin = end) {
          end = stretches_.end(begin);
          const int64_t count = end - begin;
          if (i1 % map_.side[1] == 0 || !stretches_.one()) expand(cells, map_, begin, end, up_);
          if (direct) {
            const uint8_t* from = codes + ((i0 * map_.size[1] + i1) * width + begin) / (8 / Q);
            for (int64_t j = 0; j < count; j += W) {
              const int64_t at = least(j, count - W);  // the last W may begin before the end of those before
              store(to + begin + at, held<T, kRoomy>(values.at(from + at / (8 / Q)) + load(up_ + at)));
            }
            continue;
          }
          if (waiting - taken < count) {
            std::memmove(waiting_, waiting_ + taken, sizeof(float) * (waiting - taken));
            waiting -= taken, taken = 0;
            const int64_t wanted = least(map_.elements() - read, most(kFlush, count) - waiting);
            unpack_values<Q>(values, codes, read, wanted, waiting_ + waiting);
            const int64_t got = least(map_.elements() - read, (wanted + kBatch - 1) / kBatch * kBatch);
            waiting += got, read += got;
          }
          add<kRoomy>(waiting_ + taken, count, to + begin);
          taken += count;
        }
      }
    }
  }

  // The elements of `count` residuals.
  template <bool kRoomy>
  INLINE void add(const float* from, int64_t count, T* to) const {
    if (count < W) {
      store_some(to, held<T, kRoomy>(load(from) + load(up_)), int(count));
      return;
    }
    for (int64_t j = 0; j < count; j += W) {
      const int64_t at = least(j, count - W);
      store(to + at, held<T, kRoomy>(load(from + at) + load(up_ + at)));
    }
  }

  // The values of at least `wanted` codes from element `first`, a multiple of 64, in whole batches.
  template <int Q>
  void unpack_values(const Values<Q>& values, const uint8_t* codes, int64_t first, int64_t wanted, float* to) const {
    for (int64_t e = first; e < first + wanted; e += kBatch) {
      const uint8_t* from = codes + e / (8 / Q);
      uint8_t last[kBatch] = {};
      if (e + kBatch > map_.elements()) {
        std::memcpy(last, from, code_.bytes - e / (8 / Q));
        from = last;
      }
      for (int k = 0; k < kBatch; k += W) store(to + (e - first) + k, values.at(from + k / (8 / Q)));
    }
  }

  const Map map_;
  const DualCode code_;
  const Stretches stretches_;
  Scratch<float> memory_;
  float *up_, *waiting_;
};

}  // namespace DIVISION_ISA
}  // namespace division
