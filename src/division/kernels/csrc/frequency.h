// Blocks of a map and their cosine transforms: kernels/reference/frequency.py defines them, bit for bit.
#pragma once

#include "lanes.h"
#include "map.h"
#include "turn.h"

namespace division {
namespace DIVISION_ISA {

constexpr int kSide = 8;         // the longest block along a dim
constexpr int kPlaces = 512;     // of the largest block
constexpr int kWordPlaces = 32;  // places of a word of a mask

// How a dim is cut: the first `longer` blocks of length + 1 elements, the others of `length`.
struct Cut {
  int64_t blocks, length, longer;

  explicit Cut(int64_t size = 1) : blocks((size + kSide - 1) / kSide), length(size / blocks), longer(size % blocks) {}
  INLINE int64_t start(int64_t block) const { return block * length + least(block, longer); }
  INLINE int size(int64_t block) const { return int(length + (block < longer)); }
};

// The steps of every form of block, as parts of the peak: [whether longer, dim 0 first][frequencies, row-major].
class Weights {
 public:
  Weights(const Cut cuts[3], double quality, double slope) : table_(8 * kPlaces) {
    for (int form = 0; form < 8; form++) {
      int n[3];
      bool found = true;
      for (int d = 0; d < 3; d++) {
        const bool longer = form >> (2 - d) & 1;
        n[d] = int(cuts[d].length) + longer;
        found = found && (cuts[d].longer > 0 || !longer);
      }
      if (!found) continue;
      const double finest = __builtin_sqrt(double(n[0]) * n[1] * n[2]) / 127;
      float* to = table_ + form * kPlaces;
      for (int i = 0; i < n[0]; i++) {
        for (int j = 0; j < n[1]; j++) {
          for (int k = 0; k < n[2]; k++) {
            const double sum = i * 8.0 / n[0] + j * 8.0 / n[1] + k * 8.0 / n[2];
            const double step = (sum * slope + 1) / quality;
            *to++ = float(step > finest ? step : finest);
          }
        }
      }
    }
  }
  INLINE const float* of(bool longer0, bool longer1, bool longer2) const {
    return table_ + (longer0 * 4 + longer1 * 2 + longer2) * kPlaces;
  }

 private:
  mutable Scratch<float> table_;
};

// W transforms of length n side by side, their elements `step` vectors apart. m[k * n + i] is the matrix.
template <int n>
INLINE void forward(float* x, int64_t step, const float* m) {
  constexpr int h = n / 2;
  constexpr int sums = (n + 1) / 2;
  F sum[sums], difference[sums];
  for (int i = 0; i < h; i++) {
    const F a = load(x + i * step * W), b = load(x + (n - 1 - i) * step * W);
    sum[i] = a + b, difference[i] = a - b;
  }
  if (n % 2) sum[h] = load(x + h * step * W);
  const auto put = [&](const F* terms, int count, int k) {
    F total = terms[0] * splat(m[k * n]);
#pragma GCC unroll 4
    for (int i = 1; i < count; i++) total = total + terms[i] * splat(m[k * n + i]);
    store(x + k * step * W, total);
  };
#pragma GCC unroll 4
  for (int k = 0; k < n; k += 2) put(sum, sums, k);
#pragma GCC unroll 4
  for (int k = 1; k < n; k += 2) put(difference, h, k);
}

template <int n>
INLINE void backward(float* x, int64_t step, const float* m) {
  F terms[n];
  for (int k = 0; k < n; k++) terms[k] = load(x + k * step * W);
#pragma GCC unroll 4
  for (int i = 0; i < (n + 1) / 2; i++) {
    F even = terms[0] * splat(m[i]);
#pragma GCC unroll 4
    for (int k = 2; k < n; k += 2) even = even + terms[k] * splat(m[k * n + i]);
    if (2 * i + 1 == n) {
      store(x + i * step * W, even);
      continue;
    }
    F odd = terms[n > 1 ? 1 : 0] * splat(m[n + i]);
#pragma GCC unroll 4
    for (int k = 3; k < n; k += 2) odd = odd + terms[k] * splat(m[k * n + i]);
    store(x + i * step * W, even + odd);
    store(x + (n - 1 - i) * step * W, even - odd);
  }
}

// Transforms of length n that follow one another: `count` of them, `apart` vectors from one to the next.
template <bool back, int n>
void transforms(float* x, int64_t step, int64_t count, int64_t apart, const float* m) {
  for (int64_t c = 0; c < count; c++) {
    back ? backward<n>(x + c * apart * W, step, m) : forward<n>(x + c * apart * W, step, m);
  }
}

// `matrices` holds those of length 1 to 8, one after the other.
template <bool back>
INLINE void transforms(int n, float* x, int64_t step, int64_t count, int64_t apart, const float* matrices) {
  switch (n) {
    case 1: return transforms<back, 1>(x, step, count, apart, matrices);
    case 2: return transforms<back, 2>(x, step, count, apart, matrices + 1);
    case 3: return transforms<back, 3>(x, step, count, apart, matrices + 5);
    case 4: return transforms<back, 4>(x, step, count, apart, matrices + 14);
    case 5: return transforms<back, 5>(x, step, count, apart, matrices + 30);
    case 6: return transforms<back, 6>(x, step, count, apart, matrices + 55);
    case 7: return transforms<back, 7>(x, step, count, apart, matrices + 91);
    default: return transforms<back, 8>(x, step, count, apart, matrices + 140);
  }
}

// A few blocks that lie side by side along the last dim: cells [n0, n1, columns], W planes of each.
struct Piece {
  int64_t start[3];
  int n0, n1, columns;
  int64_t first, blocks;  // along the last dim
  bool longer0, longer1;

  int64_t cells() const { return int64_t(n0) * n1 * columns; }
};

// A map, how it is cut, and how its planes lie: `outer` times `inner` of them, the latter `apart` elements apart.
struct Blocks {
  Map map;
  Cut cuts[3];
  Weights weights;
  const float* matrices;
  int64_t outer, inner, apart;
  int64_t most_cells;  // of a piece

  // Numbers as Map reads them; the block is not looked at.
  Blocks(const int64_t* numbers, double quality, double slope, const float* matrices)
      : map(numbers), cuts{Cut(map.size[0]), Cut(map.size[1]), Cut(map.size[2])}, weights(cuts, quality, slope),
        matrices(matrices) {
    const bool even = map.samples == 1 || map.channels == 1 || map.sample_stride == map.channels * map.channel_stride;
    outer = even ? 1 : map.samples;
    inner = even ? map.planes() : map.channels;
    apart = map.channels == 1 ? map.sample_stride : map.channel_stride;
    most_cells = 0;
    each_piece([&](const Piece& piece) { most_cells = most(most_cells, piece.cells()); });
  }

  int64_t groups_of_one() const { return (inner + W - 1) / W; }
  int64_t groups() const { return outer * groups_of_one(); }
  int64_t first_plane(int64_t group) const {
    return group / groups_of_one() * inner + group % groups_of_one() * W;
  }
  int count(int64_t group) const { return int(least(W, inner - group % groups_of_one() * W)); }
  int64_t mask_bytes() const { return (map.elements() + 7) / 8; }

  // Calls `visit(piece)` in the order in which blocks are kept.
  template <class Visit>
  INLINE void each_piece(const Visit& visit) const {
    for (int64_t b0 = 0; b0 < cuts[0].blocks; b0++) {
      for (int64_t b1 = 0; b1 < cuts[1].blocks; b1++) {
        Piece piece;
        piece.start[0] = cuts[0].start(b0), piece.start[1] = cuts[1].start(b1);
        piece.n0 = cuts[0].size(b0), piece.n1 = cuts[1].size(b1);
        piece.longer0 = b0 < cuts[0].longer, piece.longer1 = b1 < cuts[1].longer;
        const int64_t together = most(1, kPlaces / (int64_t(piece.n0) * piece.n1 * cuts[2].size(0)));
        for (int64_t b2 = 0; b2 < cuts[2].blocks; b2 += together) {
          piece.first = b2, piece.blocks = least(together, cuts[2].blocks - b2);
          piece.start[2] = cuts[2].start(b2);
          piece.columns = int(cuts[2].start(b2 + piece.blocks) - piece.start[2]);
          visit(piece);
        }
      }
    }
  }

  // Calls `visit(cell, weight)` for the cells of a piece in the order in which they are kept: their place in the piece,
  // and their step as a part of the peak.
  template <class Visit>
  INLINE void each_cell(const Piece& piece, const Visit& visit) const {
    int column = 0;
    for (int64_t b = piece.first; b < piece.first + piece.blocks; b++) {
      const int n = cuts[2].size(b);
      const float* weight = weights.of(piece.longer0, piece.longer1, b < cuts[2].longer);
      for (int row = 0; row < piece.n0 * piece.n1; row++) {
        for (int k = 0; k < n; k++) visit(row * piece.columns + column + k, *weight++);
      }
      column += n;
    }
  }

  // The transforms of a piece along its last dim, and along the others.
  template <bool back>
  INLINE void last(const Piece& piece, float* cells) const {
    int column = 0;
    for (int64_t b = piece.first; b < piece.first + piece.blocks; b++) {
      const int n = cuts[2].size(b);
      transforms<back>(n, cells + column * W, 1, piece.n0 * piece.n1, piece.columns, matrices);
      column += n;
    }
  }
  template <bool back>
  INLINE void first_two(const Piece& piece, float* cells) const {
    const int64_t row = piece.columns, layer = row * piece.n1;
    const auto second = [&] {
      for (int i = 0; i < piece.n0 && piece.n1 > 1; i++) {
        transforms<back>(piece.n1, cells + i * layer * W, row, row, 1, matrices);
      }
    };
    if (!back) second();
    if (piece.n0 > 1) transforms<back>(piece.n0, cells, layer, layer, 1, matrices);
    if (back) second();
  }
};

}  // namespace DIVISION_ISA
}  // namespace division
