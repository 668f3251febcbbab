// SPDX-License-Identifier: MIT
//
// Whether a lock for readers and writers, or one for each part of the cache, would let threads do more than one mutex
// does: measures each time that a host's calls hold the lock, then simulates threads with these times (lab/locking.md).

#include <kvcache/cache.hpp>
#include <kvcache/codec/f32.hpp>
#include <kvcache/codec/float16.hpp>
#include <kvcache/eviction/lru.hpp>
#include <kvcache/locking/mutex.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <numeric>
#include <shared_mutex>
#include <span>
#include <stdexcept>
#include <thread>
#include <vector>

#include "../examples/support/guarded.hpp"
#include "locking/lock_simulation.hpp"
#include "locking/recorder.hpp"
#include "support/machine.hpp"
#include <CLI/CLI.hpp>

namespace {

using tokens = std::vector<kvcache::token_id>;

// A page has 2 MiB, as one of Llama 3.1 8B in BF16: the copy of a page in which a prompt differs is made under the
// lock. f32 writes rows; bf16 encodes whole pages, and so keeps rows in full precision aside.
constexpr kvcache::page_shape rows_shape{.layers = 16, .kv_heads = 8, .head_dim = 128, .tokens = 16};
constexpr kvcache::page_shape pages_shape{.layers = 32, .kv_heads = 8, .head_dim = 128, .tokens = 16};
constexpr std::size_t pages = 1024, page_bytes = std::size_t{2} << 20;

// Chats with one system prompt, eight at a time in turn. Each turn asks with all that was said before.
constexpr std::size_t chats = 24, at_a_time = 8, turns = 10, system_tokens = 1024, asked = 64, answered = 64;

// The first `length` tokens of a chat.
tokens said(std::size_t chat, std::size_t length) {
    tokens made(length);
    for (std::size_t i = 0; i < length; ++i)
        made[i] = kvcache::token_id{static_cast<std::int32_t>(i < system_tokens ? i : (chat + 1) * 100'000 + i)};
    return made;
}

struct request {
    tokens all; // the prompt and the answer
    std::size_t prompt = 0;
};

std::vector<request> workload() {
    std::vector<request> made;
    for (std::size_t first = 0; first < chats; first += at_a_time)
        for (std::size_t turn = 0; turn < turns; ++turn)
            for (std::size_t chat = first; chat < first + at_a_time; ++chat) {
                const std::size_t prompt = system_tokens + turn * (asked + answered) + asked;
                made.push_back({said(chat, prompt + answered), prompt});
            }
    return made;
}

// What a host does for a request. `call(what, rows)` is called before each call of the cache, with the rows that the
// model computes before it.
template <class Cache, class Call>
void serve(Cache& cache, const request& one, Call&& call) {
    const std::span<const kvcache::token_id> all = one.all, prompt = all.first(one.prompt);
    call(bench::cache_call::match, 0);
    auto found = cache.core().find(0, prompt, false).sequence;
    call(bench::cache_call::open, 0);
    found.truncate(std::min(found.size(), prompt.size() - 1));
    auto sequence = std::move(found);
    for (std::size_t at = sequence.size(); at < all.size();) {
        const std::size_t rows = at < one.prompt ? one.prompt - at : 1;
        call(bench::cache_call::reserve, 0);
        auto lease = cache.reserve(sequence, rows);
        if (!lease)
            throw std::runtime_error(lease.error().message);
        lease->declare_written(); // the rows do not matter here
        call(bench::cache_call::commit, rows);
        lease->commit(all.subspan(at, rows));
        at += rows;
    }
    call(bench::cache_call::release, 0);
}

// A step of the model: reading the weights costs as much as a hundred rows.
double step_seconds(double decode, std::size_t rows) {
    return rows == 0 ? 0.0 : decode * (1.0 + static_cast<double>(rows) / 100.0);
}

// Page memory that the system has given already, so that no page fault is counted.
class warm_memory {
public:
    warm_memory() : bytes_(pages * page_bytes + (std::size_t{64} << 20)) {}
    [[nodiscard]] kvcache::storage::heap storage() {
        resource_.release();
        return {.resource = &resource_, .zeroed = true};
    }

private:
    std::vector<std::byte> bytes_;
    std::pmr::monotonic_buffer_resource resource_{bytes_.data(), bytes_.size(), std::pmr::null_memory_resource()};
};

using sections = std::vector<std::vector<bench::lock_section>>; // by request

template <class Codec>
sections record(const kvcache::page_shape& shape, const std::vector<request>& requests, warm_memory& memory) {
    auto cache = kvcache::make_cache({.shape = shape, .limit = {pages * page_bytes}}, Codec{}, kvcache::eviction::lru{},
                                     memory.storage(), bench::recorded_radix{}, bench::recorded_mutex{});
    sections made;
    for (const request& one : requests) {
        bench::lock_recorder recorder;
        serve(cache, one, [&](bench::cache_call what, std::size_t rows) { recorder.begin(what, rows); });
        made.push_back(recorder.take());
    }
    return made;
}

double median(std::vector<double> of) {
    std::ranges::sort(of);
    return of[of.size() / 2];
}

// The median of each time over several runs, which all do the same.
template <class Codec>
sections record_often(const kvcache::page_shape& shape, const std::vector<request>& requests, std::size_t runs) {
    warm_memory memory;
    std::vector<sections> all;
    for (std::size_t i = 0; i < runs; ++i)
        all.push_back(record<Codec>(shape, requests, memory));
    sections made = all.front();
    for (std::size_t r = 0; r < made.size(); ++r)
        for (std::size_t s = 0; s < made[r].size(); ++s)
            for (double bench::lock_section::*time :
                 {&bench::lock_section::before, &bench::lock_section::inside, &bench::lock_section::search}) {
                std::vector<double> each;
                for (const sections& one : all)
                    each.push_back(one.at(r).at(s).*time);
                made[r][s].*time = median(each);
            }
    return made;
}

void print_sections(const sections& measured) {
    std::printf(
        "| call | times a request | median, ns | 99 %% below, ns | us a request |\n|---|---:|---:|---:|---:|\n");
    const double requests = static_cast<double>(measured.size());
    double under = 0.0, outside = 0.0, searched = 0.0;
    for (std::size_t call = 0; call < std::size(bench::cache_call_names); ++call) {
        std::vector<double> times;
        for (const auto& one : measured)
            for (const bench::lock_section& section : one)
                if (section.call == static_cast<bench::cache_call>(call)) {
                    times.push_back(section.inside);
                    outside += section.before;
                    searched += section.search;
                }
        std::ranges::sort(times);
        const double sum = std::accumulate(times.begin(), times.end(), 0.0);
        under += sum;
        std::printf("| %s | %.1f | %.0f | %.0f | %.2f |\n", bench::cache_call_names[call],
                    static_cast<double>(times.size()) / requests, times[times.size() / 2] * 1e9,
                    times[times.size() * 99 / 100] * 1e9, sum * 1e6 / requests);
    }
    std::printf(
        "\nA request takes %.1f us under the lock, %.2f us of them a search of the index alone, and %.1f us in the "
        "host's code around it.\n\n",
        under * 1e6 / requests, searched * 1e6 / requests, outside * 1e6 / requests);
}

// Seconds to take and to give back a lock that no other thread wants.
template <class Take>
double lock_cost(Take&& take) {
    constexpr std::size_t times = 1'000'000;
    std::vector<double> all;
    for (int run = 0; run < 5; ++run) {
        const bench::stopwatch watch;
        for (std::size_t i = 0; i < times; ++i)
            take();
        all.push_back(watch.seconds() / times);
    }
    return median(all);
}

enum class scheme { none, mutex, readers_and_writers, eight_mutexes };

std::vector<std::vector<bench::simulated_step>> steps_of(const sections& measured, double decode, scheme of,
                                                         double shared_cost) {
    std::vector<std::vector<bench::simulated_step>> all;
    for (const auto& one : measured) {
        auto& steps = all.emplace_back();
        for (const bench::lock_section& section : one) {
            double before = section.before + step_seconds(decode, section.rows), inside = section.inside;
            if (of == scheme::readers_and_writers) {
                if (section.search > 0.0) {
                    steps.push_back({before, section.search + shared_cost, true});
                    before = 0.0;
                    inside -= section.search;
                }
                inside += shared_cost;
            }
            if (of == scheme::none)
                steps.push_back({before + inside, 0.0, false});
            else
                steps.push_back({before, inside, false});
        }
    }
    return all;
}

void simulate(const sections& measured, double shared_cost) {
    std::printf(
        "| decode step | threads | one mutex | readers and writers | eight mutexes |\n|---|---:|---:|---:|---:|\n");
    for (const double decode : {0.0, 1e-6, 1e-5, 1e-4, 1e-3})
        for (const std::size_t threads : {2u, 4u, 8u}) {
            const auto seconds = [&](scheme of) {
                return bench::simulate_locks(steps_of(measured, decode, of, shared_cost), threads,
                                             of == scheme::eight_mutexes ? 8 : 1);
            };
            const double bound = seconds(scheme::none);
            std::printf("| %g us | %zu | %.3f | %.3f | %.3f |\n", decode * 1e6, threads, bound / seconds(scheme::mutex),
                        bound / seconds(scheme::readers_and_writers), bound / seconds(scheme::eight_mutexes));
        }
}

// Requests a second of real threads, with a wait that keeps the core busy in place of the model. The threads share the
// caches, one for each of `memories`.
double served(const std::vector<request>& requests, std::span<warm_memory> memories, double decode,
              std::size_t threads) {
    using cache = kvcache::cache<kvcache::eviction::lru, kvcache::locking::mutex>;
    std::vector<std::unique_ptr<cache>> caches;
    for (warm_memory& memory : memories)
        caches.emplace_back(
            new cache(kvcache::make_cache({.shape = rows_shape, .limit = {pages * page_bytes}},
                                          kvcache::eviction::lru{}, memory.storage(), kvcache::locking::mutex{})));
    const auto work = [&](std::size_t first) {
        for (std::size_t i = first; i < requests.size(); i += threads)
            serve(*caches[first % caches.size()], requests[i], [&](bench::cache_call, std::size_t rows) {
                const double wanted = step_seconds(decode, rows);
                for (const bench::stopwatch watch; watch.seconds() < wanted;) {
                }
            });
    };
    const bench::stopwatch watch;
    {
        std::vector<std::jthread> others;
        for (std::size_t thread = 1; thread < threads; ++thread)
            others.emplace_back(work, thread);
        work(0);
    }
    return static_cast<double>(requests.size()) / watch.seconds();
}

// Two real threads, as a check of the simulation. With a cache each they share no lock: what they then do more than one
// thread is what the machine gives.
void compare_threads(const std::vector<request>& requests, const sections& measured) {
    std::array<warm_memory, 2> memories;
    std::printf("\n| decode step | two threads over one, a cache each (range) | one cache (range) | simulated |\n"
                "|---|---:|---:|---:|\n");
    for (const double decode : {1e-6, 1e-5, 1e-4}) {
        std::vector<double> apart, together;
        for (int round = 0; round < 7; ++round) {
            const double alone = served(requests, std::span(memories).first(1), decode, 1);
            apart.push_back(served(requests, memories, decode, 2) / alone);
            together.push_back(served(requests, std::span(memories).first(1), decode, 2) / alone);
        }
        const auto [least, most] = std::ranges::minmax(apart);
        const auto [low, high] = std::ranges::minmax(together);
        const auto steps = steps_of(measured, decode, scheme::mutex, 0.0);
        std::printf("| %g us | %.2f (%.2f to %.2f) | %.2f (%.2f to %.2f) | %.2f |\n", decode * 1e6, median(apart),
                    least, most, median(together), low, high,
                    bench::simulate_locks(steps, 1, 1) / bench::simulate_locks(steps, 2, 1));
    }
}

int program(int count, char** words) {
    std::size_t runs = 5;
    bool check = false;
    CLI::App app{"Measures how long calls hold the lock of a cache, and simulates threads under other locks."};
    app.add_option("--runs", runs, "Runs of the workload, of which each time is the median")
        ->check(CLI::PositiveNumber);
    app.add_flag("--threads", check, "Also compare the simulation with two threads of this machine");
    CLI11_PARSE(app, count, words);

    const std::vector<request> requests = workload();
    std::mutex one;
    std::shared_mutex other;
    const double mutex_cost = lock_cost([&] { const std::lock_guard guard(one); });
    const double shared_cost = lock_cost([&] { const std::shared_lock guard(other); });
    std::printf("A lock and an unlock: std::mutex %.1f ns, std::shared_mutex %.1f ns.\n", mutex_cost * 1e9,
                shared_cost * 1e9);
    const double more = std::max(shared_cost - mutex_cost, 0.0);

    std::printf("\nA codec that writes rows (f32):\n\n");
    const sections by_row = record_often<kvcache::codec::f32>(rows_shape, requests, runs);
    print_sections(by_row);
    simulate(by_row, more);
    std::printf("\nA codec that encodes whole pages (bf16):\n\n");
    const sections by_page = record_often<kvcache::codec::bf16>(pages_shape, requests, runs);
    print_sections(by_page);
    simulate(by_page, more);
    if (check)
        compare_threads(requests, by_row);
    return 0;
}

} // namespace

int main(int count, char** words) {
    return support::guarded("locks", [&] { return program(count, words); });
}
