// A code back to its block.
#pragma once

#include "error_bound.h"

namespace division {
namespace DIVISION_ISA {

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

// The bytes of the low bits of `count` numbers, side by side.
INLINE void get_low(BitReader& from, Block& block, int low, int64_t count) {
  for (int byte = 0; byte < (low + 7) / 8; byte++) {
    const int bits = int(least(low - 8 * byte, 8));
    for (int64_t e = 0; e < count; e += kWord) {
      Bytes bytes;
      for (int bit = 0; bit < bits; bit++) {
        bytes.add(bits_at(from.from, from.at + (8 * byte + bit) * count + e), 1 << bit);
      }
      bytes.store(block.low[byte] + e);
    }
  }
  from.at += low * count;
}

// What is above them: bytes side by side, which are returned. Of those of more than 8 bits it is kLevels, and `far` is how
// many there are: they come next.
INLINE const uint8_t* get_above(BitReader& from, Block& block, int width, int64_t count, int64_t& far) {
  uint64_t plane[kLevels][kWords];
  int words[kLevels], levels = 0;
  while (levels < kLevels && count != 0) {
    int64_t left = 0;
    uint64_t* const own = plane[levels];
    words[levels] = words_of(count);
    for (int w = 0; w < words[levels]; w++) {
      own[w] = bits_at(from.from, from.at + w * kWord);
      if (count - w * kWord < kWord) own[w] &= (uint64_t(1) << (count - w * kWord)) - 1;
      left += ones(own[w]);
    }
    from.at += count;
    count = left, levels++;
  }
  uint8_t *of = block.above[0], *other = block.above[1];
  far = width > 8 ? count : 0;
  const uint64_t all = (uint64_t(1) << (width & 63)) - 1;
  for (int64_t i = 0; i < count; i++) of[i] = far ? 0 : uint8_t((from.get(width) & all) - kLevels);
  while (levels-- != 0) {
    int64_t at = 0;
    for (int w = 0; w < words[levels]; w++) {
      Bytes bytes = spread(of + at, plane[levels][w]);
      bytes.add(plane[levels][w], 1);
      bytes.store(other + w * kWord);
      at += ones(plane[levels][w]);
    }
    uint8_t* const done = other;
    other = of, of = done;
  }
  return of;
}

// The elements of whole numbers, or of their differences.
template <bool kApart, bool kClamp, class T>
INLINE I put_elements(I whole, I before, F step, T* x) {
  if (kApart) {
    whole = running_sum(whole);
    const I last = last_lane(whole) + before;
    whole += before;
    before = last;
  }
  const F value = to_float(whole) * step;
  store(x, kClamp ? clamp<T>(value) : value);
  return before;
}

// The elements of numbers below 256, of which `bytes` has those that are not 0, or all of them.
template <bool kSign, bool kApart, bool kClamp, class T>
INLINE void put_narrow(const Block& block, const uint8_t* bytes, bool flagged, float step_size, T* x) {
  const F step = splat(step_size);
  I before = {};
  for (int w = 0; w < block.words; w++) {
    Bytes numbers;
    if (flagged) {
      numbers = spread(bytes, block.live[w]);
      bytes += ones(block.live[w]);
    } else {
      numbers = Bytes(bytes + w * kWord);
    }
    alignas(64) uint8_t own[kWord];
    (kSign ? numbers.unfolded() : numbers).store(own);
    for (int k = 0; k < kPer; k++) {
      const I whole = kSign ? from_signed_bytes(own + k * W) : from_bytes(own + k * W);
      before = put_elements<kApart, kClamp>(whole, before, step, x + w * kWord + k * W);
    }
  }
}

// The elements of any numbers, `block.apart`.
template <bool kSign, bool kApart, bool kClamp, class T>
INLINE void put_wide(const Block& block, float step_size, T* x) {
  const F step = splat(step_size);
  I before = {};
  for (int e = 0; e < block.words * kWord; e += W) {
    const I number = load_bits<I>(block.apart + e);
    before = put_elements<kApart, kClamp>(kSign ? unfolded(number) : number, before, step, x + e);
  }
}

// The numbers from what is known of them, to `block.apart`; what comes next of those that are `far` from the rest is read.
INLINE void join(BitReader& from, Block& block, const uint8_t* above, bool flagged, int low, int width, int64_t far) {
  int64_t at = 0;
  const int bytes = (low + 7) / 8;
  for (int w = 0; w < block.words; w++) {
    uint8_t part[1 + kLowBytes][kWord];
    const uint64_t live = block.live[w];
    spread(above + at, live).store(part[kLowBytes]);
    for (int byte = 0; byte < bytes; byte++) spread(block.low[byte] + at, live).store(part[byte]);
    at += ones(live);
    for (int e = 0; e < kWord; e += W) {
      I number = from_bytes(part[kLowBytes] + e) << low;
      for (int byte = 0; byte < bytes; byte++) number |= from_bytes(part[byte] + e) << (8 * byte);
      const I flag = (I)(splat(uint32_t(live >> e)) >> bits_as<U>(iota())) & int32_t(flagged);
      store_bits(block.apart + w * kWord + e, number + flag);
    }
  }
  if (far == 0) return;
  const uint32_t kept = (uint32_t(1) << low) - 1, all = uint32_t((uint64_t(1) << width) - 1);
  for (int w = 0; w < block.words; w++) {
    for (uint64_t left = block.live[w]; left != 0; left &= left - 1) {
      int32_t& number = block.apart[w * kWord + __builtin_ctzll(left)];
      const uint32_t rest = uint32_t(number) - flagged;
      if (rest >> low < kLevels) continue;
      number = int32_t(((rest & kept) | (uint32_t(from.get(width)) & all) << low) + flagged);
    }
  }
}

template <bool kTrue>
struct Truth { static constexpr bool value = kTrue; };

// Calls `call` with types that have these values.
template <class Call>
INLINE void with(bool sign, bool apart, bool clamped, const Call& call) {
  using Yes = Truth<true>;
  using No = Truth<false>;
  if (apart) {
    clamped ? call(Yes(), Yes(), Yes()) : call(Yes(), Yes(), No());
  } else if (sign) {
    clamped ? call(Yes(), No(), Yes()) : call(Yes(), No(), No());
  } else {
    clamped ? call(No(), No(), Yes()) : call(No(), No(), No());
  }
}

// Back to `count` elements, from a code beyond which 16 bytes may be read; up to a multiple of 64 elements are written.
template <class T>
INLINE void decode_block(const uint8_t* code, int64_t bytes, int64_t count, float bound, Block& block, T* x) {
  if (bytes == 0) {
    std::memset(static_cast<void*>(x), 0, count * sizeof(T));
    return;
  }
  const int low = int(least(code[0] & 31, 8 * kLowBytes)), style = code[0] >> 5 & 3, high = code[1] >> 2;
  if (style == kExact) {
    std::memcpy(static_cast<void*>(x), code + kHead, count * sizeof(T));
    return;
  }
  block.begin(count);
  const bool flagged = style != kNone;
  const int width = int(most(high, low)) - low;
  const float step = step_of<T>(bound, code[1] & 1);
  BitReader from{code + kHead};
  if (flagged) get_flags(from, block, style, block.is_nonzero[0]);
  const int64_t kept = block.keep(flagged ? block.is_nonzero[0] : block.there);
  int64_t far = 0;
  get_low(from, block, low, kept);
  const uint8_t* const above = get_above(from, block, width, kept, far);
  const bool narrow = low + width <= 8;
  if (narrow) {
    const Bytes flag = Bytes::of(flagged);
    for (int64_t e = 0; e < kept; e += kWord) {
      const Bytes number = Bytes(above + e).up(low) + flag;
      (low ? number + Bytes(block.low[0] + e) : number).store(block.low[0] + e);
    }
  } else {
    join(from, block, above, flagged, low, width, far);
  }
  with(code[1] >> 1 & 1, code[0] >> 7, may_overflow<T>(step), [&](auto sign, auto apart, auto clamped) {
    constexpr bool kSign = decltype(sign)::value, kApart = decltype(apart)::value, kClamp = decltype(clamped)::value;
    if (narrow) {
      put_narrow<kSign, kApart, kClamp>(block, block.low[0], flagged, step, x);
    } else {
      put_wide<kSign, kApart, kClamp>(block, step, x);
    }
  });
}

}  // namespace DIVISION_ISA
}  // namespace division
