// Root-mean-square norms of float32 rows: as input of a product, as a result, or added to a row.
#pragma once

#include <cmath>
#include <cstdint>

#include "vector_math.h"

namespace stoker {

// store(index, lanes, values) takes the norm of `row`, 16 values at a time; `lanes` are in the row.
template <class Store>
void norm_row(const float* row, const float* weight, std::int64_t size, float eps,
              const Store& store) {
  __m512 squares = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const __m512 values = _mm512_maskz_loadu_ps(first_lanes(size - i), row + i);
    squares = _mm512_fmadd_ps(values, values, squares);
  }
  const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(size);
  const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(mean + eps));
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const __mmask16 lanes = first_lanes(size - i);
    const __m512 values = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, row + i), scale);
    store(i, lanes, _mm512_mul_ps(values, _mm512_maskz_loadu_ps(lanes, weight + i)));
  }
}

// `out` has `stride` values, a multiple of 16; those behind the row become zero.
inline void norm_to_bf16(const float* row, const float* weight, std::int64_t size, float eps,
                         std::int64_t stride, bf16* out) {
  norm_row(row, weight, size, eps,
           [out](std::int64_t i, __mmask16, __m512 values) { store_bf16(out + i, values); });
  for (std::int64_t i = round_up<std::int64_t>(size, kLanes); i < stride; i += kLanes) {
    store_bf16(out + i, _mm512_setzero_ps());
  }
}

inline void norm_to_float(const float* row, const float* weight, std::int64_t size, float eps,
                          float* out) {
  norm_row(row, weight, size, eps, [out](std::int64_t i, __mmask16 lanes, __m512 values) {
    _mm512_mask_storeu_ps(out + i, lanes, values);
  });
}

// target += norm of `row`.
inline void add_norm(const float* row, const float* weight, std::int64_t size, float eps,
                     float* target) {
  norm_row(row, weight, size, eps, [target](std::int64_t i, __mmask16 lanes, __m512 values) {
    const __m512 before = _mm512_maskz_loadu_ps(lanes, target + i);
    _mm512_mask_storeu_ps(target + i, lanes, _mm512_add_ps(before, values));
  });
}

}  // namespace stoker
