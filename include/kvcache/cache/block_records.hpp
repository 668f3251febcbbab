// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/cache/tier_client.hpp>
#include <kvcache/core/abi.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/record/page_records.hpp>
#include <kvcache/record/record.hpp>
#include <kvcache/record/record_writer.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/run.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The blocks of layer groups as records of a tier, one a block. Of a window group the tier gets the blocks that the
/// query after the last full page reads, of a state group all snapshots. A block that the tier lacks makes a match
/// shorter, never wrong.
template <class Core, tier_state Tier>
class block_records {
public:
    block_records(Core& core, tier_records<Tier>& records, const record_names& names)
        : core_(core), records_(records), names_(names), blocks_(core.pages().blocks()) {
        static_assert(std::remove_cvref_t<decltype(blocks_.layout())>::most_groups <= most_part_groups);
    }

    /// Hands over the blocks of pages that a sequence has just handed over, the last ones of those. `chain`: the names
    /// of the prefixes before these pages, and of the last. Calls `report` with the result of each hand-over. Throws:
    /// bad_alloc; the tier then lacks some of them.
    template <class Report>
    void hand_over(sequence_state& state, std::span<const sha256_digest> chain, const Report& report) {
        if (chain.size() < 2)
            return;
        const std::size_t end = state.offloaded.pages, first = end - (chain.size() - 1);
        const std::size_t used = state.snapshots.size();
        core_.groups([&](auto& groups) { groups.pin(state, first, end); });
        const detail::scope_guard unpin([&] { core_.groups([&](auto& groups) { groups.unpin(state, used); }); });
        for (std::size_t i = used; i < state.snapshots.size(); ++i) {
            const auto [pool, entry] = state.snapshots[i];
            const std::size_t group = blocks_.group(pool), page_tokens = core_.shape().tokens;
            const sha256_digest name = names_.block(chain[entry - first + 1], group);
            if (records_.tier().contains(name))
                continue;
            const prompt_page page{
                .index = entry,
                .tokens = std::span<const token_id>(state.tokens).subspan(entry * page_tokens, page_tokens)};
            const part_source part{
                .kind = group_part(group), .rows = rows_of(pool), .bytes = recorded(state, pool, entry)};
            const record_writer made(
                {record_kind::block, page.first(), page.tokens, chain[entry - first], name, {&part, 1}}, names_,
                records_.auth());
            report(records_.tier().put({.name = name,
                                        .cost = core_.prefill_seconds(page.first(), page.tokens.size()),
                                        .depth = static_cast<std::uint32_t>(entry)},
                                       made.pieces()));
        }
    }

    /// Asks the tier for the blocks of `pages` pages of a prompt from page `first` on. `chain`: the name of the prefix
    /// before each page of the prompt, and of the whole. Throws: bad_alloc.
    void look(std::size_t first, std::span<const sha256_digest> chain, std::size_t pages) {
        first_ = first;
        chain_ = chain;
        pages_ = pages;
        std::vector<sha256_digest> wanted;
        for (std::size_t pool = 0; pool < blocks_.size(); ++pool)
            for (std::size_t i = 0; i < pages; ++i)
                wanted.push_back(name_of(pool, i));
        there_.clear();
        if (!wanted.empty())
            there_ = tier::present(records_.tier(), wanted);
    }
    /// The longest run of at most `pages` of these pages that every group can continue. Cost: O(pages * blocks of a
    /// window).
    [[nodiscard]] std::size_t longest(std::size_t pages) const {
        while (pages > 0 && !has_all(pages))
            --pages;
        return pages;
    }
    /// Copies the blocks of the first `run.pages()` pages into a lease, which is whole. Returns false if that is not
    /// possible: one of them is not there, or not sound, or there is no room for a state. Calls `refuse` with the name
    /// of a record that is not sound, and why, and `fail` with an error of the tier. Throws: bad_alloc.
    template <class Refuse, class Fail>
    [[nodiscard]] bool place(const open_lease<Core>& lease, const page_run& run, const Refuse& refuse,
                             const Fail& fail) {
        std::vector<place_in_lease> places;
        std::vector<sha256_digest> wanted;
        for (std::size_t pool = 0; pool < blocks_.size(); ++pool) {
            const std::size_t end = run.pages();
            for (std::size_t i = first_wanted(pool, end); i < end; ++i) {
                places.push_back({pool, i});
                wanted.push_back(name_of(pool, i));
            }
        }
        if (places.empty())
            return true;
        result<void> sound;
        std::size_t placed = 0;
        const auto read =
            tier::read_run(records_.tier(), wanted, [&](std::size_t i, std::span<const std::byte> record) {
                sound = put_in_place(lease.state, places[i], record, run.page(places[i].page), wanted[i]);
                placed += sound.has_value();
                return sound.has_value();
            });
        if (placed == places.size())
            return true;
        if (!read)
            fail(read.error());
        if (!sound && sound.error().code != error_code::out_of_memory)
            refuse(wanted[placed], sound.error());
        return lacks(places[placed].pool, places[placed].page);
    }

private:
    using block_codec =
        typename std::remove_cvref_t<decltype(std::declval<const typename Core::layers_type&>().memory())>::codec_type;

    // A block of a page of the run.
    struct place_in_lease {
        std::size_t pool = 0, page = 0;
    };

    [[nodiscard]] sha256_digest name_of(std::size_t pool, std::size_t page) const {
        return names_.block(chain_[first_ + page + 1], blocks_.group(pool));
    }
    [[nodiscard]] std::uint32_t rows_of(std::size_t pool) const {
        return blocks_.is_state(pool) ? 0 : core_.shape().tokens;
    }
    [[nodiscard]] std::span<std::byte> bytes(const sequence_state& state, std::size_t pool, std::size_t entry) const {
        return blocks_.memory().bytes(pool, blocks_.block(pool, state.table[entry].page));
    }
    // The bytes of a block that a record keeps.
    [[nodiscard]] std::span<const std::byte> recorded(const sequence_state& state, std::size_t pool,
                                                      std::size_t entry) const {
        const std::span<const std::byte> all = bytes(state, pool, entry);
        if constexpr (opaque_codec_state<block_codec>)
            if (!blocks_.is_state(pool))
                return blocks_.memory().codec(pool).used(all);
        return all;
    }
    // The first page of a run of `pages` whose block is needed. Those before the run are in memory.
    [[nodiscard]] std::size_t first_wanted(std::size_t pool, std::size_t pages) const {
        if (blocks_.is_state(pool))
            return pages - 1;
        const std::size_t entry = blocks_.first_entry(pool, (first_ + pages) * core_.shape().tokens);
        return entry - std::min(entry, first_);
    }
    [[nodiscard]] bool has_all(std::size_t pages) const {
        for (std::size_t pool = 0; pool < blocks_.size(); ++pool)
            for (std::size_t i = first_wanted(pool, pages); i < pages; ++i)
                if (!there_[pool * pages_ + i])
                    return false;
        return true;
    }
    bool lacks(std::size_t pool, std::size_t page) {
        there_[pool * pages_ + page] = false;
        return false;
    }
    [[nodiscard]] result<void> put_in_place(sequence_state& state, const place_in_lease& at,
                                            std::span<const std::byte> from, const prompt_page& page,
                                            const sha256_digest& name) {
        const auto read = record::parse(from, records_.auth());
        if (!read)
            return read.error();
        if (auto own = read->made_under(names_); !own)
            return own;
        if (auto right = is_record_of(*read, record_kind::block, name, page); !right)
            return right;
        const std::size_t group = blocks_.group(at.pool);
        if (blocks_.is_state(at.pool)) {
            const record_part* const part = read->part(group_part(group), 0);
            if (part == nullptr || part->bytes.empty())
                return error{error_code::malformed, "block", "block: the record lacks its bytes"};
            const std::size_t size = blocks_.description(at.pool).opaque ? part->bytes.size() : 0;
            const auto made = core_.groups([&](auto& groups) {
                return groups.snapshot(state, group, (page.index + 1) * core_.shape().tokens, size);
            });
            if (!made)
                return made.error();
        }
        const auto to = bytes(state, at.pool, page.index);
        if constexpr (opaque_codec_state<block_codec>)
            if (!blocks_.is_state(at.pool))
                return place_blob(blocks_.memory().codec(at.pool), *read, {group_part(group), 0, rows_of(at.pool), {}},
                                  to, records_.auth());
        return place_part(*read, group_part(group), 0, rows_of(at.pool), to, records_.auth());
    }

    Core& core_;
    tier_records<Tier>& records_;
    const record_names& names_;
    const typename Core::layers_type& blocks_;
    std::size_t first_ = 0, pages_ = 0;
    std::span<const sha256_digest> chain_ = {};
    std::vector<bool> there_; // (pools, pages)
};

}} // namespace kvcache
