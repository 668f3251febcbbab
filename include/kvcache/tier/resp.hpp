// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/digest.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// A reply of a Redis server (RESP2, redis.io/docs/reference/protocol-spec), as a view of the receive buffer.
struct resp_value {
    enum class kind { text, error, number, bytes, nothing, array };
    kind what = kind::nothing;
    std::string_view words = {};        ///< Value of a text, an error, a number or bytes.
    std::int64_t number = 0;            ///< Value of a number.
    std::vector<resp_value> items = {}; ///< Elements of an array.

    [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return text_bytes(words); }
};

/// Limits on a reply; a larger one is rejected.
struct resp_limits {
    std::size_t bytes = std::size_t{512} << 20; ///< One value; the default is Redis' own limit.
    std::size_t line = std::size_t{64} << 10;   ///< One line: lengths, texts, errors.
    std::size_t items = std::size_t{1} << 17;   ///< Elements of one reply, those of nested arrays included.
    std::size_t depth = 4;                      ///< Depth of nested arrays.
};

/// The state of a parse: a complete reply of `used` bytes, the beginning of one that needs `wanted` bytes or more, or
/// an invalid reply.
struct resp_read {
    enum class state { whole, more, wrong };
    state now = state::more;
    std::size_t used = 0;
    std::size_t wanted = 0;
    resp_value value = {};
};

namespace detail {

/// Parses a reply, with its nested elements, from the front of a buffer.
class resp_reader {
public:
    resp_reader(std::string_view from, const resp_limits& limits) : from_(from), limits_(limits) {}

    [[nodiscard]] resp_read read() {
        resp_read made;
        made.now = next(made.value, 0);
        made.used = at_;
        made.wanted = wanted_;
        return made;
    }

private:
    using state = resp_read::state;

    // Reads the next line, without its end, and skips it.
    [[nodiscard]] state line(std::string_view& words) {
        const std::string_view rest = from_.substr(at_);
        const std::size_t end = rest.substr(0, limits_.line).find('\r');
        if (end == std::string_view::npos || end + 1 >= rest.size()) {
            wanted_ = from_.size() + 1;
            return rest.size() >= limits_.line ? state::wrong : state::more;
        }
        if (rest[end + 1] != '\n')
            return state::wrong;
        words = rest.substr(0, end);
        at_ += end + 2;
        return state::whole;
    }

    [[nodiscard]] static std::optional<std::int64_t> number_in(std::string_view words) {
        std::int64_t value = 0;
        const auto [end, fault] = std::from_chars(words.data(), words.data() + words.size(), value);
        return fault == std::errc() && end == words.data() + words.size() ? std::optional(value) : std::nullopt;
    }

    [[nodiscard]] state next(resp_value& value, std::size_t depth) {
        if (++items_ > limits_.items)
            return state::wrong;
        std::string_view words;
        if (const state now = line(words); now != state::whole)
            return now;
        if (words.empty())
            return state::wrong;
        const char sort = words.front();
        words.remove_prefix(1);
        value.words = words;
        if (sort == '+' || sort == '-') {
            value.what = sort == '+' ? resp_value::kind::text : resp_value::kind::error;
            return state::whole;
        }
        const auto number = number_in(words);
        if (!number || (sort != ':' && sort != '$' && sort != '*'))
            return state::wrong;
        value.number = *number;
        if (sort == ':') {
            value.what = resp_value::kind::number;
            return state::whole;
        }
        value.words = {};
        if (*number == -1)
            return state::whole; // null
        if (*number < 0)
            return state::wrong;
        return sort == '$' ? body(value) : array(value, depth);
    }

    [[nodiscard]] state body(resp_value& value) {
        value.what = resp_value::kind::bytes;
        if (static_cast<std::uint64_t>(value.number) > limits_.bytes)
            return state::wrong;
        const auto size = static_cast<std::size_t>(value.number);
        if (from_.size() - at_ < size + 2) {
            wanted_ = at_ + size + 2;
            return state::more;
        }
        value.words = from_.substr(at_, size);
        if (from_.substr(at_ + size, 2) != "\r\n")
            return state::wrong;
        at_ += size + 2;
        return state::whole;
    }

    [[nodiscard]] state array(resp_value& value, std::size_t depth) {
        value.what = resp_value::kind::array;
        if (static_cast<std::uint64_t>(value.number) > limits_.items || depth == limits_.depth)
            return state::wrong;
        for (std::int64_t i = 0; i < value.number; ++i)
            if (const state now = next(value.items.emplace_back(), depth + 1); now != state::whole)
                return now; // no memory is reserved for a length alone
        return state::whole;
    }

    std::string_view from_;
    resp_limits limits_;
    std::size_t at_ = 0, wanted_ = 0, items_ = 0;
};

} // namespace detail

/// Parses one reply from the front of a buffer. The input is not trusted: no memory is reserved for a length before
/// its bytes have arrived. Cost: O(1) for a value of any size. Throws: bad_alloc, for arrays.
[[nodiscard]] inline resp_read read_resp(std::span<const std::byte> from, const resp_limits& limits) {
    return detail::resp_reader({reinterpret_cast<const char*>(from.data()), from.size()}, limits).read();
}

/// Writes the header of an argument; its bytes and "\r\n" follow.
inline void begin_argument(std::string& to, std::size_t bytes) {
    to += '$';
    to += std::to_string(bytes);
    to += "\r\n";
}

/// Writes the header of a command.
inline void begin_command(std::string& to, std::size_t arguments) {
    to += '*';
    to += std::to_string(arguments);
    to += "\r\n";
}

/// Writes arguments.
inline void write_arguments(std::string& to, std::initializer_list<std::string_view> arguments) {
    for (const std::string_view one : arguments) {
        begin_argument(to, one.size());
        to += one;
        to += "\r\n";
    }
}

/// Writes a whole command.
inline void write_command(std::string& to, std::initializer_list<std::string_view> arguments) {
    begin_command(to, arguments.size());
    write_arguments(to, arguments);
}

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
