// block_pool and block_spread: kernels/reference/pool.py defines them, bit for bit.
#include "dual_rows.h"
#include "masks.h"
#include "parallel.h"

namespace division {
namespace DIVISION_ISA {
namespace {

constexpr int64_t kGrain = 1 << 15;  // elements that make it worth another thread
constexpr uint16_t kNaNBits = 0x7FC0;

// The blocks of a map along one of its bands: (b0, b1) of the leading two dims.
struct Band {
  int64_t b0, b1, rows;

  Band(const Map& map, int64_t b0_, int64_t b1_)
      : b0(b0_),
        b1(b1_),
        rows(least(map.side[0], map.size[0] - b0 * map.side[0]) * least(map.side[1], map.size[1] - b1 * map.side[1])) {}
};

template <class Visit>
INLINE void each_band(const Map& map, const Visit& visit) {
  for (int64_t b0 = 0; b0 < map.grid[0]; b0++) {
    for (int64_t b1 = 0; b1 < map.grid[1]; b1++) visit(Band(map, b0, b1), (b0 * map.grid[1] + b1) * map.grid[2]);
  }
}

// What is known of W planes, or of W columns of one, besides their sums.
struct Seen {
  F low = splat(kInf), high = splat(-kInf);
  U unsure = {};

  INLINE void note(F x) {
    low = min(x, low);
    high = max(x, high);
    unsure |= bits_as<U>(x - x);  // 0 of a finite element, NaN of any other
  }
};

// The block values of a plane of which this is known: of one value, that value's; of a non-finite element, NaN.
void finish(uint16_t* lfc, int64_t cells, float low, float high, bool finite) {
  if (finite && low != high) return;
  const uint16_t value = finite ? upper(block_value(splat(low), splat(1.0f))[0]) : kNaNBits;
  for (int64_t i = 0; i < cells; i++) lfc[i] = value;
}

// Planes whose rows lie element by element, W columns at a time.
template <class T>
class RowPool {
 public:
  explicit RowPool(const Map& map)
      : map_(map),
        stretches_(map),
        tree_(power_of_two(map.side[2])),
        memory_(stretches_.room() + least(tree_, kTree)),
        sums_(memory_),
        columns_(memory_ + stretches_.room()) {}

  void pool(const T* plane, uint16_t* lfc) {
    Seen seen;
    each_band(map_, [&](Band band, int64_t cell) {
      if (tree_ > kTree) return long_blocks(plane, band, lfc + cell, seen);
      for (int64_t begin = 0, end; begin < map_.width(); begin = end) {
        end = stretches_.end(begin);
        for (int64_t j = begin; j < end; j += W) store(sums_ + j - begin, sum(plane, band, j, map_.width(), seen));
        for (int64_t start = begin; start < end; start += map_.side[2]) {
          const int64_t count = least(map_.side[2], end - start);
          for (int64_t k = 0; k < tree_; k++) columns_[k] = k < count ? sums_[start - begin + k] : 0.0f;
          lfc[cell + start / map_.side[2]] = value(tree_sum(columns_, tree_), band, count);
        }
      }
    });
    finish(lfc, map_.cells(), lowest(seen.low), highest(seen.high), !any(seen.unsure));
  }

 private:
  // Blocks so wide that W columns are summed as they come.
  void long_blocks(const T* plane, Band band, uint16_t* lfc, Seen& seen) const {
    for (int64_t b = 0; b < map_.grid[2]; b++) {
      const int64_t start = b * map_.side[2], end = least(map_.width(), start + map_.side[2]);
      const F sums = sum_by_halves(0, 1, tree_ / W, (end - start + W - 1) / W, [&](int64_t k) {
        const int64_t j = start + k * W;
        const F total = sum(plane, band, j, end, seen);
        return j + W <= end ? total : select((I)(iota() < int32_t(end - j)), total, F{});
      });
      float lanes[W];
      store(lanes, sums);
      lfc[b] = value(tree_sum(lanes, W), band, end - start);
    }
  }

  static uint16_t value(float total, Band band, int64_t count) {
    return upper(block_value(splat(total), splat(float(band.rows * count)))[0]);
  }

  // Of W columns from j on; what is beyond `end` is not defined.
  INLINE F sum(const T* plane, Band band, int64_t j, int64_t end, Seen& seen) const {
    const int64_t count = end - j;
    F total = {};
    bool first = true;
    each_row(map_, band.b0, band.b1, [&](int64_t i0, int64_t i1) {
      const T* const p = plane + i0 * map_.stride[0] + i1 * map_.stride[1] + j;
      const F x = count >= W ? load(p) : load_some(p, int(count), splat(DIVISION_ISA::value(p)));
      seen.note(x);
      total = first ? x : total + x;
      first = false;
    });
    return total;
  }

  const Map map_;
  const Stretches stretches_;
  const int64_t tree_;
  Scratch<float> memory_;
  float *sums_, *columns_;
};

// W planes of a sample at a time, a plane a lane, whatever the layout.
template <class T>
class LanePool {
 public:
  explicit LanePool(const Map& map) : map_(map), tree_(power_of_two(map.side[2])), columns_(W * least(tree_, kTree)) {}

  void pool(const T* planes, int count, uint16_t* lfc) {
    Seen seen;
    each_band(map_, [&](Band band, int64_t cell) {
      for (int64_t b = 0; b < map_.grid[2]; b++) {
        const int64_t start = b * map_.side[2], width = least(map_.side[2], map_.width() - start);
        const auto column = [&](int64_t k) { return sum(planes, count, band, start + k, seen); };
        F total;
        if (tree_ > kTree) {
          total = sum_by_halves(0, 1, tree_, width, column);
        } else {
          for (int64_t k = 0; k < tree_; k++) store(columns_ + k * W, k < width ? column(k) : F{});
          total = tree_sum_of_vectors(columns_, tree_);
        }
        const F value = block_value(total, splat(float(band.rows * width)));
        for (int l = 0; l < count; l++) lfc[l * map_.cells() + cell + b] = upper(value[l]);
      }
    });
    for (int l = 0; l < count; l++) {
      finish(lfc + l * map_.cells(), map_.cells(), seen.low[l], seen.high[l], seen.unsure[l] == 0);
    }
  }

 private:
  INLINE F sum(const T* planes, int count, Band band, int64_t j, Seen& seen) const {
    F total = {};
    bool first = true;
    each_row(map_, band.b0, band.b1, [&](int64_t i0, int64_t i1) {
      const T* const p = planes + i0 * map_.stride[0] + i1 * map_.stride[1] + j * map_.stride[2];
      F x;
      if (map_.channel_stride != 1) {
        T lanes[W] = {};
        for (int l = 0; l < count; l++) lanes[l] = p[l * map_.channel_stride];
        x = load(lanes);
      } else {
        x = count == W ? load(p) : load_some(p, count, F{});
      }
      seen.note(x);
      total = first ? x : total + x;
      first = false;
    });
    return total;
  }

  const Map map_;
  const int64_t tree_;
  Scratch<float> columns_;
};

bool by_rows(const Map& map) { return map.stride[2] == 1 || map.width() == 1; }
int64_t groups(const Map& map) { return (map.channels + W - 1) / W; }

template <class T>
void pool(const T* x, const Map& map, uint16_t* lfc) {
  if (by_rows(map) && !(map.channel_stride == 1 && map.channels >= W)) {
    parallel(map.planes(), kGrain / map.elements(), [&](int64_t begin, int64_t end) {
      RowPool<T> pool(map);
      for (int64_t p = begin; p < end; p++) pool.pool(x + map.plane_offset(p), lfc + p * map.cells());
    });
    return;
  }
  parallel(map.samples * groups(map), kGrain / (map.elements() * W), [&](int64_t begin, int64_t end) {
    LanePool<T> pool(map);
    for (int64_t g = begin; g < end; g++) {
      const int64_t channel = g % groups(map) * W, plane = g / groups(map) * map.channels + channel;
      const int count = int(least(W, map.channels - channel));
      pool.pool(x + map.plane_offset(plane), count, lfc + plane * map.cells());
    }
  });
}

template <class T>
INLINE T kept(uint16_t cell) {
  T lanes[W];
  store(lanes, clamp<T>(splat(from_upper(cell))));
  return lanes[0];
}

template <class T>
void spread(const uint16_t* lfc, const Map& map, T* x) {
  if (by_rows(map)) {
    parallel(map.planes(), kGrain / map.elements(), [&](int64_t begin, int64_t end) {
      const Stretches stretches(map);
      Scratch<T> line(stretches.room());
      for (int64_t p = begin; p < end; p++) {
        each_band(map, [&](Band band, int64_t cell) {
          for (int64_t first = 0, last; first < map.width(); first = last) {
            last = stretches.end(first);
            for (int64_t j = first; j < last;) {
              const int64_t b = j / map.side[2];
              const T value = kept<T>(lfc[p * map.cells() + cell + b]);
              for (const int64_t stop = least(last, (b + 1) * map.side[2]); j < stop; j++) line[j - first] = value;
            }
            each_row(map, band.b0, band.b1, [&](int64_t i0, int64_t i1) {
              T* const to = x + map.plane_offset(p) + i0 * map.stride[0] + i1 * map.stride[1] + first;
              std::memcpy(to, line, sizeof(T) * (last - first));
            });
          }
        });
      }
    });
    return;
  }
  constexpr int64_t most_channels = 1024;
  parallel(map.samples, kGrain / (map.channels * map.elements()), [&](int64_t begin, int64_t end) {
    T values[most_channels];
    for (int64_t n = begin; n < end; n++) {
      for (int64_t c = 0; c < map.channels; c += most_channels) {
        const int64_t count = least(most_channels, map.channels - c), plane = n * map.channels + c;
        each_band(map, [&](Band band, int64_t cell) {
          for (int64_t b = 0; b < map.grid[2]; b++) {
            for (int64_t k = 0; k < count; k++) values[k] = kept<T>(lfc[(plane + k) * map.cells() + cell + b]);
            each_row(map, band.b0, band.b1, [&](int64_t i0, int64_t i1) {
              const int64_t stop = least(map.width(), (b + 1) * map.side[2]);
              for (int64_t j = b * map.side[2]; j < stop; j++) {
                T* const to = x + map.plane_offset(plane) + i0 * map.stride[0] + i1 * map.stride[1] + j * map.stride[2];
                if (map.channel_stride == 1) {
                  std::memcpy(to, values, sizeof(T) * count);
                } else {
                  for (int64_t k = 0; k < count; k++) to[k * map.channel_stride] = values[k];
                }
              }
            });
          }
        });
      }
    }
  });
}

}  // namespace
}  // namespace DIVISION_ISA
}  // namespace division

using namespace division::DIVISION_ISA;

// Elements are float32 (type 0), bfloat16 (1) or float16 (2). Both return 0, or 1 for other elements.

EXPORT(block_pool)(const void* x, int type, const int64_t* geometry, void* lfc) {
  const Map map(geometry);
  uint16_t* to = static_cast<uint16_t*>(lfc);
  switch (type) {
    case 0: return pool(static_cast<const float*>(x), map, to), 0;
    case 1: return pool(static_cast<const BFloat16*>(x), map, to), 0;
    case 2: return pool(static_cast<const Float16*>(x), map, to), 0;
    default: return 1;
  }
}

EXPORT(block_spread)(const void* lfc, int type, const int64_t* geometry, void* x) {
  const Map map(geometry);
  const uint16_t* from = static_cast<const uint16_t*>(lfc);
  switch (type) {
    case 0: return spread(from, map, static_cast<float*>(x)), 0;
    case 1: return spread(from, map, static_cast<BFloat16*>(x)), 0;
    case 2: return spread(from, map, static_cast<Float16*>(x)), 0;
    default: return 1;
  }
}
