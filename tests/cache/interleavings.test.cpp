// SPDX-License-Identifier: MIT
//
// Every interleaving of three threads with four operations each at a cache's lock: 34,650 orders a scenario. The
// threads are real; the lock schedules them. Each order must end as the same operations do when run sequentially in a
// cache without a lock.
#include <kvcache/index/hash_chain.hpp>
#include <kvcache/locking/concept.hpp>

#include <algorithm>
#include <array>
#include <mutex>
#include <optional>
#include <semaphore>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "cache/matching.hpp"
#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
using namespace kvcache_test;

namespace {

constexpr std::size_t threads = 3, operations = 4;

/// Whose turn it is, one lock after the other. Who comes to a lock wakes the next thread itself, and goes on where that
/// is the same thread: a third of the changes of thread that a scheduler in the middle makes.
class schedule {
public:
    /// Lets the threads run to their next locks in the order given, and returns when the last one has come there.
    void play(std::span<const std::size_t> order) {
        next_ = order.begin();
        end_ = order.end();
        go_[*next_++].release();
        done_.acquire();
    }
    void start(std::size_t thread) { go_[thread].acquire(); }
    void pause(std::size_t thread) {
        if (next_ != end_ && *next_ == thread) {
            ++next_;
            return;
        }
        (next_ == end_ ? done_ : go_[*next_++]).release();
        go_[thread].acquire();
    }
    /// Lets every thread go on.
    void end() {
        for (auto& go : go_)
            go.release();
    }

private:
    std::span<const std::size_t>::iterator next_, end_;
    std::array<std::binary_semaphore, threads> go_{std::binary_semaphore{0}, std::binary_semaphore{0},
                                                   std::binary_semaphore{0}};
    std::binary_semaphore done_{0};
};

/// A thread's place in a schedule.
struct turn {
    schedule* of = nullptr; // null: a thread that is not scheduled
    std::size_t thread = 0;
    void pause() const {
        if (of != nullptr)
            of->pause(thread);
    }
};
thread_local turn own_turn;

struct scheduled {
    using role = kv::locking_role;
    struct state {
        std::mutex inner;
        void lock() {
            own_turn.pause();
            inner.lock();
        }
        void unlock() { inner.unlock(); }
    };
};
static_assert(kv::locking_policy<scheduled>);

/// One thread's script: each letter is an operation that takes the lock once.
struct part {
    std::string operations; ///< open, match, sequence of the match, reserve, commit, fork, x: release, check
    std::vector<kv::token_id> prompt;
};

template <class Cache>
class actor {
public:
    actor(Cache& cache, const part& script) : cache_(cache), script_(script) {}

    void operate(std::size_t i) {
        switch (script_.operations[i]) {
        case 'o':
            sequence_.emplace(cache_.open());
            break;
        case 'm':
            match_.emplace(match_in(cache_, script_.prompt));
            log += std::to_string(match_->tokens()) + " known. ";
            break;
        case 's': {
            const auto plan = plan_of(cache_, *match_);
            for (std::size_t token = 0; token < plan.first; ++token)
                known_.push(script_.prompt[token]);
            sequence_.emplace(open_at(cache_, std::move(*match_), plan));
            match_.reset();
            break;
        }
        case 'r': {
            const auto rest = std::span<const kv::token_id>(script_.prompt).subspan(known_.size());
            auto lease = cache_.reserve(*sequence_, rest.size());
            log += lease ? "had. " : lease.error().message;
            if (!lease)
                break;
            lease_.emplace(std::move(*lease));
            ahead_ = known_;
            for (std::size_t row = 0; row < rest.size(); ++row) {
                ahead_.push(rest[row]);
                write_row(*lease_, cache_.shape(), row, ahead_.names.back());
            }
            break;
        }
        case 'c':
            if (!lease_) {
                log += std::to_string(cache_.stats().pages);
                break;
            }
            lease_->commit(std::span<const kv::token_id>(ahead_.tokens).subspan(known_.size()));
            lease_.reset();
            known_ = ahead_;
            break;
        case 'f':
            fork_.emplace(sequence_->fork(known_.size() / 2));
            break;
        case 'x':
            sequence_.reset();
            known_.resize(0);
            break;
        default:
            log += cache_.check() ? "sound. " : "broken. ";
        }
    }

    /// Returns whether the rows that are still referenced match their tokens.
    [[nodiscard]] bool sound() const {
        return (!sequence_ || rows_hold(cache_, sequence_->table(), known_.names)) &&
               (!fork_ || rows_hold(cache_, fork_->table(), known_.first(fork_->size()).names));
    }

    std::string log;

private:
    Cache& cache_;
    const part& script_;
    std::optional<pinned_match<Cache>> match_;
    std::optional<typename Cache::sequence> sequence_, fork_;
    std::optional<typename Cache::lease> lease_;
    past known_, ahead_;
};

constexpr kv::page_shape tiny{1, 1, 1, 16};

template <class... Policies>
auto cache_of(std::size_t page_count, Policies... policies) {
    return kv::make_cache({tiny, {page_count * kv::codec::f32{}.open(tiny).page_bytes()}}, policies...);
}

/// The outcome of an order: the results of each thread, the cache's occupancy and its content.
template <class Cache, class Actors>
std::string outcome(Cache& cache, const Actors& actors, const std::array<part, threads>& parts) {
    std::string all;
    for (const auto& one : actors)
        all += one.log + (one.sound() ? "\n" : "and other rows than its tokens say\n");
    const auto now = cache.stats();
    all +=
        std::to_string(now.free) + " free, " + std::to_string(now.in_use) + " held, " + std::to_string(now.evictable);
    for (const part& script : parts)
        all += ", " + cache.lookup(script.prompt).explain();
    return all + (cache.check() ? "" : ", and an invariant is broken");
}

/// Runs all orders. Returns their number, or throws for the first whose outcome differs from the sequential one.
template <class... Policies>
std::size_t play_all(const std::array<part, threads>& parts, std::size_t page_count, Policies... policies) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < threads; ++i)
        order.insert(order.end(), operations, i);

    auto threaded = [&] { return cache_of(page_count, scheduled{}, policies...); };
    using cache_type = decltype(threaded());
    schedule turns;
    std::vector<actor<cache_type>>* actors = nullptr;
    bool over = false;
    std::vector<std::thread> workers;
    for (std::size_t i = 0; i < threads; ++i)
        workers.emplace_back([&, i] {
            own_turn = {&turns, i};
            turns.start(i);
            while (!over) { // set by the main thread while this one waits
                for (std::size_t k = 0; k < operations; ++k)
                    (*actors)[i].operate(k);
                own_turn.pause();
            }
        });

    std::size_t orders = 0;
    std::string wrong;
    do {
        ++orders;
        auto cache = threaded();
        std::vector<actor<cache_type>> cast;
        for (const part& script : parts)
            cast.emplace_back(cache, script);
        actors = &cast;
        turns.play(std::array<std::size_t, threads>{0, 1, 2}); // to their first locks
        turns.play(order);
        const std::string got = outcome(cache, cast, parts);

        auto plain_cache = cache_of(page_count, policies...);
        std::vector<actor<decltype(plain_cache)>> alone;
        for (const part& script : parts)
            alone.emplace_back(plain_cache, script);
        std::array<std::size_t, threads> next = {};
        for (const std::size_t i : order)
            alone[i].operate(next[i]++);
        if (const std::string expected = outcome(plain_cache, alone, parts); got != expected)
            wrong = "order " + std::to_string(orders) + ":\n" + got + "\nand one after another:\n" + expected;
        for (std::size_t i = 0; i < threads; ++i) // as after the last step
            wrong += next[i] == operations ? "" : "an operation is missing";
    } while (wrong.empty() && std::next_permutation(order.begin(), order.end()));

    over = true;
    turns.end();
    for (std::thread& worker : workers)
        worker.join();
    if (!wrong.empty())
        throw std::runtime_error(wrong);
    return orders;
}

} // namespace

TEST_CASE("in every order three threads store, reuse and evict as if one after another") {
    const std::array<part, threads> parts{part{"orcx", counted(0, 40)}, part{"msrc", counted(0, 36)},
                                          part{"orcx", counted(100, 20)}};
    CHECK(play_all(parts, 4) == 34650);
}

TEST_CASE("in every order, equal pages are merged, forked and released") {
    const std::array<part, threads> parts{part{"orcx", counted(0, 32)}, part{"orcf", counted(0, 32)},
                                          part{"msxt", counted(0, 40)}};
    CHECK(play_all(parts, 5, kv::index::hash_chain{}) == 34650);
}
