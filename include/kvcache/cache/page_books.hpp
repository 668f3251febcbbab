// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/page_pool.hpp>
#include <kvcache/cache/rooted_index.hpp>
#include <kvcache/cache/tenant_books.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/hash/concept.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/observer/concept.hpp>

#include <cstddef>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvcache {

/// What every page is doing: free, held by sequences, or idle: held by nobody and kept in the index until room is
/// needed. An idle page's children are idle too, since whoever holds a page holds all that comes before it.
template <storage_state Storage, hash_state Hash, index_state Index, eviction_state Eviction, observer_state Observer>
class page_books {
public:
    template <class Storages, class Hashes, class Indexes, class Evictions, class Observers>
    page_books(page_shape shape, std::size_t pages, std::size_t page_bytes, std::size_t most_tenants,
               const identity& id, const Storages& storages, const Hashes& hashes, const Indexes& indexes,
               const Evictions& evictions, const Observers& observers)
        : shape_(shape),
          page_bytes_(page_bytes),
          pool_(pages, storages.open(pages, page_bytes)),
          hash_(hashes.open(id)),
          index_(indexes, shape, pages, most_tenants),
          eviction_(evictions.open({.slots = pages, .bytes = pages * page_bytes})),
          observer_(observers.open()),
          tenants_(pages, most_tenants),
          prefixes_(pages + most_tenants),
          depths_(pages),
          ranked_(pages, false) {}

    [[nodiscard]] const page_pool<Storage>& pool() const noexcept { return pool_; }
    [[nodiscard]] const rooted_index<Index>& index() const noexcept { return index_; }
    [[nodiscard]] const Observer& observer() const noexcept { return observer_; }
    [[nodiscard]] std::size_t idle() const noexcept { return idle_; }

    /// Pages that can be had: free ones, and idle ones that may leave.
    [[nodiscard]] std::size_t available() const noexcept { return pool_.free().size() + idle_; }

    [[nodiscard]] const tenant_books& tenants() const noexcept { return tenants_; }
    void set_quota(std::uint32_t tenant, std::size_t quota) { tenants_.set_quota(tenant, quota); }
    /// Of the available pages, those that a tenant may have.
    [[nodiscard]] std::size_t room(std::uint32_t tenant) const noexcept { return tenants_.room(tenant, available()); }

    /// Adds a tenant, whose names begin with `root`. Throws: bad_alloc, and there is no tenant more.
    std::uint32_t add_tenant(const digest& root, std::size_t quota) {
        const auto number = static_cast<std::uint32_t>(tenants_.size() + 1);
        index_.add_root(number);
        prefixes_[index_of(*index_.root_of(number))] = root;
        return tenants_.add(quota);
    }

    /// Tells the observer. What it throws is lost: watching changes nothing.
    void tell(event what) noexcept {
        what.names = prefixes_;
        what.page_tokens = shape_.tokens;
        try {
            observer_.on(what);
        } catch (...) {
        }
    }

    /// A page with one holder. Evicts where none is free, and once where the storage refuses a free one: the page that
    /// leaves has its memory already. A tenant that has its quota gives pages of its own. None if nothing may leave or
    /// the storage refuses again.
    [[nodiscard]] std::optional<page_id> allocate(std::uint32_t tenant) {
        while (tenants_.full(tenant))
            if (!evict(tenant))
                return std::nullopt;
        auto page = pool_.take();
        if (!page && evict(0))
            page = pool_.take();
        if (page)
            tenants_.take(*page, tenant);
        return page;
    }

    /// The index, to note chunks in.
    [[nodiscard]] rooted_index<Index>& chunks() noexcept { return index_; }

    void hold(page_id page) noexcept {
        if (pool_.holders(page) == 0)
            wake(page);
        pool_.hold(page);
    }

    /// One holder less. The last one leaves the page idle if the index knows it, and free otherwise.
    void drop(page_id page) noexcept {
        if (pool_.drop(page) > 0)
            return;
        if (index_.contains(page) && may_idle(page)) {
            ++idle_;
            tenants_.rest(page);
            settle(eviction_, slot_of(page));
        } else {
            give_back(page);
        }
    }

    /// Says that a page was used.
    void touch(page_id page) noexcept {
        if (ranked_[index_of(page)])
            eviction_.touch(slot_of(page));
    }

    /// Whether the row may be written in place: nobody else holds the page, and the index has not promised the row.
    [[nodiscard]] bool writable(page_id page, std::uint32_t row) const {
        return pool_.holders(page) == 1 && index_.run(page).size() <= row;
    }

    /// Makes a held page known as `run` after `parent`. Returns the page that stands for the run from now on: where
    /// another full one held it already, the caller's hold has moved to that one, and its own is given up.
    /// Throws: bad_alloc, if the index or the eviction policy has no memory; the page is then not in the index, or as
    /// it was there.
    [[nodiscard]] page_id publish(std::optional<page_id> parent, std::span<const token_id> run, page_id page) {
        const bool full = run.size() == shape_.tokens;
        const insertion done = index_.insert(parent, run, page);
        if (done.what == insertion::outcome::covered) {
            if (!full || *done.other == page)
                return page;
            hold(*done.other);
            touch(*done.other);
            if (index_.contains(page) && pool_.holders(page) == 1)
                forget(page);
            drop(page);
            return *done.other;
        }
        if (done.other)
            unlist(*done.other);
        unrank(page); // its run has grown, and with it its name
        if (full) {
            try {
                rank(page);
            } catch (...) {
                index_.erase(page);
                throw;
            }
            tell_of(event_kind::published, page);
        }
        return page;
    }

    /// Proves that every page is in one state only. `held` is how many holders each page should have.
    [[nodiscard]] result<void> check(std::span<const std::uint32_t> held) const {
        std::vector<bool> free(pool_.pages(), false);
        for (const page_id page : pool_.free()) {
            if (free[index_of(page)])
                return broken(page, "is free twice");
            free[index_of(page)] = true;
        }
        std::size_t idle = 0;
        for (std::uint32_t i = 0; i < pool_.pages(); ++i) {
            const page_id page{i};
            const bool known = index_.contains(page);
            if (pool_.holders(page) != held[i])
                return broken(page, "counts " + std::to_string(pool_.holders(page)) + " holders and has " +
                                        std::to_string(held[i]));
            if (free[i] && (known || ranked_[i] || held[i] > 0))
                return broken(page, "is free and in use");
            if (!free[i] && !known && held[i] == 0)
                return broken(page, "is lost: neither free, held nor known");
            if (ranked_[i] && !known)
                return broken(page, "is ranked for eviction and not in the index");
            if (!known)
                continue;
            idle += held[i] == 0;
            if (held[i] == 0 && !ranked_[i])
                return broken(page, "is idle and can never leave");
            if (index_.run(page).empty() || index_.run(page).size() > shape_.tokens)
                return broken(page, "has a run that is not of a page");
            if (!index_.leaf(page) && index_.run(page).size() != shape_.tokens)
                return broken(page, "has children and is not full");
            if (const auto parent = index_.parent(page); parent && (!index_.contains(*parent) || index_.leaf(*parent) ||
                                                                    (held[i] > 0 && held[index_of(*parent)] == 0)))
                return broken(page, "has a parent that is gone, childless or not held with it");
        }
        if (idle != idle_)
            return error{error_code::malformed, "pages",
                         std::to_string(idle) + " pages are idle, the books say " + std::to_string(idle_)};
        return {};
    }

private:
    [[nodiscard]] static slot_id slot_of(page_id page) noexcept { return slot_id{index_of(page)}; }

    [[nodiscard]] static error broken(page_id page, const std::string& how) {
        return {error_code::malformed, "page " + std::to_string(index_of(page)), "the page " + how};
    }

    void wake(page_id page) noexcept {
        --idle_;
        tenants_.wake(page);
    }
    void give_back(page_id page) {
        tenants_.give_back(page);
        pool_.give_back(page);
    }

    void tell_of(event_kind what, page_id page) noexcept {
        const auto run = index_.run(page);
        tell({what, run.size(), 0, 1, {&page, 1}, index_.parent(page), run});
    }

    // Enters a page of the index into the eviction policy, under the digest of all tokens up to its end.
    void rank(page_id page) {
        if (ranked_[index_of(page)])
            return;
        const auto parent = index_.parent(page), above = index_.above(page);
        const auto run = index_.run(page);
        const digest prefix = hash_.chain(above ? prefixes_[index_of(*above)] : hash_.root(), run);
        prefixes_[index_of(page)] = prefix;
        depths_[index_of(page)] = parent ? depths_[index_of(*parent)] + 1 : 0;
        const entry newcomer{.key = prefix.low,
                             .bytes = page_bytes_,
                             .cost = static_cast<double>(run.size()),
                             .parent = parent ? std::optional(slot_of(*parent)) : std::nullopt,
                             .depth = depths_[index_of(page)]};
        announce(eviction_, newcomer);
        eviction_.admit(slot_of(page), newcomer);
        ranked_[index_of(page)] = true;
    }

    // Whether a known page can wait for its next match: it is ranked, or can be; otherwise it leaves the index.
    [[nodiscard]] bool may_idle(page_id page) noexcept {
        try {
            rank(page);
        } catch (const std::bad_alloc&) {
            index_.erase(page); // full pages are ranked as they are published, so this one is a leaf
            return false;
        }
        return true;
    }

    void unrank(page_id page) {
        if (ranked_[index_of(page)])
            eviction_.erase(slot_of(page));
        ranked_[index_of(page)] = false;
    }

    // A held page leaves the index.
    void forget(page_id page) {
        index_.erase(page);
        unrank(page);
    }

    // A page that the index has dropped: without a holder it is free.
    void unlist(page_id page) {
        unrank(page);
        if (pool_.holders(page) == 0) {
            wake(page);
            give_back(page);
        }
    }

    // Makes an idle page leave; one of this tenant's, if that is not zero.
    [[nodiscard]] bool evict(std::uint32_t tenant) {
        const auto may_leave = [this, tenant](slot_id candidate) {
            const page_id page{index_of(candidate)};
            return pool_.holders(page) == 0 && index_.leaf(page) && (tenant == 0 || tenants_.owns(tenant, page));
        };
        const std::optional<slot_id> slot = eviction_.victim(may_leave);
        if (!slot)
            return false;
        const page_id page{index_of(*slot)};
        tell_of(event_kind::evicted, page);
        index_.erase(page);
        kvcache::evict(eviction_, *slot);
        ranked_[index_of(page)] = false;
        unlist(page);
        return true;
    }

    page_shape shape_;
    std::size_t page_bytes_;
    page_pool<Storage> pool_;
    Hash hash_;
    rooted_index<Index> index_;
    Eviction eviction_;
    Observer observer_;
    tenant_books tenants_;
    std::vector<digest> prefixes_;      // by page: the digest of all tokens up to the end of a ranked page
    std::vector<std::uint32_t> depths_; // by page: full pages before it
    std::vector<bool> ranked_;          // by page: whether the eviction policy knows it
    std::size_t idle_ = 0;
};

} // namespace kvcache
