// Vectors of 16 floats in one register: CPUs with AVX512, with or without its bf16 products.
// `vectors_portable.h` has the same names for all other CPUs.
#pragma once

// GCC 12 warns about the deliberately undefined lanes in its own header (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstdint>
#include <cstring>

namespace stoker {

using bf16 = std::uint16_t;  // the bits of a bfloat16: the upper half of a float32
using fp8 = std::uint8_t;    // the bits of a float8 e4m3, see fp8.h

constexpr int kLanes = 16;

#if defined(__AVX512BF16__)
constexpr const char* kInstructions = "AVX512-BF16";
#elif defined(__AVX512VNNI__)
constexpr const char* kInstructions = "AVX512-VNNI";
#else
constexpr const char* kInstructions = "AVX512";
#endif

// Tiles are as large as 32 registers allow.
constexpr int kTileRows = 8;     // of a product: 8 rows x 3 vectors of sums
constexpr int kPassRows = 6;     // of attention: 6 rows x 4 vectors of sums
constexpr int kScoreGroups = 4;  // groups of keys that are scored together
constexpr int kValueChunks = 2;  // cache lines of a value that are weighed together

// Whether a product holds a line of weights in registers for all rows, or the rows' inputs.
constexpr bool kKeepsColumns = true;

using Floats = __m512;
using Pairs = __m512i;    // 16 pairs of bf16
using Lanes = __mmask16;  // some of the 16

// A mask of the first `count` lanes; any count is fine.
inline Lanes first_lanes(std::int64_t count) {
  if (count >= kLanes) return 0xFFFF;
  return count <= 0 ? 0 : static_cast<Lanes>((1u << count) - 1u);
}

inline Lanes lanes_between(std::int64_t begin, std::int64_t end) {
  return static_cast<Lanes>(first_lanes(end) & ~first_lanes(begin));
}

inline Floats splat(float value) { return _mm512_set1_ps(value); }
inline Floats load(const float* source) { return _mm512_loadu_ps(source); }
inline Floats load(const float* source, Lanes lanes) {  // zero in other lanes
  return _mm512_maskz_loadu_ps(lanes, source);
}
inline void store(float* target, Floats values) { _mm512_storeu_ps(target, values); }
inline void store(float* target, Floats values, Lanes lanes) {
  _mm512_mask_storeu_ps(target, lanes, values);
}

inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats multiply_subtract(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }
inline Floats larger(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats larger(Floats a, Floats b, Lanes lanes) {  // `a` in other lanes
  return _mm512_mask_max_ps(a, lanes, a, b);
}
inline Floats only(Floats values, Lanes lanes) { return _mm512_maskz_mov_ps(lanes, values); }
inline float sum_of(Floats values) { return _mm512_reduce_add_ps(values); }
inline float largest_of(Floats values) { return _mm512_reduce_max_ps(values); }

// Lanes 8..15 in the place of 0..7.
inline Floats upper_half(Floats values) { return _mm512_shuffle_f32x4(values, values, 0b1110); }

// For exp2_of: any x is in range, and scale_by_power takes any whole number.
inline Floats in_exponent_range(Floats x) { return x; }
inline Floats round_to_whole(Floats x) {
  return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Floats scale_by_power(Floats values, Floats whole) {
  return _mm512_scalef_ps(values, whole);
}

inline Pairs load_line(const bf16* line) { return _mm512_loadu_si512(line); }
inline void store_line(bf16* line, Pairs pairs) { _mm512_storeu_si512(line, pairs); }

// Half a line of fp8 becomes a line of bf16. Exponents get another bias; where they are 0 or 15 (no
// leading 1, or NaN) the last 5 bits tell the number, which is looked up.
inline Pairs load_line(const fp8* half) {
  constexpr std::int16_t kBias = (127 - 7) << 7;
  alignas(64) static constexpr bf16 kRare[32] = {
      0,      0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60, 0, 0, 0, 0, 0, 0, 0, 0,
      0, 0, 0, 0, 0, 0, 0, 0, 0x4380, 0x4390, 0x43A0, 0x43B0, 0x43C0, 0x43D0, 0x43E0, 0x7FC0};
  const __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(half));
  const __mmask32 is_rare = _mm256_testn_epi8_mask(_mm256_add_epi8(bytes, _mm256_set1_epi8(0x08)),
                                                   _mm256_set1_epi8(0x70));
  const __m512i words = _mm512_cvtepi8_epi16(bytes);
  const __m512i bits = _mm512_and_si512(_mm512_slli_epi16(words, 4), _mm512_set1_epi16(0x07F0));
  const __m512i size =
      _mm512_mask_permutexvar_epi16(_mm512_add_epi16(bits, _mm512_set1_epi16(kBias)), is_rare,
                                    words, _mm512_load_si512(kRare));
  return _mm512_ternarylogic_epi32(size, words, _mm512_set1_epi16(INT16_MIN), 0xF8);  // with sign
}

// The pairs at `base` + offsets[lane] bytes, zero where the offset is negative.
inline Pairs gather_pairs(const bf16* base, const std::int32_t* offsets) {
  const __m512i places = _mm512_loadu_si512(offsets), zero = _mm512_setzero_si512();
  const Lanes lanes = _mm512_cmpge_epi32_mask(places, zero);
  return _mm512_mask_i32gather_epi32(zero, lanes, places, base, 1);
}
inline Pairs second_values(Pairs pairs) { return _mm512_srli_epi32(pairs, 16); }

#ifdef __AVX512BF16__

using Pair = __m512i;  // one pair in all lanes

inline Pair broadcast_pair(const bf16* pair) {
  std::int32_t bits;
  std::memcpy(&bits, pair, sizeof bits);
  return _mm512_set1_epi32(bits);
}

// sum += a[0] * b[2i] + a[1] * b[2i + 1] for the 16 pairs i of b.
inline Floats dot_pairs(Floats sum, Pair a, Pairs b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

// The same, with `c` instead of `a` for the last 8 pairs of b.
inline Floats dot_two_pairs(Floats sum, Pair a, Pair c, Pairs b) {
  return dot_pairs(sum, _mm512_mask_mov_epi32(a, 0xFF00, c), b);
}

// Rounds to the nearest bf16, ties to even.
inline __m256i narrow(Floats values) { return (__m256i)_mm512_cvtneps_pbh(values); }

#else

struct Pair {
  Floats first, second;
};

inline Floats widen_first(Pairs pairs) { return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)); }
inline Floats widen_second(Pairs pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536)));
}

inline Pair broadcast_pair(const bf16* pair) {
  std::int32_t bits;
  std::memcpy(&bits, pair, sizeof bits);
  const Pairs all = _mm512_set1_epi32(bits);
  return {widen_first(all), widen_second(all)};
}

inline Floats dot_pairs(Floats sum, const Pair& a, Pairs b) {
  return multiply_add(a.second, widen_second(b), multiply_add(a.first, widen_first(b), sum));
}

inline Floats dot_two_pairs(Floats sum, const Pair& a, const Pair& c, Pairs b) {
  const Pair both{_mm512_mask_mov_ps(a.first, 0xFF00, c.first),
                  _mm512_mask_mov_ps(a.second, 0xFF00, c.second)};
  return dot_pairs(sum, both, b);
}

inline __m256i narrow(Floats values) {
  const __m512i bits = _mm512_castps_si512(values);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF));
  const Lanes is_nan = _mm512_cmp_ps_mask(values, values, _CMP_UNORD_Q);
  const __m512i rounded = _mm512_mask_mov_epi32(_mm512_add_epi32(bits, half), is_nan,
                                                _mm512_set1_epi32(0x7FC00000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

#endif

inline void store_bf16(bf16* target, Floats values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), narrow(values));
}
inline void store_bf16(bf16* target, Floats values, Lanes lanes) {
  _mm256_mask_storeu_epi16(target, lanes, narrow(values));
}

// Pairs (first[i], second[i]) of two lines, in an order that store_interleaved undoes: `low` has the
// values 0-3, 8-11, 16-19, 24-27, `high` the others.
inline void interleave(Pairs first, Pairs second, Pairs* low, Pairs* high) {
  *low = _mm512_unpacklo_epi16(first, second);
  *high = _mm512_unpackhi_epi16(first, second);
}

inline void store_interleaved(bf16* line, Floats low, Floats high) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i second =
      _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  store_bf16(line, _mm512_permutex2var_ps(low, first, high));
  store_bf16(line + kLanes, _mm512_permutex2var_ps(low, second, high));
}

}  // namespace stoker
