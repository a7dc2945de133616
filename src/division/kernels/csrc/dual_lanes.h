// The dual codec across planes, one plane a lane: for channels_last, where planes lie side by side, and for small
// planes of any layout, which are brought into that order first (tile.h).
#pragma once

#include "dual.h"
#include "lanes.h"

namespace division {
namespace DIVISION_ISA {

// Rows of up to so many blocks have the values of all of them at hand, longer ones of one block at a time.
constexpr int64_t kCells = 512;
INLINE int64_t cells_at_hand(const Map& map) { return map.grid[2] <= kCells ? map.grid[2] : 1; }

// The values of `blocks` blocks of one group of planes, the first of them `cell` of the plane: to up[blocks, kGroups, W].
INLINE void gather_cells(const uint16_t* lfc, const Map& map, int64_t index, int count, int64_t cell, int64_t blocks,
                         float* up) {
  const uint16_t* cells = lfc + index * map.cells() + cell;
  for (int64_t b = 0; b < blocks; b++) {
    uint32_t bits[W];
    for (int l = 0; l < W; l++) bits[l] = l < count ? uint32_t(cells[l * map.cells() + b]) << 16 : 0;
    store_bits(up + b * kGroups * W, load_bits<F>(bits));
  }
}

// Calls `visit(offset, slot, count)` for the runs of elements of a plane that lie in one row of a block, in order: where
// the run begins and how many elements it has; the value of its block is at place `slot` of those that
// `gather(cell, blocks)` was last asked for.
template <class Gather, class Visit>
INLINE void each_run(const Map& map, int64_t stride0, int64_t stride1, int64_t step, const Gather& gather,
                     const Visit& visit) {
  const bool whole_rows = cells_at_hand(map) == map.grid[2];
  for (int64_t i0 = 0; i0 < map.size[0]; i0++) {
    for (int64_t i1 = 0; i1 < map.size[1]; i1++) {
      const int64_t cell = (i0 / map.side[0] * map.grid[1] + i1 / map.side[1]) * map.grid[2];
      if (whole_rows && i1 % map.side[1] == 0) gather(cell, map.grid[2]);
      const int64_t offset = i0 * stride0 + i1 * stride1;
      for (int64_t b = 0; b < map.grid[2]; b++) {
        const int64_t start = b * map.side[2];
        if (!whole_rows) gather(cell + b, 1);
        visit(offset + start * step, whole_rows ? b : 0, least(map.side[2], map.width() - start));
      }
    }
  }
}

// Encodes planes that lie side by side, up to W * kGroups at a time; one object a thread.
template <class T>
class LaneEncoder {
 public:
  LaneEncoder(const Map& map, const DualCode& code, Seed seed)
      : map_(map),
        code_(code),
        seed_(seed),
        tree_(power_of_two(map.side[2])),
        memory_(W * (least(tree_, kTree) + kGroups * (cells_at_hand(map) + kUnit))),
        columns_(memory_),
        up_(columns_ + W * least(tree_, kTree)),
        unit_(up_ + W * kGroups * cells_at_hand(map)) {}

  // The planes `index` to `index + lanes.planes`.
  void encode(const Lanes<const T>& lanes, int64_t index) {
    Rounding rounding[kGroups];
    prepare(lanes, index, rounding);
    switch (code_.bits) {
      case 1: return quantise<1>(lanes, index, rounding);
      case 2: return quantise<2>(lanes, index, rounding);
      case 4: return quantise<4>(lanes, index, rounding);
      default: return quantise<8>(lanes, index, rounding);
    }
  }

  // The planes `index` to `index + planes` out of a tile [elements, W], which is overwritten.
  void encode_tile(float* tile, int planes, int64_t index) {
    const Lanes<const T> lanes = {tile, map_.size[1] * map_.size[2] * W, map_.size[2] * W, W, planes};
    Rounding rounding[kGroups];
    prepare(lanes, index, rounding);
    F up = splat(0.0f);
    if (map_.cells() == 1) {
      gather_cells(code_.lfc, map_, index, planes, 0, 1, up_);
      up = load(up_);
    } else {
      each_run(
          map_, lanes.stride0, lanes.stride1, lanes.step,
          [&](int64_t cell, int64_t blocks) { gather_cells(code_.lfc, map_, index, planes, cell, blocks, up_); },
          [&](int64_t offset, int64_t slot, int64_t count) {
            const F value = load(up_ + slot * kGroups * W);
            for (float* x = tile + offset; x < tile + offset + count * W; x += W) store(x, load(x) - value);
          });
    }
    switch (code_.bits) {
      case 1: return quantise_tile<1>(tile, up, planes, index, rounding[0]);
      case 2: return quantise_tile<2>(tile, up, planes, index, rounding[0]);
      case 4: return quantise_tile<4>(tile, up, planes, index, rounding[0]);
      default: return quantise_tile<8>(tile, up, planes, index, rounding[0]);
    }
  }

 private:
  struct Range {
    F low, high;     // of the residual
    F least, most;   // of the elements
    I unsure, nan;   // where a block's sum is not finite, or NaN

    void begin() {
      low = least = splat(kInf), high = most = splat(-kInf);
      unsure = nan = splat(0);
    }
  };

  struct Rounding {
    Scale scale;
    U keys;
    bool special, whole;  // whether a plane is special; whether whole numbers serve
  };

  // Writes the LFC, and what of the scale is stored; says how to round.
  void prepare(const Lanes<const T>& lanes, int64_t index, Rounding* rounding) {
    Range range[kGroups];
    for (int g = 0; g < lanes.groups(); g++) range[g].begin();
    for (int64_t b0 = 0; b0 < map_.grid[0]; b0++) {
      for (int64_t b1 = 0; b1 < map_.grid[1]; b1++) {
        for (int64_t b2 = 0; b2 < map_.grid[2]; b2++) {
          for (int g = 0; g < lanes.groups(); g++) block(lanes, g, index, b0, b1, b2, range[g]);
        }
      }
    }
    for (int g = 0; g < lanes.groups(); g++) parameters(lanes, g, index + g * W, range[g], rounding[g]);
  }

  // The sums of a block in the frozen order (rows ascending, then columns by halves), and its least and greatest
  // elements: `count` columns from `start` on, up to 8, of W planes.
  INLINE F eight_columns(const Lanes<const T>& lanes, int g, int64_t b0, int64_t b1, int64_t start, int64_t count, F& low,
                         F& high) const {
    F sums[8];
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) sums[k] = F{};
    const auto columns = [&](int64_t i0, int64_t i1, const auto& take) {
      const T* p = lanes.row(i0, i1) + start * lanes.step + g * W;
#pragma GCC unroll 8
      for (int k = 0; k < 8; k++, p += lanes.step) {
        if (k >= count) break;
        __builtin_prefetch(p + map_.side[2] * lanes.step);  // the next block
        const F x = load(p);
        take(sums[k], x);
        low = min(low, x);
        high = max(high, x);
      }
    };
    columns(b0 * map_.side[0], b1 * map_.side[1], [](F& sum, F x) { sum = x; });
    bool first = true;
    each_row(map_, b0, b1, [&](int64_t i0, int64_t i1) {
      if (!first) columns(i0, i1, [](F& sum, F x) { sum = sum + x; });
      first = false;
    });
    for (int k = 0; k < 4; k++) sums[k] = sums[k] + sums[k + 4];
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
  }

  // The same of any width and number of planes.
  __attribute__((noinline)) F any_columns(const Lanes<const T>& lanes, int g, int64_t b0, int64_t b1, int64_t start,
                                          int64_t count, F& low, F& high) const {
    const auto column = [&](int64_t k) {
      F sum = {};
      bool first = true;
      each_row(map_, b0, b1, [&](int64_t i0, int64_t i1) {
        const F x = load_lanes(lanes.row(i0, i1) + (start + k) * lanes.step + g * W, lanes.count(g));
        sum = first ? x : sum + x;
        low = min(low, x);
        high = max(high, x);
        first = false;
      });
      return sum;
    };
    if (tree_ > kTree) return sum_by_halves(0, 1, tree_, count, column);
    for (int64_t k = 0; k < tree_; k++) store(columns_ + k * W, k < count ? column(k) : F{});
    return tree_sum_of_vectors(columns_, tree_);
  }

  void block(const Lanes<const T>& lanes, int g, int64_t index, int64_t b0, int64_t b1, int64_t b2, Range& range) {
    const int64_t start = b2 * map_.side[2], count = least(map_.side[2], map_.width() - start);
    const int planes = lanes.count(g);
    F low = splat(kInf), high = splat(-kInf), sum;
    if (tree_ == 8 && planes == W) {
      sum = count == 8 ? eight_columns(lanes, g, b0, b1, start, 8, low, high)
                       : eight_columns(lanes, g, b0, b1, start, count, low, high);
    } else {
      F low_any = low, high_any = high;  // by reference: not those that the other branch keeps in registers
      sum = any_columns(lanes, g, b0, b1, start, count, low_any, high_any);
      low = low_any, high = high_any;
    }
    const int64_t rows = least(map_.side[0], map_.size[0] - b0 * map_.side[0]) *
                         least(map_.side[1], map_.size[1] - b1 * map_.side[1]);
    const F value = block_value(sum, splat(float(rows * count)));
    uint16_t* cell = code_.lfc + (index + g * W) * map_.cells() + (b0 * map_.grid[1] + b1) * map_.grid[2] + b2;
    uint32_t bits[W];
    store_bits(bits, value);
    for (int l = 0; l < planes; l++) cell[l * map_.cells()] = uint16_t(bits[l] >> 16);
    range.unsure |= ~is_finite(sum);
    range.nan |= (I)(sum != sum);
    range.low = min(range.low, low - value);
    range.high = max(range.high, high - value);
    range.least = min(range.least, low);
    range.most = max(range.most, high);
  }

  // Of the planes `index` to `index + W`; writes what is stored of them.
  void parameters(const Lanes<const T>& lanes, int g, int64_t index, const Range& range, Rounding& rounding) const {
    const int planes = lanes.count(g);
    const I doubtful = range.unsure | (I)(range.least == range.most);
    I usable = ~range.unsure;
    F low = range.low, high = range.high;
    for (int l = 0; l < planes && any(doubtful); l++) {
      if (!doubtful[l]) continue;
      uint16_t* lfc = code_.lfc + (index + l) * map_.cells();
      if (!usable[l]) {
        const bool finite = all_finite(lanes, g * W + l);
        // Of finite elements the sums may have overflowed, which is no harm unless they met with opposite signs.
        usable[l] = finite && !range.nan[l] ? -1 : 0;
        if (!finite) fill(lfc, 0);
      }
      if (usable[l] && range.least[l] == range.most[l]) {
        const float value = block_value(splat(range.least[l]), splat(1.0f))[0];
        fill(lfc, upper(value));
        low[l] = high[l] = range.least[l] - value;
      }
    }
    if (map_.cells() > 1) {
      const I wider = usable & wider_apart(range.least, range.most, low, high);
      low = select(wider, range.least, low);
      high = select(wider, range.most, high);
      for (int l = 0; l < planes && any(wider); l++) {
        if (wider[l]) fill(code_.lfc + (index + l) * map_.cells(), 0);
      }
    }
    Scale& scale = rounding.scale;
    scale = quantisation(low, high, usable, float((1 << code_.bits) - 1));
    scale.fill &= usable;
    rounding.keys = row_keys(seed_, index);
    rounding.whole = scalable(scale.inverse);
    // Offset and step of a plane, side by side in 32 bits.
    const U pairs = (bits_as<U>(scale.offset) >> 16) | (bits_as<U>(scale.step) & 0xFFFF0000u);
    std::memcpy(code_.scale + 2 * index, &pairs, 4 * planes);
    rounding.special = any(scale.special);
  }

  void fill(uint16_t* lfc, uint16_t value) const {
    for (int64_t i = 0; i < map_.cells(); i++) lfc[i] = value;
  }

  bool all_finite(const Lanes<const T>& lanes, int64_t plane) const {
    for (int64_t i0 = 0; i0 < map_.size[0]; i0++) {
      for (int64_t i1 = 0; i1 < map_.size[1]; i1++) {
        for (int64_t j = 0; j < map_.width(); j++) {
          const float x = value(lanes.row(i0, i1) + j * lanes.step + plane);
          if ((bits_as<uint32_t>(x) & 0x7F800000u) == 0x7F800000u) return false;
        }
      }
    }
    return true;
  }

  template <int Q>
  void quantise(const Lanes<const T>& lanes, int64_t index, const Rounding* rounding) {
    const int groups = lanes.groups(), last = lanes.count(groups - 1);
    int waiting = 0;
    int64_t done = 0;
    const auto flush = [&](int count) {
      for (int g = 0; g < groups; g++) {
        unit<Q>(unit_ + g * W * kUnit, F{}, rounding[g], lanes.count(g), index + g * W, done, count);
      }
      done += count;
      waiting = 0;
    };
    each_run(
        map_, lanes.stride0, lanes.stride1, lanes.step,
        [&](int64_t cell, int64_t blocks) {
          for (int g = 0; g < groups; g++) {
            gather_cells(code_.lfc, map_, index + g * W, lanes.count(g), cell, blocks, up_ + g * W);
          }
        },
        [&](int64_t offset, int64_t slot, int64_t count) {
          const T* x = lanes.data + offset;
          const float* up = up_ + slot * kGroups * W;
          for (int64_t j = 0; j < count; j++, x += lanes.step) {
            for (int g = 0; g + 1 < groups; g++) {
              store(unit_ + (g * kUnit + waiting) * W, load(x + g * W) - load(up + g * W));
            }
            const int g = groups - 1;
            store(unit_ + (g * kUnit + waiting) * W, load_lanes(x + g * W, last) - load(up + g * W));
            if (++waiting == kUnit) flush(kUnit);
          }
        });
    if (waiting) flush(waiting);
  }

  template <int Q>
  void quantise_tile(const float* tile, F up, int planes, int64_t index, const Rounding& rounding) {
    const int64_t elements = map_.elements();
    if (Q == 2 && elements <= 4 * kUnit && planes == W && rounding.whole) {
      I word[4] = {splat(0), splat(0), splat(0), splat(0)};
      for (int64_t e = 0; e < elements; e += kUnit) {
        const float* from = tile + e * W;
        if (elements - e >= kUnit) {
          words_of<2, true>(from, up, rounding, e, kUnit, word + e / kUnit);
        } else {
          words_of<2, true>(from, up, rounding, e, int(elements - e), word + e / kUnit);
        }
      }
      put_four(word, index);
      return;
    }
    int64_t e = 0;
    for (; e + kUnit <= elements; e += kUnit) unit<Q>(tile + e * W, up, rounding, planes, index, e, kUnit);
    if (e < elements) unit<Q>(tile + e * W, up, rounding, planes, index, e, int(elements - e));
  }

  // All codes of W planes, of up to 16 bytes each.
  INLINE void put_four(const I word[4], int64_t index) const {
    uint32_t rows[4][W];
    for (int w = 0; w < 4; w++) store_bits(rows[w], word[w]);
    uint8_t* to = code_.codes + index * code_.bytes;
    for (int l = 0; l < W; l++, to += code_.bytes) {
      const uint32_t own[4] = {rows[0][l], rows[1][l], rows[2][l], rows[3][l]};
      // Zeros that reach into the planes behind are written over when their turn comes; the last leaves none.
      if ((W - l) * code_.bytes >= 16) {
        std::memcpy(to, own, 16);
      } else {
        copy_few(to, own, code_.bytes);
      }
    }
  }

  // Codes `count` elements of W planes from `element` on, [kUnit, W], from which `up` is still to be taken, and puts
  // their codes away.
  template <int Q>
  INLINE void unit(const float* residual, F up, const Rounding& rounding, int planes, int64_t index, int64_t element,
                   int count) const {
    if (count == kUnit && rounding.whole) {
      unit<Q, true>(residual, up, rounding, planes, index, element, kUnit);
    } else if (rounding.whole) {
      unit<Q, true>(residual, up, rounding, planes, index, element, count);
    } else {
      unit<Q, false>(residual, up, rounding, planes, index, element, count);
    }
  }

  template <int Q, bool kWhole>
  static INLINE void words_of(const float* residual, F up, const Rounding& rounding, int64_t element, int count,
                              I* word) {
    const Scale& scale = rounding.scale;
    const F inverse = kWhole ? scale.inverse * kOne : scale.inverse;
    const auto t = [&](int k) { return (load(residual + k * W) - up - scale.origin) * inverse; };
    unit_words<Q, kWhole>(t, rounding.keys, element, count, word);
    if (rounding.special) {
      for (int w = 0; w < kUnitWords<Q>; w++) {
        int32_t ones = 0;  // a 1 at the place of every code
        for (int k = 0; k < kUnitPer<Q> && w * kUnitPer<Q> + k < count; k++) ones |= int32_t(1u << (k * Q));
        word[w] = (word[w] & ~scale.special) | (scale.fill * ones & scale.special);
      }
    }
  }

  template <int Q, bool kWhole>
  INLINE void unit(const float* residual, F up, const Rounding& rounding, int planes, int64_t index, int64_t element,
                   int count) const {
    I word[kUnitWords<Q>];
    words_of<Q, kWhole>(residual, up, rounding, element, count, word);
    put_words<Q>(word, planes, count, code_.codes + index * code_.bytes + element / (8 / Q), code_.bytes);
  }

  const Map map_;
  const DualCode code_;
  const Seed seed_;
  const int64_t tree_;
  Scratch<float> memory_;
  float *columns_, *up_, *unit_;
};

// Decodes planes that lie side by side, up to W * kGroups at a time; one object a thread.
template <class T>
class LaneDecoder {
 public:
  LaneDecoder(const Map& map, const DualCode& code)
      : map_(map),
        code_(code),
        words_(code.codes, code.bytes, map.planes()),
        memory_(W * kGroups * (kTables ? 3 : 1) * cells_at_hand(map)),
        up_(memory_),
        tables_(up_ + W * kGroups * cells_at_hand(map)) {}

  void decode(const Lanes<T>& lanes, int64_t index) {
    switch (code_.bits) {
      case 1: return restore<1>(lanes, index);
      case 2: return restore<2>(lanes, index);
      case 4: return restore<4>(lanes, index);
      default: return restore<8>(lanes, index);
    }
  }

 private:
  // Whether 2 bits are looked up in a table of all 4 values that a plane has in a block.
#if defined(__AVX512BW__)
  static constexpr bool kTables = sizeof(T) == 2;
#else
  static constexpr bool kTables = false;
#endif

  template <int Q>
  void restore(const Lanes<T>& lanes, int64_t index) {
    const int groups = lanes.groups();
    Parameters parameters;
    float reach = 0.0f;
    for (int g = 0; g < groups; g++) {
      U pairs = {};
      std::memcpy(&pairs, code_.scale + 2 * (index + g * W), 4 * lanes.count(g));
      const F offset = bits_as<F>(pairs << 16), step = bits_as<F>(pairs & 0xFFFF0000u);
      const F bounds = absolute(offset) + float((1 << Q) - 1) * absolute(step);
      const float bound = highest(select((I)(bounds == bounds), bounds, F{}));  // planes of NaN have nothing to hold
      reach = bound > reach ? bound : reach;
      parameters.offset[g] = offset, parameters.step[g] = step;
    }
    if constexpr (kTables && Q == 2) {
      if (lanes.planes == kGroups * W) return looked_up(lanes, index, parameters);
    }
    if (roomy<T>(reach + greatest(code_.lfc + index * map_.cells(), lanes.planes * map_.cells()))) {
      runs<Q, true>(lanes, index, parameters);
    } else {
      runs<Q, false>(lanes, index, parameters);
    }
  }

  struct Parameters {
    F offset[kGroups], step[kGroups];
  };

  // The blocks' values of all groups, to up[blocks, kGroups, W].
  void gather_up(const Lanes<T>& lanes, int64_t index, int64_t cell, int64_t blocks) const {
    for (int g = 0; g < lanes.groups(); g++) {
      gather_cells(code_.lfc, map_, index + g * W, lanes.count(g), cell, blocks, up_ + g * W);
    }
  }

  template <int Q, bool kRoomy>
  void runs(const Lanes<T>& lanes, int64_t index, const Parameters& parameters) {
    const int groups = lanes.groups(), last = lanes.count(groups - 1);
    const bool full = groups == kGroups && last == W;
    constexpr int per = 32 / Q;  // codes in a word
    F step[kGroups], offset[kGroups];
    for (int g = 0; g < kGroups; g++) {
      step[g] = parameters.step[g < groups ? g : 0], offset[g] = parameters.offset[g < groups ? g : 0];
    }
    words_.begin(index, lanes.planes);
    int place = per;  // of the next code within its word
    each_run(
        map_, lanes.stride0, lanes.stride1, lanes.step,
        [&](int64_t cell, int64_t blocks) { gather_up(lanes, index, cell, blocks); },
        [&](int64_t where, int64_t slot, int64_t count) {
          T* x = lanes.data + where;
          const float* from = up_ + slot * kGroups * W;
          for (int64_t j = 0, end; j < count; j = end) {
            if (place == per) words_.next(), place = 0;
            end = least(count, j + per - place);
            const auto left = [&](int g) { return words_.of(g) >> (place * Q); };  // the next code lowest
            const auto restore = [&](int g, int planes, int64_t k, U codes, F up) {
              const F value = step[g] * to_float((I)(codes & ((1u << Q) - 1))) + offset[g] + up;
              store_lanes(x + k * lanes.step + g * W, held<T, kRoomy>(value), planes);
            };
            if (full) {
              U codes[kGroups];
              F up[kGroups];
              for (int g = 0; g < kGroups; g++) codes[g] = left(g), up[g] = load(from + g * W);
              for (int64_t k = j; k < end; k++) {
                for (int g = 0; g < kGroups; g++) restore(g, W, k, codes[g], up[g]), codes[g] = codes[g] >> Q;
              }
            } else {
              for (int g = 0; g < groups; g++) {
                const int planes = g + 1 < groups ? W : last;
                U codes = left(g);
                const F up = load(from + g * W);
                for (int64_t k = j; k < end; k++) restore(g, planes, k, codes, up), codes = codes >> Q;
              }
            }
            place += int(end - j);
          }
        });
  }

#if defined(__AVX512BW__)
  // 16-bit elements of 2 bits: 32 planes at a time, two groups.
  void looked_up(const Lanes<T>& lanes, int64_t index, const Parameters& parameters) {
    constexpr int kPairs = kGroups / 2, per = 8;  // codes in 16 bits
    const auto table = [&](int64_t slot, int pair) { return tables_ + (slot * kPairs + pair) * 4 * W; };
    words_.begin(index, lanes.planes);
    int place = 2 * per;
    each_run(
        map_, lanes.stride0, lanes.stride1, lanes.step,
        [&](int64_t cell, int64_t blocks) {
          gather_up(lanes, index, cell, blocks);
          for (int64_t b = 0; b < blocks; b++) {
            for (int g = 0; g < kGroups; g++) {
              for (int code = 0; code < 4; code++) {
                const F value = parameters.step[g] * float(code) + parameters.offset[g] + load(up_ + (b * kGroups + g) * W);
                const __m256i bits = sixteen_bits(lanes.data, clamp<T>(value));
                store_bits(table(b, g / 2) + code * W + g % 2 * (W / 2), bits);
              }
            }
          }
        },
        [&](int64_t where, int64_t slot, int64_t count) {
          T* x = lanes.data + where;
          for (int64_t j = 0, end; j < count; j = end) {
            if (place == 2 * per) words_.next(), place = 0;
            end = least(count, j + per - place % per);
            for (int pair = 0; pair < kPairs; pair++) {
              const int shift = place * 2;
              const __m256i first = _mm512_cvtepi32_epi16((__m512i)(words_.of(2 * pair) >> shift));
              const __m256i second = _mm512_cvtepi32_epi16((__m512i)(words_.of(2 * pair + 1) >> shift));
              __m512i codes = _mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1);
              __m512i values[4];
              for (int code = 0; code < 4; code++) values[code] = load_bits<__m512i>(table(slot, pair) + code * W);
              T* to = x + pair * 2 * W;
              for (int64_t k = j; k < end; k++) {
                const __mmask32 odd = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(1));
                const __mmask32 upper = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(2));
                const __m512i low = _mm512_mask_blend_epi16(odd, values[0], values[1]);
                const __m512i high = _mm512_mask_blend_epi16(odd, values[2], values[3]);
                _mm512_storeu_si512(to + k * lanes.step, _mm512_mask_blend_epi16(upper, low, high));
                codes = _mm512_srli_epi16(codes, 2);
              }
            }
            place += int(end - j);
          }
        });
  }
#endif

  const Map map_;
  const DualCode code_;
  Words words_;
  Scratch<float> memory_;
  float *up_, *tables_;
};

}  // namespace DIVISION_ISA
}  // namespace division
