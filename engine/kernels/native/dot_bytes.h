// Vectors of bytes: sums of products that are the same integers on every CPU, and the conversions
// around them.
//
// A CPU with VNNI wants int8 weights unsigned (plus 128), others get them signed: packed weights
// are for one kind of build only.
#pragma once

#include <cstdint>
#include <cstring>

#include "vector_math.h"

namespace stoker {

constexpr int kQuad = 4;  // bytes that a lane multiplies and sums at once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

// 4 bytes in each of 16 lanes, or 16 sums of their products. Not __m512i, whose lanes have 64 bits:
// GCC would copy registers to get from one to the other.
typedef std::int32_t Quads __attribute__((vector_size(kCacheLine)));

inline Quads load_quads(const std::uint8_t* source) {
  return (Quads)_mm512_loadu_si512(source);
}
inline Quads splat_sum(std::int32_t value) { return Quads{} + value; }
inline Quads low_nibbles(Quads bytes) { return bytes & 0x0F0F0F0F; }
inline Quads high_nibbles(Quads bytes) { return low_nibbles(bytes >> 4); }
inline Floats sums_to_floats(Quads sums) { return _mm512_cvtepi32_ps((__m512i)sums); }

inline Floats widen(__m256i values) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}
inline Floats load_bf16(const bf16* source) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
}
inline Floats load_bf16(const bf16* source, Lanes lanes) {  // zero in other lanes
  return widen(_mm256_maskz_loadu_epi16(lanes, source));
}

// Keeps a product from being fused with a sum that follows, which would round once, not twice.
inline Floats unfused(Floats values) { return values; }

// `values` are whole numbers that fit.
inline void store_bytes(std::int8_t* target, Floats values) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(target),
                   _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(values)));
}

#ifdef __AVX512VNNI__

constexpr int kWeightOffset = 128;

// sum[i] += the products of the 4 weights and 4 inputs in lane i. Inputs are -127..127; weights are
// -127..127 plus kWeightOffset, or 0..15.
inline Quads dot_quads(Quads sum, Quads weights, Quads inputs) {
  return (Quads)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)weights, (__m512i)inputs);
}

#else

constexpr int kWeightOffset = 0;

// The even and the odd bytes as signed 16-bit numbers; two products of 127 x 127 fit into one.
inline __m512i even_bytes(Quads bytes) {
  return _mm512_srai_epi16(_mm512_slli_epi16((__m512i)bytes, 8), 8);
}
inline __m512i odd_bytes(Quads bytes) { return _mm512_srai_epi16((__m512i)bytes, 8); }

inline Quads dot_quads(Quads sum, Quads weights, Quads inputs) {
  const __m512i even = _mm512_mullo_epi16(even_bytes(weights), even_bytes(inputs));
  const __m512i odd = _mm512_mullo_epi16(odd_bytes(weights), odd_bytes(inputs));
  const __m512i pairs = _mm512_add_epi16(even, odd);
  return sum + (Quads)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
}

#endif

#else

typedef std::int16_t ShortPart __attribute__((vector_size(4 * kPartLanes)));
typedef std::uint16_t UShortPart __attribute__((vector_size(4 * kPartLanes)));
typedef std::int8_t BytePart __attribute__((vector_size(kPartLanes)));

struct Quads {
  BitPart parts[kParts];
};

template <class Function>
inline Quads make_quads(const Function& function) {
  Quads result;
  for (int part = 0; part < kParts; ++part) result.parts[part] = function(part);
  return result;
}

inline Quads load_quads(const std::uint8_t* source) {
  Quads result;
  std::memcpy(&result, source, sizeof result);
  return result;
}
inline Quads splat_sum(std::int32_t value) {
  return make_quads([&](int) { return BitPart{} + static_cast<std::uint32_t>(value); });
}
inline Quads low_nibbles(const Quads& bytes) {
  return make_quads([&](int part) { return bytes.parts[part] & 0x0F0F0F0Fu; });
}
inline Quads high_nibbles(const Quads& bytes) {
  return make_quads([&](int part) { return (bytes.parts[part] >> 4) & 0x0F0F0F0Fu; });
}
inline Floats sums_to_floats(const Quads& sums) {
  return make_floats(
      [&](int part) { return __builtin_convertvector((IntPart)sums.parts[part], FloatPart); });
}

inline Floats load_bf16(const bf16* source) {
  return make_floats([&](int part) {
    HalfPart half;
    std::memcpy(&half, source + part * kPartLanes, sizeof half);
    return (FloatPart)(__builtin_convertvector(half, BitPart) << 16);
  });
}
inline Floats load_bf16(const bf16* source, Lanes lanes) {
  bf16 values[kLanes] = {};
  std::memcpy(values + lanes.begin, source + lanes.begin, lanes.count() * sizeof(bf16));
  return load_bf16(values);
}

inline Floats unfused(Floats values) {  // rounding to whole numbers adds and subtracts
  for (FloatPart& part : values.parts) asm("" : "+m"(part));
  return values;
}

inline void store_bytes(std::int8_t* target, const Floats& values) {
  for (int part = 0; part < kParts; ++part) {
    const IntPart whole = __builtin_convertvector(values.parts[part], IntPart);
    const BytePart bytes = __builtin_convertvector(whole, BytePart);
    std::memcpy(target + part * kPartLanes, &bytes, sizeof bytes);
  }
}

constexpr int kWeightOffset = 0;

inline ShortPart even_bytes(BitPart bytes) { return (ShortPart)((UShortPart)bytes << 8) >> 8; }
inline ShortPart odd_bytes(BitPart bytes) { return (ShortPart)bytes >> 8; }

// See the other dot_quads: two products of at most 127 x 127 fit into 16 bits.
inline Quads dot_quads(const Quads& sum, const Quads& weights, const Quads& inputs) {
  return make_quads([&](int part) {
    const BitPart weight = weights.parts[part], input = inputs.parts[part];
    const ShortPart pairs =
        even_bytes(weight) * even_bytes(input) + odd_bytes(weight) * odd_bytes(input);
    const IntPart first = (IntPart)((BitPart)pairs << 16) >> 16, second = (IntPart)pairs >> 16;
    return sum.parts[part] + (BitPart)(first + second);
  });
}

#endif

inline Quads broadcast_quad(const std::int8_t* quad) {
  std::int32_t bits;
  std::memcpy(&bits, quad, sizeof bits);
  return splat_sum(bits);
}

}  // namespace stoker
