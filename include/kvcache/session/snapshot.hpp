// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/basic_cache.hpp>
#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/record/page_records.hpp>
#include <kvcache/record/record.hpp>
#include <kvcache/record/record_writer.hpp>
#include <kvcache/session/group_parts.hpp>
#include <kvcache/session/sampler.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <istream>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The state of an unfinished answer: its sampler and its position.
struct generation_state {
    sampler sampling = {};
    std::uint64_t next = 0;             ///< The place in the answer of the token that is drawn next.
    std::vector<token_id> pending = {}; ///< Tokens that were drawn and have not run: the last one, or none.
};

/// Returns the serialized state, as a record stores it (docs/format.md).
KVCACHE_LAZY [[nodiscard]] inline std::vector<std::byte> bytes_of(const generation_state& state) {
    std::vector<std::byte> made(40 + 4 * state.pending.size());
    const std::span<std::byte> to = made;
    store_little(to, 0, bit_cast<std::uint32_t>(state.sampling.temperature));
    store_little(to, 8, state.sampling.seed);
    store_little(to, 16, state.sampling.choice);
    store_little(to, 24, state.next);
    store_little<std::uint64_t>(to, 32, state.pending.size());
    for (std::size_t i = 0; i < state.pending.size(); ++i)
        store_little(to, 40 + 4 * i, static_cast<std::uint32_t>(index_of(state.pending[i])));
    return made;
}

/// Returns the state that bytes_of serialized. Errors: malformed.
KVCACHE_LAZY [[nodiscard]] inline result<generation_state> generation_state_of(std::span<const std::byte> bytes) {
    const error broken{error_code::malformed, "speaking", "speaking: it is not how an answer is said"};
    if (bytes.size() < 40 || (bytes.size() - 40) % 4 != 0 || load_little<std::uint32_t>(bytes, 4) != 0 ||
        load_little<std::uint64_t>(bytes, 32) != (bytes.size() - 40) / 4)
        return broken;
    generation_state made{.sampling = {.temperature = bit_cast<float>(load_little<std::uint32_t>(bytes, 0)),
                                       .seed = load_little<std::uint64_t>(bytes, 8),
                                       .choice = load_little<std::uint64_t>(bytes, 16)},
                          .next = load_little<std::uint64_t>(bytes, 24)};
    for (std::size_t at = 40; at < bytes.size(); at += 4)
        made.pending.push_back(token_id{static_cast<std::int32_t>(load_little<std::uint32_t>(bytes, at))});
    return made;
}

/// A sequence loaded from a snapshot, and the state of its generation.
template <class Cache>
struct restored {
    typename Cache::sequence sequence;
    generation_state state;
};

namespace detail {

[[nodiscard]] inline error refused_snapshot(error_code code, std::string field, const std::string& what) {
    std::string words = field + ": " + what;
    return {code, std::move(field), std::move(words)};
}

/// The parts of layer groups, if a cache has any.
template <class Core>
[[nodiscard]] auto group_parts_of(const Core& core, std::size_t tokens) {
    if constexpr (Core::grouped)
        return group_parts<Core>(core, tokens);
    else
        return nullptr;
}

} // namespace detail

/// Passes a snapshot of a sequence to `write(std::span<const std::span<const std::byte>>)`, which returns
/// result<void>. The snapshot is a record of the sequence's tokens, pages and generation state, named and
/// authenticated under `secret` (docs/format.md); with layer groups also of the blocks and states with which the next
/// token runs. For a sequence that continues elsewhere, save a fork. Requires: no lease of the sequence is open.
/// Errors: unsupported for a sequence that is not exact (a fork of its first exact() tokens can be saved), or whose
/// states of recurrent layers are not known; those of `write`. Cost: reads every page twice.
template <class Cache, class Write>
[[nodiscard]] result<void> write_snapshot(const Cache& cache, const typename Cache::sequence& of,
                                          const generation_state& state, std::string_view secret, Write write) {
    if (of.exact() < of.size())
        return detail::refused_snapshot(error_code::unsupported, "lineage",
                                        "only " + std::to_string(of.exact()) + " of " + std::to_string(of.size()) +
                                            " tokens are exact");
    const record_names names(cache.core().id(of.state_in(cache.core()).tenant), secret);
    page_parts pages(cache.core());
    const auto table = of.table();
    [[maybe_unused]] const auto groups = detail::group_parts_of(cache.core(), of.size());
    if constexpr (Cache::core_type::grouped)
        if (auto whole = groups.check(of); !whole)
            return whole;
    for (std::uint32_t i = 0; i < table.size(); ++i) {
        pages.add(table[i], i, of.size(), i);
        if constexpr (Cache::core_type::grouped)
            groups.add(of, i, pages);
    }
    const std::vector<std::byte> pending = bytes_of(state);
    pages.add({part_kind::generation_state, static_cast<std::uint32_t>(table.size()), 0, pending});
    const record_writer made({record_kind::sequence, 0, of.tokens(), names.root(),
                              names.of(of.tokens(), cache.shape().tokens), pages.parts()},
                             names, record_authenticator(secret));
    return write(made.pieces());
}

/// Saves a snapshot to a file, atomically (write_file). Errors: those of write_snapshot; io.
template <class Cache>
[[nodiscard]] result<void> save_snapshot(const Cache& cache, const typename Cache::sequence& of,
                                         const generation_state& state, const std::filesystem::path& file,
                                         std::string_view secret = {}) {
    return write_snapshot(cache, of, state, secret, [&](auto pieces) { return write_file(file, pieces); });
}

/// Loads a snapshot from memory into the cache. It may come from any machine or process with the same cache identity.
/// Tokens that the cache already holds are shared. Everything is checked before anything is published; a refused
/// snapshot changes nothing. Errors: those of record::parse and record::made_under; mismatched or malformed, with the
/// field's name; out_of_memory. Cost: copies the pages and reads the copies.
template <class Cache>
[[nodiscard]] result<restored<Cache>> read_snapshot(Cache& cache, std::span<const std::byte> bytes,
                                                    std::string_view secret = {}, const tenant& of = {}) {
    using codec = typename Cache::codec_type;
    const record_authenticator auth(secret);
    const auto saved = record::parse(bytes, auth);
    if (!saved)
        return saved.error();
    const record_names names(cache.id(of), secret);
    if (auto own = saved->made_under(names); !own)
        return own.error();
    const auto refuse = [](const char* field, const char* what) {
        return detail::refused_snapshot(error_code::malformed, field, what);
    };
    const std::span<const token_id> tokens = saved->tokens();
    const std::size_t page_tokens = cache.shape().tokens;
    const std::size_t pages = (tokens.size() + page_tokens - 1) / page_tokens;
    if (saved->kind() != record_kind::sequence)
        return refuse("kind", "this is no sequence");
    if (saved->first() != 0 || saved->before() != names.root())
        return refuse("before", "a sequence begins with its first token");
    if (saved->name() != names.of(tokens, page_tokens))
        return refuse("name", "it is not that of the tokens");
    const auto& parts = saved->parts();
    const auto behind = ranges::count_if(parts, [&](const record_part& part) { return part.index >= pages; });
    if (behind != 1 || parts.back().kind != part_kind::generation_state || parts.back().index != pages)
        return refuse("parts", "they are not those of the tokens");
    auto state = generation_state_of(parts.back().bytes);
    if (!state)
        return state.error();

    auto sequence = cache.core().find(cache.core().number_of(of), tokens, false).sequence;
    if (sequence.size() < tokens.size())
        sequence.truncate(sequence.size() / page_tokens * page_tokens);
    const std::size_t first = (sequence.size() + page_tokens - 1) / page_tokens; // truncate() may keep fewer
    const auto check = [&](const record_part& part) { return record::sound(part, part.bytes, auth); };
    [[maybe_unused]] const auto groups = detail::group_parts_of(std::as_const(cache).core(), tokens.size());
    const auto is_placed = [&](const record_part& part) { // here or with the pages
        if constexpr (Cache::core_type::grouped)
            if (part.kind >= part_kind::block)
                return groups.places(part, first);
        return part.kind < part_kind::block && part.index >= first && part.index < pages;
    };
    for (const record_part& part : parts)
        if (!is_placed(part))
            if (auto sound = check(part); !sound)
                return sound.error();
    if (sequence.size() < tokens.size()) {
        auto lease = cache.reserve(sequence, tokens.size() - sequence.size(),
                                   {.max_batch_tokens = 1, .whole = Cache::core_type::grouped});
        if (!lease)
            return lease.error();
        const auto opened = lease->opened();
        for (std::size_t page = first; page < pages; ++page) {
            const auto index = static_cast<std::uint32_t>(page);
            const std::size_t rows = std::min(page_tokens, tokens.size() - page * page_tokens);
            if (auto placed =
                    place_page<codec>(*saved, index, opened, page - first, static_cast<std::uint32_t>(rows), auth);
                !placed)
                return placed.error();
            for (const part_kind kind : {part_kind::page, part_kind::exact}) // parts that the page does not use
                if (const record_part* part = saved->part(kind, index);
                    part && !places<codec>(kind, opened, page - first, rows))
                    if (auto sound = check(*part); !sound)
                        return sound.error();
        }
        if constexpr (Cache::core_type::grouped)
            if (auto placed = groups.place(*saved, first, opened, auth); !placed)
                return placed.error();
        opened.commit_in_place(tokens.subspan(sequence.size()));
    }
    if constexpr (Cache::core_type::grouped) // a fork holds the snapshots at its end, which a commit leaves to eviction
        sequence = sequence.fork(sequence.size());
    return restored<Cache>{std::move(sequence), std::move(*state)};
}

/// Loads a snapshot from a file. Errors: those of mapped_file::open and read_snapshot.
template <class Cache>
[[nodiscard]] result<restored<Cache>> load_snapshot(Cache& cache, const std::filesystem::path& file,
                                                    std::string_view secret = {}, const tenant& of = {}) {
    const auto mapped = mapped_file::open(file);
    if (!mapped)
        return mapped.error();
    if (auto whole = mapped->intact(); !whole)
        return whole.error();
    return read_snapshot(cache, mapped->bytes(), secret, of);
}

/// Loads a snapshot from a stream, up to its end. Errors: io if the stream fails; out_of_range if it holds more than
/// `most` bytes; those of read_snapshot.
template <class Cache>
[[nodiscard]] result<restored<Cache>> load_snapshot(Cache& cache, std::istream& from, std::size_t most,
                                                    std::string_view secret = {}, const tenant& of = {}) {
    std::vector<std::byte> bytes;
    std::vector<char> piece(std::size_t{1} << 16);
    while (from.read(piece.data(), static_cast<std::streamsize>(piece.size())), from.gcount() > 0) {
        const auto read = std::as_bytes(std::span(piece).first(static_cast<std::size_t>(from.gcount())));
        if (read.size() > most - bytes.size())
            return detail::refused_snapshot(error_code::out_of_range, "total_bytes",
                                            "there are more than " + std::to_string(most) + " bytes");
        bytes.insert(bytes.end(), read.begin(), read.end());
    }
    if (from.bad())
        return error{error_code::io, "stream", "the stream could not be read"};
    return read_snapshot(cache, bytes, secret, of);
}

}} // namespace kvcache
