// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/lookup_result.hpp>
#include <kvcache/cache/sequence_manager.hpp>
#include <kvcache/cache/sequence_state.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/layout.hpp>
#include <kvcache/index/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The blocks of layer groups that the sequences and leases of a cache use. Of a window group a sequence uses the
/// blocks that its next query reads, and those of its reserved rows. Of a state group it uses the snapshot that it
/// began with, and those that its lease has made, until the next commit: the state after its last token is the host's.
template <class PageManager>
class group_leases {
public:
    group_leases(PageManager& pages, std::size_t page_tokens) : pages_(pages), page_tokens_(page_tokens) {}

    /// How many of the first `tokens` tokens every group can continue. `page_of(entry)` is the page of a page-table
    /// entry. Cost: O(entries * groups).
    template <class PageOf>
    [[nodiscard]] group_limit limit(std::size_t tokens, const PageOf& page_of) const {
        group_limit found{.tokens = tokens, .others = tokens};
        std::size_t last = none;
        found.tokens = longest(tokens, page_of, none, last);
        if (last == none)
            return found;
        found.group = static_cast<std::uint32_t>(blocks().group(last));
        std::size_t other = none;
        found.others = longest(tokens, page_of, last, other);
        return found;
    }
    [[nodiscard]] group_limit limit(std::span<const page_id> pages, std::size_t tokens) const {
        return limit(tokens, [&](std::size_t entry) { return pages[entry]; });
    }
    [[nodiscard]] std::size_t kept(const sequence_state& state, std::size_t tokens) const {
        if (tokens == state.tokens.size() || (tokens > state.exact && has_window(state, tokens)))
            return tokens;
        return limit(std::min(tokens, state.exact), [&](std::size_t entry) { return state.table[entry].page; }).tokens;
    }

    /// Notes where a prompt ends, parts from a cached one, or continues it: later prompts that part there need the
    /// windows. A page known in part is copied when it is filled, so the one before it is noted too. Earlier windows
    /// are touched as the pages are, but for the first ones, which save little where a later prompt parts.
    void note(const index_match& found, bool touches) noexcept {
        if (found.pages.empty())
            return;
        pages_.note_branch(found.pages.back());
        if (found.pages.size() * page_tokens_ != found.tokens && found.pages.size() > 1)
            pages_.note_branch(found.pages[found.pages.size() - 2]);
        for (std::size_t pool = 0; touches && pool < blocks().size(); ++pool)
            for (std::size_t entry = 2 * blocks().stale_distance(pool); entry < found.pages.size(); ++entry)
                if (const page_id page = found.pages[entry];
                    !blocks().is_state(pool) && blocks().has(pool, page) && pages_.ranks_block(pool, page))
                    pages_.touch(blocks().entry(pool, page));
    }

    /// Makes room for what a sequence notes. Throws: bad_alloc.
    void prepare(sequence_state& state) const {
        state.group_first.assign(blocks().size(), 0);
        state.snapshots.reserve(blocks().size());
    }
    /// Uses the blocks of a sequence whose pages are referenced.
    void begin(sequence_state& state) noexcept {
        for (const sequence_state::pinned_block& one : state.pinned_blocks)
            pages_.cover(one.pool, one.page);
        state.group_first.assign(blocks().size(), state.table.size());
        follow(state);
        use_snapshots(state);
    }
    /// The same after the sequence was shortened.
    void begin_again(sequence_state& state) noexcept {
        state.running.forget();
        end_snapshots(state, 0);
        follow(state);
        use_snapshots(state);
    }
    /// Uses the blocks that its next query reads, and no others, after its length has changed.
    void follow(sequence_state& state) noexcept {
        for (std::size_t pool = 0; pool < blocks().size(); ++pool) {
            if (blocks().is_state(pool))
                continue;
            std::size_t& first = state.group_first[pool];
            const std::size_t wanted = first_used(state, pool, state.tokens.size());
            const std::size_t margin = blocks().stale_distance(pool);
            for (; first < wanted; ++first)
                if (first < state.table.size()) {
                    // of a whole lease, it may have no block
                    leave(pool, state.table[first].page, blocks().keeps_released());
                    if (first >= margin && !parts(state, first - margin, first))
                        pages_.make_stale(pool, state.table[first - margin].page);
                }
            for (; first > wanted; --first)
                if (first <= state.table.size())
                    pages_.cover(pool, state.table[first - 1].page);
        }
    }
    /// Stops using the blocks of the last entry of its table, before its page is dropped.
    void leave_last(sequence_state& state) noexcept {
        const std::size_t entry = state.table.size() - 1;
        const page_id page = state.table[entry].page;
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            if (!blocks().is_state(pool) && entry >= state.group_first[pool])
                leave(pool, page);
        end_snapshots(state, entry * page_tokens_);
    }
    /// Stops using the window blocks of a page that takes no more part in the table.
    void leave_page(page_id page) noexcept {
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            if (!blocks().is_state(pool))
                leave(pool, page);
    }

    /// The bytes and blocks of a reservation, after which the sequence has `tokens` tokens. Errors: out_of_memory, with
    /// what is missing.
    [[nodiscard]] result<void> check(const sequence_state& state, const row_demand& wanted, std::size_t tokens,
                                     std::size_t page_bytes) const {
        std::size_t bytes = wanted.pages * page_bytes;
        for (std::size_t pool = 0; pool < blocks().size(); ++pool) {
            if (blocks().is_state(pool))
                continue;
            const std::size_t end = state.table.size() + wanted.fresh, begin = end - wanted.fresh;
            const std::size_t first = wanted.whole ? std::max(begin, blocks().first_entry(pool, tokens)) : begin;
            const std::size_t fresh = end - std::min(first, end) + (wanted.copies ? 1 : 0);
            bytes += fresh * blocks().block_bytes(pool);
            if (fresh > blocks().available_blocks(pool))
                return error{error_code::out_of_memory,
                             detail::joined({"groups[", std::to_string(blocks().group(pool)), "]"}),
                             detail::joined({std::to_string(fresh), " blocks are needed; ",
                                             std::to_string(blocks().available_blocks(pool)), " of ",
                                             std::to_string(blocks().blocks(pool)), " can be had"})};
        }
        if (bytes > pages_.available_bytes())
            return error{error_code::out_of_memory, "bytes",
                         detail::joined({std::to_string(bytes), " bytes of pages and blocks are needed; ",
                                         std::to_string(pages_.available_bytes()), " of ",
                                         std::to_string(blocks().budget()), " can be had"})};
        return {};
    }
    /// Takes the window blocks of the page that was appended to a table, or copied for its last entry. Returns false if
    /// there is no room.
    [[nodiscard]] bool extend(const sequence_state& state, page_id page) {
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            if (takes(state, pool, state.table.size() - 1) &&
                !pages_.allocate_block(pool, page, state.tenant, blocks().block_bytes(pool)))
                return false;
        return true;
    }
    /// Copies the window blocks of a shared page to those of its copy. Returns false if there is no room, or the host
    /// could not copy.
    [[nodiscard]] bool copy_tail(const sequence_state& state, page_id shared, page_id own, std::size_t rows) {
        if (!extend(state, own))
            return false;
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            if (!blocks().is_state(pool) && !pages_.copy_block(pool, shared, own, rows))
                return false;
        return true;
    }
    /// The groups whose blocks of an entry the sequence uses, a bit each.
    [[nodiscard]] std::uint64_t used(const sequence_state& state, std::size_t entry) const noexcept {
        std::uint64_t groups = 0;
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            if (!blocks().is_state(pool) && entry >= state.group_first[pool])
                groups |= std::uint64_t{1} << pool;
        for (const sequence_state::snapshot& one : state.snapshots)
            if (one.entry == entry)
                groups |= std::uint64_t{1} << one.pool;
        return groups;
    }

    /// By group of the layout. Throws: bad_alloc.
    [[nodiscard]] std::vector<layer_group_stats> stats() const {
        const cache_layout& layout = blocks().layout();
        std::vector<layer_group_stats> made;
        for (std::size_t group = 0; group < layout.groups.size(); ++group)
            made.push_back({.name = layout.name_of(group), .kind = layout.groups[group].kind()});
        if (const auto group = blocks().paged()) {
            const std::size_t all = pages_.pool().pages(), idle = pages_.evictable();
            layer_group_stats& of = made[*group];
            of.block_bytes = pages_.page_bytes();
            of.blocks = all;
            of.in_use = all - pages_.pool().free().size() - idle;
            of.evictable = idle;
            of.bytes = (of.in_use + idle) * of.block_bytes;
        }
        for (std::size_t pool = 0; pool < blocks().size(); ++pool) {
            layer_group_stats& of = made[blocks().group(pool)];
            of.block_bytes = blocks().block_bytes(pool);
            of.blocks = blocks().blocks(pool);
            of.in_use = of.blocks - blocks().available_blocks(pool);
            of.evictable = blocks().available_blocks(pool) - blocks().free_blocks(pool);
            of.bytes = blocks().held_bytes(pool);
        }
        return made;
    }

    /// By entry: the block of a group that the sequence uses, or `null`.
    [[nodiscard]] std::vector<std::int32_t> table(const sequence_state& state, std::size_t group,
                                                  std::int32_t null) const {
        std::vector<std::int32_t> made(state.table.size(), null);
        const std::size_t kept = blocks().keeper_of(group);
        if (kept == blocks().paged()) {
            for (std::size_t entry = 0; entry < made.size(); ++entry)
                made[entry] = static_cast<std::int32_t>(index_of(state.table[entry].page));
            return made;
        }
        const std::size_t pool = blocks().pool_of(kept);
        const auto show = [&](std::size_t entry) {
            made[entry] = static_cast<std::int32_t>(blocks().block(pool, state.table[entry].page));
        };
        for (std::size_t entry = state.group_first[pool]; entry < made.size(); ++entry)
            if (takes(state, pool, entry))
                show(entry);
        for (const sequence_state::snapshot& one : state.snapshots)
            if (one.pool == pool)
                show(one.entry);
        return made;
    }

    /// The table of a group's blocks, where the cache owns them: an entry without one has the page `no_block`. Returns
    /// whether the blocks are the cache's pages. Throws: bad_alloc.
    [[nodiscard]] bool entries(const sequence_state& state, std::size_t group, std::vector<page_entry>& into) const {
        into.assign(state.table.begin(), state.table.end());
        const std::size_t keeper = blocks().keeper_of(group);
        if (keeper == blocks().paged())
            return true;
        const std::size_t pool = blocks().pool_of(keeper);
        require(!blocks().is_state(pool), "a group that attention reads keeps keys and values");
        for (std::size_t entry = 0; entry < into.size(); ++entry)
            into[entry].page = entry >= state.group_first[pool] && takes(state, pool, entry)
                                   ? page_id{blocks().block(pool, state.table[entry].page)}
                                   : no_block;
        return false;
    }
    static constexpr page_id no_block{static_cast<std::uint32_t>(-1)};

    /// The memory of a state block.
    [[nodiscard]] std::span<std::byte> state_bytes(std::size_t group, std::uint32_t block) const {
        const std::size_t pool = blocks().pool_of(group);
        require(blocks().is_state(pool) && block < blocks().blocks(pool) && blocks().holders(pool, block) > 0,
                "a state is of a group that has one, and of a block that a sequence uses");
        return blocks().memory().bytes(pool, block);
    }
    /// The state of a group after the last token of a sequence: the one that its last lease left, or a snapshot that it
    /// uses; empty if there is neither.
    [[nodiscard]] std::span<const std::byte> last_state(const sequence_state& state, std::size_t group) const {
        const std::size_t pool = blocks().pool_of(group);
        if (const auto running = state.running.last(); !running.empty() && !blocks().description(pool).opaque)
            return running.subspan(running_bytes(pool), blocks().block_bytes(pool));
        for (const sequence_state::snapshot& one : state.snapshots)
            if (one.pool == pool && (one.entry + 1) * page_tokens_ == state.tokens.size())
                return state_bytes(group, blocks().block(pool, state.table[one.entry].page));
        return {};
    }

    /// Memory for the state of a group after the rows of a sequence's lease. Throws: bad_alloc.
    [[nodiscard]] std::span<std::byte> next_state(sequence_state& state, std::size_t group) const {
        const std::size_t pool = blocks().pool_of(group);
        require(blocks().is_state(pool) && !blocks().description(pool).opaque, "a state that runs has a size");
        return state.running.next(running_bytes(blocks().size()))
            .subspan(running_bytes(pool), blocks().block_bytes(pool));
    }

    /// A block for the state of a group after `tokens` tokens, which the open lease of the sequence computes. `bytes`:
    /// of an opaque state. Errors: out_of_memory. Throws: bad_alloc; nothing has changed then. Requires: the tokens end
    /// a page, in the lease.
    [[nodiscard]] result<std::uint32_t> snapshot(sequence_state& state, std::size_t group, std::size_t tokens,
                                                 std::size_t bytes) {
        const std::size_t pool = blocks().pool_of(group);
        require(blocks().is_state(pool), "a snapshot is of a group that has a state");
        require(blocks().description(pool).opaque == (bytes > 0), "a snapshot of an opaque state says its bytes");
        const std::size_t entry = tokens / page_tokens_ - 1;
        const page_id page = state.table[entry].page;
        for (const sequence_state::snapshot& one : state.snapshots)
            if (one.pool == pool && one.entry == entry)
                return blocks().block(pool, page);
        state.snapshots.reserve(state.snapshots.size() + 1);
        const std::size_t wanted = bytes > 0 ? bytes : blocks().block_bytes(pool);
        if (blocks().has(pool, page))
            pages_.cover(pool, page);
        else if (!pages_.allocate_block(pool, page, state.tenant, wanted))
            return error{error_code::out_of_memory,
                         detail::joined({"groups[", std::to_string(blocks().group(pool)), "]"}),
                         detail::joined({"there is no room for a state of ", std::to_string(wanted), " bytes"})};
        state.snapshots.push_back({pool, entry});
        return blocks().block(pool, page);
    }
    /// Removes the snapshots of a lease after more than `tokens` tokens, which were not committed.
    void drop_snapshots(sequence_state& state, std::size_t tokens) noexcept {
        for (std::size_t i = state.snapshots.size(); i-- > 0;)
            if (const auto one = state.snapshots[i]; (one.entry + 1) * page_tokens_ > tokens) {
                pages_.discard_block(one.pool, state.table[one.entry].page);
                state.snapshots.erase(state.snapshots.begin() + static_cast<std::ptrdiff_t>(i));
            }
    }
    /// Stops using snapshots after more than `tokens` tokens; they stay cached.
    void end_snapshots(sequence_state& state, std::size_t tokens) noexcept {
        for (std::size_t i = state.snapshots.size(); i-- > 0;)
            if (const auto one = state.snapshots[i]; (one.entry + 1) * page_tokens_ > tokens) {
                pages_.uncover(one.pool, state.table[one.entry].page, true);
                state.snapshots.erase(state.snapshots.begin() + static_cast<std::ptrdiff_t>(i));
            }
    }

    /// Uses the blocks of pages [first, end) of a sequence that a query after them reads, as snapshots, until `unpin`:
    /// of a state group all. Throws: bad_alloc.
    void pin(sequence_state& state, std::size_t first, std::size_t end) {
        state.snapshots.reserve(state.snapshots.size() + blocks().size() * (end - first));
        for (std::size_t pool = 0; pool < blocks().size(); ++pool) {
            const std::size_t read = blocks().is_state(pool) ? 0 : blocks().first_entry(pool, end * page_tokens_);
            for (std::size_t entry = std::max(first, read); entry < end; ++entry)
                if (blocks().has(pool, state.table[entry].page)) {
                    pages_.cover(pool, state.table[entry].page);
                    state.snapshots.push_back({pool, entry});
                }
        }
    }
    /// Stops using the blocks that are pinned for chunks.
    void unpin(sequence_state& state) noexcept {
        for (; !state.pinned_blocks.empty(); state.pinned_blocks.pop_back())
            leave(state.pinned_blocks.back().pool, state.pinned_blocks.back().page);
    }
    /// Ends the use of all but the first `used` of a sequence's snapshots.
    void unpin(sequence_state& state, std::size_t used) noexcept {
        for (; state.snapshots.size() > used; state.snapshots.pop_back())
            pages_.uncover(state.snapshots.back().pool, state.table[state.snapshots.back().entry].page, true);
    }

    // For invariants.

    /// By group with blocks and page: the sequences that use its block.
    using user_counts = std::vector<std::vector<std::uint32_t>>;
    [[nodiscard]] user_counts no_users() const {
        return user_counts(blocks().size(), std::vector<std::uint32_t>(pages_.pool().pages(), 0));
    }
    /// Counts what a sequence uses.
    void count(const sequence_state& state, user_counts& users) const {
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            if (!blocks().is_state(pool)) {
                for (std::size_t entry = state.group_first[pool]; entry < state.table.size(); ++entry)
                    if (takes(state, pool, entry))
                        ++users[pool][index_of(state.table[entry].page)];
                if (state.lease.has_copied_tail(state.table))
                    ++users[pool][index_of(state.lease.tail_before->page)];
            }
        for (const sequence_state::snapshot& one : state.snapshots)
            ++users[one.pool][index_of(state.table[one.entry].page)];
        for (const sequence_state::pinned_block& one : state.pinned_blocks)
            ++users[one.pool][index_of(one.page)];
    }
    /// Checks that the blocks are used by so many sequences, that each is free, in use or evictable, and that their
    /// bytes add up. Errors: malformed.
    [[nodiscard]] result<void> check(const user_counts& users) const {
        std::size_t bytes = (pages_.pool().pages() - pages_.pool().free().size()) * pages_.page_bytes(), idle = 0;
        for (std::size_t pool = 0; pool < blocks().size(); ++pool) {
            std::vector<std::uint32_t> holders(blocks().blocks(pool), 0), sharers = holders;
            for (std::uint32_t i = 0; i < pages_.pool().pages(); ++i) {
                const page_id page{i};
                if (blocks().covers(pool, page) != users[pool][i] || (users[pool][i] > 0 && !blocks().has(pool, page)))
                    return broken(pool, page, "is used by other sequences than it counts");
                if (!blocks().has(pool, page))
                    continue;
                const std::uint32_t block = blocks().block(pool, page);
                holders[block] += users[pool][i];
                ++sharers[block];
                if (users[pool][i] == 0 && (blocks().owner(pool, block) != page || !pages_.index().contains(page)))
                    return broken(pool, page, "is kept for a page that is not in the index");
            }
            for (std::uint32_t block = 0; block < holders.size(); ++block) {
                const auto owner = blocks().owner(pool, block);
                const page_id page = owner.value_or(page_id{});
                if (holders[block] != (sharers[block] > 0 ? blocks().holders(pool, block) : 0))
                    return broken(pool, page, "counts other users than it has");
                if (sharers[block] > 0 && holders[block] == 0) {
                    if (!owner || sharers[block] != 1 || !pages_.ranks_block(pool, page))
                        return broken(pool, page, "is not used and can never be evicted");
                    idle += blocks().bytes_of(pool, block);
                }
                bytes += sharers[block] > 0 ? blocks().bytes_of(pool, block) : 0;
            }
            const auto free = static_cast<std::size_t>(std::count(sharers.begin(), sharers.end(), 0u));
            if (free != blocks().free_blocks(pool))
                return broken(pool, {}, "is lost");
        }
        if (bytes != blocks().used() || idle != blocks().idle() || bytes > blocks().budget())
            return error{error_code::malformed, "bytes",
                         detail::joined({std::to_string(bytes), " bytes are in pages and blocks, ",
                                         std::to_string(idle), " of them evictable; the cache counts ",
                                         std::to_string(blocks().used()), " and ", std::to_string(blocks().idle())})};
        return {};
    }

private:
    static constexpr std::size_t none = static_cast<std::size_t>(-1);

    // Bytes of the states that run, of the groups before this one.
    [[nodiscard]] std::size_t running_bytes(std::size_t pool) const noexcept {
        std::size_t bytes = 0;
        for (std::size_t i = 0; i < pool; ++i)
            bytes += blocks().is_state(i) ? blocks().block_bytes(i) : 0;
        return bytes;
    }

    [[nodiscard]] const auto& blocks() const noexcept { return pages_.blocks(); }

    [[nodiscard]] error broken(std::size_t pool, page_id page, const char* how) const {
        return {error_code::malformed, detail::joined({"groups[", std::to_string(blocks().group(pool)), "]"}),
                detail::joined({"the block of page ", std::to_string(index_of(page)), " ", how})};
    }

    // The first entry of `tokens` tokens of a sequence whose block it uses. Where rows are spliced in, all are used.
    [[nodiscard]] std::size_t first_used(const sequence_state& state, std::size_t pool, std::size_t tokens) const {
        return std::min(blocks().first_entry(pool, tokens), state.whole_entries(page_tokens_));
    }
    // Whether the query after the first `tokens` tokens finds what it reads before spliced rows.
    [[nodiscard]] bool has_window(const sequence_state& state, std::size_t tokens) const {
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            for (std::size_t entry = first_used(state, pool, tokens); entry < state.whole_entries(page_tokens_);
                 ++entry)
                if (!blocks().has(pool, state.table[entry].page))
                    return false;
        return true;
    }
    // Whether prompts part in the entries [first, last] of a sequence.
    [[nodiscard]] bool parts(const sequence_state& state, std::size_t first, std::size_t last) const noexcept {
        for (std::size_t entry = first; entry <= last; ++entry)
            if (blocks().is_branch(state.table[entry].page))
                return true;
        return false;
    }
    // Whether an entry of a sequence, or of its lease, has a block of a group with rows if it is read at all.
    [[nodiscard]] bool takes(const sequence_state& state, std::size_t pool, std::size_t entry) const noexcept {
        return !blocks().is_state(pool) &&
               (!state.lease.open || !state.lease.whole || entry < state.lease.pages_before ||
                entry >= blocks().first_entry(pool, state.tokens.size() + state.lease.rows));
    }
    // Uses the snapshots after the last token of a sequence, if there are any.
    void use_snapshots(sequence_state& state) noexcept {
        if (state.table.empty() || state.tokens.size() % page_tokens_ != 0)
            return;
        for (std::size_t pool = 0; pool < blocks().size(); ++pool)
            if (blocks().is_state(pool) && blocks().has(pool, state.table.back().page)) {
                pages_.cover(pool, state.table.back().page);
                state.snapshots.push_back({pool, state.table.size() - 1}); // has room: see prepare
            }
    }
    // `stays`: see page_manager::uncover.
    void leave(std::size_t pool, page_id page, bool stays = true) noexcept {
        if (blocks().has(pool, page) && blocks().covers(pool, page) > 0)
            pages_.uncover(pool, page, stays);
    }

    // The longest prefix that every group but `skipped` can continue. `last`: the group that shortened it last.
    template <class PageOf>
    [[nodiscard]] std::size_t longest(std::size_t tokens, const PageOf& page_of, std::size_t skipped,
                                      std::size_t& last) const {
        for (std::size_t agreed = 0, pool = 0; agreed < blocks().size(); pool = (pool + 1) % blocks().size()) {
            const std::size_t can = pool == skipped           ? tokens
                                    : blocks().is_state(pool) ? last_snapshot(pool, tokens, page_of)
                                                              : last_window(pool, tokens, page_of);
            agreed = can == tokens ? agreed + 1 : 1;
            last = can == tokens ? last : pool;
            tokens = can;
        }
        return tokens;
    }
    template <class PageOf>
    [[nodiscard]] std::size_t last_snapshot(std::size_t pool, std::size_t tokens, const PageOf& page_of) const {
        std::size_t pages = tokens / page_tokens_;
        while (pages > 0 && !blocks().has(pool, page_of(pages - 1)))
            --pages;
        return pages * page_tokens_;
    }
    template <class PageOf>
    [[nodiscard]] std::size_t last_window(std::size_t pool, std::size_t tokens, const PageOf& page_of) const {
        std::size_t first = blocks().first_entry(pool, tokens);
        for (std::size_t entry = (tokens + page_tokens_ - 1) / page_tokens_; entry > first; --entry)
            if (!blocks().has(pool, page_of(entry - 1))) {
                tokens = (entry - 1) * page_tokens_;
                first = blocks().first_entry(pool, tokens);
            }
        return tokens;
    }

    PageManager& pages_;
    std::size_t page_tokens_;
};

}} // namespace kvcache
