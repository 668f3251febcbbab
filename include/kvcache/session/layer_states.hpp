// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/lookup_result.hpp>
#include <kvcache/cache/snapshot_places.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/model/host_attention.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The states of a model's recurrent layers in the leases of a pipeline: where each slice of a batch begins, and which
/// states stay as snapshots.
template <class Cache, class Model>
class layer_states {
public:
    layer_states(const Cache& cache, const Model& model, const snapshot_places& places)
        : page_tokens_(cache.shape().tokens), places_(places) {
        if constexpr (requires { model.state_group(); })
            group_ = model.state_group();
        if constexpr (requires { model.config().needs_groups(); })
            needs_groups_ = model.config().needs_groups();
    }

    /// Whether the cache can hold the states. Errors: unsupported.
    [[nodiscard]] result<void> check() const {
        if ((group_ || needs_groups_) && !owns)
            return error{error_code::unsupported, "layers",
                         group_ ? "the model has recurrent layers: its cache needs layers::grouped"
                                : "the model's layers keep different keys and values: its cache needs layers::grouped"};
        return {};
    }
    /// Whether the states after a sequence's last token are known.
    [[nodiscard]] bool known(const typename Cache::sequence& sequence) const {
        if constexpr (owns)
            return !group_ || sequence.size() == 0 || !sequence.state_of(*group_).empty();
        return true;
    }

    /// Whether the model has recurrent layers.
    [[nodiscard]] bool any() const noexcept { return group_.has_value(); }
    /// Where a prompt leaves snapshots, of which so much was found; empty without recurrent layers. Throws: bad_alloc.
    [[nodiscard]] std::vector<std::size_t> places_in(const lookup_result& found) const {
        return group_ ? places_.of(found, page_tokens_) : std::vector<std::size_t>();
    }
    /// A batch begins.
    void clear() noexcept { used_ = 0; }

    /// The states of the rows [row, row + count) of a lease, whose rows before have run. `wanted`: what places_in
    /// returned; null for rows after a prompt. Valid until `clear`.
    template <class Lease>
    [[nodiscard]] slice_states of(const Lease& lease, std::size_t row, std::size_t count,
                                  const std::vector<std::size_t>* wanted) {
        slice_states made;
        if constexpr (owns)
            if (group_) {
                made.after = lease.state_after(*group_);
                made.before = row == 0 ? lease.state_before(*group_) : made.after;
                if (used_ == copies_.size())
                    copies_.emplace_back();
                take_snapshots(lease, lease.first() + row, count, wanted, copies_[used_]);
                made.copies = copies_[used_++];
            }
        return made;
    }

private:
    static constexpr bool owns = Cache::core_type::owns_blocks;

    // Where there is no room for a snapshot, there is none.
    template <class Lease>
    void take_snapshots(const Lease& lease, std::size_t first, std::size_t count,
                        const std::vector<std::size_t>* wanted, std::vector<state_copy>& made) const {
        made.clear();
        for (std::size_t at = (first / page_tokens_ + 1) * page_tokens_; at <= first + count; at += page_tokens_)
            if (wanted != nullptr ? std::binary_search(wanted->begin(), wanted->end(), at)
                                  : places_.after_prompt(at, lease.first(), lease.first() + lease.rows(), page_tokens_))
                if (auto block = lease.snapshot(*group_, at))
                    made.push_back({at - first, lease.state_of(*group_, *block)});
    }

    std::size_t page_tokens_;
    snapshot_places places_;
    std::optional<std::size_t> group_;
    bool needs_groups_ = false;
    std::vector<std::vector<state_copy>> copies_; // of the slices of a batch, and memory for more
    std::size_t used_ = 0;
};

}} // namespace kvcache
