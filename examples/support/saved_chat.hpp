// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/formats/json.hpp>
#include <kvcache/session/snapshot.hpp>
#include <kvcache/text/chat_template.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace support {

/// A conversation from a file.
template <class Cache>
struct saved_chat {
    std::vector<kvcache::chat_message> messages;
    kvcache::restored<Cache> context; ///< The tokens of its last turn.
};

namespace detail {

// A saved chat is this header, the snapshot of the last turn, and the messages: a JSON list of {"role", "content"}.
//
//     0 "kvcchat1"   8 bytes of the snapshot   16 bytes of the messages   24 zeros   48 digest of all before it and of
//                                                                                       the messages
inline constexpr std::size_t chat_header = 64;
inline constexpr std::string_view chat_magic = "kvcchat1";

[[nodiscard]] inline kvcache::digest chat_digest(std::span<const std::byte> header, std::string_view messages) {
    return kvcache::digest_builder().bytes(header.first(48)).text(messages).finish();
}

[[nodiscard]] inline kvcache::error refused_chat(std::string field, const std::string& what) {
    std::string words = field + ": " + what;
    return {kvcache::error_code::malformed, std::move(field), std::move(words)};
}

} // namespace detail

/// Writes a conversation to a file, atomically. `of`: the tokens of its last turn. Errors: those of save_snapshot.
template <class Cache>
[[nodiscard]] kvcache::result<void>
save_chat(const Cache& cache, const typename Cache::sequence& of, const kvcache::generation_state& state,
          std::span<const kvcache::chat_message> messages, const std::filesystem::path& file) {
    kvcache::json list = kvcache::json::array();
    for (const kvcache::chat_message& one : messages)
        list.push_back({{"role", one.role}, {"content", one.content}});
    const std::string text = list.dump(-1, ' ', false, kvcache::json::error_handler_t::replace);
    return kvcache::write_snapshot(cache, of, state, "", [&](std::span<const std::span<const std::byte>> pieces) {
        std::array<std::byte, detail::chat_header> header = {};
        std::size_t bytes = 0;
        for (const auto piece : pieces)
            bytes += piece.size();
        for (std::size_t i = 0; i < detail::chat_magic.size(); ++i)
            header[i] = static_cast<std::byte>(detail::chat_magic[i]);
        kvcache::store_little<std::uint64_t>(header, 8, bytes);
        kvcache::store_little<std::uint64_t>(header, 16, text.size());
        const kvcache::digest sum = detail::chat_digest(header, text);
        kvcache::store_little(header, 48, sum.low);
        kvcache::store_little(header, 56, sum.high);
        std::vector<std::span<const std::byte>> all{header};
        all.insert(all.end(), pieces.begin(), pieces.end());
        all.push_back(kvcache::text_bytes(text));
        return kvcache::write_file(file, all);
    });
}

/// Loads a conversation from a file. Errors: malformed, with the field's name; those of read_snapshot. Nothing has
/// changed then.
template <class Cache>
[[nodiscard]] kvcache::result<saved_chat<Cache>> load_chat(Cache& cache, const std::filesystem::path& file) {
    const auto mapped = kvcache::mapped_file::open(file);
    if (!mapped)
        return mapped.error();
    if (auto whole = mapped->intact(); !whole)
        return whole.error();
    const std::span<const std::byte> bytes = mapped->bytes();
    const std::string_view all(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!all.starts_with(detail::chat_magic))
        return detail::refused_chat("magic", "this is no saved chat");
    if (bytes.size() < detail::chat_header)
        return detail::refused_chat("total_bytes", "the header is cut off");
    const auto snapshot = kvcache::load_little<std::uint64_t>(bytes, 8);
    const auto text = kvcache::load_little<std::uint64_t>(bytes, 16);
    const std::uint64_t rest = bytes.size() - detail::chat_header;
    if (snapshot > rest || text != rest - snapshot)
        return detail::refused_chat("total_bytes", "the header says " + std::to_string(snapshot) + " and " +
                                                       std::to_string(text) + " bytes, and there are " +
                                                       std::to_string(rest));
    const std::string_view list = all.substr(detail::chat_header + static_cast<std::size_t>(snapshot));
    const kvcache::digest sum = detail::chat_digest(bytes, list);
    if (sum.low != kvcache::load_little<std::uint64_t>(bytes, 48) ||
        sum.high != kvcache::load_little<std::uint64_t>(bytes, 56))
        return detail::refused_chat("messages", "they are not those that were written");
    const auto read = kvcache::parse_json(list, "messages");
    if (!read)
        return read.error();
    std::vector<kvcache::chat_message> messages;
    for (const auto& one : *read) {
        if (!one.is_object() || !one.contains("role") || !one["role"].is_string() || !one.contains("content") ||
            !one["content"].is_string())
            return detail::refused_chat("messages", "each is a role and a content");
        messages.push_back(
            {.role = one["role"].template get<std::string>(), .content = one["content"].template get<std::string>()});
    }
    auto context =
        kvcache::read_snapshot(cache, bytes.subspan(detail::chat_header, static_cast<std::size_t>(snapshot)), "");
    if (!context)
        return context.error();
    return saved_chat<Cache>{std::move(messages), std::move(*context)};
}

} // namespace support
