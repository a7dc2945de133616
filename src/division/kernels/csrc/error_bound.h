// One block of the error-bounded code: kernels/reference/error_bound.py says what it holds, bit for bit.
#pragma once

#include "masks.h"
#include "planes.h"

namespace division {
namespace DIVISION_ISA {

constexpr int kBlock = 2048, kWords = kBlock / kWord, kPer = kWord / W;
constexpr int kHead = 2, kLevels = 16, kBits = 25;
constexpr int kNone = 0, kFlags = 1, kTree = 2, kExact = 3;
constexpr float kMost = float(1 << 22), kRound = float(3 << 22);
// The most bytes that the planes of a block take, with what is written beyond them.
constexpr int kRoom = kHead + kBlock * (kBits + kLevels + 1 + kBits) / 8 + 64;

template <class T>
struct Factor;
template <>
struct Factor<float> { static constexpr float value = 2 - 0x1p-9f; };
template <>
struct Factor<Float16> { static constexpr float value = 1.875f; };
template <>
struct Factor<BFloat16> { static constexpr float value = 1.75f; };

template <class T>
INLINE F nearest(F x) { return rounded<T>(x); }
template <>
INLINE F nearest<float>(F x) { return x; }

// A step: of twice the bound and a little less, or of the bound.
template <class T>
INLINE float step_of(float bound, bool fine) {
  const float step = fine ? bound : bound * Factor<T>::value;
  return step > std::numeric_limits<float>::max() ? std::numeric_limits<float>::max() : step;
}

// What a block's numbers look like before and while they are written.
struct Block {
  alignas(64) int32_t whole[W + kBlock];  // numbers of steps, after W zeros
  alignas(64) int32_t apart[kBlock];      // how they differ from the one before, signs folded in
  alignas(64) uint8_t low[3][kBlock];
  alignas(64) uint8_t ones[kBlock];
  uint64_t is_nonzero[2][kWords];  // of `whole` and of `apart`
  uint64_t there[kWords];
  int64_t total[2];
  int words, count;
  bool has_sign;

  void begin(int64_t elements) {
    std::memset(whole, 0, sizeof(int32_t) * W);
    count = int(elements), words = (count + kWord - 1) / kWord;
    for (int w = 0; w < words; w++) there[w] = ~uint64_t(0);
    if (count % kWord) there[words - 1] = (uint64_t(1) << count % kWord) - 1;
  }
};

// Numbers of steps of all elements. Whether each keeps the bound; `zero` says whether they are all 0.
template <class T>
INLINE bool quantise(const T* x, Block& block, float step_size, float bound_size, bool& zero) {
  const F step = splat(step_size), inverse = splat(1.0f / step_size), bound = splat(bound_size);
  Mask kept = equal(step, step);
  I all = {};
  for (int e = 0; e < block.words * kWord; e += W) {
    const F v = load(x + e), quotient = v * inverse;
    const F whole = (quotient + kRound) - kRound;
    const F off = absolute(v - nearest<T>(clamp<T>(whole * step)));
    kept = both(kept, both(less(absolute(quotient), splat(kMost)), less(off, bound)));
    const I number = to_int(whole);
    all |= number;
    store_bits(block.whole + W + e, number);
  }
  block.has_sign = any((I)(all < 0));
  zero = !any(all);
  return bits_of(kept) == (W == 16 ? 0xFFFFu : 0xFFu);
}

// 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
INLINE I folded(I x, int by) { return (x << by) ^ (x >> 31); }
INLINE I unfolded(I x) { return (I)((U)x >> 1) ^ -(x & 1); }

// Sums and zeros of both the numbers and their differences.
INLINE void survey(Block& block) {
  const int by = block.has_sign;
  block.total[0] = block.total[1] = 0;
  for (int first = 0; first < block.words; first += kWords / 2) {
    U sum[2] = {};
    for (int w = first; w < block.words && w < first + kWords / 2; w++) {
      I plain[kPer], apart[kPer];
      for (int k = 0; k < kPer; k++) {
        const int32_t* const from = block.whole + W + w * kWord + k * W;
        const I number = load_bits<I>(from);
        plain[k] = folded(number, by), apart[k] = folded(number - load_bits<I>(from - 1), 1);
        sum[0] += (U)plain[k], sum[1] += (U)apart[k];
        store_bits(block.apart + w * kWord + k * W, apart[k]);
      }
      block.is_nonzero[0][w] = nonzero(plain), block.is_nonzero[1][w] = nonzero(apart);
    }
    for (int k = 0; k < 2; k++) block.total[k] += int64_t(total(sum[k]));
  }
  if (block.count % kWord) {  // the step down after the last element is none
    block.total[1] -= block.apart[block.count];
    block.apart[block.count] = 0;
    block.is_nonzero[1][block.words - 1] &= block.there[block.words - 1];
  }
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

INLINE int length(int64_t number) { return number == 0 ? 0 : 64 - __builtin_clzll(uint64_t(number)); }

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

// The numbers in bytes: their low bits, and the ones above those, of which kLevels are told.
INLINE void split(Block& block, const int32_t* numbers, int by, int less_one, int low) {
  for (int w = 0; w < block.words; w++) {
    I rest[kPer], part[kPer];
    for (int k = 0; k < kPer; k++) {
      rest[k] = folded(load_bits<I>(numbers + w * kWord + k * W), by) - less_one;
      part[k] = min((I)((U)rest[k] >> low), splat(int32_t(kLevels))) & 31;
    }
    to_bytes(part, block.ones + w * kWord);
    for (int byte = 0; byte < (low + 7) / 8; byte++) {
      for (int k = 0; k < kPer; k++) part[k] = (I)((U)rest[k] >> (8 * byte)) & 255;
      to_bytes(part, block.low[byte] + w * kWord);
    }
  }
}

// The numbers that have kLevels ones, whole but for the low bits.
inline void put_escaped(BitWriter& to, const Block& block, const int32_t* numbers, int by, int less_one, int low,
                        const uint64_t* live) {
  for (int bit = low; bit < kBits; bit++) {
    for (int w = 0; w < block.words; w++) {
      if (!live[w]) continue;
      uint64_t plane = 0;
      for (int i = 0; i < kWord; i++) {
        const int32_t number = numbers[w * kWord + i];
        plane |= uint64_t((((number << by) ^ (number >> 31)) - less_one) >> bit & 1) << i;
      }
      to.put(squeezed(plane, live[w]), ones(live[w]));
    }
  }
}

// The bytes of a block's numbers to `code`, which has room for kRoom of them; how many they are.
INLINE int64_t put_numbers(Block& block, const Choice& how, bool fine, uint8_t* code) {
  const bool flagged = how.style != kNone;
  const int32_t* const numbers = how.apart ? block.apart : block.whole + W;
  const int by = !how.apart && block.has_sign;
  code[0] = uint8_t(how.low | how.style << 5 | how.apart << 7);
  code[1] = uint8_t(fine | (how.apart || block.has_sign) << 1);
  BitWriter to(code + kHead);
  const uint64_t* const is_nonzero = block.is_nonzero[how.apart];
  put_flags(to, block, is_nonzero, how.style);
  split(block, numbers, by, flagged, how.low);
  uint64_t live[kWords];
  for (int w = 0; w < block.words; w++) live[w] = flagged ? is_nonzero[w] : block.there[w];
  for (int bit = 0; bit < how.low; bit++) {
    const uint8_t* const bytes = block.low[bit / 8];
    for (int w = 0; w < block.words; w++) {
      to.put(squeezed(plane_of(bytes + w * kWord, bit % 8), live[w]), ones(live[w]));
    }
  }
  for (int level = 0; level < kLevels; level++) {
    uint64_t some = 0;
    for (int w = 0; w < block.words; w++) {
      const uint64_t plane = above(block.ones + w * kWord, level);
      to.put(squeezed(plane, live[w]), ones(live[w]));
      live[w] &= plane;
      some |= live[w];
    }
    if (!some) return kHead + to.finish();
  }
  put_escaped(to, block, numbers, by, flagged, how.low, live);
  return kHead + to.finish();
}

// The code of `count` elements to `code`, which has room for kRoom bytes; `x` may be read up to a multiple of 64, where
// zeros follow. Returns its bytes.
template <class T>
INLINE int64_t encode_block(const T* x, int64_t count, float bound, Block& block, uint8_t* code) {
  block.begin(count);
  bool zero = false;
  bool kept = quantise(x, block, step_of<T>(bound, false), bound, zero), fine = false;
  if (kept && zero) return 0;
  if (!kept) kept = fine = quantise(x, block, step_of<T>(bound, true), bound, zero);
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

// Reads bits one run after the other.
struct BitReader {
  const uint8_t* from;
  int64_t at = 0;

  INLINE uint64_t get(int count) {
    const uint64_t bits = bits_at(from, at);
    at += count;
    return bits;
  }
};

INLINE void get_flags(BitReader& from, const Block& block, int style, uint64_t* is_nonzero) {
  if (style == kTree) {
    uint64_t fours[kWords];
    const uint32_t some = uint32_t(from.get(block.words));
    for (int w = 0; w < block.words; w++) {
      fours[w] = some >> w & 1 ? parted(from.get(4), 0x0001000100010001u) * 0x1111u : 0;
    }
    for (int w = 0; w < block.words; w++) {
      if (fours[w]) fours[w] = parted(from.get(ones(fours[w])), fours[w]);
    }
    for (int w = 0; w < block.words; w++) {
      const uint64_t mask = fours[w] * 15;
      is_nonzero[w] = mask ? parted(from.get(ones(mask)), mask) : 0;
    }
  } else {
    for (int w = 0; w < block.words; w++) is_nonzero[w] = from.get(ones(block.there[w])) & block.there[w];
  }
}

// What split() made, but for the numbers that were written whole.
INLINE void get_bytes(BitReader& from, Block& block, int low, uint64_t* live) {
  int64_t start[kWords], all = 0;
  for (int w = 0; w < block.words; w++) start[w] = from.at + all, all += ones(live[w]);
  for (int byte = 0; byte < (low + 7) / 8; byte++) {
    const int bits = int(least(low - 8 * byte, 8));
    for (int w = 0; w < block.words; w++) {
      ByteWord bytes;
      for (int bit = 0; bit < bits; bit++) {
        bytes.add(parted(bits_at(from.from, start[w] + (8 * byte + bit) * all), live[w]), 1 << bit);
      }
      bytes.store(block.low[byte] + w * kWord);
    }
  }
  from.at += low * all;
  for (int w = 0; w < block.words; w++) {
    ByteWord bytes;
    const int count = ones(live[w]);
    live[w] = parted(from.get(count), live[w]);
    bytes.add(live[w], 1);
    bytes.store(block.ones + w * kWord);
  }
  for (int level = 1; level < kLevels; level++) {
    uint64_t some = 0;
    for (int w = 0; w < block.words; w++) {
      if (!live[w]) continue;
      ByteWord bytes(block.ones + w * kWord);
      live[w] = parted(from.get(ones(live[w])), live[w]);
      bytes.add(live[w], 1);
      bytes.store(block.ones + w * kWord);
      some |= live[w];
    }
    if (!some) return;
  }
}

// What is above the low bits of the numbers that were written whole, in place of their ones.
inline void put_whole(BitReader& from, Block& block, int low, const uint64_t* live) {
  int32_t* const numbers = block.apart;
  for (int w = 0; w < block.words; w++) {
    for (int i = 0; i < kWord; i++) {
      if (live[w] >> i & 1) numbers[w * kWord + i] &= (1 << low) - 1;
    }
  }
  for (int bit = low; bit < kBits; bit++) {
    for (int w = 0; w < block.words; w++) {
      if (!live[w]) continue;
      const uint64_t plane = parted(from.get(ones(live[w])), live[w]);
      for (int i = 0; i < kWord; i++) numbers[w * kWord + i] |= int32_t(plane >> i & 1) << bit;
    }
  }
}

// The elements of the numbers that `number(e)` gives, W at a time.
template <bool kSign, bool kApart, class T, class Number>
INLINE void put_elements(const Number& number, int words, float step_size, T* x) {
  const F step = splat(step_size);
  I before = {};
  for (int e = 0; e < words * kWord; e += W) {
    I whole = number(e);
    if (kSign) whole = unfolded(whole);
    if (kApart) whole = running_sum(whole) + before, before = last_lane(whole);
    store(x + e, clamp<T>(to_float(whole) * step));
  }
}

template <class T, class Number>
INLINE void put_elements(const Number& number, bool sign, bool apart, int words, float step, T* x) {
  if (apart) {
    put_elements<true, true>(number, words, step, x);
  } else if (sign) {
    put_elements<true, false>(number, words, step, x);
  } else {
    put_elements<false, false>(number, words, step, x);
  }
}

// Back to `count` elements, from a code beyond which 16 bytes may be read; up to a multiple of 64 elements are written.
template <class T>
INLINE void decode_block(const uint8_t* code, int64_t bytes, int64_t count, float bound, Block& block, T* x) {
  const int low = bytes ? code[0] & 31 : 0, style = bytes ? code[0] >> 5 & 3 : kFlags;
  if (style == kExact) {
    std::memcpy(x, code + kHead, count * sizeof(T));
    return;
  }
  if (bytes == 0) {
    std::memset(x, 0, count * sizeof(T));
    return;
  }
  block.begin(count);
  const bool apart = code[0] >> 7, sign = code[1] >> 1 & 1;
  const float step = step_of<T>(bound, code[1] & 1);
  BitReader from{code + kHead};
  uint64_t* const is_nonzero = block.is_nonzero[0];
  uint64_t live[kWords], some = 0;
  const bool flagged = style != kNone;
  if (flagged) get_flags(from, block, style, is_nonzero);
  for (int w = 0; w < block.words; w++) live[w] = flagged ? is_nonzero[w] : block.there[w];
  get_bytes(from, block, low, live);
  const auto rest = [&](int e, int byte_count) {
    I number = from_bytes(block.ones + e) << low;
    for (int byte = 0; byte < byte_count; byte++) number |= from_bytes(block.low[byte] + e) << (8 * byte);
    return number;
  };
  const auto flag = [&](int e) {
    const uint32_t own = uint32_t(is_nonzero[e / kWord] >> (e % kWord));
    return (I)(splat(own) >> bits_as<U>(iota())) & 1;
  };
  for (int w = 0; w < block.words; w++) some |= live[w];
  if (some || low > 8) {
    for (int e = 0; e < block.words * kWord; e += W) store_bits(block.apart + e, rest(e, (low + 7) / 8));
    if (some) put_whole(from, block, low, live);
    put_elements([&](int e) { return load_bits<I>(block.apart + e) + (flagged ? flag(e) : I{}); }, sign, apart,
                 block.words, step, x);
  } else if (low == 0) {
    put_elements([&](int e) { return flag(e) + from_bytes(block.ones + e); }, sign, apart, block.words, step, x);
  } else if (flagged) {
    put_elements([&](int e) { return rest(e, 1) + flag(e); }, sign, apart, block.words, step, x);
  } else {
    put_elements([&](int e) { return rest(e, 1); }, sign, apart, block.words, step, x);
  }
}

}  // namespace DIVISION_ISA
}  // namespace division
