// Causal attention over the paged KV cache: one routine for decode, chunked prefill and mixtures.
//
// A unit is some query tokens of one sequence; with one kv head it has up to kUnitRows rows (tokens
// x query heads of the group) that share every key and value they read. Keys come in tiles of 128
// from position 0. Each tile yields a partial result (maximum, sum, weighted values) and partials
// are folded in order. Long contexts may be split over threads at tile borders: the partials and
// the order of folding stay the same, so a row's result depends on nothing but its own sequence.
//
// A token sees the keys up to its own; one of an image, which is whole in a step, all of the image.
// With a sliding window a unit begins at the first key that its first token sees: blocks before it
// belong to others, and their entries in the block table mean nothing.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "fp8.h"
#include "gemm.h"
#include "norm.h"
#include "thread_pool.h"
#include "vector_math.h"

namespace stoker {

constexpr int kKeyGroup = 16;  // keys of one vector; divides every block size
constexpr int kTileKeys = 128;
constexpr int kTileGroups = kTileKeys / kKeyGroup;
constexpr int kLineValues = kCacheLine / sizeof(bf16);
constexpr int kUnitRows = 24;     // of several passes of kPassRows
constexpr int kTasksPerThread = 8;
constexpr std::int64_t kMaxHeadDim = 512;
constexpr float kNever = -1e30f;  // finite stand-in for the maximum of nothing

// A layer's cache: for each (block, kv head) two planes, the keys as [dim pairs][block_size][2] and
// the values as [block_size][head_dim]. Sizes and strides count elements, which are bf16 or fp8.
struct CacheShape {
  std::int64_t block_size, kv_heads, head_dim;
  bool is_fp8;

  std::int64_t plane_size() const { return block_size * head_dim; }
  std::int64_t plane_of(std::int64_t block, std::int64_t head) const {
    return (block * kv_heads + head) * 2 * plane_size();
  }
  std::int64_t bytes(std::int64_t count) const { return count * (is_fp8 ? 1 : 2); }
};

struct Unit {
  std::int64_t sequence, token;  // `token` is its first row in the flat batch
  std::int64_t tokens, position;
  std::int64_t first_key;  // that its first token sees
  std::int64_t keys;       // end of those that its tokens see
  std::int64_t partials;   // where its split results start, in floats

  std::int64_t first_tile() const { return first_key / kTileKeys; }
  std::int64_t last_tile() const { return (keys + kTileKeys - 1) / kTileKeys; }  // exclusive
  std::int64_t tiles() const { return last_tile() - first_tile(); }
};

struct Task {
  std::int32_t unit, head;
  std::int32_t first_tile, last_tile;
};

// Key and value addresses of one tile's groups; groups outside of what is seen repeat one inside.
struct TileAddress {
  const char* keys[kTileGroups];
  const char* values[kTileGroups];
  std::int64_t key_stride;  // from one pair of dims to the next
  bool is_fp8;
};

template <class Element>
const Element* elements(const char* address) {
  return reinterpret_cast<const Element*>(address);
}

// Results of some rows: maximum (of scores in units of log 2), sum of weights, weighted values. The
// values are in the order in which `weigh_values` leaves them.
struct Partial {
  float* maximum;
  float* sum;
  float* values;  // [rows, head_dim]

  static std::int64_t padded(std::int64_t rows) { return round_up<std::int64_t>(rows, kLanes); }
  static std::int64_t size(std::int64_t rows, std::int64_t head_dim) {
    return 2 * padded(rows) + rows * head_dim;
  }
  static Partial at(float* memory, std::int64_t rows) {
    return {memory, memory + padded(rows), memory + 2 * padded(rows)};
  }
};

// One row of scores to weights 2^(score - maximum) in bf16 for groups `groups`; only keys `visible`
// weigh anything. `All`: every key of the groups is visible.
template <bool All>
void soften(const float* scores, Span visible, Span groups, bf16* weights, float* maximum,
            float* sum) {
  const auto seen = [&](std::int64_t group) {
    if (All) return first_lanes(kLanes);
    return lanes_between(visible.begin - group * kKeyGroup, visible.end - group * kKeyGroup);
  };
  Floats most = splat(kNever);
  for (std::int64_t group = groups.begin; group < groups.end; ++group) {
    most = larger(most, load(scores + group * kKeyGroup), seen(group));
  }
  *maximum = largest_of(most);
  const Floats shift = splat(*maximum);
  Floats total = splat(0.0f);
  for (std::int64_t group = groups.begin; group < groups.end; ++group) {
    const Floats score = load(scores + group * kKeyGroup);
    const Floats weight = only(rough_exp2_of(score - shift), seen(group));
    total = total + weight;
    store_bf16(weights + group * kKeyGroup, weight);
  }
  *sum = sum_of(total);
}

// Folds `part` (a later tile) into `total`.
inline void fold(Partial total, Partial part, std::int64_t rows, std::int64_t head_dim) {
  for (std::int64_t first = 0; first < rows; first += kLanes) {
    const Floats old_maximum = load(total.maximum + first);
    const Floats new_maximum = load(part.maximum + first);
    const Floats maximum = larger(old_maximum, new_maximum);
    const Floats keep = exp2_of(old_maximum - maximum);
    const Floats take = exp2_of(new_maximum - maximum);
    store(total.maximum + first, maximum);
    store(total.sum + first,
          multiply_add(keep, load(total.sum + first), take * load(part.sum + first)));
    alignas(64) float keeps[kLanes], takes[kLanes];
    store(keeps, keep);
    store(takes, take);
    for (std::int64_t row = first; row < std::min(first + kLanes, rows); ++row) {
      const Floats old_share = splat(keeps[row - first]);
      const Floats new_share = splat(takes[row - first]);
      for (std::int64_t dim = row * head_dim; dim < (row + 1) * head_dim; dim += kLanes) {
        const Floats added = new_share * load(part.values + dim);
        store(total.values + dim, multiply_add(old_share, load(total.values + dim), added));
      }
    }
  }
}

// One row of values / sum to bf16, dims back in order.
inline void write_output(const float* values, float sum, std::int64_t head_dim, bf16* out) {
  const Floats share = splat(1.0f / sum);
  for (std::int64_t dim = 0; dim < head_dim; dim += 2 * kLanes) {
    store_interleaved(out + dim, share * load(values + dim), share * load(values + dim + kLanes));
  }
}

// Turns a head by its position: value i and i + head_dim / 2 are the two coordinates.
template <class Element>
void rotate(const float* head, const float* cosines, const float* sines, std::int64_t head_dim,
            Element* out) {
  const std::int64_t half = head_dim / 2;
  for (std::int64_t dim = 0; dim < half; dim += kLanes) {
    const Floats x = load(head + dim), y = load(head + half + dim);
    const Floats cosine = load(cosines + dim), sine = load(sines + dim);
    store_rounded(out + dim, multiply_subtract(x, cosine, y * sine));
    store_rounded(out + half + dim, multiply_add(y, cosine, x * sine));
  }
}

struct RotaryTable {
  const float *cosines, *sines;  // [positions, head_dim / 2]
};

// What attention reads and writes in one layer. Rows of `qkv` are q, k and v heads side by side.
struct AttentionInput {
  const float* qkv;
  std::int64_t qkv_stride;
  const float *q_norm, *k_norm;  // of each head; null where the family has none
  const float* sinks;            // [q_heads], likewise: scores of one more key whose value is zero
  RotaryTable rotary;
  char* cache;
  const std::int64_t* positions;
  const std::int64_t* key_ends;  // of each token, null where all see up to their own key
  const std::int64_t* slots;
  const std::int64_t* block_table;
  std::int64_t table_width;
  bf16* out;  // [tokens, q_heads x head_dim]
};

constexpr std::int64_t kNoWindow = std::int64_t{1} << 40;  // more keys than there will be

// Attention of all layers that see the same number of keys.
class Attention {
 public:
  // A token sees itself and the `window` - 1 before it; `scale` multiplies the scores, which are then
  // pressed softly below `soft_cap` if that is not 0.
  Attention(CacheShape cache, std::int64_t q_heads, std::int64_t window, float scale,
            float soft_cap, float eps)
      : cache_(cache), q_heads_(q_heads), group_(q_heads / cache.kv_heads), window_(window),
        score_scale_(kLog2E * scale), soft_cap_(kLog2E * soft_cap), eps_(eps) {}

  std::int64_t window() const { return window_; }

  // Position of the first key that a token at `position` sees.
  std::int64_t first_key(std::int64_t position) const {
    return std::max<std::int64_t>(0, position + 1 - window_);
  }

  // Cuts the batch into units and tasks, once per step. `key_ends` as in AttentionInput.
  void plan(const std::int64_t* query_start, const std::int64_t* num_computed,
            const std::int64_t* key_ends, std::int64_t sequences, int num_threads) {
    units_.clear();
    const std::int64_t tokens = std::max<std::int64_t>(1, kUnitRows / group_);
    for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
      const std::int64_t start = query_start[sequence], end = query_start[sequence + 1];
      for (std::int64_t token = start; token < end; token += tokens) {
        const std::int64_t position = num_computed[sequence] + token - start;
        const std::int64_t count = std::min(tokens, end - token);
        std::int64_t keys = position + count;
        for (std::int64_t i = token; key_ends != nullptr && i < token + count; ++i) {
          keys = std::max(keys, key_ends[i]);
        }
        units_.push_back({sequence, token, count, position, first_key(position), keys, 0});
      }
    }
    std::stable_sort(units_.begin(), units_.end(),
                     [](const Unit& a, const Unit& b) { return a.tiles() > b.tiles(); });
    add_tasks(num_threads);
    reserve(num_threads);
  }

  // Offsets, in the cache of a layer with this block table, of what tasks of `thread` read once: in
  // pieces of kPieceBytes, the first task's last. The cache cannot hold all of them, and those that
  // come last are still near when attention begins.
  void list_pieces(const std::int64_t* block_table, std::int64_t table_width, int thread,
                   int num_threads, std::vector<std::int64_t>& pieces) const {
    pieces.clear();
    const auto count = static_cast<std::int64_t>(tasks_.size());
    const Span part = span_of(count, thread, num_threads);
    for (std::int64_t number = part.end - 1; number >= part.begin; --number) {
      const Task& task = tasks_[number];
      const Unit& unit = units_[task.unit];
      if (rows_of(unit) > kPassRows) continue;
      const std::int64_t* table = block_table + unit.sequence * table_width;
      const std::int64_t size = cache_.block_size, bytes = cache_.bytes(2 * cache_.plane_size());
      const auto first = std::max<std::int64_t>(unit.first_key, task.first_tile * kTileKeys);
      const auto end = std::min<std::int64_t>(unit.keys, task.last_tile * kTileKeys);
      for (std::int64_t block = first / size; block * size < end; ++block) {
        const std::int64_t start = cache_.bytes(cache_.plane_of(table[block], task.head));
        for (std::int64_t i = 0; i < bytes; i += kPieceBytes) pieces.push_back(start + i);
      }
    }
  }

  // Norms and rotates the key of one (token, kv head) and writes it and its value.
  void store_kv(const AttentionInput& input, std::int64_t item) const {
    if (kHasAllFormats && cache_.is_fp8) {
      store_kv_as<fp8>(input, item);
    } else {
      store_kv_as<bf16>(input, item);
    }
  }

  // One layer; the keys and values of the step are in the cache.
  void run(Team& team, const AttentionInput& input) {
    const auto count = static_cast<std::int64_t>(tasks_.size());
    team.share(count, [&](std::int64_t item, std::int64_t following) {
      run_task(input, scratch_[team.thread()], tasks_[item],
               following < 0 ? nullptr : &tasks_[following]);
    });
  }

 private:
  struct Scratch {  // of one thread
    Buffer<bf16> queries, weights, widened;
    Buffer<float> scores, total, part;
  };

  template <class Element>
  void store_kv_as(const AttentionInput& input, std::int64_t item) const {
    const std::int64_t token = item / cache_.kv_heads, head = item % cache_.kv_heads;
    const std::int64_t block = input.slots[token] / cache_.block_size;
    const std::int64_t offset = input.slots[token] % cache_.block_size;
    const float* source = input.qkv + token * input.qkv_stride + (q_heads_ + head) * head_dim();
    alignas(64) Element key[kMaxHeadDim];
    turn(input, source, input.k_norm, token, key);
    Element* plane = reinterpret_cast<Element*>(input.cache) + cache_.plane_of(block, head);
    for (std::int64_t pair = 0; pair < head_dim() / 2; ++pair) {
      std::memcpy(plane + 2 * (offset + pair * cache_.block_size), key + 2 * pair,
                  2 * sizeof(Element));
    }
    Element* values = plane + cache_.plane_size() + offset * head_dim();
    source += cache_.kv_heads * head_dim();
    for (std::int64_t dim = 0; dim < head_dim(); dim += kLanes) {
      store_rounded(values + dim, load(source + dim));
    }
  }

  std::int64_t head_dim() const { return cache_.head_dim; }
  std::int64_t rows_of(const Unit& unit) const { return unit.tokens * group_; }

  void add_tasks(int num_threads) {
    const std::int64_t pieces = static_cast<std::int64_t>(units_.size()) * cache_.kv_heads;
    const std::int64_t wanted = kTasksPerThread * num_threads;
    std::int64_t tiles = 0;
    for (const Unit& unit : units_) tiles += unit.tiles() * cache_.kv_heads;
    const bool is_split = num_threads > 1 && pieces < wanted;
    const std::int64_t most = is_split ? std::max<std::int64_t>(1, tiles / wanted) : tiles;
    tasks_.clear();
    for (std::int32_t head = 0; head < cache_.kv_heads; ++head) {
      for (std::size_t unit = 0; unit < units_.size(); ++unit) {
        const std::int64_t end = units_[unit].last_tile();
        for (std::int64_t tile = units_[unit].first_tile(); tile < end; tile += most) {
          tasks_.push_back({static_cast<std::int32_t>(unit), head, static_cast<std::int32_t>(tile),
                            static_cast<std::int32_t>(std::min(tile + most, end))});
        }
      }
    }
    partial_floats_ = 0;
    if (!is_split) return;
    for (Unit& unit : units_) {
      unit.partials = partial_floats_;
      partial_floats_ +=
          cache_.kv_heads * unit.tiles() * Partial::size(rows_of(unit), head_dim());
    }
  }

  void reserve(int num_threads) {
    const std::int64_t rows = std::max<std::int64_t>(kUnitRows, group_);
    scratch_.resize(num_threads);
    for (Scratch& scratch : scratch_) {
      scratch.queries.reserve(rows * head_dim());
      scratch.weights.reserve(rows * kTileKeys);
      scratch.scores.reserve(rows * kTileKeys);
      if (cache_.is_fp8) scratch.widened.reserve(2 * kTileKeys * head_dim());
      scratch.total.reserve(Partial::size(rows, head_dim()));
      scratch.part.reserve(Partial::size(rows, head_dim()));
    }
    partials_.reserve(partial_floats_);
    const std::size_t pieces = units_.size() * cache_.kv_heads;
    if (partial_floats_ > 0 && pieces > num_counters_) {
      tiles_done_ = std::make_unique<std::atomic<std::int64_t>[]>(pieces);
      for (std::size_t piece = 0; piece < pieces; ++piece) tiles_done_[piece].store(0);
      num_counters_ = pieces;
    }
  }

  void run_task(const AttentionInput& input, Scratch& scratch, const Task& task,
                const Task* next_task) {
    const Unit& unit = units_[task.unit];
    const std::int64_t rows = rows_of(unit);
    const bool is_whole = task.last_tile - task.first_tile == unit.tiles();
    const Partial total = Partial::at(scratch.total.data(), rows);
    const Partial part = Partial::at(scratch.part.data(), rows);
    load_queries(input, unit, task.head, scratch.queries.data());
    TileAddress here = locate(input, unit, task.head, task.first_tile);
    for (std::int64_t tile = task.first_tile; tile < task.last_tile; ++tile) {
      TileAddress next = here;
      if (tile + 1 < task.last_tile) {
        next = locate(input, unit, task.head, tile + 1);
      } else if (next_task != nullptr) {
        next = locate(input, units_[next_task->unit], next_task->head, next_task->first_tile);
      }
      if (!is_whole) {
        run_tile(input, unit, tile, here, next, scratch, split_partial(unit, task.head, tile));
      } else if (tile == task.first_tile) {
        run_tile(input, unit, tile, here, next, scratch, total);
      } else {
        run_tile(input, unit, tile, here, next, scratch, part);
        fold(total, part, rows, head_dim());
      }
      here = next;
    }
    if (is_whole) {
      write_unit(input, unit, task.head, total);
    } else {
      finish_split(input, task);
    }
  }

  Partial split_partial(const Unit& unit, std::int64_t head, std::int64_t tile) {
    const std::int64_t rows = rows_of(unit);
    const std::int64_t number = head * unit.tiles() + tile - unit.first_tile();
    return Partial::at(partials_.data() + unit.partials + number * Partial::size(rows, head_dim()),
                       rows);
  }

  // Whoever finishes the last piece of a unit folds its tiles, in the order of an unsplit unit.
  void finish_split(const AttentionInput& input, const Task& task) {
    const Unit& unit = units_[task.unit];
    std::atomic<std::int64_t>& counter = tiles_done_[task.unit * cache_.kv_heads + task.head];
    const std::int64_t mine = task.last_tile - task.first_tile;
    if (counter.fetch_add(mine, std::memory_order_acq_rel) + mine < unit.tiles()) return;
    counter.store(0, std::memory_order_relaxed);  // for the next layer, behind a barrier
    const Partial total = split_partial(unit, task.head, unit.first_tile());
    for (std::int64_t tile = unit.first_tile() + 1; tile < unit.last_tile(); ++tile) {
      fold(total, split_partial(unit, task.head, tile), rows_of(unit), head_dim());
    }
    write_unit(input, unit, task.head, total);
  }

  // One query or key head of a token, normed where `norm` is not null, then rotated.
  template <class Element>
  void turn(const AttentionInput& input, const float* head, const float* norm, std::int64_t token,
            Element* out) const {
    alignas(64) float normed[kMaxHeadDim];
    if (norm != nullptr) {
      norm_to_float(head, norm, head_dim(), eps_, normed);
      head = normed;
    }
    const std::int64_t place = input.positions[token] * (head_dim() / 2);
    rotate(head, input.rotary.cosines + place, input.rotary.sines + place, head_dim(), out);
  }

  void load_queries(const AttentionInput& input, const Unit& unit, std::int64_t head,
                    bf16* queries) const {
    for (std::int64_t token = unit.token; token < unit.token + unit.tokens; ++token) {
      const float* source = input.qkv + token * input.qkv_stride + head * group_ * head_dim();
      for (std::int64_t member = 0; member < group_; ++member, queries += head_dim()) {
        turn(input, source + member * head_dim(), input.q_norm, token, queries);
      }
    }
  }

  TileAddress locate(const AttentionInput& input, const Unit& unit, std::int64_t head,
                     std::int64_t tile) const {
    const std::int64_t* table = input.block_table + unit.sequence * input.table_width;
    const std::int64_t first = unit.first_key / kKeyGroup, last = (unit.keys - 1) / kKeyGroup;
    TileAddress address;
    address.key_stride = 2 * cache_.block_size;
    address.is_fp8 = cache_.is_fp8;
    const auto seen = [=](std::int64_t group) { return std::max(first, std::min(group, last)); };
    std::int64_t number = seen(tile * kTileGroups);
    std::int64_t place = number * kKeyGroup / cache_.block_size;  // divided once: it takes long
    std::int64_t offset = number * kKeyGroup - place * cache_.block_size;
    for (std::int64_t group = 0; group < kTileGroups; ++group) {
      if (seen(tile * kTileGroups + group) != number) {
        ++number;
        offset += kKeyGroup;
        if (offset == cache_.block_size) ++place, offset = 0;
      }
      const std::int64_t keys = cache_.plane_of(table[place], head);
      const std::int64_t values = keys + cache_.plane_size();
      address.keys[group] = input.cache + cache_.bytes(keys + 2 * offset);
      address.values[group] = input.cache + cache_.bytes(values + offset * head_dim());
    }
    return address;
  }

  // The tile in bf16, for units that read it in several passes.
  TileAddress widen(const TileAddress& tile, const TileAddress& next, Span groups,
                    bf16* out) const {
    const std::int64_t lines = head_dim() * kKeyGroup / kLineValues;  // of keys, and of values
    TileAddress result;
    result.key_stride = kLineValues;
    result.is_fp8 = false;
    for (std::int64_t group = 0; group < kTileGroups; ++group) {
      const std::int64_t source = std::max(groups.begin, std::min(group, groups.end - 1));
      bf16* keys = out + source * 2 * lines * kLineValues;
      bf16* values = keys + lines * kLineValues;
      result.keys[group] = reinterpret_cast<const char*>(keys);
      result.values[group] = reinterpret_cast<const char*>(values);
      if (group != source) continue;
      for (std::int64_t line = 0; line < lines; ++line) {
        const std::int64_t key = line * tile.key_stride, value = line * kLineValues;
        prefetch_second_level(elements<fp8>(next.keys[group]) + key);
        prefetch_second_level(elements<fp8>(next.values[group]) + value);
        store_line(keys + line * kLineValues, load_line(elements<fp8>(tile.keys[group]) + key));
        store_line(values + value, load_line(elements<fp8>(tile.values[group]) + value));
      }
    }
    return result;
  }

  // Place behind the last key that a token of the unit sees.
  static std::int64_t key_end(const AttentionInput& input, const Unit& unit, std::int64_t token) {
    const std::int64_t own = unit.position + token + 1;
    return input.key_ends == nullptr ? own : input.key_ends[unit.token + token];
  }

  void run_tile(const AttentionInput& input, const Unit& unit, std::int64_t tile,
                TileAddress address, const TileAddress& next, Scratch& scratch,
                Partial out) const {
    const std::int64_t rows = rows_of(unit), start = tile * kTileKeys;
    // Numbers in this tile: what any row sees, from an even key on.
    const Span keys{std::max<std::int64_t>(0, unit.first_key - start) / 2 * 2,
                    std::min<std::int64_t>(kTileKeys, unit.keys - start)};
    const Span groups{keys.begin / kKeyGroup, (keys.end + kKeyGroup - 1) / kKeyGroup};
    if (kHasAllFormats && address.is_fp8 && rows > kPassRows) {
      address = widen(address, next, groups, scratch.widened.data());
    }
    // A unit of one pass reads its keys once, from memory.
    const TileAddress* ahead = rows <= kPassRows ? &next : nullptr;
    std::memset(out.maximum, 0, 2 * Partial::padded(rows) * sizeof(float));  // padding included
    for (std::int64_t row = 0; row < rows; row += kPassRows) {
      const int pass = static_cast<int>(std::min<std::int64_t>(kPassRows, rows - row));
      score_rows(pass, groups, scratch.queries.data() + row * head_dim(),
                 address, ahead, scratch.scores.data() + row * kTileKeys);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      if (soft_cap_ != 0.0f) cap_scores(groups, scratch.scores.data() + row * kTileKeys);
      const std::int64_t token = row / group_;
      const std::int64_t end = key_end(input, unit, token) - start;
      const Span visible{unit.position + token + 1 - window_ - start, end};
      const bool all = visible.begin <= groups.begin * kKeyGroup && end >= groups.end * kKeyGroup;
      (all ? soften<true> : soften<false>)(
          scratch.scores.data() + row * kTileKeys, visible, groups,
          scratch.weights.data() + row * kTileKeys, out.maximum + row, out.sum + row);
    }
    for (std::int64_t row = 0; row < rows; row += kPassRows) {
      const int pass = static_cast<int>(std::min<std::int64_t>(kPassRows, rows - row));
      weigh_rows(pass, keys, scratch.weights.data() + row * kTileKeys, address,
                 ahead, out.values + row * head_dim());
    }
  }

  void cap_scores(Span groups, float* scores) const {
    for (std::int64_t i = groups.begin * kKeyGroup; i < groups.end * kKeyGroup; i += kLanes) {
      store(scores + i, capped(load(scores + i), soft_cap_));
    }
  }

  // Passes of `rows` rows, see tiles.cpp. `next` is read ahead, if there is one.
  void score_rows(int rows, Span groups, const bf16* queries, const TileAddress& address,
                  const TileAddress* next, float* scores) const;
  void weigh_rows(int rows, Span keys, const bf16* weights, const TileAddress& address,
                  const TileAddress* next, float* out) const;

  void write_unit(const AttentionInput& input, const Unit& unit, std::int64_t head,
                  Partial total) const {
    for (std::int64_t row = 0; row < rows_of(unit); ++row) {
      const std::int64_t token = unit.token + row / group_;
      const std::int64_t q_head = head * group_ + row % group_;
      const float sink = input.sinks == nullptr
                             ? 0.0f
                             : std::exp2(kLog2E * input.sinks[q_head] - total.maximum[row]);
      write_output(total.values + row * head_dim(), total.sum[row] + sink, head_dim(),
                   input.out + (token * q_heads_ + q_head) * head_dim());
    }
  }

  CacheShape cache_;
  std::int64_t q_heads_, group_, window_;
  float score_scale_, soft_cap_, eps_;  // the first two in units of log 2
  std::vector<Unit> units_;
  std::vector<Task> tasks_;
  std::vector<Scratch> scratch_;
  Buffer<float> partials_;
  std::int64_t partial_floats_ = 0;  // 0: no context is split in this step
  std::unique_ptr<std::atomic<std::int64_t>[]> tiles_done_;  // of each (unit, head), when split
  std::size_t num_counters_ = 0;
};

}  // namespace stoker
