// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/page_eviction.hpp>
#include <kvcache/cache/page_pool.hpp>
#include <kvcache/cache/pool_config.hpp>
#include <kvcache/cache/residual_pool.hpp>
#include <kvcache/cache/tenant_index.hpp>
#include <kvcache/cache/tenant_quotas.hpp>
#include <kvcache/core/contract.hpp>
#include <kvcache/core/exceptions.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/hash/concept.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/observer/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <new>
#include <optional>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The state of every page: free, in use (referenced by sequences), or idle (unreferenced, and kept in the index until
/// space is needed). The children of an idle page are idle too, because a sequence that references a page references
/// all its ancestors. `Coded`: whether the codec encodes whole pages.
template <storage_state Storage, hash_state Hash, index_state Index, eviction_state Eviction, observer_state Observer,
          bool Coded>
class page_manager {
public:
    static constexpr bool quantized = Coded;

    /// Opens the storage, hash, index, eviction and observer of `policies`, a cache_policies.
    template <class Policies>
    page_manager(const pool_config& of, const identity& id, const Policies& policies)
        : shape_(of.shape),
          residual_(of.shape, of.pages, of.page_bytes),
          pool_(of.pages, policies.storage.open(of.pages, of.page_bytes)),
          index_(policies.index, of.shape, of.pages, of.tenants),
          eviction_(of, id, policies.hash, policies.eviction),
          observer_(policies.observer.open()),
          tenants_(of.pages, of.tenants) {}

    [[nodiscard]] const page_pool<Storage>& pool() const noexcept { return pool_; }
    [[nodiscard]] const tenant_index<Index>& index() const noexcept { return index_; }
    /// The longest cached prefix of a tenant's tokens, until the next call.
    [[nodiscard]] const index_match& find(std::uint32_t tenant, std::span<const token_id> tokens) {
        index_.match(tenant, tokens, found_);
        return found_;
    }
    [[nodiscard]] const Observer& observer() const noexcept { return observer_; }
    [[nodiscard]] std::size_t idle() const noexcept { return idle_; }
    /// Whether a page has a rank among those that may be evicted.
    [[nodiscard]] bool ranked(page_id page) const noexcept { return eviction_.ranked(page); }

    [[nodiscard]] residual_pool<Coded>& residual() noexcept { return residual_; }
    [[nodiscard]] const residual_pool<Coded>& residual() const noexcept { return residual_; }

    /// Pages that can be allocated: free and idle ones, minus those set aside for residual rows.
    [[nodiscard]] std::size_t available() const noexcept {
        const std::size_t all = pool_.free().size() + idle_;
        return all - std::min(all, residual_.aside());
    }

    [[nodiscard]] const tenant_quotas& tenants() const noexcept { return tenants_; }
    void set_quota(std::uint32_t tenant, std::size_t quota) { tenants_.set_quota(tenant, quota); }
    /// The number of available pages that a tenant may allocate.
    [[nodiscard]] std::size_t room(std::uint32_t tenant) const noexcept { return tenants_.room(tenant, available()); }

    /// Evicts the idle pages of a tenant. Returns whether it has no pages left.
    [[nodiscard]] bool clear(std::uint32_t tenant) {
        while (evict(tenant)) {
        }
        return tenants_.usage(tenant).pages == 0;
    }
    /// Gives the number of a tenant without pages to another one.
    void replace_tenant(std::uint32_t tenant, const digest& root, std::size_t quota) {
        expects(tenants_.usage(tenant).pages == 0, "a tenant that is replaced has no pages");
        eviction_.name_root(*index_.root_of(tenant), root);
        tenants_.set_quota(tenant, quota);
    }

    /// Adds a tenant whose page names derive from `root`. Throws: bad_alloc; no tenant is then added.
    std::uint32_t add_tenant(const digest& root, std::size_t quota) {
        const auto number = static_cast<std::uint32_t>(tenants_.size() + 1);
        index_.add_root(number);
        eviction_.name_root(*index_.root_of(number), root);
        return tenants_.add(quota);
    }

    /// Notifies the observer; its exceptions are ignored.
    void tell(event what) noexcept {
        what.names = eviction_.prefixes();
        what.page_tokens = shape_.tokens;
        detail::ignore_exceptions([&] { observer_.on(what); });
    }

    /// Allocates a page with one reference. Evicts if no page is free, and once more if the storage refuses a free
    /// page: an evicted page already has its memory. A tenant at its quota evicts its own pages. Returns nullopt if
    /// nothing is evictable or the storage refuses again.
    [[nodiscard]] std::optional<page_id> allocate(std::uint32_t tenant) {
        while (tenants_.full(tenant))
            if (!evict(tenant))
                return std::nullopt;
        if (!keep_free(residual_.aside() + 1))
            return std::nullopt;
        auto page = pool_.take();
        if (!page && evict(0))
            page = pool_.take();
        if (page)
            tenants_.take(*page, tenant);
        return page;
    }

    /// Evicts until `pages` pages are free. Returns false if nothing more is evictable.
    [[nodiscard]] bool keep_free(std::size_t pages) {
        while (pool_.free().size() < pages)
            if (!evict(0))
                return false;
        return true;
    }

    [[nodiscard]] const page_shape& shape() const noexcept { return shape_; }

    /// Whether a page stays in its sequence when it fills and another page has the same content.
    [[nodiscard]] bool keeps_twins() const noexcept {
        if constexpr (requires { pool_.storage().merges(); })
            return !pool_.storage().merges();
        else
            return false;
    }
    /// Tells the storage of an entry that a commit changed, if it wants to know.
    void report_move([[maybe_unused]] const moved_entry& moved) {
        if constexpr (requires { pool_.storage().on_move(moved); })
            pool_.storage().on_move(moved);
    }

    /// The index, for registering chunks.
    [[nodiscard]] tenant_index<Index>& chunks() noexcept { return index_; }

    void hold(page_id page) noexcept {
        if (pool_.holders(page) == 0)
            wake(page);
        pool_.hold(page);
    }

    /// Releases one reference. Without references the page becomes idle if it is in the index, and free otherwise.
    void drop(page_id page) noexcept {
        if (pool_.drop(page) > 0)
            return;
        if (index_.contains(page) && may_idle(page)) {
            ++idle_;
            tenants_.rest(page);
            eviction_.on_released(page);
        } else {
            give_back(page);
        }
    }

    /// Records a use of a page.
    void touch(page_id page) noexcept { eviction_.touch(page); }

    /// Records that computing `rows` rows from `first` on took `seconds`, from which the cost of pages is learned.
    /// Fewer rows than a page has are decode steps, which do not tell the cost of a prefill, and are ignored.
    void measure(std::size_t first, std::size_t rows, double seconds) noexcept {
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
    /// that page, and its own page is released; where twins are kept, the caller references both. Throws: bad_alloc, if
    /// the index or the eviction policy has no memory; the index entry of the page is then removed or unchanged.
    [[nodiscard]] page_id publish(std::optional<page_id> parent, std::span<const token_id> run, page_id page,
                                  std::size_t length) {
        const bool full = run.size() == shape_.tokens;
        const insertion done = index_.insert(parent, run, page);
        if (done.what == insertion::outcome::covered) {
            if (!full || *done.other == page)
                return page;
            hold(*done.other);
            touch(*done.other);
            if (keeps_twins())
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
            detail::scope_guard undo([&] { leave_index(page); });
            eviction_.rank(index_, page, length);
            undo.dismiss();
            emit_page_event(event_kind::published, page);
        }
        return page;
    }

private:
    void wake(page_id page) noexcept {
        --idle_;
        tenants_.wake(page);
    }
    void give_back(page_id page) {
        residual_.drop(page);
        tenants_.give_back(page);
        pool_.give_back(page);
    }

    void emit_page_event(event_kind what, page_id page) noexcept {
        const auto run = index_.run(page);
        tell({what, run.size(), 0, 1, {&page, 1}, index_.parent(page), run});
    }

    // Whether an indexed page can become idle: it is ranked, or can be. Otherwise it is removed from the index.
    [[nodiscard]] bool may_idle(page_id page) noexcept {
        const bool ranked = detail::completes<std::bad_alloc>([&] { eviction_.rank(index_, page, 0); });
        if (!ranked)
            leave_index(page); // full pages are ranked when published, so this page is partial and therefore a leaf
        return ranked;
    }

    // Removes a page that is in use from the index.
    void forget(page_id page) {
        eviction_.unrank(page);
        leave_index(page);
    }

    void leave_index(page_id page) {
        const auto parent = index_.parent(page);
        index_.erase(page);
        eviction_.follow(index_, parent);
    }

    // Handles a page that the index has dropped: if unreferenced, it becomes free.
    void unlist(page_id page) {
        eviction_.unrank(page);
        if (pool_.holders(page) == 0) {
            wake(page);
            give_back(page);
        }
    }

    // Evicts an idle page; one of this tenant's, if `tenant` is not zero.
    [[nodiscard]] bool evict(std::uint32_t tenant) {
        const auto page = eviction_.victim([this, tenant](page_id candidate) {
            return pool_.holders(candidate) == 0 && index_.leaf(candidate) &&
                   (tenant == 0 || tenants_.owns(tenant, candidate));
        });
        if (!page)
            return false;
        emit_page_event(event_kind::evicted, *page);
        eviction_.evict(*page);
        leave_index(*page);
        unlist(*page);
        if constexpr (requires { pool_.storage().on_evict(*page); })
            pool_.storage().on_evict(*page);
        return true;
    }

    page_shape shape_;
    residual_pool<Coded> residual_;
    page_pool<Storage> pool_;
    tenant_index<Index> index_;
    index_match found_; // of the last `find`
    page_eviction<Hash, Eviction> eviction_;
    Observer observer_;
    tenant_quotas tenants_;
    std::size_t idle_ = 0;
};

}} // namespace kvcache
