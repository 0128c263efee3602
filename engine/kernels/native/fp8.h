// Rounding to fp8 e4m3: a sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinity, one NaN.
// `vectors_*.h` widen it.
#pragma once

#include <cstring>

#include "vector_math.h"

namespace stoker {

// To the nearest, ties to even; what is larger than 448 becomes 448.
inline fp8 to_fp8(float value) {
  constexpr float kMax = 448.0f, kLeastNormal = 0.015625f;  // 2^-6
  constexpr std::uint32_t kBias = (127 - 7) << 3, kNaN = 0x7F;
  const auto bits_of = [](float number) {
    std::uint32_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
  };
  const float size = value < 0.0f ? -value : value;
  const float clamped = size > kMax ? kMax : size;
  const std::uint32_t bits = bits_of(clamped);
  const std::uint32_t normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - kBias;
  // One unit in the last place of 2^14 is the least fp8, 2^-9: adding it rounds.
  const std::uint32_t small = bits_of(clamped + 16384.0f) - bits_of(16384.0f);
  const std::uint32_t rounded = clamped < kLeastNormal ? small : normal;
  const std::uint32_t sign = (bits_of(value) >> 24) & 0x80;
  return static_cast<fp8>(sign | (value == value ? rounded : kNaN));
}

// Values as a cache of bf16 or of fp8 holds them.
inline void store_rounded(bf16* target, const Floats& values) { store_bf16(target, values); }
inline void store_rounded(fp8* target, const Floats& values) {
  float all[kLanes];
  store(all, values);
  for (int lane = 0; lane < kLanes; ++lane) target[lane] = to_fp8(all[lane]);
}

}  // namespace stoker
