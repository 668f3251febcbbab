// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/config.hpp>
#include <kvcache/cache/page_index.hpp>
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

/// A fixed number of pages of one storage, each free or reference-counted.
template <storage_state Storage>
class page_pool {
public:
    page_pool(std::size_t pages, Storage storage) : storage_(std::move(storage)), holders_(pages, 0) {
        free_.reserve(pages);
        for (std::size_t page = pages; page > 0; --page)
            free_.push_back(page_id{static_cast<std::uint32_t>(page - 1)});
    }

    [[nodiscard]] std::size_t pages() const noexcept { return holders_.size(); }
    [[nodiscard]] std::span<const page_id> free() const noexcept { return free_; }
    [[nodiscard]] std::uint32_t holders(page_id page) const { return holders_[index_of(page)]; }
    [[nodiscard]] const Storage& storage() const noexcept { return storage_; }
    [[nodiscard]] std::span<std::byte> bytes(page_id page) const { return storage_.bytes(page); }

    /// Copies the first rows of a page to another. Returns false if the storage refuses.
    template <class Codec>
    [[nodiscard]] bool copy(const Codec& codec, page_id from, page_id to, std::size_t rows) const {
        if constexpr (device_storage_state<Storage>)
            return detail::copy_rows(storage_, from, to, rows);
        else if constexpr (row_writer<Codec>)
            codec.copy(bytes(from), bytes(to), rows);
        return true;
    }
    /// Zeroes the page, if the host can write it: rows that are never written are still read, with zero weight.
    void clear(page_id page) const {
        if constexpr (host_storage_state<Storage>)
            ranges::fill(bytes(page), std::byte{});
    }

    /// Allocates a free page with one reference; nullopt if no page is free or the storage refuses.
    [[nodiscard]] std::optional<page_id> take() {
        if (free_.empty() || !storage_.acquire(free_.back()))
            return std::nullopt;
        const page_id page = free_.back();
        free_.pop_back();
        holders_[index_of(page)] = 1;
        return page;
    }

    void hold(page_id page) noexcept { ++holders_[index_of(page)]; }

    /// Releases one reference. Returns the number left. The page stays allocated, even at zero, until `reclaim`.
    std::uint32_t drop(page_id page) {
        expects(holders(page) > 0, "a dropped page was held");
        return --holders_[index_of(page)];
    }

    /// Frees a page. Requires: the page has no references.
    void reclaim(page_id page) {
        expects(holders(page) == 0, "a page that is given back has no holder");
        storage_.release(page);
        free_.push_back(page);
    }

private:
    Storage storage_;
    std::vector<std::uint32_t> holders_;
    std::vector<page_id> free_;
};

/// In place of a residual_pool, where a codec writes row by row: no page has residual rows.
struct no_residual_pool {
    no_residual_pool(page_shape, std::size_t, std::size_t) {}
    static constexpr std::size_t more_aside(std::size_t) noexcept { return 0; }
    static constexpr std::size_t aside() noexcept { return 0; }
    static constexpr std::size_t alive() noexcept { return 0; }
    static constexpr std::size_t bytes() noexcept { return 0; }
    static constexpr codec::residual_page* of(page_id) noexcept { return nullptr; }
    static constexpr void drop(page_id) noexcept {}
    static constexpr void pass_on(page_id, page_id) noexcept {}
    static constexpr bool add_up(std::size_t leased) noexcept { return leased == 0; }
};

/// The state of every page: free, in use (referenced by sequences), or evictable (unreferenced, and kept in the index
/// until space is needed). The children of an evictable page are evictable too, because a sequence that references a
/// page references all its ancestors. `Coded`: whether the codec encodes whole pages.
template <storage_state Storage, hash_state Hash, index_state Index, eviction_state Eviction, observer_state Observer,
          bool Coded>
class page_manager {
public:
    static constexpr bool quantized = Coded;
    static constexpr bool observed = !std::same_as<Observer, observer::none::state>;

    /// Opens the storage, hash, index, eviction and observer of `policies`, a cache_policies.
    template <class Policies>
    page_manager(const pool_config& of, const identity& id, const Policies& policies)
        : shape_(of.shape),
          residual_(of.shape, of.pages, of.page_bytes),
          pool_(of.pages, policies.storage.open(of.pages, of.page_bytes)),
          index_(policies.index, of.shape, of.pages, of.tenants),
          eviction_(of, id, policies.hash, policies.eviction),
          observer_(policies.observer.open()),
          tenants_(of.pages, of.tenants, of.fair_tenants),
          merges_(of.merge_equal_pages) {
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
        while (pool_.free().size() < residual_.aside() + 1)
            if (!make_room(tenant))
                return std::nullopt;
        auto page = pool_.take();
        if (!page && make_room(tenant))
            page = pool_.take();
        if (page)
            tenants_.take(*page, tenant);
        return page;
    }

    /// Evicts until `pages` pages are free. Returns false if nothing more is evictable.
    [[nodiscard]] bool keep_free(std::size_t pages) {
        while (pool_.free().size() < pages)
            if (!make_room(0))
                return false;
        return true;
    }

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

    /// Returns whether the row may be written in place: the page has one reference, and the row is not indexed.
    [[nodiscard]] bool writable(page_id page, std::uint32_t row) const {
        return pool_.holders(page) == 1 && index_.run(page).size() <= row;
    }

    /// Publishes a page that is in use as `run` after `parent`, of a request of `length` full pages. Returns the page
    /// that represents the run from now on. If another full page already holds the run, the caller's reference moves to
    /// that page, and its own page is released; where pages are not merged, the caller references both. Throws:
    /// bad_alloc, if the index or the eviction policy has no memory; the index entry of the page is then removed or
    /// unchanged.
    [[nodiscard]] page_id publish(std::optional<page_id> parent, std::span<const token_id> run, page_id page,
                                  std::size_t length) {
        const bool full = run.size() == shape_.tokens;
        const insertion done = index_.insert(parent, run, page);
        if (done.what == insertion::outcome::covered) {
            if (!full || *done.other == page)
                return page;
            hold(*done.other);
            touch(*done.other);
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

private:
    void mark_in_use(page_id page) noexcept {
        --evictable_;
        tenants_.mark_in_use(page);
    }
    void reclaim(page_id page) {
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
    }

    // Handles a page that the index has dropped: if unreferenced, it becomes free.
    void unlist(page_id page) {
        eviction_.unrank(page);
        if (pool_.holders(page) == 0) {
            mark_in_use(page);
            reclaim(page);
        }
    }

    // Evicts a page to make room for one of a tenant; 0 for any.
    [[nodiscard]] bool make_room(std::uint32_t tenant) {
        const auto from = tenants_.source(tenant);
        return from && evict_any(*from);
    }

    // Evicts an evictable page; one of this tenant's, if `tenant` is not zero.
    [[nodiscard]] bool evict_any(std::uint32_t tenant) {
        const auto page = eviction_.victim(
            [this, tenant](page_id candidate) { return tenant == 0 || tenants_.owns(tenant, candidate); });
        if (!page)
            return false;
        eviction_.evict(*page);
        discard(*page);
        return true;
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
    std::conditional_t<Coded, residual_pool, no_residual_pool> residual_;
    page_pool<Storage> pool_;
    tenant_index<Index> index_;
    index_match found_; // of the last `find`
    page_eviction<Hash, Eviction> eviction_;
    Observer observer_;
    tenant_quotas tenants_;
    std::size_t evictable_ = 0;
    bool merges_;
};

}} // namespace kvcache
