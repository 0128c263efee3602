// Vectors of 16 floats in parts of 8 (AVX2) or 4 (SSE2, NEON, anything): vector extensions of GCC
// and Clang, without a CPU's own functions. The names are those of `vectors_avx512.h`.
#pragma once

#include <cstdint>
#include <cstring>

namespace stoker {

using bf16 = std::uint16_t;  // the bits of a bfloat16: the upper half of a float32
using fp8 = std::uint8_t;    // the bits of a float8 e4m3, see fp8.h

constexpr int kLanes = 16;

// Tiles are as large as 16 registers allow; see vectors_avx512.h.
#if defined(__AVX2__)
constexpr const char* kInstructions = "AVX2";
constexpr int kPartLanes = 8;
constexpr int kTileRows = 2;
constexpr int kPassRows = 3;
constexpr int kScoreGroups = 2;
#else
constexpr const char* kInstructions = "any CPU";
constexpr int kPartLanes = 4;
constexpr int kTileRows = 1;
constexpr int kPassRows = 1;
constexpr int kScoreGroups = 2;
#endif
constexpr int kValueChunks = 1;
constexpr bool kKeepsColumns = false;
constexpr int kParts = kLanes / kPartLanes;

typedef float FloatPart __attribute__((vector_size(4 * kPartLanes)));
typedef std::int32_t IntPart __attribute__((vector_size(4 * kPartLanes)));
typedef std::uint32_t BitPart __attribute__((vector_size(4 * kPartLanes)));
typedef std::uint16_t HalfPart __attribute__((vector_size(2 * kPartLanes)));
typedef std::int16_t Bf16Part __attribute__((vector_size(4 * kPartLanes)));
typedef std::int8_t Fp8Part __attribute__((vector_size(2 * kPartLanes)));

// Parts in memory, of any alignment. Compilers copy a whole Floats through the stack instead.
typedef FloatPart FloatsInMemory __attribute__((aligned(alignof(float)), may_alias));
typedef BitPart PairsInMemory __attribute__((aligned(alignof(bf16)), may_alias));

struct Floats {
  FloatPart parts[kParts];
};

struct Pairs {  // 16 pairs of bf16
  BitPart parts[kParts];
};

struct Pair {  // one pair in all lanes, widened
  FloatPart first, second;
};

struct Lanes {  // begin..end
  std::int32_t begin, end;

  bool all() const { return begin == 0 && end == kLanes; }
  std::size_t count() const { return begin < end ? end - begin : 0; }
};

inline std::int32_t clamp_lane(std::int64_t lane) {
  return static_cast<std::int32_t>(lane < 0 ? 0 : lane > kLanes ? kLanes : lane);
}
inline Lanes first_lanes(std::int64_t count) { return {0, clamp_lane(count)}; }
inline Lanes lanes_between(std::int64_t begin, std::int64_t end) {
  return {clamp_lane(begin), clamp_lane(end)};
}

// function(part number) for each part.
template <class Function>
inline Floats make_floats(const Function& function) {
  Floats result;
  for (int part = 0; part < kParts; ++part) result.parts[part] = function(part);
  return result;
}

inline Floats operator+(const Floats& a, const Floats& b) {
  return make_floats([&](int part) { return a.parts[part] + b.parts[part]; });
}
inline Floats operator-(const Floats& a, const Floats& b) {
  return make_floats([&](int part) { return a.parts[part] - b.parts[part]; });
}
inline Floats operator*(const Floats& a, const Floats& b) {
  return make_floats([&](int part) { return a.parts[part] * b.parts[part]; });
}
inline Floats operator/(const Floats& a, const Floats& b) {
  return make_floats([&](int part) { return a.parts[part] / b.parts[part]; });
}

inline Floats splat(float value) {
  return make_floats([&](int) { return FloatPart{} + value; });
}

inline Floats load(const float* source) {
  const FloatsInMemory* parts = reinterpret_cast<const FloatsInMemory*>(source);
  return make_floats([&](int part) -> FloatPart { return parts[part]; });
}
inline Floats load(const float* source, Lanes lanes) {
  if (lanes.all()) return load(source);
  float values[kLanes] = {};
  std::memcpy(values + lanes.begin, source + lanes.begin, lanes.count() * sizeof(float));
  return load(values);
}
inline void store(float* target, const Floats& values) {
  FloatsInMemory* parts = reinterpret_cast<FloatsInMemory*>(target);
  for (int part = 0; part < kParts; ++part) parts[part] = values.parts[part];
}
inline void store(float* target, const Floats& values, Lanes lanes) {
  if (lanes.all()) return store(target, values);
  float all[kLanes];
  store(all, values);
  std::memcpy(target + lanes.begin, all + lanes.begin, lanes.count() * sizeof(float));
}

// Compilers make one instruction of it where the CPU has one.
inline Floats multiply_add(const Floats& a, const Floats& b, const Floats& c) {
  return make_floats([&](int part) { return a.parts[part] * b.parts[part] + c.parts[part]; });
}
inline Floats multiply_subtract(const Floats& a, const Floats& b, const Floats& c) {
  return make_floats([&](int part) { return a.parts[part] * b.parts[part] - c.parts[part]; });
}

inline FloatPart choose(IntPart where, FloatPart yes, FloatPart no) {
  return (FloatPart)(((IntPart)yes & where) | ((IntPart)no & ~where));
}
inline Bf16Part smaller(Bf16Part a, Bf16Part b) { return a < b ? a : b; }
inline IntPart is_in(Lanes lanes, int part) {
  IntPart number;
  for (int lane = 0; lane < kPartLanes; ++lane) number[lane] = part * kPartLanes + lane;
  return (number >= lanes.begin) & (number < lanes.end);
}
inline FloatPart larger(FloatPart a, FloatPart b) { return choose(a > b, a, b); }

inline Floats larger(const Floats& a, const Floats& b) {
  return make_floats([&](int part) { return larger(a.parts[part], b.parts[part]); });
}
inline Floats larger(const Floats& a, const Floats& b, Lanes lanes) {
  return make_floats([&](int part) {
    return choose(is_in(lanes, part), larger(a.parts[part], b.parts[part]), a.parts[part]);
  });
}
inline Floats only(const Floats& values, Lanes lanes) {
  if (lanes.all()) return values;
  return make_floats([&](int part) {
    return choose(is_in(lanes, part), values.parts[part], FloatPart{});
  });
}
inline float sum_of(const Floats& values) {
  FloatPart sums = values.parts[0];
  for (int part = 1; part < kParts; ++part) sums += values.parts[part];
  float total = 0.0f;
  for (int lane = 0; lane < kPartLanes; ++lane) total += sums[lane];
  return total;
}
inline float largest_of(const Floats& values) {
  FloatPart most = values.parts[0];
  for (int part = 1; part < kParts; ++part) most = larger(most, values.parts[part]);
  float result = most[0];
  for (int lane = 1; lane < kPartLanes; ++lane) result = most[lane] > result ? most[lane] : result;
  return result;
}

inline Floats upper_half(const Floats& values) {
  Floats result = values;
  for (int part = 0; part < kParts / 2; ++part) result.parts[part] = values.parts[part + kParts / 2];
  return result;
}

// For exp2_of: 2^-127 is taken for 0 and 2^128 is infinity; NaN stays.
inline Floats in_exponent_range(const Floats& x) {
  return make_floats([&](int part) {
    const FloatPart value = x.parts[part], low = FloatPart{} - 127.0f, high = FloatPart{} + 128.0f;
    return choose(value < low, low, choose(value > high, high, value));
  });
}
inline Floats round_to_whole(const Floats& x) {
  constexpr float kUlpIsOne = 12582912.0f;  // 1.5 x 2^23: adding it rounds, to the nearest even
  return make_floats([&](int part) { return (x.parts[part] + kUlpIsOne) - kUlpIsOne; });
}
inline Floats scale_by_power(const Floats& values, const Floats& whole) {
  return make_floats([&](int part) {
    const IntPart exponent = __builtin_convertvector(whole.parts[part], IntPart) + 127;
    return values.parts[part] * (FloatPart)((BitPart)exponent << 23);
  });
}

inline Pairs load_line(const bf16* line) {
  const PairsInMemory* parts = reinterpret_cast<const PairsInMemory*>(line);
  Pairs result;
  for (int part = 0; part < kParts; ++part) result.parts[part] = parts[part];
  return result;
}
inline void store_line(bf16* line, const Pairs& pairs) {
  PairsInMemory* parts = reinterpret_cast<PairsInMemory*>(line);
  for (int part = 0; part < kParts; ++part) parts[part] = pairs.parts[part];
}

// Half a line of fp8 becomes a line of bf16. A bf16's bits grow evenly from one power of 2 to the
// next, and half as fast after it; an fp8's below 2^-6 grow evenly throughout. So one line for each
// power has the exact bits, and the lowest line is the one that holds.
inline Pairs load_line(const fp8* half) {
  Pairs result;
  for (int part = 0; part < kParts; ++part) {
    Fp8Part bytes;
    std::memcpy(&bytes, half + part * sizeof bytes, sizeof bytes);
    const Bf16Part values = __builtin_convertvector(bytes, Bf16Part);
    const Bf16Part size = values & 0x7F;
    Bf16Part bits = ((127 - 7) << 7) + (size << 4);         // normal numbers
    bits = smaller(bits, ((127 - 8) << 7) + (size << 5));   // 4 to 8 x 2^-9
    bits = smaller(bits, ((127 - 9) << 7) + (size << 6));   // 2 to 4 x 2^-9
    bits = smaller(bits, ((127 - 10) << 7) + (size << 7));  // 1 to 2 x 2^-9
    bits &= (Bf16Part)(size > 0);
    bits |= (Bf16Part)(size == 0x7F);  // NaN
    result.parts[part] = (BitPart)(bits | (values & INT16_MIN));
  }
  return result;
}

inline Pairs gather_pairs(const bf16* base, const std::int32_t* offsets) {
  std::uint32_t words[kLanes] = {};
  for (int lane = 0; lane < kLanes; ++lane) {
    if (offsets[lane] < 0) continue;
    std::memcpy(words + lane, reinterpret_cast<const char*>(base) + offsets[lane], sizeof *words);
  }
  Pairs result;
  std::memcpy(&result, words, sizeof result);
  return result;
}
inline Pairs second_values(const Pairs& pairs) {
  Pairs result;
  for (int part = 0; part < kParts; ++part) result.parts[part] = pairs.parts[part] >> 16;
  return result;
}

inline FloatPart widen_first(BitPart pairs) { return (FloatPart)(pairs << 16); }
inline FloatPart widen_second(BitPart pairs) { return (FloatPart)(pairs & 0xFFFF0000u); }

inline Pair broadcast_pair(const bf16* pair) {
  std::uint32_t bits;
  std::memcpy(&bits, pair, sizeof bits);
  const BitPart all = BitPart{} + bits;
  return {widen_first(all), widen_second(all)};
}

inline Floats dot_pairs(const Floats& sum, const Pair& a, const Pairs& b) {
  return make_floats([&](int part) {
    const BitPart pairs = b.parts[part];
    const FloatPart half = a.first * widen_first(pairs) + sum.parts[part];
    return a.second * widen_second(pairs) + half;
  });
}

// The same, with `c` instead of `a` for the last 8 pairs of b.
inline Floats dot_two_pairs(const Floats& sum, const Pair& a, const Pair& c, const Pairs& b) {
  return make_floats([&](int part) {
    const Pair& own = part < kParts / 2 ? a : c;
    const BitPart pairs = b.parts[part];
    const FloatPart half = own.first * widen_first(pairs) + sum.parts[part];
    return own.second * widen_second(pairs) + half;
  });
}

// Rounded to the nearest bf16, ties to even, in the upper half of each word.
inline BitPart rounded(FloatPart values) {
  const BitPart bits = (BitPart)values;
  const BitPart nearest = bits + 0x7FFF + ((bits >> 16) & 1);
  const BitPart is_number = (BitPart)(values == values);
  return (nearest & is_number) | (0x7FC00000u & ~is_number);
}

inline void store_bf16(bf16* target, const Floats& values) {
  for (int part = 0; part < kParts; ++part) {
    const HalfPart half = __builtin_convertvector(rounded(values.parts[part]) >> 16, HalfPart);
    std::memcpy(target + part * kPartLanes, &half, sizeof half);
  }
}
inline void store_bf16(bf16* target, const Floats& values, Lanes lanes) {
  bf16 all[kLanes];
  store_bf16(all, values);
  std::memcpy(target + lanes.begin, all + lanes.begin, lanes.count() * sizeof(bf16));
}

// Here `low` has the even values of the two lines and `high` the odd ones.
inline void interleave(const Pairs& first, const Pairs& second, Pairs* low, Pairs* high) {
  for (int part = 0; part < kParts; ++part) {
    low->parts[part] = (first.parts[part] & 0xFFFFu) | (second.parts[part] << 16);
    high->parts[part] = (first.parts[part] >> 16) | (second.parts[part] & 0xFFFF0000u);
  }
}

inline void store_interleaved(bf16* line, const Floats& low, const Floats& high) {
  for (int part = 0; part < kParts; ++part) {
    const BitPart words =
        (rounded(low.parts[part]) >> 16) | (rounded(high.parts[part]) & 0xFFFF0000u);
    std::memcpy(line + 2 * part * kPartLanes, &words, sizeof words);
  }
}

}  // namespace stoker
