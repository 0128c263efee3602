// Low-rank adapters beside the linears of a layer: sums += B (scale x (A x)), each row with the
// adapter of its own. A x is made row by row where the row's inputs are at hand, the rest in the
// epilogue of the product, so rows of several adapters and of none share one reading of the weights.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

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

// The matrices of one linear as they are read: A in rows of whole vectors, B as [vectors of columns
// in the order of the packed weight][rank][16], with the ranks that a vector's outputs have.
class LoraLinear {
 public:
  void take(const LoraTensors& source, std::int64_t inputs, const PackedMatrix& weight,
            Columns order) {
    inputs_ = inputs;
    rank_ = source.rank;
    if (rank_ == 0) return;
    stride_ = round_up<std::int64_t>(inputs, kLanes);
    const std::int64_t rows = padded_rank();
    a_.reserve(rows * stride_);
    scale_.reserve(rows);
    std::memset(a_.data(), 0, rows * stride_ * sizeof(bf16));
    std::memset(scale_.data(), 0, rows * sizeof(float));
    for (std::int64_t k = 0; k < rank_; ++k) {
      std::memcpy(a_.data() + k * stride_, source.a + k * inputs, inputs * sizeof(bf16));
      scale_.data()[k] = source.scale[k];
    }
    take_columns(source.b, weight, order);
  }

  std::int64_t padded_rank() const { return round_up<std::int64_t>(rank_, kRankStep); }

  // lows[k] = scale[k] x (A x)[k]; inputs(i) are inputs i to i + 15, zero behind the last.
  template <class Inputs>
  void shrink(const Inputs& inputs, float* lows) const {
    for (std::int64_t k = 0; k < rank_; k += kRankStep) {
      const bf16* rows = a_.data() + k * stride_;
      Floats sums[kRankStep] = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
      for (std::int64_t i = 0; i < inputs_; i += kLanes) {
        const Floats values = inputs(i);
        for (int r = 0; r < kRankStep; ++r) {
          sums[r] = multiply_add(values, load_bf16(rows + r * stride_ + i), sums[r]);
        }
      }
      for (int r = 0; r < kRankStep; ++r) lows[k + r] = sum_of(sums[r]) * scale_.data()[k + r];
    }
  }

  // Adds B lows to the sums of one row and panel.
  void expand(std::int64_t panel, const float* lows, float* sums) const {
    if (rank_ == 0) return;
    for (int vector = 0; vector < kVectors; ++vector) {
      const std::int64_t place = panel * kVectors + vector;
      const Span ranks = ranks_[place];
      const bf16* columns = b_.data() + place * rank_ * kLanes;
      Floats even = load(sums + vector * kLanes), odd = splat(0.0f);
      std::int64_t k = ranks.begin;
      for (; k + 2 <= ranks.end; k += 2) {
        even = multiply_add(splat(lows[k]), load_bf16(columns + k * kLanes), even);
        odd = multiply_add(splat(lows[k + 1]), load_bf16(columns + (k + 1) * kLanes), odd);
      }
      if (k < ranks.end) even = multiply_add(splat(lows[k]), load_bf16(columns + k * kLanes), even);
      store(sums + vector * kLanes, even + odd);
    }
  }

 private:
  void take_columns(const bf16* b, const PackedMatrix& weight, Columns order) {
    const std::int64_t places = weight.panels * kVectors;
    b_.reserve(places * rank_ * kLanes);
    ranks_.assign(places, Span{rank_, 0});
    for (std::int64_t place = 0; place < places; ++place) {
      Span& ranks = ranks_[place];
      for (std::int64_t k = 0; k < rank_; ++k) {
        bf16* line = b_.data() + (place * rank_ + k) * kLanes;
        bool is_used = false;
        for (int lane = 0; lane < kLanes; ++lane) {
          const int column = static_cast<int>(place % kVectors) * kLanes + lane;
          const std::int64_t row = source_row(order, weight.outputs, place / kVectors, column);
          line[lane] = row < 0 ? 0 : b[row * rank_ + k];
          is_used |= (line[lane] & 0x7FFF) != 0;
        }
        if (!is_used) continue;
        ranks = {std::min(ranks.begin, k), k + 1};
      }
      if (ranks.begin > ranks.end) ranks = {0, 0};
    }
  }

  std::int64_t inputs_ = 0, rank_ = 0, stride_ = 0;
  Buffer<bf16> a_, b_;
  Buffer<float> scale_;
  std::vector<Span> ranks_;
};

// By layer, then by linear.
using LoraAdapter = std::vector<std::array<LoraLinear, kLoraLinears>>;

}  // namespace stoker
