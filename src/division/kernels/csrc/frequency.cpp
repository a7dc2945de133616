// frequency_peaks, frequency_count, frequency_values and frequency_decode: kernels/reference/frequency.py defines them,
// bit for bit.
#include "parallel.h"
#include "squeeze.h"

namespace division {
namespace DIVISION_ISA {
namespace {

constexpr int64_t kWorth = 1 << 14;  // elements that make it worth another thread
constexpr int32_t kNotFinite = 0x7F800000, kSizeBits = 0x7FFFFFFF;
constexpr float kTiny = 0x1p-126f;
constexpr float kWhole = 0x1.8p23f;  // added and taken off, it leaves the nearest whole number, halves to even

// W planes that follow one another, and their channels' peaks.
template <class T>
struct Group {
  const Blocks& of;
  int64_t plane;
  int count;
  F down, up, size;

  Group(const Blocks& of, int64_t group, const float* peaks)
      : of(of), plane(of.first_plane(group)), count(of.count(group)) {
    float lanes[3][W];
    for (int l = 0; l < W; l++) {
      const float peak = l < count ? peaks[(plane + l) % of.map.channels] : kTiny;
      const int32_t exponent = int32_t(bits_as<uint32_t>(peak) >> 23) - 127;
      const int32_t e = exponent > 126 ? 126 : exponent < -126 ? -126 : exponent;
      lanes[0][l] = bits_as<float>(uint32_t(127 - e) << 23), lanes[1][l] = bits_as<float>(uint32_t(127 + e) << 23);
      lanes[2][l] = peak * lanes[0][l];
    }
    down = load(lanes[0]), up = load(lanes[1]), size = load(lanes[2]);
  }

  // Calls `visit(x, step, cell, n)` for stretches of a piece: n cells, `step` apart from x on, in the first plane.
  template <class Visit, class Data>
  INLINE void each_stretch(const Piece& piece, Data* x, const Visit& visit) const {
    const Map& map = of.map;
    x += map.plane_offset(plane) + piece.start[0] * map.stride[0] + piece.start[1] * map.stride[1] +
         piece.start[2] * map.stride[2];
    if (map.dense_planes() && piece.columns == map.size[2] && (piece.n1 == map.size[1] || piece.n0 == 1)) {
      return visit(x, int64_t(1), 0, int(piece.cells()));
    }
    int cell = 0;
    for (int i = 0; i < piece.n0; i++) {
      for (int j = 0; j < piece.n1; j++, cell += piece.columns) {
        visit(x + i * map.stride[0] + j * map.stride[1], map.stride[2], cell, piece.columns);
      }
    }
  }

  // The cells of a piece, times `down`, to cells[., W]; `sizes` becomes the greatest magnitude of each lane, as bits.
  INLINE void read(const Piece& piece, const T* x, T* room, float* cells, I& sizes) const {
    each_stretch(piece, x, [&](const T* from, int64_t step, int cell, int n) {
      T* const to = room + cell * W;
      if (of.apart == 1) {
        for (int i = 0; i < n; i++) store(cells + (cell + i) * W, load_lanes(from + i * step, count));
      } else if (step == 1) {
        turn(from, of.apart, count, n, to, W);
      } else {
        for (int l = 0; l < count; l++) {
          for (int i = 0; i < n; i++) to[i * W + l] = from[i * step + l * of.apart];
        }
      }
    });
    for (int64_t cell = 0; cell < piece.cells(); cell++) {
      const F x = of.apart == 1 ? load(cells + cell * W) : load(room + cell * W);
      const I bits = bits_as<I>(x) & kSizeBits;
      sizes = bits_as<I>(~min(~bits, ~sizes));
      store(cells + cell * W, x * down);
    }
  }

  // cells[., W], held within the range of T, to the cells of a piece; NaN where `lost`.
  INLINE void write(const Piece& piece, const float* cells, I lost, T* room, T* x) const {
    for (int64_t cell = 0; cell < piece.cells(); cell++) {
      store(room + cell * W, select(lost, splat(kNaN), clamp<T>(load(cells + cell * W) * up)));
    }
    each_stretch(piece, x, [&](T* to, int64_t step, int cell, int n) {
      const T* const from = room + cell * W;
      if (of.apart == 1) {
        for (int i = 0; i < n; i++) copy_lanes(from + i * W, to + i * step);
      } else if (step == 1) {
        turn(from, W, n, count, to, of.apart);
      } else {
        for (int l = 0; l < count; l++) {
          for (int i = 0; i < n; i++) to[i * step + l * of.apart] = from[i * W + l];
        }
      }
    });
  }

 private:
  INLINE void copy_lanes(const T* from, T* to) const {
    if (count == W) {
      std::memcpy(to, from, sizeof(T) * W);
    } else {
      for (int l = 0; l < count; l++) to[l] = from[l];
    }
  }
};

// Calls `visit(q, place)` for the rounded coefficients of a group, place after place; returns the greatest magnitudes.
template <class T, class Place>
INLINE I quantized(const Group<T>& group, const T* x, Scratch<T>& room, Scratch<float>& cells, const Place& visit) {
  int64_t place = 0;
  I sizes = splat(0);
  group.of.each_piece([&](const Piece& piece) {
    group.read(piece, x, room, cells, sizes);
    group.of.template last<false>(piece, cells);
    group.of.template first_two<false>(piece, cells);
    group.of.each_cell(piece, [&](int64_t cell, float weight) {
      visit((load(cells + cell * W) / (group.size * splat(weight)) + kWhole) - kWhole, place++);
    });
  });
  return sizes;
}

// The masks of all planes, and how many values each group has.
template <class T>
void count(const T* x, const Blocks& of, const float* peaks, uint8_t* masks, int64_t* counts) {
  const int64_t elements = of.map.elements();
  parallel(of.groups(), kWorth / (elements * W), [&](int64_t begin, int64_t end) {
    Scratch<float> cells(of.most_cells * W);
    Scratch<T> room(of.most_cells * W);
    for (int64_t g = begin; g < end; g++) {
      const Group<T> group(of, g, peaks);
      const Masks words(of, group.plane);
      I bits = splat(0), bit = splat(1);
      const auto put = [&](int64_t word) {
        uint32_t lanes[W];
        store_bits(lanes, bits);
        for (int l = 0; l < group.count; l++) words.write(masks, l, word, lanes[l]);
        bits = splat(0), bit = splat(1);
      };
      int32_t sizes[W];
      store_bits(sizes, quantized(group, x, room, cells, [&](F q, int64_t place) {
        bits |= (I)(q != splat(0.0f)) & bit;
        bit += bit;
        if (place % kWordPlaces == kWordPlaces - 1) put(place / kWordPlaces);
      }));
      if (elements % kWordPlaces) put(elements / kWordPlaces);
      counts[g] = 0;
      for (int l = 0; l < group.count; l++) {
        if (sizes[l] >= kNotFinite) {
          for (int64_t word = 0; word < words.words(); word++) words.write(masks, l, word, word == 0);
        }
        counts[g] += words.ones(masks, l);
      }
    }
  });
}

// And the values that the masks have a bit for; `starts` says where those of each group begin.
template <class T>
void values(const T* x, const Blocks& of, const float* peaks, const uint8_t* masks, const int64_t* starts, int8_t* to) {
  const int64_t elements = of.map.elements();
  parallel(of.groups(), kWorth / (elements * W), [&](int64_t begin, int64_t end) {
    Scratch<float> cells(of.most_cells * W), ring(kWordPlaces * W);
    Scratch<T> room(of.most_cells * W);
    for (int64_t g = begin; g < end; g++) {
      const Group<T> group(of, g, peaks);
      const Masks words(of, group.plane);
      int8_t *next[W], *firsts[W];
      next[0] = to + starts[g];
      for (int l = 1; l < group.count; l++) next[l] = next[l - 1] + words.ones(masks, l - 1);
      std::memcpy(firsts, next, sizeof(next));
      const auto put = [&](int64_t word) {
        uint32_t bits[W] = {};
        for (int l = 0; l < group.count; l++) bits[l] = words.read(masks, l, word);
        squeeze(ring, bits, group.count, next);
      };
      int32_t sizes[W];
      store_bits(sizes, quantized(group, x, room, cells, [&](F q, int64_t place) {
        store(ring + place % kWordPlaces * W, q);
        if (place % kWordPlaces == kWordPlaces - 1) put(place / kWordPlaces);
      }));
      if (elements % kWordPlaces) put(elements / kWordPlaces);
      for (int l = 0; l < group.count; l++) {
        if (sizes[l] >= kNotFinite) *firsts[l] = -128;
      }
    }
  });
}

template <class T>
void decode(const uint8_t* masks, const int8_t* values, const float* peaks, const Blocks& of, const int64_t* starts,
            T* x) {
  const int64_t elements = of.map.elements();
  parallel(of.groups(), kWorth / (elements * W), [&](int64_t begin, int64_t end) {
    Scratch<float> cells(of.most_cells * W), ring(kWordPlaces * W);
    Scratch<T> room(of.most_cells * W);
    for (int64_t g = begin; g < end; g++) {
      const Group<T> group(of, g, peaks);
      const Masks words(of, group.plane);
      const int8_t* next[W];
      int32_t lost[W] = {};
      next[0] = values + starts[g];
      for (int l = 0; l < group.count; l++) {
        if (l > 0) next[l] = next[l - 1] + words.ones(masks, l - 1);
        lost[l] = (words.read(masks, l, 0) & 1) && *next[l] == -128 ? -1 : 0;
      }
      int64_t place = 0;
      of.each_piece([&](const Piece& piece) {
        of.each_cell(piece, [&](int64_t cell, float weight) {
          if (place % kWordPlaces == 0) {
            uint32_t bits[W] = {};
            for (int l = 0; l < group.count; l++) bits[l] = words.read(masks, l, place / kWordPlaces);
            spread(next, bits, group.count, ring);
          }
          store(cells + cell * W, load(ring + place++ % kWordPlaces * W) * (group.size * splat(weight)));
        });
        of.template first_two<true>(piece, cells);
        of.template last<true>(piece, cells);
        group.write(piece, cells, load_bits<I>(lost), room, x);
      });
    }
  });
}

// The greatest magnitude of each channel, over the planes that are finite.
template <class T>
void peaks(const T* x, const Map& map, float* to) {
  const int64_t elements = map.elements(), samples = map.samples;
  const bool beside = map.channel_stride == 1 && map.channels > 1;
  const auto cells = [&](const T* plane, const auto& visit) {
    for (int64_t i = 0; i < map.size[0]; i++) {
      for (int64_t j = 0; j < map.size[1]; j++) {
        visit(plane + i * map.stride[0] + j * map.stride[1]);
      }
    }
  };
  const auto greater = [](I a, I b) { return bits_as<I>(~min(~a, ~b)); };
  const auto size = [](F x) { return bits_as<I>(x) & kSizeBits; };
  const auto together = [&](const T* from, int64_t n) {
    I found = splat(0);
    int64_t i = 0;
    for (; i + W <= n; i += W) found = greater(found, size(load(from + i)));
    if (i < n) found = greater(found, size(load_some(from + i, int(n - i), F{})));
    return found;
  };
  parallel((map.channels + W - 1) / W, kWorth / (elements * samples * W), [&](int64_t begin, int64_t end) {
    for (int64_t first = begin * W; first < least(end * W, map.channels); first += W) {
      const int count = int(least(W, map.channels - first));
      int32_t most_bits[W] = {};
      for (int64_t s = 0; s < samples; s++) {
        const T* const sample = x + s * map.sample_stride + first * map.channel_stride;
        int32_t found[W] = {};
        if (beside) {
          I all = splat(0);
          cells(sample, [&](const T* row) {
            for (int64_t k = 0; k < map.size[2]; k++) {
              all = greater(all, size(load_lanes(row + k * map.stride[2], count)));
            }
          });
          store_bits(found, all);
        } else {
          for (int l = 0; l < count; l++) {
            const T* const plane = sample + l * map.channel_stride;
            I all = splat(0);
            if (map.dense_planes()) {
              all = together(plane, elements);
            } else if (map.stride[2] == 1) {
              cells(plane, [&](const T* row) { all = greater(all, together(row, map.size[2])); });
            } else {
              cells(plane, [&](const T* row) {
                for (int64_t k = 0; k < map.size[2]; k++) {
                  all = greater(all, size(splat(value(row + k * map.stride[2]))));
                }
              });
            }
            int32_t lanes[W];
            store_bits(lanes, all);
            for (int i = 0; i < W; i++) found[l] = int32_t(most(found[l], lanes[i]));
          }
        }
        for (int l = 0; l < count; l++) {
          if (found[l] < kNotFinite) most_bits[l] = int32_t(most(most_bits[l], found[l]));
        }
      }
      for (int l = 0; l < count; l++) {
        const float peak = bits_as<float>(most_bits[l]);
        to[first + l] = peak < kTiny ? kTiny : peak;
      }
    }
  });
}

}  // namespace
}  // namespace DIVISION_ISA
}  // namespace division

using namespace division::DIVISION_ISA;

// `map` is what Map reads, its block of no account; the types are 0 float32, 1 bfloat16, 2 float16. Each returns 0, or
// 1 for a type it doesn't know.

#define BY_TYPE(call)                                                             \
  switch (type) {                                                                 \
    case 0: { typedef float T; return call, 0; }                                  \
    case 1: { typedef BFloat16 T; return call, 0; }                               \
    case 2: { typedef Float16 T; return call, 0; }                                \
    default: return 1;                                                            \
  }

EXPORT(frequency_peaks)(const void* x, int type, const int64_t* map, float* to) {
  BY_TYPE(peaks(static_cast<const T*>(x), Map(map), to))
}

// How many groups of planes there are, in `groups`.
EXPORT(frequency_groups)(const int64_t* map, int64_t* groups) {
  *groups = Blocks(map, 1, 0, nullptr).groups();
  return 0;
}

// How many bits of the masks are set, group by group.
EXPORT(frequency_ones)(const uint8_t* masks, const int64_t* map, int64_t* counts) {
  const Blocks of(map, 1, 0, nullptr);
  division::parallel(of.groups(), 1 << 10, [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; g++) {
      const Masks words(of, of.first_plane(g));
      counts[g] = 0;
      for (int l = 0; l < of.count(g); l++) counts[g] += words.ones(masks, l);
    }
  });
  return 0;
}

EXPORT(frequency_count)(const void* x, int type, const int64_t* map, double quality, double slope,
                        const float* matrices, const float* peaks, uint8_t* masks, int64_t* counts) {
  const Blocks of(map, quality, slope, matrices);
  BY_TYPE(count(static_cast<const T*>(x), of, peaks, masks, counts))
}

EXPORT(frequency_values)(const void* x, int type, const int64_t* map, double quality, double slope,
                         const float* matrices, const float* peaks, const uint8_t* masks, const int64_t* starts,
                         int8_t* to) {
  const Blocks of(map, quality, slope, matrices);
  BY_TYPE(values(static_cast<const T*>(x), of, peaks, masks, starts, to))
}

EXPORT(frequency_decode)(const uint8_t* masks, const int8_t* values, const float* peaks, const int64_t* starts,
                         int type, const int64_t* map, double quality, double slope, const float* matrices, void* x) {
  const Blocks of(map, quality, slope, matrices);
  BY_TYPE(decode(masks, values, peaks, of, starts, static_cast<T*>(x)))
}
