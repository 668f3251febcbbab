// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>
#include <kvcache/tier/redis_channel.hpp>
#include <kvcache/tier/redis_handshake.hpp>
#include <kvcache/tier/redis_slots.hpp>

#include <algorithm>
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

    /// Borrows a connection, and returns the server's `epoch`, which give_back() needs. Returns null if the server is
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
    void give_back(std::size_t server, std::uint64_t epoch, std::unique_ptr<redis_channel> channel) noexcept {
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
        return static_cast<std::size_t>(std::ranges::count_if(nodes_, [](const auto& one) { return one->up; }));
    }
    [[nodiscard]] std::uint64_t attempts() const {
        const std::lock_guard guard(lock_);
        return attempts_;
    }

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

    [[nodiscard]] static channels drop(node& one) {
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
        const auto found = std::ranges::find_if(nodes_, [&](const auto& one) { return one->at == at; });
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
            const auto due = std::ranges::find_if(
                nodes_, [&](const auto& one) { return one->wanted && !one->up && one->due <= now; });
            if (due != nodes_.end()) {
                connect(static_cast<std::size_t>(due - nodes_.begin()), guard);
                continue;
            }
            const auto up = std::ranges::find_if(nodes_, [](const auto& one) { return one->up; });
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
                give_back(server, epoch, std::move(channel));
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
    std::uint64_t attempts_ = 0;
    std::thread keeper_;
};

}}} // namespace kvcache::tier
