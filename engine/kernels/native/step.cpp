// One model step of a decoder, on a flat batch of tokens of many sequences.
//
// The interface is C: a handle owns packed weights, scratch memory and threads; arrays of a step
// and the KV cache belong to the caller. `library.py` mirrors the structs. Residual stream, norms,
// rotary positions, softmax and logits are float32. The KV cache is bf16 or fp8. Inputs of products
// are bf16; where weights are quantized they are int8.

#include <unistd.h>

#include <exception>

#include "arena.h"
#include "attention.h"
#include "experts.h"
#include "linear.h"
#include "lora.h"
#include "norm.h"
#include "ranks.h"
#include "thread_pool.h"
#include "vector_math.h"

namespace stoker {

struct Shape {
  std::int64_t num_layers, hidden, inner, q_heads, kv_heads, head_dim, vocab;
  std::int64_t num_positions, block_size, num_threads, num_groups, num_pages;
  std::int64_t qkv_bias, output_bias, mlp_bias, qk_norm, sandwich_norms, sinks;  // 0 or 1
  Activation activation;
  Format layer_format, head_format;  // of the packed weights
  std::int64_t fp8_cache;            // 0 or 1
  // Heads and `inner` are this rank's; of the vocabulary it has `vocab_rows` from `vocab_first`, and
  // as many or, in a stage before the last, none of the head's.
  std::int64_t rank, num_ranks, vocab_first, vocab_rows, head_rows;
  // Of each layer; `inner` is one expert's. 0: a layer has one feed-forward block for all tokens.
  std::int64_t num_experts, experts_per_token;
  std::int64_t normalized_experts, router_bias;  // 0 or 1
  double eps;
  double norm_offset;  // is added to every norm's weights
  double embedding_scale, score_scale;
  double score_cap, logit_cap;  // soft caps, 0 for none
};

// bf16, row-major [out, in]; q, k, v and gate, up are fused along `out`. What the model does not
// have is null. Of experts all gate_up, all down and all biases of each lie one behind the other.
// `.._inputs` [in] are the mean squares of what a linear was measured to read, null where nobody did.
// The layer's KV lies in the blocks of `group`, in cache tensor `page`.
struct LayerTensors {
  const bf16 *input_norm, *qkv, *qkv_bias, *q_norm, *k_norm, *sinks;
  const bf16 *output, *output_bias, *attention_norm, *post_norm, *router, *router_bias;
  const bf16 *gate_up, *gate_up_bias, *down, *down_bias, *mlp_norm;
  const bf16 *qkv_inputs, *output_inputs, *gate_up_inputs, *down_inputs;
  std::int64_t group, page;
};

struct ModelTensors {
  const bf16* embedding;  // [vocab_rows, hidden], stays the caller's and must outlive the handle
  const bf16* final_norm;
  const bf16* lm_head;
  RotaryTable rotary, local_rotary;  // as `embedding`; the second is for layers with a window
};

struct Batch {
  const std::int64_t *token_ids, *positions;  // [num_tokens]
  const std::int64_t* slot_mapping;           // [num_groups, num_tokens]
  const std::int64_t* query_start;            // [num_sequences + 1]
  const std::int64_t* num_computed;           // [num_sequences]
  const std::int64_t* block_table;            // [num_groups, num_sequences, table_width]
  const std::int64_t* logits_rows;            // [num_logits]
  std::int64_t num_tokens, num_sequences, table_width, num_logits;
  char* const* cache;  // one address per page
  std::int64_t num_blocks;
  const float* residual;  // [num_tokens, hidden] from the stage before; null in the first
  const std::int64_t* adapters;  // [num_tokens] slot or -1; null: no token has an adapter
  // Of images, null without any: the place behind the last key that each token sees, and the row of
  // `embeddings` that stands for it, -1 where its id does.
  const std::int64_t *key_ends, *embedded;  // [num_tokens]
  const float* embeddings;                  // [num_embeddings, hidden], not scaled
  std::int64_t num_embeddings;
};

// What a step yields for the rows asked for.
enum Output : std::int32_t {
  kLogits = 0,  // [num_logits, vocab]
  kHidden = 1,  // [num_logits, hidden], after the final norm
  kTokens = 2,  // int64 [num_logits], the first token with the largest logit
  kResidual = 3,  // [num_tokens, hidden], of a stage that is not the last
};

enum Status : std::int32_t {
  kDone = 0,
  kOutOfMemory = 1,
  kBadToken = 2,
  kBadPosition = 3,
  kBadSlot = 4,
  kBadQueryStart = 5,
  kBadBlockTable = 6,
  kBadLogitsRow = 7,
  kTooManyTokens = 8,
  kRanksDisagree = 9,
  kBadAdapter = 10,
  kBadKeyEnd = 11,
  kBadEmbedding = 12,
};

namespace {

constexpr std::int64_t kPhasesPerLayer = 19, kOtherPhases = 8;  // calls of Team::share below

// Where the matrices of an adapter stand in LoraAdapter, and in what `load_adapter` takes.
enum LoraPlace : int { kQkv = 0, kOutput = 1, kGateUp = 2, kDown = 3 };

struct FeedForward {
  Linear gate_up, down;
};

// The norms of heads and of the blocks' outputs, and sinks, are null where the family has none.
struct Layer {
  float *input_norm, *q_norm, *k_norm, *sinks, *attention_norm, *post_norm, *mlp_norm;
  Linear qkv, output, router;
  std::vector<FeedForward> blocks;  // one, or one per expert
  std::int64_t group, page;
};

class Model {
 public:
  // `windows` has one entry per group, 0 for full attention.
  Model(const Shape& shape, const std::int64_t* windows)
      : shape_(shape), eps_(static_cast<float>(shape.eps)), layers_(shape.num_layers),
        pool_(static_cast<int>(shape.num_threads),
              kPhasesPerLayer * shape.num_layers + kOtherPhases) {
    for (std::int64_t group = 0; group < shape.num_groups; ++group) add_group(windows[group]);
    lay_out();
    weights_.allocate();
    lay_out();
  }

  void load_layer(std::int64_t index, const LayerTensors& tensors) {
    Layer& layer = layers_[index];
    layer.group = tensors.group;
    layer.page = tensors.page;
    if (is_packed_) return;
    load_norm(tensors.input_norm, shape_.hidden, layer.input_norm);
    load_norm(tensors.q_norm, shape_.head_dim, layer.q_norm);
    load_norm(tensors.k_norm, shape_.head_dim, layer.k_norm);
    load_floats(tensors.sinks, shape_.q_heads, layer.sinks);
    load_norm(tensors.attention_norm, shape_.hidden, layer.attention_norm);
    load_norm(tensors.post_norm, shape_.hidden, layer.post_norm);
    load_norm(tensors.mlp_norm, shape_.hidden, layer.mlp_norm);
    pack(tensors.qkv, tensors.qkv_bias, shape_.hidden, Columns::kPlain, layer.qkv,
         tensors.qkv_inputs);
    pack(tensors.output, tensors.output_bias, q_size(), Columns::kPlain, layer.output,
         tensors.output_inputs);
    if (has_experts()) {
      pack(tensors.router, tensors.router_bias, shape_.hidden, Columns::kPlain, layer.router);
    }
    const std::int64_t hidden = shape_.hidden, inner = shape_.inner;
    for (std::size_t i = 0; i < layer.blocks.size(); ++i) {
      const auto part = [i](const bf16* all, std::int64_t size) {
        return all == nullptr ? nullptr : all + i * size;
      };
      const FeedForward& block = layer.blocks[i];
      pack(part(tensors.gate_up, 2 * inner * hidden), part(tensors.gate_up_bias, 2 * inner), hidden,
           Columns::kGateUp, block.gate_up, tensors.gate_up_inputs);
      pack(part(tensors.down, hidden * inner), part(tensors.down_bias, hidden), inner,
           Columns::kPlain, block.down, tensors.down_inputs);
    }
  }

  void load_ends(const ModelTensors& tensors) {
    embedding_ = tensors.embedding;
    rotary_ = tensors.rotary;
    local_rotary_ = tensors.local_rotary;
    if (is_packed_) return;
    load_norm(tensors.final_norm, shape_.hidden, final_norm_);
    pack(tensors.lm_head, nullptr, shape_.hidden, Columns::kPlain, lm_head_);
  }

  // Adapters come and go between steps. `tensors` has those of each layer in the order of LoraPlace.
  void load_adapter(std::int64_t slot, const LoraTensors* tensors) {
    pool_.settle();
    if (slot >= static_cast<std::int64_t>(adapters_.size())) adapters_.resize(slot + 1);
    LoraAdapter adapter;
    adapter.layers.resize(shape_.num_layers);
    lay_out_adapter(tensors, adapter);
    adapter.memory.allocate();
    lay_out_adapter(tensors, adapter);
    for (const auto& layer : adapter.layers) {
      for (const LoraLinear& linear : layer) {
        low_stride_ = std::max(low_stride_, linear.padded_rank());
      }
    }
    adapters_[slot] = std::move(adapter);
  }

  void remove_adapter(std::int64_t slot) {
    pool_.settle();
    if (slot < static_cast<std::int64_t>(adapters_.size())) adapters_[slot] = LoraAdapter();
  }

  void join(const RankMemory& memory) { ranks_.join(memory, shape_.rank, shape_.num_ranks); }

  std::int64_t weight_bytes() const { return weights_.bytes(); }
  char* packed_weights() { return weights_.data(); }

  // Takes all packed weights and norms from a file, where they start at `offset`; after that
  // `load_layer` and `load_ends` take only the rest. Mapped instead, the pages would be small, and
  // a step of one sequence slower.
  bool read_packed(int file, std::int64_t offset) {
    constexpr std::int64_t kPiece = 4 << 20;
    const std::int64_t bytes = weight_bytes();
    std::atomic<bool> is_whole{true};
    pool_.run([&, file, offset, bytes](Team& team) {
      team.share((bytes + kPiece - 1) / kPiece, [&](std::int64_t piece, std::int64_t) {
        const std::int64_t start = piece * kPiece, size = std::min(kPiece, bytes - start);
        if (!read_all(file, offset + start, size, weights_.data() + start)) is_whole = false;
      });
    });
    pool_.settle();  // before `is_whole` goes
    is_packed_ = is_whole;
    return is_packed_;
  }

  Status check(const Batch& batch) const;
  bool has_adapter(std::int64_t slot) const {
    return slot < static_cast<std::int64_t>(adapters_.size()) && !adapters_[slot].layers.empty();
  }

  // Only the first of several ranks writes logits and tokens.
  Status forward(const Batch& batch, Output output, void* out) {
    if (batch.num_tokens == 0) return kDone;
    pool_.settle();
    first_meeting_ = next_meeting_;
    for (Attention& attention : attentions_) {
      attention.plan(batch.query_start, batch.num_computed, batch.key_ends, batch.num_sequences,
                     pool_.size());
    }
    list_pieces(batch);
    residual_.reserve(batch.num_tokens * shape_.hidden);
    normed_.reserve(std::max(batch.num_tokens, batch.num_logits) * hidden_stride());
    qkv_out_.reserve(batch.num_tokens * qkv_size());
    attended_.reserve(batch.num_tokens * q_size());
    if (has_experts()) reserve_experts(batch.num_tokens);
    gated_.reserve(rows_of_blocks(batch.num_tokens) * inner_stride());
    reserve_inputs(batch.num_tokens, batch.num_logits);
    if (shape_.sandwich_norms != 0) projected_.reserve(batch.num_tokens * shape_.hidden);
    if (batch.adapters != nullptr) lows_.reserve(batch.num_tokens * low_stride_);
    group_rows(batch);
    batch_ = batch;
    caches_.assign(batch.cache, batch.cache + shape_.num_pages);
    output_ = output;
    out_ = static_cast<float*>(out);
    if (ranks_.are_several() && output == kLogits) {
      out_ = reinterpret_cast<float*>(ranks_.own_output());
    }
    if (output == kTokens) best_.assign(pool_.size() * batch.num_logits, {});
    pool_.run([this](Team& team) { run_step(team); });
    // The buffer that was used last rests: without embeddings the next step's first is its second.
    next_meeting_ = first_meeting_ + 2 * shape_.num_layers + (batch.residual == nullptr ? 1 : 0);
    if (output == kTokens) write_tokens(static_cast<std::int64_t*>(out));
    if (output == kLogits && ranks_.are_several()) collect_logits(static_cast<float*>(out));
    return have_disagreed_ ? kRanksDisagree : kDone;
  }

 private:
  // Rows of activations start on cache lines; an odd last value is followed by a zero.
  std::int64_t hidden_stride() const { return round_up<std::int64_t>(shape_.hidden, 32); }
  std::int64_t inner_stride() const { return round_up<std::int64_t>(shape_.inner, 32); }
  std::int64_t q_size() const { return shape_.q_heads * shape_.head_dim; }
  std::int64_t qkv_size() const { return q_size() + 2 * shape_.kv_heads * shape_.head_dim; }

  bool has_experts() const { return shape_.num_experts > 0; }

  // Of all feed-forward blocks: one per token and expert of its.
  std::int64_t rows_of_blocks(std::int64_t tokens) const {
    return has_experts() ? tokens * shape_.experts_per_token : tokens;
  }

  void reserve_experts(std::int64_t tokens) {
    const std::int64_t rows = rows_of_blocks(tokens);
    routing_.reserve(shape_.num_layers, tokens, shape_.num_experts, shape_.experts_per_token);
    router_logits_.reserve(tokens * shape_.num_experts);
    gathered_.reserve(rows * hidden_stride());
    expert_out_.reserve(rows * shape_.hidden);
  }

  void lay_out_adapter(const LoraTensors* tensors, LoraAdapter& adapter) {
    for (std::int64_t index = 0; index < shape_.num_layers; ++index, tensors += kLoraLinears) {
      const Layer& layer = layers_[index];
      const auto take = [&](LoraPlace place, std::int64_t inputs, const Linear& weight,
                            Columns order) {
        adapter.layers[index][place].take(tensors[place], inputs, weight.plain, order,
                                          adapter.memory);
      };
      take(kQkv, shape_.hidden, layer.qkv, Columns::kPlain);
      take(kOutput, q_size(), layer.output, Columns::kPlain);
      if (has_experts()) continue;
      take(kGateUp, shape_.hidden, layer.blocks.front().gate_up, Columns::kGateUp);
      take(kDown, shape_.inner, layer.blocks.front().down, Columns::kPlain);
    }
  }

  // All layers are alike.
  void reserve_inputs(std::int64_t tokens, std::int64_t logits) {
    const Layer& layer = layers_.front();
    for (const Linear* weight : {&layer.qkv, &layer.output}) inputs_.reserve(tokens, *weight);
    const FeedForward& block = layer.blocks.front();
    for (const Linear* weight : {&block.gate_up, &block.down}) {
      inputs_.reserve(rows_of_blocks(tokens), *weight);
    }
    inputs_.reserve(logits, lm_head_);
    norm_scratch_.resize(pool_.size());
    for (Buffer<float>& scratch : norm_scratch_) scratch.reserve(shape_.hidden);
  }

  // Groups with the same window share their plan of a step.
  void add_group(std::int64_t window) {
    if (window == 0) window = kNoWindow;
    std::size_t kind = 0;
    while (kind < attentions_.size() && attentions_[kind].window() != window) ++kind;
    group_attentions_.push_back(kind);
    if (kind < attentions_.size()) return;
    const CacheShape cache{shape_.block_size, shape_.kv_heads, shape_.head_dim,
                           shape_.fp8_cache != 0};
    const auto scale = static_cast<float>(shape_.score_scale);
    const auto soft_cap = static_cast<float>(shape_.score_cap);
    attentions_.emplace_back(cache, shape_.q_heads, window, scale, soft_cap, eps_);
  }

  void lay_out() {
    const auto norm = [this](std::int64_t size, std::int64_t has_norm = 1) {
      return has_norm != 0 ? weights_.take<float>(size) : nullptr;
    };
    for (Layer& layer : layers_) {
      layer.input_norm = norm(shape_.hidden);
      const Format format = shape_.layer_format;
      layer.qkv = linear(qkv_size(), shape_.hidden, Columns::kPlain, shape_.qkv_bias, format);
      layer.q_norm = norm(shape_.head_dim, shape_.qk_norm);
      layer.k_norm = norm(shape_.head_dim, shape_.qk_norm);
      layer.sinks = norm(shape_.q_heads, shape_.sinks);
      layer.output =
          linear(shape_.hidden, q_size(), Columns::kPlain, shape_.output_bias, format);
      layer.attention_norm = norm(shape_.hidden, shape_.sandwich_norms);
      layer.post_norm = norm(shape_.hidden);
      if (has_experts()) {
        layer.router = linear(shape_.num_experts, shape_.hidden, Columns::kPlain,
                              shape_.router_bias, Format::kBf16);
      }
      layer.blocks.resize(has_experts() ? shape_.num_experts : 1);
      for (FeedForward& block : layer.blocks) {
        block.gate_up =
            linear(shape_.inner, shape_.hidden, Columns::kGateUp, shape_.mlp_bias, format);
      }
      for (FeedForward& block : layer.blocks) {
        block.down = linear(shape_.hidden, shape_.inner, Columns::kPlain, shape_.mlp_bias, format);
      }
      layer.mlp_norm = norm(shape_.hidden, shape_.sandwich_norms);
    }
    final_norm_ = norm(shape_.hidden);
    lm_head_ = linear(shape_.head_rows, shape_.hidden, Columns::kPlain, false, shape_.head_format);
  }

  Linear linear(std::int64_t outputs, std::int64_t inputs, Columns order, bool has_bias,
                Format format) {
    const std::int64_t per_panel = order == Columns::kPlain ? kPanel : kGated;
    const std::int64_t panels = (outputs + per_panel - 1) / per_panel, pairs = (inputs + 1) / 2;
    Linear result{{nullptr, nullptr, panels, pairs, outputs},
                  {nullptr, format, panels, inputs, outputs}};
    if (format == Format::kBf16) {
      result.plain.data = weights_.take<bf16>(panels * pairs * kPairLine);
    } else {
      result.quantized.data = weights_.take<std::uint8_t>(panels * result.quantized.panel_bytes());
    }
    if (has_bias) result.plain.bias = weights_.take<float>(panels * kPanel);
    return result;
  }

  void pack(const bf16* weight, const bf16* bias, std::int64_t inputs, Columns order,
            const Linear& target, const bf16* importance = nullptr) {
    const PackedMatrix& plain = target.plain;
    pool_.run([=](Team& team) {
      team.share(plain.panels, [&](std::int64_t panel, std::int64_t) {
        if (target.is_quantized()) {
          quantize_panel(weight, importance, order, target.quantized, panel);
        } else {
          pack_panel(weight, inputs, order, plain.outputs, panel, plain.panel(panel));
        }
      });
    });
    if (plain.bias == nullptr) return;
    for (std::int64_t i = 0; i < plain.panels * kPanel; ++i) {
      const std::int64_t row =
          source_row(order, plain.outputs, i / kPanel, static_cast<int>(i % kPanel));
      plain.bias[i] = row < 0 ? 0.0f : to_float(bias[row]);
    }
  }

  static bool read_all(int file, std::int64_t offset, std::int64_t size, char* target) {
    while (size > 0) {
      const ssize_t count = pread(file, target, size, offset);
      if (count <= 0) return false;
      offset += count, target += count, size -= count;
    }
    return true;
  }

  static float to_float(bf16 value) {
    const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
  }

  void load_norm(const bf16* source, std::int64_t size, float* target) const {
    load_floats(source, size, target, static_cast<float>(shape_.norm_offset));
  }

  static void load_floats(const bf16* source, std::int64_t size, float* target,
                          float offset = 0.0f) {
    if (target == nullptr) return;
    for (std::int64_t i = 0; i < size; ++i) target[i] = to_float(source[i]) + offset;
  }

  // Outside of items only members are read, never the caller's arrays: see ThreadPool::run.
  void run_step(Team& team) {
    embed(team);
    for (std::int64_t index = 0; index < shape_.num_layers; ++index) run_layer(team, index);
    const float* last_norm = layers_.back().mlp_norm;
    const std::int64_t last_meeting = first_meeting_ + 2 * shape_.num_layers;
    meet(team);  // where nobody reads it too: the buffers take turns
    if (batch_.num_logits == 0 && output_ != kResidual) return;
    if (last_norm != nullptr || ranks_.are_several()) {
      share_rows(team, batch_.num_tokens, [&](std::int64_t row) {
        add_projected(team, row, last_norm, last_meeting);
      });
    }
    if (output_ == kResidual) {
      share_rows(team, batch_.num_tokens, [this](std::int64_t row) {
        std::memcpy(out_ + row * shape_.hidden, residual_row(row), shape_.hidden * sizeof(float));
      });
      return;
    }
    if (output_ == kHidden) {
      share_rows(team, batch_.num_logits, [this](std::int64_t row) {
        norm_to_float(residual_row(batch_.logits_rows[row]), final_norm_, shape_.hidden, eps_,
                      out_ + row * shape_.hidden);
      });
      return;
    }
    share_rows(team, batch_.num_logits, [&](std::int64_t row) {
      norm(team, batch_.logits_rows[row], final_norm_, lm_head_, row);
    });
    if (output_ == kTokens) {
      Candidate* best = best_.data() + team.thread() * batch_.num_logits;
      multiply_normed(team, batch_.num_logits, lm_head_, KeepLargest{lm_head_.plain, best});
    } else {
      const auto soft_cap = static_cast<float>(shape_.logit_cap);
      multiply_normed(team, batch_.num_logits, lm_head_,
                      StoreFloat{lm_head_.plain, out_, soft_cap});
    }
  }

  void write_tokens(std::int64_t* tokens) {
    auto* found = reinterpret_cast<Candidate*>(ranks_.are_several() ? ranks_.own_output() : nullptr);
    for (std::int64_t row = 0; row < batch_.num_logits; ++row) {
      Candidate best;
      for (int thread = 0; thread < pool_.size(); ++thread) {
        best.consider(best_[thread * batch_.num_logits + row]);
      }
      if (best.token >= 0) best.token += static_cast<std::int32_t>(shape_.vocab_first);
      if (found != nullptr) found[row] = best;
      tokens[row] = best.token;
    }
    if (found != nullptr) collect_tokens(tokens);
  }

  void collect_tokens(std::int64_t* tokens) {
    meet_outputs();
    if (!ranks_.is_first()) return;
    for (std::int64_t row = 0; row < batch_.num_logits; ++row) {
      Candidate best;
      for (std::int64_t rank = 0; rank < ranks_.count(); ++rank) {
        best.consider(reinterpret_cast<const Candidate*>(ranks_.output(rank))[row]);
      }
      tokens[row] = best.token;
    }
  }

  // Each rank has the columns of its part of the vocabulary.
  void collect_logits(float* logits) {
    meet_outputs();
    if (!ranks_.is_first()) return;
    std::int64_t most = 0;
    for (std::int64_t rank = 0; rank < ranks_.count(); ++rank) {
      const std::int64_t first = shape_.vocab * rank / ranks_.count();
      const std::int64_t width = shape_.vocab * (rank + 1) / ranks_.count() - first;
      const auto* part = reinterpret_cast<const float*>(ranks_.output(rank));
      for (std::int64_t row = 0; row < batch_.num_logits; ++row) {
        std::memcpy(logits + row * shape_.vocab + first, part + row * width,
                    width * sizeof(float));
      }
      most = std::max(most, width);
    }
    ranks_.release_outputs(batch_.num_logits * most * static_cast<std::int64_t>(sizeof(float)));
  }

  void meet_outputs() {
    if (!ranks_.meet(batch_.num_logits)) have_disagreed_ = true;
  }

  void meet(Team& team) {
    if (!ranks_.are_several()) return;
    team.share(1, [&](std::int64_t, std::int64_t) {
      if (!ranks_.meet(batch_.num_tokens)) have_disagreed_ = true;
    });
  }

  // What each thread reads of the cache in the attention of each group's layers.
  void list_pieces(const Batch& batch) {
    upcoming_.resize(pool_.size());
    pieces_.resize(group_attentions_.size() * pool_.size());
    for (std::size_t group = 0; group < group_attentions_.size(); ++group) {
      const Attention& attention = attentions_[group_attentions_[group]];
      const std::int64_t row = group * batch.num_sequences;
      for (int thread = 0; thread < pool_.size(); ++thread) {
        attention.list_pieces(batch.block_table + row * batch.table_width, batch.table_width,
                              thread, pool_.size(), pieces_[group * pool_.size() + thread]);
      }
    }
  }

  // Products from here on ask for what this thread reads in the attention of layer `index`.
  void read_ahead(const Team& team, std::int64_t index) {
    Upcoming& upcoming = upcoming_[team.thread()];
    upcoming = {};
    if (index == shape_.num_layers) return;
    const auto& pieces = pieces_[layers_[index].group * pool_.size() + team.thread()];
    upcoming = {caches_[layers_[index].page], pieces.data(), pieces.data() + pieces.size()};
  }

  void run_layer(Team& team, std::int64_t index) {
    const Layer& layer = layers_[index];
    const std::int64_t tokens = batch_.num_tokens;
    const float* norm_before = index > 0 ? layers_[index - 1].mlp_norm : nullptr;
    const AttentionInput input = attention_input(layer);
    Attention& attention = attentions_[group_attentions_[layer.group]];
    const std::int64_t before = first_meeting_ + 2 * index, inside = before + 1;
    prefetch_linear(team, tokens, layer.qkv);
    if (index > 0) meet(team);
    share_rows(team, tokens, [&](std::int64_t row) {
      if (index > 0) add_projected(team, row, norm_before, before);
      norm(team, row, layer.input_norm, layer.qkv, row);
      keep_normed(team, row, layer.qkv);
    });
    shrink(team, normed_.data(), hidden_stride(), index, kQkv);
    multiply_normed(team, tokens, layer.qkv,
                    adapted(index, kQkv, StoreFloat{layer.qkv.plain, qkv_out_.data()}));
    share_rows(team, tokens * shape_.kv_heads, [&](std::int64_t item) {
      attention.store_kv(input, item);
    });
    attention.run(team, input);
    read_ahead(team, index + 1);
    project(team, attended_.data(), q_size(), index, kOutput, layer.output, layer.attention_norm,
            inside);
    const Linear& first = has_experts() ? layer.router : layer.blocks.front().gate_up;
    prefetch_linear(team, tokens, first);
    meet(team);
    share_rows(team, tokens, [&](std::int64_t row) {
      add_projected(team, row, layer.attention_norm, inside);
      norm(team, row, layer.post_norm, first, row);
      keep_normed(team, row, first);
    });
    if (has_experts()) {
      run_experts(team, index, inside + 1);
      return;
    }
    const FeedForward& block = layer.blocks.front();
    shrink(team, normed_.data(), hidden_stride(), index, kGateUp);
    const GateToBf16 gate{block.gate_up.plain, shape_.activation, gated_.data(), inner_stride()};
    multiply_normed(team, tokens, block.gate_up, adapted(index, kGateUp, gate));
    project(team, gated_.data(), inner_stride(), index, kDown, block.down, layer.mlp_norm,
            inside + 1);
  }

  // The feed-forward blocks of the experts that the normed rows choose.
  void run_experts(Team& team, std::int64_t index, std::int64_t meeting) {
    const Layer& layer = layers_[index];
    const std::int64_t rows = routing_.num_rows();
    multiply_normed(team, batch_.num_tokens, layer.router,
                    StoreFloat{layer.router.plain, router_logits_.data()});
    share_rows(team, batch_.num_tokens, [&](std::int64_t token) {
      routing_.choose(token, router_logits_.data() + token * shape_.num_experts,
                      shape_.normalized_experts != 0);
    });
    team.share(1, [&](std::int64_t, std::int64_t) { routing_.group(index); });
    const Linear& gate_up = layer.blocks.front().gate_up;
    share_rows(team, rows, [&](std::int64_t row) {
      bf16* target = gathered_.data() + row * hidden_stride();
      std::memcpy(target, normed_.data() + routing_.token_of(row) * hidden_stride(),
                  hidden_stride() * sizeof(bf16));
      if (gate_up.is_quantized()) inputs_.quantize(target, row, gate_up.quantized);
    });
    share_experts(team, index, gathered_.data(), hidden_stride(), &FeedForward::gate_up,
                  [&](const Linear& weight) {
                    return GateToBf16{weight.plain, shape_.activation, gated_.data(),
                                      inner_stride()};
                  });
    if (gate_up.is_quantized()) {
      share_rows(team, rows, [&](std::int64_t row) {
        inputs_.quantize(gated_.data() + row * inner_stride(), row,
                         layer.blocks.front().down.quantized);
      });
    }
    share_experts(team, index, gated_.data(), inner_stride(), &FeedForward::down,
                  [&](const Linear& weight) {
                    return StoreFloat{weight.plain, expert_out_.data()};
                  });
    share_rows(team, batch_.num_tokens, [&](std::int64_t token) {
      combine_experts(token, layer.mlp_norm, meeting);
    });
  }

  // The products of one linear of all experts that have rows, which lie in `rows` one expert behind
  // the other; epilogue(weight) takes the sums of one.
  template <class Epilogue>
  void share_experts(Team& team, std::int64_t index, const bf16* rows, std::int64_t stride,
                     Linear FeedForward::*linear, const Epilogue& epilogue) {
    const std::vector<FeedForward>& blocks = layers_[index].blocks;
    const std::int64_t panels = (blocks.front().*linear).plain.panels;
    team.share(routing_.num_groups(index) * panels, [&](std::int64_t item, std::int64_t following) {
      const ExpertRows& group = routing_.rows(item / panels);
      const Linear& weight = blocks[group.expert].*linear;
      const std::int64_t panel = item % panels, next = following < 0 ? panel : following % panels;
      if constexpr (kHasAllFormats) {
        if (weight.is_quantized()) {
          multiply_quantized_panel(inputs_.rows_for(weight.quantized), group.rows, weight.quantized,
                                   panel, next, epilogue(weight));
          return;
        }
      }
      multiply_panel(rows, stride, group.rows, weight.plain, panel, next,
                     upcoming_[team.thread()], epilogue(weight));
    });
  }

  // As `project`: into the residual, or where `add_projected` takes it from.
  void combine_experts(std::int64_t token, const float* norm, std::int64_t meeting) {
    const bool is_added = norm == nullptr && !ranks_.are_several();
    float* target = is_added ? residual_.data()
                    : ranks_.are_several() ? ranks_.own_part(meeting) : projected_.data();
    target += token * shape_.hidden;
    for (std::int64_t i = 0; i < shape_.hidden; i += kLanes) {
      const Lanes lanes = first_lanes(shape_.hidden - i);
      const Floats sum = routing_.combined(expert_out_.data(), shape_.hidden, token, i, lanes);
      store(target + i, is_added ? load(target + i, lanes) + sum : sum, lanes);
    }
  }

  AttentionInput attention_input(const Layer& layer) {
    const bool is_local = attentions_[group_attentions_[layer.group]].window() != kNoWindow;
    const std::int64_t table_size = batch_.num_sequences * batch_.table_width;
    return {qkv_out_.data(),
            qkv_size(),
            layer.q_norm,
            layer.k_norm,
            layer.sinks,
            is_local ? local_rotary_ : rotary_,
            caches_[layer.page],
            batch_.positions,
            batch_.key_ends,
            batch_.slot_mapping + layer.group * batch_.num_tokens,
            batch_.block_table + layer.group * table_size,
            batch_.table_width,
            attended_.data()};
  }

  // Adds the product of all tokens to the residual. A norm in between needs whole rows, and a sum
  // over ranks all of them: with one, `add_projected` does the second half.
  void project(Team& team, const bf16* rows, std::int64_t stride, std::int64_t index,
               LoraPlace place, const Linear& weight, const float* norm, std::int64_t meeting) {
    if (weight.is_quantized()) {
      prefetch_linear(team, batch_.num_tokens, weight);
      share_rows(team, batch_.num_tokens, [&](std::int64_t row) {
        inputs_.quantize(rows + row * stride, row, weight.quantized);
      });
    }
    shrink(team, rows, stride, index, place);
    if (norm == nullptr && !ranks_.are_several()) {
      const AddToResidual add{weight.plain, residual_.data()};
      multiply_any(team, rows, stride, batch_.num_tokens, weight, adapted(index, place, add));
      return;
    }
    float* target = ranks_.are_several() ? ranks_.own_part(meeting) : projected_.data();
    const StoreFloat keep{weight.plain, target};
    multiply_any(team, rows, stride, batch_.num_tokens, weight, adapted(index, place, keep));
  }

  // A x of all rows that have an adapter, for `place` of layer `index`.
  void shrink(Team& team, const bf16* rows, std::int64_t stride, std::int64_t index,
              LoraPlace place) {
    const auto count = static_cast<std::int64_t>(lora_rows_.size());
    if (count == 0) return;
    const std::int64_t blocks = low_stride_ / kLanes;
    team.share(count * blocks, [&](std::int64_t item, std::int64_t) {
      const LoraRows& group = lora_rows_[item / blocks];
      const LoraLinear& linear = adapters_[group.slot].layers[index][place];
      if (item % blocks >= linear.num_blocks()) return;
      const bf16* inputs[kLoraRows];
      bf16* lows[kLoraRows];
      for (int r = 0; r < group.count; ++r) {
        inputs[r] = rows + group.rows[r] * stride;
        lows[r] = lows_.data() + group.rows[r] * low_stride_;
      }
      linear.shrink(group.count, inputs, item % blocks, lows);
    });
  }

  // The norm of a row in bf16 too, where the weight takes it as integers.
  void keep_normed(const Team& team, std::int64_t row, const Linear& weight) {
    if (batch_.adapters == nullptr || !weight.is_quantized()) return;
    const float* norm = norm_scratch_[team.thread()].data();
    bf16* values = normed_.data() + row * hidden_stride();
    for (std::int64_t i = 0; i < hidden_stride(); i += kLanes) {
      store_bf16(values + i, load(norm + i, first_lanes(shape_.hidden - i)));
    }
  }

  // Rows with the same adapter: of the whole step for A, of each tile of a product for B.
  void group_rows(const Batch& batch) {
    lora_rows_.clear();
    lora_tiles_.clear();
    tile_ends_.clear();
    if (batch.adapters == nullptr) return;
    add_groups(batch, {0, batch.num_tokens}, lora_rows_);
    for (std::int64_t row = 0; row < batch.num_tokens; row += tile_rows()) {
      add_groups(batch, {row, std::min(row + tile_rows(), batch.num_tokens)}, lora_tiles_);
      tile_ends_.push_back(static_cast<std::int64_t>(lora_tiles_.size()));
    }
  }

  // Of the rows in `span`, in the order of the step.
  void add_groups(const Batch& batch, Span span, std::vector<LoraRows>& groups) {
    open_groups_.assign(adapters_.size(), -1);
    for (std::int64_t row = span.begin; row < span.end; ++row) {
      const std::int64_t slot = batch.adapters[row];
      if (slot < 0) continue;
      std::ptrdiff_t& open = open_groups_[slot];
      if (open < 0 || groups[open].count == kLoraRows) {
        open = static_cast<std::ptrdiff_t>(groups.size());
        groups.push_back({slot, 0, {}});
      }
      groups[open].rows[groups[open].count++] = row;
    }
  }

  // Rows that a product of a layer hands to its epilogue together.
  std::int64_t tile_rows() const {
    return layers_.front().qkv.is_quantized() ? kByteTileRows : kTileRows;
  }

  // What the adapter in `slot` reads next is asked for: of this linear the next panel, of the next
  // one a part of the inputs' side with each panel.
  void prefetch_adapter(std::int64_t slot, std::int64_t index, LoraPlace place,
                        std::int64_t panel) const {
    const auto& layers = adapters_[slot].layers;
    layers[index][place].prefetch_columns(panel + 1);
    const std::int64_t next = place == kDown ? index + 1 : index;
    if (next == shape_.num_layers) return;
    const Layer& layer = layers_[index];
    const FeedForward& block = layer.blocks.front();
    const Linear* linears[] = {&layer.qkv, &layer.output, &block.gate_up, &block.down};
    layers[next][(place + 1) % kLoraLinears].prefetch_rows(panel, linears[place]->plain.panels);
  }

  // Adds what adapters make of the rows of a tile, from `first` on, to their sums of one panel.
  void add_adapters(std::int64_t first, std::int64_t index, LoraPlace place, std::int64_t panel,
                    float* sums) const {
    const std::int64_t tile = first / tile_rows();
    for (std::int64_t number = tile == 0 ? 0 : tile_ends_[tile - 1]; number < tile_ends_[tile];
         ++number) {
      const LoraRows& group = lora_tiles_[number];
      const bf16* lows[kLoraRows];
      float* targets[kLoraRows];
      for (int r = 0; r < group.count; ++r) {
        lows[r] = lows_.data() + group.rows[r] * low_stride_;
        targets[r] = sums + (group.rows[r] - first) * kPanel;
      }
      if (first == 0) prefetch_adapter(group.slot, index, place, panel);
      adapters_[group.slot].layers[index][place].expand(group.count, lows, panel, targets);
    }
  }

  // An epilogue behind what the rows' adapters add.
  template <class Epilogue>
  struct Adapted {
    const Model& model;
    std::int64_t index;
    LoraPlace place;
    Epilogue epilogue;

    void take_rows(std::int64_t row, int count, std::int64_t panel, float* sums) const {
      if (model.batch_.adapters != nullptr) {
        model.add_adapters(row, index, place, panel, sums);
      }
      finish_rows(epilogue, row, count, panel, sums, 0);
    }
  };

  template <class Epilogue>
  Adapted<Epilogue> adapted(std::int64_t index, LoraPlace place, const Epilogue& epilogue) const {
    return {*this, index, place, epilogue};
  }

  template <class Epilogue>
  void multiply_normed(Team& team, std::int64_t num_rows, const Linear& weight,
                       const Epilogue& epilogue) {
    multiply_any(team, normed_.data(), hidden_stride(), num_rows, weight, epilogue);
  }

  // The inputs of a quantized weight are in `inputs_`.
  template <class Epilogue>
  void multiply_any(Team& team, const bf16* rows, std::int64_t stride, std::int64_t num_rows,
                    const Linear& weight, const Epilogue& epilogue) {
    if constexpr (kHasAllFormats) {
      if (weight.is_quantized()) {
        multiply(team, inputs_.rows_for(weight.quantized), num_rows, weight.quantized, epilogue);
        return;
      }
    }
    multiply(team, rows, stride, num_rows, weight.plain, upcoming_[team.thread()], epilogue);
  }

  void add_projected(const Team& team, std::int64_t row, const float* norm, std::int64_t meeting) {
    float* residual = residual_row(row);
    if (!ranks_.are_several()) {
      if (norm == nullptr) return;
      add_norm(projected_.data() + row * shape_.hidden, norm, shape_.hidden, eps_, residual);
    } else if (norm == nullptr) {
      ranks_.sum_row(meeting, row, shape_.hidden, [=](std::int64_t i, Lanes lanes, Floats sum) {
        store(residual + i, load(residual + i, lanes) + sum, lanes);
      });
    } else {
      float* scratch = norm_scratch_[team.thread()].data();
      sum_ranks(meeting, row, scratch);
      add_norm(scratch, norm, shape_.hidden, eps_, residual);
    }
  }

  void sum_ranks(std::int64_t meeting, std::int64_t row, float* target) const {
    ranks_.sum_row(meeting, row, shape_.hidden, [=](std::int64_t i, Lanes lanes, Floats sum) {
      store(target + i, sum, lanes);
    });
  }

  // The residual before the first layer: of the stage before, or the tokens' embeddings, of which
  // each rank has a part.
  void embed(Team& team) {
    if (batch_.residual != nullptr) {
      share_rows(team, batch_.num_tokens, [this](std::int64_t row) {
        std::memcpy(residual_row(row), batch_.residual + row * shape_.hidden,
                    shape_.hidden * sizeof(float));
      });
      return;
    }
    const bool are_several = ranks_.are_several();
    float* target = are_several ? ranks_.own_part(first_meeting_) : residual_.data();
    share_rows(team, batch_.num_tokens, [=](std::int64_t row) {
      const std::int64_t place = batch_.embedded == nullptr ? -1 : batch_.embedded[row];
      if (place >= 0) {
        embed_image(batch_.embeddings + place * shape_.hidden, target + row * shape_.hidden);
      } else {
        embed_token(batch_.token_ids[row] - shape_.vocab_first, target + row * shape_.hidden);
      }
    });
    if (!are_several) return;
    meet(team);
    share_rows(team, batch_.num_tokens, [this](std::int64_t row) {
      sum_ranks(first_meeting_, row, residual_row(row));
    });
  }

  // Of several ranks, which add up what they have, one has it.
  void embed_image(const float* source, float* target) const {
    if (shape_.rank == 0) {
      std::memcpy(target, source, shape_.hidden * sizeof(float));
    } else {
      std::memset(target, 0, shape_.hidden * sizeof(float));
    }
  }

  // Zeros for a token that another rank has.
  void embed_token(std::int64_t token, float* target) const {
    const auto scale = static_cast<float>(shape_.embedding_scale);
    if (token < 0 || token >= shape_.vocab_rows) {
      std::memset(target, 0, shape_.hidden * sizeof(float));
      return;
    }
    const bf16* source = embedding_ + token * shape_.hidden;
    for (std::int64_t i = 0; i < shape_.hidden; ++i) target[i] = to_float(source[i]) * scale;
  }

  // The norm of residual row `source` becomes row `target` of the inputs of `next`.
  void norm(const Team& team, std::int64_t source, const float* weight, const Linear& next,
            std::int64_t target) {
    if (!next.is_quantized()) {
      norm_to_bf16(residual_row(source), weight, shape_.hidden, eps_, hidden_stride(),
                   normed_.data() + target * hidden_stride());
      return;
    }
    float* scratch = norm_scratch_[team.thread()].data();
    norm_to_float(residual_row(source), weight, shape_.hidden, eps_, scratch);
    inputs_.quantize(scratch, target, next.quantized);
  }

  float* residual_row(std::int64_t row) { return residual_.data() + row * shape_.hidden; }

  template <class Body>
  static void share_rows(Team& team, std::int64_t count, const Body& body) {
    team.share(count, [&](std::int64_t row, std::int64_t) { body(row); });
  }

  const Shape shape_;
  const float eps_;
  Ranks ranks_;
  std::int64_t first_meeting_ = 0, next_meeting_ = 0;  // of this step, of the next
  std::atomic<bool> have_disagreed_{false};
  Arena weights_;
  bool is_packed_ = false;  // read from a file of packed weights
  std::vector<Layer> layers_;
  float* final_norm_ = nullptr;
  Linear lm_head_{};
  const bf16* embedding_ = nullptr;
  RotaryTable rotary_{}, local_rotary_{};
  std::vector<Attention> attentions_;          // one for each different window
  std::vector<std::size_t> group_attentions_;  // which of them a group uses
  Batch batch_{};
  std::vector<char*> caches_;  // the pages, in this step
  std::vector<std::vector<std::int64_t>> pieces_;  // [groups, threads], of `list_pieces`
  std::vector<Upcoming> upcoming_;                 // of each thread
  Output output_ = kLogits;
  float* out_ = nullptr;
  std::vector<Candidate> best_;  // [threads, logits rows]
  Buffer<float> residual_;   // [tokens, hidden]
  Buffer<bf16> normed_;      // [tokens or logits, hidden_stride]
  Buffer<float> qkv_out_;    // [tokens, qkv_size]
  Buffer<bf16> attended_;    // [tokens, q_size]
  Buffer<bf16> gated_;       // [tokens, or rows of experts, inner_stride]
  Buffer<float> projected_;  // [tokens, hidden], of blocks whose output is normed
  ExpertRouting routing_;        // of the layer at hand
  Buffer<float> router_logits_;  // [tokens, experts]
  Buffer<bf16> gathered_;        // [rows of experts, hidden_stride]
  Buffer<float> expert_out_;     // [rows of experts, hidden]
  LinearInputs inputs_;      // of the product at hand, if its weight is quantized
  std::vector<Buffer<float>> norm_scratch_;  // [hidden], one per thread
  std::vector<LoraAdapter> adapters_;        // by slot; empty where there is none
  std::int64_t low_stride_ = 0;
  std::vector<LoraRows> lora_rows_, lora_tiles_;  // of this step
  std::vector<std::int64_t> tile_ends_;           // where each tile's end in `lora_tiles_`
  std::vector<std::ptrdiff_t> open_groups_;       // by slot, while they are made
  Buffer<bf16> lows_;  // [tokens, low_stride_], A x of the product at hand
  ThreadPool pool_;          // the last member: its threads end before anything else goes
};

bool all_below(const std::int64_t* values, std::int64_t count, std::int64_t limit) {
  bool good = true;  // as unsigned numbers, negative ones are above any limit
  for (std::int64_t i = 0; i < count; ++i) {
    good &= static_cast<std::uint64_t>(values[i]) < static_cast<std::uint64_t>(limit);
  }
  return good;
}

// Everything that is used as an index below.
Status Model::check(const Batch& batch) const {
  const std::int64_t tokens = batch.num_tokens;
  if (ranks_.are_several() && tokens > ranks_.max_tokens()) return kTooManyTokens;
  if (!all_below(batch.token_ids, tokens, shape_.vocab)) return kBadToken;
  if (!all_below(batch.positions, tokens, shape_.num_positions)) return kBadPosition;
  const std::int64_t slots = batch.num_blocks * shape_.block_size;
  if (!all_below(batch.slot_mapping, shape_.num_groups * tokens, slots)) return kBadSlot;
  if (!all_below(batch.logits_rows, batch.num_logits, tokens)) return kBadLogitsRow;
  if (batch.query_start[0] != 0) return kBadQueryStart;
  for (std::int64_t i = 0; i < batch.num_sequences; ++i) {
    const std::int64_t added = batch.query_start[i + 1] - batch.query_start[i];
    if (added < 0 || batch.query_start[i + 1] > tokens) return kBadQueryStart;
    if (!all_below(batch.num_computed + i, 1, shape_.num_positions)) return kBadPosition;
    const std::int64_t keys = batch.num_computed[i] + added;
    for (std::int64_t n = 0; batch.key_ends != nullptr && n < added; ++n) {
      const std::int64_t end = batch.key_ends[batch.query_start[i] + n];
      if (end <= batch.num_computed[i] + n || end > keys) return kBadKeyEnd;
    }
    const std::int64_t blocks = (keys + shape_.block_size - 1) / shape_.block_size;
    if (blocks > batch.table_width) return kBadBlockTable;
    for (std::int64_t group = 0; group < shape_.num_groups; ++group) {
      const Attention& attention = attentions_[group_attentions_[group]];
      const std::int64_t row = group * batch.num_sequences + i;
      const std::int64_t* table = batch.block_table + row * batch.table_width;
      const std::int64_t first = attention.first_key(batch.num_computed[i]) / shape_.block_size;
      if (!all_below(table + first, blocks - first, batch.num_blocks)) return kBadBlockTable;
    }
  }
  for (std::int64_t i = 0; batch.adapters != nullptr && i < tokens; ++i) {
    if (batch.adapters[i] >= 0 && !has_adapter(batch.adapters[i])) return kBadAdapter;
  }
  for (std::int64_t i = 0; batch.embedded != nullptr && i < tokens; ++i) {
    if (batch.embedded[i] >= batch.num_embeddings) return kBadEmbedding;
  }
  return batch.query_start[batch.num_sequences] == tokens ? kDone : kBadQueryStart;
}

}  // namespace
}  // namespace stoker

// The C interface. Exceptions (no memory, no threads) end here.

using stoker::Model;

#pragma GCC visibility push(default)
extern "C" {

// What the library was compiled for.
const char* stoker_instructions() { return stoker::kInstructions; }

Model* stoker_model_create(const stoker::Shape* shape, const std::int64_t* windows) {
  const bool is_bf16 = shape->layer_format == stoker::Format::kBf16 &&
                       shape->head_format == stoker::Format::kBf16 && shape->fp8_cache == 0;
  if (!is_bf16 && !stoker::kHasAllFormats) return nullptr;
  try {
    return new Model(*shape, windows);
  } catch (const std::exception&) {
    return nullptr;
  }
}

void stoker_model_destroy(Model* model) { delete model; }

void stoker_model_load_layer(Model* model, std::int64_t index,
                             const stoker::LayerTensors* tensors) {
  model->load_layer(index, *tensors);
}

std::int32_t stoker_model_load_ends(Model* model, const stoker::ModelTensors* tensors) {
  try {
    model->load_ends(*tensors);
  } catch (const std::exception&) {
    return stoker::kOutOfMemory;
  }
  return stoker::kDone;
}

std::int64_t stoker_model_weight_bytes(const Model* model) { return model->weight_bytes(); }

// All packed weights in one piece, and reading them back: 0, or 1 when the file ends too early.
const char* stoker_model_packed_weights(Model* model) { return model->packed_weights(); }

std::int32_t stoker_model_read_packed(Model* model, std::int32_t file, std::int64_t offset) {
  return model->read_packed(file, offset) ? 0 : 1;
}

// Writes what `output` says, see there; nothing is written unless the status is 0.
std::int32_t stoker_model_forward(Model* model, const stoker::Batch* batch, std::int32_t output,
                                  void* out) {
  const stoker::Status status = model->check(*batch);
  if (status != stoker::kDone) return status;
  try {
    return model->forward(*batch, static_cast<stoker::Output>(output), out);
  } catch (const std::exception&) {
    return stoker::kOutOfMemory;
  }
}

// The adapter in `slot`, in place of what was there: for each layer four tensors, of qkv, output,
// gate_up and down.
std::int32_t stoker_model_load_adapter(Model* model, std::int64_t slot,
                                       const stoker::LoraTensors* tensors) {
  try {
    model->load_adapter(slot, tensors);
  } catch (const std::exception&) {
    return stoker::kOutOfMemory;
  }
  return stoker::kDone;
}

void stoker_model_remove_adapter(Model* model, std::int64_t slot) { model->remove_adapter(slot); }

// Before the first step of a model whose layers several ranks share. The memory must outlive it.
void stoker_model_join(Model* model, const stoker::RankMemory* memory) { model->join(*memory); }

}  // extern "C"
#pragma GCC visibility pop
