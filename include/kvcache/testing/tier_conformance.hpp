// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/platform/standard.hpp>
#include <kvcache/core/sha256_builder.hpp>
#include <kvcache/testing/violations.hpp>
#include <kvcache/tier/concept.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace testing {

namespace detail {

/// Returns a generated record, the same for every call with this number.
[[nodiscard]] inline std::vector<std::byte> tier_record(std::uint64_t number) {
    choices choose(number);
    std::vector<std::byte> made(1 + choose.below(9000));
    ranges::generate(made, [&] { return static_cast<std::byte>(choose.bits()); });
    return made;
}

[[nodiscard]] inline tier_entry tier_name(std::uint64_t number) {
    return {.name = sha256_builder().number(number).finish(),
            .cost = 1e-3 * static_cast<double>(number % 7),
            .depth = static_cast<std::uint32_t>(number % 50)};
}

/// Puts a record in three pieces, one of them empty.
template <class State>
[[nodiscard]] bool put_record(State& state, std::uint64_t number) {
    const auto record = tier_record(number);
    const std::span<const std::byte> all(record);
    const std::span<const std::byte> pieces[] = {all.first(all.size() / 3), {}, all.subspan(all.size() / 3)};
    return state.put(tier_name(number), pieces).has_value();
}

enum class tier_answer { miss, right, wrong, failed };

template <class State>
[[nodiscard]] tier_answer read_record(State& state, std::uint64_t number) {
    bool right = false, called = false;
    const auto found = state.read(tier_name(number).name, [&](std::span<const std::byte> bytes) {
        called = true;
        right = ranges::equal(bytes, tier_record(number));
    });
    if (!found)
        return tier_answer::failed;
    return *found != called ? tier_answer::wrong
           : !called        ? tier_answer::miss
                            : (right ? tier_answer::right : tier_answer::wrong);
}

} // namespace detail

/// Tests the required properties of a tier without injected faults: a read returns what was written, or nothing. The
/// tier may have room for few records, or for none. It is opened once, and is empty at first.
template <tier_policy Policy>
[[nodiscard]] violations tier_conformance(const Policy& policy, std::uint64_t seed) {
    using detail::check_property, detail::tier_answer;
    violations broken;
    detail::choices choose(seed);
    auto born = policy.open();
    check_property(broken, born.status().has_value(), "a tier that could open says so");
    auto state = std::move(born);
    std::map<std::uint64_t, bool> put; // the record may be present
    std::uint64_t reads = 0;
    for (std::size_t round = 0; round < 60; ++round) {
        const std::uint64_t number = choose.below(20);
        const std::uint64_t what = choose.below(4);
        if (what < 2) {
            check_property(broken, detail::put_record(state, number), "what is handed over is taken");
            put[number] = true;
        } else if (what == 2) {
            check_property(broken, state.erase(detail::tier_name(number).name).has_value(),
                           "a record that is not there can be erased");
            check_property(broken, state.flush().has_value(), "a flush ends");
            check_property(broken, detail::read_record(state, number) == tier_answer::miss,
                           "an erased record is a miss");
            check_property(broken, !state.contains(detail::tier_name(number).name),
                           "an erased record is not said to be there");
            ++reads;
            put[number] = false;
        } else {
            const auto answer = detail::read_record(state, number);
            ++reads;
            check_property(broken, answer != tier_answer::wrong && answer != tier_answer::failed,
                           "what is read is what was written");
            check_property(broken, answer != tier_answer::right || put[number], "nothing is read that was not written");
        }
    }
    check_property(broken, state.flush().has_value(), "a flush ends");
    for (std::uint64_t number = 0; number < 20; ++number) {
        const bool there = state.contains(detail::tier_name(number).name);
        const auto answer = detail::read_record(state, number);
        ++reads;
        check_property(broken, there == (answer == tier_answer::right), "what is said to be there can be read");
    }
    const tier_counts now = state.counts();
    check_property(broken, now.failures == 0 && now.hits + now.misses == reads * (now.hits + now.misses > 0),
                   "every read is a hit or a miss");
    check_property(broken, now.written >= now.records && now.written - now.records >= now.evicted,
                   "records that are there were written");

    // Several threads read and write the same names.
    std::vector<std::thread> threads;
    std::vector<std::uint64_t> wrong(4, 0);
    for (std::size_t t = 0; t < wrong.size(); ++t)
        threads.emplace_back([&, t] {
            detail::choices own(seed + t);
            for (std::size_t i = 0; i < 40; ++i) {
                const std::uint64_t number = own.below(20);
                if (own.below(2) == 0)
                    wrong[t] += !detail::put_record(state, number);
                else
                    wrong[t] += detail::read_record(state, number) == tier_answer::wrong;
            }
        });
    for (std::thread& thread : threads)
        thread.join();
    check_property(broken, ranges::all_of(wrong, [](std::uint64_t n) { return n == 0; }), "threads may share a tier");
    return broken;
}

}}} // namespace kvcache::testing
