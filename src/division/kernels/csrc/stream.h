// Passing over the elements of a tensor 64 at a time, in row-major order of its shape, their codes one bit stream.
#pragma once

#include "parallel.h"
#include "strided.h"

namespace division {
namespace DIVISION_ISA {

constexpr int kWord = 64;
constexpr int64_t kWorth = 1 << 15;  // elements that make it worth another thread

// Calls `code(element, from, to)` for every 64 elements from `element` on: from 64 elements to 8 * Q bytes of codes.
// What is beyond the last element is 0 in `from`, and the bits it gives don't count.
template <int Q, class T, class Code>
void encode_stream(const T* x, const Strided& of, uint8_t* codes, const Code& code) {
  const int64_t chunk = of.portion(sizeof(T)) / kWord * kWord;
  parallel((of.count + kWord - 1) / kWord, kWorth / kWord, [&](int64_t begin, int64_t end) {
    Reader<T> reader(x, of, chunk);
    for (int64_t start = begin * kWord; start < least(end * kWord, of.count); start += chunk) {
      const int64_t count = least(chunk, least(end * kWord, of.count) - start);
      const T* const from = reader.read(start, count);
      uint8_t* to = codes + start * Q / 8;
      int64_t e = 0;
      for (; e + kWord <= count; e += kWord) code(start + e, from + e, to + e * Q / 8);
      if (e == count) continue;
      T last[kWord] = {};
      uint8_t bytes[8 * Q];
      std::memcpy(last, from + e, sizeof(T) * (count - e));
      code(start + e, last, bytes);
      const int64_t bits = (count - e) * Q;
      if (bits % 8) bytes[bits / 8] &= uint8_t((1 << bits % 8) - 1);
      std::memcpy(to + e * Q / 8, bytes, (bits + 7) / 8);
    }
  });
}

// Calls `decode(element, from, to)` for every 64 elements from `element` on: from 8 * Q bytes of codes to 64 elements.
template <int Q, class T, class Decode>
void decode_stream(const uint8_t* codes, const Strided& of, T* x, const Decode& decode) {
  const int64_t chunk = of.portion(sizeof(T)) / kWord * kWord;
  parallel((of.count + kWord - 1) / kWord, kWorth / kWord, [&](int64_t begin, int64_t end) {
    const Writer<T> writer(x, of, chunk);
    for (int64_t start = begin * kWord; start < least(end * kWord, of.count); start += chunk) {
      const int64_t count = least(chunk, least(end * kWord, of.count) - start);
      const uint8_t* from = codes + start * Q / 8;
      T* const to = writer.room(start);
      int64_t e = 0;
      for (; e + kWord <= count; e += kWord) decode(start + e, from + e * Q / 8, to + e);
      if (e < count) {
        T last[kWord];
        uint8_t bytes[8 * Q] = {};
        std::memcpy(bytes, from + e * Q / 8, ((count - e) * Q + 7) / 8);
        decode(start + e, bytes, last);
        std::memcpy(to + e, last, sizeof(T) * (count - e));
      }
      writer.write(start, count);
    }
  });
}

}  // namespace DIVISION_ISA
}  // namespace division
