// Matrix products of bf16 activations with weights packed once, accumulated in float32.
//
// A panel holds 48 output columns: for each pair of inputs, 48 columns x 2 values (three cache
// lines). Every sum runs over the inputs in order, whatever the number of rows or threads, so a row
// has the same result in any batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "thread_pool.h"
#include "vector_math.h"

namespace stoker {

constexpr int kPanel = 48;
constexpr int kVectors = kPanel / kLanes;
constexpr int kPairLine = 2 * kPanel;             // bf16 values of one pair in a panel
constexpr int kGated = kPanel / 2;                // outputs of a panel with gate and up columns
constexpr std::int64_t kPrefetchBytes = 6 * 1024;  // how far a stream of weights is read ahead

enum class Columns { kPlain, kGateUp };

struct PackedMatrix {
  bf16* data;   // [panels][pairs][48][2]
  float* bias;  // [panels x 48] in packed order, or null
  std::int64_t panels;
  std::int64_t pairs;
  std::int64_t outputs;  // columns of the result: for kGateUp the gated ones

  bf16* panel(std::int64_t index) const { return data + index * pairs * kPairLine; }
};

// Whether `column` of a panel belongs to the second half of a gate_up weight.
inline bool is_up(Columns order, int column) {
  const int vector = column / kLanes, lane = column % kLanes;
  return order == Columns::kGateUp && (vector == 1 || (vector == 2 && lane >= 8));
}

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
  const std::int64_t row = panel * kGated + (vector == 2 ? 16 + lane % 8 : lane);
  if (row >= outputs) return -1;
  return is_up(order, column) ? outputs + row : row;
}

// Packs one panel of a row-major weight [out, inputs], inputs >= 2. An odd last input gets a zero
// partner.
inline void pack_panel(const bf16* weight, std::int64_t inputs, Columns order,
                       std::int64_t outputs, std::int64_t panel, bf16* target) {
  const bf16* base = weight + source_row(order, outputs, panel, 0) * inputs;
  for (int vector = 0; vector < kVectors; ++vector) {
    std::int32_t offsets[kLanes];  // bytes from `base` to each column, -1 for padding
    for (int lane = 0; lane < kLanes; ++lane) {
      const std::int64_t row = source_row(order, outputs, panel, vector * kLanes + lane);
      offsets[lane] =
          row < 0 ? -1 : static_cast<std::int32_t>(sizeof(bf16) * (weight + row * inputs - base));
    }
    bf16* line = target + vector * 2 * kLanes;
    std::int64_t input = 0;
    for (; input + 2 <= inputs; input += 2, line += kPairLine) {
      store_line(line, gather_pairs(base + input, offsets));
    }
    if (input < inputs) store_line(line, second_values(gather_pairs(base + input - 1, offsets)));
  }
}

// An epilogue takes the sums of one row and panel: operator()(row, panel, float sums[48]).

// Vector number `vector` of a row's sums, with the bias if there is one.
inline Floats load_sums(const PackedMatrix& weight, std::int64_t panel, const float* sums,
                        int vector) {
  const Floats plain = load(sums + vector * kLanes);
  if (weight.bias == nullptr) return plain;
  return plain + load(weight.bias + panel * kPanel + vector * kLanes);
}

struct StoreFloat {
  const PackedMatrix& weight;
  float* out;  // [rows, outputs]
  float soft_cap = 0.0f;  // 0: none

  void operator()(std::int64_t row, std::int64_t panel, const float* sums) const {
    for (int vector = 0; vector < kVectors; ++vector) {
      const std::int64_t column = panel * kPanel + vector * kLanes;
      const Floats values = load_sums(weight, panel, sums, vector);
      store(out + row * weight.outputs + column,
            soft_cap == 0.0f ? values : capped(values, soft_cap),
            first_lanes(weight.outputs - column));
    }
  }
};

struct AddToResidual {
  const PackedMatrix& weight;
  float* residual;  // [rows, outputs]

  void operator()(std::int64_t row, std::int64_t panel, const float* sums) const {
    for (int vector = 0; vector < kVectors; ++vector) {
      const std::int64_t column = panel * kPanel + vector * kLanes;
      const Lanes lanes = first_lanes(weight.outputs - column);
      float* target = residual + row * weight.outputs + column;
      store(target, load(target, lanes) + load_sums(weight, panel, sums, vector), lanes);
    }
  }
};

// The most likely token of a row among those seen so far.
struct Candidate {
  float value = -std::numeric_limits<float>::infinity();
  std::int32_t token = -1;  // stays where no value is a number

  // The first of equals wins, in whatever order they come.
  void consider(const Candidate& other) {
    if (other.value > value || (other.value == value && other.token < token)) *this = other;
  }
};

// Keeps the largest sum of each row instead of all of them. For a weight without bias.
struct KeepLargest {
  const PackedMatrix& weight;
  Candidate* best;  // [rows]

  void operator()(std::int64_t row, std::int64_t panel, const float* sums) const {
    Floats largest = splat(-std::numeric_limits<float>::infinity());
    for (int vector = 0; vector < kVectors; ++vector) {
      const Lanes lanes = first_lanes(weight.outputs - panel * kPanel - vector * kLanes);
      largest = larger(largest, load(sums + vector * kLanes), lanes);
    }
    const float value = largest_of(largest);
    if (value < best[row].value) return;
    const float* found = std::find(sums, sums + kPanel, value);
    if (found == sums + kPanel) return;  // not a number
    best[row].consider({value, static_cast<std::int32_t>(panel * kPanel + (found - sums))});
  }
};

enum class Activation : std::int64_t { kSilu = 0, kGeluTanh = 1, kClampedSwiglu = 2 };

struct GateToBf16 {
  const PackedMatrix& weight;
  Activation activation;
  bf16* out;  // [rows, stride]; padding columns of the last panel become zero
  std::int64_t stride;

  void operator()(std::int64_t row, std::int64_t panel, const float* sums) const {
    const Floats gate = load_sums(weight, panel, sums, 0);
    const Floats up = load_sums(weight, panel, sums, 1);
    const Floats both = load_sums(weight, panel, sums, 2);  // 8 gates, then their 8 ups
    bf16* target = out + row * stride + panel * kGated;
    const std::int64_t room = stride - panel * kGated;
    store_bf16(target, gated(gate, up), first_lanes(room));
    store_bf16(target + kLanes, gated(both, upper_half(both)),
               first_lanes(std::min<std::int64_t>(room, kGated) - kLanes));
  }

  Floats gated(Floats gate, Floats up) const {
    switch (activation) {
      case Activation::kSilu: return silu(gate) * up;
      case Activation::kGeluTanh: return gelu_tanh(gate) * up;
      default: return clamped_swiglu(gate, up);
    }
  }
};

// Reads some cache lines into the L2 cache per step: three for a stream, fewer for the panel to come.
// It always makes three accesses, of which some are to the same line: that costs less time than a
// branch, and less of the compiler's than a tile of its own for each number of lines.
struct ReadAhead {
  std::uintptr_t next;  // an address, not a pointer: it may run over the end of the weights
  std::uintptr_t second = 0, third = 0, size = 0;

  explicit ReadAhead(const void* here) : next(reinterpret_cast<std::uintptr_t>(here)) {}
  ReadAhead(std::uintptr_t start, int lines)
      : next(start), second(lines > 1 ? kCacheLine : 0),
        third(lines > 2 ? 2 * kCacheLine : second), size(lines * kCacheLine) {}

  void step(std::int64_t) {
    prefetch_second_level(reinterpret_cast<const void*>(next));
    prefetch_second_level(reinterpret_cast<const void*>(next + second));
    prefetch_second_level(reinterpret_cast<const void*>(next + third));
    next += size;
  }
};

// What a later phase reads, in pieces of this size. Products ask for two lines of one per step.
constexpr std::int64_t kPieceSteps = 32;
constexpr std::int64_t kPieceBytes = 2 * kPieceSteps * kCacheLine;

struct ReadPieces {
  const char* base;
  const std::int64_t* offsets;

  [[gnu::always_inline]] void step(std::int64_t number) {
    const char* piece = base + offsets[number / kPieceSteps];
    prefetch_second_level(piece + number % kPieceSteps * kCacheLine);
    prefetch_second_level(piece + (kPieceSteps + number % kPieceSteps) * kCacheLine);
  }
};

// The pieces of one thread that nobody has asked for yet.
struct alignas(kCacheLine) Upcoming {
  const char* base = nullptr;
  const std::int64_t *next = nullptr, *end = nullptr;

  bool are_enough(std::int64_t steps) const { return end - next > steps / kPieceSteps; }
  ReadPieces take(std::int64_t steps) {
    const ReadPieces taken{base, next};
    next += steps / kPieceSteps;
    return taken;
  }
};

// out[r][0..48] = sums of `count` rows, at most kTileRows, and one panel. In tiles.cpp.
void multiply_rows(int count, const bf16* rows, std::int64_t stride, const bf16* panel,
                   std::int64_t pairs, ReadAhead ahead, float* out);
// The same of kTileRows rows, while what a later phase needs is read ahead.
void multiply_rows(const bf16* rows, std::int64_t stride, const bf16* panel, std::int64_t pairs,
                   ReadPieces ahead, float* out);

// Hands the sums of `count` rows of one panel to an epilogue: together to one that takes several.
template <class Epilogue>
auto finish_rows(const Epilogue& epilogue, std::int64_t row, int count, std::int64_t panel,
                 float* sums, int) -> decltype(epilogue.take_rows(row, count, panel, sums)) {
  epilogue.take_rows(row, count, panel, sums);
}

template <class Epilogue>
void finish_rows(const Epilogue& epilogue, std::int64_t row, int count, std::int64_t panel,
                 float* sums, long) {
  for (int r = 0; r < count; ++r) epilogue(row + r, panel, sums + r * kPanel);
}

// Rows that one visit of a panel covers: few panels and many rows still make work for all threads.
constexpr std::int64_t kRowBlock = 64;

inline std::int64_t num_blocks(std::int64_t rows) { return (rows + kRowBlock - 1) / kRowBlock; }

// Rows `rows` of one panel. A single tile of rows reads the panel as one stream, a little ahead; of
// several tiles, the first ones read ahead the panel `next`, and the others what is `upcoming`.
template <class Epilogue>
void multiply_panel(const bf16* activations, std::int64_t stride, Span rows,
                    const PackedMatrix& weight, std::int64_t panel, std::int64_t next,
                    Upcoming& upcoming, const Epilogue& epilogue) {
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
    if (tiles_ahead <= 0 && count == kTileRows && upcoming.are_enough(weight.pairs)) {
      multiply_rows(source, stride, columns, weight.pairs, upcoming.take(weight.pairs), sums);
    } else {
      const ReadAhead following = tiles_ahead > 0 ? ReadAhead(ahead, lines) : ReadAhead(columns);
      multiply_rows(count, source, stride, columns, weight.pairs, following, sums);
    }
    finish_rows(epilogue, row, count, panel, sums, 0);
    ahead += lines * weight.pairs * kCacheLine;
  }
}

// body(rows, panel, next panel of this thread) for all rows and panels, shared by the team.
template <class Body>
void share_panels(Team& team, std::int64_t num_rows, std::int64_t panels, const Body& body) {
  const std::int64_t blocks = num_blocks(num_rows);
  team.share(panels * blocks, [&](std::int64_t item, std::int64_t following) {
    const std::int64_t panel = item / blocks, first = item % blocks * kRowBlock;
    const Span rows{first, std::min(first + kRowBlock, num_rows)};
    body(rows, panel, following < 0 ? panel : following / blocks);
  });
}

// epilogue(activations x weight), shared by the team. `activations` is [num_rows, stride] bf16.
template <class Epilogue>
void multiply(Team& team, const bf16* activations, std::int64_t stride, std::int64_t num_rows,
              const PackedMatrix& weight, Upcoming& upcoming, const Epilogue& epilogue) {
  share_panels(team, num_rows, weight.panels,
               [&](Span rows, std::int64_t panel, std::int64_t next) {
                 multiply_panel(activations, stride, rows, weight, panel, next, upcoming,
                                epilogue);
               });
}

}  // namespace stoker
