// dual_encode and dual_decode: kernels/reference/dual.py defines them, bit for bit.
#include "dual.h"

#include "dual_flat.h"
#include "dual_lanes.h"
#include "dual_rows.h"
#include "parallel.h"
#include "tile.h"

namespace division {
namespace DIVISION_ISA {
namespace {

enum class Way { kRows, kLanes, kTiles, kNone };

// Planes of up to so many elements are brought into lanes; narrower ones than a vector up to the larger figure.
constexpr int64_t kTile = 256, kNarrowTile = 4096;
// Elements that make it worth another thread.
constexpr int64_t kGrain = 1 << 15;

Way way(const Map& map) {
  const bool rows = map.stride[2] == 1 || map.width() == 1;
  const bool lanes = map.channel_stride == 1 && map.channels > 1;
  const int64_t elements = map.elements();
  if (lanes && !(rows && map.channels < W)) return Way::kLanes;
  if (elements <= kTile || (map.width() < W && elements <= kNarrowTile)) return Way::kTiles;
  if (rows) return Way::kRows;
  return lanes ? Way::kLanes : Way::kNone;
}

// Channels taken together, where planes lie side by side.
constexpr int64_t kChannels = W * kGroups;
int64_t parts(const Map& map) { return (map.channels + kChannels - 1) / kChannels; }

template <class T>
Lanes<T> lanes_of(T* x, const Map& map, int64_t part) {
  const int64_t sample = part / parts(map), channel = part % parts(map) * kChannels;
  return {x + sample * map.sample_stride + channel, map.stride[0], map.stride[1], map.stride[2],
          least(kChannels, map.channels - channel)};
}

int64_t plane_of(const Map& map, int64_t part) {
  return part / parts(map) * map.channels + part % parts(map) * kChannels;
}

template <class T>
int encode(const T* x, const Map& map, const DualCode& code, Seed seed) {
  const int64_t planes = map.planes(), elements = map.elements();
  switch (way(map)) {
    case Way::kRows:
      parallel(planes, kGrain / elements, [&](int64_t begin, int64_t end) {
        RowEncoder<T> encoder(map, code, seed);
        for (int64_t p = begin; p < end; p++) {
          encoder.encode(x + map.plane_offset(p), p, p + 1 < end ? x + map.plane_offset(p + 1) : nullptr);
        }
      });
      return 0;
    case Way::kLanes:
      parallel(map.samples * parts(map), kGrain / (elements * kChannels), [&](int64_t begin, int64_t end) {
        LaneEncoder<T> encoder(map, code, seed);
        for (int64_t g = begin; g < end; g++) encoder.encode(lanes_of<const T>(x, map, g), plane_of(map, g));
      });
      return 0;
    case Way::kTiles:
      parallel((planes + W - 1) / W, kGrain / (elements * W), [&](int64_t begin, int64_t end) {
        Scratch<float> tile((elements + kUnit) * W);
        LaneEncoder<float> encoder(map, code, seed);
        for (int64_t g = begin; g < end; g++) {
          const int count = int(least(W, planes - g * W));
          gather_tile(x, map, g * W, count, tile);
          encoder.encode_tile(tile, count, g * W);
        }
      });
      return 0;
    default: return 1;
  }
}

template <class T>
int decode(T* x, const Map& map, const DualCode& code) {
  const int64_t planes = map.planes(), elements = map.elements();
  switch (way(map)) {
    case Way::kRows:
      parallel(planes, kGrain / elements, [&](int64_t begin, int64_t end) {
        RowDecoder<T> decoder(map, code);
        for (int64_t p = begin; p < end; p++) decoder.decode(x + map.plane_offset(p), p);
      });
      return 0;
    case Way::kLanes:
      parallel(map.samples * parts(map), kGrain / (elements * kChannels), [&](int64_t begin, int64_t end) {
        LaneDecoder<T> decoder(map, code);
        for (int64_t g = begin; g < end; g++) decoder.decode(lanes_of<T>(x, map, g), plane_of(map, g));
      });
      return 0;
    case Way::kTiles:
      if (FlatDecoder<T>::takes(map)) {
        parallel(planes, kGrain / elements, [&](int64_t begin, int64_t end) {
          FlatDecoder<T>(map, code).decode(x, begin, end);
        });
        return 0;
      }
      parallel((planes + W - 1) / W, kGrain / (elements * W), [&](int64_t begin, int64_t end) {
        Scratch<float> tile(elements * W);
        LaneDecoder<float> decoder(map, code);
        for (int64_t g = begin; g < end; g++) {
          const int count = int(least(W, planes - g * W));
          decoder.decode({tile, map.size[1] * map.size[2] * W, map.size[2] * W, W, count}, g * W);
          scatter_tile(tile, map, g * W, count, x);
        }
      });
      return 0;
    default: return 1;
  }
}

}  // namespace
}  // namespace DIVISION_ISA
}  // namespace division

using namespace division::DIVISION_ISA;

// Elements are float32 (type 0), bfloat16 (1) or float16 (2). Both return 0, or 1 for a layout they don't take.

EXPORT(dual_encode)(const void* x, int type, const int64_t* geometry, int bits, uint32_t seed_low, uint32_t seed_high,
                    void* lfc, void* codes, void* scale) {
  const Map map(geometry);
  const DualCode code = {static_cast<uint16_t*>(lfc), static_cast<uint8_t*>(codes), static_cast<uint16_t*>(scale),
                         (map.elements() * bits + 7) / 8, bits};
  const Seed seed = {seed_low, seed_high};
  switch (type) {
    case 0: return encode(static_cast<const float*>(x), map, code, seed);
    case 1: return encode(static_cast<const BFloat16*>(x), map, code, seed);
    case 2: return encode(static_cast<const Float16*>(x), map, code, seed);
    default: return 1;
  }
}

EXPORT(dual_decode)(void* x, int type, const int64_t* geometry, int bits, void* lfc, void* codes, void* scale) {
  const Map map(geometry);
  const DualCode code = {static_cast<uint16_t*>(lfc), static_cast<uint8_t*>(codes), static_cast<uint16_t*>(scale),
                         (map.elements() * bits + 7) / 8, bits};
  switch (type) {
    case 0: return decode(static_cast<float*>(x), map, code);
    case 1: return decode(static_cast<BFloat16*>(x), map, code);
    case 2: return decode(static_cast<Float16*>(x), map, code);
    default: return 1;
  }
}
