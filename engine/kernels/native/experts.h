// Which experts of a layer the tokens of a step go to, and the order of their rows: those of an expert
// lie together, so that one product per expert serves all of its tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gemm.h"

namespace stoker {

// Up to kRowBlock rows of one expert.
struct ExpertRows {
  std::int64_t expert;
  Span rows;
};

class ExpertRouting {
 public:
  // Before a step: room for `tokens` in each of `num_layers`.
  void reserve(std::int64_t num_layers, std::int64_t tokens, std::int64_t num_experts,
               std::int64_t per_token) {
    num_experts_ = num_experts;
    per_token_ = per_token;
    tokens_ = tokens;
    num_groups_.resize(num_layers);
    chosen_.resize(tokens * per_token);
    weights_.resize(tokens * per_token);
    places_.resize(tokens * per_token);
    tokens_of_.resize(tokens * per_token);
    groups_.reserve(tokens * per_token);
    ends_.reserve(num_experts + 1);
  }

  std::int64_t num_rows() const { return tokens_ * per_token_; }

  // The experts of a token with the largest of its `logits` [num_experts]; of equals the first. Their
  // weights are shares of the softmax over all, or over the chosen where `is_normalized`.
  void choose(std::int64_t token, const float* logits, bool is_normalized) {
    std::int32_t* chosen = chosen_.data() + token * per_token_;
    float* weights = weights_.data() + token * per_token_;
    for (std::int64_t k = 0; k < per_token_; ++k) {
      std::int32_t best = -1;
      for (std::int32_t expert = 0; expert < num_experts_; ++expert) {
        if (std::find(chosen, chosen + k, expert) != chosen + k) continue;
        if (best < 0 || logits[expert] > logits[best]) best = expert;
      }
      chosen[k] = best;
    }
    const float most = logits[chosen[0]];
    float total = 0.0f;
    for (std::int64_t k = 0; k < per_token_; ++k) {
      total += weights[k] = std::exp(logits[chosen[k]] - most);
    }
    if (!is_normalized) {
      total = 0.0f;
      for (std::int64_t i = 0; i < num_experts_; ++i) total += std::exp(logits[i] - most);
    }
    for (std::int64_t k = 0; k < per_token_; ++k) weights[k] /= total;
  }

  // When all tokens of a layer have chosen: puts the rows in the order of the experts.
  void group(std::int64_t layer) {
    ends_.assign(num_experts_ + 1, 0);
    for (const std::int32_t expert : chosen_) ++ends_[expert + 1];
    for (std::int64_t i = 0; i < num_experts_; ++i) ends_[i + 1] += ends_[i];
    groups_.clear();
    for (std::int64_t expert = 0; expert < num_experts_; ++expert) {
      for (std::int64_t row = ends_[expert]; row < ends_[expert + 1]; row += kRowBlock) {
        groups_.push_back({expert, {row, std::min(row + kRowBlock, ends_[expert + 1])}});
      }
    }
    for (std::int64_t i = 0; i < num_rows(); ++i) {
      places_[i] = ends_[chosen_[i]]++;
      tokens_of_[places_[i]] = i / per_token_;
    }
    num_groups_[layer] = static_cast<std::int64_t>(groups_.size());
  }

  // One number per layer: a thread that is late reads that of a layer that others have left.
  std::int64_t num_groups(std::int64_t layer) const { return num_groups_[layer]; }
  const ExpertRows& rows(std::int64_t group) const { return groups_[group]; }
  std::int64_t token_of(std::int64_t row) const { return tokens_of_[row]; }

  // The sum over a token's experts of their `outputs` [rows, stride], 16 values from `i` on.
  Floats combined(const float* outputs, std::int64_t stride, std::int64_t token, std::int64_t i,
                  Lanes lanes) const {
    Floats sum = splat(0.0f);
    for (std::int64_t k = token * per_token_; k < (token + 1) * per_token_; ++k) {
      sum = multiply_add(splat(weights_[k]), load(outputs + places_[k] * stride + i, lanes), sum);
    }
    return sum;
  }

 private:
  std::int64_t num_experts_ = 0, per_token_ = 0, tokens_ = 0;
  std::vector<std::int32_t> chosen_;     // [tokens, per_token]
  std::vector<float> weights_;           // the same
  std::vector<std::int64_t> places_;     // the same: the row of each
  std::vector<std::int64_t> tokens_of_;  // by row
  std::vector<ExpertRows> groups_;
  std::vector<std::int64_t> num_groups_;  // by layer
  std::vector<std::int64_t> ends_;        // by expert, while rows are put in order
};

}  // namespace stoker
