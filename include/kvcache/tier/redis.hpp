// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/redis_client.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace kvcache::inline KVCACHE_ABI {

/// Records on a Redis or Valkey server, or on a Redis Cluster of which one server is named: shared by all hosts that
/// have the same names, one value a record. Reads go out together and come back in turn; writes wait in a queue for a
/// thread of their own. A server that does not answer in time is out for everybody, and connected anew off the
/// requests: while it is, each call is a miss that waits for nothing. How much is kept, and what leaves, is the
/// server's business.
struct redis {
    using role = tier_role;
    std::string host = "127.0.0.1"; ///< A name, or an address, for which no resolver is waited for.
    std::uint16_t port = 6379;
    std::string user = {};           ///< Of the password; empty: the default user.
    std::string password = {};       ///< Empty: none is said.
    redis_security security = {};    ///< TLS.
    std::string prefix = "kvcache:"; ///< Of every key; the name of the record follows in hexadecimal letters.
    std::chrono::milliseconds ttl = std::chrono::hours(24); ///< How long a record is kept after it was written; 0: as
                                                            ///< long as there is room.
    std::chrono::milliseconds connect_timeout = std::chrono::milliseconds(500); ///< Of which requests see nothing.
    std::chrono::milliseconds timeout = std::chrono::milliseconds(100);         ///< Longest wait of one call,
    std::size_t slowest = std::size_t{10} << 20; ///< beside what its bytes take at so many a second.
    std::chrono::milliseconds retry = std::chrono::milliseconds(100);   ///< First pause before connecting anew,
    std::chrono::milliseconds longest_retry = std::chrono::seconds(10); ///< and the last: each is twice the one before.
    std::size_t links = 3;                                              ///< Connections to each server.
    std::size_t value_bytes = std::size_t{64} << 20;                    ///< Of one record; more is not believed.
    std::size_t queue_bytes = std::size_t{256} << 20; ///< Records that wait to be written; more are dropped.
    class state;
    [[nodiscard]] state open() const;
};

class redis::state {
public:
    explicit state(const redis& how)
        : client_(std::make_unique<redis_client>(redis_access{{how.host, how.port},
                                                              how.user,
                                                              how.password,
                                                              how.security,
                                                              how.connect_timeout,
                                                              how.timeout,
                                                              how.retry,
                                                              how.longest_retry,
                                                              how.slowest,
                                                              how.links,
                                                              {.bytes = how.value_bytes}},
                                                 redis_keeping{how.prefix, how.ttl, how.queue_bytes})) {}

    template <class Use>
    [[nodiscard]] result<bool> read(const digest256& name, Use&& use) {
        const auto found = read_run(std::span(&name, 1), [&](std::size_t, std::span<const std::byte> bytes) {
            use(bytes);
            return true;
        });
        if (!found)
            return found.error();
        return *found == 1;
    }
    /// Reads records in turn, as long as they are there and `use(index, bytes)` wants more. Returns how many it was
    /// given. Errors: io, malformed, out_of_memory, if it was given none.
    template <class Use>
    [[nodiscard]] result<std::size_t> read_run(std::span<const digest256> names, Use&& use) {
        return client_->read_run(names, use);
    }
    /// How many leading records are there now.
    [[nodiscard]] std::size_t leading(std::span<const digest256> names) { return client_->leading(names); }
    [[nodiscard]] result<void> put(const tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
        return client_->queue().put(entry.name, pieces);
    }
    /// Whether a record was there when it was last heard of. No server is asked.
    [[nodiscard]] bool contains(const digest256& name) { return client_->queue().heard_of(name); }
    [[nodiscard]] result<void> erase(const digest256& name) { return client_->queue().erase(name); }
    [[nodiscard]] result<void> flush() { return client_->queue().flush(); }
    [[nodiscard]] result<void> status() const { return client_->nodes().status(); }
    /// Records and bytes are 0: what a server has is not this host's alone.
    [[nodiscard]] tier_counts counts() const { return client_->queue().counts(); }

    /// How many servers are connected now, and how many times one was tried.
    [[nodiscard]] std::size_t connected() const { return client_->nodes().connected(); }
    [[nodiscard]] std::uint64_t attempts() const { return client_->nodes().attempts(); }

private:
    std::unique_ptr<redis_client> client_;
};

inline redis::state redis::open() const {
    return state(*this);
}

static_assert(tier_policy<redis>);

} // namespace kvcache
