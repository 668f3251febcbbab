// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/exact_books.hpp>
#include <kvcache/cache/page_pool.hpp>
#include <kvcache/cache/page_ranks.hpp>
#include <kvcache/cache/rooted_index.hpp>
#include <kvcache/cache/tenant_books.hpp>
#include <kvcache/core/exceptions.hpp>
#include <kvcache/core/joined.hpp>
#include <kvcache/core/page_table.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/hash/concept.hpp>
#include <kvcache/index/concept.hpp>
#include <kvcache/observer/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvcache::inline KVCACHE_ABI {

/// What every page is doing: free, held by sequences, or idle: held by nobody and kept in the index until room is
/// needed. An idle page's children are idle too, since whoever holds a page holds all that comes before it.
/// `Coded`: whether the codec codes whole pages.
template <storage_state Storage, hash_state Hash, index_state Index, eviction_state Eviction, observer_state Observer,
          bool Coded>
class page_books {
public:
    static constexpr bool coded = Coded;

    template <class Storages, class Hashes, class Indexes, class Evictions, class Observers>
    page_books(page_shape shape, std::size_t pages, std::size_t page_bytes, std::size_t most_tenants,
               const identity& id, const Storages& storages, const Hashes& hashes, const Indexes& indexes,
               const Evictions& evictions, const Observers& observers)
        : shape_(shape),
          exact_(shape, pages, page_bytes),
          pool_(pages, storages.open(pages, page_bytes)),
          index_(indexes, shape, pages, most_tenants),
          ranks_(shape, pages, page_bytes, most_tenants, id, hashes, evictions),
          observer_(observers.open()),
          tenants_(pages, most_tenants) {}

    [[nodiscard]] const page_pool<Storage>& pool() const noexcept { return pool_; }
    [[nodiscard]] const rooted_index<Index>& index() const noexcept { return index_; }
    [[nodiscard]] const Observer& observer() const noexcept { return observer_; }
    [[nodiscard]] std::size_t idle() const noexcept { return idle_; }

    [[nodiscard]] exact_books<Coded>& exact() noexcept { return exact_; }
    [[nodiscard]] const exact_books<Coded>& exact() const noexcept { return exact_; }

    /// Pages that can be had: free ones, and idle ones that may leave, but for those that exact rows weigh.
    [[nodiscard]] std::size_t available() const noexcept {
        const std::size_t all = pool_.free().size() + idle_;
        return all - std::min(all, exact_.aside());
    }

    [[nodiscard]] const tenant_books& tenants() const noexcept { return tenants_; }
    void set_quota(std::uint32_t tenant, std::size_t quota) { tenants_.set_quota(tenant, quota); }
    /// Of the available pages, those that a tenant may have.
    [[nodiscard]] std::size_t room(std::uint32_t tenant) const noexcept { return tenants_.room(tenant, available()); }

    /// Adds a tenant, whose names begin with `root`. Throws: bad_alloc, and there is no tenant more.
    std::uint32_t add_tenant(const digest& root, std::size_t quota) {
        const auto number = static_cast<std::uint32_t>(tenants_.size() + 1);
        index_.add_root(number);
        ranks_.name_root(*index_.root_of(number), root);
        return tenants_.add(quota);
    }

    /// Tells the observer. What it throws is lost: watching changes nothing.
    void tell(event what) noexcept {
        what.names = ranks_.prefixes();
        what.page_tokens = shape_.tokens;
        detail::ignore_exceptions([&] { observer_.on(what); });
    }

    /// A page with one holder. Evicts where none is free, and once where the storage refuses a free one: the page that
    /// leaves has its memory already. A tenant that has its quota gives pages of its own. None if nothing may leave or
    /// the storage refuses again.
    [[nodiscard]] std::optional<page_id> allocate(std::uint32_t tenant) {
        while (tenants_.full(tenant))
            if (!evict(tenant))
                return std::nullopt;
        if (!keep_free(exact_.aside() + 1))
            return std::nullopt;
        auto page = pool_.take();
        if (!page && evict(0))
            page = pool_.take();
        if (page)
            tenants_.take(*page, tenant);
        return page;
    }

    /// Evicts until so many pages are free. False if nothing more may leave.
    [[nodiscard]] bool keep_free(std::size_t pages) {
        while (pool_.free().size() < pages)
            if (!evict(0))
                return false;
        return true;
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
            ranks_.settle(page);
        } else {
            give_back(page);
        }
    }

    /// Says that a page was used.
    void touch(page_id page) noexcept { ranks_.touch(page); }

    /// So many rows from `first` on were computed in so long: what their pages cost is learned from it. Fewer rows than
    /// a page has are decoding, which says nothing of how soon pages are computed again.
    void measure(std::size_t first, std::size_t rows, double seconds) noexcept {
        if (rows >= shape_.tokens)
            ranks_.measure(first, rows, seconds);
    }

    /// What computing rows from `first` on takes, as far as it was measured.
    [[nodiscard]] double seconds(std::size_t first, std::size_t rows) const noexcept {
        return ranks_.seconds(first, rows);
    }

    /// Whether the row may be written in place: nobody else holds the page, and the index has not promised the row.
    [[nodiscard]] bool writable(page_id page, std::uint32_t row) const {
        return pool_.holders(page) == 1 && index_.run(page).size() <= row;
    }

    /// Makes a held page known as `run` after `parent`, of a request of `length` full pages. Returns the page that
    /// stands for the run from now on: where another full one held it already, the caller's hold has moved to that one,
    /// and its own is given up. Throws: bad_alloc, if the index or the eviction policy has no memory; the page is then
    /// not in the index, or as it was there.
    [[nodiscard]] page_id publish(std::optional<page_id> parent, std::span<const token_id> run, page_id page,
                                  std::size_t length) {
        const bool full = run.size() == shape_.tokens;
        const insertion done = index_.insert(parent, run, page);
        if (done.what == insertion::outcome::covered) {
            if (!full || *done.other == page)
                return page;
            hold(*done.other);
            touch(*done.other);
            exact_.pass_on(page, *done.other);
            if (index_.contains(page) && pool_.holders(page) == 1)
                forget(page);
            drop(page);
            return *done.other;
        }
        if (done.other)
            unlist(*done.other);
        ranks_.unrank(page); // its run has grown, and with it its name
        ranks_.follow(index_, index_.parent(page));
        if (full) {
            detail::scope_guard undo([&] { leave_index(page); });
            ranks_.rank(index_, page, length);
            undo.dismiss();
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
                return broken(page, detail::joined({"counts ", std::to_string(pool_.holders(page)), " holders and has ",
                                                    std::to_string(held[i])}));
            if (free[i] && (known || ranks_.ranked(page) || held[i] > 0))
                return broken(page, "is free and in use");
            if (!free[i] && !known && held[i] == 0)
                return broken(page, "is lost: neither free, held nor known");
            if (ranks_.ranked(page) && !known)
                return broken(page, "is ranked for eviction and not in the index");
            if (!known)
                continue;
            idle += held[i] == 0;
            if (held[i] == 0 && !ranks_.ranked(page))
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
            return error{
                error_code::malformed, "pages",
                detail::joined({std::to_string(idle), " pages are idle, the books say ", std::to_string(idle_)})};
        return {};
    }

private:
    [[nodiscard]] static error broken(page_id page, const std::string& how) {
        return {error_code::malformed, detail::joined({"page ", std::to_string(index_of(page))}),
                detail::joined({"the page ", how})};
    }

    void wake(page_id page) noexcept {
        --idle_;
        tenants_.wake(page);
    }
    void give_back(page_id page) {
        exact_.drop(page);
        tenants_.give_back(page);
        pool_.give_back(page);
    }

    void tell_of(event_kind what, page_id page) noexcept {
        const auto run = index_.run(page);
        tell({what, run.size(), 0, 1, {&page, 1}, index_.parent(page), run});
    }

    // Whether a known page can wait for its next match: it is ranked, or can be; otherwise it leaves the index.
    [[nodiscard]] bool may_idle(page_id page) noexcept {
        const bool ranked = detail::completes<std::bad_alloc>([&] { ranks_.rank(index_, page, 0); });
        if (!ranked)
            leave_index(page); // full pages are ranked as they are published, so this one is a leaf
        return ranked;
    }

    // A held page leaves the index.
    void forget(page_id page) {
        ranks_.unrank(page);
        leave_index(page);
    }

    void leave_index(page_id page) {
        const auto parent = index_.parent(page);
        index_.erase(page);
        ranks_.follow(index_, parent);
    }

    // A page that the index has dropped: without a holder it is free.
    void unlist(page_id page) {
        ranks_.unrank(page);
        if (pool_.holders(page) == 0) {
            wake(page);
            give_back(page);
        }
    }

    // Makes an idle page leave; one of this tenant's, if that is not zero.
    [[nodiscard]] bool evict(std::uint32_t tenant) {
        const auto page = ranks_.victim([this, tenant](page_id candidate) {
            return pool_.holders(candidate) == 0 && index_.leaf(candidate) &&
                   (tenant == 0 || tenants_.owns(tenant, candidate));
        });
        if (!page)
            return false;
        tell_of(event_kind::evicted, *page);
        ranks_.evict(*page);
        leave_index(*page);
        unlist(*page);
        return true;
    }

    page_shape shape_;
    exact_books<Coded> exact_;
    page_pool<Storage> pool_;
    rooted_index<Index> index_;
    page_ranks<Hash, Eviction> ranks_;
    Observer observer_;
    tenant_books tenants_;
    std::size_t idle_ = 0;
};

} // namespace kvcache
