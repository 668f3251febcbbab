// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/shape.hpp>
#include <kvcache/index/concept.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

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

    /// The longest cached prefix of a tenant's tokens.
    [[nodiscard]] index_match match(std::uint32_t tenant, std::span<const token_id> tokens) const {
        index_match found;
        match(tenant, tokens, found);
        return found;
    }
    /// The same in the memory of another match.
    void match(std::uint32_t tenant, std::span<const token_id> tokens, index_match& found) const {
        if (tenant == 0)
            return in_index(tokens, found);
        std::vector<token_id> query = run_of(tenant);
        query.insert(query.end(), tokens.data(), tokens.data() + tokens.size());
        in_index(query, found);
        found.pages.erase(found.pages.begin());
        found.tokens -= page_tokens_;
    }
    [[nodiscard]] index_match match(std::span<const token_id> tokens) const { return match(0, tokens); }

    /// Chunks that a tenant has registered, if the index supports chunks.
    [[nodiscard]] std::vector<chunk_match> chunks(std::uint32_t tenant, std::span<const token_id> tokens,
                                                  std::size_t known) const requires chunk_index_state<Index> {
        return index_.chunks(tenant, tokens, known);
    }
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

}} // namespace kvcache
