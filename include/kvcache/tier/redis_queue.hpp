// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/concept.hpp>
#include <kvcache/tier/record_eviction.hpp>
#include <kvcache/tier/redis_nodes.hpp>
#include <kvcache/tier/redis_session.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <span>
#include <string>
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
        std::size_t size = 0;
        for (const auto piece : pieces)
            size += piece.size();
        {
            const std::lock_guard guard(lock_);
            if (queued_bytes_ + size > how_.queue_bytes || size > access_.limits.bytes)
                return ++counts_.dropped, result<void>();
            queued_bytes_ += size;
        }
        try {
            job newcomer{name, {}, false};
            newcomer.record.reserve(size);
            for (const auto piece : pieces)
                newcomer.record.insert(newcomer.record.end(), piece.begin(), piece.end());
            return enqueue(std::move(newcomer));
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
    /// Returns whether a record was present within the last minute.
    [[nodiscard]] bool known(const sha256_digest& name) const {
        const std::lock_guard guard(lock_);
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
        if (std::ranges::none_of(jobs, &job::erases))
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

    std::thread writer_;
};

}}} // namespace kvcache::tier
