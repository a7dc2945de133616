// The geometry of a map (N, C, *spatial) and of its blocks.
#pragma once

#include "simd.h"

namespace division {
namespace DIVISION_ISA {

// Three spatial dims: those that a map lacks are of size 1, in front.
struct Map {
  int64_t samples, channels, size[3];
  int64_t sample_stride, channel_stride, stride[3];  // in elements
  int64_t side[3], grid[3];                          // of a block, in cells; how many blocks

  // Read from samples, channels, 3 sizes, their 5 strides, and the block.
  explicit Map(const int64_t* numbers) {
    samples = numbers[0], channels = numbers[1], sample_stride = numbers[5], channel_stride = numbers[6];
    for (int d = 0; d < 3; d++) {
      size[d] = numbers[2 + d], stride[d] = numbers[7 + d];
      side[d] = least(numbers[10], size[d]);
      grid[d] = (size[d] + side[d] - 1) / side[d];
    }
  }

  int64_t planes() const { return samples * channels; }
  int64_t elements() const { return size[0] * size[1] * size[2]; }
  int64_t cells() const { return grid[0] * grid[1] * grid[2]; }
  int64_t width() const { return size[2]; }
  int64_t plane_offset(int64_t plane) const {
    return plane / channels * sample_stride + plane % channels * channel_stride;
  }
  // Whether the elements of a plane lie side by side, in order.
  bool dense_planes() const {
    return (size[2] == 1 || stride[2] == 1) && (size[1] == 1 || stride[1] == size[2]) &&
           (size[0] == 1 || stride[0] == size[1] * size[2]);
  }
};

// Calls `visit(i0, i1)` for the rows of the band at (b0, b1), leading dims ascending.
template <class Visit>
INLINE void each_row(const Map& map, int64_t b0, int64_t b1, const Visit& visit) {
  const int64_t end0 = least(map.size[0], (b0 + 1) * map.side[0]);
  const int64_t end1 = least(map.size[1], (b1 + 1) * map.side[1]);
  for (int64_t i0 = b0 * map.side[0]; i0 < end0; i0++) {
    for (int64_t i1 = b1 * map.side[1]; i1 < end1; i1++) visit(i0, i1);
  }
}

}  // namespace DIVISION_ISA
}  // namespace division
