// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/handle.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/record/page_records.hpp>
#include <kvcache/record/record.hpp>
#include <kvcache/record/record_writer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// The blocks of layer groups in the snapshot of a sequence of `tokens` tokens: of a window those that the next query
/// reads, of a recurrent group the state after the last token, as a part of the last page.
template <class Core>
class group_parts {
public:
    static_assert(Core::owns_blocks, "snapshots are of caches that have the memory of their layer groups");

    group_parts(const Core& core, std::size_t tokens)
        : core_(core), blocks_(core.pages().blocks()), tokens_(tokens), page_tokens_(core.shape().tokens) {}

    /// Checks that a sequence has its states. Errors: unsupported, with the group.
    [[nodiscard]] result<void> check(const typename Core::sequence& of) const {
        for (std::size_t pool = 0; pool < blocks_.size(); ++pool)
            if (tokens_ > 0 && blocks_.is_state(pool) && of.state_of(blocks_.group(pool)).empty())
                return error{error_code::unsupported, field(pool),
                             field(pool) + ": the state after the last of " + std::to_string(tokens_) +
                                 " tokens is not known; a fork that ends at a snapshot can be saved"};
        return {};
    }
    /// Adds the parts of a page of such a sequence, which are valid as long as the sequence stays as it is.
    void add(const typename Core::sequence& of, std::size_t page, page_parts<Core>& to) const {
        for (std::size_t pool = 0; pool < blocks_.size(); ++pool) {
            if (!has(pool, page))
                continue;
            const auto kind = group_part(blocks_.group(pool));
            const auto index = static_cast<std::uint32_t>(page);
            if (blocks_.is_state(pool))
                to.add({kind, index, 0, of.state_of(blocks_.group(pool))});
            else
                to.add({kind, index, of.table()[page].count, bytes(of.state_in(core_), pool, page)},
                       blocks_.memory().codec(pool));
        }
    }

    /// Whether `place` reads a part, for a sequence whose first `known` pages are in the cache.
    [[nodiscard]] bool places(const record_part& part, std::size_t known) const {
        for (std::size_t pool = 0; pool < blocks_.size(); ++pool)
            if (part.kind == group_part(blocks_.group(pool)))
                return part.index >= known && has(pool, part.index);
        return false;
    }
    /// Copies the parts after the first `known` pages into a lease of all rows after them, and verifies the copies. A
    /// state at the end of a page is a snapshot too, if there is room. Errors: malformed, mismatched, with the name of
    /// the parts' kind; out_of_memory.
    [[nodiscard]] result<void> place(const record& from, std::size_t known, const open_lease<Core>& lease,
                                     const record_authenticator& auth) const {
        const std::size_t pages = (tokens_ + page_tokens_ - 1) / page_tokens_;
        for (std::size_t page = known; page < pages; ++page)
            for (std::size_t pool = 0; pool < blocks_.size(); ++pool) {
                if (!has(pool, page))
                    continue;
                const auto rows = static_cast<std::uint32_t>(std::min(page_tokens_, tokens_ - page * page_tokens_));
                const auto placed = blocks_.is_state(pool) ? place_state(from, pool, page, lease, auth)
                                                           : place_part(from, group_part(blocks_.group(pool)),
                                                                        static_cast<std::uint32_t>(page), rows,
                                                                        bytes(lease.state, pool, page), auth);
                if (!placed)
                    return placed;
            }
        return {};
    }

private:
    // Whether a page has a part of a group.
    [[nodiscard]] bool has(std::size_t pool, std::size_t page) const {
        return blocks_.is_state(pool) ? (page + 1) * page_tokens_ >= tokens_ && page * page_tokens_ < tokens_
                                      : page >= blocks_.first_entry(pool, tokens_);
    }
    [[nodiscard]] std::string field(std::size_t pool) const {
        return "groups[" + std::to_string(blocks_.group(pool)) + "]";
    }
    [[nodiscard]] std::span<std::byte> bytes(const sequence_state& of, std::size_t pool, std::size_t page) const {
        return blocks_.memory().bytes(pool, blocks_.block(pool, of.table[page].page));
    }

    // The state after the last token of a lease.
    [[nodiscard]] result<void> place_state(const record& from, std::size_t pool, std::size_t page,
                                           const open_lease<Core>& lease, const record_authenticator& auth) const {
        const std::size_t group = blocks_.group(pool);
        const bool opaque = blocks_.description(pool).opaque;
        const auto index = static_cast<std::uint32_t>(page);
        const record_part* const part = from.part(group_part(group), index);
        if (part == nullptr || part->bytes.empty() || (opaque && tokens_ % page_tokens_ != 0))
            return error{error_code::malformed, "block", "block: the state after the last token is missing"};
        const auto copy = [&](std::span<std::byte> to) {
            return place_part(from, group_part(group), index, 0, to, auth);
        };
        if (!opaque) // of the sequence itself
            if (auto copied =
                    copy(lease.core.groups([&](auto& groups) { return groups.next_state(lease.state, group); }));
                !copied)
                return copied;
        if (tokens_ % page_tokens_ != 0)
            return {};
        const auto made = lease.core.groups([&](auto& groups) {
            return groups.snapshot(lease.state, group, tokens_, opaque ? part->bytes.size() : 0);
        });
        if (!made)
            return opaque ? result<void>(made.error()) : result<void>();
        return copy(bytes(lease.state, pool, page));
    }

    const Core& core_;
    const typename Core::layers_type& blocks_;
    std::size_t tokens_;
    std::size_t page_tokens_;
};

}}} // namespace kvcache::detail
