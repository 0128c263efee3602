// Matrix products of bf16 activations with weights packed once, accumulated in float32.
//
// A panel holds 48 output columns: for each pair of inputs, 48 columns x 2 values (three cache
// lines). Every sum runs over the inputs in order, whatever the number of rows or threads, so a row
// has the same result in any batch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "thread_pool.h"
#include "vector_math.h"

namespace stoker {

constexpr int kPanel = 48;
constexpr int kVectors = kPanel / kLanes;
constexpr int kTileRows = 8;                      // 8 x 3 accumulators of 32 registers
constexpr int kPairLine = 2 * kPanel;             // bf16 values of one pair in a panel
constexpr int kGated = kPanel / 2;                // outputs of a panel with gate and up columns
constexpr std::int64_t kPrefetchBytes = 3 * 1024;  // how far a stream of weights is read ahead

enum class Columns { kPlain, kGateUp };

struct PackedMatrix {
  bf16* data;   // [panels][pairs][48][2]
  float* bias;  // [panels x 48] in packed order, or null
  std::int64_t panels;
  std::int64_t pairs;
  std::int64_t outputs;  // columns of the result: for kGateUp the gated ones

  bf16* panel(std::int64_t index) const { return data + index * pairs * kPairLine; }
};

// Row of the plain [out, in] weight that column `column` of a panel holds, or -1 for padding.
//
// A gate_up panel has 24 gate and 24 up columns, placed so that the two meet lane by lane: gate
// 0..15, up 0..15, then gate 16..23 and up 16..23 in the halves of one vector.
inline std::int64_t source_row(Columns order, std::int64_t outputs, std::int64_t panel,
                               int column) {
  if (order == Columns::kPlain) {
    const std::int64_t row = panel * kPanel + column;
    return row < outputs ? row : -1;
  }
  const int vector = column / kLanes, lane = column % kLanes;
  const bool is_up = vector == 1 || (vector == 2 && lane >= 8);
  const std::int64_t row = panel * kGated + (vector == 2 ? 16 + lane % 8 : lane);
  if (row >= outputs) return -1;
  return is_up ? outputs + row : row;
}

// Packs one panel of a row-major weight [out, inputs], inputs >= 2. An odd last input gets a zero
// partner.
inline void pack_panel(const bf16* weight, std::int64_t inputs, Columns order,
                       std::int64_t outputs, std::int64_t panel, bf16* target) {
  const bf16* base = weight + source_row(order, outputs, panel, 0) * inputs;
  for (int vector = 0; vector < kVectors; ++vector) {
    alignas(kCacheLine) std::int32_t offsets[kLanes] = {};  // bytes from `base` to each column
    __mmask16 lanes = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::int64_t row = source_row(order, outputs, panel, vector * kLanes + lane);
      if (row < 0) continue;
      lanes = static_cast<__mmask16>(lanes | 1u << lane);
      offsets[lane] = static_cast<std::int32_t>(sizeof(bf16) * (weight + row * inputs - base));
    }
    const __m512i columns = _mm512_load_si512(offsets);
    const auto gather = [&](std::int64_t input) {
      return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), lanes, columns, base + input, 1);
    };
    bf16* line = target + vector * 2 * kLanes;
    std::int64_t input = 0;
    for (; input + 2 <= inputs; input += 2, line += kPairLine) {
      _mm512_storeu_si512(line, gather(input));
    }
    if (input < inputs) _mm512_storeu_si512(line, _mm512_srli_epi32(gather(input - 1), 16));
  }
}

// An epilogue takes the sums of one row and panel: operator()(row, panel, float sums[48]).

// Vector number `vector` of a row's sums, with the bias if there is one.
inline __m512 load_sums(const PackedMatrix& weight, std::int64_t panel, const float* sums,
                        int vector) {
  const __m512 plain = _mm512_load_ps(sums + vector * kLanes);
  if (weight.bias == nullptr) return plain;
  return _mm512_add_ps(plain, _mm512_loadu_ps(weight.bias + panel * kPanel + vector * kLanes));
}

struct StoreFloat {
  const PackedMatrix& weight;
  float* out;  // [rows, outputs]

  void operator()(std::int64_t row, std::int64_t panel, const float* sums) const {
    for (int vector = 0; vector < kVectors; ++vector) {
      const std::int64_t column = panel * kPanel + vector * kLanes;
      _mm512_mask_storeu_ps(out + row * weight.outputs + column,
                            first_lanes(weight.outputs - column),
                            load_sums(weight, panel, sums, vector));
    }
  }
};

struct AddToResidual {
  const PackedMatrix& weight;
  float* residual;  // [rows, outputs]

  void operator()(std::int64_t row, std::int64_t panel, const float* sums) const {
    for (int vector = 0; vector < kVectors; ++vector) {
      const std::int64_t column = panel * kPanel + vector * kLanes;
      const __mmask16 lanes = first_lanes(weight.outputs - column);
      float* target = residual + row * weight.outputs + column;
      const __m512 before = _mm512_maskz_loadu_ps(lanes, target);
      const __m512 sum = load_sums(weight, panel, sums, vector);
      _mm512_mask_storeu_ps(target, lanes, _mm512_add_ps(before, sum));
    }
  }
};

enum class Activation : std::int64_t { kSilu = 0, kGeluTanh = 1 };

struct GateToBf16 {
  const PackedMatrix& weight;
  Activation activation;
  bf16* out;  // [rows, stride]; padding columns of the last panel become zero
  std::int64_t stride;

  void operator()(std::int64_t row, std::int64_t panel, const float* sums) const {
    const __m512 gate = load_sums(weight, panel, sums, 0);
    const __m512 up = load_sums(weight, panel, sums, 1);
    const __m512 both = load_sums(weight, panel, sums, 2);  // 8 gates, then their 8 ups
    const __m512 upper = _mm512_shuffle_f32x4(both, both, 0b1110);
    bf16* target = out + row * stride + panel * kGated;
    const std::int64_t room = stride - panel * kGated;
    store(target, room, _mm512_mul_ps(activate(gate), up));
    store(target + kLanes, std::min<std::int64_t>(room, kGated) - kLanes,
          _mm512_mul_ps(activate(both), upper));
  }

  __m512 activate(__m512 gate) const {
    return activation == Activation::kSilu ? silu(gate) : gelu_tanh(gate);
  }

  static void store(bf16* target, std::int64_t count, __m512 values) {
    _mm256_mask_storeu_epi16(target, first_lanes(count), narrow(values));
  }
};

// out[r][0..48] = sums of row r and one panel. `Lines` cache lines from `ahead` on are prefetched
// per pair of inputs: three into the L1 cache for a stream, fewer into L2 for the panel to come.
template <int Rows, int Lines>
void multiply_tile(const bf16* rows, std::int64_t stride, const bf16* panel, std::int64_t pairs,
                   std::uintptr_t ahead, float* out) {
  __m512 sums[Rows][kVectors];
  for (auto& row_sums : sums) {
    for (__m512& sum : row_sums) sum = _mm512_setzero_ps();
  }
  for (std::int64_t pair = 0; pair < pairs; ++pair, panel += kPairLine) {
    for (int count = 0; count < Lines; ++count, ahead += kCacheLine) {
      if (Lines == kVectors) {
        _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
      } else {
        _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T1);
      }
    }
    const __m512i columns[kVectors] = {load_line(panel), load_line(panel + 32),
                                       load_line(panel + 64)};
    for (int r = 0; r < Rows; ++r) {
      const __m512i value = broadcast_pair(rows + r * stride + 2 * pair);
      for (int vector = 0; vector < kVectors; ++vector) {
        sums[r][vector] = dot_pairs(sums[r][vector], value, columns[vector]);
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int vector = 0; vector < kVectors; ++vector) {
      _mm512_store_ps(out + r * kPanel + vector * kLanes, sums[r][vector]);
    }
  }
}

template <int Lines, class... Arguments>
void multiply_rows(int count, Arguments... arguments) {
  switch (count) {
    case 1: return multiply_tile<1, Lines>(arguments...);
    case 2: return multiply_tile<2, Lines>(arguments...);
    case 3: return multiply_tile<3, Lines>(arguments...);
    case 4: return multiply_tile<4, Lines>(arguments...);
    case 5: return multiply_tile<5, Lines>(arguments...);
    case 6: return multiply_tile<6, Lines>(arguments...);
    case 7: return multiply_tile<7, Lines>(arguments...);
    default: return multiply_tile<kTileRows, Lines>(arguments...);
  }
}

// Rows that one visit of a panel covers: few panels and many rows still make work for all threads.
constexpr std::int64_t kRowBlock = 64;

inline std::int64_t num_blocks(std::int64_t rows) { return (rows + kRowBlock - 1) / kRowBlock; }

// Rows `rows` of one panel. A single tile of rows reads the panel as one stream, a little ahead; of
// several tiles, the first ones read ahead the panel `next`.
template <class Epilogue>
void multiply_panel(const bf16* activations, std::int64_t stride, Span rows,
                    const PackedMatrix& weight, std::int64_t panel, std::int64_t next,
                    const Epilogue& epilogue) {
  const std::int64_t tiles = (rows.end - rows.begin + kTileRows - 1) / kTileRows;
  const bool is_stream = tiles == 1;
  const int lines = is_stream ? kVectors : tiles == 2 ? 2 : 1;
  std::int64_t tiles_ahead = is_stream || next != panel ? (kVectors + lines - 1) / lines : 0;
  // An address, not a pointer: it may run over the end of the weights.
  auto ahead = reinterpret_cast<std::uintptr_t>(weight.panel(is_stream ? panel : next));
  if (is_stream) ahead += kPrefetchBytes;
  alignas(kCacheLine) float sums[kTileRows * kPanel];
  for (std::int64_t row = rows.begin; row < rows.end; row += kTileRows, --tiles_ahead) {
    const int count = static_cast<int>(std::min<std::int64_t>(kTileRows, rows.end - row));
    const bf16* source = activations + row * stride;
    const bf16* columns = weight.panel(panel);
    switch (tiles_ahead > 0 ? lines : 0) {
      case 3: multiply_rows<3>(count, source, stride, columns, weight.pairs, ahead, sums); break;
      case 2: multiply_rows<2>(count, source, stride, columns, weight.pairs, ahead, sums); break;
      case 1: multiply_rows<1>(count, source, stride, columns, weight.pairs, ahead, sums); break;
      default: multiply_rows<0>(count, source, stride, columns, weight.pairs, ahead, sums);
    }
    for (int r = 0; r < count; ++r) epilogue(row + r, panel, sums + r * kPanel);
    ahead += lines * weight.pairs * kCacheLine;
  }
}

// epilogue(activations x weight), shared by the team. `activations` is [num_rows, stride] bf16.
template <class Epilogue>
void multiply(Team& team, const bf16* activations, std::int64_t stride, std::int64_t num_rows,
              const PackedMatrix& weight, const Epilogue& epilogue) {
  const std::int64_t blocks = num_blocks(num_rows);
  team.share(weight.panels * blocks, [&](std::int64_t item, std::int64_t following) {
    const std::int64_t panel = item / blocks, first = item % blocks * kRowBlock;
    const Span rows{first, std::min(first + kRowBlock, num_rows)};
    const std::int64_t next = following < 0 ? panel : following / blocks;
    multiply_panel(activations, stride, rows, weight, panel, next, epilogue);
  });
}

// Reads the beginning of this thread's part of a product while the phase before it ends.
inline void prefetch_part(const Team& team, std::int64_t num_rows, const PackedMatrix& weight) {
  const std::int64_t blocks = num_blocks(num_rows);
  const Span items = span_of(weight.panels * blocks, team.thread(), team.size());
  if (items.begin == items.end) return;
  const auto* start = reinterpret_cast<const char*>(weight.panel(items.begin / blocks));
  for (std::int64_t offset = 0; offset < kPrefetchBytes; offset += kCacheLine) {
    _mm_prefetch(start + offset, _MM_HINT_T0);
  }
}

}  // namespace stoker
