// The elements of a strided tensor, in row-major order of its shape.
#pragma once

#include "turn.h"

namespace division {
namespace DIVISION_ISA {

struct Strided {
  static constexpr int kDims = 64;  // torch's own limit

  int dims = 0;
  int64_t count = 1;
  int64_t size[kDims], stride[kDims];

  // Read from the number of dims, their sizes, their strides (in elements); of no dim of size 0. Dims of which one goes
  // on where the other ends become one.
  explicit Strided(const int64_t* numbers) {
    const int64_t given = numbers[0];
    for (int64_t d = 0; d < given; d++) {
      const int64_t n = numbers[1 + d], step = numbers[1 + given + d];
      count *= n;
      if (n == 1) continue;
      if (dims > 0 && stride[dims - 1] == n * step) {
        size[dims - 1] *= n;
      } else {
        size[dims++] = n;
      }
      stride[dims - 1] = step;
    }
    if (dims == 0) dims = 1, size[0] = stride[0] = 1;
  }

  // Whether the elements lie side by side, in order.
  bool dense() const { return dims == 1 && stride[0] == 1; }
  // Whether lines along the last dim lie element by element beside one another, as planes do in channels_last.
  bool turned() const { return dims > 1 && stride[dims - 1] != 1 && stride[dims - 2] == 1; }

  // Elements to work on at a time: what stays in the nearest cache; where lines lie beside one another, as many of them
  // as share a cache line.
  int64_t portion(int bytes) const {
    return turned() ? most(4096, least((1 << 18) / bytes, 64 / bytes * size[dims - 1])) : 4096;
  }

  // Calls `visit(offset, stride, n)` for the stretches along the last dim that make up elements `start` to
  // `start + wanted`.
  template <class Visit>
  INLINE void each_stretch(int64_t start, int64_t wanted, const Visit& visit) const {
    int64_t index[kDims], offset = 0;
    const int last = dims - 1;
    for (int d = last; d >= 0; d--) {
      index[d] = start % size[d];
      start /= size[d];
      if (d < last) offset += index[d] * stride[d];
    }
    for (int64_t first = index[last]; wanted > 0; first = 0) {
      const int64_t n = least(wanted, size[last] - first);
      visit(offset + first * stride[last], stride[last], n);
      wanted -= n;
      for (int d = last - 1; d >= 0; d--) {
        offset += stride[d];
        if (++index[d] < size[d]) break;
        offset -= size[d] * stride[d];
        index[d] = 0;
      }
    }
  }
};

// Calls `line(offset, stride, n)` for stretches of the elements `start` to `start + count`, or, where lines along the
// last dim lie side by side, `block(offset, stride, lines, n)` for several whole ones at a time.
template <class Line, class Block>
INLINE void each_block(const Strided& of, int64_t start, int64_t count, const Line& line, const Block& block) {
  if (!of.turned()) return of.each_stretch(start, count, line);
  const int64_t n = of.size[of.dims - 1], beside = of.size[of.dims - 2];
  while (count > 0) {
    const int64_t lines = start % n ? 0 : least(count / n, beside - start / n % beside);
    const int64_t done = lines > 1 ? lines * n : least(count, n - start % n);
    of.each_stretch(start, lines > 1 ? 1 : done, [&](int64_t offset, int64_t stride, int64_t length) {
      if (lines > 1) {
        block(offset, stride, lines, n);
      } else {
        line(offset, stride, length);
      }
    });
    start += done, count -= done;
  }
}

// The elements `start` to `start + count` of `x`, side by side.
template <class T>
void gather(const T* x, const Strided& of, int64_t start, int64_t count, T* to) {
  const auto line = [&](int64_t offset, int64_t stride, int64_t n) {
    const T* from = x + offset;
    if (stride == 1) {
      std::memcpy(to, from, sizeof(T) * n);
    } else {
      for (int64_t i = 0; i < n; i++) to[i] = from[i * stride];
    }
    to += n;
  };
  each_block(of, start, count, line, [&](int64_t offset, int64_t stride, int64_t lines, int64_t n) {
    turn(x + offset, stride, n, lines, to, n);
    to += lines * n;
  });
}

// And back.
template <class T>
void scatter(const T* from, const Strided& of, int64_t start, int64_t count, T* x) {
  const auto line = [&](int64_t offset, int64_t stride, int64_t n) {
    T* to = x + offset;
    if (stride == 1) {
      std::memcpy(to, from, sizeof(T) * n);
    } else {
      for (int64_t i = 0; i < n; i++) to[i * stride] = from[i];
    }
    from += n;
  };
  each_block(of, start, count, line, [&](int64_t offset, int64_t stride, int64_t lines, int64_t n) {
    turn(from, n, lines, n, x + offset, stride);
    from += lines * n;
  });
}

// Stretches of a tensor as if its elements lay side by side: where they do, in place, else by way of some memory.

template <class T>
class Reader {
 public:
  Reader(const T* x, const Strided& of, int64_t most_elements)
      : x_(x), of_(of), memory_(of.dense() ? 0 : most_elements), room_(memory_) {}

  // The elements from `start` on, until the next call.
  const T* read(int64_t start, int64_t count) {
    if (of_.dense()) return x_ + start;
    gather(x_, of_, start, count, room_);
    return room_;
  }

 private:
  const T* x_;
  const Strided& of_;
  Scratch<T> memory_;
  T* room_;
};

template <class T>
class Writer {
 public:
  Writer(T* x, const Strided& of, int64_t most_elements)
      : x_(x), of_(of), memory_(of.dense() ? 0 : most_elements), room_(memory_) {}

  // Where to put the elements from `start` on, which `write` then takes to their place.
  T* room(int64_t start) const { return of_.dense() ? x_ + start : room_; }
  void write(int64_t start, int64_t count) const {
    if (!of_.dense()) scatter(room_, of_, start, count, x_);
  }

 private:
  T* x_;
  const Strided& of_;
  Scratch<T> memory_;
  T* room_;
};

}  // namespace DIVISION_ISA
}  // namespace division
