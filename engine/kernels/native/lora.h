// Low-rank adapters beside the linears of a layer: sums += B (scale x (A x)), each row with the
// adapter of its own. A x is made before the product, the rest in its epilogue, so rows of several
// adapters and of none share one reading of the weights.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <vector>

#include "arena.h"
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
constexpr int kLoraRows = 4;     // rows that share a reading of the matrices
constexpr int kLine = 2 * kLanes;  // bf16 values of a cache line

// The matrices of one linear as they are read: A as [blocks of 16 ranks][pairs of inputs][16][2],
// B as [panels of columns in the order of the packed weight][pairs of ranks][48][2]. A panel has
// only the pairs of its outputs: of gate_up, whose gates and ups have ranks of their own, the pairs
// of both side by side.
class LoraLinear {
 public:
  // Called twice, as Arena::take: to measure, then to copy.
  void take(const LoraTensors& source, std::int64_t inputs, const PackedMatrix& weight,
            Columns order, Arena& memory) {
    rank_ = source.rank;
    if (rank_ == 0) return;
    order_ = order;
    num_inputs_ = (inputs + 1) / 2;
    find_pairs(source.b, weight);
    const std::int64_t b_lines = panels_.back().line + panels_.back().count * kVectors;
    a_ = memory.take<bf16>(a_lines() * kLine);
    b_ = memory.take<bf16>(b_lines * kLine);
    scale_ = memory.take<float>(padded_rank());
    if (a_ == nullptr) return;  // it is only measured
    std::memset(a_, 0, a_lines() * kLine * sizeof(bf16));
    std::memset(b_, 0, b_lines * kLine * sizeof(bf16));
    std::memset(scale_, 0, padded_rank() * sizeof(float));
    std::memcpy(scale_, source.scale, rank_ * sizeof(float));
    take_rows(source.a, inputs);
    take_columns(source.b, weight);
  }

  // Values of `lows`: whole vectors.
  std::int64_t padded_rank() const { return round_up<std::int64_t>(rank_, kLanes); }

  std::int64_t num_blocks() const { return padded_rank() / kLanes; }

  // lows[r][k] = scale[k] x (A x)[k], rounded, of `count` rows and the 16 ranks of one block; an odd
  // last input is followed by a zero.
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
    if (panel >= static_cast<std::int64_t>(panels_.size())) return;
    const bf16* lines = b_ + panels_[panel].line * kLine;
    for (std::int64_t line = 0; line < panels_[panel].count * kVectors; ++line) {
      prefetch_second_level(lines + line * kLine);
    }
  }

  // Reads ahead part number `part` of `count` of what `shrink` takes.
  void prefetch_rows(std::int64_t part, std::int64_t count) const {
    const Span lines = span_of(a_lines(), part, count);
    for (std::int64_t line = lines.begin; line < lines.end; ++line) {
      prefetch_second_level(a_ + line * kLine);
    }
  }

 private:
  // The pairs of ranks of one panel: `count` from `first` on, of ups from `first_up` on. Its lines of
  // B start at `line`.
  struct Panel {
    std::int64_t first, first_up, count, line;
  };

  std::int64_t num_pairs() const { return (rank_ + 1) / 2; }
  std::int64_t a_lines() const { return num_blocks() * num_inputs_; }

  template <int Rows>
  void shrink_rows(const bf16* const* inputs, std::int64_t block, bf16* const* lows) const {
    const bf16* line = a_ + block * num_inputs_ * kLine;
    Floats even[Rows], odd[Rows];  // two sums: one would wait for itself
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) even[r] = odd[r] = splat(0.0f);
    const auto add = [&](Floats* sums, std::int64_t pair) {
      const Pairs ranks = load_line(line + pair * kLine);
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        sums[r] = dot_pairs(sums[r], broadcast_pair(inputs[r] + 2 * pair), ranks);
      }
    };
    std::int64_t pair = 0;
    for (; pair + 2 <= num_inputs_; pair += 2) {
      add(even, pair);
      add(odd, pair + 1);
    }
    if (pair < num_inputs_) add(even, pair);
    const Floats scale = load(scale_ + block * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      store_bf16(lows[r] + block * kLanes, (even[r] + odd[r]) * scale);
    }
  }

  template <int Rows>
  void expand_rows(const bf16* const* lows, std::int64_t panel, float* const* sums) const {
    if (order_ == Columns::kPlain) {
      expand_panel<Rows, false>(lows, panels_[panel], sums);
    } else {
      expand_panel<Rows, true>(lows, panels_[panel], sums);
    }
  }

  // All vectors of a panel together: one reading of a row's pair serves them.
  template <int Rows, bool IsGated>
  void expand_panel(const bf16* const* lows, Panel panel, float* const* sums) const {
    const bf16* line = b_ + panel.line * kLine;
    Floats parts[Rows][kVectors];
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) parts[r][v] = load(sums[r] + v * kLanes);
    }
    for (std::int64_t pair = 0; pair < panel.count; ++pair, line += kPairLine) {
      const Pairs columns[kVectors] = {load_line(line), load_line(line + kLine),
                                       load_line(line + 2 * kLine)};
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        const Pair low = broadcast_pair(lows[r] + 2 * (panel.first + pair));
        parts[r][0] = dot_pairs(parts[r][0], low, columns[0]);
        if constexpr (IsGated) {
          const Pair up = broadcast_pair(lows[r] + 2 * (panel.first_up + pair));
          parts[r][1] = dot_pairs(parts[r][1], up, columns[1]);
          parts[r][2] = dot_two_pairs(parts[r][2], low, up, columns[2]);
        } else {
          parts[r][1] = dot_pairs(parts[r][1], low, columns[1]);
          parts[r][2] = dot_pairs(parts[r][2], low, columns[2]);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) store(sums[r] + v * kLanes, parts[r][v]);
    }
  }

  void find_pairs(const bf16* b, const PackedMatrix& weight) {
    panels_.clear();
    std::int64_t line = 0;
    for (std::int64_t panel = 0; panel < weight.panels; ++panel) {
      const Span plain = used_pairs(b, weight, panel, false);
      const Span ups = used_pairs(b, weight, panel, true);
      const std::int64_t count = std::max(plain.end - plain.begin, ups.end - ups.begin);
      const std::int64_t last = num_pairs() - count;  // where `count` pairs are still there
      panels_.push_back({std::min(plain.begin, last), std::min(ups.begin, last), count, line});
      line += count * kVectors;
    }
  }

  // The pairs of ranks that some column of a panel has a value of, ups or the others.
  Span used_pairs(const bf16* b, const PackedMatrix& weight, std::int64_t panel,
                  bool are_ups) const {
    Span used{0, 0};
    for (std::int64_t k = 0; k < rank_; ++k) {
      bool is_used = false;
      for (int column = 0; column < kPanel && !is_used; ++column) {
        const std::int64_t row = source_row(order_, weight.outputs, panel, column);
        if (row < 0 || is_up(order_, column) != are_ups) continue;
        is_used = (b[row * rank_ + k] & 0x7FFF) != 0;
      }
      if (is_used) used = {used.end == 0 ? k / 2 : used.begin, k / 2 + 1};
    }
    return used;
  }

  void take_rows(const bf16* a, std::int64_t inputs) {
    for (std::int64_t k = 0; k < rank_; ++k) {
      bf16* lane = a_ + k / kLanes * num_inputs_ * kLine + 2 * (k % kLanes);
      for (std::int64_t i = 0; i < inputs; ++i) {
        lane[i / 2 * kLine + i % 2] = a[k * inputs + i];
      }
    }
  }

  void take_columns(const bf16* b, const PackedMatrix& weight) {
    for (std::int64_t panel = 0; panel < weight.panels; ++panel) {
      const Panel& from = panels_[panel];
      for (int column = 0; column < kPanel; ++column) {
        const std::int64_t row = source_row(order_, weight.outputs, panel, column);
        if (row < 0) continue;
        const std::int64_t first = 2 * (is_up(order_, column) ? from.first_up : from.first);
        bf16* target = b_ + from.line * kLine + 2 * column;
        for (std::int64_t k = 0; k < 2 * from.count && first + k < rank_; ++k) {
          target[k / 2 * kPairLine + k % 2] = b[row * rank_ + first + k];
        }
      }
    }
  }

  std::int64_t rank_ = 0, num_inputs_ = 0;  // inputs in pairs
  Columns order_ = Columns::kPlain;
  bf16 *a_ = nullptr, *b_ = nullptr;
  float* scale_ = nullptr;
  std::vector<Panel> panels_;
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
