// group_encode and group_decode, mixed_encode and mixed_decode, ranged_encode: kernels/reference defines them, bit for
// bit.
#include "group.h"

#include "group_lanes.h"
#include "parallel.h"
#include "strided.h"

namespace division {
namespace DIVISION_ISA {
namespace {

constexpr int64_t kGrain = 1 << 15;    // elements that make it worth another thread
constexpr int64_t kUnitGroups = 4096;  // groups worked on at a time
constexpr int64_t kLargest = 1 << 15;  // elements of a unit that can't be cut where a byte of codes begins

// Rows of `elements`, cut into groups; equally many rows of each width. Padded, the codes of a row are those of a
// multiple of eight elements.
struct Rows {
  bool padded;
  int64_t rows, elements, size, groups, widths;
  const int64_t* bits;

  explicit Rows(const int64_t* numbers, bool padded_ = false)
      : padded(padded_),
        rows(numbers[0]),
        elements(numbers[1]),
        size(least(numbers[2], elements)),
        groups((elements + size - 1) / size),
        widths(numbers[3]),
        bits(numbers + 4) {}

  int64_t rows_of_width() const { return rows / widths; }
  int64_t row_bytes(int64_t width) const {
    return padded ? (elements + 7) / 8 * bits[width] : (elements * bits[width] + 7) / 8;
  }
};

// How the rows are cut into units: `span` elements of one row, or several whole rows of one width.
struct Units {
  int64_t rows, span, spans, of_width, count;

  // Units begin at multiples of `step` elements of their row, and have about `elements` of them.
  Units(const Rows& of, int64_t step, int64_t elements) {
    rows = spans = 1, span = of.elements;
    const int64_t groups = (step + of.size - 1) / of.size;
    if (of.elements <= elements && of.groups <= kUnitGroups) {
      rows = least(of.rows_of_width(), least(elements / of.elements, kUnitGroups / of.groups));
    } else if (step < of.elements) {
      span = step * most(1, least(elements / step, kUnitGroups / groups));
      spans = (of.elements + span - 1) / span;
    }
    of_width = (of.rows_of_width() + rows - 1) / rows * spans;
    count = of_width * of.widths;
  }

  int64_t elements() const { return rows * span; }  // at most
};

struct Unit {
  int64_t width, row, rows, start, count;  // `count` elements from `start` of each row

  Unit(const Rows& of, const Units& units, int64_t index) {
    width = index / units.of_width;
    const int64_t within = index % units.of_width;
    row = width * of.rows_of_width() + within / units.spans * units.rows;
    rows = least(units.rows, (width + 1) * of.rows_of_width() - row);
    start = within % units.spans * units.span;
    count = least(units.span, of.elements - start);
  }

  // Its elements, side by side in row-major order.
  int64_t first(const Rows& of) const { return row * of.elements + start; }
  int64_t elements(const Rows& of) const { return (rows - 1) * of.elements + count; }
};

// The parts of a group code.
struct Code {
  uint8_t* codes;
  uint16_t* scale;          // bfloat16 [rows, groups, (offset, step)]
  Scratch<int64_t> begins;  // where the codes of each width begin

  Code(const Rows& of, void* codes_, void* scale_)
      : codes(static_cast<uint8_t*>(codes_)), scale(static_cast<uint16_t*>(scale_)), begins(of.widths) {
    int64_t byte = 0;
    for (int64_t w = 0; w < of.widths; w++) {
      begins[w] = byte;
      byte += of.rows_of_width() * of.row_bytes(w);
    }
  }
  uint8_t* at(const Rows& of, int64_t width, int64_t row, int64_t element) {
    return codes + begins[width] + row % of.rows_of_width() * of.row_bytes(width) + element * of.bits[width] / 8;
  }
  uint16_t* scale_at(const Rows& of, int64_t row, int64_t element) {
    return scale + 2 * (row * of.groups + element / of.size);
  }
};

template <bool Outside, class T>
void encode_row(const T* x, const Stretch& of, const Fixed* fixed, U key, uint8_t* codes) {
  switch (of.bits) {
    case 1: return encode_stretch<1, Outside>(x, of, fixed, key, codes);
    case 2: return encode_stretch<2, Outside>(x, of, fixed, key, codes);
    case 4: return encode_stretch<4, Outside>(x, of, fixed, key, codes);
    case 8: return encode_stretch<8, Outside>(x, of, fixed, key, codes);
    default: return encode_stretch<0, Outside>(x, of, fixed, key, codes);
  }
}

template <class T>
void decode_row(const uint8_t* codes, const Stretch& of, T* x) {
  switch (of.bits) {
    case 1: return decode_stretch<1>(codes, of, x);
    case 2: return decode_stretch<2>(codes, of, x);
    case 4: return decode_stretch<4>(codes, of, x);
    case 8: return decode_stretch<8>(codes, of, x);
    default: return decode_stretch<0>(codes, of, x);
  }
}

// The codes of a unit from its elements; `scale` and `fixed` begin with its first group.
template <bool Outside, class T>
void encode_unit(const T* x, const Rows& of, const Unit& unit, const uint16_t* scale, const Fixed* fixed, Seed seed,
                 Code& code) {
  for (int64_t r = 0; r < unit.rows; r++) {
    const int64_t row = unit.row + r, beyond = (unit.rows - 1 - r) * of.elements, groups = r * of.groups;
    const int bits = int(of.bits[unit.width]);
    const Stretch stretch = {unit.start, unit.count, beyond, of.size, scale + 2 * groups, bits, of.padded};
    encode_row<Outside>(x + r * of.elements, stretch, fixed + groups, splat(row_key(seed, row)),
               code.at(of, unit.width, row, unit.start));
  }
}

// The ranges of the groups of a unit of whole ones, to `low` and `high`; returns how many they are.
template <class T>
int64_t unit_ranges(const T* x, const Rows& of, const Unit& unit, float* low, float* high) {
  int64_t groups = 0;
  for (int64_t r = 0; r < unit.rows; r++) {
    for (int64_t e = 0; e < unit.count; e += of.size, groups++) {
      range(x + r * of.elements + e, least(of.size, unit.count - e), low[groups], high[groups]);
    }
  }
  return groups;
}

// The ranges of all groups, where units hold whole ones.
template <class T>
void ranges_of_units(const T* x, const Strided& layout, const Rows& of, float* low, float* high) {
  const Units units(of, of.size, layout.portion(sizeof(T)));
  parallel(units.count, kGrain / units.elements(), [&](int64_t begin, int64_t end) {
    Reader<T> reader(x, layout, units.elements());
    for (int64_t i = begin; i < end; i++) {
      const Unit unit(of, units, i);
      const int64_t first = unit.row * of.groups + unit.start / of.size;
      unit_ranges(reader.read(unit.first(of), unit.elements(of)), of, unit, low + first, high + first);
    }
  });
}

// Where units hold whole groups: the parameters and the codes of each in one go.
template <class T>
void encode_units(const T* x, const Strided& layout, const Rows& of, const Units& units, Seed seed, Code& code) {
  parallel(units.count, kGrain / units.elements(), [&](int64_t begin, int64_t end) {
    Reader<T> reader(x, layout, units.elements());
    Scratch<float> low(kUnitGroups), high(kUnitGroups);
    Scratch<Fixed> fixed(kUnitGroups);
    for (int64_t i = begin; i < end; i++) {
      const Unit unit(of, units, i);
      const T* const from = reader.read(unit.first(of), unit.elements(of));
      uint16_t* const scale = code.scale_at(of, unit.row, unit.start);
      const int64_t groups = unit_ranges(from, of, unit, low, high);
      settle(low, high, groups, int(of.bits[unit.width]), scale, fixed);
      encode_unit<false>(from, of, unit, scale, fixed, seed, code);
    }
  });
}

// The ranges of all groups, each from those of its pieces; in `low` and `high`, a piece each at first.
template <class T>
void ranges(const T* x, const Strided& layout, const Rows& of, int64_t piece, float* low, float* high) {
  const int64_t chunk = layout.portion(sizeof(T));
  const int64_t pieces = (of.size + piece - 1) / piece, groups = of.rows * of.groups;
  parallel(groups * pieces, kGrain / least(piece, of.size), [&](int64_t begin, int64_t end) {
    Reader<T> reader(x, layout, chunk);
    for (int64_t i = begin; i < end; i++) {
      const int64_t group = i / pieces, row = group / of.groups;
      const int64_t first = group % of.groups * of.size, past = least(of.elements, first + of.size);
      F least_x = splat(kInf), most_x = splat(-kInf);
      bool nan = false;
      for (int64_t e = first + i % pieces * piece, stop = least(past, e + piece); e < stop; e += chunk) {
        const int64_t count = least(chunk, stop - e);
        float a, b;
        range(reader.read(row * of.elements + e, count), count, a, b);
        nan |= a != a;
        least_x = min(splat(a), least_x), most_x = max(splat(b), most_x);
      }
      low[i] = nan ? kNaN : least_x[0], high[i] = nan ? kNaN : most_x[0];
    }
  });
  for (int64_t g = 0; g < groups; g++) {
    float a = kInf, b = -kInf;
    bool nan = false;
    for (int64_t i = g * pieces; i < (g + 1) * pieces; i++) {
      nan |= low[i] != low[i];
      a = low[i] < a ? low[i] : a, b = high[i] > b ? high[i] : b;
    }
    low[g] = nan ? kNaN : a, high[g] = nan ? kNaN : b;
  }
}

// The codes of all groups by parameters that are there.
template <bool Outside, class T>
void encode_settled(const T* x, const Strided& layout, const Rows& of, const Fixed* fixed, Seed seed, Code& code) {
  const Units units(of, kBatch, layout.portion(sizeof(T)));
  parallel(units.count, kGrain / units.elements(), [&](int64_t begin, int64_t end) {
    Reader<T> reader(x, layout, units.elements());
    for (int64_t i = begin; i < end; i++) {
      const Unit unit(of, units, i);
      const T* const from = reader.read(unit.first(of), unit.elements(of));
      const uint16_t* const scale = code.scale_at(of, unit.row, unit.start);
      encode_unit<Outside>(from, of, unit, scale, fixed + (scale - code.scale) / 2, seed, code);
    }
  });
}

// The parameters and the codes of groups whose ranges are known.
template <class T>
void encode_known(const T* x, const Strided& layout, const Rows& of, const float* low, const float* high, Seed seed,
                  Code& code) {
  Scratch<Fixed> fixed(of.rows * of.groups);
  for (int64_t w = 0; w < of.widths; w++) {
    const int64_t count = of.rows_of_width() * of.groups, first = w * count;
    settle(low + first, high + first, count, int(of.bits[w]), code.scale + 2 * first, fixed + first);
  }
  encode_settled<false>(x, layout, of, fixed, seed, code);
}

// Large groups: the ranges of all first, in a pass of their own, so that several threads share each group.
template <class T>
void encode_large(const T* x, const Strided& layout, const Rows& of, Seed seed, Code& code) {
  const int64_t piece = most(kGrain, layout.portion(sizeof(T)));
  const int64_t groups = of.rows * of.groups, pieces = (of.size + piece - 1) / piece;
  Scratch<float> low(groups * pieces), high(groups * pieces);
  ranges(x, layout, of, piece, low, high);
  encode_known<T>(x, layout, of, low, high, seed, code);
}

// Rows that lie side by side, W or more of them, with a width that has a body for lanes.
bool by_lanes(const Strided& layout, const Rows& of) {
  const int64_t bits = of.bits[0];
  return !of.padded && of.widths == 1 && (bits == 1 || bits == 2 || bits == 4 || bits == 8) && layout.turned() &&
         layout.size[layout.dims - 1] == of.elements && layout.size[layout.dims - 2] >= W;
}

// Calls `visit(offset, row, count)` for up to W * kGroups rows side by side, on several threads: where they begin, the
// number of the first, and how many they are. `make` gives what a thread works with.
template <class Make, class Visit>
void each_lanes(const Strided& layout, const Rows& of, const Make& make, const Visit& visit) {
  constexpr int64_t most_rows = W * kGroups;
  const int64_t beside = layout.size[layout.dims - 2], parts = (beside + most_rows - 1) / most_rows;
  parallel(of.rows / beside * parts, kGrain / (of.elements * most_rows), [&](int64_t begin, int64_t end) {
    auto worker = make();
    for (int64_t i = begin; i < end; i++) {
      const int64_t first = i % parts * most_rows, row = i / parts * beside + first;
      layout.each_stretch(row * of.elements, 1, [&](int64_t offset, int64_t, int64_t) {
        visit(worker, offset, row, least(most_rows, beside - first));
      });
    }
  });
}

GroupCode lanes_code(const Rows& of, const Code& code) {
  return {code.codes, code.scale, of.rows, of.elements, of.size, int(of.bits[0])};
}

template <class T>
void encode(const void* x, const Strided& layout, const Rows& of, Seed seed, Code& code) {
  const T* const from = static_cast<const T*>(x);
  if (by_lanes(layout, of)) {
    const int64_t step = layout.stride[layout.dims - 1];
    each_lanes(
        layout, of, [&] { return GroupLaneEncoder<T>(lanes_code(of, code), seed); },
        [&](GroupLaneEncoder<T>& encoder, int64_t offset, int64_t row, int64_t count) {
          encoder.encode({from + offset, 0, 0, step, count}, row);
        });
    return;
  }
  // Units of whole groups that begin a batch.
  int64_t step = of.size;
  while (step % kBatch != 0 && step < of.elements) step *= 2;
  if (of.groups == 1) step = of.elements;
  if (least(step, of.elements) <= kLargest) {
    encode_units(from, layout, of, Units(of, step, layout.portion(sizeof(T))), seed, code);
  } else {
    encode_large(from, layout, of, seed, code);
  }
}

// The same with one range a row, which is given.
template <class T>
void encode_given(const void* x, const Strided& layout, const Rows& of, Seed seed, Code& code) {
  Scratch<Fixed> fixed(of.rows);
  for (int64_t row = 0; row < of.rows; row++) {
    const float step = from_upper(code.scale[2 * row + 1]);
    fixed[row] = step == step ? 0 : 1;
  }
  encode_settled<true>(static_cast<const T*>(x), layout, of, fixed, seed, code);
}

template <class T>
void decode(void* x, const Strided& layout, const Rows& of, Code& code) {
  if (by_lanes(layout, of)) {
    const int64_t step = layout.stride[layout.dims - 1];
    each_lanes(
        layout, of, [&] { return GroupLaneDecoder<T>(lanes_code(of, code)); },
        [&](GroupLaneDecoder<T>& decoder, int64_t offset, int64_t row, int64_t count) {
          decoder.decode({static_cast<T*>(x) + offset, 0, 0, step, count}, row);
        });
    return;
  }
  const Units units(of, kBatch, layout.portion(sizeof(T)));
  parallel(units.count, kGrain / units.elements(), [&](int64_t begin, int64_t end) {
    Writer<T> writer(static_cast<T*>(x), layout, units.elements());
    for (int64_t i = begin; i < end; i++) {
      const Unit unit(of, units, i);
      T* const to = writer.room(unit.first(of));
      for (int64_t r = 0; r < unit.rows; r++) {
        const int64_t row = unit.row + r, beyond = (unit.rows - 1 - r) * of.elements;
        const uint16_t* const scale = code.scale_at(of, row, unit.start);
        const Stretch stretch = {unit.start, unit.count, beyond, of.size, scale, int(of.bits[unit.width]), of.padded};
        decode_row(code.at(of, unit.width, row, unit.start), stretch, to + r * of.elements);
      }
      writer.write(unit.first(of), unit.elements(of));
    }
  });
}

}  // namespace
}  // namespace DIVISION_ISA
}  // namespace division

using namespace division::DIVISION_ISA;

// `rows` is what Rows reads: rows, their elements, the size of a group, how many widths, the widths. `shape` is what
// Strided reads. Elements are float32 (type 0), bfloat16 (1) or float16 (2). Both return 0, or 1 for other elements.

EXPORT(group_encode)(const void* x, int type, const int64_t* shape, const int64_t* rows, uint32_t seed_low,
                     uint32_t seed_high, void* codes, void* scale) {
  const Strided layout(shape);
  const Rows of(rows);
  Code code(of, codes, scale);
  const Seed seed = {seed_low, seed_high};
  switch (type) {
    case 0: return encode<float>(x, layout, of, seed, code), 0;
    case 1: return encode<BFloat16>(x, layout, of, seed, code), 0;
    case 2: return encode<Float16>(x, layout, of, seed, code), 0;
    default: return 1;
  }
}

// A row is one group; `scale` is read.
EXPORT(ranged_encode)(const void* x, int type, const int64_t* shape, const int64_t* rows, uint32_t seed_low,
                      uint32_t seed_high, void* codes, void* scale) {
  const Strided layout(shape);
  const Rows of(rows);
  Code code(of, codes, scale);
  const Seed seed = {seed_low, seed_high};
  switch (type) {
    case 0: return encode_given<float>(x, layout, of, seed, code), 0;
    case 1: return encode_given<BFloat16>(x, layout, of, seed, code), 0;
    case 2: return encode_given<Float16>(x, layout, of, seed, code), 0;
    default: return 1;
  }
}

// The least and the greatest of each group, NaN where one is not finite: float32 [rows, groups] each. A group has at
// most 4096 elements.
EXPORT(group_ranges)(const void* x, int type, const int64_t* shape, const int64_t* rows, void* low, void* high) {
  const Strided layout(shape);
  const Rows of(rows);
  float *const least_x = static_cast<float*>(low), *const most_x = static_cast<float*>(high);
  switch (type) {
    case 0: return ranges_of_units(static_cast<const float*>(x), layout, of, least_x, most_x), 0;
    case 1: return ranges_of_units(static_cast<const BFloat16*>(x), layout, of, least_x, most_x), 0;
    case 2: return ranges_of_units(static_cast<const Float16*>(x), layout, of, least_x, most_x), 0;
    default: return 1;
  }
}

// group_encode by ranges that are known, with padded rows.
EXPORT(mixed_encode)(const void* x, int type, const int64_t* shape, const int64_t* rows, const void* low,
                     const void* high, uint32_t seed_low, uint32_t seed_high, void* codes, void* scale) {
  const Strided layout(shape);
  const Rows of(rows, true);
  Code code(of, codes, scale);
  const Seed seed = {seed_low, seed_high};
  const float *const least_x = static_cast<const float*>(low), *const most_x = static_cast<const float*>(high);
  switch (type) {
    case 0: return encode_known(static_cast<const float*>(x), layout, of, least_x, most_x, seed, code), 0;
    case 1: return encode_known(static_cast<const BFloat16*>(x), layout, of, least_x, most_x, seed, code), 0;
    case 2: return encode_known(static_cast<const Float16*>(x), layout, of, least_x, most_x, seed, code), 0;
    default: return 1;
  }
}

static int decode_to(void* codes, void* scale, const Rows& of, int type, const int64_t* shape, void* x) {
  const Strided layout(shape);
  Code code(of, codes, scale);
  switch (type) {
    case 0: return decode<float>(x, layout, of, code), 0;
    case 1: return decode<BFloat16>(x, layout, of, code), 0;
    case 2: return decode<Float16>(x, layout, of, code), 0;
    default: return 1;
  }
}

EXPORT(group_decode)(void* codes, void* scale, const int64_t* rows, int type, const int64_t* shape, void* x) {
  return decode_to(codes, scale, Rows(rows), type, shape, x);
}

EXPORT(mixed_decode)(void* codes, void* scale, const int64_t* rows, int type, const int64_t* shape, void* x) {
  return decode_to(codes, scale, Rows(rows, true), type, shape, x);
}
