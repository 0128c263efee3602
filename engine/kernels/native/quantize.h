// Weights and inputs of products as small integers with factors per group of inputs.
//
// int8: weight = scale x number, -127..127, groups of 64 inputs (32 where 64 does not divide).
// int4: weight = minimum + scale x number, 0..15, groups of 32, with the factors that come nearest.
// Factors are bf16, and the numbers are chosen for the rounded ones. Inputs are int8 in groups of the same size, with a float scale.
// `engine/kernels/quantized_reference.py` makes the same integers.
#pragma once

#include <algorithm>
#include <cstdint>

#include "dot_bytes.h"
#include "gemm.h"

namespace stoker {

enum class Format : std::int64_t { kBf16 = 0, kInt8 = 1, kInt4 = 2 };

constexpr int kMaxGroup = 64, kSmallGroup = 32;
constexpr int kGroupVectors = kMaxGroup / kLanes;
constexpr int kQuadLine = kQuad * kPanel;  // bytes of one quad of inputs in a panel
constexpr float kLargestNumber = 127.0f;
constexpr float kLargestNibble = 15.0f;
constexpr double kInward = 0.04;  // of the range of an int4 group that its ends may lie further in
constexpr int kRefits = 2;        // of the factors of an int4 group
constexpr double kLeastSpread = 1e-9;  // of numbers that tell a scale
constexpr int kSumLanes = 8;      // sums side by side, of which a compiler makes one vector
constexpr float kNothing = 1e-30f;  // a group without larger values counts as zeros

// A panel: the factors of each group and column, then the numbers. int8: [groups][48] scales and
// [groups][quads][48][4]; int4: [groups][scale, minimum][48] and [groups][pairs of quads][48][4],
// the first quad of a pair in the lower halves of the bytes.
struct QuantizedMatrix {
  std::uint8_t* data;
  Format format;
  std::int64_t panels, inputs, outputs;

  std::int64_t group_size() const {
    return format == Format::kInt8 && inputs % kMaxGroup == 0 ? kMaxGroup : kSmallGroup;
  }
  std::int64_t groups() const { return (inputs + group_size() - 1) / group_size(); }
  std::int64_t group_factors() const { return (format == Format::kInt8 ? 1 : 2) * kPanel; }
  std::int64_t factor_bytes() const {
    return round_up<std::int64_t>(groups() * group_factors() * sizeof(bf16), kCacheLine);
  }
  std::int64_t panel_bytes() const {
    const std::int64_t numbers = groups() * group_size() * kPanel;
    return factor_bytes() + (format == Format::kInt8 ? numbers : numbers / 2);
  }

  std::uint8_t* panel(std::int64_t index) const { return data + index * panel_bytes(); }
  bf16* factors(std::int64_t index) const { return reinterpret_cast<bf16*>(panel(index)); }
  std::uint8_t* numbers(std::int64_t index) const { return panel(index) + factor_bytes(); }
};

struct InputGroup {
  float scale;
  float scaled_sum;     // scale x the sum of the numbers
  std::int32_t offset;  // undoes kWeightOffset
};

// [rows, groups x group size] numbers with [rows, groups] factors.
struct QuantizedRows {
  std::int8_t* values;
  InputGroup* groups;
  std::int64_t stride, num_groups;

  QuantizedRows from(std::int64_t row) const {
    return {values + row * stride, groups + row * num_groups, stride, num_groups};
  }
};

inline Floats magnitude(Floats values) { return larger(values, splat(0.0f) - values); }

inline Floats between(Floats values, float low, float high) {
  return splat(0.0f) - larger(splat(0.0f) - larger(values, splat(low)), splat(-high));
}

// One row; values(i) are numbers i to i + 15, zero behind the row's end.
template <class Values>
void quantize_row(const Values& values, std::int64_t group_size, QuantizedRows row) {
  const std::int64_t vectors = group_size / kLanes;
  for (std::int64_t group = 0; group < row.num_groups; ++group) {
    Floats parts[kGroupVectors], largest = splat(0.0f), total = splat(0.0f);
    for (std::int64_t i = 0; i < vectors; ++i) {
      parts[i] = values(group * group_size + i * kLanes);
      largest = larger(largest, magnitude(parts[i]));
    }
    const float most = largest_of(largest);
    const Floats factor = splat(most > kNothing ? kLargestNumber / most : 0.0f);
    for (std::int64_t i = 0; i < vectors; ++i) {
      const Floats numbers = round_to_whole(unfused(parts[i] * factor));
      total = total + numbers;
      store_bytes(row.values + group * group_size + i * kLanes, numbers);
    }
    const float scale = most > kNothing ? most / kLargestNumber : 0.0f, sum = sum_of(total);
    row.groups[group] = {scale, scale * sum, -kWeightOffset * static_cast<std::int32_t>(sum)};
  }
}

// Some weights of one row, widened; zeros behind the row's end.
struct WeightGroup {
  Floats parts[kGroupVectors];
  int vectors;

  WeightGroup(const bf16* source, std::int64_t left, std::int64_t size)
      : vectors(static_cast<int>(size / kLanes)) {
    for (int i = 0; i < vectors; ++i) {
      parts[i] = load_bf16(source + i * kLanes, first_lanes(left - i * kLanes));
    }
  }
};

inline float round_to_bf16(float value, bf16* stored) {
  bf16 lanes[kLanes];
  store_bf16(lanes, splat(value));
  *stored = lanes[0];
  const std::uint32_t bits = static_cast<std::uint32_t>(lanes[0]) << 16;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline Floats rounded_steps(Floats values, float scale) {
  return scale > 0.0f ? round_to_whole(values / splat(scale)) : splat(0.0f);
}

// numbers = weights / scale, rounded.
inline void quantize_int8(const WeightGroup& weights, bf16* factors, std::int8_t* numbers) {
  Floats largest = splat(0.0f);
  for (int i = 0; i < weights.vectors; ++i) {
    largest = larger(largest, magnitude(weights.parts[i]));
  }
  const float most = largest_of(largest);
  const float scale = round_to_bf16(most > kNothing ? most / kLargestNumber : 0.0f, factors);
  for (int i = 0; i < weights.vectors; ++i) {
    const Floats number = rounded_steps(weights.parts[i], scale);
    store_bytes(numbers + i * kLanes, between(number, -kLargestNumber, kLargestNumber));
  }
}

// A group in int4: the factors as they are stored, and the numbers nearest to the weights.
struct Int4Group {
  bf16 scale, minimum;
  std::int8_t numbers[kSmallGroup];
  double error;  // squared, summed
};

// How much an error counts at each input of a group: what the inputs' squares were on average, where
// that was measured, else the same for all.
struct Int4Importance {
  double values[kSmallGroup];

  Int4Importance(const bf16* measured, std::int64_t left) {
    float floats[kSmallGroup];
    for (int i = 0; i < kSmallGroup; i += kLanes) {
      const Floats one = splat(1.0f);
      store(floats + i, measured == nullptr
                            ? one : load_bf16(measured + i, first_lanes(left - i)));
    }
    std::copy(floats, floats + kSmallGroup, values);
  }
};

// Looks for the factors that come nearest to a group of weights. Sums are doubles, in which no order
// of additions decides anything: the twin finds the same factors.
class Int4Search {
 public:
  Int4Search(const WeightGroup& weights, const Int4Importance& importance)
      : weights_(weights), importance_(importance.values) {
    for (int i = 0; i < weights.vectors; ++i) store(values_ + i * kLanes, weights.parts[i]);
    count_ = sum_over([&](int i) { return importance_[i]; });
    total_ = sum_over([&](int i) { return importance_[i] * values_[i]; });
  }

  Int4Group nearest(double wanted_scale, double wanted_minimum) const {
    Int4Group group;
    const float scale = round_to_bf16(static_cast<float>(wanted_scale), &group.scale);
    const float minimum = round_to_bf16(static_cast<float>(wanted_minimum), &group.minimum);
    for (int i = 0; i < weights_.vectors; ++i) {
      const Floats number = rounded_steps(weights_.parts[i] - splat(minimum), scale);
      store_bytes(group.numbers + i * kLanes, between(number, 0.0f, kLargestNibble));
    }
    group.error = sum_over([&](int i) {  // number x scale is exact
      const double difference = group.numbers[i] * scale + minimum - values_[i];
      return importance_[i] * difference * difference;
    });
    return group;
  }

  // Least squares for the numbers that a group has, then the numbers for the new factors.
  Int4Group refitted(const Int4Group& group) const {
    const std::int8_t* numbers = group.numbers;
    const double sum = sum_over([&](int i) { return importance_[i] * numbers[i]; });
    const double squares =
        sum_over([&](int i) { return importance_[i] * (numbers[i] * numbers[i]); });
    const double product =
        sum_over([&](int i) { return importance_[i] * numbers[i] * values_[i]; });
    const double spread = count_ * squares - sum * sum;
    const bool is_known = spread > kLeastSpread * count_ * squares;
    const double scale = is_known ? (count_ * product - sum * total_) / spread : 0.0;
    return nearest(scale, (total_ - scale * sum) / count_);
  }

 private:
  template <class Value>
  static double sum_over(const Value& value) {
    double lanes[kSumLanes] = {};
    for (int i = 0; i < kSmallGroup; i += kSumLanes) {
      for (int lane = 0; lane < kSumLanes; ++lane) lanes[lane] += value(i + lane);
    }
    double sum = 0.0;
    for (const double lane : lanes) sum += lane;
    return sum;
  }

  const WeightGroup& weights_;
  const double* importance_;
  float values_[kSmallGroup];
  double count_, total_;
};

// How far in the ends of the range lie, as shares of it.
struct Ends {
  double below, above;
};
constexpr Ends kNearerEnds[] = {{kInward, 0.0}, {0.0, kInward}, {kInward, kInward}};

inline void keep_nearer(const Int4Group& group, Int4Group* best) {
  if (group.error < best->error) *best = group;
}

// weights = minimum + scale x number, nearly. Factors that reach the outermost weights are far from
// most others: ends that lie a little further in are tried too, and the best of all is refitted.
inline void quantize_int4(const WeightGroup& weights, const Int4Importance& importance,
                          bf16* factors, std::int8_t* numbers) {
  Floats high = weights.parts[0], low = splat(0.0f) - high;
  for (int i = 1; i < weights.vectors; ++i) {
    high = larger(high, weights.parts[i]);
    low = larger(low, splat(0.0f) - weights.parts[i]);
  }
  const float spread = largest_of(high) + largest_of(low);
  const double range = spread > kNothing ? spread : 0.0, minimum = -largest_of(low);
  const Int4Search search(weights, importance);
  Int4Group best = search.nearest(range / kLargestNibble, minimum);
  for (const auto& [below, above] : kNearerEnds) {
    const double scale = range * (1.0 - below - above) / kLargestNibble;
    keep_nearer(search.nearest(scale, minimum + range * below), &best);
  }
  for (int refit = 0; refit < kRefits; ++refit) keep_nearer(search.refitted(best), &best);
  factors[0] = best.scale;
  factors[kPanel] = best.minimum;
  std::copy(best.numbers, best.numbers + kSmallGroup, numbers);
}

// `out` has kQuadLine bytes from one quad of inputs, or pair of them, to the next.
inline void place_int8(const std::int8_t* numbers, std::int64_t size, std::uint8_t* out) {
  for (std::int64_t i = 0; i < size; ++i) {
    out[i / kQuad * kQuadLine + i % kQuad] = static_cast<std::uint8_t>(numbers[i] + kWeightOffset);
  }
}

inline void place_int4(const std::int8_t* numbers, std::uint8_t* out) {
  for (std::int64_t i = 0; i < kSmallGroup / 2; ++i) {
    const std::int64_t first = i / kQuad * 2 * kQuad + i % kQuad;
    out[i / kQuad * kQuadLine + i % kQuad] =
        static_cast<std::uint8_t>(numbers[first] | numbers[first + kQuad] << 4);
  }
}

// Packs one panel of a row-major bf16 weight [out, inputs]. `importance` [inputs] may be null.
inline void quantize_panel(const bf16* weight, const bf16* importance, Columns order,
                           const QuantizedMatrix& target, std::int64_t panel) {
  const std::int64_t size = target.group_size();
  const bool is_int8 = target.format == Format::kInt8;
  const std::int64_t group_bytes = is_int8 ? size * kPanel : size * kPanel / 2;
  for (int column = 0; column < kPanel; ++column) {
    const std::int64_t row = source_row(order, target.outputs, panel, column);
    for (std::int64_t group = 0; group < target.groups(); ++group) {
      const std::int64_t left = row < 0 ? 0 : target.inputs - group * size;
      const bf16* source = weight + std::max<std::int64_t>(row, 0) * target.inputs + group * size;
      const WeightGroup weights(source, left, size);
      bf16* factors = target.factors(panel) + group * target.group_factors() + column;
      std::uint8_t* out = target.numbers(panel) + group * group_bytes + column * kQuad;
      std::int8_t numbers[kMaxGroup];
      if (is_int8) {
        quantize_int8(weights, factors, numbers);
        place_int8(numbers, size, out);
      } else {
        const bf16* inputs = importance == nullptr ? nullptr : importance + group * size;
        quantize_int4(weights, {inputs, target.inputs - group * size}, factors, numbers);
        place_int4(numbers, out);
      }
    }
  }
}

}  // namespace stoker
