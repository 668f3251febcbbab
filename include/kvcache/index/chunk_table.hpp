// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/index/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace index {

/// The hash of any run of a text's tokens, computed from prefix hashes: a polynomial modulo 2^64, then mixed. Not
/// collision-resistant against an adversary: equal hashes are a hint that a comparison of the tokens must confirm.
/// Cost: O(n), then O(1) a run.
class rolling_hash {
public:
    rolling_hash(std::span<const token_id> tokens, std::uint64_t salt)
        : salt_(mix(salt)), sums_(tokens.size() + 1), powers_(tokens.size() + 1) {
        powers_[0] = 1;
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            sums_[i + 1] = sums_[i] * factor + mix(static_cast<std::uint64_t>(index_of(tokens[i])));
            powers_[i + 1] = powers_[i] * factor;
        }
    }

    /// The hash of the tokens [first, last).
    [[nodiscard]] std::uint64_t operator()(std::size_t first, std::size_t last) const noexcept {
        return mix((sums_[last] - sums_[first] * powers_[last - first]) ^ salt_);
    }

private:
    static constexpr std::uint64_t factor = 0x9e3779b97f4a7c15u;

    // The finalizer of splitmix64 (Steele, Lea & Flood 2014).
    [[nodiscard]] static constexpr std::uint64_t mix(std::uint64_t x) noexcept {
        x += factor;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
    }

    std::uint64_t salt_;
    std::vector<std::uint64_t> sums_, powers_;
};

/// Chunks by content: their ends in a tree of pages, by the hash of all their tokens, and their lengths, by the hash of
/// their first tokens. It stores no tokens: those in the tree are compared on every hit.
class chunk_table {
public:
    chunk_table(std::size_t least, std::size_t page_tokens, std::size_t pages)
        : least_(least), page_tokens_(page_tokens), of_page_(pages) {
        expects(least > 0, "the shortest chunk has a token");
    }

    /// Tokens of the shortest chunk.
    [[nodiscard]] std::size_t least() const noexcept { return least_; }

    /// Registers a chunk. Returns whether it is registered now. Throws: bad_alloc; the table is then unchanged.
    template <index_state Tree>
    bool insert(const Tree& tree, std::uint64_t salt, const chunk_match& where) {
        if (where.count < least_ || where.end == 0 || index_of(where.last) >= of_page_.size())
            return false;
        const auto tokens = tokens_of(tree, where);
        if (tokens.empty())
            return false;
        const rolling_hash hashes(tokens, salt);
        const record made{hashes(0, least_), hashes(0, where.count), where};
        auto& own = of_page_[index_of(where.last)];
        for (const record& known : own)
            if (known.content == made.content && known.where.end == where.end && known.where.count == where.count)
                return true;
        own.push_back(made);
        detail::scope_guard undo([&] {
            forget_length(made);
            own.pop_back();
        });
        ++lengths_[made.begin][where.count];
        contents_.emplace(made.content, where);
        undo.dismiss();
        return true;
    }

    /// Forgets the chunks that end in a page.
    void erase(page_id page) noexcept {
        if (index_of(page) >= of_page_.size())
            return;
        for (const record& gone : of_page_[index_of(page)]) {
            forget_length(gone);
            contents_.erase(place(gone));
        }
        of_page_[index_of(page)].clear();
    }

    /// Moves the chunks that end in one page to another, at the same rows.
    void move(page_id from, page_id to) {
        auto records = std::exchange(of_page_[index_of(from)], {});
        for (record& one : records) {
            place(one)->second.last = to;
            one.where.last = to;
        }
        of_page_[index_of(to)] = std::move(records); // the new page is new in the tree, so it has no chunks yet
    }

    template <index_state Tree>
    [[nodiscard]] std::vector<chunk_match> find(const Tree& tree, std::uint64_t salt, std::span<const token_id> tokens,
                                                std::size_t known) const {
        std::vector<chunk_match> found;
        if (contents_.empty() || tokens.size() < least_)
            return found;
        const rolling_hash hashes(tokens, salt);
        std::size_t covered = known; // a chunk may begin before this, not end
        for (std::size_t at = 0; at + least_ <= tokens.size();) {
            const auto begin = lengths_.find(hashes(at, at + least_));
            std::optional<chunk_match> best;
            if (begin != lengths_.end())
                for (auto length = begin->second.rbegin(); !best && length != begin->second.rend(); ++length)
                    if (at + length->first > covered && at + length->first <= tokens.size())
                        best = find_candidate(tree, hashes(at, at + length->first), tokens.subspan(at, length->first),
                                              found.empty() ? nullptr : &found.back());
            if (best) {
                best->first = at;
                found.push_back(*best);
                at = covered = at + best->count;
            } else {
                ++at;
            }
        }
        return found;
    }

private:
    struct record {
        std::uint64_t begin = 0, content = 0; // hashes
        chunk_match where;
    };
    using contents = std::unordered_multimap<std::uint64_t, chunk_match>;

    // A chunk with these tokens, preferably one that continues `before`.
    template <index_state Tree>
    [[nodiscard]] std::optional<chunk_match> find_candidate(const Tree& tree, std::uint64_t hash,
                                                            std::span<const token_id> tokens,
                                                            const chunk_match* before) const {
        std::optional<chunk_match> best;
        const auto [first, last] = contents_.equal_range(hash);
        for (auto one = first; one != last; ++one) {
            if (one->second.count != tokens.size() || !ranges::equal(tokens_of(tree, one->second), tokens))
                continue;
            if (before != nullptr && continues(tree, one->second, *before))
                return one->second;
            best = one->second;
        }
        return best;
    }

    // The tokens of a chunk, read from the tree; empty if there are too few.
    template <index_state Tree>
    [[nodiscard]] std::vector<token_id> tokens_of(const Tree& tree, const chunk_match& where) const {
        std::vector<token_id> tokens(where.count);
        std::optional<page_id> page = where.last;
        std::size_t left = where.count;
        for (std::size_t end = where.end; left > 0; end = page_tokens_, page = tree.parent(*page)) {
            if (!page || tree.run(*page).size() < end)
                return {};
            const std::size_t rows = std::min(end, left);
            left -= rows;
            ranges::copy(tree.run(*page).subspan(end - rows, rows), tokens.begin() + static_cast<std::ptrdiff_t>(left));
            if (left > 0 && !tree.parent(*page))
                return {};
        }
        return tokens;
    }

    // Whether a chunk's first token directly follows the last token of another.
    template <index_state Tree>
    [[nodiscard]] bool continues(const Tree& tree, const chunk_match& chunk, const chunk_match& before) const {
        page_id page = chunk.last;
        std::size_t end = chunk.end, left = chunk.count;
        for (; left > end || (left == end && page != before.last); end = page_tokens_) {
            const auto parent = tree.parent(page);
            if (!parent)
                return false;
            left -= end;
            page = *parent;
            if (left == 0)
                return page == before.last && before.end == page_tokens_;
        }
        return page == before.last && before.end == end - left;
    }

    [[nodiscard]] contents::iterator place(const record& of) noexcept {
        auto [at, last] = contents_.equal_range(of.content);
        return std::find_if(at, last, [&](const auto& one) {
            return one.second.last == of.where.last && one.second.end == of.where.end &&
                   one.second.count == of.where.count;
        });
    }

    void forget_length(const record& of) noexcept {
        const auto begin = lengths_.find(of.begin);
        if (begin == lengths_.end())
            return;
        if (const auto length = begin->second.find(of.where.count);
            length != begin->second.end() && --length->second == 0)
            begin->second.erase(length);
        if (begin->second.empty())
            lengths_.erase(begin);
    }

    std::size_t least_;
    std::size_t page_tokens_;
    std::vector<std::vector<record>> of_page_; // by page: the chunks that end there
    contents contents_;
    std::unordered_map<std::uint64_t, std::map<std::size_t, std::size_t>> lengths_; // counts by first hash, length
};

}}} // namespace kvcache::index
