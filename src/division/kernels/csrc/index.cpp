// window_encode and window_decode: kernels/reference/index.py defines them, bit for bit.
#include "pack.h"
#include "stream.h"

namespace division {
namespace DIVISION_ISA {
namespace {

INLINE int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

// The windows of a pooling over three dims: those that it lacks are of size 1, in front.
struct Windows {
  int64_t plane[3], kernel[3], stride[3], padding[3], dilation[3], outputs[3];
  bool adaptive;

  explicit Windows(const int64_t* numbers) {
    for (int d = 0; d < 3; d++) {
      plane[d] = numbers[d], kernel[d] = numbers[3 + d], stride[d] = numbers[6 + d], padding[d] = numbers[9 + d];
      dilation[d] = numbers[12 + d], outputs[d] = numbers[15 + d];
    }
    adaptive = numbers[18] != 0;
  }

  INLINE int64_t start(int d, int64_t output) const {
    return adaptive ? output * plane[d] / outputs[d] : output * stride[d] - padding[d];
  }

  // Calls `visit(i, base)` for the 64 elements from `element` on, `base` being the sum over the dims of the start of
  // their window times the factor.
  template <class Number, class Visit>
  INLINE void each(int64_t element, const int64_t factor[3], const Visit& visit) const {
    int64_t at = element % outputs[2], line = element / outputs[2];
    for (int done = 0; done < kWord; at = 0, line++) {
      const int64_t layer = start(0, line / outputs[1] % outputs[0]) * factor[0];
      const int64_t before = layer + start(1, line % outputs[1]) * factor[1];
      const int end = int(least(kWord, done + outputs[2] - at));
      if (adaptive) {
        for (; done < end; done++, at++) visit(done, Number(before + start(2, at) * factor[2]));
      } else {
        const Number base = Number(before + start(2, at - done) * factor[2]), step = Number(stride[2] * factor[2]);
        for (; done < end; done++) visit(done, base + Number(done) * step);
      }
    }
  }

  // Whether an index fits 32 bits, and the quotients of `divided` are exact.
  bool small() const { return plane[0] * plane[1] <= 1 << 20 && plane[0] * plane[1] * plane[2] < int64_t(1) << 31; }
  bool plain() const { return dilation[0] == 1 && dilation[1] == 1 && dilation[2] == 1; }
};

// a / b of whole numbers from 0 on, the quotient at most 2^20: a float's is off by one at most.
INLINE I divided(I a, int32_t b, float inverse) {
  const I quotient = to_int(to_float(a) * inverse), rest = a - quotient * b;
  return quotient - (I)(rest >= b) + (I)(rest < 0);
}

template <int Q>
INLINE void put(const uint32_t* offsets, uint8_t* to) {
  if constexpr (Q == 32) {
    std::memcpy(to, offsets, 4 * kWord);
  } else if constexpr (Q == 16) {
    uint16_t narrow[kWord];
    for (int i = 0; i < kWord; i++) narrow[i] = uint16_t(offsets[i]);
    std::memcpy(to, narrow, sizeof(narrow));
  } else {
    I codes[kWord / W];
    std::memcpy(codes, offsets, sizeof(codes));
    pack<Q>(codes, to);
  }
}

template <int Q>
void encode(const int64_t* index, const Strided& of, const Windows& windows, uint8_t* codes) {
  const int64_t* const plane = windows.plane;
  const int64_t* const kernel = windows.kernel;
  if (!windows.small() || !windows.plain()) {
    encode_stream<Q>(index, of, codes, [&](int64_t element, const int64_t* from, uint8_t* to) {
      uint32_t offsets[kWord];
      for (int i = 0; i < kWord; i++) {
        int64_t rest = from[i], at = element + i, offset = 0, factor = 1;
        for (int d = 2; d >= 0; d--) {
          const int64_t quotient = floor_div(rest, plane[d]);
          const int64_t place = rest - quotient * plane[d] - windows.start(d, at % windows.outputs[d]);
          offset += floor_div(place, windows.dilation[d]) * factor;
          rest = quotient, at /= windows.outputs[d], factor *= kernel[d];
        }
        offsets[i] = uint32_t(offset);
      }
      put<Q>(offsets, to);
    });
    return;
  }
  // The cell (a, b, c) of the plane is index i = (a * P1 + b) * P2 + c; in a plane as wide as the window it would be
  // (a * K1 + b) * K2 + c = i - (i / P2) * (P2 - K2) - a * K2 * (P1 - K1), and offsets are differences of such numbers.
  const int64_t factor[3] = {kernel[1] * kernel[2], kernel[2], 1};
  const int32_t width = int32_t(plane[2]), height = int32_t(plane[1]);
  const float by_width = 1.0f / float(width), by_height = 1.0f / float(height);
  const int32_t line = int32_t(plane[2] - kernel[2]), layer = int32_t(kernel[2] * (plane[1] - kernel[1]));
  const bool deep = plane[0] > 1;
  encode_stream<Q>(index, of, codes, [&](int64_t element, const int64_t* from, uint8_t* to) {
    int32_t whole[kWord];
    uint32_t offsets[kWord];
    for (int i = 0; i < kWord; i++) whole[i] = int32_t(from[i]);
    windows.each<uint32_t>(element, factor, [&](int i, uint32_t base) { offsets[i] = base; });
    for (int k = 0; k < kWord; k += W) {
      const I i = load_bits<I>(whole + k), lines = divided(i, width, by_width);
      I moved = i - lines * line;
      if (deep) moved = moved - divided(lines, height, by_height) * layer;
      store_bits(offsets + k, bits_as<U>(moved) - load_bits<U>(offsets + k));
    }
    put<Q>(offsets, to);
  });
}

// What an offset inside a window adds to the index of its first cell.
int64_t distance(uint64_t offset, const Windows& windows) {
  int64_t sum = 0, factor = 1;
  for (int d = 2; d >= 0; d--) {
    sum += int64_t(offset % uint64_t(windows.kernel[d])) * windows.dilation[d] * factor;
    offset /= uint64_t(windows.kernel[d]), factor *= windows.plane[d];
  }
  return sum;
}

template <int Q>
void decode(const uint8_t* codes, const Strided& of, const Windows& windows, int64_t* index) {
  const int64_t factor[3] = {windows.plane[1] * windows.plane[2], windows.plane[2], 1};
  int64_t distances[Q <= 8 ? 1 << Q : 1];
  if (Q <= 8) {
    for (int offset = 0; offset < 1 << (Q & 15); offset++) distances[offset] = distance(uint64_t(offset), windows);
  }
  decode_stream<Q>(codes, of, index, [&](int64_t element, const uint8_t* from, int64_t* to) {
    if constexpr (Q <= 8) {
      uint32_t offsets[kWord];
      for (int k = 0; k < kWord; k += W) store_bits(offsets + k, unpack<Q>(from + k * Q / 8));
      windows.each<int64_t>(element, factor, [&](int i, int64_t base) { to[i] = base + distances[offsets[i]]; });
    } else {
      windows.each<int64_t>(element, factor, [&](int i, int64_t base) {
        const uint64_t offset = Q == 16 ? load_bits<uint16_t>(from + 2 * i) : load_bits<uint32_t>(from + 4 * i);
        to[i] = base + distance(offset, windows);
      });
    }
  });
}

}  // namespace
}  // namespace DIVISION_ISA
}  // namespace division

using namespace division::DIVISION_ISA;

// `shape` is what Strided reads, `windows` what Windows does: three numbers each of plane, kernel, stride, padding,
// dilation and outputs, and whether the pooling is adaptive. Both return 0, or 1 for a width of codes they don't know.

EXPORT(window_encode)(const void* index, const int64_t* shape, const int64_t* windows, int bits, void* codes) {
  const Strided of(shape);
  const Windows windows_(windows);
  const int64_t* from = static_cast<const int64_t*>(index);
  uint8_t* to = static_cast<uint8_t*>(codes);
  switch (bits) {
    case 1: return encode<1>(from, of, windows_, to), 0;
    case 2: return encode<2>(from, of, windows_, to), 0;
    case 4: return encode<4>(from, of, windows_, to), 0;
    case 8: return encode<8>(from, of, windows_, to), 0;
    case 16: return encode<16>(from, of, windows_, to), 0;
    case 32: return encode<32>(from, of, windows_, to), 0;
    default: return 1;
  }
}

EXPORT(window_decode)(const void* codes, const int64_t* shape, const int64_t* windows, int bits, void* index) {
  const Strided of(shape);
  const Windows windows_(windows);
  const uint8_t* from = static_cast<const uint8_t*>(codes);
  int64_t* to = static_cast<int64_t*>(index);
  switch (bits) {
    case 1: return decode<1>(from, of, windows_, to), 0;
    case 2: return decode<2>(from, of, windows_, to), 0;
    case 4: return decode<4>(from, of, windows_, to), 0;
    case 8: return decode<8>(from, of, windows_, to), 0;
    case 16: return decode<16>(from, of, windows_, to), 0;
    case 32: return decode<32>(from, of, windows_, to), 0;
    default: return 1;
  }
}
