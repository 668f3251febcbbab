// SPDX-License-Identifier: MIT
#include <kvcache/cache/compose.hpp>
#include <kvcache/eviction/all.hpp>
#include <kvcache/locking/mutexed.hpp>
#include <kvcache/observer/counting.hpp>
#include <kvcache/storage/failing.hpp>

#include <type_traits>

#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace foreign {

/// Somebody else's watcher, which has never heard of roles.
struct watcher {
    struct state {
        int* events;
        void on(const kv::event&) { ++*events; }
    };
    int* events = nullptr;
    [[nodiscard]] state open() const { return {events}; }
};

struct oddity {
    using role = int;
};

} // namespace foreign

template <>
struct kvcache::role_of<foreign::watcher> {
    using type = kvcache::observer_role;
};

// The order of policies does not matter, nor does naming a standard one.
static_assert(std::is_same_v<kv::cache<kv::counting, kv::mutexed>, kv::cache<kv::mutexed, kv::counting>>);
static_assert(std::is_same_v<kv::cache<>, kv::cache<kv::reuse_forecast, kv::plain, kv::heap>>);
static_assert(!std::is_same_v<kv::cache<>, kv::cache<kv::counting>>);

static_assert(kv::policy<kv::lru> && kv::policy<foreign::watcher>);
static_assert(!kv::policy<int> && !kv::policy<foreign::oddity>);
static_assert(kv::one_policy_a_role<kv::lru, kv::plain> && !kv::one_policy_a_role<kv::silent, kv::counting>);

namespace {

/// Two programs that name their policies in different orders, and hand each other their cache.
struct host {
    static std::size_t pages(kv::cache<kv::counting, kv::failing<>>& cache) { return cache.stats().pages; }
};

} // namespace

TEST_CASE("a foreign class becomes a policy by its role") {
    int events = 0;
    auto cache = kv::make_cache({1, 1, 4, 16}, {1 << 16}, foreign::watcher{&events});
    (void)cache.match({});
    CHECK(events == 1);
}

TEST_CASE("policies are given by value in any order") {
    auto cache = kv::make_cache({1, 1, 4, 16}, {1 << 16}, kv::failing<>{.every = 1}, kv::counting{});
    CHECK(host::pages(cache) == (1 << 16) / cache.stats().page_bytes);
    auto a = cache.open();
    CHECK_FALSE(cache.reserve(a, 1)); // the options given are the options used
}
