// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/config.hpp>
#include <kvcache/cache/page_index.hpp>
#include <kvcache/cache/page_pool.hpp>
#include <kvcache/cache/residual.hpp>
#include <kvcache/cache/tenant_quotas.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/hash/concept.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/layers/concept.hpp>
#include <kvcache/layers/uniform.hpp>
#include <kvcache/observer/concept.hpp>
#include <kvcache/observer/none.hpp>
#include <kvcache/storage/concept.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The state of every page: free, in use (referenced by sequences), or evictable (unreferenced, and kept in the index
/// until space is needed). The children of an evictable page are evictable too, because a sequence that references a
/// page references all its ancestors. `Content`: what the codec has in a page. With layer groups, pages have
/// blocks of other groups, each in use or evictable by itself; a page that is freed has none.
template <storage_state Storage, hash_state Hash, index_state Index, eviction_state Eviction, observer_state Observer,
          page_content Content, layers_state Layers = layers::uniform::state>
class page_manager {
public:
    static constexpr bool quantized = Content == page_content::encoded, opaque = Content == page_content::opaque;
    static constexpr bool grouped = Layers::several;
    static constexpr bool observed = !std::same_as<Observer, observer::none::state>;

    /// Opens the storage, hash, index, eviction and observer of `policies`, a cache_policies.
    template <class Policies>
    page_manager(const pool_config& of, const identity& id, const Policies& policies, Layers blocks = {})
        : shape_(of.shape),
          page_bytes_(of.page_bytes),
          residual_(of.shape, of.pages, of.page_bytes),
          pool_(of.pages, policies.storage.open(of.pages, of.page_bytes)),
          index_(policies.index, of.shape, of.pages, of.tenants),
          eviction_(of, id, policies.hash, policies.eviction),
          observer_(policies.observer.open()),
          tenants_(of.pages, of.tenants, of.fair_tenants),
          merges_(of.merge_equal_pages),
          blocks_(std::move(blocks)) {
        if constexpr (requires { pool_.storage().follows_moves(); })
            require(!merges_ || pool_.storage().follows_moves(),
                    "external memory has on_move, or the cache has merge_equal_pages = false");
    }

    [[nodiscard]] const page_pool<Storage>& pool() const noexcept { return pool_; }
    [[nodiscard]] tenant_index<Index>& index() noexcept { return index_; }
    [[nodiscard]] const tenant_index<Index>& index() const noexcept { return index_; }
    /// The longest cached prefix of a tenant's tokens, until the next call.
    [[nodiscard]] const index_match& find(std::uint32_t tenant, std::span<const token_id> tokens) {
        tenants_.see(tenant);
        index_.match(tenant, tokens, found_);
        return found_;
    }
    [[nodiscard]] const Observer& observer() const noexcept { return observer_; }
    [[nodiscard]] std::size_t evictable() const noexcept { return evictable_; }
    /// Whether a page has a rank among those that may be evicted.
    [[nodiscard]] bool ranked(page_id page) const noexcept { return eviction_.ranked(page); }
    [[nodiscard]] bool evictable(page_id page) const noexcept { return eviction_.evictable(page); }

    [[nodiscard]] auto& residual() noexcept { return residual_; }
    [[nodiscard]] const auto& residual() const noexcept { return residual_; }

    /// Pages that can be allocated: free and evictable ones, minus those set aside for residual rows.
    [[nodiscard]] std::size_t available() const noexcept {
        const std::size_t all = pool_.free().size() + evictable_;
        return all - std::min(all, residual_.aside());
    }

    [[nodiscard]] const tenant_quotas& tenants() const noexcept { return tenants_; }
    void set_quota(std::uint32_t tenant, std::size_t quota) { tenants_.set_quota(tenant, quota); }
    /// The number of available pages that a tenant may allocate.
    [[nodiscard]] std::size_t available(std::uint32_t tenant) const noexcept {
        return tenants_.available(tenant, pool_.free().size(), evictable_, residual_.aside());
    }

    /// Evicts the evictable pages of a tenant; of all, for 0. Returns whether no page is left.
    [[nodiscard]] bool clear(std::uint32_t tenant) {
        while (evict_any(tenant)) {
        }
        return tenant == 0 ? pool_.free().size() == pool_.pages() : tenants_.usage(tenant).pages == 0;
    }
    /// Sets the counters of an observer to zero, if it has any.
    void reset_observer() {
        if constexpr (requires { observer_.reset(); })
            observer_.reset();
    }
    /// Evicts those of the pages that are evictable and have no child in the index, the last first. Returns their
    /// number.
    std::size_t evict(std::span<const page_id> pages) {
        std::size_t evicted = 0;
        for (std::size_t i = pages.size(); i-- > 0;)
            if (eviction_.evictable(pages[i])) {
                eviction_.unrank(pages[i]);
                discard(pages[i]);
                ++evicted;
            }
        return evicted;
    }
    /// Gives the number of a tenant without pages to another one.
    void replace_tenant(std::uint32_t tenant, const digest& root, std::size_t quota) {
        expects(tenants_.usage(tenant).pages == 0, "a tenant that is replaced has no pages");
        eviction_.name_root(*index_.root_of(tenant), root);
        tenants_.set_quota(tenant, quota);
        tenants_.see(tenant);
    }

    /// Adds a tenant whose page names derive from `root`. Throws: bad_alloc; no tenant is then added.
    std::uint32_t add_tenant(const digest& root, std::size_t quota) {
        const auto number = static_cast<std::uint32_t>(tenants_.size() + 1);
        index_.add_root(number);
        eviction_.name_root(*index_.root_of(number), root);
        return tenants_.add(quota);
    }

    /// Notifies the observer; its exceptions are ignored.
    void emit([[maybe_unused]] event what) noexcept {
        if constexpr (observed) {
            what.names = eviction_.prefixes();
            what.page_tokens = shape_.tokens;
            detail::ignore_exceptions([&] { observer_.on(what); });
        }
    }

    /// Allocates a page with one reference. Evicts if no page is free, and once more if the storage refuses a free
    /// page: an evicted page already has its memory. A tenant at its quota evicts its own pages. Returns nullopt if
    /// nothing is evictable or the storage refuses again.
    [[nodiscard]] std::optional<page_id> allocate(std::uint32_t tenant) {
        while (tenants_.full(tenant))
            if (!evict_any(tenant))
                return std::nullopt;
        if (!make_free(residual_.aside() + 1, page_bytes_, tenant))
            return std::nullopt;
        auto page = pool_.take();
        if (!page && make_room(tenant))
            page = pool_.take();
        if (page) {
            tenants_.take(*page, tenant);
            if constexpr (grouped)
                blocks_.spend(page_bytes_);
        }
        return page;
    }

    /// Evicts until `pages` pages are free, and what is set aside for residual rows. Returns false if nothing more is
    /// evictable.
    [[nodiscard]] bool keep_free(std::size_t pages) { return make_free(pages, 0, 0); }

    [[nodiscard]] const page_shape& shape() const noexcept { return shape_; }

    /// Whether a page stays in its sequence when it fills and another page has the same content.
    [[nodiscard]] bool keeps_duplicates() const noexcept { return !merges_; }
    /// Tells the storage of an entry that a commit changed, if it wants to know.
    void report_move([[maybe_unused]] const moved_entry& moved) {
        if constexpr (requires { pool_.storage().on_move(moved); })
            pool_.storage().on_move(moved);
    }

    void hold(page_id page) noexcept {
        if (pool_.holders(page) == 0) {
            mark_in_use(page);
            eviction_.on_held(page);
        }
        pool_.hold(page);
    }

    /// Releases one reference. Without references the page becomes evictable if it is in the index, and free otherwise.
    void drop(page_id page) noexcept {
        if (pool_.drop(page) > 0)
            return;
        if (index_.contains(page) && make_evictable(page)) {
            ++evictable_;
            tenants_.mark_evictable(page);
            eviction_.on_released(page);
        } else {
            reclaim(page);
        }
    }

    /// Records a use of a page.
    void touch(page_id page) noexcept { eviction_.touch(page); }

    /// Records that computing `rows` rows from `first` on took `seconds`, from which the cost of pages is learned.
    /// Fewer rows than a page has are decode steps, which do not tell the cost of a prefill, and are ignored.
    void measure(std::size_t first, std::size_t rows, double seconds) {
        if (rows >= shape_.tokens)
            eviction_.measure(first, rows, seconds);
    }

    /// The estimated time to compute `rows` rows from `first` on.
    [[nodiscard]] double seconds(std::size_t first, std::size_t rows) const noexcept {
        return eviction_.seconds(first, rows);
    }

    /// Returns whether the row may be written in place: the page has one reference, the row is not indexed, and no
    /// other page has a block of it.
    [[nodiscard]] bool writable(page_id page, std::uint32_t row) const {
        if constexpr (grouped)
            for (std::size_t pool = 0; pool < blocks_.size(); ++pool)
                if (blocks_.has(pool, page) && blocks_.sharers(pool, blocks_.block(pool, page)) > 1)
                    return false;
        return pool_.holders(page) == 1 && index_.run(page).size() <= row;
    }

    /// Publishes a page that is in use as `run` after `parent`, of a request of `length` full pages. Returns the page
    /// that represents the run from now on. If another full page already holds the run, the caller's reference moves to
    /// that page, and its own page is released; where pages are not merged, the caller references both. Throws:
    /// bad_alloc, if the index or the eviction policy has no memory; the index entry of the page is then removed or
    /// unchanged.
    /// `groups`: the layer groups whose blocks of the page the caller's sequence uses, a bit each.
    [[nodiscard]] page_id publish(std::optional<page_id> parent, std::span<const token_id> run, page_id page,
                                  std::size_t length, [[maybe_unused]] std::uint64_t groups = 0) {
        const bool full = run.size() == shape_.tokens;
        const insertion done = index_.insert(parent, run, page);
        if (done.what == insertion::outcome::covered) {
            if (!full || *done.other == page)
                return page;
            hold(*done.other);
            touch(*done.other);
            if constexpr (grouped)
                pass_blocks(page, *done.other, groups, merges_);
            if (keeps_duplicates())
                return *done.other;
            residual_.pass_on(page, *done.other);
            if (index_.contains(page) && pool_.holders(page) == 1)
                forget(page);
            drop(page);
            return *done.other;
        }
        if (done.other)
            unlist(*done.other);
        eviction_.unrank(page); // its run has grown, so its name changes
        eviction_.follow(index_, index_.parent(page));
        if (full) {
            detail::scope_guard undo([&] { remove_from_index(page); });
            eviction_.rank(index_, page, length);
            undo.dismiss();
            emit_page_event(event_kind::published, page);
        }
        return page;
    }

    // Blocks of layer groups.

    [[nodiscard]] std::size_t page_bytes() const noexcept { return page_bytes_; }
    [[nodiscard]] const Layers& blocks() const noexcept { return blocks_; }
    /// Bytes that can be had: free ones, and those of evictable pages and blocks, minus those set aside for residual
    /// rows.
    [[nodiscard]] std::size_t available_bytes() const noexcept {
        const std::size_t all = blocks_.budget() - blocks_.used() + evictable_ * page_bytes_ + blocks_.idle();
        return all - std::min(all, residual_.aside() * page_bytes_);
    }
    /// Whether the entry of a block that no sequence uses is ranked.
    [[nodiscard]] bool ranks_block(std::size_t pool, page_id page) const noexcept {
        return eviction_.evictable(blocks_.entry(pool, page));
    }
    /// One more sequence uses the block of a page.
    void cover(std::size_t pool, page_id page) noexcept {
        if (blocks_.cover(pool, page))
            eviction_.unrank(blocks_.entry(pool, page));
    }
    /// One sequence less. Without any the block becomes evictable if it is to stay and its page is in the index, and
    /// free otherwise.
    void uncover(std::size_t pool, page_id page, bool stays) noexcept {
        const std::uint32_t block = blocks_.block(pool, page);
        const bool idle = blocks_.uncover(pool, page);
        const auto owner = blocks_.owner(pool, block);
        if (owner != page && blocks_.covers(pool, page) == 0)
            blocks_.detach(pool, page);
        if (owner && (idle ? !(stays && rank_block(pool, *owner))
                           : blocks_.covers(pool, *owner) == 0 && !index_.contains(*owner)))
            blocks_.detach(pool, *owner);
    }
    void note_branch(page_id page) noexcept { blocks_.note_branch(page); }
    /// A block that no sequence uses is evicted before all others.
    void make_stale(std::size_t pool, page_id page) noexcept {
        if (blocks_.has(pool, page) && ranks_block(pool, page))
            blocks_.make_stale(pool, page);
    }
    /// One sequence less uses a block whose content was never committed: it is not known to others.
    void discard_block(std::size_t pool, page_id page) noexcept {
        static_cast<void>(blocks_.uncover(pool, page));
        if (blocks_.covers(pool, page) == 0)
            blocks_.detach(pool, page);
    }
    /// Gives a page a block of so many bytes that one sequence uses. Evicts if none is free, or its bytes are not.
    /// Returns false if nothing is evictable.
    [[nodiscard]] bool allocate_block(std::size_t pool, page_id page, std::uint32_t tenant, std::size_t bytes) {
        const auto of_pool = [&](page_id entry) {
            return index_of(entry) >= pool_.pages() && blocks_.place_of(entry).pool == pool;
        };
        while (blocks_.free_blocks(pool) == 0)
            if (!make_room(tenant, of_pool))
                return false;
        return make_free(0, bytes, tenant) && blocks_.take(pool, page, bytes);
    }
    /// Copies the first rows of a page's block to that of another page. Returns whether it succeeded.
    [[nodiscard]] bool copy_block(std::size_t pool, page_id from, page_id to, std::size_t rows) const {
        return blocks_.copy(pool, from, to, rows);
    }

private:
    // Whether so many bytes are free, besides those set aside for residual rows.
    [[nodiscard]] bool fits([[maybe_unused]] std::size_t bytes) const noexcept {
        if constexpr (grouped)
            return blocks_.fits(bytes + residual_.aside() * page_bytes_);
        else
            return true;
    }
    void mark_in_use(page_id page) noexcept {
        --evictable_;
        tenants_.mark_in_use(page);
    }
    void reclaim(page_id page) {
        if constexpr (grouped) {
            forget_blocks(page);
            blocks_.forget_branch(page);
            blocks_.refund(page_bytes_);
        }
        residual_.drop(page);
        tenants_.reclaim(page);
        pool_.reclaim(page);
    }

    void emit_page_event([[maybe_unused]] event_kind what, [[maybe_unused]] page_id page) noexcept {
        if constexpr (observed) {
            const auto run = index_.run(page);
            emit({what, run.size(), 0, 1, {&page, 1}, index_.parent(page), run});
        }
    }

    // Whether an indexed page can become evictable: it is ranked, or can be. Otherwise it is removed from the index: a
    // full page is ranked when it is published, so this one is partial, and therefore a leaf.
    [[nodiscard]] bool make_evictable(page_id page) noexcept {
        const bool ranked = detail::completes<std::bad_alloc>([&] { eviction_.rank(index_, page, 0); });
        if (!ranked)
            remove_from_index(page);
        return ranked;
    }

    // Removes a page that is in use from the index.
    void forget(page_id page) {
        eviction_.unrank(page);
        remove_from_index(page);
    }

    void remove_from_index(page_id page) {
        const auto parent = index_.parent(page);
        index_.erase(page);
        eviction_.follow(index_, parent);
        if constexpr (grouped)
            forget_blocks(page);
    }

    // Takes the blocks that no sequence uses from a page that is not in the index any more.
    void forget_blocks(page_id page) noexcept {
        for (std::size_t pool = 0; pool < blocks_.size(); ++pool)
            if (blocks_.has(pool, page) && blocks_.covers(pool, page) == 0) {
                if (blocks_.holders(pool, blocks_.block(pool, page)) == 0)
                    eviction_.unrank(blocks_.entry(pool, page));
                blocks_.detach(pool, page);
            }
    }
    // Ranks a block that no sequence uses any more. Returns false if it cannot stay.
    [[nodiscard]] bool rank_block(std::size_t pool, page_id page) noexcept {
        return index_.contains(page) && detail::completes<std::bad_alloc>([&] {
                   eviction_.rank_block(index_, blocks_.entry(pool, page), page, blocks_.group(pool),
                                        blocks_.bytes_of(pool, blocks_.block(pool, page)));
               });
    }
    // Moves a sequence's use of the blocks in `groups` from its page to another one with the same content, which gets
    // those blocks that it lacks. `moves`: whether the sequence has the other page from now on.
    void pass_blocks(page_id page, page_id other, std::uint64_t groups, bool moves) noexcept {
        for (std::size_t pool = 0; pool < blocks_.size(); ++pool) {
            if (!blocks_.has(pool, page) || blocks_.covers(pool, page) == 0)
                continue;
            const bool had = blocks_.has(pool, other), used = moves && (groups >> pool & 1) != 0;
            if (!had)
                blocks_.share(pool, page, other);
            if (used && had) {
                cover(pool, other);
                uncover(pool, page, true);
            } else if (used) {
                blocks_.pass_on(pool, page, other);
                if (blocks_.covers(pool, page) == 0)
                    blocks_.detach(pool, page);
            }
        }
    }

    // Handles a page that the index has dropped: if unreferenced, it becomes free.
    void unlist(page_id page) {
        if constexpr (grouped)
            forget_blocks(page);
        eviction_.unrank(page);
        if (pool_.holders(page) == 0) {
            mark_in_use(page);
            reclaim(page);
        }
    }

    static constexpr auto any_entry = [](page_id) { return true; };

    // Evicts pages until so many are free, and then anything until so many bytes are.
    [[nodiscard]] bool make_free(std::size_t pages, std::size_t bytes, std::uint32_t tenant) {
        while (pool_.free().size() < pages)
            if (!make_room(tenant, [&](page_id entry) { return !grouped || index_of(entry) < pool_.pages(); }))
                return false;
        while (!fits(bytes))
            if (!make_room(tenant))
                return false;
        return true;
    }
    // Evicts an entry for which `wanted` holds, to make room for one of a tenant; 0 for any.
    template <class Wanted = decltype(any_entry)>
    [[nodiscard]] bool make_room(std::uint32_t tenant, const Wanted& wanted = any_entry) {
        const auto from = tenants_.source(tenant);
        if constexpr (grouped)
            for (std::size_t pool = 0; from && pool < blocks_.size(); ++pool)
                if (const auto stale = blocks_.stalest(pool);
                    stale && wanted(*stale) && (*from == 0 || tenants_.owns(*from, page_of(*stale)))) {
                    evict_entry(*stale);
                    return true;
                }
        return from && evict_any(*from, wanted);
    }

    // Evicts an evictable page, or the evictable block of one; one of this tenant's, if `tenant` is not zero.
    template <class Wanted = decltype(any_entry)>
    [[nodiscard]] bool evict_any(std::uint32_t tenant, const Wanted& wanted = any_entry) {
        const auto entry = eviction_.victim([&](page_id candidate) {
            return wanted(candidate) && (tenant == 0 || tenants_.owns(tenant, page_of(candidate)));
        });
        if (!entry)
            return false;
        evict_entry(*entry);
        return true;
    }
    // The page of an entry of the eviction policy: of a page itself, or of a block.
    [[nodiscard]] page_id page_of(page_id entry) const noexcept {
        if constexpr (grouped)
            if (index_of(entry) >= pool_.pages())
                return blocks_.place_of(entry).page;
        return entry;
    }
    void evict_entry(page_id entry) {
        eviction_.evict(entry);
        if constexpr (grouped)
            if (index_of(entry) >= pool_.pages()) {
                const auto of = blocks_.place_of(entry);
                blocks_.detach(of.pool, of.page);
                return;
            }
        discard(entry);
    }

    // Frees an evictable page that the eviction policy has given up.
    void discard(page_id page) {
        emit_page_event(event_kind::evicted, page);
        remove_from_index(page);
        unlist(page);
        if constexpr (requires { pool_.storage().on_evict(page); })
            pool_.storage().on_evict(page);
    }

    page_shape shape_;
    std::size_t page_bytes_;
    std::conditional_t<quantized, residual_pool, no_residual_pool> residual_;
    page_pool<Storage> pool_;
    tenant_index<Index> index_;
    index_match found_; // of the last `find`
    page_eviction<Hash, Eviction> eviction_;
    Observer observer_;
    tenant_quotas tenants_;
    std::size_t evictable_ = 0;
    bool merges_;
    Layers blocks_;
};

}} // namespace kvcache
