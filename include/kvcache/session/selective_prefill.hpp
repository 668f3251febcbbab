// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/lease_state.hpp>
#include <kvcache/cache/reuse.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/kernel/rope.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/batch_slice.hpp>
#include <kvcache/recompute/concept.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Forward passes over selected rows of a lease; the rows between them are kept. Rows run in ascending order, at most
/// `split` per pass. Each row sees the rows before it.
template <class Lease, class Model>
class selective_prefill {
public:
    selective_prefill(const Model& model, thread_pool& threads, std::size_t split)
        : model_(model), split_(split), pass_(model.template make_forward_pass<Lease>(threads)) {}

    /// Returns rows times layers computed so far.
    [[nodiscard]] std::size_t layer_rows() const noexcept { return layer_rows_; }

    /// Computes the rows that the lease does not keep, and writes the logits of the last one. `tokens` are the tokens
    /// of the lease's rows. With `bottom_right` the j-th of m rows from the end sees all but the last m - j
    /// positions, later ones included, as in CacheBlend; then all rows run in one pass.
    void run(const Lease& lease, std::span<const token_id> tokens, bool bottom_right, std::span<float> logits) {
        rows_.clear();
        for (std::size_t row = 0; row < tokens.size(); ++row)
            if (!lease.keeps(row))
                rows_.push_back(row);
        limits_.clear();
        for (std::size_t j = 0; bottom_right && j < rows_.size(); ++j)
            limits_.push_back(lease.first() + tokens.size() - rows_.size() + j);
        const std::size_t most = bottom_right ? rows_.size() : split_;
        for (std::size_t at = 0; at < rows_.size(); at += most) {
            const bool last = at + most >= rows_.size();
            begin(lease, tokens, at, most, last ? logits_mode::last : logits_mode::none);
            for (const layer_id layer : model_.layers())
                pass_.forward(layer);
            layer_rows_ += part_.tokens.size() * model_.layers().size();
            if (last)
                pass_.logits(logits);
        }
    }

    /// Returns the deviations, in one layer, of the kept rows of `known` that are computed here: the squared distance
    /// between the computed and the stored keys or values, in ascending order of rows. `known` are the rows of this
    /// lease, or of a lease for the same tokens that kept more rows. All rows that this lease does not keep are
    /// computed up to the layer. If it keeps every kept row of `known`, all rows are computed.
    [[nodiscard]] std::vector<float> deviations(const Lease& lease, std::span<const token_id> tokens,
                                                std::span<const spliced_row> known, std::size_t layer,
                                                deviation_metric compared, const rope* rotation) {
        expects(layer < model_.layers().size(), "the layer that is compared is one of the model's");
        rows_.clear();
        limits_.clear();
        bool all = true;
        std::size_t behind = 0;
        for (std::size_t row = 0; row < known.size(); ++row)
            if (known[row].kept) {
                all = all && lease.keeps(row);
                behind = row + 1;
            }
        for (std::size_t row = 0; row < behind; ++row)
            if (all || !lease.keeps(row))
                rows_.push_back(row);
        std::vector<float> made;
        for (std::size_t at = 0; at < rows_.size(); at += split_) {
            begin(lease, tokens, at, split_, logits_mode::none);
            for (std::size_t i = 0; i < layer; ++i)
                pass_.forward(model_.layers()[i]);
            pass_.project(model_.layers()[layer]);
            layer_rows_ += part_.tokens.size() * layer;
            for (std::size_t i = 0; i < part_.rows.size(); ++i)
                if (known[part_.rows[i]].kept)
                    made.push_back(
                        distance(lease, i, known[part_.rows[i]], model_.layers()[layer], compared, rotation));
        }
        return made;
    }

private:
    void begin(const Lease& lease, std::span<const token_id> tokens, std::size_t at, std::size_t most,
               logits_mode wanted) {
        const std::size_t count = std::min(most, rows_.size() - at);
        ids_.clear();
        for (std::size_t i = at; i < at + count; ++i)
            ids_.push_back(tokens[rows_[i]]);
        part_ = {.lease = &lease,
                 .row = rows_[at],
                 .tokens = ids_,
                 .wanted = wanted,
                 .rows = std::span(rows_).subspan(at, count),
                 .limits = limits_.empty() ? std::span<const std::size_t>() : std::span(limits_).subspan(at, count)};
        pass_.begin(std::span(&part_, 1));
    }

    // The squared distance of row `i` of the pass from the stored row `at`.
    [[nodiscard]] float distance(const Lease& lease, std::size_t i, const spliced_row& at, layer_id layer,
                                 deviation_metric compared, const rope* rotation) {
        const std::size_t heads = lease.shape().kv_heads, dim = lease.shape().head_dim;
        const std::size_t lane = at.row % tile_tokens;
        scratch_.resize(std::max(dim, padded_head_dim(dim)) * tile_tokens);
        turn_.resize(dim);
        fresh_.resize(dim);
        const bool keys = compared == deviation_metric::keys;
        const std::span<const float> fresh = keys ? pass_.keys(i) : pass_.values(i); // (kv_heads, head_dim), no RoPE
        if (keys && rotation != nullptr)
            rotation->fill(static_cast<std::int64_t>(lease.first() + part_.rows[i]) - at.base, turn_);
        float sum = 0.0f;
        for (std::size_t head = 0; head < heads; ++head) {
            const auto now = fresh.subspan(head * dim, dim);
            const page_tile tile{layer, head_id{static_cast<std::uint32_t>(head)}, at.row / tile_tokens};
            const auto bytes = std::span<const std::byte>(lease.storage().bytes(at.page));
            const float* stored =
                keys ? lease.codec().keys(bytes, tile, scratch_) : lease.codec().values(bytes, tile, scratch_);
            if (keys && rotation != nullptr)
                rotate_head(now, turn_, fresh_);
            else
                std::ranges::copy(now, fresh_.begin());
            for (std::size_t d = 0; d < dim; ++d) {
                const float off =
                    fresh_[d] - (keys ? stored[d * tile_tokens + lane] : stored[lane * padded_head_dim(dim) + d]);
                sum = std::fma(off, off, sum);
            }
        }
        return sum;
    }

    const Model& model_;
    std::size_t split_;
    decltype(std::declval<const Model&>().template make_forward_pass<Lease>(std::declval<thread_pool&>())) pass_;
    std::size_t layer_rows_ = 0;
    batch_slice<Lease> part_;
    std::vector<std::size_t> rows_, limits_;
    std::vector<token_id> ids_;
    std::vector<float> scratch_, turn_, fresh_;
};

}} // namespace kvcache
