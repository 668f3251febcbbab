// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/layout.hpp>
#include <kvcache/layers/concept.hpp>
#include <kvcache/layers/host_blocks.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace layers {

/// Groups of layers that keep different things. The first group of full attention has the cache's pages. Every other
/// group has blocks: at most one for each page, for the same tokens. A block of a window is in use while the window of
/// a sequence covers it; a state block is a snapshot after the last token of its page. Pages and blocks share one
/// limit in bytes, and one eviction policy. Blocks are the host's with storage::external; otherwise the cache has them
/// in its storage, in the format of its codec, and `block_bytes`, `blocks` and the functions are not needed. The
/// functions run while the cache is locked and must not call it; a copy that throws has failed.
struct grouped {
    using role = layers_role;

    cache_layout layout = {};
    /// Whether window blocks that no query reads any more stay cached while there is room. If not, they are freed at
    /// once, and a prompt that parts from a cached one before its last window finds nothing. The last window of a
    /// sequence that ends stays in both cases.
    /// Blocks that a sequence has left by another window, or by 512 tokens if that is more, are evicted before all
    /// others, except where prompts have parted.
    bool keep_released = true;
    /// By group: the bytes of a block; 0 or absent for what the codec, or the layout, says. Not of an opaque state.
    std::vector<std::size_t> block_bytes = {};
    /// By group: the number of its blocks, where the host has fewer than the limit in bytes allows; 0 or absent for no
    /// other limit.
    std::vector<std::size_t> blocks = {};
    /// Copies the first rows of a block of a group to another one before the other is written.
    /// Returns whether it succeeded. Required with storage::external.
    std::function<bool(std::size_t group, std::uint32_t from, std::uint32_t to, std::size_t rows)> copy = {};
    /// Called when a block is freed, with what it held.
    std::function<void(std::size_t group, std::uint32_t block)> on_evict = {};

    /// The group whose blocks are the cache's pages, if there is one.
    [[nodiscard]] std::optional<std::size_t> paged() const noexcept {
        for (std::size_t group = 0; group < layout.groups.size(); ++group)
            if (layout.groups[group].kind() == group_kind::full)
                return group;
        return std::nullopt;
    }
    /// The shape of the cache's pages; without a full group they hold next to nothing.
    [[nodiscard]] kvcache::page_shape page_shape() const {
        const auto group = paged();
        return group ? layout.shape(*group) : kvcache::page_shape{1, 1, 1, layout.tokens};
    }

    /// Whether a cache with this limit can be opened, whose blocks are the host's or its own. Errors: out_of_range, for
    /// a layout that cannot be used, or a limit that is not in bytes; mismatched, without the function that copies
    /// blocks of the host.
    [[nodiscard]] result<void> check(const cache_limits& limit, bool owned) const {
        if (auto right = layout.check(); !right)
            return right;
        if (limit.bytes == 0)
            return error{error_code::out_of_range, "limit", "a cache of layer groups has a limit in bytes"};
        if (!owned && !copy)
            return error{error_code::mismatched, "copy", "blocks of layer groups need a function that copies them"};
        return {};
    }

    template <class Memory>
    class blocks_state;
    /// Blocks of the host. Requires: the layout can be used.
    [[nodiscard]] blocks_state<host_blocks> open(const layers_capacity& of) const;
    /// Blocks in memory of the cache. Requires: the layout can be used.
    template <class Memory>
    [[nodiscard]] blocks_state<Memory> open(const layers_capacity& of, Memory memory) const;
};

/// The blocks of all groups but the first full one: which page each belongs to, how many sequences use it, and the
/// bytes of pages and blocks together. Blocks are numbered by group, from 0. `Memory`: host_blocks or owned_blocks.
template <class Memory>
class grouped::blocks_state {
public:
    static constexpr bool several = true;
    static constexpr bool owned = Memory::owned;
    using memory_type = Memory;
    static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

    blocks_state(grouped policy, const layers_capacity& of, Memory memory)
        : policy_(std::move(policy)), memory_(std::move(memory)), branches_(of.pages, false), budget_(of.bytes) {
        const cache_layout& layout = policy_.layout;
        require(layout.check().has_value(), "a layout of layer groups can be used: cache_layout::check says why not");
        std::size_t slots = of.pages;
        for (std::size_t group = 0; group < layout.groups.size(); ++group) {
            const layer_group& its = layout.groups[group];
            block_pool made{.group = group, .first_slot = slots};
            made.state = its.kind() == group_kind::state;
            made.block_bytes = of.block_bytes[group];
            if (paged() != group && its.kind() != group_kind::alias) {
                const std::size_t fit = made.block_bytes == 0 ? of.pages : of.bytes / made.block_bytes;
                const std::size_t own = group < policy_.blocks.size() ? policy_.blocks[group] : 0;
                const std::size_t count = std::min({of.pages, fit, own == 0 ? of.pages : own});
                made.reserve(of.pages, count);
                slots += count;
                memory_.add(group, its, {count, made.block_bytes, layout.tokens});
                pools_.push_back(std::move(made));
            }
        }
        slots_ = slots;
    }

    [[nodiscard]] const cache_layout& layout() const noexcept { return policy_.layout; }
    [[nodiscard]] std::optional<std::size_t> paged() const noexcept { return policy_.paged(); }
    /// The number of layers with keys and values in the groups before this one.
    [[nodiscard]] std::size_t first_layer(std::size_t group) const noexcept {
        std::size_t before = 0;
        for (std::size_t i = 0; i < group; ++i)
            before += layout().groups[i].has_rows() ? layout().groups[i].layers : 0;
        return before;
    }
    /// The number of groups that have blocks of their own. Functions take their numbers, from 0.
    [[nodiscard]] std::size_t size() const noexcept { return pools_.size(); }
    /// The group whose keys and values a group reads: its own, unless it is an alias.
    [[nodiscard]] std::size_t keeper_of(std::size_t group) const {
        require(group < layout().groups.size(), "a group is one of the layout's");
        return layout().groups[group].alias_of.value_or(static_cast<std::uint32_t>(group));
    }
    /// The number of a group that has blocks.
    [[nodiscard]] std::size_t pool_of(std::size_t group) const {
        std::size_t pool = 0;
        while (pool < pools_.size() && pools_[pool].group != group)
            ++pool;
        require(pool < pools_.size(), "a group with blocks is neither the pages' own nor an alias");
        return pool;
    }
    /// The group of the layout.
    [[nodiscard]] std::size_t group(std::size_t pool) const noexcept { return pools_[pool].group; }
    [[nodiscard]] const layer_group& description(std::size_t pool) const noexcept {
        return layout().groups[pools_[pool].group];
    }
    [[nodiscard]] bool is_state(std::size_t pool) const noexcept { return pools_[pool].state; }
    [[nodiscard]] bool has_states() const noexcept {
        return std::any_of(pools_.begin(), pools_.end(), [](const block_pool& of) { return of.state; });
    }
    [[nodiscard]] bool keeps_released() const noexcept { return policy_.keep_released; }
    /// Bytes of each block of a group; 0 for opaque states.
    [[nodiscard]] std::size_t block_bytes(std::size_t pool) const noexcept { return pools_[pool].block_bytes; }
    /// Bytes of a block that a page has.
    [[nodiscard]] std::size_t bytes_of(std::size_t pool, std::uint32_t block) const noexcept {
        return pools_[pool].bytes[block];
    }
    [[nodiscard]] std::size_t blocks(std::size_t pool) const noexcept { return pools_[pool].owner.size(); }
    /// Bytes of all blocks that are not free.
    [[nodiscard]] std::size_t held_bytes(std::size_t pool) const noexcept { return pools_[pool].held; }
    /// Blocks that are free or not in use.
    [[nodiscard]] std::size_t available_blocks(std::size_t pool) const noexcept {
        return pools_[pool].free.size() + pools_[pool].idle;
    }
    [[nodiscard]] std::size_t free_blocks(std::size_t pool) const noexcept { return pools_[pool].free.size(); }

    // Bytes.

    [[nodiscard]] std::size_t budget() const noexcept { return budget_; }
    [[nodiscard]] std::size_t used() const noexcept { return used_; }
    /// Bytes of blocks that no sequence uses.
    [[nodiscard]] std::size_t idle() const noexcept { return idle_; }
    [[nodiscard]] bool fits(std::size_t bytes) const noexcept { return bytes <= budget_ - used_; }
    void spend(std::size_t bytes) noexcept { used_ += bytes; }
    void refund(std::size_t bytes) noexcept { used_ -= bytes; }

    // Entries of the eviction policy: pages, then the blocks of each group.

    [[nodiscard]] std::size_t slots() const noexcept { return slots_; }
    [[nodiscard]] page_id entry(std::size_t pool, page_id page) const noexcept {
        return page_id{static_cast<std::uint32_t>(pools_[pool].first_slot + pools_[pool].of_page[index_of(page)])};
    }
    /// The group and the page of a block's entry.
    struct place {
        std::size_t pool = 0;
        page_id page = {};
    };
    [[nodiscard]] place place_of(page_id entry) const noexcept {
        std::size_t pool = 0;
        while (pool + 1 < pools_.size() && index_of(entry) >= pools_[pool + 1].first_slot)
            ++pool;
        return {pool, page_id{pools_[pool].owner[index_of(entry) - pools_[pool].first_slot]}};
    }

    // Blocks of pages.

    [[nodiscard]] bool has(std::size_t pool, page_id page) const noexcept {
        return pools_[pool].of_page[index_of(page)] != none;
    }
    /// Requires: the page has a block, as in the functions below.
    [[nodiscard]] std::uint32_t block(std::size_t pool, page_id page) const noexcept {
        return pools_[pool].of_page[index_of(page)];
    }
    [[nodiscard]] std::uint32_t covers(std::size_t pool, page_id page) const noexcept {
        return pools_[pool].covers[index_of(page)];
    }
    [[nodiscard]] std::uint32_t holders(std::size_t pool, std::uint32_t block) const noexcept {
        return pools_[pool].holders[block];
    }
    /// The number of pages that have the block.
    [[nodiscard]] std::uint32_t sharers(std::size_t pool, std::uint32_t block) const noexcept {
        return pools_[pool].pages[block];
    }
    /// The page by which the index knows a block; nullopt for one that only pages of sequences have.
    [[nodiscard]] std::optional<page_id> owner(std::size_t pool, std::uint32_t block) const noexcept {
        const std::uint32_t page = pools_[pool].owner[block];
        return page == none ? std::nullopt : std::optional(page_id{page});
    }

    /// Gives a page without one a block that one sequence uses. Returns false if the memory refuses. Requires: a block
    /// is free and fits.
    [[nodiscard]] bool take(std::size_t pool, page_id page, std::size_t bytes) {
        block_pool& of = pools_[pool];
        const std::uint32_t block = of.free.back();
        if (!memory_.acquire(pool, block, bytes))
            return false;
        of.free.pop_back();
        of.bytes[block] = bytes;
        of.of_page[index_of(page)] = block;
        of.owner[block] = index_of(page);
        of.pages[block] = of.holders[block] = of.covers[index_of(page)] = 1;
        of.held += bytes;
        spend(bytes);
        return true;
    }
    /// One more sequence uses the block. Returns whether it is the first.
    bool cover(std::size_t pool, page_id page) noexcept {
        block_pool& of = pools_[pool];
        ++of.covers[index_of(page)];
        const bool first = of.holders[block(pool, page)]++ == 0;
        if (first) {
            change_idle(of, block(pool, page), false);
            of.stale.remove(block(pool, page));
        }
        return first;
    }
    /// One sequence less. Returns whether it was the last.
    bool uncover(std::size_t pool, page_id page) {
        block_pool& of = pools_[pool];
        expects(of.covers[index_of(page)] > 0, "a block that is left was used");
        --of.covers[index_of(page)];
        const bool last = --of.holders[block(pool, page)] == 0;
        if (last)
            change_idle(of, block(pool, page), true);
        return last;
    }
    /// Makes the block that of another page too, without more users.
    void share(std::size_t pool, page_id from, page_id to) noexcept {
        block_pool& of = pools_[pool];
        const std::uint32_t block = of.of_page[index_of(from)];
        of.of_page[index_of(to)] = block;
        of.owner[block] = index_of(to);
        ++of.pages[block];
    }
    /// One user of the block uses it for another page that shares it.
    void pass_on(std::size_t pool, page_id from, page_id to) noexcept {
        --pools_[pool].covers[index_of(from)];
        ++pools_[pool].covers[index_of(to)];
    }
    /// Takes the block from a page whose sequences do not use it. Frees it if it has no other page.
    void detach(std::size_t pool, page_id page) {
        block_pool& of = pools_[pool];
        expects(of.covers[index_of(page)] == 0, "a block that is taken away is not used");
        const std::uint32_t block = std::exchange(of.of_page[index_of(page)], none);
        if (of.owner[block] == index_of(page))
            of.owner[block] = none;
        if (--of.pages[block] > 0)
            return;
        of.free.push_back(block);
        of.stale.remove(block);
        change_idle(of, block, false);
        of.held -= of.bytes[block];
        refund(of.bytes[block]);
        memory_.release(pool, block);
    }
    /// Prompts part in a page: later ones will need the windows there, and its blocks are evicted like others.
    void note_branch(page_id page) noexcept {
        branches_[index_of(page)] = true;
        for (block_pool& of : pools_)
            if (of.of_page[index_of(page)] != none)
                of.stale.remove(of.of_page[index_of(page)]);
    }
    void forget_branch(page_id page) noexcept { branches_[index_of(page)] = false; }
    [[nodiscard]] bool is_branch(page_id page) const noexcept { return branches_[index_of(page)]; }
    /// The block of a page, which no sequence uses, is evicted before all others of the cache.
    void make_stale(std::size_t pool, page_id page) noexcept { pools_[pool].stale.append(block(pool, page)); }
    /// The entry of the block of a group that has been stale for the longest time.
    [[nodiscard]] std::optional<page_id> stalest(std::size_t pool) const noexcept {
        const std::uint32_t block = pools_[pool].stale.first();
        return block == none ? std::nullopt
                             : std::optional(page_id{static_cast<std::uint32_t>(pools_[pool].first_slot + block)});
    }
    /// Copies the first rows of a page's block to that of another page. Returns whether it succeeded.
    [[nodiscard]] bool copy(std::size_t pool, page_id from, page_id to, std::size_t rows) const {
        return memory_.copy(pool, block(pool, from), block(pool, to), rows);
    }
    /// The memory of the blocks.
    [[nodiscard]] const Memory& memory() const noexcept { return memory_; }

    // What a sequence of `tokens` tokens uses of a group, as entries of its page table: [first, end).

    /// The first entry with tokens that the next query reads, or that has rows for more.
    [[nodiscard]] std::size_t first_entry(std::size_t pool, std::size_t tokens) const noexcept {
        const std::size_t size = layout().tokens;
        return std::min(description(pool).first_read(tokens), tokens) / size;
    }

    /// Entries between the window of a sequence and its stale blocks: those of another window, or of 512 tokens if that
    /// is more. Many prompts part from an earlier one shortly before its end, and need its window there.
    [[nodiscard]] std::size_t stale_distance(std::size_t pool) const noexcept {
        return (std::max<std::size_t>(description(pool).window, 512) + layout().tokens - 1) / layout().tokens;
    }

private:
    // Blocks in the order in which they became stale: a list through all of them.
    class stale_blocks {
    public:
        void reserve(std::size_t blocks) { links_.assign(blocks + 1, {none, none}), links_.back() = {end(), end()}; }
        [[nodiscard]] std::uint32_t first() const noexcept {
            return links_.back().next == end() ? none : links_.back().next;
        }
        void append(std::uint32_t block) noexcept {
            remove(block);
            links_[block] = {links_.back().before, end()};
            links_[links_.back().before].next = block;
            links_.back().before = block;
        }
        void remove(std::uint32_t block) noexcept {
            const link one = std::exchange(links_[block], {none, none});
            if (one.next == none)
                return;
            links_[one.before].next = one.next;
            links_[one.next].before = one.before;
        }

    private:
        struct link {
            std::uint32_t before, next;
        };
        [[nodiscard]] std::uint32_t end() const noexcept { return static_cast<std::uint32_t>(links_.size() - 1); }
        std::vector<link> links_; // the last one is of the list itself
    };
    struct block_pool {
        std::size_t group = 0;
        std::size_t first_slot = 0;
        std::size_t block_bytes = 0;
        bool state = false;
        std::vector<std::uint32_t> of_page = {}; // by page: its block
        std::vector<std::uint32_t> covers = {};  // by page: sequences that use its block for it
        std::vector<std::uint32_t> owner = {};   // by block: the page that the index knows it by
        std::vector<std::uint32_t> pages = {};   // by block: the pages that share it
        std::vector<std::uint32_t> holders = {}; // by block: sequences that use it
        std::vector<std::size_t> bytes = {};     // by block
        std::vector<std::uint32_t> free = {};
        stale_blocks stale = {}; // of those that no sequence uses
        std::size_t idle = 0;    // blocks that no sequence uses
        std::size_t held = 0;    // bytes of blocks that are not free

        void reserve(std::size_t page_count, std::size_t blocks) {
            of_page.assign(page_count, none);
            covers.assign(page_count, 0);
            owner.assign(blocks, none);
            pages.assign(blocks, 0);
            holders.assign(blocks, 0);
            bytes.assign(blocks, 0);
            stale.reserve(blocks);
            for (std::size_t block = blocks; block > 0; --block)
                free.push_back(static_cast<std::uint32_t>(block - 1));
        }
    };

    // A block is not used any more, or used again, or freed.
    void change_idle(block_pool& of, std::uint32_t block, bool more) noexcept {
        of.idle += more ? 1 : std::size_t(-1);
        idle_ += more ? of.bytes[block] : std::size_t{} - of.bytes[block];
    }

    grouped policy_;
    Memory memory_;
    std::vector<block_pool> pools_;
    std::vector<bool> branches_; // by page
    std::size_t budget_;
    std::size_t used_ = 0;
    std::size_t idle_ = 0;
    std::size_t slots_ = 0;
};

inline grouped::blocks_state<host_blocks> grouped::open(const layers_capacity& of) const {
    return open(of, host_blocks(copy, on_evict));
}
template <class Memory>
grouped::blocks_state<Memory> grouped::open(const layers_capacity& of, Memory memory) const {
    return {*this, of, std::move(memory)};
}

static_assert(layers_policy<grouped>);

}}} // namespace kvcache::layers
