// One tile of a product of int8 rows with int4 weights. A group's minimum counts once, with the sum
// of its inputs.
#pragma once

#include "gemm_int8.h"

namespace stoker {

// out[r][0..48] = sums of row r and one panel.
template <int Rows, int Lines>
void multiply_int4(QuantizedRows rows, const QuantizedMatrix& weight, std::int64_t panel,
                   std::uintptr_t ahead, float* out) {
  clear_sums<Rows>(out);
  const bf16* factors = weight.factors(panel);
  const std::uint8_t* line = weight.numbers(panel);
  const std::int8_t* quad = rows.values;
  for (std::int64_t group = 0; group < rows.num_groups; ++group, factors += 2 * kPanel) {
    const InputGroup* inputs = rows.groups + group;
    Quads dots[Rows][kVectors];
    for (auto& row_dots : dots) {
      for (Quads& dot : row_dots) dot = splat_sum(0);
    }
    for (const std::int8_t* end = quad + kSmallGroup; quad < end; line += kQuadLine) {
      read_ahead<Lines>(&ahead);
      const Quads both[kVectors] = {load_quads(line), load_quads(line + kCacheLine),
                                    load_quads(line + 2 * kCacheLine)};
      for (int half = 0; half < 2; ++half, quad += kQuad) {
        for (int r = 0; r < Rows; ++r) {
          const Quads input = broadcast_quad(quad + r * rows.stride);
          for (int vector = 0; vector < kVectors; ++vector) {
            const Quads bytes = both[vector];
            const Quads weights = half == 0 ? low_nibbles(bytes) : high_nibbles(bytes);
            dots[r][vector] = dot_quads(dots[r][vector], weights, input);
          }
        }
      }
    }
    for (int vector = 0; vector < kVectors; ++vector) {
      const Floats scale = load_bf16(factors + vector * kLanes);
      const Floats minimum = load_bf16(factors + kPanel + vector * kLanes);
      for (int r = 0; r < Rows; ++r) {
        const InputGroup& input = inputs[r * rows.num_groups];
        float* sum = out + r * kPanel + vector * kLanes;
        const Floats base = multiply_add(minimum, splat(input.scaled_sum), load(sum));
        const Floats factor = scale * splat(input.scale);
        store(sum, multiply_add(factor, sums_to_floats(dots[r][vector]), base));
      }
    }
  }
}

}  // namespace stoker
