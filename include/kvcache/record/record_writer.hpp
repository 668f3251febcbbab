// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/record/record.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The source of a part of a record to write.
struct part_source {
    part_kind kind = part_kind::page;
    std::uint32_t index = 0; ///< Index of its page in the record, from 0.
    std::uint32_t rows = 0;  ///< Number of rows in use.
    std::span<const std::byte> bytes = {};
};

/// The source of a record to write.
struct record_source {
    record_kind kind = record_kind::page;
    std::uint64_t first = 0; ///< The position of the first token.
    std::span<const token_id> tokens = {};
    sha256_digest before = {}; ///< The name of the tokens before them.
    sha256_digest name = {};
    std::span<const part_source> parts = {};
};

/// A serialized record: its own header, and references to the parts. Requires: the bytes of the parts stay valid.
class record_writer {
public:
    /// Cost: reads every part once.
    record_writer(const record_source& source, const record_names& names, const record_authenticator& auth) {
        namespace at = record_layout;
        const std::vector<std::byte> identity = text_of(names.fields());
        const std::size_t identity_at = at::fixed_bytes + source.parts.size() * at::part_bytes;
        const std::size_t tokens_at = (identity_at + identity.size() + 7) / 8 * 8;
        const auto header = static_cast<std::size_t>(at::aligned(tokens_at + 4 * source.tokens.size()));
        header_.resize(header);
        const std::span<std::byte> to = header_;
        ranges::copy(std::as_bytes(std::span(at::magic)), to.begin());
        store_little<std::uint32_t>(to, at::format, record_format_revision);
        store_little(to, at::kind, static_cast<std::uint32_t>(source.kind));
        store_little(to, at::checksum_kind, static_cast<std::uint32_t>(auth.kind()));
        store_little(to, at::parts, static_cast<std::uint32_t>(source.parts.size()));
        store_little<std::uint64_t>(to, at::header_bytes, header);
        store_little<std::uint64_t>(to, at::first_token, source.first);
        store_little<std::uint64_t>(to, at::tokens, source.tokens.size());
        store_little<std::uint64_t>(to, at::tokens_offset, tokens_at);
        store_little<std::uint64_t>(to, at::identity_offset, identity_at);
        store_little<std::uint64_t>(to, at::identity_bytes, identity.size());
        store_little<std::uint64_t>(to, at::parts_offset, at::fixed_bytes);
        put(at::identity, names.root());
        put(at::before, source.before);
        put(at::name, source.name);
        ranges::copy(identity, to.begin() + static_cast<std::ptrdiff_t>(identity_at));
        for (std::size_t i = 0; i < source.tokens.size(); ++i)
            store_little(to, tokens_at + 4 * i, static_cast<std::uint32_t>(index_of(source.tokens[i])));
        store_little<std::uint64_t>(to, at::total_bytes, put_parts(source.parts, auth));
        put(at::checksum, auth.of(to.first(at::checksum), to.subspan(at::fixed_bytes)));
        lay_out(source.parts);
    }

    record_writer(const record_writer&) = delete;
    record_writer& operator=(const record_writer&) = delete;

    /// The bytes of the record, as consecutive pieces.
    [[nodiscard]] std::span<const std::span<const std::byte>> pieces() const noexcept { return pieces_; }
    [[nodiscard]] std::size_t total() const noexcept { return total_; }

private:
    [[nodiscard]] static std::vector<std::byte> text_of(const identity_text& fields) {
        std::vector<std::byte> made;
        const auto number = [&made](std::size_t n) {
            made.resize(made.size() + 4);
            store_little(std::span(made), made.size() - 4, static_cast<std::uint32_t>(n));
        };
        const auto text = [&](const std::string& words) {
            number(words.size());
            const auto bytes = text_bytes(words);
            made.insert(made.end(), bytes.begin(), bytes.end());
        };
        number(fields.size());
        for (const auto& [name, value] : fields) {
            text(name);
            text(value);
        }
        return made;
    }

    void put(std::size_t offset, const sha256_digest& d) {
        ranges::copy(d.bytes, header_.begin() + static_cast<std::ptrdiff_t>(offset));
    }

    // Writes the table of the parts. Returns the end of the last part.
    [[nodiscard]] std::uint64_t put_parts(std::span<const part_source> parts, const record_authenticator& auth) {
        namespace at = record_layout;
        std::uint64_t end = header_.size();
        std::size_t entry = at::fixed_bytes;
        for (const part_source& part : parts) {
            const std::uint64_t begin = at::aligned(end);
            store_little(std::span(header_), entry + at::part_kind, static_cast<std::uint32_t>(part.kind));
            store_little(std::span(header_), entry + at::part_index, part.index);
            store_little(std::span(header_), entry + at::part_offset, begin);
            store_little<std::uint64_t>(header_, entry + at::part_size, part.bytes.size());
            store_little(std::span(header_), entry + at::part_rows, part.rows);
            put(entry + at::part_checksum, auth.of(part.bytes));
            end = begin + part.bytes.size();
            entry += at::part_bytes;
        }
        return end;
    }

    void lay_out(std::span<const part_source> parts) {
        static constexpr std::array<std::byte, record_layout::alignment> zeros = {};
        pieces_.emplace_back(header_);
        total_ = header_.size();
        for (const part_source& part : parts) {
            const auto begin = static_cast<std::size_t>(record_layout::aligned(total_));
            if (begin > total_)
                pieces_.emplace_back(std::span(zeros).first(begin - total_));
            pieces_.push_back(part.bytes);
            total_ = begin + part.bytes.size();
        }
    }

    std::vector<std::byte> header_;
    std::vector<std::span<const std::byte>> pieces_;
    std::size_t total_ = 0;
};

}} // namespace kvcache
