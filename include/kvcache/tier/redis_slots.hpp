// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/tier/resp.hpp>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// Address of a Redis server.
struct redis_address {
    std::string host = {};
    std::uint16_t port = 0;

    friend bool operator==(const redis_address&, const redis_address&) = default;
};

/// Number of hash slots of a Redis Cluster.
inline constexpr std::size_t redis_slot_count = 16384;

namespace detail {

/// Returns the CRC-16/XMODEM of a text, as Redis Cluster computes it: polynomial 0x1021, initial value 0, not
/// reflected.
[[nodiscard]] constexpr std::uint16_t crc16(std::string_view words) noexcept {
    std::uint32_t sum = 0;
    for (const char letter : words) {
        sum ^= static_cast<std::uint32_t>(static_cast<unsigned char>(letter)) << 8;
        for (int bit = 0; bit < 8; ++bit)
            sum = (sum << 1 ^ ((sum & 0x8000u) != 0 ? 0x1021u : 0u)) & 0xffffu;
    }
    return static_cast<std::uint16_t>(sum);
}
static_assert(crc16("123456789") == 0x31c3); // the check value of the Redis Cluster specification

[[nodiscard]] inline std::optional<std::uint16_t> port_in(std::string_view words) {
    std::uint16_t port = 0;
    const auto [end, fault] = std::from_chars(words.data(), words.data() + words.size(), port);
    return fault == std::errc() && end == words.data() + words.size() && port != 0 ? std::optional(port) : std::nullopt;
}

} // namespace detail

/// Returns the hash slot of a key. If the key has a hash tag in braces, only that is hashed.
[[nodiscard]] constexpr std::size_t redis_slot(std::string_view key) noexcept {
    const std::size_t open = key.find('{');
    if (open != std::string_view::npos) {
        const std::size_t close = key.find('}', open + 1);
        if (close != std::string_view::npos && close > open + 1)
            key = key.substr(open + 1, close - open - 1);
    }
    return detail::crc16(key) % redis_slot_count;
}

/// A redirection from a cluster node.
struct redis_redirect {
    bool once = false; ///< ASK: for this request only; MOVED: for the slot, permanently.
    std::size_t slot = 0;
    redis_address to = {}; ///< Without a host: the host of the node that replied.
};

/// Returns the redirection in an error reply, if it is one: "MOVED 3999 127.0.0.1:6381".
[[nodiscard]] inline std::optional<redis_redirect> redirect_in(std::string_view words) {
    redis_redirect made;
    made.once = words.starts_with("ASK ");
    if (!made.once && !words.starts_with("MOVED "))
        return std::nullopt;
    words.remove_prefix(made.once ? 4 : 6);
    const std::size_t space = words.find(' '), colon = words.rfind(':');
    if (space == std::string_view::npos || colon == std::string_view::npos || colon < space)
        return std::nullopt;
    const auto [end, fault] = std::from_chars(words.data(), words.data() + space, made.slot);
    const auto port = detail::port_in(words.substr(colon + 1));
    if (fault != std::errc() || end != words.data() + space || made.slot >= redis_slot_count || !port)
        return std::nullopt;
    made.to = {std::string(words.substr(space + 1, colon - space - 1)), *port};
    return made;
}

/// The slots from `first` to `last`, and the server that owns them.
struct redis_range {
    std::size_t first = 0, last = 0;
    redis_address at = {};
};

/// Returns the ranges of a reply to CLUSTER SLOTS; none for any other reply. A host that the reply omits is `from`.
[[nodiscard]] inline std::optional<std::vector<redis_range>> ranges_in(const resp_value& reply,
                                                                       const std::string& from) {
    using kind = resp_value::kind;
    if (reply.what != kind::array)
        return std::nullopt;
    std::vector<redis_range> made;
    for (const resp_value& one : reply.items) {
        if (one.what != kind::array || one.items.size() < 3 || one.items[0].what != kind::number ||
            one.items[1].what != kind::number || one.items[2].what != kind::array || one.items[2].items.size() < 2)
            return std::nullopt;
        const std::int64_t first = one.items[0].number, last = one.items[1].number;
        const resp_value &host = one.items[2].items[0], &port = one.items[2].items[1];
        if (first < 0 || last < first || last >= static_cast<std::int64_t>(redis_slot_count) ||
            (host.what != kind::bytes && host.what != kind::nothing) || port.what != kind::number || port.number < 1 ||
            port.number > 65535)
            return std::nullopt;
        made.push_back({static_cast<std::size_t>(first),
                        static_cast<std::size_t>(last),
                        {host.words.empty() || host.words == "?" ? from : std::string(host.words),
                         static_cast<std::uint16_t>(port.number)}});
    }
    return made;
}

}}} // namespace kvcache::tier
