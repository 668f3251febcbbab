// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/attention/batch_attention.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/weights.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Which rows of a slice need logits.
enum class logits_mode { none, last, all };

/// Rows of one sequence in a batch: tokens at the lease's rows [row, row + tokens.size()), or at `rows`.
template <class Lease>
struct batch_slice {
    const Lease* lease = nullptr;
    std::size_t row = 0;
    std::span<const token_id> tokens = {};
    logits_mode wanted = logits_mode::last;
    std::span<const std::size_t> rows = {};   ///< Rows of the lease, ascending, if they are not consecutive.
    std::span<const std::size_t> limits = {}; ///< Last position that each token sees; empty: its own position.

    /// Row of the lease for token `i`.
    [[nodiscard]] std::size_t row_of(std::size_t i) const noexcept { return rows.empty() ? row + i : rows[i]; }
    /// Position of token `i`.
    [[nodiscard]] std::size_t position(std::size_t i) const { return lease->first() + row_of(i); }
    /// Last position that token `i` sees.
    [[nodiscard]] std::size_t limit(std::size_t i) const { return limits.empty() ? position(i) : limits[i]; }

    /// Number of rows that need logits; they are the last ones.
    [[nodiscard]] std::size_t wanted_rows() const noexcept {
        return wanted == logits_mode::all ? tokens.size() : wanted == logits_mode::last && !tokens.empty() ? 1 : 0;
    }
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

/// Attention of a forward pass on the CPU, planned once for all layers.
template <class Lease>
class host_attention {
public:
    /// Plans the attention of a batch. `rows`: all rows of the batch together; its position and row count are ignored.
    /// Requires: the leases are of one cache; they and the memory that `rows` points to stay unchanged while it runs.
    /// Planning again reuses memory.
    void plan(const attention_shape& shape, std::span<const batch_slice<Lease>> batch, const query_rows& rows,
              const thread_pool& threads) {
        expects(ranges::all_of(
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
    int8_block_rows scratch_;         // (rows, GEMM inputs): quantized rows
    aligned_vector<float> rotations_; // (rows, 2, head_dim / 2)
};

}} // namespace kvcache
