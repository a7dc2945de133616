// The error-bounded code: kernels/reference/error_bound.py defines it, bit for bit.
#include "error_bound_decode.h"
#include "error_bound_encode.h"
#include "parallel.h"
#include "strided.h"

namespace division {
namespace DIVISION_ISA {
namespace {

constexpr int64_t kPiece = 16;  // blocks that a thread takes at a time
constexpr int64_t kTail = 16;   // bytes that are read beyond a block's code

INLINE int64_t blocks_of(int64_t count) { return (count + kBlock - 1) / kBlock; }
INLINE int64_t pieces_of(int64_t count) { return (blocks_of(count) + kPiece - 1) / kPiece; }

// Each piece's bytes to memory of its own: the address to `pieces`, 0 where there is none to be had.
template <class T>
void encode(const T* x, const Strided& of, float bound, int16_t* sizes, int64_t* pieces) {
  parallel(pieces_of(of.count), 1, [&](int64_t begin, int64_t end) {
    Reader<T> reader(x, of, kPiece * kBlock);
    Scratch<uint8_t> room(kPiece * (kHead + kBlock * int64_t(sizeof(T))) + kRoom);
    Scratch<Block> memory(1);
    Block& block = *memory;
    block.is_narrow = true;
    for (int64_t piece = begin; piece < end; piece++) {
      const int64_t start = piece * kPiece * kBlock, count = least(kPiece * kBlock, of.count - start);
      const T* const from = reader.read(start, count);
      int64_t bytes = 0;
      for (int64_t e = 0; e < count; e += kBlock) {
        const int64_t own = least(kBlock, count - e);
        const T* source = from + e;
        T last[kBlock];
        if (own % kWord) {
          std::memcpy(last, source, own * sizeof(T));
          std::memset(static_cast<void*>(last + own), 0, (kWord - own % kWord) * sizeof(T));
          source = last;
        }
        const int64_t taken = encode_block(source, own, bound, block, room + bytes);
        sizes[(start + e) / kBlock] = int16_t(taken);
        bytes += taken;
      }
      void* const kept = std::malloc(most(bytes, 1));
      if (kept != nullptr) std::memcpy(kept, room, bytes);
      pieces[piece] = int64_t(reinterpret_cast<intptr_t>(kept));
    }
  });
}

// Where each piece's bytes begin, and where the last ends.
void place(const int16_t* sizes, int64_t count, int64_t* starts) {
  const int64_t blocks = blocks_of(count);
  int64_t at = 0;
  for (int64_t b = 0; b < blocks; b++) {
    if (b % kPiece == 0) starts[b / kPiece] = at;
    at += sizes[b];
  }
  starts[pieces_of(count)] = at;
}

template <class T>
void decode(const uint8_t* payload, const int16_t* sizes, const int64_t* starts, float bound, const Strided& of, T* x) {
  const int64_t all = starts[pieces_of(of.count)];
  parallel(pieces_of(of.count), 1, [&](int64_t begin, int64_t end) {
    const Writer<T> writer(x, of, kPiece * kBlock);
    Scratch<Block> memory(1);
    Block& block = *memory;
    for (int64_t piece = begin; piece < end; piece++) {
      const int64_t start = piece * kPiece * kBlock, count = least(kPiece * kBlock, of.count - start);
      T* const to = writer.room(start);
      int64_t at = starts[piece];
      for (int64_t e = 0; e < count; e += kBlock) {
        const int64_t own = least(kBlock, count - e), bytes = sizes[(start + e) / kBlock];
        const uint8_t* code = payload + at;
        uint8_t near_end[kHead + kBlock * sizeof(T) + kTail];
        if (all - at - bytes < kTail) {
          std::memcpy(near_end, code, bytes);
          code = near_end;
        }
        at += bytes;
        if (own % kWord) {
          T last[kBlock];
          decode_block(code, bytes, own, bound, block, last);
          std::memcpy(to + e, last, own * sizeof(T));
        } else {
          decode_block(code, bytes, own, bound, block, to + e);
        }
      }
      writer.write(start, count);
    }
  });
}

}  // namespace
}  // namespace DIVISION_ISA
}  // namespace division

using namespace division::DIVISION_ISA;

EXPORT(error_bound_encode)(const void* x, int type, const int64_t* shape, const float* bound, int16_t* sizes,
                           int64_t* pieces) {
  const Strided of(shape);
  if (type == 0) encode(static_cast<const float*>(x), of, *bound, sizes, pieces);
  if (type == 1) encode(static_cast<const BFloat16*>(x), of, *bound, sizes, pieces);
  if (type == 2) encode(static_cast<const Float16*>(x), of, *bound, sizes, pieces);
  for (int64_t p = 0; p < pieces_of(of.count); p++) {
    if (pieces[p] == 0) return 1;
  }
  return 0;
}

// The pieces to `payload`, if there is one; their memory is given back.
EXPORT(error_bound_gather)(int64_t count, const int16_t* sizes, const int64_t* pieces, uint8_t* payload) {
  Scratch<int64_t> starts(pieces_of(count) + 1);
  place(sizes, count, starts);
  division::parallel(pieces_of(count), 8, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; p++) {
      void* const piece = reinterpret_cast<void*>(intptr_t(pieces[p]));
      if (payload != nullptr) std::memcpy(payload + starts[p], piece, starts[p + 1] - starts[p]);
      std::free(piece);
    }
  });
  return 0;
}

// 1 if the bytes are not as many as the blocks have.
EXPORT(error_bound_decode)(const uint8_t* payload, int64_t bytes, const int16_t* sizes, const float* bound, int type,
                           const int64_t* shape, void* x) {
  const Strided of(shape);
  Scratch<int64_t> starts(pieces_of(of.count) + 1);
  place(sizes, of.count, starts);
  if (starts[pieces_of(of.count)] != bytes) return 1;
  if (type == 0) decode(payload, sizes, starts, *bound, of, static_cast<float*>(x));
  if (type == 1) decode(payload, sizes, starts, *bound, of, static_cast<BFloat16*>(x));
  if (type == 2) decode(payload, sizes, starts, *bound, of, static_cast<Float16*>(x));
  return 0;
}
