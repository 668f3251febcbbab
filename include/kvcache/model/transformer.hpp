// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/batch_attention.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/core/zeroed_memory.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/rope.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/batch_slice.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/weights.hpp>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Attention of a forward pass on the CPU, planned once for all layers.
template <class Lease>
class host_attention {
public:
    /// Plans the attention of a batch. `rows`: all rows of the batch together; its position and row count are ignored.
    /// Requires: the leases are of one cache; they and the memory that `rows` points to stay unchanged while it runs.
    /// Planning again reuses memory.
    void plan(const attention_shape& shape, std::span<const batch_slice<Lease>> batch, const query_rows& rows,
              const thread_pool& threads) {
        expects(std::ranges::all_of(
                    batch, [&](const auto& part) { return &part.lease->storage() == &batch.front().lease->storage(); }),
                "the leases of a batch are of one cache");
        parts_.clear();
        limits_.clear();
        std::size_t scattered = 0;
        for (const auto& part : batch)
            scattered += part.rows.empty() ? 0 : part.tokens.size();
        limits_.reserve(scattered); // so that pointers into it stay valid
        query_rows queries = rows;
        for (const auto& part : batch) {
            queries.position = part.position(0);
            queries.rows = part.tokens.size();
            queries.positions = part.rows.empty() ? nullptr : limits_.data() + limits_.size();
            for (std::size_t i = 0; i < part.rows.size(); ++i)
                limits_.push_back(part.limit(i));
            parts_.push_back({part.lease->pages(), queries});
            queries.data += queries.rows * queries.stride;
            queries.rotations += queries.rows * shape.head_dim;
            queries.out += queries.rows * queries.out_stride;
        }
        attention_.plan(shape, batch.empty() ? source() : source(*batch.front().lease), parts_, threads);
    }

    /// Writes the keys and values of a lease's row `to`, which is row `row` of the batch. Thread-safe.
    void write(const Lease& lease, std::size_t to, std::size_t /*row*/, layer_id layer, std::span<const float> keys,
               std::span<const float> values) const {
        lease.write(layer, to, keys, values);
    }

    /// Computes all rows in one layer. Requires: their keys and values are in the leases.
    void run(layer_id layer, thread_pool& threads) { attention_.run(layer, threads); }

private:
    template <class Codec, class Storage>
    static batch_attention<Codec, Storage> over(const page_source<Codec, Storage>&);
    using source = decltype(page_source(std::declval<const Lease&>()));

    std::vector<attention_part> parts_;
    std::vector<std::size_t> limits_; // last visible positions, for slices whose rows are not consecutive
    decltype(over(std::declval<source>())) attention_;
};

/// Activations of a batch between two steps of a pass. The row stride avoids cache-set conflicts. (rows, columns)
class activations {
public:
    explicit activations(std::size_t columns) : columns_(columns), stride_(row_stride(columns)) {}

    /// Ensures memory for `rows` rows, whose content is undefined. Allocates only if it grows.
    void make_room(std::size_t rows) {
        if (numbers_.size() < rows * stride_)
            numbers_ = aligned_vector<float>(rows * stride_);
    }

    [[nodiscard]] std::size_t columns() const noexcept { return columns_; }
    [[nodiscard]] std::size_t stride() const noexcept { return stride_; }

    [[nodiscard]] std::span<float> row(std::size_t i) { return {numbers_.data() + i * stride_, columns_}; }

    /// The first rows, as input or output of a GEMM.
    [[nodiscard]] rows_in in(std::size_t rows) const { return {numbers_.data(), rows, stride_}; }
    [[nodiscard]] rows_out out() { return {numbers_.data(), stride_}; }

private:
    std::size_t columns_;
    std::size_t stride_;
    aligned_vector<float> numbers_;
};

/// Parts of a model that a forward pass reads.
struct model_parts {
    const model_config& config;
    const model_weights& weights;
    attention_shape attention;
};

/// Attention that can fail and reports a status.
template <class Attention>
concept fallible_attention = requires(const Attention attention) {
    { attention.status() } -> std::same_as<result<void>>;
};

/// Forward passes over ragged batches of sequences: begin, then layer by layer, then logits. Rows of different
/// sequences share the GEMMs and never meet in a sum. A pass can begin again and reuses its memory: a batch of no more
/// rows and slices than before allocates nothing. `Attention` writes rows into the pages and computes attention.
template <class Lease, class Attention = host_attention<Lease>>
class forward_pass {
public:
    /// Requires: the model and the threads outlive it.
    forward_pass(const model_parts& model, thread_pool& threads, Attention attention = {})
        : model_(model),
          threads_(threads),
          q_(model.config.heads * model.config.head_dim),
          kv_(model.config.kv_heads * model.config.head_dim),
          attention_(std::move(attention)),
          x_(model.config.hidden_size),
          normed_(model.config.hidden_size),
          qkv_(q_ + 2 * kv_),
          attended_(q_),
          inner_(2 * model.config.intermediate_size) {}

    /// Embeds the tokens of a batch. Requires: the memory that the slices point to stays unchanged until the logits are
    /// computed.
    void begin(std::span<const batch_slice<Lease>> batch) {
        batch_.assign(batch.begin(), batch.end());
        rows_.clear();
        for (std::size_t p = 0; p < batch_.size(); ++p)
            for (std::size_t i = 0; i < batch_[p].tokens.size(); ++i)
                rows_.push_back({p, i});
        for (activations* each : {&x_, &normed_, &qkv_, &attended_, &inner_})
            each->make_room(rows_.size());
        if (rotations_.size() < rows_.size() * model_.config.head_dim)
            rotations_ = aligned_vector<float>(rows_.size() * model_.config.head_dim);
        embed();
        attention_.plan(model_.attention, batch_,
                        {.data = qkv_.row(0).data(),
                         .rotations = rotations_.data(),
                         .out = attended_.row(0).data(),
                         .stride = qkv_.stride(),
                         .out_stride = attended_.stride()},
                        threads_);
    }

    /// Computes queries, keys and values of one block without storing them. Afterwards no other block can run.
    void project(layer_id layer) {
        const block_weights& w = model_.weights.layers[index_of(layer)];
        for_rows(x_.columns(), [&](std::size_t row) { norm(row, w.attention_norm); });
        w.qkv.apply(normed_.in(rows_.size()), qkv_.out(), threads_, scratch_);
        if (model_.config.qk_norm)
            for_rows(qkv_.columns(), [&](std::size_t row) {
                norm_heads(qkv_.row(row).first(q_), w.q_norm);
                norm_heads(qkv_.row(row).subspan(q_, kv_), w.k_norm);
            });
    }

    /// Keys and values that `project` computed for a row of the batch, before RoPE. (kv_heads, head_dim)
    [[nodiscard]] std::span<const float> keys(std::size_t row) { return qkv_.row(row).subspan(q_, kv_); }
    [[nodiscard]] std::span<const float> values(std::size_t row) { return qkv_.row(row).subspan(q_ + kv_); }

    /// Runs one block: writes its keys and values into the leases, and attends to them and all earlier ones. Keys and
    /// values of a row that its lease already holds are not written; the row only attends.
    void forward(layer_id layer) {
        const block_weights& w = model_.weights.layers[index_of(layer)];
        const std::size_t rows = rows_.size(), inner = model_.config.intermediate_size;
        project(layer);
        for_rows(qkv_.columns(), [&](std::size_t row) { place(layer, row); });
        attention_.run(layer, threads_);
        w.output.apply(attended_.in(rows), normed_.out(), threads_, scratch_);
        for_rows(2 * x_.columns(), [&](std::size_t row) {
            add_to(x_.row(row), normed_.row(row));
            norm(row, w.mlp_norm);
        });
        w.gate_up.apply(normed_.in(rows), inner_.out(), threads_, scratch_);
        for_rows(4 * inner, [&](std::size_t row) {
            const auto gate = inner_.row(row).first(inner);
            gated_silu(gate, inner_.row(row).subspan(inner), gate);
        });
        w.down.apply(inner_.in(rows), normed_.out(), threads_, scratch_);
        for_rows(x_.columns(), [&](std::size_t row) { add_to(x_.row(row), normed_.row(row)); });
    }

    /// Returns whether the current batch has succeeded so far, where attention may fail. On an error its rows must not
    /// be used. Errors: those of the device.
    [[nodiscard]] result<void> status() const requires fallible_attention<Attention> { return attention_.status(); }

    /// Number of rows that need logits.
    [[nodiscard]] std::size_t wanted() const {
        std::size_t n = 0;
        for (const auto& part : batch_)
            n += part.wanted_rows();
        return n;
    }

    /// Writes the logits of the rows that need them, in batch order. (wanted(), vocabulary)
    void logits(std::span<float> out) {
        const std::size_t wanted_rows = wanted();
        expects(out.size() == wanted_rows * model_.config.vocabulary, "logits have room for the rows that want them");
        std::size_t behind = 0, to = 0; // rows of the slices so far, and rows with logits
        for (const auto& part : batch_) {
            behind += part.tokens.size();
            for (std::size_t row = behind - part.wanted_rows(); row < behind; ++row)
                rms_norm(x_.row(row), model_.weights.final_norm, model_.config.rms_norm_eps, normed_.row(to++));
        }
        model_.weights.head.apply(normed_.in(wanted_rows), {out.data(), model_.config.vocabulary}, threads_, scratch_);
    }

private:
    // Origin of a row of the batch.
    struct origin {
        std::size_t part = 0;
        std::size_t row = 0;
    };

    // Approximate cost of an element outside the GEMMs, in multiply-adds.
    static constexpr std::size_t operations = 4;

    template <class Body>
    void for_rows(std::size_t columns, Body body) {
        threads_.parallel_for(rows_.size(), rows_.size() * columns * operations,
                              [&](std::size_t begin, std::size_t end) {
                                  for (std::size_t row = begin; row < end; ++row)
                                      body(row);
                              });
    }

    void embed() {
        const linear& table = model_.config.tied_head ? model_.weights.head : model_.weights.embedding;
        for (const origin& from : rows_)
            expects(static_cast<std::size_t>(index_of(token(from))) < model_.config.vocabulary,
                    "a token is in the vocabulary");
        for_rows(8 * x_.columns(), [&](std::size_t row) {
            const origin& from = rows_[row];
            table.row(static_cast<std::size_t>(index_of(token(from))), x_.row(row));
            model_.attention.rotation->fill(static_cast<std::int64_t>(batch_[from.part].position(from.row)),
                                            rotation(row));
        });
    }

    void norm(std::size_t row, std::span<const float> weight) {
        rms_norm(x_.row(row), weight, model_.config.rms_norm_eps, normed_.row(row));
    }

    // Applies RoPE to the keys, and writes keys and values into the pages.
    void place(layer_id layer, std::size_t row) {
        const std::size_t dim = model_.config.head_dim;
        const auto& part = batch_[rows_[row].part];
        const std::size_t to = part.row_of(rows_[row].row);
        if (part.lease->opened().keeps(to))
            return;
        const auto keys = qkv_.row(row).subspan(q_, kv_), values = qkv_.row(row).subspan(q_ + kv_);
        for (std::size_t at = 0; at < kv_; at += dim)
            rotate_head(keys.subspan(at, dim), rotation(row), keys.subspan(at, dim));
        attention_.write(*part.lease, to, row, layer, keys, values);
    }

    void norm_heads(std::span<float> heads, std::span<const float> weight) const {
        for (std::size_t at = 0; at < heads.size(); at += weight.size()) {
            const auto head = heads.subspan(at, weight.size());
            rms_norm(head, weight, model_.config.rms_norm_eps, head);
        }
    }

    [[nodiscard]] token_id token(const origin& from) const { return batch_[from.part].tokens[from.row]; }
    [[nodiscard]] std::span<float> rotation(std::size_t row) {
        return {rotations_.data() + row * model_.config.head_dim, model_.config.head_dim};
    }

    model_parts model_;
    thread_pool& threads_;
    std::size_t q_;
    std::size_t kv_;
    std::vector<batch_slice<Lease>> batch_;
    std::vector<origin> rows_;
    Attention attention_;
    activations x_;                   // (rows, hidden): the residual stream
    activations normed_;              // (rows, hidden)
    activations qkv_;                 // (rows, q + 2 kv)
    activations attended_;            // (rows, q)
    activations inner_;               // (rows, 2 intermediate)
    linear_scratch scratch_;          // (rows, GEMM inputs): quantized rows
    aligned_vector<float> rotations_; // (rows, 2, head_dim / 2)
};

/// Returns the RoPE of a configuration, with its scaling applied to the frequencies (formulas at rope_config).
/// Requires: the configuration is checked.
[[nodiscard]] inline rope make_rope(const rope_config& config, std::size_t head_dim) {
    constexpr double two_pi = 6.283185307179586;
    std::vector<double> frequencies = rope::standard_frequencies(head_dim, config.theta);
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        double& f = frequencies[i];
        switch (config.scaling) {
        case rope_config::kind::none:
            break;
        case rope_config::kind::linear:
            f /= config.factor;
            break;
        case rope_config::kind::llama3: {
            const double turns = config.original_max_positions * f / two_pi; // over the original context
            if (turns < config.low_freq_factor) {
                f /= config.factor;
            } else if (turns <= config.high_freq_factor) {
                const double span = config.high_freq_factor - config.low_freq_factor;
                const double s = (turns - config.low_freq_factor) / span;
                f = std::fma(1.0 - s, f / config.factor, s * f);
            }
            break;
        }
        case rope_config::kind::factors:
            f /= static_cast<double>(config.factors[i]);
            break;
        }
    }
    return rope(std::move(frequencies));
}

/// Reference transformer: a Llama-family decoder in which every reduction has one fixed order (the numeric contract),
/// so that a token's logits depend only on its own past. Immutable; any number of forward passes may share it.
class transformer {
public:
    transformer(model_config config, model_weights weights)
        : config_(std::move(config)), weights_(std::move(weights)), rope_(make_rope(config_.rope, config_.head_dim)) {
        for (std::size_t i = 0; i < config_.layers; ++i)
            layers_.push_back(layer_id{static_cast<std::uint32_t>(i)});
    }

    [[nodiscard]] const model_config& config() const noexcept { return config_; }
    [[nodiscard]] std::span<const layer_id> layers() const noexcept { return layers_; }
    [[nodiscard]] std::size_t vocabulary() const noexcept { return config_.vocabulary; }

    /// Context length of the training; a pipeline rejects longer contexts.
    [[nodiscard]] std::size_t max_positions() const noexcept { return config_.max_positions; }

    /// Shape of the pages of this model, `tokens` positions each.
    [[nodiscard]] page_shape shape(std::uint32_t tokens) const {
        return {static_cast<std::uint32_t>(config_.layers), static_cast<std::uint32_t>(config_.kv_heads),
                static_cast<std::uint32_t>(config_.head_dim), tokens};
    }

    /// Returns whether keys rotated for one position can be moved to another, which needs RoPE to be a pure rotation.
    /// Errors: unsupported, with the reason.
    [[nodiscard]] result<void> keys_can_move() const {
        switch (config_.rope.scaling) {
        case rope_config::kind::none:
        case rope_config::kind::linear:
        case rope_config::kind::llama3:
        case rope_config::kind::factors:
            return {};
        }
        return error{error_code::unsupported, "rope.scaling",
                     "this scaling of RoPE is not known to be a pure rotation"};
    }
    /// RoPE of its queries and keys.
    [[nodiscard]] const rope& rotation() const noexcept { return rope_; }

    /// Bytes of the weights that every token reads: all matrices but the embedding.
    [[nodiscard]] std::size_t weight_bytes() const noexcept {
        std::size_t bytes = weights_.head.bytes();
        for (const block_weights& layer : weights_.layers)
            for (const linear* map : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down})
                bytes += map->bytes();
        return bytes;
    }

    /// Identity of this model's pages; `weights` is the digest of its checkpoint.
    [[nodiscard]] identity id(digest weights) const {
        return {.weights = weights,
                .config = canonical_config(),
                .rope = canonical_rope(),
                .weight_format = weights_.format()};
    }

    /// Returns the model in int8 (linear::in_int8), a different and coarser model with pages of its own: numbers become
    /// int8, half the size of BF16; quantised blocks stay, and their activations are rounded. Cost: reads every weight
    /// that is not in blocks once, with all threads.
    [[nodiscard]] transformer in_int8(thread_pool& threads) const { return {config_, weights_.in_int8(threads)}; }

    /// Returns forward passes over rows in leases of this type. Requires: this and the threads outlive it.
    template <class Lease>
    [[nodiscard]] forward_pass<Lease> make_forward_pass(thread_pool& threads) const {
        return forward_pass<Lease>({config_, weights_, attention()}, threads);
    }

    /// The same with a custom attention.
    template <class Lease, class Attention>
    [[nodiscard]] forward_pass<Lease, Attention> make_forward_pass(thread_pool& threads, Attention attended) const {
        return {{config_, weights_, attention()}, threads, std::move(attended)};
    }

private:
    [[nodiscard]] attention_shape attention() const {
        return {.heads = static_cast<std::uint32_t>(config_.heads),
                .kv_heads = static_cast<std::uint32_t>(config_.kv_heads),
                .head_dim = static_cast<std::uint32_t>(config_.head_dim),
                .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                .rotation = &rope_};
    }

    [[nodiscard]] std::string canonical_config() const {
        std::string text = config_.architecture;
        for (const std::size_t extent : {config_.hidden_size, config_.intermediate_size, config_.layers, config_.heads,
                                         config_.kv_heads, config_.head_dim, config_.vocabulary})
            text += ' ' + std::to_string(extent);
        for (const bool flag :
             {config_.tied_head, config_.qkv_bias, config_.output_bias, config_.mlp_bias, config_.qk_norm})
            text += flag ? " 1" : " 0";
        return text + ' ' + std::to_string(std::bit_cast<std::uint32_t>(config_.rms_norm_eps));
    }

    // The words are for people; the digest of the frequencies is decisive.
    [[nodiscard]] std::string canonical_rope() const {
        static constexpr const char* kinds[] = {"none", "linear", "llama3", "factors"};
        digest_builder numbers;
        for (const double f : rope_.frequencies())
            numbers.number(std::bit_cast<std::uint64_t>(f));
        char theta[32]; // independent of the locale
        const auto end = std::to_chars(std::begin(theta), std::end(theta), config_.rope.theta).ptr;
        return "theta " + std::string(theta, end) + ", scaling " +
               kinds[static_cast<std::size_t>(config_.rope.scaling)] + ", frequencies " + to_string(numbers.finish());
    }

    model_config config_;
    model_weights weights_;
    rope rope_;
    std::vector<layer_id> layers_;
};

}} // namespace kvcache
