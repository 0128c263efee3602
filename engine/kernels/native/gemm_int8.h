// One tile of a product of int8 rows with int8 weights: whole numbers within a group of inputs,
// floats from group to group, always in the same order.
#pragma once

#include "quantize.h"

namespace stoker {

// `Lines` cache lines per step are read ahead, see multiply_tile in gemm.h. Into the second cache
// level even for a stream: from there a core takes more lines at a time than from memory.
template <int Lines>
inline void read_ahead(std::uintptr_t* ahead) {
  for (int count = 0; count < Lines; ++count, *ahead += kCacheLine) {
    prefetch_second_level(reinterpret_cast<const void*>(*ahead));
  }
}

// The floats of a tile wait in memory from group to group: registers are for the whole numbers.
template <int Rows>
inline void clear_sums(float* sums) {
  for (int i = 0; i < Rows * kPanel; i += kLanes) store(sums + i, splat(0.0f));
}

// out[r][0..48] = sums of row r and one panel.
template <int Rows, int Lines>
void multiply_int8(QuantizedRows rows, const QuantizedMatrix& weight, std::int64_t panel,
                   std::uintptr_t ahead, float* out) {
  clear_sums<Rows>(out);
  const bf16* scales = weight.factors(panel);
  const std::uint8_t* line = weight.numbers(panel);
  const std::int8_t* quad = rows.values;
  const std::int64_t group_size = weight.group_size();
  for (std::int64_t group = 0; group < rows.num_groups; ++group, scales += kPanel) {
    const InputGroup* inputs = rows.groups + group;
    Quads dots[Rows][kVectors];
    for (int r = 0; r < Rows; ++r) {
      for (Quads& dot : dots[r]) dot = splat_sum(inputs[r * rows.num_groups].offset);
    }
    for (const std::int8_t* end = quad + group_size; quad < end; quad += kQuad, line += kQuadLine) {
      read_ahead<Lines>(&ahead);
      const Quads weights[kVectors] = {load_quads(line), load_quads(line + kCacheLine),
                                       load_quads(line + 2 * kCacheLine)};
      for (int r = 0; r < Rows; ++r) {
        const Quads input = broadcast_quad(quad + r * rows.stride);
        for (int vector = 0; vector < kVectors; ++vector) {
          dots[r][vector] = dot_quads(dots[r][vector], weights[vector], input);
        }
      }
    }
    for (int vector = 0; vector < kVectors; ++vector) {
      const Floats scale = load_bf16(scales + vector * kLanes);
      for (int r = 0; r < Rows; ++r) {
        const Floats factor = scale * splat(inputs[r * rows.num_groups].scale);
        float* sum = out + r * kPanel + vector * kLanes;
        store(sum, multiply_add(factor, sums_to_floats(dots[r][vector]), load(sum)));
      }
    }
  }
}

}  // namespace stoker
