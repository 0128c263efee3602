// Root-mean-square norms of float32 rows: as input of a product, as a result, or added to a row.
#pragma once

#include <cmath>
#include <cstdint>

#include "vector_math.h"

namespace stoker {

// store_lanes(index, lanes, values) takes the norm of `row`, 16 values at a time; `lanes` are in the row.
template <class Store>
void norm_row(const float* row, const float* weight, std::int64_t size, float eps,
              const Store& store_lanes) {
  Floats squares = splat(0.0f);
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const Floats values = load(row + i, first_lanes(size - i));
    squares = multiply_add(values, values, squares);
  }
  const float mean = sum_of(squares) / static_cast<float>(size);
  const Floats scale = splat(1.0f / std::sqrt(mean + eps));
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const Lanes lanes = first_lanes(size - i);
    const Floats values = load(row + i, lanes) * scale;
    store_lanes(i, lanes, values * load(weight + i, lanes));
  }
}

// `out` has `stride` values, a multiple of 16; those behind the row become zero.
inline void norm_to_bf16(const float* row, const float* weight, std::int64_t size, float eps,
                         std::int64_t stride, bf16* out) {
  norm_row(row, weight, size, eps,
           [out](std::int64_t i, Lanes, Floats values) { store_bf16(out + i, values); });
  for (std::int64_t i = round_up<std::int64_t>(size, kLanes); i < stride; i += kLanes) {
    store_bf16(out + i, splat(0.0f));
  }
}

inline void norm_to_float(const float* row, const float* weight, std::int64_t size, float eps,
                          float* out) {
  norm_row(row, weight, size, eps, [out](std::int64_t i, Lanes lanes, Floats values) {
    store(out + i, values, lanes);
  });
}

// target += norm of `row`.
inline void add_norm(const float* row, const float* weight, std::int64_t size, float eps,
                     float* target) {
  norm_row(row, weight, size, eps, [target](std::int64_t i, Lanes lanes, Floats values) {
    store(target + i, load(target + i, lanes) + values, lanes);
  });
}

}  // namespace stoker
