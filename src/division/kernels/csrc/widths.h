// Codes of any width from 1 to 16 bits to a bit stream, 64 at a time: the first of a byte in its low bits.
#pragma once

#include "pack.h"

namespace division {
namespace DIVISION_ISA {

constexpr int kMostBits = 16;

// Eight codes are `bits` bytes, so four are half as many: they fit one word of 64 bits.

INLINE void pack_any(const I codes[kBatch / W], int bits, uint8_t* bytes) {
  uint32_t code[kBatch];
  uint8_t room[kBatch / 8 * kMostBits + 16];  // what is stored reaches beyond the bytes that count
  std::memcpy(code, codes, sizeof(code));
  for (int k = 0; k < kBatch / 8; k++) {
    uint64_t half[2];
    for (int h = 0; h < 2; h++) {
      const uint32_t* c = code + 8 * k + 4 * h;
      half[h] = ((uint64_t(c[3]) << bits | c[2]) << bits | c[1]) << bits | c[0];
    }
    store_bits(room + k * bits, bits < 16 ? half[0] | half[1] << (4 * bits) : half[0]);
    if (bits > 8) store_bits(room + k * bits + 8, half[1] >> (64 - 4 * bits));
  }
  std::memcpy(bytes, room, kBatch / 8 * bits);
}

INLINE void unpack_any(const uint8_t* bytes, int bits, I codes[kBatch / W]) {
  uint32_t code[kBatch];
  uint8_t room[kBatch / 8 * kMostBits + 8];
  std::memcpy(room, bytes, kBatch / 8 * bits);
  const uint32_t low = (1u << bits) - 1;
  for (int k = 0; k < kBatch / 4; k++) {
    uint64_t four = load_bits<uint64_t>(room + k * bits / 2) >> (k * bits % 2 * 4);
    for (int i = 0; i < 4; i++, four >>= bits) code[4 * k + i] = uint32_t(four) & low;
  }
  std::memcpy(codes, code, sizeof(code));
}

// With the width known where it is Q, in `bits` where Q is 0.

template <int Q>
INLINE void pack(const I codes[kBatch / W], int bits, uint8_t* bytes) {
  if constexpr (Q == 0) {
    pack_any(codes, bits, bytes);
  } else {
    pack<Q>(codes, bytes);
  }
}

template <int Q>
INLINE void unpack(const uint8_t* bytes, int bits, I codes[kBatch / W]) {
  if constexpr (Q == 0) {
    unpack_any(bytes, bits, codes);
  } else {
    for (int k = 0; k < kBatch / W; k++) codes[k] = unpack<Q>(bytes + k * W * Q / 8);
  }
}

}  // namespace DIVISION_ISA
}  // namespace division
