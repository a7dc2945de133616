// A block to its code.
#pragma once

#include "error_bound.h"

namespace division {
namespace DIVISION_ISA {

constexpr float kNarrow = 63;  // numbers up to it differ by what fits a byte, with its sign

// Numbers of steps of all elements, to `whole` or, if `kSmall`, to `narrow`. Whether each keeps the bound; `greatest` is
// that of their quotients.
template <bool kSmall, bool kClamp, class T>
INLINE bool quantise(const T* x, Block& block, float step_size, float bound_size, float& greatest) {
  const F step = splat(step_size), inverse = splat(1.0f / step_size), bound = splat(bound_size);
  Mask kept = equal(step, step);
  F size = {};
  I all = {};
  for (int e = 0; e < block.words * kWord; e += kWord) {
    I number[kPer];
    for (int k = 0; k < kPer; k++) {
      const F v = load(x + e + k * W), quotient = v * inverse;
      const F whole = (quotient + kRound) - kRound, back = kClamp ? clamp<T>(whole * step) : whole * step;
      kept = both(kept, less(absolute(v - nearest<T>(back)), bound));
      size = max(absolute(quotient), size);
      number[k] = to_int(whole);
      all |= number[k];
      if (kSmall) {
        number[k] &= 255;
      } else {
        store_bits(block.whole + W + e + k * W, number[k]);
      }
    }
    if (kSmall) to_bytes(number, block.narrow + kWord + e);
  }
  block.has_sign = any((I)(all < 0));
  greatest = highest(size);
  return bits_of(kept) == (W == 16 ? 0xFFFFu : 0xFFu) && greatest < kMost;
}

template <bool kSmall, class T>
INLINE bool quantise(const T* x, Block& block, float step, float bound, float& greatest) {
  return may_overflow<T>(step) ? quantise<kSmall, true>(x, block, step, bound, greatest)
                               : quantise<kSmall, false>(x, block, step, bound, greatest);
}

// The same, in bytes if they are small; the block before says which is tried first.
template <class T>
INLINE bool quantise(const T* x, Block& block, float step, float bound, float& greatest) {
  if (block.is_narrow) {
    const bool kept = quantise<true>(x, block, step, bound, greatest);
    if (greatest <= kNarrow) return kept;
  }
  const bool kept = quantise<false>(x, block, step, bound, greatest);
  block.is_narrow = greatest <= kNarrow;
  if (!block.is_narrow) return kept;
  for (int e = 0; e < block.words * kWord; e += kWord) {
    I number[kPer];
    for (int k = 0; k < kPer; k++) number[k] = load_bits<I>(block.whole + W + e + k * W) & 255;
    to_bytes(number, block.narrow + kWord + e);
  }
  return kept;
}

INLINE int length(int64_t number) { return number == 0 ? 0 : 64 - __builtin_clzll(uint64_t(number)); }

// Sums and zeros of both the numbers and their differences.
INLINE void survey_wide(Block& block, uint32_t every[2]) {
  const int by = block.has_sign;
  block.total[0] = block.total[1] = 0;
  U all[2] = {};
  for (int first = 0; first < block.words; first += kWords / 2) {
    U sum[2] = {};
    for (int w = first; w < block.words && w < first + kWords / 2; w++) {
      I plain[kPer], apart[kPer];
      for (int k = 0; k < kPer; k++) {
        const int32_t* const from = block.whole + W + w * kWord + k * W;
        const I number = load_bits<I>(from);
        plain[k] = folded(number, by), apart[k] = folded(number - load_bits<I>(from - 1), 1);
        sum[0] += (U)plain[k], sum[1] += (U)apart[k];
        all[0] |= (U)plain[k], all[1] |= (U)apart[k];
        store_bits(block.apart + w * kWord + k * W, apart[k]);
      }
      block.is_nonzero[0][w] = nonzero(plain), block.is_nonzero[1][w] = nonzero(apart);
    }
    for (int k = 0; k < 2; k++) block.total[k] += int64_t(total(sum[k]));
  }
  every[0] = joined(all[0]), every[1] = joined(all[1]);
}

template <bool kSign>
INLINE void survey_narrow(Block& block, uint32_t every[2]) {
  Sum sum[2];
  Bytes all[2];
  for (int w = 0; w < block.words; w++) {
    const uint8_t* const from = block.narrow + kWord + w * kWord;
    const Bytes number(from), apart = (number - Bytes(from - 1)).folded();
    const Bytes plain = kSign ? number.folded() : number;
    if (kSign) plain.store(block.narrow_plain + w * kWord);
    apart.store(block.narrow_apart + w * kWord);
    sum[0].add(plain), sum[1].add(apart);
    all[0] = all[0] | plain, all[1] = all[1] | apart;
    block.is_nonzero[0][w] = plain.at_least(1), block.is_nonzero[1][w] = apart.at_least(1);
  }
  for (int k = 0; k < 2; k++) block.total[k] = sum[k].total(), every[k] = uint32_t(all[k].joined());
}

// The step down after the last element is none.
template <class Number>
INLINE void end_at(int count, Number* apart, Block& block, uint32_t every[2]) {
  block.total[1] -= apart[count];
  apart[count] = 0;
  block.is_nonzero[1][block.words - 1] &= block.there[block.words - 1];
  every[1] = 0;
  for (int e = 0; e < count; e++) every[1] |= uint32_t(apart[e]);
}

INLINE void survey(Block& block) {
  uint32_t every[2];
  if (!block.is_narrow) {
    survey_wide(block, every);
    if (block.count % kWord) end_at(block.count, block.apart, block, every);
  } else {
    block.has_sign ? survey_narrow<true>(block, every) : survey_narrow<false>(block, every);
    if (block.count % kWord) end_at(block.count, block.narrow_apart, block, every);
  }
  for (int k = 0; k < 2; k++) block.most[k] = length(every[k]);
}

// Of 64 elements, whether any of each 16 and each 4: the lowest bit of each.
INLINE uint64_t any_of_four(uint64_t bits) {
  bits |= bits >> 1;
  return (bits | bits >> 2) & 0x1111111111111111u;
}
INLINE uint64_t any_of_sixteen(uint64_t fours) {
  fours |= fours >> 4;
  return (fours | fours >> 8) & 0x0001000100010001u;
}

INLINE int64_t tree_bits(const uint64_t* is_nonzero, int words) {
  int64_t inner = 0;
  for (int w = 0; w < words; w++) {
    const uint64_t fours = any_of_four(is_nonzero[w]);
    inner += (is_nonzero[w] != 0) + ones(fours) + ones(any_of_sixteen(fours));
  }
  return words + 4 * inner;
}

INLINE int64_t cost(int64_t sum, int64_t count, int low) {
  return count * (low + 1) + (most(2 * sum - count * ((int64_t(1) << low) - 1), 0) >> (low + 1));
}

// How a block is to be written.
struct Choice {
  int64_t cost = std::numeric_limits<int64_t>::max();
  int style, low;
  bool apart;

  INLINE void consider(int64_t other, int other_style, int other_low, bool other_apart) {
    if (other < cost) cost = other, style = other_style, low = other_low, apart = other_apart;
  }
};

INLINE Choice choose(const Block& block) {
  Choice best;
  const int64_t count = block.count;
  for (int apart = 0; apart < 2; apart++) {
    const int64_t sum = block.total[apart];
    const int low = int(most(length(sum / (2 * count)), 1));
    best.consider(cost(sum, count, low), kNone, low, apart != 0);
    int64_t live = 0;
    for (int w = 0; w < block.words; w++) live += ones(block.is_nonzero[apart][w]);
    int64_t flags = count;
    if (2 * live < count) flags = least(count, tree_bits(block.is_nonzero[apart], block.words));
    const int low_rest = length((sum - live) / (2 * most(live, 1)));
    best.consider(flags + cost(sum - live, live, low_rest), flags < count ? kTree : kFlags, low_rest, apart != 0);
  }
  return best;
}

// The planes that say which numbers are 0.
INLINE void put_flags(BitWriter& to, const Block& block, const uint64_t* is_nonzero, int style) {
  if (style == kTree) {
    uint64_t fours[kWords];
    uint32_t some = 0;
    for (int w = 0; w < block.words; w++) fours[w] = any_of_four(is_nonzero[w]), some |= uint32_t(fours[w] != 0) << w;
    to.put(some, block.words);
    for (int w = 0; w < block.words; w++) {
      if (fours[w]) to.put(squeezed(any_of_sixteen(fours[w]), 0x0001000100010001u), 4);
    }
    for (int w = 0; w < block.words; w++) {
      if (!fours[w]) continue;
      const uint64_t mask = any_of_sixteen(fours[w]) * 0x1111u;
      to.put(squeezed(fours[w], mask), ones(mask));
    }
    for (int w = 0; w < block.words; w++) {
      const uint64_t mask = fours[w] * 15;
      if (mask) to.put(squeezed(is_nonzero[w], mask), ones(mask));
    }
  } else if (style == kFlags) {
    for (int w = 0; w < block.words; w++) to.put(is_nonzero[w], ones(block.there[w]));
  }
}

// The numbers that planes say something of, in bytes side by side: low bits, and what is above, 255 for any more.
INLINE void split_narrow(Block& block, const uint8_t* numbers, int less_one, int low) {
  const Bytes less = Bytes::of(less_one);
  int64_t at = 0;
  for (int w = 0; w < block.words; w++) {
    const Bytes rest = Bytes(numbers + w * kWord) - less;
    if (low) squeeze(rest, block.live[w], block.low[0] + at);
    at += squeeze(rest.down(low), block.live[w], block.above[0] + at);
  }
}

INLINE void split_wide(Block& block, const int32_t* numbers, int by, int less_one, int low) {
  int64_t at = 0;
  for (int w = 0; w < block.words; w++) {
    I rest[kPer], part[kPer];
    uint8_t bytes[kWord];
    for (int byte = 0; byte < (low + 7) / 8; byte++) {
      for (int k = 0; k < kPer; k++) {
        rest[k] = folded(load_bits<I>(numbers + w * kWord + k * W), by) - less_one;
        part[k] = (I)((U)rest[k] >> (8 * byte)) & 255;
      }
      to_bytes(part, bytes);
      squeeze(Bytes(bytes), block.live[w], block.low[byte] + at);
    }
    for (int k = 0; k < kPer; k++) {
      rest[k] = folded(load_bits<I>(numbers + w * kWord + k * W), by) - less_one;
      part[k] = min((I)((U)rest[k] >> low & 0x7FFFFFFFu), splat(255));
    }
    to_bytes(part, bytes);
    at += squeeze(Bytes(bytes), block.live[w], block.above[0] + at);
  }
}

// One plane of `count` bytes side by side: of each 64 the bits that `plane` gives. What it gives in all is told to `each`.
template <class Plane, class Each>
INLINE void put_plane(BitWriter& to, const uint8_t* bytes, int64_t count, const Plane& plane, const Each& each) {
  for (int64_t e = 0; e < count; e += kWord) {
    const Bytes own(bytes + e);
    uint64_t bits = plane(own);
    if (count - e >= kWord) {
      to.put_word(bits);
    } else {
      bits &= (uint64_t(1) << (count - e)) - 1;
      to.put(bits, int(count - e));
    }
    each(own, bits);
  }
}

// As put_above() for numbers of which more than a byte is above the low bits.
INLINE void put_far_above(BitWriter& to, const Block& block, const int32_t* numbers, int by, int less_one, int low,
                          int width) {
  for (int w = 0; w < block.words; w++) {
    for (uint64_t left = block.live[w]; left != 0; left &= left - 1) {
      const int32_t number = numbers[w * kWord + __builtin_ctzll(left)];
      const uint32_t above = uint32_t(((number << by) ^ (number >> 31)) - less_one) >> low;
      if (above >= kLevels) to.put(above, width);
    }
  }
}

// The bytes of a block's numbers to `code`, which has room for kRoom of them; how many they are.
INLINE int64_t put_numbers(Block& block, const Choice& how, bool fine, uint8_t* code) {
  const bool flagged = how.style != kNone;
  const int32_t* const numbers = how.apart ? block.apart : block.whole + W;
  const int low = how.low, width = int(most(block.most[how.apart], low)) - low, by = !how.apart && block.has_sign;
  code[0] = uint8_t(low | how.style << 5 | how.apart << 7);
  code[1] = uint8_t(fine | (how.apart || block.has_sign) << 1 | (low + width) << 2);
  BitWriter to(code + kHead);
  put_flags(to, block, block.is_nonzero[how.apart], how.style);
  int64_t count = block.keep(flagged ? block.is_nonzero[how.apart] : block.there);
  if (block.is_narrow) {
    const uint8_t* const plain = block.has_sign ? block.narrow_plain : block.narrow + kWord;
    split_narrow(block, how.apart ? block.narrow_apart : plain, flagged, low);
  } else {
    split_wide(block, numbers, by, flagged, low);
  }
  for (int bit = 0; bit < low; bit++) {
    put_plane(to, block.low[bit / 8], count, [&](Bytes own) { return own.plane(bit % 8); }, [](Bytes, uint64_t) {});
  }
  for (int level = 0; level < kLevels; level++) {
    int64_t left = 0;
    const auto more = [&](Bytes own) { return own.at_least(level + 1); };
    put_plane(to, block.above[0], count, more,
              [&](Bytes own, uint64_t bits) { left += squeeze(own, bits, block.above[0] + left); });
    count = left;
    if (count == 0) return kHead + to.finish();
  }
  if (width <= 8) {
    for (int64_t i = 0; i < count; i++) to.put(block.above[0][i], width);
  } else {
    put_far_above(to, block, numbers, by, flagged, low, width);
  }
  return kHead + to.finish();
}

// The code of `count` elements to `code`, which has room for kRoom bytes; `x` may be read up to a multiple of 64, where
// zeros follow. Returns its bytes.
template <class T>
INLINE int64_t encode_block(const T* x, int64_t count, float bound, Block& block, uint8_t* code) {
  block.begin(count);
  float greatest = 0;
  bool kept = quantise(x, block, step_of<T>(bound, false), bound, greatest), fine = false;
  if (kept && greatest <= 0.5f) return 0;  // they all round to 0
  if (!kept) kept = fine = quantise(x, block, step_of<T>(bound, true), bound, greatest);
  const int64_t plain = kHead + count * int64_t(sizeof(T));
  if (kept) {
    survey(block);
    const int64_t bytes = put_numbers(block, choose(block), fine, code);
    if (bytes < plain) return bytes;
  }
  code[0] = kExact << 5, code[1] = 0;
  std::memcpy(code + kHead, x, count * sizeof(T));
  return plain;
}

}  // namespace DIVISION_ISA
}  // namespace division
