// Tiles of bf16 products and of attention: what the compiler writes out for each number of rows. A
// file of its own, since it takes as long to compile as all the rest.

#include <type_traits>

#include "attention.h"
#include "gemm.h"

namespace stoker {

namespace {

// sums += the inputs of one pair, of all rows, x its weights in 48 columns.
template <int Rows>
[[gnu::always_inline]] inline void add_pair(const bf16* inputs, std::int64_t stride,
                                            const bf16* weights,
                                            Floats (&sums)[Rows][kVectors]) {
  if constexpr (kKeepsColumns) {
    const Pairs columns[kVectors] = {load_line(weights), load_line(weights + 32),
                                     load_line(weights + 64)};
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Pair input = broadcast_pair(inputs + r * stride);
#pragma GCC unroll 8
      for (int vector = 0; vector < kVectors; ++vector) {
        sums[r][vector] = dot_pairs(sums[r][vector], input, columns[vector]);
      }
    }
  } else {
    Pair input[Rows];
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) input[r] = broadcast_pair(inputs + r * stride);
#pragma GCC unroll 8
    for (int vector = 0; vector < kVectors; ++vector) {
      const Pairs columns = load_line(weights + vector * 2 * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < Rows; ++r) {
        sums[r][vector] = dot_pairs(sums[r][vector], input[r], columns);
      }
    }
  }
}

// out[r][0..48] = sums of row r and one panel.
template <int Rows, class Ahead>
void multiply_tile(const bf16* rows, std::int64_t stride, const bf16* panel, std::int64_t pairs,
                   Ahead ahead, float* out) {
  Floats sums[Rows][kVectors];
#pragma GCC unroll 8
  for (auto& row_sums : sums) {
#pragma GCC unroll 8
    for (Floats& sum : row_sums) sum = splat(0.0f);
  }
  for (std::int64_t pair = 0; pair < pairs; ++pair, panel += kPairLine) {
    ahead.step(pair);
    add_pair<Rows>(rows + 2 * pair, stride, panel, sums);
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int vector = 0; vector < kVectors; ++vector) {
      store(out + r * kPanel + vector * kLanes, sums[r][vector]);
    }
  }
}

constexpr int up_to_tile(int rows) { return rows < kTileRows ? rows : kTileRows; }

// scores[r][key] = scale * q[r] . k[key] for the keys of kScoreGroups groups; meanwhile keys of the
// tile to come are read ahead, into the second cache level: two tiles would not fit into the first.
template <class Element, int Rows, bool ReadsAhead>
void score_keys(const bf16* queries, std::int64_t head_dim, const char* const* keys,
                const char* const* next, std::int64_t key_stride, float scale, float* scores) {
  Floats sums[Rows][kScoreGroups];
#pragma GCC unroll 8
  for (auto& row : sums) {
#pragma GCC unroll 8
    for (Floats& sum : row) sum = splat(0.0f);
  }
  for (std::int64_t pair = 0; pair < head_dim / 2; ++pair) {
    Pairs columns[kScoreGroups];
#pragma GCC unroll 8
    for (int group = 0; group < kScoreGroups; ++group) {
      const std::int64_t place = pair * key_stride;
      columns[group] = load_line(elements<Element>(keys[group]) + place);
      if (ReadsAhead) prefetch_second_level(elements<Element>(next[group]) + place);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Pair query = broadcast_pair(queries + r * head_dim + 2 * pair);
#pragma GCC unroll 8
      for (int group = 0; group < kScoreGroups; ++group) {
        sums[r][group] = dot_pairs(sums[r][group], query, columns[group]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int group = 0; group < kScoreGroups; ++group) {
      store(scores + r * kTileKeys + group * kKeyGroup, sums[r][group] * splat(scale));
    }
  }
}

// out[r] = sum over the keys of a span of weights[r][key] * value[key], for Chunks x 32 dims. The
// span begins at an even key. Two values are interleaved per product, which leaves the dims of a
// chunk in an order that `write_output` puts right.
template <class Element, int Rows, int Chunks, bool ReadsAhead>
void weigh_values(const bf16* weights, const char* const* values, const char* const* next,
                  std::int64_t offset, std::int64_t head_dim, Span span, float* out) {
  Floats sums[Rows][2 * Chunks];
#pragma GCC unroll 8
  for (auto& row : sums) {
#pragma GCC unroll 8
    for (Floats& sum : row) sum = splat(0.0f);
  }
  const auto add_two_keys = [&](const bf16* pair_weights, int chunk, Pairs first, Pairs second) {
    Pairs low, high;
    interleave(first, second, &low, &high);
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Pair weight = broadcast_pair(pair_weights + r * kTileKeys);
      sums[r][2 * chunk] = dot_pairs(sums[r][2 * chunk], weight, low);
      sums[r][2 * chunk + 1] = dot_pairs(sums[r][2 * chunk + 1], weight, high);
    }
  };
  std::int64_t key = span.begin % kKeyGroup;
  for (std::int64_t group = span.begin / kKeyGroup; group * kKeyGroup < span.end; ++group) {
    const std::int64_t keys = std::min<std::int64_t>(kKeyGroup, span.end - group * kKeyGroup);
    for (; key < keys; key += 2) {
      const bf16* pair_weights = weights + group * kKeyGroup + key;
      const std::int64_t place = offset + key * head_dim;
#pragma GCC unroll 8
      for (int chunk = 0; chunk < Chunks; ++chunk) {
        const std::int64_t line = place + chunk * kLineValues;
        const Element* first = elements<Element>(values[group]) + line;
        if (ReadsAhead) {
          prefetch_second_level(elements<Element>(next[group]) + line);
          prefetch_second_level(elements<Element>(next[group]) + line + head_dim);
        }
        // The slot behind the last key was never written for this sequence: even 0 x NaN counts.
        const Pairs second = key + 1 < keys ? load_line(first + head_dim) : Pairs{};
        add_two_keys(pair_weights, chunk, load_line(first), second);
      }
    }
    key = 0;
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int vector = 0; vector < 2 * Chunks; ++vector) {
      store(out + r * head_dim + vector * kLanes, sums[r][vector]);
    }
  }
}

constexpr int up_to_pass(int rows) { return rows < kPassRows ? rows : kPassRows; }

// Calls the function of `rows` rows, of the cache's elements, with or without reading ahead. Many
// rows have no tile to read ahead, and nothing to spare for accesses in vain.
template <class Function>
void with_rows(int rows, bool is_fp8, bool reads_ahead, const Function& function) {
  const auto call = [&](auto count) {
    if constexpr (kHasAllFormats) {
      if (is_fp8) return function(count, fp8{}, std::true_type{});
    }
    function(count, bf16{}, std::true_type{});
  };
  constexpr std::integral_constant<int, kPassRows> kAll{};
  if (!reads_ahead && !is_fp8 && rows == kPassRows) {
    return function(kAll, bf16{}, std::false_type{});
  }
  switch (rows) {
    case 1: return call(std::integral_constant<int, up_to_pass(1)>{});
    case 2: return call(std::integral_constant<int, up_to_pass(2)>{});
    case 3: return call(std::integral_constant<int, up_to_pass(3)>{});
    case 4: return call(std::integral_constant<int, up_to_pass(4)>{});
    case 5: return call(std::integral_constant<int, up_to_pass(5)>{});
    default: return call(kAll);
  }
}

}  // namespace

void multiply_rows(int count, const bf16* rows, std::int64_t stride, const bf16* panel,
                   std::int64_t pairs, ReadAhead ahead, float* out) {
  switch (count) {
    case 1: return multiply_tile<up_to_tile(1)>(rows, stride, panel, pairs, ahead, out);
    case 2: return multiply_tile<up_to_tile(2)>(rows, stride, panel, pairs, ahead, out);
    case 3: return multiply_tile<up_to_tile(3)>(rows, stride, panel, pairs, ahead, out);
    case 4: return multiply_tile<up_to_tile(4)>(rows, stride, panel, pairs, ahead, out);
    case 5: return multiply_tile<up_to_tile(5)>(rows, stride, panel, pairs, ahead, out);
    case 6: return multiply_tile<up_to_tile(6)>(rows, stride, panel, pairs, ahead, out);
    case 7: return multiply_tile<up_to_tile(7)>(rows, stride, panel, pairs, ahead, out);
    default: return multiply_tile<kTileRows>(rows, stride, panel, pairs, ahead, out);
  }
}

void multiply_rows(const bf16* rows, std::int64_t stride, const bf16* panel, std::int64_t pairs,
                   ReadPieces ahead, float* out) {
  multiply_tile<kTileRows>(rows, stride, panel, pairs, ahead, out);
}

void Attention::score_rows(int rows, Span groups, const bf16* queries, const TileAddress& address,
                           const TileAddress* next, float* scores) const {
  const TileAddress& ahead = next == nullptr ? address : *next;
  std::int64_t group = groups.begin / kScoreGroups * kScoreGroups;
  for (; group < groups.end; group += kScoreGroups) {
    with_rows(rows, address.is_fp8, next != nullptr, [&](auto count, auto element, auto reads) {
      score_keys<decltype(element), count.value, reads.value>(
          queries, head_dim(), address.keys + group, ahead.keys + group, address.key_stride,
          score_scale_, scores + group * kKeyGroup);
    });
  }
}

void Attention::weigh_rows(int rows, Span keys, const bf16* weights, const TileAddress& address,
                           const TileAddress* next, float* out) const {
  const TileAddress& ahead = next == nullptr ? address : *next;
  with_rows(rows, address.is_fp8, next != nullptr, [&](auto pass, auto element, auto reads) {
    using Element = decltype(element);
    std::int64_t dim = 0;
    constexpr std::int64_t kDims = kValueChunks * kLineValues;
    for (; dim + kDims <= head_dim(); dim += kDims) {
      weigh_values<Element, pass.value, kValueChunks, reads.value>(
          weights, address.values, ahead.values, dim, head_dim(), keys, out + dim);
    }
    if (dim < head_dim()) {
      weigh_values<Element, pass.value, 1, reads.value>(
          weights, address.values, ahead.values, dim, head_dim(), keys, out + dim);
    }
  });
}

}  // namespace stoker
