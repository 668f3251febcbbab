// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/identity.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/eviction/concept.hpp>
#include <kvcache/hash/concept.hpp>
#include <kvcache/index/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// What the pages of a cache are opened for.
struct pool_config {
    page_shape shape;
    std::size_t pages = 0;
    std::size_t page_bytes = 0;
    std::size_t tenants = 0;       ///< The maximum number of tenants.
    bool merge_equal_pages = true; ///< See cache_config.
    bool fair_tenants = false;     ///< See cache_config.
    std::size_t blocks = 0;        ///< Blocks of layer groups, besides the pages.
    std::size_t bytes = 0;         ///< Of pages and blocks together; 0 for those of the pages.
};

/// A model of the time of a prefill on this machine, fitted to timed prefills. A token costs its projections,
/// independent of its position, and its attention, in proportion to its position. Both are fitted by least squares with
/// decaying weights. Before the first measurement, a token takes 0.1 ms.
///
///     seconds(rows from `first` on) = projections * rows + attention * (sum of their positions)
///
/// Cost: O(1) each.
class prefill_cost {
public:
    /// Records that `rows` rows from position `first` on took `seconds`. Requires: rows > 0 and seconds >= 0.
    void measure(std::size_t first, std::size_t rows, double seconds) {
        expects(rows > 0 && seconds >= 0.0, "a measurement has rows, and a time that is not negative");
        const double n = static_cast<double>(rows), p = positions(first, rows);
        const auto fade = [n](double& sum, double product) { sum = 0.98 * sum + product / n; }; // noise grows with rows
        fade(nn_, n * n);
        fade(np_, n * p);
        fade(pp_, p * p);
        fade(ns_, n * seconds);
        fade(ps_, p * seconds);
        fit();
    }

    /// The estimated time of `rows` rows from position `first` on.
    [[nodiscard]] double seconds(std::size_t first, std::size_t rows) const noexcept {
        return projections_ * static_cast<double>(rows) + attention_ * positions(first, rows);
    }

private:
    // Positions count from 1: a token attends to itself.
    [[nodiscard]] static double positions(std::size_t first, std::size_t rows) noexcept {
        const double n = static_cast<double>(rows);
        return n * (static_cast<double>(first) + (n + 1.0) / 2.0);
    }

    // The best nonnegative pair; projections alone if all measurements are nearly collinear.
    void fit() noexcept {
        const double independent = nn_ * pp_ - np_ * np_;
        projections_ = ns_ / nn_;
        attention_ = 0.0;
        if (independent <= 1e-6 * nn_ * pp_)
            return;
        const double attention = (nn_ * ps_ - np_ * ns_) / independent;
        const double projections = (pp_ * ns_ - np_ * ps_) / independent;
        if (attention <= 0.0)
            return;
        projections_ = std::max(projections, 0.0);
        attention_ = projections > 0.0 ? attention : ps_ / pp_;
    }

    double projections_ = 1e-4, attention_ = 0.0;                 // seconds per row, and per row and position
    double nn_ = 0.0, np_ = 0.0, pp_ = 0.0, ns_ = 0.0, ps_ = 0.0; // sums over rows, positions and seconds
};

/// An index with a root for each tenant: a full page outside the pool, whose run repeats the tenant's number. A
/// tenant's first pages continue its root, so no sequence of tokens leads from one tenant to another, in any index.
template <index_state Index>
class tenant_index {
public:
    template <class Indexes>
    tenant_index(const Indexes& indexes, page_shape shape, std::size_t pages, std::size_t most_tenants)
        : page_tokens_(shape.tokens), pages_(pages), index_(indexes.open(shape, pages + most_tenants)) {}

    /// The parent of the first page of a tenant's sequence; nullopt in a cache without tenants (number zero).
    [[nodiscard]] std::optional<page_id> root_of(std::uint32_t tenant) const noexcept {
        return tenant == 0 ? std::nullopt : std::optional(page_id{static_cast<std::uint32_t>(pages_ + tenant - 1)});
    }
    /// Throws: bad_alloc; the index is then unchanged.
    void add_root(std::uint32_t tenant) { index_.insert(std::nullopt, run_of(tenant), *root_of(tenant)); }

    /// Makes `found` the longest cached prefix of a tenant's tokens.
    void match(std::uint32_t tenant, std::span<const token_id> tokens, index_match& found) const {
        if (tenant == 0)
            return in_index(tokens, found);
        std::vector<token_id> query = run_of(tenant);
        query.insert(query.end(), tokens.data(), tokens.data() + tokens.size());
        in_index(query, found);
        found.pages.erase(found.pages.begin());
        found.tokens -= page_tokens_;
    }

    /// Chunks that a tenant has registered, if the index supports chunks.
    [[nodiscard]] std::vector<chunk_match> chunks(std::uint32_t tenant, std::span<const token_id> tokens,
                                                  std::size_t known) const requires chunk_index_state<Index> {
        return index_.chunks(tenant, tokens, known);
    }
    [[nodiscard]] std::size_t least() const requires chunk_index_state<Index> { return index_.least(); }
    bool note(std::uint32_t tenant, page_id last, std::uint32_t end,
              std::size_t count) requires chunk_index_state<Index> {
        return index_.note(tenant, last, end, count);
    }

    insertion insert(std::optional<page_id> parent, std::span<const token_id> tokens, page_id page) {
        return index_.insert(parent, tokens, page);
    }
    void erase(page_id page) { index_.erase(page); }
    [[nodiscard]] bool contains(page_id page) const { return index_.contains(page); }
    [[nodiscard]] bool leaf(page_id page) const { return index_.leaf(page); }
    [[nodiscard]] std::span<const token_id> run(page_id page) const { return index_.run(page); }

    /// The parent of a page, roots included.
    [[nodiscard]] std::optional<page_id> above(page_id page) const { return index_.parent(page); }
    /// The parent of a page, if it is a page of the pool.
    [[nodiscard]] std::optional<page_id> parent(page_id page) const {
        const auto found = above(page);
        return found && index_of(*found) < pages_ ? found : std::nullopt;
    }

private:
    void in_index(std::span<const token_id> tokens, index_match& found) const {
        if constexpr (requires { index_.match(tokens, found); })
            index_.match(tokens, found);
        else
            found = index_.match(tokens);
    }

    [[nodiscard]] std::vector<token_id> run_of(std::uint32_t tenant) const {
        return std::vector<token_id>(page_tokens_, token_id{static_cast<std::int32_t>(tenant)});
    }

    std::size_t page_tokens_;
    std::size_t pages_; // of the pool
    Index index_;
};

/// Adapts the pages of an index to the eviction policy: their keys, the cost that a hit saves, and their children.
template <hash_state Hash, eviction_state Eviction>
class page_eviction {
public:
    /// Each tenant has a root, a page of the index in addition to those of the pool: it has a name and is never ranked.
    template <class Hashes, class Evictions>
    page_eviction(const pool_config& of, const identity& id, const Hashes& hashes, const Evictions& evictions)
        : page_tokens_(of.shape.tokens),
          page_bytes_(of.page_bytes),
          hash_(hashes.open(id)),
          eviction_(open_checked(
              evictions, {.slots = of.pages + of.blocks, .bytes = of.bytes > 0 ? of.bytes : of.pages * of.page_bytes})),
          prefixes_(of.pages + of.tenants),
          depths_(of.pages),
          flags_(of.pages + of.blocks, 0) {}

    /// By page: the digest of all tokens up to the end of a ranked page, or of a root.
    [[nodiscard]] std::span<const digest> prefixes() const noexcept { return prefixes_; }
    void name_root(page_id root, const digest& name) { prefixes_[index_of(root)] = name; }

    [[nodiscard]] bool ranked(page_id page) const noexcept { return (flags_[index_of(page)] & is_ranked) != 0; }

    /// Records that computing `rows` rows from position `first` on took `seconds`.
    void measure(std::size_t first, std::size_t rows, double seconds) { cost_.measure(first, rows, seconds); }

    /// The estimated time to compute `rows` rows from position `first` on.
    [[nodiscard]] double seconds(std::size_t first, std::size_t rows) const noexcept {
        return cost_.seconds(first, rows);
    }

    /// Ranks a page of the index that is in use. `length` is the number of pages of its request; if zero, the request
    /// ends with this page. Throws: bad_alloc; the page is then not ranked.
    template <class Index>
    void rank(const Index& index, page_id page, std::size_t length) {
        if (ranked(page))
            return;
        const auto parent = index.parent(page), above = index.above(page);
        const auto run = index.run(page);
        const std::uint32_t depth = parent ? depths_[index_of(*parent)] + 1 : 0;
        depths_[index_of(page)] = depth;
        prefixes_[index_of(page)] = hash_.chain(above ? prefixes_[index_of(*above)] : hash_.root(), run);
        const eviction_entry newcomer{.key = prefixes_[index_of(page)].low,
                                      .bytes = page_bytes_,
                                      .cost = cost_.seconds(depth * page_tokens_, run.size()),
                                      .parent = parent ? std::optional(slot_of(*parent)) : std::nullopt,
                                      .depth = depth,
                                      .length = length > depth ? static_cast<std::uint32_t>(length) : depth + 1};
        on_miss(eviction_, newcomer);
        eviction_.admit(slot_of(page), newcomer);
        flags_[index_of(page)] = is_ranked | in_use;
        follow(index, page);
    }

    /// Ranks the block of a layer group that no sequence uses, as `entry`, a number after those of the pages, by what
    /// it costs to compute the tokens of its page. Throws: bad_alloc; the block is then not ranked.
    template <class Index>
    void rank_block(const Index& index, page_id entry, page_id page, std::size_t group, std::size_t bytes) {
        const auto before = index.parent(page), named = ranked(page) ? std::optional(page) : index.above(page);
        const std::uint32_t depth = before ? depths_[index_of(*before)] + 1 : 0;
        const digest name = named ? prefixes_[index_of(*named)] : hash_.root();
        const eviction_entry newcomer{.key = name.low + 0x9e3779b97f4a7c15u * (group + 1),
                                      .bytes = bytes,
                                      .cost = cost_.seconds(depth * page_tokens_, index.run(page).size()),
                                      .depth = depth,
                                      .length = depth + 1};
        on_miss(eviction_, newcomer);
        eviction_.admit(slot_of(entry), newcomer);
        flags_[index_of(entry)] = is_ranked;
        kvcache::on_released(eviction_, slot_of(entry));
    }

    /// Reports to the policy whether a page has children, after that may have changed.
    template <class Index>
    void follow(const Index& index, std::optional<page_id> page) noexcept {
        if (page && ranked(*page))
            set_has_children(*page, !index.leaf(*page));
    }

    void unrank(page_id page) noexcept {
        if (!ranked(page))
            return;
        set_has_children(page, false);
        eviction_.erase(slot_of(page));
        flags_[index_of(page)] = 0;
    }

    void touch(page_id page) noexcept {
        if (ranked(page))
            eviction_.touch(slot_of(page));
    }

    /// The page is referenced again. Requires: it is ranked, as in the functions below.
    void on_held(page_id page) noexcept { flags_[index_of(page)] |= in_use; }
    /// The last reference to the page is gone.
    void on_released(page_id page) noexcept {
        flags_[index_of(page)] &= static_cast<std::uint8_t>(~in_use);
        kvcache::on_released(eviction_, slot_of(page));
    }

    /// Whether a page is ranked, unreferenced and has no children.
    [[nodiscard]] bool evictable(page_id page) const noexcept { return flags_[index_of(page)] == is_ranked; }

    /// The page to evict among the evictable ones for which `wanted(page)` holds. Throws: contract_violation, in every
    /// build, if the policy names another.
    template <class Wanted>
    [[nodiscard]] std::optional<page_id> victim(const Wanted& wanted) {
        const auto is_victim = [&](slot_id slot) {
            const auto place = static_cast<std::uint32_t>(slot);
            return place < flags_.size() && flags_[place] == is_ranked && wanted(page_id{place});
        };
        const std::optional<slot_id> slot = eviction_.victim(is_victim);
        if (!slot)
            return std::nullopt;
        require(is_victim(*slot), "an eviction policy's victim is evictable");
        return page_id{index_of(*slot)};
    }

    void evict(page_id page) noexcept {
        kvcache::evict(eviction_, slot_of(page));
        flags_[index_of(page)] = 0;
    }

private:
    static constexpr std::uint8_t is_ranked = 1, has_children = 2, in_use = 4;

    [[nodiscard]] static slot_id slot_of(page_id page) noexcept { return slot_id{index_of(page)}; }

    void set_has_children(page_id page, bool covered) noexcept {
        std::uint8_t& flags = flags_[index_of(page)];
        if (covered == ((flags & has_children) != 0))
            return;
        flags ^= has_children;
        if (covered)
            on_child_added(eviction_, slot_of(page));
        else
            on_last_child_removed(eviction_, slot_of(page));
    }

    std::size_t page_tokens_, page_bytes_;
    Hash hash_;
    checked_eviction<Eviction> eviction_;
    prefill_cost cost_;
    std::vector<digest> prefixes_;
    std::vector<std::uint32_t> depths_; // by page: full pages before it
    std::vector<std::uint8_t> flags_;   // by page
};

}} // namespace kvcache
