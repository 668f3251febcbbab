// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/tier/redis_link.hpp>
#include <kvcache/tier/resp.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
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

/// The servers of a store and their connection pools. A background thread connects; a caller that needs a server that
/// is not connected gets a miss at once. A server that fails is disconnected and reconnected after `retry`, then
/// after twice as long, and so on. The other servers of a cluster are discovered from its replies.
class redis_nodes {
public:
    using clock = redis_deadline::clock;

    explicit redis_nodes(redis_connect_options how) : how_(std::move(how)) {
        nodes_.push_back(std::make_unique<node>(how_.seed));
        keeper_ = std::thread([this] { keep(); });
        std::unique_lock guard(lock_);
        opened_.wait_for(guard, 2 * how_.connect_timeout, [this] { return tried_; });
    }
    ~redis_nodes() {
        {
            const std::lock_guard guard(lock_);
            stop_ = true;
        }
        wake_.notify_all();
        keeper_.join();
    }

    redis_nodes(const redis_nodes&) = delete;
    redis_nodes& operator=(const redis_nodes&) = delete;

    /// Returns the server that owns a key, if it is known.
    [[nodiscard]] std::optional<std::size_t> of(std::string_view key) const {
        const std::lock_guard guard(lock_);
        if (owners_.empty())
            return 0;
        const std::size_t owner = owners_[redis_slot(key)];
        return owner == no_server ? std::nullopt : std::optional(owner);
    }

    /// Borrows a connection, and returns the server's `epoch`, which release() needs. Returns null if the server is
    /// disconnected, or if no connection is returned before the deadline.
    [[nodiscard]] std::unique_ptr<redis_channel> borrow(std::size_t server, std::uint64_t& epoch,
                                                        const redis_deadline& patience) {
        std::unique_lock guard(lock_);
        node& one = *nodes_[server];
        const auto ready = [&] { return !one.up || !one.idle.empty(); };
        if (!given_.wait_until(guard, patience.end(), ready) || !one.up)
            return nullptr;
        auto channel = std::move(one.idle.back());
        one.idle.pop_back();
        epoch = one.epoch;
        return channel;
    }

    /// Returns a connection to the pool. Requires: no reply is expected on it.
    void release(std::size_t server, std::uint64_t epoch, std::unique_ptr<redis_channel> channel) noexcept {
        {
            const std::lock_guard guard(lock_);
            node& one = *nodes_[server];
            if (one.up && one.epoch == epoch)
                one.idle.push_back(std::move(channel)); // cannot throw: the capacity suffices for all connections
        }
        given_.notify_all();
    }

    /// Disconnects a server for all callers after a missing or invalid reply.
    void out(std::size_t server, std::uint64_t epoch, error why) {
        channels closed;
        {
            const std::lock_guard guard(lock_);
            node& one = *nodes_[server];
            if (one.epoch != epoch)
                return;
            closed = drop(one);
            put_off(one, std::move(why));
        }
        given_.notify_all();
        wake_.notify_all();
    }

    /// Notes the redirection of a cluster. Returns its target, if that is connected.
    [[nodiscard]] std::optional<std::size_t> redirected(const redis_redirect& where, std::size_t by) {
        std::size_t server = no_server;
        bool up = false;
        {
            const std::lock_guard guard(lock_);
            redis_address to = where.to;
            if (to.host.empty())
                to.host = nodes_[by]->at.host;
            server = place_of(to);
            if (server == no_server)
                return std::nullopt;
            nodes_[server]->wanted = true;
            up = nodes_[server]->up;
            if (owners_.empty())
                owners_.assign(redis_slot_count, by);
            if (!where.once) {
                owners_[where.slot] = server;
                stale_ = true;
            }
        }
        wake_.notify_all();
        return up ? std::optional(server) : std::nullopt;
    }

    /// Returns the error of the first disconnected server.
    [[nodiscard]] result<void> status() const {
        const std::lock_guard guard(lock_);
        for (const auto& one : nodes_)
            if (one->wanted && !one->up)
                return one->why ? error{error_code::io, "redis", "redis: not connected yet"} : one->why.error();
        return {};
    }

    /// Returns the number of connected servers; attempts() the number of connection attempts.
    [[nodiscard]] std::size_t connected() const {
        const std::lock_guard guard(lock_);
        return static_cast<std::size_t>(ranges::count_if(nodes_, [](const auto& one) { return one->up; }));
    }
    [[nodiscard]] std::uint64_t attempts() const noexcept { return attempts_; }
    /// Returns how often a connected server was lost. It may have lost its records then.
    [[nodiscard]] std::uint64_t losses() const noexcept { return losses_; }

private:
    static constexpr std::size_t no_server = ~std::size_t{0}, most_nodes = 2000;
    using channels = redis_channels;

    struct node {
        explicit node(redis_address where) : at(std::move(where)) {}
        redis_address at;
        bool up = false, wanted = true;
        std::uint64_t epoch = 0; // connections of an earlier epoch are not taken back
        channels idle = {};
        clock::time_point due = {};
        std::chrono::milliseconds pause = {};
        result<void> why = {};
    };

    [[nodiscard]] channels drop(node& one) {
        losses_ += one.up ? 1 : 0;
        one.up = false;
        ++one.epoch;
        return std::exchange(one.idle, {});
    }

    void put_off(node& one, error why) {
        one.pause = std::clamp(2 * one.pause, how_.retry, std::max(how_.retry, how_.longest_retry));
        one.due = clock::now() + one.pause;
        one.why = std::move(why);
        stale_ = !owners_.empty();
    }

    // Returns the index of a server, which may be new; the constant for none if there are too many.
    [[nodiscard]] std::size_t place_of(const redis_address& at) {
        const auto found = ranges::find_if(nodes_, [&](const auto& one) { return one->at == at; });
        if (found != nodes_.end())
            return static_cast<std::size_t>(found - nodes_.begin());
        if (nodes_.size() == most_nodes)
            return no_server;
        nodes_.push_back(std::make_unique<node>(at));
        return nodes_.size() - 1;
    }

    void learn(const std::vector<redis_range>& ranges, channels& closed) {
        owners_.assign(redis_slot_count, no_server);
        for (const auto& one : nodes_)
            one->wanted = ranges.empty() && one == nodes_.front();
        for (const redis_range& range : ranges) {
            const std::size_t server = place_of(range.at);
            if (server == no_server)
                continue;
            nodes_[server]->wanted = true;
            std::fill(owners_.begin() + static_cast<std::ptrdiff_t>(range.first),
                      owners_.begin() + static_cast<std::ptrdiff_t>(range.last) + 1, server);
        }
        for (const auto& one : nodes_)
            if (!one->wanted && one->up)
                for (auto& channel : drop(*one))
                    closed.push_back(std::move(channel));
    }

    // The background thread.
    void keep() {
        std::unique_lock guard(lock_);
        while (!stop_) {
            const auto now = clock::now();
            const auto due =
                ranges::find_if(nodes_, [&](const auto& one) { return one->wanted && !one->up && one->due <= now; });
            if (due != nodes_.end()) {
                connect(static_cast<std::size_t>(due - nodes_.begin()), guard);
                continue;
            }
            const auto up = ranges::find_if(nodes_, [](const auto& one) { return one->up; });
            if (stale_ && up != nodes_.end() && refresh_ <= now) {
                refresh(static_cast<std::size_t>(up - nodes_.begin()), guard);
                continue;
            }
            tried_ = true;
            opened_.notify_all();
            auto next = clock::time_point::max();
            for (const auto& one : nodes_)
                if (one->wanted && !one->up)
                    next = std::min(next, one->due);
            if (stale_ && up != nodes_.end())
                next = std::min(next, refresh_);
            if (next == clock::time_point::max())
                wake_.wait(guard);
            else
                wake_.wait_until(guard, next);
        }
    }

    void connect(std::size_t server, std::unique_lock<std::mutex>& guard) {
        ++attempts_;
        const redis_address at = nodes_[server]->at;
        guard.unlock();
        channels made, closed;
        std::optional<std::vector<redis_range>> ranges;
        result<void> done;
        try {
            done = redis_shake_hands(at, how_, made, ranges);
        } catch (const std::bad_alloc&) {
            done = error{error_code::out_of_memory, "redis", "redis: there is no memory for a connection"};
        }
        guard.lock();
        node& one = *nodes_[server];
        if (!done)
            return put_off(one, done.error());
        one.up = true;
        one.pause = {};
        one.why = {};
        one.idle = std::move(made);
        if (ranges) {
            stale_ = false;
            learn(*ranges, closed);
        } else {
            owners_.clear();
        }
        given_.notify_all();
    }

    void refresh(std::size_t server, std::unique_lock<std::mutex>& guard) {
        stale_ = false;
        refresh_ = clock::now() + std::chrono::milliseconds(100);
        guard.unlock();
        redis_deadline patience(how_.timeout, how_.slowest);
        std::uint64_t epoch = 0;
        channels closed;
        std::optional<std::vector<redis_range>> ranges;
        if (auto channel = borrow(server, epoch, patience)) {
            const auto said = channel->ask({"CLUSTER", "SLOTS"}, patience);
            if (said) {
                ranges = ranges_in(*said, how_.seed.host);
                release(server, epoch, std::move(channel));
            } else {
                out(server, epoch, said.error());
            }
        }
        guard.lock();
        if (ranges)
            learn(*ranges, closed);
    }

    const redis_connect_options how_;
    mutable std::mutex lock_; // guards the members below
    std::condition_variable wake_, given_, opened_;
    std::vector<std::unique_ptr<node>> nodes_; // never shrinks
    std::vector<std::size_t> owners_;          // indexed by slot; empty without a cluster
    bool stale_ = false, stop_ = false, tried_ = false;
    clock::time_point refresh_ = {};
    std::atomic<std::uint64_t> attempts_ = 0, losses_ = 0;
    std::thread keeper_;
};

/// The connections borrowed for one call, one per server. They are released when it ends. A connection with a fault
/// is closed then, and its server is reconnected.
class redis_session {
public:
    explicit redis_session(redis_nodes& nodes) : nodes_(nodes) {}
    redis_session(const redis_session&) = delete;
    redis_session& operator=(const redis_session&) = delete;
    ~redis_session() {
        for (loan& one : all_)
            if (one.channel && one.channel->expected() == 0)
                nodes_.release(one.server, one.epoch, std::move(one.channel));
            else if (one.channel)
                nodes_.out(one.server, one.epoch, {error_code::cancelled, "redis", "redis: a call was broken off"});
    }

    /// Returns the connection to a server; null if there is none.
    [[nodiscard]] redis_channel* to(std::size_t server, const redis_deadline& patience) {
        const auto found = ranges::find(all_, server, &loan::server);
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
        loan& one = *ranges::find(all_, server, &loan::server);
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
