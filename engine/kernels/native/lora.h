// Low-rank adapters beside the linears of a layer: sums += B (scale x (A x)), each row with the
// adapter of its own. A x is made row by row where the row's inputs are at hand, the rest in the
// epilogue of the product, so rows of several adapters and of none share one reading of the weights.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "arena.h"
#include "dot_bytes.h"
#include "gemm.h"

namespace stoker {

// One linear's matrices: bf16 A [rank, inputs] and B [outputs, rank], row-major, and float [rank];
// fused linears as their weights are. A rank of 0: the adapter leaves the linear as it is.
struct LoraTensors {
  const bf16 *a, *b;
  const float* scale;
  std::int64_t rank;
};

constexpr int kLoraLinears = 4;  // qkv, output, gate_up, down
constexpr int kRankStep = 4;     // ranks that share a reading of the inputs
constexpr int kLoraRows = 4;     // rows that share a reading of the matrices
constexpr int kLine = 2 * kLanes;  // bf16 values of a cache line

// The matrices of one linear as they are read: A in rows of whole lines, B as [panels of columns
// in the order of the packed weight][pairs of ranks][48][2], with the pairs that a panel's outputs
// have.
class LoraLinear {
 public:
  // Called twice, as Arena::take: to measure, then to copy.
  void take(const LoraTensors& source, std::int64_t inputs, const PackedMatrix& weight,
            Columns order, Arena& memory) {
    rank_ = source.rank;
    if (rank_ == 0) return;
    stride_ = round_up<std::int64_t>(inputs, kLine);
    const std::int64_t rows = padded_rank(), columns = weight.panels * kVectors * num_pairs();
    a_ = memory.take<bf16>(rows * stride_);
    b_ = memory.take<bf16>(columns * kLine);
    scale_ = memory.take<float>(rows);
    if (a_ == nullptr) return;  // it is only measured
    std::memset(a_, 0, rows * stride_ * sizeof(bf16));
    std::memset(b_, 0, columns * kLine * sizeof(bf16));
    std::memset(scale_, 0, rows * sizeof(float));
    for (std::int64_t k = 0; k < rank_; ++k) {
      std::memcpy(a_ + k * stride_, source.a + k * inputs, inputs * sizeof(bf16));
      scale_[k] = source.scale[k];
    }
    take_columns(source.b, weight, order);
  }

  // Values of `lows`: whole vectors.
  std::int64_t padded_rank() const { return round_up<std::int64_t>(rank_, kLanes); }

  std::int64_t num_blocks() const { return padded_rank() / kLanes; }

  // lows[r][k] = scale[k] x (A x)[k], rounded, of `count` rows and the 16 ranks of one block;
  // inputs are followed by zeros up to a whole line.
  void shrink(int count, const bf16* const* inputs, std::int64_t block, bf16* const* lows) const {
    switch (count) {
      case 1: return shrink_rows<1>(inputs, block, lows);
      case 2: return shrink_rows<2>(inputs, block, lows);
      case 3: return shrink_rows<3>(inputs, block, lows);
      default: return shrink_rows<kLoraRows>(inputs, block, lows);
    }
  }

  // Adds B lows to the sums of `count` rows and one panel.
  void expand(int count, const bf16* const* lows, std::int64_t panel, float* const* sums) const {
    if (rank_ == 0) return;
    switch (count) {
      case 1: return expand_rows<1>(lows, panel, sums);
      case 2: return expand_rows<2>(lows, panel, sums);
      case 3: return expand_rows<3>(lows, panel, sums);
      default: return expand_rows<kLoraRows>(lows, panel, sums);
    }
  }

  // Reads ahead what `expand` takes of a panel; what is behind the last one is left out.
  void prefetch_columns(std::int64_t panel) const {
    if (panel >= static_cast<std::int64_t>(pairs_.size())) return;
    const Span pairs = pairs_[panel];
    const bf16* lines = b_ + panel * kVectors * num_pairs() * kLine;
    for (std::int64_t line = pairs.begin * kVectors; line < pairs.end * kVectors; ++line) {
      prefetch_second_level(lines + line * kLine);
    }
  }

  // Reads ahead part number `part` of `count` of what `shrink` takes.
  void prefetch_rows(std::int64_t part, std::int64_t count) const {
    const Span lines = span_of(rank_ * stride_ / kLine, part, count);
    for (std::int64_t line = lines.begin; line < lines.end; ++line) {
      prefetch_second_level(a_ + line * kLine);
    }
  }

 private:
  std::int64_t num_pairs() const { return (rank_ + 1) / 2; }

  template <int Rows>
  void shrink_rows(const bf16* const* inputs, std::int64_t block, bf16* const* lows) const {
    float sums[Rows][kLanes];
    for (std::int64_t k = 0; k < kLanes; k += kRankStep) {
      const bf16* matrix = a_ + (block * kLanes + k) * stride_;
      Floats parts[Rows][kRankStep];
      for (auto& row : parts) {
        for (Floats& part : row) part = splat(0.0f);
      }
      for (std::int64_t i = 0; block * kLanes + k < rank_ && i < stride_; i += kLine) {
        Pairs values[kRankStep];
#pragma GCC unroll 4
        for (int n = 0; n < kRankStep; ++n) values[n] = load_line(matrix + n * stride_ + i);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
          const Pairs row = load_line(inputs[r] + i);
#pragma GCC unroll 4
          for (int n = 0; n < kRankStep; ++n) parts[r][n] = dot_lines(parts[r][n], row, values[n]);
        }
      }
      for (int r = 0; r < Rows; ++r) {
        for (int n = 0; n < kRankStep; ++n) sums[r][k + n] = sum_of(parts[r][n]);
      }
    }
    const Floats scale = load(scale_ + block * kLanes);
    for (int r = 0; r < Rows; ++r) store_bf16(lows[r] + block * kLanes, load(sums[r]) * scale);
  }

  // All vectors of a panel together: one reading of a row's pair serves them.
  template <int Rows>
  void expand_rows(const bf16* const* lows, std::int64_t panel, float* const* sums) const {
    const Span pairs = pairs_[panel];
    const bf16* lines = b_ + panel * kVectors * num_pairs() * kLine;
    Floats parts[Rows][kVectors];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) parts[r][v] = load(sums[r] + v * kLanes);
    }
    for (std::int64_t pair = pairs.begin; pair < pairs.end; ++pair) {
      const bf16* line = lines + pair * kVectors * kLine;
      const Pairs columns[kVectors] = {load_line(line), load_line(line + kLine),
                                       load_line(line + 2 * kLine)};
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const Pair low = broadcast_pair(lows[r] + 2 * pair);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) parts[r][v] = dot_pairs(parts[r][v], low, columns[v]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store(sums[r] + v * kLanes, parts[r][v]);
    }
  }

  void take_columns(const bf16* b, const PackedMatrix& weight, Columns order) {
    pairs_.assign(weight.panels, Span{0, 0});
    for (std::int64_t panel = 0; panel < weight.panels; ++panel) {
      Span& pairs = pairs_[panel];
      for (std::int64_t k = 0; k < rank_; ++k) {
        bf16* line = b_ + (panel * num_pairs() + k / 2) * kVectors * kLine + k % 2;
        bool is_used = false;
        for (int column = 0; column < kPanel; ++column) {
          const std::int64_t row = source_row(order, weight.outputs, panel, column);
          if (row >= 0) line[2 * column] = b[row * rank_ + k];
          is_used |= (line[2 * column] & 0x7FFF) != 0;
        }
        if (!is_used) continue;
        pairs = {pairs.end == 0 ? k / 2 : pairs.begin, k / 2 + 1};
      }
    }
  }

  std::int64_t rank_ = 0, stride_ = 0;
  bf16 *a_ = nullptr, *b_ = nullptr;
  float* scale_ = nullptr;
  std::vector<Span> pairs_;
};

// Up to kLoraRows rows of a step that have the same adapter.
struct LoraRows {
  std::int64_t slot;
  int count;
  std::int64_t rows[kLoraRows];
};

struct LoraAdapter {
  std::vector<std::array<LoraLinear, kLoraLinears>> layers;
  Arena memory;  // of the linears' matrices
};

}  // namespace stoker
