// Vectors of 16 floats on any CPU, exp2 and activations on them, prefetching, aligned buffers.
#pragma once

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "vectors_avx512.h"
#else
#include "vectors_portable.h"
#endif

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace stoker {

constexpr int kCacheLine = 64;

// Without quantized weights and fp8 caches the code is compiled in half the time.
#ifdef STOKER_BF16_ONLY
constexpr bool kHasAllFormats = false;
#else
constexpr bool kHasAllFormats = true;
#endif

template <class T>
constexpr T round_up(T value, T multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// 2^x to about one unit in the last place; 2^0 is exactly 1, and large |x| give 0 or infinity.
inline Floats exp2_of(Floats x) {
  x = in_exponent_range(x);
  const Floats whole = round_to_whole(x);
  const Floats rest = x - whole;           // -0.5 .. 0.5, exact
  Floats power = splat(1.5403530e-4f);  // ln(2)^k / k!, k = 6 .. 0
  power = multiply_add(power, rest, splat(1.3333558e-3f));
  power = multiply_add(power, rest, splat(9.6181291e-3f));
  power = multiply_add(power, rest, splat(5.5504109e-2f));
  power = multiply_add(power, rest, splat(2.4022651e-1f));
  power = multiply_add(power, rest, splat(6.9314718e-1f));
  power = multiply_add(power, rest, splat(1.0f));
  return scale_by_power(power, whole);
}

// The same to 3 millionths, for what is rounded to bf16 next.
inline Floats rough_exp2_of(Floats x) {
  x = in_exponent_range(x);
  const Floats whole = round_to_whole(x);
  const Floats rest = x - whole;
  Floats power = splat(9.58285299e-3f);  // the least relative error of all with 1 at 0
  power = multiply_add(power, rest, splat(5.59064247e-2f));
  power = multiply_add(power, rest, splat(2.40240986e-1f));
  power = multiply_add(power, rest, splat(6.93124193e-1f));
  power = multiply_add(power, rest, splat(1.0f));
  return scale_by_power(power, whole);
}

constexpr float kLog2E = 1.44269504f;

inline Floats silu(Floats x) {
  const Floats decay = exp2_of(x * splat(-kLog2E));
  return x / (decay + splat(1.0f));
}

// The approximation by tanh: x / 2 * (1 + tanh(u)) = x / (1 + e^-2u) with
// u = sqrt(2 / pi) * (x + 0.044715 x^3).
inline Floats gelu_tanh(Floats x) {
  const Floats cubic = multiply_add(x * x, splat(0.044715f), splat(1.0f));
  const Floats u = x * cubic * splat(0.79788456f);
  const Floats decay = exp2_of(u * splat(-2.0f * kLog2E));
  return x / (decay + splat(1.0f));
}

// cap x tanh(x / cap).
inline Floats capped(Floats x, float cap) {
  const Floats growth = exp2_of(x * splat(2.0f * kLog2E / cap));
  return splat(cap) - splat(2.0f * cap) / (growth + splat(1.0f));
}

// gate x sigmoid(1.702 gate) x (up + 1) of values that are at most 7, ups also at least -7.
inline Floats clamped_swiglu(Floats gate, Floats up) {
  const Floats zero = splat(0.0f), most = splat(7.0f);
  gate = zero - larger(zero - gate, zero - most);
  up = zero - larger(zero - larger(up, zero - most), zero - most);
  const Floats decay = exp2_of(gate * splat(-1.702f * kLog2E));
  return gate / (decay + splat(1.0f)) * (up + splat(1.0f));
}

// Reads a line ahead: into the first cache level, or only into the second. GCC takes a call of a
// function that only does this for one without effect, and drops it unless it is inlined first.
[[gnu::always_inline]] inline void prefetch_near(const void* address) {
  __builtin_prefetch(address, 0, 3);
}
[[gnu::always_inline]] inline void prefetch_second_level(const void* address) {
  __builtin_prefetch(address, 0, 2);
}

// A pause of a thread that waits in a loop.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
  asm volatile("yield");
#endif
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
