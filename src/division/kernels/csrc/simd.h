// One vector of floats or 32-bit integers, as wide as the instruction set this file is compiled for.
//
// Every source that includes this is compiled once for each instruction set, with DIVISION_ISA set to its name, and puts
// its code in the namespace of that name. Arithmetic is the compilers' own on vector types: + - * / round as IEEE says,
// and nothing is fused (-ffp-contract=off).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define DIVISION_JOIN_(a, b) a##_##b
#define DIVISION_JOIN(a, b) DIVISION_JOIN_(a, b)
// A function of the library: `EXPORT(dual_encode)(...)` is `dual_encode_avx2` in the AVX2 body.
#define EXPORT(name) extern "C" __attribute__((visibility("default"))) int DIVISION_JOIN(name, DIVISION_ISA)

#define INLINE inline __attribute__((always_inline))

namespace division {
namespace DIVISION_ISA {

#if defined(__AVX512BW__)
constexpr int W = 16;
#else
constexpr int W = 8;
#endif

#if defined(__AVX2__)
typedef float F __attribute__((vector_size(4 * W)));
typedef int32_t I __attribute__((vector_size(4 * W)));
typedef uint32_t U __attribute__((vector_size(4 * W)));
#else
// Two vectors of 16 bytes, which every processor has; of wider types compilers make single elements. Used as the
// compilers' own vector types are: a cast keeps the bits, a comparison gives all ones or all zeros.
template <class E>
struct Pair {
  typedef E Half __attribute__((vector_size(16)));
  Half half[2];

  Pair() = default;
  Pair(Half first, Half second) : half{first, second} {}
  template <class Other>
  explicit Pair(const Pair<Other>& other) { std::memcpy(this, &other, sizeof(other)); }

  E operator[](int lane) const { return half[lane / 4][lane % 4]; }
  E& operator[](int lane) { return reinterpret_cast<E*>(half)[lane]; }

#define DIVISION_OPERATOR(op)                                                                                 \
  friend INLINE Pair operator op(Pair a, Pair b) { return {a.half[0] op b.half[0], a.half[1] op b.half[1]}; } \
  friend INLINE Pair operator op(Pair a, E b) { return {a.half[0] op b, a.half[1] op b}; }                    \
  friend INLINE Pair operator op(E a, Pair b) { return {a op b.half[0], a op b.half[1]}; }                    \
  friend INLINE Pair& operator op##=(Pair& a, Pair b) { return a = a op b; }                                  \
  friend INLINE Pair& operator op##=(Pair& a, E b) { return a = a op b; }
  DIVISION_OPERATOR(+)
  DIVISION_OPERATOR(-)
  DIVISION_OPERATOR(*)
  DIVISION_OPERATOR(/)
  DIVISION_OPERATOR(&)
  DIVISION_OPERATOR(|)
  DIVISION_OPERATOR(^)
#undef DIVISION_OPERATOR
#define DIVISION_COMPARISON(op)                                                                                      \
  friend INLINE Pair<int32_t> operator op(Pair a, Pair b) { return {a.half[0] op b.half[0], a.half[1] op b.half[1]}; } \
  friend INLINE Pair<int32_t> operator op(Pair a, E b) { return {a.half[0] op b, a.half[1] op b}; }
  DIVISION_COMPARISON(<)
  DIVISION_COMPARISON(>)
  DIVISION_COMPARISON(<=)
  DIVISION_COMPARISON(>=)
  DIVISION_COMPARISON(==)
  DIVISION_COMPARISON(!=)
#undef DIVISION_COMPARISON
  friend INLINE Pair operator-(Pair a) { return {-a.half[0], -a.half[1]}; }
  friend INLINE Pair operator~(Pair a) { return {~a.half[0], ~a.half[1]}; }
  friend INLINE Pair operator<<(Pair a, int bits) { return {a.half[0] << bits, a.half[1] << bits}; }
  friend INLINE Pair operator>>(Pair a, int bits) { return {a.half[0] >> bits, a.half[1] >> bits}; }
  friend INLINE Pair operator<<(Pair a, Pair b) { return {a.half[0] << b.half[0], a.half[1] << b.half[1]}; }
  friend INLINE Pair operator>>(Pair a, Pair b) { return {a.half[0] >> b.half[0], a.half[1] >> b.half[1]}; }
};

typedef Pair<float> F;
typedef Pair<int32_t> I;
typedef Pair<uint32_t> U;
#endif

// Elements of the tensors that are not float: their bits.
struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

INLINE F splat(float x) { return x - F{}; }  // of -0 too
INLINE I splat(int32_t x) { return x - I{}; }
INLINE U splat(uint32_t x) { return x - U{}; }

// Of whole numbers. Nothing here is taken from the standard library's templates: what the compiler would not inline of
// those is one function for the whole library, and the one it keeps may be that of the widest instruction set.
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

template <class To, class From>
INLINE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "only the type changes");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

INLINE I iota() {
#if defined(__AVX512BW__)
  return I{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(__AVX2__)
  return I{0, 1, 2, 3, 4, 5, 6, 7};
#else
  return {I::Half{0, 1, 2, 3}, I::Half{4, 5, 6, 7}};
#endif
}

#if defined(__AVX2__)
INLINE I to_int(F x) { return __builtin_convertvector(x, I); }  // towards zero
INLINE F to_float(I x) { return __builtin_convertvector(x, F); }
#else
INLINE I to_int(F x) {
  return {__builtin_convertvector(x.half[0], I::Half), __builtin_convertvector(x.half[1], I::Half)};
}
INLINE F to_float(I x) {
  return {__builtin_convertvector(x.half[0], F::Half), __builtin_convertvector(x.half[1], F::Half)};
}
#endif

// Selects by a mask of all ones and all zeros.
INLINE F select(I mask, F yes, F no) {
#if defined(__AVX2__)
  return mask ? yes : no;
#else
  return bits_as<F>((bits_as<I>(yes) & mask) | (bits_as<I>(no) & ~mask));
#endif
}

// The second operand where either is NaN, as the instructions have it.
INLINE F min(F a, F b) {
#if defined(__AVX512BW__)
  return (F)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (F)_mm256_min_ps((__m256)a, (__m256)b);
#else
  return select((I)(a < b), a, b);
#endif
}

INLINE F max(F a, F b) {
#if defined(__AVX512BW__)
  return (F)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
  return (F)_mm256_max_ps((__m256)a, (__m256)b);
#else
  return select((I)(a > b), a, b);
#endif
}

INLINE I min(I a, I b) {
#if defined(__AVX512BW__)
  return (I)_mm512_min_epi32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (I)_mm256_min_epi32((__m256i)a, (__m256i)b);
#else
  const I less = (I)(a < b);
  return (a & less) | (b & ~less);
#endif
}

// codes, one more where a < b
INLINE I add_where_less(I codes, F a, F b) {
#if defined(__AVX512BW__)
  const __mmask16 less = _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ);
  return (I)_mm512_mask_add_epi32((__m512i)codes, less, (__m512i)codes, _mm512_set1_epi32(1));
#else
  return codes - (I)(a < b);
#endif
}

// Whether any lane of a mask is set.
INLINE bool any(I mask) {
#if defined(__AVX512BW__)
  return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
  return _mm256_testz_si256((__m256i)mask, (__m256i)mask) == 0;
#else
  const I::Half both = mask.half[0] | mask.half[1];
  return (both[0] | both[1] | both[2] | both[3]) != 0;
#endif
}

INLINE float lowest(F x) {
#if defined(__AVX512BW__)
  return _mm512_reduce_min_ps((__m512)x);
#else
  float found = x[0];
  for (int i = 1; i < W; i++) found = x[i] < found ? x[i] : found;
  return found;
#endif
}

INLINE float highest(F x) {
#if defined(__AVX512BW__)
  return _mm512_reduce_max_ps((__m512)x);
#else
  float found = x[0];
  for (int i = 1; i < W; i++) found = x[i] > found ? x[i] : found;
  return found;
#endif
}

// Memory for the length of a call; a thread asks once for all it needs. Begins with a cache line, so that no vector in it
// takes two.
template <class T>
class Scratch {
 public:
  explicit Scratch(int64_t count) {
    void* data = nullptr;
    if (posix_memalign(&data, 64, sizeof(T) * most(count, 1)) != 0) std::abort();
    data_ = static_cast<T*>(data);
  }
  ~Scratch() { std::free(data_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  operator T*() { return data_; }

 private:
  T* data_;
};

// Loads and stores take any alignment.

template <class V>
INLINE V load_bits(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <class V>
INLINE void store_bits(void* p, V v) {
  std::memcpy(p, &v, sizeof(v));
}

INLINE float half_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, fraction = h & 1023;
  if (exponent == 31) return bits_as<float>(sign | 0x7F800000u | fraction << 13);
  if (exponent != 0) return bits_as<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float tiny = float(fraction) * 0x1p-24f;
  return bits_as<float>(sign | bits_as<uint32_t>(tiny));
}

// Rounds to nearest even; for values within float16's range, and NaN.
INLINE uint16_t float_to_half(float x) {
  const uint32_t bits = bits_as<uint32_t>(x), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
  if (size > 0x7F800000u) return uint16_t(sign | 0x7E00);
  if (size < 0x38800000u) {  // below the least normal: in steps of 2^-24
    const float steps = bits_as<float>(size) * 0x1p24f;
    const float rounded = (steps + 0x1p23f) - 0x1p23f;
    return uint16_t(sign | uint32_t(rounded));
  }
  return uint16_t(sign | ((size + 0xFFF + (size >> 13 & 1)) - 0x38000000u) >> 13);
}

INLINE F load(const float* p) { return load_bits<F>(p); }

INLINE F load(const BFloat16* p) {
#if defined(__AVX512BW__)
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return (F)_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
#elif defined(__AVX2__)
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return (F)_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
#else
  U bits;
  for (int i = 0; i < W; i++) bits[i] = uint32_t(p[i].bits) << 16;
  return bits_as<F>(bits);
#endif
}

INLINE F load(const Float16* p) {
#if defined(__AVX512BW__)
  return (F)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__)
  return (F)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  F x;
  for (int i = 0; i < W; i++) x[i] = half_to_float(p[i].bits);
  return x;
#endif
}

#if defined(__AVX512BW__)
// 8 elements from each of two places.
INLINE __m512 two_halves(const float* first, const float* second) {
  return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(first)), _mm256_loadu_ps(second), 1);
}
INLINE __m512 two_halves(const BFloat16* first, const BFloat16* second) {
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(first));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(second));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_set_m128i(b, a)), 16));
}
INLINE __m512 two_halves(const Float16* first, const Float16* second) {
  const __m128i a = _mm_loadu_si128(reinterpret_cast<const __m128i*>(first));
  const __m128i b = _mm_loadu_si128(reinterpret_cast<const __m128i*>(second));
  return _mm512_cvtph_ps(_mm256_set_m128i(b, a));
}
#endif

INLINE void store(float* p, F x) { store_bits(p, x); }

// To nearest even. A NaN stays one if its lower half is 0, as in all that was computed from bfloat16 values.
INLINE U bfloat16_bits(F x) {
  const U bits = bits_as<U>(x);
  return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
}

#if defined(__AVX512BW__)
// The bits of W elements.
INLINE __m256i sixteen_bits(const BFloat16*, F x) { return _mm512_cvtepi32_epi16((__m512i)bfloat16_bits(x)); }
INLINE __m256i sixteen_bits(const Float16*, F x) { return _mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT); }
INLINE __m128i sixteen_bits(const BFloat16*, __m128 x) {
  const __m128i bits = _mm_castps_si128(x), odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
  const __m128i upper = _mm_srli_epi32(_mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7FFF)), odd), 16);
  return _mm_packus_epi32(upper, upper);
}
INLINE __m128i sixteen_bits(const Float16*, __m128 x) { return _mm_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT); }
#endif

INLINE void store(BFloat16* p, F x) {
#if defined(__AVX512BW__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), sixteen_bits(p, x));
#elif defined(__AVX2__)
  const U bits = bfloat16_bits(x);
  const __m256i halves = _mm256_packus_epi32((__m256i)bits, (__m256i)bits);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08)));
#else
  const U bits = bfloat16_bits(x);
  for (int i = 0; i < W; i++) p[i].bits = uint16_t(bits[i]);
#endif
}

INLINE void store(Float16* p, F x) {
#if defined(__AVX512BW__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), sixteen_bits(p, x));
#elif defined(__AVX2__)
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < W; i++) p[i].bits = float_to_half(x[i]);
#endif
}

// The nearest values that the type holds, and stores of such.
template <class T>
INLINE F rounded(F x) {
  T lanes[W];
  store(lanes, x);
  return load(lanes);
}

INLINE void store_rounded(float* p, F x) { store(p, x); }
INLINE void store_rounded(Float16* p, F x) { store(p, x); }
INLINE void store_rounded(BFloat16* p, F x) {
#if defined(__AVX512BW__)
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16((__m512i)(bits_as<U>(x) >> 16)));
#else
  store(p, x);
#endif
}

INLINE float value(const float* p) { return *p; }
INLINE float value(const BFloat16* p) { return bits_as<float>(uint32_t(p->bits) << 16); }
INLINE float value(const Float16* p) { return half_to_float(p->bits); }

// Of each lane, the entry of the table that its index (0 to W - 1) says.
INLINE F lookup(F table, I index) {
#if defined(__AVX512BW__)
  return (F)_mm512_permutexvar_ps((__m512i)index, (__m512)table);
#elif defined(__AVX2__)
  return (F)_mm256_permutevar8x32_ps((__m256)table, (__m256i)index);
#else
  F found;
  for (int i = 0; i < W; i++) found[i] = table[index[i]];
  return found;
#endif
}

// The lanes of x moved down by `places`; those left free are not defined.
INLINE F shifted_down(F x, int places) {
#if defined(__AVX512BW__)
  return (F)_mm512_permutexvar_ps((__m512i)(iota() + places), (__m512)x);
#elif defined(__AVX2__)
  return (F)_mm256_permutevar8x32_ps((__m256)x, (__m256i)(iota() + places));
#else
  float lanes[2 * W];
  store_bits(lanes, x);
  store_bits(lanes + W, x);
  return load_bits<F>(lanes + places);
#endif
}

// The first `count` elements, below W; `fill` in the other lanes.
INLINE F load_some(const float* p, int count, F fill) {
#if defined(__AVX512BW__)
  return (F)_mm512_mask_loadu_ps((__m512)fill, __mmask16((1u << count) - 1), p);
#else
  float lanes[W];
  store_bits(lanes, fill);
  for (int i = 0; i < count; i++) lanes[i] = p[i];
  return load_bits<F>(lanes);
#endif
}

template <class T>
INLINE F load_some(const T* p, int count, F fill) {
#if defined(__AVX512BW__)
  const __m256i halves = _mm256_maskz_loadu_epi16(__mmask16((1u << count) - 1), p);
  T lanes[W];
  store_bits(lanes, halves);
#else
  T lanes[W] = {};
  for (int i = 0; i < count; i++) lanes[i] = p[i];
#endif
  return select((I)(iota() < count), load(lanes), fill);
}

// The last `count` elements, below W, of a row of `width`, that end at `end`.
template <class T>
INLINE F load_last(const T* end, int64_t width, int count, F fill) {
  if (width < W) return load_some(end - count, count, fill);
  return select((I)(iota() < count), shifted_down(load(end - W), W - count), fill);
}

template <class T>
INLINE void store_some(T* p, F x, int count) {
  T lanes[W];
  store(lanes, x);
  for (int i = 0; i < count; i++) p[i] = lanes[i];
}

// The greatest finite value of the type, in every lane.
template <class T>
INLINE F limit();
template <>
INLINE F limit<float>() { return splat(std::numeric_limits<float>::max()); }
template <>
INLINE F limit<BFloat16>() { return splat(bits_as<float>(0x7F7F0000u)); }
template <>
INLINE F limit<Float16>() { return splat(65504.0f); }

INLINE F absolute(F x) { return bits_as<F>(bits_as<U>(x) & 0x7FFFFFFFu); }

// Within the type's range; NaN stays NaN.
template <class T>
INLINE F clamp(F x) {
  return max(-limit<T>(), min(limit<T>(), x));
}

}  // namespace DIVISION_ISA
}  // namespace division
