// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/redis_nodes.hpp>
#include <kvcache/tier/redis_queue.hpp>
#include <kvcache/tier/redis_session.hpp>

#include <cstddef>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// The servers of a store and the write queue in front of them.
class redis_client {
public:
    redis_client(redis_connect_options how, redis_write_options keeping)
        : how_(std::move(how)), prefix_(keeping.prefix), nodes_(how_), queue_(nodes_, how_, std::move(keeping)) {}

    [[nodiscard]] const redis_nodes& nodes() const noexcept { return nodes_; }
    [[nodiscard]] redis_queue& queue() noexcept { return queue_; }

    /// Reads a run. A value of another type is passed on as a record without bytes, which its reader refuses and
    /// erases.
    template <class Use>
    [[nodiscard]] result<std::size_t> read_run(std::span<const sha256_digest> names, Use& use) {
        std::size_t given = 0;
        tier_counts seen;
        const auto done = ask("GET", 16, names, [&](std::size_t i, const resp_value& said) {
            const bool is = said.what == resp_value::kind::bytes;
            const bool foreign = said.what == resp_value::kind::error && said.words.starts_with("WRONGTYPE");
            queue_.remember(names[i], is);
            seen.failures += !is && said.what != resp_value::kind::nothing;
            if (!is && !foreign) {
                ++seen.misses;
                return false;
            }
            seen.hits += is;
            ++given;
            return use(i, said.bytes());
        });
        seen.failures += !done;
        queue_.count(seen);
        if (!done && given == 0)
            return done.error();
        return given;
    }

    [[nodiscard]] std::size_t count_prefix_hits(std::span<const sha256_digest> names) {
        std::size_t there = 0;
        const auto done = ask("EXISTS", 256, names, [&](std::size_t, const resp_value& said) {
            const bool is = said.what == resp_value::kind::number && said.number == 1;
            there += is;
            return is;
        });
        if (!done)
            queue_.count({.failures = 1});
        return there;
    }

private:
    template <class Take>
    [[nodiscard]] result<void> ask(std::string_view verb, std::size_t ahead, std::span<const sha256_digest> names,
                                   Take take) {
        try {
            return ask_redis(nodes_, {how_.timeout, how_.slowest}, ahead,
                             redis_commands{names.size(), [&](std::size_t i) { return prefix_ + to_string(names[i]); },
                                            [&](std::size_t, const std::string& key, redis_channel& to) {
                                                write_command(to.words(), {verb, key});
                                            },
                                            take});
        } catch (const std::bad_alloc&) {
            return error{error_code::out_of_memory, "redis", "redis: there is no memory for a reply"};
        }
    }

    const redis_connect_options how_;
    const std::string prefix_;
    redis_nodes nodes_;
    redis_queue queue_;
};

}}} // namespace kvcache::tier
