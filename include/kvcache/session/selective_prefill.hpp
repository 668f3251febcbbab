// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/chunk/chunk_reuse.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/kernel/rope.hpp>
#include <kvcache/kernel/thread_pool.hpp>
#include <kvcache/model/forward_pass.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/recompute/full.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Forward passes over selected rows of a lease; the rows between them are kept. Rows run in ascending order, at most
/// `max_batch_tokens` per pass. Each row sees the rows before it.
template <knows_chunks Cache, class Model>
class selective_prefill {
    using lease_type = typename Cache::lease;
    using pass_type =
        decltype(std::declval<const Model&>().template make_forward_pass<lease_type>(std::declval<thread_pool&>()));

public:
    /// Whether the model shows its keys and values, which a policy that selects by deviation compares.
    static constexpr bool can_judge = requires(pass_type pass, layer_id layer) {
        pass.project(layer);
        pass.keys(std::size_t{});
    };

    selective_prefill(const Model& model, thread_pool& threads, std::size_t max_batch_tokens)
        : model_(model),
          max_batch_tokens_(max_batch_tokens),
          pass_(model.template make_forward_pass<lease_type>(threads)) {}

    /// Returns rows times layers computed so far.
    [[nodiscard]] std::size_t layer_rows() const noexcept { return layer_rows_; }

    /// Computes the rows that the lease does not keep, and writes the logits of the last one. `tokens` are the tokens
    /// of the lease's rows. With `bottom_right` the j-th of m rows from the end sees all but the last m - j
    /// positions, later ones included, as in CacheBlend; then all rows run in one pass.
    void run(const lease_type& lease, std::span<const token_id> tokens, bool bottom_right, std::span<float> logits) {
        rows_.clear();
        for (std::size_t row = 0; row < tokens.size(); ++row)
            if (!lease.opened().keeps(row))
                rows_.push_back(row);
        limits_.clear();
        for (std::size_t j = 0; bottom_right && j < rows_.size(); ++j)
            limits_.push_back(lease.first() + tokens.size() - rows_.size() + j);
        const std::size_t most = bottom_right ? rows_.size() : max_batch_tokens_;
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

    /// Selects the tokens of chunks that run again, as a recompute policy says. A policy that selects by deviation runs
    /// all tokens after `prefix` through its first layers. Errors: as chunk_reuse::reserve. Requires: `prefix` is an
    /// exact sequence that ends at the splice_position of the first chunk.
    template <class Policy>
    [[nodiscard]] result<void> select(const Policy& policy, chunk_reuse<Cache>& chunks,
                                      typename Cache::sequence& prefix, std::span<const token_id> tokens,
                                      const typename chunk_reuse<Cache>::match_type& found,
                                      std::vector<std::size_t>& again) {
        const auto& runs = found.map().runs;
        if constexpr (deviation_recompute_state<Policy>) {
            bool judges = true;
            if constexpr (requires { policy.judges(); })
                judges = policy.judges();
            if (judges && !can_judge)
                return error{error_code::unsupported, "recompute", "the model does not show its keys and values"};
            if constexpr (can_judge)
                if (judges)
                    return select_by_deviation(policy, chunks, prefix, tokens, found, again);
        }
        if constexpr (chunk_recompute_state<Policy>)
            policy.select(runs, again);
        else if constexpr (!deviation_recompute_state<Policy>)
            recompute::full{}.open({}).select(runs, again); // a policy of exact prefixes recomputes every reused token
        return {};
    }

    /// Returns the deviations, in one layer, of the kept rows of `known` that are computed here: the squared distance
    /// between the computed and the stored keys or values, in ascending order of rows. `known` are the rows of this
    /// lease, or of a lease for the same tokens that kept more rows. All rows that this lease does not keep are
    /// computed up to the layer. If it keeps every kept row of `known`, all rows are computed.
    [[nodiscard]] std::vector<float> deviations(const lease_type& lease, std::span<const token_id> tokens,
                                                std::span<const spliced_row> known, std::size_t layer,
                                                deviation_metric compared, const rope* rotation) {
        expects(layer < model_.layers().size(), "the layer that is compared is one of the model's");
        rows_.clear();
        limits_.clear();
        bool all = true;
        std::size_t behind = 0;
        for (std::size_t row = 0; row < known.size(); ++row)
            if (known[row].kept) {
                all = all && lease.opened().keeps(row);
                behind = row + 1;
            }
        for (std::size_t row = 0; row < behind; ++row)
            if (all || !lease.opened().keeps(row))
                rows_.push_back(row);
        std::vector<float> made;
        for (std::size_t at = 0; at < rows_.size(); at += max_batch_tokens_) {
            begin(lease, tokens, at, max_batch_tokens_, logits_mode::none);
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
    [[nodiscard]] const rope* rotation(std::size_t layer) const noexcept {
        if constexpr (requires { model_.rotation(layer_id{}); })
            return layer < model_.layers().size() ? model_.rotation(model_.layers()[layer]) : nullptr;
        else
            return nullptr;
    }

    template <class Policy>
    [[nodiscard]] result<void> select_by_deviation(const Policy& policy, chunk_reuse<Cache>& chunks,
                                                   typename Cache::sequence& prefix, std::span<const token_id> tokens,
                                                   const typename chunk_reuse<Cache>::match_type& found,
                                                   std::vector<std::size_t>& again) {
        // The deviation of reused tokens, `deeper` layers after the check layer: of all reused tokens while `again` is
        // empty, otherwise of those in it. The first call fills `known`.
        std::vector<spliced_row> known;
        const auto judge = [&](std::size_t deeper) -> result<std::vector<float>> {
            auto lease = chunks.reserve(prefix, tokens.size() - prefix.size(), found, again, false);
            if (!lease)
                return lease.error();
            if (known.empty())
                known.assign(lease->opened().spliced().begin(), lease->opened().spliced().end());
            const std::size_t layer = policy.check_layer() + deeper;
            return deviations(*lease, tokens.subspan(lease->first()), known, layer, policy.compared(), rotation(layer));
        };
        auto off = judge(0); // with every reused token kept, for now
        if (!off)
            return off.error();
        policy.select(found.map().runs, *off, again);
        if constexpr (filtering_recompute_state<Policy>)
            for (std::size_t i = 0; i < policy.filters() && !again.empty(); ++i) {
                off = judge(i + 1);
                if (!off)
                    return off.error();
                policy.filter(i, found.map().runs, *off, again);
            }
        return {};
    }

    void begin(const lease_type& lease, std::span<const token_id> tokens, std::size_t at, std::size_t most,
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
    [[nodiscard]] float distance(const lease_type& lease, std::size_t i, const spliced_row& at, layer_id layer,
                                 deviation_metric compared, const rope* rotation) {
        const bool keys = compared == deviation_metric::keys;
        if constexpr (grouped_lease<lease_type>) {
            expects(pass_.place_of(layer).writes, "the layer that is compared has keys and values of its own");
            fresh_.resize(pass_.head_dim());
        } else {
            fresh_.resize(lease.shape().head_dim);
        }
        turn_.resize(fresh_.size());
        if (keys && rotation != nullptr)
            rotation->fill(static_cast<std::int64_t>(lease.first() + part_.rows[i]) - at.base, turn_);
        else
            turn_.clear();
        const std::span<const float> fresh = keys ? pass_.keys(i) : pass_.values(i); // (kv_heads, head_dim), no RoPE
        if constexpr (grouped_lease<lease_type>) {
            const attended_layer place = pass_.place_of(layer);
            float sum = 0.0F;
            lease.opened().with_page(place.group, at.page, [&](const auto& codec, std::span<const std::byte> bytes) {
                sum = distance(codec, bytes, {place.layer, head_id{}, at.row}, fresh, keys);
            });
            return sum;
        } else {
            return distance(lease.codec(), std::span<const std::byte>(lease.storage().bytes(at.page)),
                            {layer, head_id{}, at.row}, fresh, keys);
        }
    }
    // The same of the row from one in a page, from its first head on. Keys are turned first, unless turn_ is empty.
    template <class Codec>
    [[nodiscard]] float distance(const Codec& codec, std::span<const std::byte> page, const page_row& at,
                                 std::span<const float> fresh, bool keys) {
        const std::size_t dim = fresh_.size(), lane = at.row % tile_tokens;
        scratch_.resize(std::max(dim, padded_head_dim(dim)) * tile_tokens);
        float sum = 0.0f;
        for (std::size_t head = 0; head < fresh.size() / dim; ++head) {
            const auto now = fresh.subspan(head * dim, dim);
            const page_tile tile{at.layer, head_id{static_cast<std::uint32_t>(head)}, at.row / tile_tokens};
            const float* stored = keys ? codec.keys(page, tile, scratch_) : codec.values(page, tile, scratch_);
            if (keys && !turn_.empty())
                rotate_head(now, turn_, fresh_);
            else
                ranges::copy(now, fresh_.begin());
            if constexpr (page_writer<Codec>) { // as it is stored
                if (keys)
                    codec.transform_key(fresh_);
                else
                    codec.transform_value(fresh_);
            }
            for (std::size_t d = 0; d < dim; ++d) {
                const float off =
                    fresh_[d] - (keys ? stored[d * tile_tokens + lane] : stored[lane * padded_head_dim(dim) + d]);
                sum = std::fma(off, off, sum);
            }
        }
        return sum;
    }

    const Model& model_;
    std::size_t max_batch_tokens_;
    pass_type pass_;
    std::size_t layer_rows_ = 0;
    batch_slice<lease_type> part_;
    std::vector<std::size_t> rows_, limits_;
    std::vector<token_id> ids_;
    std::vector<float> scratch_, turn_, fresh_;
};

}} // namespace kvcache
