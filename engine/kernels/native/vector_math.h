// bf16 and float32 vectors of 16 lanes: conversion, exp2, masks, aligned buffers.
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

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512BF16__)
#error "these kernels need a CPU with AVX512-BF16"
#endif

namespace stoker {

using bf16 = std::uint16_t;  // the bits of a bfloat16: the upper half of a float32

constexpr int kLanes = 16;
constexpr int kCacheLine = 64;

template <class T>
constexpr T round_up(T value, T multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// A mask of the first `count` lanes; any count is fine.
inline __mmask16 first_lanes(std::int64_t count) {
  if (count >= kLanes) return 0xFFFF;
  return count <= 0 ? 0 : static_cast<__mmask16>((1u << count) - 1u);
}

inline __m512 widen(__m256i values) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

// Rounds to the nearest bf16, ties to even.
inline __m256i narrow(__m512 values) { return (__m256i)_mm512_cvtneps_pbh(values); }

// sum += a[2i] * b[2i] + a[2i + 1] * b[2i + 1] for the 16 pairs i of bf16 values.
inline __m512 dot_pairs(__m512 sum, __m512i a, __m512i b) {
  return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
}

inline __m512i broadcast_pair(const bf16* pair) {
  std::int32_t bits;
  std::memcpy(&bits, pair, sizeof bits);
  return _mm512_set1_epi32(bits);
}

inline __m512i load_line(const bf16* line) { return _mm512_loadu_si512(line); }

inline void store_bf16(bf16* target, __m512 values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), narrow(values));
}

// 2^x to about one unit in the last place; 2^0 is exactly 1, and large |x| give 0 or infinity.
inline __m512 exp2_ps(__m512 x) {
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 rest = _mm512_sub_ps(x, whole);  // -0.5 .. 0.5, exact
  __m512 power = _mm512_set1_ps(1.5403530e-4f);  // ln(2)^k / k!, k = 6 .. 0
  power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(1.3333558e-3f));
  power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(9.6181291e-3f));
  power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(5.5504109e-2f));
  power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(2.4022651e-1f));
  power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(6.9314718e-1f));
  power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(power, whole);
}

constexpr float kLog2E = 1.44269504f;

inline __m512 silu(__m512 x) {
  const __m512 decay = exp2_ps(_mm512_mul_ps(x, _mm512_set1_ps(-kLog2E)));
  return _mm512_div_ps(x, _mm512_add_ps(decay, _mm512_set1_ps(1.0f)));
}

// The approximation by tanh: x / 2 * (1 + tanh(u)) = x / (1 + e^-2u) with
// u = sqrt(2 / pi) * (x + 0.044715 x^3).
inline __m512 gelu_tanh(__m512 x) {
  const __m512 cubic = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(0.044715f),
                                       _mm512_set1_ps(1.0f));
  const __m512 u = _mm512_mul_ps(_mm512_mul_ps(x, cubic), _mm512_set1_ps(0.79788456f));
  const __m512 decay = exp2_ps(_mm512_mul_ps(u, _mm512_set1_ps(-2.0f * kLog2E)));
  return _mm512_div_ps(x, _mm512_add_ps(decay, _mm512_set1_ps(1.0f)));
}

// Memory on cache lines that only ever grows; growing forgets the contents.
template <class T>
class Buffer {
 public:
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }

  void reserve(std::size_t count) {
    if (count <= count_) return;
    data_.reset();
    count_ = 0;
    const std::size_t bytes = round_up<std::size_t>(count * sizeof(T), kCacheLine);
    T* fresh = static_cast<T*>(std::aligned_alloc(kCacheLine, bytes));
    if (fresh == nullptr) throw std::bad_alloc();
    data_.reset(fresh);
    count_ = count;
  }

 private:
  struct Free {
    void operator()(T* data) const { std::free(data); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t count_ = 0;
};

}  // namespace stoker
