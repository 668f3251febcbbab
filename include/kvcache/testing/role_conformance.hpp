// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/memory.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/hash/concept.hpp>
#include <kvcache/locking/concept.hpp>
#include <kvcache/recompute/concept.hpp>
#include <kvcache/storage/concept.hpp>
#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace testing {

/// Returns, for each field of an identity, its name and an identity that differs from the default in that field only.
[[nodiscard]] inline std::vector<std::pair<std::string, identity>> changed_identities() {
    return {{"weights", {.weights = {1, 0}}},
            {"adapter", {.adapter = "a"}},
            {"tokenizer", {.tokenizer = {1, 0}}},
            {"config", {.config = "a"}},
            {"rope", {.rope = "a"}},
            {"codec", {.codec = "a"}},
            {"layout", {.layout = "a"}},
            {"page_tokens", {.page_tokens = 16}},
            {"weight_format", {.weight_format = "a"}},
            {"numeric_contract", {.numeric_contract = numeric_contract_revision + 1}},
            {"backend", {.backend = "a"}},
            {"lineage", {.lineage = "a"}},
            {"format", {.format = record_format_revision + 1}},
            {"tenant", {.tenant = "a"}}};
}

/// Tests the required properties of a hash: distinct names for all runs of up to seven tokens from an alphabet of
/// three.
template <hash_policy Policy>
[[nodiscard]] violations hash_conformance(const Policy& policy, std::uint64_t seed) {
    violations broken;
    std::set<digest> names;
    std::set<std::uint64_t> low_halves;
    const auto fresh = [&](digest name) { return names.insert(name).second && low_halves.insert(name.low).second; };

    std::size_t fields = 0;
    for_each_field(identity{}, [&](const char*, const auto&) { ++fields; });
    const auto changed = changed_identities();
    detail::check_property(broken, fields == changed.size(), "changed_identities() changes every field");
    (void)fresh(policy.open({}).root());
    for (const auto& [field, id] : changed)
        detail::check_property(broken, fresh(policy.open(id).root()),
                               "the root depends on every field of the identity");

    const auto state = policy.open({}), twin = policy.open({});
    detail::check_property(broken, state.root() == twin.root(), "equal identities have one root");
    std::vector<std::vector<token_id>> runs = {{}};
    for (std::size_t i = 0; i < runs.size(); ++i) {
        const std::vector<token_id> run = runs[i];
        if (!run.empty()) {
            const digest name = state.chain(state.root(), run);
            detail::check_property(broken, name == twin.chain(twin.root(), run), "equal runs have one name");
            detail::check_property(broken, fresh(name), "every token, its place and their number matter");
        }
        if (run.size() < 7)
            for (const std::int32_t token : {0, 1, -1}) {
                runs.push_back(run);
                runs.back().push_back(token_id{token});
            }
    }

    detail::choices choose(seed);
    digest before = state.root();
    for (std::size_t link = 0; link < 500; ++link) {
        std::vector<token_id> run(1 + choose.below(80));
        ranges::generate(run, [&] { return token_id{static_cast<std::int32_t>(choose.below(50000))}; });
        const digest next = state.chain(before, run);
        detail::check_property(broken, fresh(next), "a long chain never comes back");
        detail::check_property(broken,
                               state.chain({before.low ^ 1, before.high}, run) != next &&
                                   state.chain({before.low, before.high ^ 1}, run) != next,
                               "what comes before a run matters");
        before = next;
    }
    return broken;
}

/// Tests the required properties of a locking policy that provides mutual exclusion.
template <locking_policy Policy>
[[nodiscard]] violations locking_conformance(const Policy&, std::size_t threads) {
    violations broken;
    typename Policy::state lock;
    constexpr std::size_t rounds = 2000;
    std::size_t inside = 0, most = 0, sum = 0;
    std::vector<std::thread> workers;
    for (std::size_t i = 0; i < threads; ++i)
        workers.emplace_back([&] {
            for (std::size_t round = 0; round < rounds; ++round) {
                const std::lock_guard guard(lock);
                most = ++inside > most ? inside : most;
                ++sum;
                --inside;
            }
        });
    for (std::thread& worker : workers)
        worker.join();
    detail::check_property(broken, most <= 1, "one thread is inside at a time");
    detail::check_property(broken, sum == threads * rounds, "what one thread has done the next one sees");
    return broken;
}

/// Tests the required properties of a recompute policy over every hit of every short prompt, and of some long ones.
template <recompute_policy Policy>
[[nodiscard]] violations recompute_conformance(const Policy& policy, std::uint64_t seed) {
    violations broken;
    detail::choices choose(seed);
    for (const std::uint32_t tokens : {16u, 64u}) {
        const auto state = policy.open({.tokens = tokens});
        const auto tried = [&](std::size_t hit, std::size_t total) {
            const std::size_t first = state.first_computed(hit, total);
            detail::check_property(broken, first <= hit, "no token after the hit is reused");
            detail::check_property(broken, total == 0 || first < total, "at least one token runs");
            detail::check_property(broken, first == state.first_computed(hit, total), "the same hit has the same plan");
        };
        for (std::size_t total = 0; total <= 200; ++total)
            for (std::size_t hit = 0; hit <= total; ++hit)
                tried(hit, total);
        for (std::size_t rounds = 1000; rounds > 0; --rounds) {
            const std::size_t total = choose.below(1'000'000);
            tried(choose.below(total + 1), total);
        }
    }
    return broken;
}

/// Tests the required properties of a storage. A storage may refuse any page.
template <storage_policy Policy>
[[nodiscard]] violations storage_conformance(const Policy& policy, std::uint64_t seed) {
    violations broken;
    detail::choices choose(seed);
    for (const std::size_t page_bytes : {64u, 100u, 4096u, 20480u}) {
        constexpr std::uint32_t pages = 9;
        auto born = policy.open(pages, page_bytes);
        std::vector<std::byte> mark(pages);
        std::vector<bool> usable(pages, false);
        const auto whole = [&](const auto& state, std::uint32_t i) {
            return ranges::all_of(state.bytes(page_id{i}), [&](std::byte b) { return b == mark[i]; });
        };
        const auto fill = [&](const auto& state, std::uint32_t i) {
            mark[i] = static_cast<std::byte>(choose.bits());
            ranges::fill(state.bytes(page_id{i}), mark[i]);
        };
        const auto all_whole = [&](const auto& state) {
            for (std::uint32_t i = 0; i < pages; ++i)
                if (usable[i] && !whole(state, i))
                    return false;
            return true;
        };
        for (std::uint32_t i = 0; i < pages; ++i)
            if (usable[i] = born.acquire(page_id{i}); usable[i]) {
                const std::span<std::byte> bytes = born.bytes(page_id{i});
                detail::check_property(broken, bytes.data() != nullptr && bytes.size() == page_bytes,
                                       "an acquired page has its bytes");
                detail::check_property(broken, reinterpret_cast<std::uintptr_t>(bytes.data()) % line_bytes == 0,
                                       "a page begins on a cache line");
                if (bytes.data() == nullptr || bytes.size() != page_bytes)
                    return broken;
                fill(born, i);
            }
        detail::check_property(broken, all_whole(born), "pages do not overlap");

        auto moved = std::move(born);
        detail::check_property(broken, all_whole(moved), "bytes stay when the storage moves");
        for (std::size_t rounds = 200; rounds > 0; --rounds) {
            const auto i = static_cast<std::uint32_t>(choose.below(pages));
            if (usable[i])
                moved.release(page_id{i});
            usable[i] = !usable[i] && moved.acquire(page_id{i});
            if (usable[i])
                fill(moved, i);
            detail::check_property(broken, all_whole(moved), "bytes stay while other pages come and go");
        }
    }
    return broken;
}

}}} // namespace kvcache::testing
