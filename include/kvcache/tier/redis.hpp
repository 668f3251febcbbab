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

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// Records on a Redis or Valkey server, or on a Redis Cluster reached through one of its servers. All hosts with the
/// same record names share them, one value per record. Reads are pipelined; writes wait in a queue for a background
/// thread. A server that misses a deadline is disconnected for all callers and reconnected in the background; until
/// then each call is an immediate miss. The server decides how much is kept and what is evicted.
struct redis {
    using role = tier_role;
    std::string host = "127.0.0.1"; ///< A name, or an address, which needs no resolver.
    std::uint16_t port = 6379;
    std::string user = {};           ///< User of the password; empty: the default user.
    std::string password = {};       ///< Empty: no authentication.
    redis_security security = {};    ///< TLS.
    std::string prefix = "kvcache:"; ///< Prefix of every key; the record's name in hexadecimal follows.
    std::chrono::milliseconds ttl = std::chrono::hours(24); ///< Time to live after a record is written; 0: no limit.
    std::chrono::milliseconds connect_timeout = std::chrono::milliseconds(500); ///< Never delays a request.
    std::chrono::milliseconds timeout = std::chrono::milliseconds(100);         ///< Longest wait of one call,
    std::size_t slowest = std::size_t{10} << 20; ///< extended by the transfer time at this many bytes per second.
    std::chrono::milliseconds retry = std::chrono::milliseconds(100);   ///< First pause before a reconnect;
    std::chrono::milliseconds longest_retry = std::chrono::seconds(10); ///< it doubles up to this value.
    std::size_t links = 3;                                              ///< Connections to each server.
    std::size_t value_bytes = std::size_t{64} << 20;                    ///< Maximum bytes of a record.
    std::size_t queue_bytes = std::size_t{256} << 20; ///< Limit of the write queue; more records are dropped.
    class state;
    [[nodiscard]] state open() const;
};

class redis::state {
public:
    explicit state(const redis& how)
        : client_(std::make_unique<redis_client>(redis_connect_options{{how.host, how.port},
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
                                                 redis_write_options{how.prefix, how.ttl, how.queue_bytes})) {}

    template <class Use>
    [[nodiscard]] result<bool> read(const sha256_digest& name, Use&& use) {
        const auto found = read_run(std::span(&name, 1), [&](std::size_t, std::span<const std::byte> bytes) {
            use(bytes);
            return true;
        });
        if (!found)
            return found.error();
        return *found == 1;
    }
    /// Reads records in order until one is absent or `use(index, bytes)` returns false. Returns the number of records
    /// passed to `use`. Errors: io, malformed, out_of_memory, if no record was passed.
    template <class Use>
    [[nodiscard]] result<std::size_t> read_run(std::span<const sha256_digest> names, Use&& use) {
        return client_->read_run(names, use);
    }
    /// Returns the number of leading records that are present now.
    [[nodiscard]] std::size_t count_prefix_hits(std::span<const sha256_digest> names) {
        return client_->count_prefix_hits(names);
    }
    [[nodiscard]] result<void> put(const tier_entry& entry, std::span<const std::span<const std::byte>> pieces) {
        return client_->queue().put(entry.name, pieces);
    }
    /// Returns whether a record was present when last seen. Sends no request.
    [[nodiscard]] bool contains(const sha256_digest& name) { return client_->queue().known(name); }
    [[nodiscard]] result<void> erase(const sha256_digest& name) { return client_->queue().erase(name); }
    [[nodiscard]] result<void> flush() { return client_->queue().flush(); }
    [[nodiscard]] result<void> status() const { return client_->nodes().status(); }
    /// Records and bytes are 0, because other hosts share the server.
    [[nodiscard]] tier_counts counts() const { return client_->queue().counts(); }

    /// Returns the number of connected servers; attempts() the number of connection attempts.
    [[nodiscard]] std::size_t connected() const { return client_->nodes().connected(); }
    [[nodiscard]] std::uint64_t attempts() const { return client_->nodes().attempts(); }

private:
    std::unique_ptr<redis_client> client_;
};

inline redis::state redis::open() const {
    return state(*this);
}

static_assert(tier_policy<redis>);

}}} // namespace kvcache::tier
