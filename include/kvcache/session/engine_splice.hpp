// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/chunk/chunk_reuse.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/session/any_recompute.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// The chunks that an answer of an engine takes from the cache. They are found after its exact prefix, and placed once
/// the tokens before the first kept one have run; then the other rows run, over several steps if need be.
template <class Cache>
class engine_splice {
public:
    /// Finds chunks for the tokens after `prefix`, and cuts it where a spliced lease can begin. Nothing happens if
    /// there are none, or all of their tokens run again.
    void find(Cache& cache, typename Cache::sequence& prefix, std::span<const token_id> tokens,
              const any_recompute& policy) {
        chunk_reuse<Cache> chunks(cache);
        auto found = chunks.match(prefix, tokens);
        const auto& runs = found.map().runs;
        if (runs.empty())
            return;
        policy_.emplace(policy.open(cache.shape()));
        judged_ = !policy_->judges();
        again_.clear();
        if (judged_)
            policy_->select(runs, again_);
        const std::size_t kept = judged_ ? found.map().first_kept(again_) : runs.front().first;
        if (kept == found.map().end())
            return;
        first_ = chunks.splice_position(kept);
        if (first_ < prefix.size())
            prefix.truncate(first_);
        found_.emplace(std::move(found));
        chunks_.emplace(std::move(chunks));
    }

    /// Whether chunks are to be placed, or their lease is open.
    [[nodiscard]] bool active() const noexcept { return found_.has_value(); }
    /// The position at which the spliced lease begins.
    [[nodiscard]] std::size_t first() const noexcept { return first_; }
    /// Whether the lease is open.
    [[nodiscard]] bool placed() const noexcept { return lease_.has_value(); }

    /// Opens the lease, if it is not. A policy that selects by deviation selects first, by `prefill` (a
    /// selective_prefill); the lease may then begin later than first() said, or all chunks run again: see active and
    /// first. Errors: out_of_memory. Throws: bad_alloc; nothing has changed then. Requires: the sequence ends at
    /// first().
    template <class Prefill>
    [[nodiscard]] result<void> place(typename Cache::sequence& sequence, std::span<const token_id> tokens,
                                     Prefill&& prefill) {
        if (placed())
            return {};
        if (!judged_) {
            again_.clear();
            if (auto chosen = prefill().select(*policy_, *chunks_, sequence, tokens, *found_, again_); !chosen)
                return chosen;
            judged_ = true;
            const std::size_t kept = found_->map().first_kept(again_);
            if (kept == found_->map().end()) {
                reset();
                return {};
            }
            first_ = chunks_->splice_position(kept);
            if (first_ > sequence.size())
                return {};
        }
        auto lease = chunks_->reserve(sequence, tokens.size() - first_, *found_, again_);
        if (!lease)
            return lease.error();
        rows_.clear();
        ids_.clear();
        for (std::size_t row = 0; row < tokens.size() - first_; ++row)
            if (!lease->opened().keeps(row)) {
                rows_.push_back(row);
                ids_.push_back(tokens[first_ + row]);
            }
        next_ = 0;
        lease_.emplace(std::move(*lease)); // last: what was thrown before has rolled it back
        return {};
    }

    [[nodiscard]] typename Cache::lease& lease() noexcept { return *lease_; }
    /// The rows of the lease that have not run, and their tokens.
    [[nodiscard]] std::span<const std::size_t> rows() const noexcept { return std::span(rows_).subspan(next_); }
    [[nodiscard]] std::span<const token_id> ids() const noexcept { return std::span(ids_).subspan(next_); }

    /// Notes that rows have run. Returns whether all have: the lease is committed then.
    [[nodiscard]] bool ran(std::size_t rows, std::span<const token_id> tokens) {
        next_ += rows;
        if (next_ < rows_.size())
            return false;
        lease_->commit(tokens.subspan(first_));
        reset();
        return true;
    }

    /// Tokens that are kept as they were computed elsewhere, and reused tokens that run again. Requires: placed.
    [[nodiscard]] std::size_t approximate() const noexcept {
        return found_->map().tokens(reuse_kind::approximate) - again_.size();
    }
    [[nodiscard]] std::size_t recomputed() const noexcept { return again_.size(); }

    /// Gives up chunks and lease.
    void reset() noexcept {
        lease_.reset();
        found_.reset();
        chunks_.reset();
    }

private:
    std::size_t first_ = 0;
    std::optional<any_recompute::state> policy_;
    bool judged_ = true; // again_ is selected
    std::vector<std::size_t> again_;
    std::optional<chunk_reuse<Cache>> chunks_;
    std::optional<typename chunk_reuse<Cache>::match_type> found_;
    std::optional<typename Cache::lease> lease_;
    std::vector<std::size_t> rows_; // of the lease, that run
    std::vector<token_id> ids_;
    std::size_t next_ = 0;
};

/// In its place over a cache without chunks.
struct no_splice {
    static constexpr bool active() noexcept { return false; }
    static constexpr bool placed() noexcept { return false; }
    static constexpr void reset() noexcept {}
};

} // namespace detail

}} // namespace kvcache
