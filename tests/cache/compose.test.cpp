// SPDX-License-Identifier: MIT
#include <kvcache/cache/compose.hpp>
#include <kvcache/eviction/all.hpp>
#include <kvcache/locking/mutex.hpp>
#include <kvcache/observer/counting.hpp>
#include <kvcache/testing/fault_injecting.hpp>

#include <type_traits>

#include "cache/matching.hpp"
#include "cache/model.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace foreign {

/// A third-party observer that declares no role.
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

// The order of policies does not matter, and naming a standard one changes nothing.
static_assert(std::is_same_v<kv::cache<kv::observer::counting, kv::locking::mutex>,
                             kv::cache<kv::locking::mutex, kv::observer::counting>>);
static_assert(std::is_same_v<kv::cache<>, kv::cache<kv::eviction::learned_reuse, kv::codec::f32, kv::storage::heap>>);
static_assert(!std::is_same_v<kv::cache<>, kv::cache<kv::observer::counting>>);

static_assert(kv::policy<kv::eviction::lru> && kv::policy<foreign::watcher>);
static_assert(!kv::policy<int> && !kv::policy<foreign::oddity>);
static_assert(kv::one_policy_a_role<kv::eviction::lru, kv::codec::f32> &&
              !kv::one_policy_a_role<kv::observer::none, kv::observer::counting>);

namespace {

/// Two programs that name their policies in different orders, and pass each other their cache.
struct host {
    static std::size_t pages(kv::cache<kv::observer::counting, kv::testing::fault_injecting_storage<>>& cache) {
        return cache.stats().pages;
    }
};

} // namespace

TEST_CASE("a foreign class becomes a policy by its role") {
    int events = 0;
    auto cache = kv::make_cache({{1, 1, 4, 16}, {1 << 16}}, foreign::watcher{&events});
    (void)cache.acquire({});
    CHECK(events == 1);
}

TEST_CASE("policies are given by value in any order") {
    auto cache = kv::make_cache({{1, 1, 4, 16}, {1 << 16}}, kv::testing::fault_injecting_storage<>{.every = 1},
                                kv::observer::counting{});
    CHECK(host::pages(cache) == (1 << 16) / cache.stats().page_bytes);
    auto a = cache.open();
    CHECK_FALSE(cache.reserve(a, 1)); // the given options are used
}
