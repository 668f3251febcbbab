// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/tier/redis_nodes.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// The connections borrowed for one call, one per server. They are given back when it ends. A connection with a fault
/// is closed then, and its server is reconnected.
class redis_session {
public:
    explicit redis_session(redis_nodes& nodes) : nodes_(nodes) {}
    redis_session(const redis_session&) = delete;
    redis_session& operator=(const redis_session&) = delete;
    ~redis_session() {
        for (loan& one : all_)
            if (one.channel && one.channel->expected() == 0)
                nodes_.give_back(one.server, one.epoch, std::move(one.channel));
            else if (one.channel)
                nodes_.out(one.server, one.epoch, {error_code::cancelled, "redis", "redis: a call was broken off"});
    }

    /// Returns the connection to a server; null if there is none.
    [[nodiscard]] redis_channel* to(std::size_t server, const redis_deadline& patience) {
        const auto found = std::ranges::find(all_, server, &loan::server);
        if (found != all_.end())
            return found->channel.get();
        loan& one = all_.emplace_back();
        one.server = server;
        one.channel = nodes_.borrow(server, one.epoch, patience);
        return one.channel.get();
    }

    /// Sends the commands written on all connections. Errors: io; the server is disconnected then.
    [[nodiscard]] result<void> send(redis_deadline& patience) {
        for (loan& one : all_)
            if (one.channel)
                if (auto sent = one.channel->send(patience); !sent)
                    return fail(one, sent.error());
        return {};
    }

    /// Returns the next reply of a server. Errors: io, malformed; the server is disconnected then.
    [[nodiscard]] result<resp_value> reply(std::size_t server, redis_deadline& patience) {
        loan& one = *std::ranges::find(all_, server, &loan::server);
        auto said = one.channel->reply(patience);
        if (!said)
            return fail(one, said.error());
        return said;
    }

private:
    struct loan {
        std::size_t server = 0;
        std::uint64_t epoch = 0;
        std::unique_ptr<redis_channel> channel = nullptr;
    };

    [[nodiscard]] error fail(loan& one, const error& why) {
        one.channel.reset();
        nodes_.out(one.server, one.epoch, why);
        return why;
    }

    redis_nodes& nodes_;
    std::vector<loan> all_;
};

/// Commands for `count` keys. `key(i)` returns the key, `write(i, key, channel)` writes the command, and
/// `take(i, reply)` handles the reply and returns whether to continue.
template <class Key, class Write, class Take>
struct redis_commands {
    std::size_t count;
    Key key;
    Write write;
    Take take;
};
template <class Key, class Write, class Take>
redis_commands(std::size_t, Key, Write, Take) -> redis_commands<Key, Write, Take>;

/// Sends commands in order, at most `ahead` at once, each to the server that owns its key, and follows the redirections
/// of a cluster. Errors: io, malformed; the commands from the first reply not passed to `take` on failed. Throws:
/// bad_alloc.
template <class Key, class Write, class Take>
[[nodiscard]] result<void> ask_redis(redis_nodes& nodes, redis_deadline patience, std::size_t ahead,
                                     redis_commands<Key, Write, Take> commands) {
    constexpr int detours = 5;
    redis_session lent(nodes);
    std::optional<std::size_t> elsewhere; // ASK: the server of the next command only
    int turns = 0;
    std::vector<std::size_t> servers;
    for (std::size_t at = 0; at < commands.count;) {
        servers.clear();
        for (std::size_t i = at; i < (elsewhere ? at + 1 : std::min(at + ahead, commands.count)); ++i) {
            const std::string name = commands.key(i);
            const auto server = elsewhere ? elsewhere : nodes.of(name);
            redis_channel* channel = server ? lent.to(*server, patience) : nullptr;
            if (channel == nullptr)
                break;
            if (elsewhere) {
                write_command(channel->words(), {"ASKING"});
                channel->expect();
            }
            commands.write(i, name, *channel);
            channel->expect();
            servers.push_back(*server);
        }
        if (servers.empty())
            return error{error_code::io, "redis", "redis: the server is not connected"};
        if (auto sent = lent.send(patience); !sent)
            return sent;
        std::optional<redis_redirect> turned;
        std::size_t by = 0;
        const std::size_t first = at;
        bool goes_on = true;
        for (std::size_t i = 0; i < servers.size(); ++i) { // reads all replies, so that none is left over
            if (elsewhere)
                if (auto asked = lent.reply(servers[i], patience); !asked)
                    return asked.error();
            auto said = lent.reply(servers[i], patience);
            if (!said)
                return said.error();
            if (!goes_on || turned)
                continue;
            if (said->what == resp_value::kind::error)
                turned = redirect_in(said->words);
            if (turned) {
                by = servers[i];
                continue;
            }
            const auto since = redis_deadline::clock::now();
            goes_on = commands.take(first + i, *said);
            patience.rested(redis_deadline::clock::now() - since);
            ++at;
        }
        if (!goes_on)
            return {};
        elsewhere.reset();
        turns = at > first ? 0 : turns;
        if (turned) {
            const auto to = nodes.redirected(*turned, by);
            if (!to || ++turns > detours)
                return error{error_code::io, "redis", "redis: the cluster sends its readers astray"};
            if (turned->once)
                elsewhere = to;
        }
    }
    return {};
}

}}} // namespace kvcache::tier
