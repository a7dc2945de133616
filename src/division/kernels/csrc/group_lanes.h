// The group codec across rows that lie side by side, one row a lane: tokens, where the features of each lie side by side.
#pragma once

#include "lanes.h"

namespace division {
namespace DIVISION_ISA {

// The parts of the code of such rows, all of one width.
struct GroupCode {
  uint8_t* codes;                 // [rows, bytes]
  uint16_t* scale;                // bfloat16 [rows, groups, (offset, step)]
  int64_t rows, elements, size;   // elements of a row; of a group, but the last
  int bits;

  int64_t groups() const { return (elements + size - 1) / size; }
  int64_t bytes() const { return (elements * bits + 7) / 8; }
};

// Encodes rows side by side, up to W * kGroups at a time; one object a thread.
template <class T>
class GroupLaneEncoder {
 public:
  GroupLaneEncoder(const GroupCode& code, Seed seed) : code_(code), seed_(seed), unit_(W * kGroups * kUnit) {}

  // The rows `row` to `row + lanes.planes`.
  void encode(const Lanes<const T>& lanes, int64_t row) {
    switch (code_.bits) {
      case 1: return quantise<1>(lanes, row);
      case 2: return quantise<2>(lanes, row);
      case 4: return quantise<4>(lanes, row);
      default: return quantise<8>(lanes, row);
    }
  }

 private:
  template <int Q>
  void quantise(const Lanes<const T>& lanes, int64_t row) {
    const int groups = lanes.groups(), last = lanes.count(groups - 1);
    U keys[kGroups];
    for (int g = 0; g < groups; g++) keys[g] = row_keys(seed_, row + g * W);
    int waiting = 0;
    int64_t done = 0;
    const auto flush = [&](int count) {
      for (int g = 0; g < groups; g++) {
        const float* const from = unit_ + g * kUnit * W;
        const auto t = [&](int k) { return load(from + k * W); };
        I word[kUnitWords<Q>];
        if (count == kUnit) {
          unit_words<Q, true>(t, keys[g], done, kUnit, word);
        } else {
          unit_words<Q, true>(t, keys[g], done, count, word);
        }
        uint8_t* const to = code_.codes + (row + g * W) * code_.bytes() + done / (8 / Q);
        put_words<Q>(word, lanes.count(g), count, to, code_.bytes());
      }
      done += count;
      waiting = 0;
    };
    for (int64_t first = 0, index = 0; first < code_.elements; first += code_.size, index++) {
      const int64_t past = least(code_.elements, first + code_.size);
      Scale scale[kGroups];
      settle(lanes, row, first, past, index, scale);
      const T* x = lanes.data + first * lanes.step;
      for (int64_t e = first; e < past; e++, x += lanes.step) {
        for (int g = 0; g < groups; g++) {
          const F t = (load_lanes(x + g * W, g + 1 < groups ? W : last) - scale[g].origin) * scale[g].inverse;
          const F fixed = select(scale[g].special, to_float(scale[g].fill), t);
          store(unit_ + (g * kUnit + waiting) * W, fixed * kOne);
        }
        if (++waiting == kUnit) flush(kUnit);
      }
    }
    if (waiting) flush(waiting);
  }

  // The parameters of the groups of the elements `first` to `past` of each row, and what is stored of them.
  void settle(const Lanes<const T>& lanes, int64_t row, int64_t first, int64_t past, int64_t index,
              Scale scale[kGroups]) const {
    const int groups = lanes.groups(), last = lanes.count(groups - 1);
    F low[kGroups], high[kGroups];
    U unsure[kGroups];
    const T* x = lanes.data + first * lanes.step;
    for (int g = 0; g < groups; g++) {
      low[g] = high[g] = load_lanes(x + g * W, g + 1 < groups ? W : last);
      unsure[g] = bits_as<U>(low[g] - low[g]);  // 0 of a finite element, NaN of any other
    }
    for (int64_t e = first + 1; e < past; e++) {
      x += lanes.step;
      for (int g = 0; g < groups; g++) {
        const F v = load_lanes(x + g * W, g + 1 < groups ? W : last);
        low[g] = min(v, low[g]);
        high[g] = max(v, high[g]);
        unsure[g] |= bits_as<U>(v - v);
      }
    }
    for (int g = 0; g < groups; g++) {
      const I finite = (I)(unsure[g] == splat(0u));
      scale[g] = quantisation(low[g], high[g], finite, float((1 << code_.bits) - 1));
      scale[g].fill &= finite;
      // Offset and step of a row, side by side in 32 bits.
      uint32_t pairs[W];
      store_bits(pairs, (bits_as<U>(scale[g].offset) >> 16) | (bits_as<U>(scale[g].step) & 0xFFFF0000u));
      uint16_t* to = code_.scale + 2 * ((row + g * W) * code_.groups() + index);
      for (int l = 0; l < lanes.count(g); l++, to += 2 * code_.groups()) std::memcpy(to, pairs + l, 4);
    }
  }

  const GroupCode code_;
  const Seed seed_;
  Scratch<float> unit_;
};

// Decodes rows side by side, up to W * kGroups at a time; one object a thread.
template <class T>
class GroupLaneDecoder {
 public:
  explicit GroupLaneDecoder(const GroupCode& code) : code_(code), words_(code.codes, code.bytes(), code.rows) {}

  // The rows `row` to `row + lanes.planes`.
  void decode(const Lanes<T>& lanes, int64_t row) {
    switch (code_.bits) {
      case 1: return restore<1>(lanes, row);
      case 2: return restore<2>(lanes, row);
      case 4: return restore<4>(lanes, row);
      default: return restore<8>(lanes, row);
    }
  }

 private:
  template <int Q>
  void restore(const Lanes<T>& lanes, int64_t row) {
    constexpr int per = 32 / Q;  // codes in a word
    const int groups = lanes.groups(), last = lanes.count(groups - 1);
    const bool full = groups == kGroups && last == W;
    words_.begin(row, lanes.planes);
    int place = per;  // of the next code within its word
    T* x = lanes.data;
    for (int64_t first = 0, index = 0; first < code_.elements; first += code_.size, index++) {
      const int64_t past = least(code_.elements, first + code_.size);
      F offset[kGroups] = {}, step[kGroups] = {};
      for (int g = 0; g < groups; g++) parameters(row + g * W, lanes.count(g), index, offset[g], step[g]);
      for (int64_t e = first, end; e < past; e = end) {
        if (place == per) words_.next(), place = 0;
        end = least(past, e + per - place);
        U codes[kGroups];
        for (int g = 0; g < groups; g++) codes[g] = words_.of(g) >> (place * Q);
        const auto put = [&](int g, int planes, U own) {
          const F value = step[g] * to_float((I)(own & ((1u << Q) - 1))) + offset[g];
          store_lanes(x + g * W, clamp<T>(value), planes);
        };
        for (int64_t k = e; k < end; k++, x += lanes.step) {
          if (full) {
            for (int g = 0; g < kGroups; g++) put(g, W, codes[g]), codes[g] = codes[g] >> Q;
          } else {
            for (int g = 0; g < groups; g++) put(g, g + 1 < groups ? W : last, codes[g]), codes[g] = codes[g] >> Q;
          }
        }
        place += int(end - e);
      }
    }
  }

  void parameters(int64_t row, int count, int64_t index, F& offset, F& step) const {
    uint32_t pairs[W] = {};
    const uint16_t* from = code_.scale + 2 * (row * code_.groups() + index);
    for (int l = 0; l < count; l++, from += 2 * code_.groups()) std::memcpy(pairs + l, from, 4);
    offset = bits_as<F>(load_bits<U>(pairs) << 16), step = bits_as<F>(load_bits<U>(pairs) & 0xFFFF0000u);
  }

  const GroupCode code_;
  Words words_;
};

}  // namespace DIVISION_ISA
}  // namespace division
