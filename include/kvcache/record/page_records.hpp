// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/f32.hpp>
#include <kvcache/codec/residual_page.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/record/record.hpp>
#include <kvcache/record/record_writer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A whole page of a prompt, as a record names it.
struct prompt_page {
    std::size_t index = 0; ///< Index among the pages of the prompt.
    std::span<const token_id> tokens = {};
    sha256_digest before = {}; ///< Name of the prefix before the page.
    sha256_digest name = {};   ///< Name of the prefix that the page ends.

    /// Position of the first token.
    [[nodiscard]] std::uint64_t first() const noexcept { return index * tokens.size(); }
};

/// Consecutive whole pages of a prompt.
struct page_run {
    std::size_t first = 0;                     ///< Index of the first page in the prompt.
    std::size_t page_tokens = 0;               ///< Tokens of a page.
    std::span<const token_id> tokens = {};     ///< Tokens of all pages of the run.
    std::span<const sha256_digest> chain = {}; ///< Name of the prefix before each page of the prompt, and of the whole.

    [[nodiscard]] std::size_t pages() const noexcept { return tokens.size() / page_tokens; }
    /// Page `i` of the run.
    [[nodiscard]] prompt_page page(std::size_t i) const noexcept {
        return {first + i, tokens.subspan(i * page_tokens, page_tokens), chain[first + i], chain[first + i + 1]};
    }
    /// Names of `count` pages from page `i` of the run on.
    [[nodiscard]] std::span<const sha256_digest> names(std::size_t i, std::size_t count) const noexcept {
        return chain.subspan(first + i + 1, count);
    }
};

/// The record parts of a sequence's pages. A partial page is copied, with zeros after the rows in use, so that a record
/// contains nothing of an earlier sequence. Requires: the sequence keeps its pages while the parts live.
template <class Core>
class page_parts {
public:
    explicit page_parts(const Core& core) : core_(core) {}

    /// Adds page `page` of a sequence of `end` exact tokens, as page `index` of the record.
    void add(const page_entry& entry, std::size_t page, std::size_t end, std::uint32_t index) {
        const page_shape& shape = core_.shape();
        const std::uint32_t rows = entry.count;
        const bool full = rows == shape.tokens;
        if constexpr (page_writer<typename Core::codec_type>) {
            if (full) // a partial page is not encoded yet
                parts_.push_back({part_kind::page, index, rows, core_.storage().bytes(entry.page)});
            const auto exact = core_.residual_bytes(entry.page);
            if (!exact.empty() && core_.codec().window().covers(page, end / shape.tokens))
                parts_.push_back(
                    {part_kind::exact, index, rows, full ? exact : cut(codec::f32::state(shape), exact, rows)});
        } else if constexpr (opaque_codec_state<typename Core::codec_type>) {
            parts_.push_back({part_kind::page, index, rows, core_.codec().used(core_.storage().bytes(entry.page))});
        } else {
            const auto bytes = core_.storage().bytes(entry.page);
            parts_.push_back({part_kind::page, index, rows, full ? bytes : cut(core_.codec(), bytes, rows)});
        }
    }

    void add(part_source other) { parts_.push_back(other); }
    /// Adds the block of another layer group in the format of its codec, of which `other.rows` rows are in use.
    template <row_writer Codec>
    void add(part_source other, const Codec& codec) {
        if (other.rows < core_.shape().tokens)
            other.bytes = cut(codec, other.bytes, other.rows);
        parts_.push_back(other);
    }

    [[nodiscard]] std::span<const part_source> parts() const noexcept { return parts_; }

private:
    template <row_writer Codec>
    [[nodiscard]] std::span<const std::byte> cut(const Codec& codec, std::span<const std::byte> bytes,
                                                 std::size_t rows) {
        auto& copy = copies_.emplace_back(bytes.size(), std::byte{});
        codec.copy(bytes, copy, rows);
        return copy;
    }

    const Core& core_;
    std::vector<part_source> parts_;
    std::vector<aligned_vector<std::byte>> copies_;
};

/// Copies a part of a record to its destination, and verifies the copy. Errors: malformed, mismatched, with the name of
/// the part's kind.
[[nodiscard]] inline result<void> place_part(const record& from, part_kind kind, std::uint32_t index,
                                             std::uint32_t rows, std::span<std::byte> to,
                                             const record_authenticator& auth) {
    const char* const field = name_of(kind);
    const record_part* part = from.part(kind, index);
    if (part == nullptr)
        return error{error_code::malformed, field,
                     std::string(field) + ": page " + std::to_string(index) + " lacks its bytes"};
    if (part->rows != rows || part->bytes.size() != to.size())
        return error{error_code::mismatched, field,
                     std::string(field) + ": page " + std::to_string(index) + " has " + std::to_string(part->rows) +
                         " rows in " + std::to_string(part->bytes.size()) + " bytes, and " + std::to_string(rows) +
                         " rows in " + std::to_string(to.size()) + " are needed"};
    ranges::copy(part->bytes, to.begin());
    return record::sound(*part, to, auth);
}

/// Checks that a record is the one that was asked for: of this kind and name, for this page. Errors: mismatched, with
/// the field.
[[nodiscard]] inline result<void> is_record_of(const record& read, record_kind kind, const sha256_digest& name,
                                               const prompt_page& page) {
    const struct {
        const char* field;
        bool holds;
    } facts[] = {{"kind", read.kind() == kind},
                 {"name", read.name() == name},
                 {"before", read.before() == page.before},
                 {"first_token", read.first() == page.first()},
                 {"tokens", ranges::equal(read.tokens(), page.tokens)}};
    for (const auto& [field, holds] : facts)
        if (!holds)
            return error{error_code::mismatched, field,
                         std::string(field) + ": the record is not the one that was asked for"};
    return {};
}

/// Returns whether a page of a lease, with `rows` rows, needs parts of a kind.
template <class Codec, class Lease>
[[nodiscard]] bool places(part_kind kind, const Lease& lease, std::size_t page, std::size_t rows) {
    if (kind == part_kind::exact)
        return !lease.residual_bytes(page).empty();
    return !page_writer<Codec> || rows == lease.shape().tokens; // a partial page is not encoded yet
}

/// The same for the blob of an opaque page, which has any number of bytes. The page's own count of them is that of the
/// record, so that what the memory held before is never read.
template <opaque_codec_state Codec>
[[nodiscard]] result<void> place_blob(const Codec& codec, const record& from, const part_source& to_part,
                                      std::span<std::byte> to, const record_authenticator& auth) {
    const record_part* const part = from.part(to_part.kind, to_part.index);
    const std::size_t size = part == nullptr ? to.size() : std::min(part->bytes.size(), to.size());
    if (auto placed = place_part(from, to_part.kind, to_part.index, to_part.rows, to.first(size), auth); !placed)
        return placed;
    if (codec.used(to).size() == size)
        return {};
    codec.clear(to);
    return error{error_code::malformed, name_of(to_part.kind),
                 std::string(name_of(to_part.kind)) + ": a blob has another number of bytes than its record"};
}

/// Copies page `index` of a record to page `page` of a lease, `rows` rows, and verifies the copy.
/// Errors: malformed, mismatched, with the field's name. On an error the caller rolls the lease back.
/// Cost: copies the page and reads the copy.
template <class Codec, class Lease>
[[nodiscard]] result<void> place_page(const record& from, std::uint32_t index, const Lease& lease, std::size_t page,
                                      std::uint32_t rows, const record_authenticator& auth) {
    for (const part_kind kind : {part_kind::page, part_kind::exact}) {
        if (!places<Codec>(kind, lease, page, rows))
            continue;
        const auto to = kind == part_kind::page ? lease.page_bytes(page) : lease.residual_bytes(page);
        if constexpr (opaque_codec_state<Codec>)
            return place_blob(lease.core.codec(), from, {kind, index, rows, {}}, to, auth);
        else if (auto placed = place_part(from, kind, index, rows, to, auth); !placed)
            return placed;
    }
    return {};
}

}} // namespace kvcache
