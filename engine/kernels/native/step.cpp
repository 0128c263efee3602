// One model step of a Llama-type decoder in bf16, on a flat batch of tokens of many sequences.
//
// The interface is C: a handle owns packed weights, scratch memory and threads; arrays of a step
// and the KV cache belong to the caller. `library.py` mirrors the structs. Residual stream, norms,
// rotary positions, softmax and logits are float32; inputs of products and the KV cache are bf16.

#include <sys/mman.h>

#include <exception>

#include "attention.h"
#include "gemm.h"
#include "thread_pool.h"
#include "vector_math.h"

namespace stoker {

struct Shape {
  std::int64_t num_layers, hidden, inner, q_heads, kv_heads, head_dim, vocab;
  std::int64_t num_positions, block_size, num_threads;
  std::int64_t attention_bias, mlp_bias;  // 0 or 1
  double eps;
};

// bf16, row-major [out, in]; q, k, v and gate, up are fused along `out`. A bias may be null.
struct LayerTensors {
  const bf16 *input_norm, *qkv, *qkv_bias, *output, *output_bias;
  const bf16 *post_norm, *gate_up, *gate_up_bias, *down, *down_bias;
};

struct ModelTensors {
  const bf16* embedding;  // [vocab, hidden], stays the caller's and must outlive the handle
  const bf16* final_norm;
  const bf16* lm_head;
  const float *cosines, *sines;  // [positions, head_dim / 2], as `embedding`
};

struct Batch {
  const std::int64_t *token_ids, *positions, *slot_mapping;  // [num_tokens]
  const std::int64_t* query_start;                           // [num_sequences + 1]
  const std::int64_t* num_computed;                          // [num_sequences]
  const std::int64_t* block_table;                           // [num_sequences, table_width]
  const std::int64_t* logits_rows;                           // [num_logits]
  std::int64_t num_tokens, num_sequences, table_width, num_logits;
  bf16* const* cache;  // one address per layer
  std::int64_t num_blocks;
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
};

namespace {

// Memory for all weights in one piece: on huge pages where the system gives them.
class Arena {
 public:
  // Called twice for the same sequence of requests: first to measure, then to hand out.
  template <class T>
  T* take(std::int64_t count) {
    char* base = base_.data();
    T* memory = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used_);
    used_ += round_up<std::int64_t>(count * sizeof(T), kCacheLine);
    return memory;
  }

  void allocate() {
    base_.reserve(used_);
    madvise_huge();
    used_ = 0;
  }

  std::int64_t bytes() const { return used_; }

 private:
  void madvise_huge() {
    constexpr std::uintptr_t kPage = 4096;
    const auto start = reinterpret_cast<std::uintptr_t>(base_.data());
    const std::uintptr_t first = round_up(start, kPage), last = (start + used_) / kPage * kPage;
    if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
  }

  Buffer<char> base_;
  std::int64_t used_ = 0;
};

constexpr std::int64_t kPhasesPerLayer = 8, kOtherPhases = 3;  // calls of Team::share below

struct Layer {
  float *input_norm, *post_norm;
  PackedMatrix qkv, output, gate_up, down;
};

void norm_row(const float* row, const float* weight, std::int64_t size, float eps,
              std::int64_t stride, bf16* out) {
  __m512 squares = _mm512_setzero_ps();
  for (std::int64_t i = 0; i < size; i += kLanes) {
    const __m512 values = _mm512_maskz_loadu_ps(first_lanes(size - i), row + i);
    squares = _mm512_fmadd_ps(values, values, squares);
  }
  const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(size);
  const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(mean + eps));
  for (std::int64_t i = 0; i < stride; i += kLanes) {
    const __mmask16 lanes = first_lanes(size - i);
    const __m512 values = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes, row + i), scale);
    store_bf16(out + i, _mm512_mul_ps(values, _mm512_maskz_loadu_ps(lanes, weight + i)));
  }
}

class Model {
 public:
  explicit Model(const Shape& shape)
      : shape_(shape), eps_(static_cast<float>(shape.eps)), layers_(shape.num_layers),
        pool_(static_cast<int>(shape.num_threads),
              kPhasesPerLayer * shape.num_layers + kOtherPhases) {
    lay_out();
    weights_.allocate();
    lay_out();
  }

  void load_layer(std::int64_t index, const LayerTensors& tensors) {
    Layer& layer = layers_[index];
    widen_all(tensors.input_norm, shape_.hidden, layer.input_norm);
    widen_all(tensors.post_norm, shape_.hidden, layer.post_norm);
    pack(tensors.qkv, tensors.qkv_bias, shape_.hidden, Columns::kPlain, layer.qkv);
    pack(tensors.output, tensors.output_bias, q_size(), Columns::kPlain, layer.output);
    pack(tensors.gate_up, tensors.gate_up_bias, shape_.hidden, Columns::kGateUp, layer.gate_up);
    pack(tensors.down, tensors.down_bias, shape_.inner, Columns::kPlain, layer.down);
  }

  void load_ends(const ModelTensors& tensors) {
    embedding_ = tensors.embedding;
    widen_all(tensors.final_norm, shape_.hidden, final_norm_);
    pack(tensors.lm_head, nullptr, shape_.hidden, Columns::kPlain, lm_head_);
    const CacheShape cache{shape_.block_size, shape_.kv_heads, shape_.head_dim};
    attention_ = std::make_unique<Attention>(cache, shape_.q_heads, tensors.cosines, tensors.sines);
  }

  std::int64_t weight_bytes() const { return weights_.bytes(); }

  Status check(const Batch& batch) const;

  void forward(const Batch& batch, float* logits) {
    if (batch.num_tokens == 0) return;
    pool_.settle();
    attention_->plan(batch.query_start, batch.num_computed, batch.num_sequences, pool_.size());
    residual_.reserve(batch.num_tokens * shape_.hidden);
    normed_.reserve(std::max(batch.num_tokens, batch.num_logits) * hidden_stride());
    qkv_out_.reserve(batch.num_tokens * qkv_size());
    attended_.reserve(batch.num_tokens * q_size());
    gated_.reserve(batch.num_tokens * inner_stride());
    batch_ = batch;
    caches_.assign(batch.cache, batch.cache + shape_.num_layers);
    logits_ = logits;
    pool_.run([this](Team& team) { run_step(team); });
  }

 private:
  // Rows of activations start on cache lines; an odd last value is followed by a zero.
  std::int64_t hidden_stride() const { return round_up<std::int64_t>(shape_.hidden, 32); }
  std::int64_t inner_stride() const { return round_up<std::int64_t>(shape_.inner, 32); }
  std::int64_t q_size() const { return shape_.q_heads * shape_.head_dim; }
  std::int64_t qkv_size() const { return q_size() + 2 * shape_.kv_heads * shape_.head_dim; }

  void lay_out() {
    for (Layer& layer : layers_) {
      layer.input_norm = weights_.take<float>(shape_.hidden);
      layer.qkv = matrix(qkv_size(), shape_.hidden, Columns::kPlain, shape_.attention_bias);
      layer.output = matrix(shape_.hidden, q_size(), Columns::kPlain, shape_.attention_bias);
      layer.post_norm = weights_.take<float>(shape_.hidden);
      layer.gate_up = matrix(shape_.inner, shape_.hidden, Columns::kGateUp, shape_.mlp_bias);
      layer.down = matrix(shape_.hidden, shape_.inner, Columns::kPlain, shape_.mlp_bias);
    }
    final_norm_ = weights_.take<float>(shape_.hidden);
    lm_head_ = matrix(shape_.vocab, shape_.hidden, Columns::kPlain, false);
  }

  PackedMatrix matrix(std::int64_t outputs, std::int64_t inputs, Columns order, bool has_bias) {
    const std::int64_t per_panel = order == Columns::kPlain ? kPanel : kGated;
    const std::int64_t panels = (outputs + per_panel - 1) / per_panel, pairs = (inputs + 1) / 2;
    bf16* data = weights_.take<bf16>(panels * pairs * kPairLine);
    float* bias = has_bias ? weights_.take<float>(panels * kPanel) : nullptr;
    return {data, bias, panels, pairs, outputs};
  }

  void pack(const bf16* weight, const bf16* bias, std::int64_t inputs, Columns order,
            const PackedMatrix& target) {
    pool_.run([=](Team& team) {
      team.share(target.panels, [&](std::int64_t panel, std::int64_t) {
        pack_panel(weight, inputs, order, target.outputs, panel, target.panel(panel));
      });
    });
    if (target.bias == nullptr) return;
    for (std::int64_t i = 0; i < target.panels * kPanel; ++i) {
      const std::int64_t row =
          source_row(order, target.outputs, i / kPanel, static_cast<int>(i % kPanel));
      target.bias[i] = row < 0 ? 0.0f : to_float(bias[row]);
    }
  }

  static float to_float(bf16 value) {
    const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
  }

  static void widen_all(const bf16* source, std::int64_t count, float* target) {
    for (std::int64_t i = 0; i < count; ++i) target[i] = to_float(source[i]);
  }

  // Outside of items only members are read, never the caller's arrays: see ThreadPool::run.
  void run_step(Team& team) {
    embed(team);
    for (std::int64_t index = 0; index < shape_.num_layers; ++index) run_layer(team, index);
    if (batch_.num_logits == 0) return;
    share_rows(team, batch_.num_logits, [this](std::int64_t row) {
      norm(batch_.logits_rows[row], final_norm_, row);
    });
    multiply(team, normed_.data(), hidden_stride(), batch_.num_logits, lm_head_,
             StoreFloat{lm_head_, logits_});
  }

  void run_layer(Team& team, std::int64_t index) {
    const Layer& layer = layers_[index];
    const std::int64_t tokens = batch_.num_tokens;
    const AttentionInput input{qkv_out_.data(),    qkv_size(),         caches_[index],
                               batch_.positions,   batch_.block_table, batch_.table_width,
                               attended_.data()};
    prefetch_part(team, tokens, layer.qkv);
    share_rows(team, tokens, [&](std::int64_t row) { norm(row, layer.input_norm, row); });
    multiply(team, normed_.data(), hidden_stride(), tokens, layer.qkv,
             StoreFloat{layer.qkv, qkv_out_.data()});
    share_rows(team, tokens * shape_.kv_heads, [&](std::int64_t item) {
      attention_->store_kv(input, batch_.slot_mapping, item);
    });
    attention_->run(team, input);
    multiply(team, attended_.data(), q_size(), tokens, layer.output,
             AddToResidual{layer.output, residual_.data()});
    prefetch_part(team, tokens, layer.gate_up);
    share_rows(team, tokens, [&](std::int64_t row) { norm(row, layer.post_norm, row); });
    multiply(team, normed_.data(), hidden_stride(), tokens, layer.gate_up,
             GateToBf16{layer.gate_up, gated_.data(), inner_stride()});
    multiply(team, gated_.data(), inner_stride(), tokens, layer.down,
             AddToResidual{layer.down, residual_.data()});
  }

  void embed(Team& team) {
    share_rows(team, batch_.num_tokens, [this](std::int64_t row) {
      const bf16* source = embedding_ + batch_.token_ids[row] * shape_.hidden;
      widen_all(source, shape_.hidden, residual_.data() + row * shape_.hidden);
    });
  }

  // The norm of residual row `source` becomes row `target` of the next product's input.
  void norm(std::int64_t source, const float* weight, std::int64_t target) {
    norm_row(residual_.data() + source * shape_.hidden, weight, shape_.hidden, eps_,
             hidden_stride(), normed_.data() + target * hidden_stride());
  }

  template <class Body>
  static void share_rows(Team& team, std::int64_t count, const Body& body) {
    team.share(count, [&](std::int64_t row, std::int64_t) { body(row); });
  }

  const Shape shape_;
  const float eps_;
  Arena weights_;
  std::vector<Layer> layers_;
  float* final_norm_ = nullptr;
  PackedMatrix lm_head_{};
  const bf16* embedding_ = nullptr;
  std::unique_ptr<Attention> attention_;
  Batch batch_{};
  std::vector<bf16*> caches_;  // of the layers, in this step
  float* logits_ = nullptr;
  Buffer<float> residual_;  // [tokens, hidden]
  Buffer<bf16> normed_;     // [tokens or logits, hidden_stride]
  Buffer<float> qkv_out_;   // [tokens, qkv_size]
  Buffer<bf16> attended_;   // [tokens, q_size]
  Buffer<bf16> gated_;      // [tokens, inner_stride]
  ThreadPool pool_;         // the last member: its threads end before anything else goes
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
  if (!all_below(batch.token_ids, tokens, shape_.vocab)) return kBadToken;
  if (!all_below(batch.positions, tokens, shape_.num_positions)) return kBadPosition;
  const std::int64_t slots = batch.num_blocks * shape_.block_size;
  if (!all_below(batch.slot_mapping, tokens, slots)) return kBadSlot;
  if (!all_below(batch.logits_rows, batch.num_logits, tokens)) return kBadLogitsRow;
  if (batch.query_start[0] != 0) return kBadQueryStart;
  for (std::int64_t i = 0; i < batch.num_sequences; ++i) {
    const std::int64_t added = batch.query_start[i + 1] - batch.query_start[i];
    if (added < 0 || batch.query_start[i + 1] > tokens) return kBadQueryStart;
    if (!all_below(batch.num_computed + i, 1, shape_.num_positions)) return kBadPosition;
    const std::int64_t keys = batch.num_computed[i] + added;
    const std::int64_t blocks = (keys + shape_.block_size - 1) / shape_.block_size;
    if (blocks > batch.table_width) return kBadBlockTable;
    if (!all_below(batch.block_table + i * batch.table_width, blocks, batch.num_blocks)) {
      return kBadBlockTable;
    }
  }
  return batch.query_start[batch.num_sequences] == tokens ? kDone : kBadQueryStart;
}

}  // namespace
}  // namespace stoker

// The C interface. Exceptions (no memory, no threads) end here.

using stoker::Model;

extern "C" {

Model* stoker_model_create(const stoker::Shape* shape) {
  try {
    return new Model(*shape);
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

// Writes float32 logits [num_logits, vocab]; nothing is written unless the status is 0.
std::int32_t stoker_model_forward(Model* model, const stoker::Batch* batch, float* logits) {
  const stoker::Status status = model->check(*batch);
  if (status != stoker::kDone) return status;
  try {
    model->forward(*batch, logits);
  } catch (const std::exception&) {
    return stoker::kOutOfMemory;
  }
  return stoker::kDone;
}

}  // extern "C"
