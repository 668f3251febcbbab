// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/platform/standard.hpp>
#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/record_eviction.hpp>
#include <kvcache/tier/redis_nodes.hpp>
#include <kvcache/tier/run.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// Options for writing records to Redis servers.
struct redis_write_options {
    std::string prefix = {};
    std::chrono::milliseconds ttl = {};
    std::size_t queue_bytes = 0;
};

/// The write queue of Redis servers, its writer thread, and the records known to be there.
class redis_queue {
public:
    redis_queue(redis_nodes& nodes, const redis_connect_options& access, redis_write_options how)
        : nodes_(nodes), access_(access), how_(std::move(how)), ttl_(std::to_string(how_.ttl.count())), writer_([this] {
              run();
          }) {}
    ~redis_queue() {
        {
            const std::lock_guard guard(lock_);
            stop_ = true;
        }
        wake_.notify_all();
        writer_.join(); // writes the queue first; records for a server that is not connected are dropped
    }

    redis_queue(const redis_queue&) = delete;
    redis_queue& operator=(const redis_queue&) = delete;

    /// Queues a record. A record that finds no room is dropped. Errors: out_of_memory.
    [[nodiscard]] result<void> put(const sha256_digest& name, std::span<const std::span<const std::byte>> pieces) {
        const std::size_t size = total_bytes(pieces);
        {
            const std::lock_guard guard(lock_);
            if (queued_bytes_ + size > how_.queue_bytes || size > access_.limits.bytes)
                return ++counts_.dropped, result<void>();
            queued_bytes_ += size;
        }
        try {
            return enqueue({name, joined(pieces), false});
        } catch (const std::bad_alloc&) {
            const std::lock_guard guard(lock_);
            queued_bytes_ -= size;
            return ++counts_.failures, error{error_code::out_of_memory, "redis", "there is no memory for a record"};
        }
    }
    [[nodiscard]] result<void> erase(const sha256_digest& name) {
        remember(name, false); // the record may be put again at once
        return enqueue({name, {}, true});
    }

    /// Waits until the queue is empty. Errors: the last one since the previous flush.
    [[nodiscard]] result<void> flush() {
        std::unique_lock guard(lock_);
        idle_.wait(guard, [this] { return queue_.empty() && !busy_; });
        return std::exchange(last_, {});
    }

    /// Forgets records that are absent, so that they are stored again when they are handed over.
    void forget(std::span<const sha256_digest> names) {
        const std::lock_guard guard(lock_);
        for (const sha256_digest& name : names)
            known_.erase(name);
    }
    /// Notes that a record is present or absent.
    void remember(const sha256_digest& name, bool there) {
        const std::lock_guard guard(lock_);
        if (!there)
            known_.erase(name);
        else if (known_.size() < most_heard || known_.contains(name))
            known_[name] = redis_deadline::clock::now();
        else
            known_.clear();
    }
    /// Returns whether a record was present within the last minute, and no server was lost since.
    [[nodiscard]] bool known(const sha256_digest& name) {
        const std::uint64_t losses = nodes_.losses();
        const std::lock_guard guard(lock_);
        if (std::exchange(losses_, losses) != losses)
            known_.clear();
        const auto found = known_.find(name);
        return found != known_.end() && redis_deadline::clock::now() - found->second < std::chrono::minutes(1);
    }

    void count(const tier_counts& more) {
        const std::lock_guard guard(lock_);
        counts_.hits += more.hits;
        counts_.misses += more.misses;
        counts_.failures += more.failures;
    }
    [[nodiscard]] tier_counts counts() const {
        const std::lock_guard guard(lock_);
        return counts_;
    }

private:
    struct job {
        sha256_digest name = {};
        std::vector<std::byte> record = {};
        bool erases = false;
    };

    [[nodiscard]] result<void> enqueue(job one) {
        {
            const std::lock_guard guard(lock_);
            queue_.push_back(std::move(one));
        }
        wake_.notify_all();
        return {};
    }

    void run() {
        std::unique_lock guard(lock_);
        for (;;) {
            wake_.wait(guard, [this] { return stop_ || !queue_.empty(); });
            if (queue_.empty())
                return;
            std::vector<job> jobs = std::exchange(queue_, {});
            busy_ = true;
            guard.unlock();
            write(jobs);
            guard.lock();
            busy_ = false;
            for (const job& one : jobs)
                queued_bytes_ -= one.record.size();
            idle_.notify_all();
        }
    }

    // Writes a batch in order. Jobs that fail are dropped.
    void write(std::span<const job> jobs) {
        std::vector<bool> there(jobs.size(), false); // present already: its time to live is renewed, and it is not sent
        if (ranges::none_of(jobs, &job::erases))
            static_cast<void>(perform(
                jobs, 256,
                [&](const job&, const std::string& key, redis_channel& to) {
                    if (how_.ttl.count() > 0)
                        write_command(to.words(), {"PEXPIRE", key, ttl_});
                    else
                        write_command(to.words(), {"EXISTS", key});
                },
                [&](std::size_t i, const resp_value& said) {
                    there[i] = said.what == resp_value::kind::number && said.number == 1;
                }));
        for (std::size_t i = 0; i < jobs.size();) {
            if (there[i]) {
                handle_reply(jobs[i], true, &tier_counts::dropped);
                ++i;
                continue;
            }
            std::size_t end = i;
            while (end < jobs.size() && !there[end] && end - i < 16)
                ++end;
            const auto done = perform(
                jobs.subspan(i, end - i), 16,
                [&](const job& one, const std::string& key, redis_channel& to) { write_job(one, key, to); },
                [&](std::size_t, const resp_value& said) { handle_reply(jobs[i++], said); });
            if (!done) {
                const std::lock_guard guard(lock_);
                ++counts_.failures;
                ++counts_.dropped;
                last_ = done;
                ++i;
            }
        }
    }

    template <class Write, class Take>
    [[nodiscard]] result<void> perform(std::span<const job> jobs, std::size_t ahead, Write write, Take take) {
        try {
            return ask_redis(nodes_, {access_.timeout, access_.slowest}, ahead,
                             redis_commands{jobs.size(),
                                            [&](std::size_t i) { return how_.prefix + to_string(jobs[i].name); },
                                            [&](std::size_t i, const std::string& key, redis_channel& to) {
                                                write(jobs[i], key, to);
                                            },
                                            [&](std::size_t i, const resp_value& said) {
                                                take(i, said);
                                                return true;
                                            }});
        } catch (const std::bad_alloc&) {
            return error{error_code::out_of_memory, "redis", "redis: there is no memory for a command"};
        }
    }

    void write_job(const job& one, const std::string& key, redis_channel& to) const {
        if (one.erases)
            return write_command(to.words(), {"DEL", key});
        const bool ends = how_.ttl.count() > 0;
        begin_command(to.words(), ends ? 5 : 3);
        write_arguments(to.words(), {"SET", key});
        begin_argument(to.words(), one.record.size());
        to.append(one.record);
        to.words() += "\r\n";
        if (ends)
            write_arguments(to.words(), {"PX", ttl_});
    }

    // Handles the reply to a job.
    void handle_reply(const job& one, const resp_value& said) {
        if (said.what == resp_value::kind::error) {
            handle_reply(one, false, &tier_counts::failures);
            const std::lock_guard guard(lock_);
            counts_.dropped += !one.erases;
            last_ = error{error_code::io, "redis", "redis: the server says: " + std::string(said.words)};
        } else if (one.erases) {
            remember(one.name, false);
        } else {
            handle_reply(one, true, &tier_counts::written);
            const std::lock_guard guard(lock_);
            counts_.bytes_written += one.record.size();
        }
    }
    void handle_reply(const job& one, bool there, std::uint64_t tier_counts::*count) {
        remember(one.name, there);
        const std::lock_guard guard(lock_);
        ++(counts_.*count);
    }

    static constexpr std::size_t most_heard = std::size_t{1} << 16;

    redis_nodes& nodes_;
    const redis_connect_options access_;
    const redis_write_options how_;
    const std::string ttl_;

    mutable std::mutex lock_; // guards the members below
    std::condition_variable wake_, idle_;
    std::vector<job> queue_;
    std::size_t queued_bytes_ = 0;
    bool stop_ = false, busy_ = false;
    result<void> last_;
    tier_counts counts_;
    std::unordered_map<sha256_digest, redis_deadline::clock::time_point, name_hash> known_;
    std::uint64_t losses_ = 0; // of servers, when known_ was read last

    std::thread writer_;
};

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
            if (is)
                queue_.remember(names[i], true);
            else
                queue_.forget(names.subspan(i, foreign ? 1 : names.size() - i));
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
        ask_exists(names, [&](std::size_t i, bool is) {
            there += is;
            if (!is) // those after it are probably gone too; the writer does not send what is present
                queue_.forget(names.subspan(i));
            return is;
        });
        return there;
    }
    [[nodiscard]] std::vector<bool> present(std::span<const sha256_digest> names) {
        std::vector<bool> there(names.size());
        ask_exists(names, [&](std::size_t i, bool is) {
            there[i] = is;
            if (!is)
                queue_.forget(names.subspan(i, 1));
            return true;
        });
        return there;
    }

private:
    // Calls `take(index, whether it is there)` for each name, until it returns false.
    template <class Take>
    void ask_exists(std::span<const sha256_digest> names, Take take) {
        const auto done = ask("EXISTS", 256, names, [&](std::size_t i, const resp_value& said) {
            return take(i, said.what == resp_value::kind::number && said.number == 1);
        });
        if (!done)
            queue_.count({.failures = 1});
    }

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

    class state {
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
            return tier::read_one(*this, name, use);
        }
        /// Reads records in order until one is absent or `use(index, bytes)` returns false. Returns the number of
        /// records passed to `use`. Errors: io, malformed, out_of_memory, if no record was passed.
        template <class Use>
        [[nodiscard]] result<std::size_t> read_run(std::span<const sha256_digest> names, Use&& use) {
            return client_->read_run(names, use);
        }
        /// Returns the number of leading records that are present now.
        [[nodiscard]] std::size_t count_prefix_hits(std::span<const sha256_digest> names) {
            return client_->count_prefix_hits(names);
        }
        [[nodiscard]] std::vector<bool> present(std::span<const sha256_digest> names) {
            return client_->present(names);
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

    [[nodiscard]] state open() const { return state(*this); }
};

static_assert(tier_policy<redis>);

}}} // namespace kvcache::tier
