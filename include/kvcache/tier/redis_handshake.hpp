// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/tier/redis_channel.hpp>
#include <kvcache/tier/redis_slots.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// Options for connecting to Redis servers.
struct redis_connect_options {
    redis_address seed = {};
    std::string user = {}, password = {};
    redis_security security = {};
    std::chrono::milliseconds connect_timeout = {}, timeout = {}, retry = {}, longest_retry = {};
    std::size_t slowest = 0, links = 0;
    resp_limits limits = {};
};

/// The connections to one server.
using redis_channels = std::vector<std::unique_ptr<redis_channel>>;

namespace detail {

[[nodiscard]] inline result<void> accepted(const result<resp_value>& said) {
    if (!said)
        return said.error();
    if (said->what == resp_value::kind::error)
        return error{error_code::io, "redis", "redis: the server says: " + std::string(said->words)};
    if (said->what != resp_value::kind::text)
        return error{error_code::malformed, "redis", "redis: the server does not say what Redis says"};
    return {};
}

} // namespace detail

/// Opens all connections to a server, authenticates, and requests the slot ranges of its cluster, if it belongs to
/// one. Errors: io, malformed, unsupported. Throws: bad_alloc.
[[nodiscard]] inline result<void> redis_shake_hands(const redis_address& at, const redis_connect_options& how,
                                                    redis_channels& made,
                                                    std::optional<std::vector<redis_range>>& ranges) {
    redis_deadline patience(how.connect_timeout, how.slowest);
    const std::size_t links = std::max<std::size_t>(how.links, 1);
    made.reserve(links);
    while (made.size() < links) {
        auto link = redis_link::open(at, how.security, patience);
        if (!link)
            return link.error();
        auto channel = std::make_unique<redis_channel>(std::move(*link), how.limits);
        if (!how.password.empty()) {
            const auto said = how.user.empty() ? channel->ask({"AUTH", how.password}, patience)
                                               : channel->ask({"AUTH", how.user, how.password}, patience);
            if (auto fine = detail::accepted(said); !fine)
                return fine;
        }
        if (const auto said = channel->ask({"PING"}, patience); !said)
            return error{said.error().code, "redis",
                         said.error().message + (how.security.on ? ", greeted by TLS" : ", greeted without TLS")};
        else if (auto fine = detail::accepted(said); !fine)
            return fine;
        made.push_back(std::move(channel));
    }
    const auto said = made.front()->ask({"CLUSTER", "SLOTS"}, patience);
    if (!said)
        return said.error();
    ranges = ranges_in(*said, at.host);
    return {};
}

}}} // namespace kvcache::tier
