// A weight in any of its formats, the input rows that it wants, and their product: the one place
// that knows which format has which code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "gemm.h"
#include "gemm_int4.h"
#include "gemm_int8.h"

namespace stoker {

struct Linear {
  PackedMatrix plain;         // its bias and sizes are for all formats, its data for bf16 only
  QuantizedMatrix quantized;  // for the other formats

  bool is_quantized() const { return kHasAllFormats && quantized.format != Format::kBf16; }
  const char* panel(std::int64_t index) const {
    return is_quantized() ? reinterpret_cast<const char*>(quantized.panel(index))
                          : reinterpret_cast<const char*>(plain.panel(index));
  }
};

// Inputs of a product. Rows for a quantized weight have memory of their own.
class LinearInputs {
 public:
  void reserve(std::int64_t rows, const Linear& weight) {
    if (!weight.is_quantized()) return;
    const QuantizedMatrix& matrix = weight.quantized;
    values_.reserve(rows * matrix.groups() * matrix.group_size());
    groups_.reserve(rows * matrix.groups());
  }

  QuantizedRows rows_for(const QuantizedMatrix& weight) {
    const std::int64_t groups = weight.groups();
    return {values_.data(), groups_.data(), groups * weight.group_size(), groups};
  }

  // Of one row of floats or bf16.
  template <class Value>
  void quantize(const Value* row, std::int64_t number, const QuantizedMatrix& weight) {
    const auto values = [&](std::int64_t i) { return widened(row + i, weight.inputs - i); };
    quantize_row(values, weight.group_size(), rows_for(weight).from(number));
  }

 private:
  // The next 16 values of a row that has `left` of them, zero behind its end.
  static Floats widened(const bf16* row, std::int64_t left) {
    return left >= kLanes ? load_bf16(row) : load_bf16(row, first_lanes(left));
  }
  static Floats widened(const float* row, std::int64_t left) {
    return left >= kLanes ? load(row) : load(row, first_lanes(left));
  }

  Buffer<std::int8_t> values_;
  Buffer<InputGroup> groups_;
};

template <int Rows, int Lines>
void multiply_quantized(QuantizedRows rows, const QuantizedMatrix& weight, std::int64_t panel,
                        std::uintptr_t ahead, float* out) {
  if (weight.format == Format::kInt8) {
    multiply_int8<Rows, Lines>(rows, weight, panel, ahead, out);
  } else {
    multiply_int4<Rows, Lines>(rows, weight, panel, ahead, out);
  }
}

// More rows would need more registers than there are, for the whole numbers and the floats.
constexpr int kByteTileRows = kTileRows < 4 ? kTileRows : 4;

template <int Lines, class... Arguments>
void multiply_quantized_rows(int count, Arguments... arguments) {
  constexpr int kMost = kByteTileRows;
  switch (count) {
    case 1: return multiply_quantized<1, Lines>(arguments...);
    case 2: return multiply_quantized<std::min(2, kMost), Lines>(arguments...);
    case 3: return multiply_quantized<std::min(3, kMost), Lines>(arguments...);
    default: return multiply_quantized<kMost, Lines>(arguments...);
  }
}

// As multiply_panel in gemm.h.
template <class Epilogue>
void multiply_quantized_panel(QuantizedRows inputs, Span rows, const QuantizedMatrix& weight,
                              std::int64_t panel, std::int64_t next, const Epilogue& epilogue) {
  const std::int64_t tiles = (rows.end - rows.begin + kByteTileRows - 1) / kByteTileRows;
  const bool is_stream = tiles == 1;
  const int lines = is_stream ? kVectors : tiles == 2 ? 2 : 1;
  const std::int64_t line_bytes = (weight.panel_bytes() - weight.factor_bytes()) / kVectors;
  std::int64_t tiles_ahead = is_stream || next != panel ? (kVectors + lines - 1) / lines : 0;
  auto ahead = reinterpret_cast<std::uintptr_t>(is_stream ? weight.numbers(panel)
                                                          : weight.panel(next));
  if (is_stream) ahead += kPrefetchBytes;
  alignas(kCacheLine) float sums[kByteTileRows * kPanel];
  for (std::int64_t row = rows.begin; row < rows.end; row += kByteTileRows, --tiles_ahead) {
    const int count = static_cast<int>(std::min<std::int64_t>(kByteTileRows, rows.end - row));
    const QuantizedRows source = inputs.from(row);
    switch (tiles_ahead > 0 ? lines : 0) {
      case 3: multiply_quantized_rows<3>(count, source, weight, panel, ahead, sums); break;
      case 2: multiply_quantized_rows<2>(count, source, weight, panel, ahead, sums); break;
      case 1: multiply_quantized_rows<1>(count, source, weight, panel, ahead, sums); break;
      default: multiply_quantized_rows<0>(count, source, weight, panel, ahead, sums);
    }
    finish_rows(epilogue, row, count, panel, sums, 0);
    ahead += lines * line_bytes;
  }
}

template <class Epilogue>
void multiply(Team& team, QuantizedRows inputs, std::int64_t num_rows,
              const QuantizedMatrix& weight, const Epilogue& epilogue) {
  share_panels(team, num_rows, weight.panels,
               [&](Span rows, std::int64_t panel, std::int64_t next) {
                 multiply_quantized_panel(inputs, rows, weight, panel, next, epilogue);
               });
}

// Reads the beginning of this thread's part of a product while the phase before it ends.
inline void prefetch_linear(const Team& team, std::int64_t num_rows, const Linear& weight) {
  const std::int64_t blocks = num_blocks(num_rows);
  const Span items = span_of(weight.plain.panels * blocks, team.thread(), team.size());
  if (items.begin == items.end) return;
  const char* start = weight.panel(items.begin / blocks);
  for (std::int64_t offset = 0; offset < kPrefetchBytes; offset += kCacheLine) {
    prefetch_near(start + offset);
  }
}

}  // namespace stoker
