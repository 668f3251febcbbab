// SPDX-License-Identifier: MIT
// Choosing policies: pass them by value, in any order; omitted ones have their defaults. They determine the type of
// the cache.
// test:
#include <kvcache/eviction/lru.hpp>
#include <kvcache/kvcache.hpp>
#include <kvcache/locking/mutex.hpp>

#include <iostream>
#include <memory_resource>
#include <type_traits>

#include "support/guarded.hpp"

using namespace kvcache::literals;

// The order does not matter: both are the same type.
static_assert(std::is_same_v<kvcache::cache<kvcache::eviction::lru, kvcache::observer::counting>,
                             kvcache::cache<kvcache::observer::counting, kvcache::eviction::lru>>);

namespace {

int program() {
    std::pmr::synchronized_pool_resource memory; // pages come from any memory resource

    auto cache = kvcache::make_cache(
        {.shape = {.layers = 4, .kv_heads = 2, .head_dim = 64, .tokens = 32}, .limit = {.bytes = 64_MiB}},
        kvcache::observer::counting{},               // observes events
        kvcache::storage::heap{.resource = &memory}, // allocates pages
        kvcache::locking::mutex{});                  // threads may share the cache

    // Without a model: reserve rows, write their keys and values, and commit them as tokens. They are cached
    // afterwards.
    const auto token = [](int id) { return kvcache::token_id{id}; };
    const kvcache::token_id first[] = {token(1), token(2), token(3), token(4)};
    const kvcache::token_id second[] = {token(1), token(2), token(9)};
    {
        auto sequence = cache.open();
        auto lease = cache.reserve(sequence, 4);
        if (!lease) {
            std::cerr << lease.error().message << '\n';
            return 1;
        }
        const std::vector<float> row(std::size_t{2} * 64, 0.5f); // (kv_heads, head_dim)
        for (std::uint32_t layer = 0; layer < 4; ++layer)
            for (std::size_t i = 0; i < lease->rows(); ++i)
                lease->write(kvcache::layer_id{layer}, i, row, row);
        lease->commit(first);
    }
    const auto request = cache.acquire(second); // shares the first two tokens
    if (!request)
        return 1;
    std::cout << request->found.explain() << '\n' << kvcache::describe(cache) << '\n';

    const kvcache::observer::event_counts counts = cache.with_observer([](const auto& all) { return all.counts(); });
    std::cout << counts.tokens_found << " of " << counts.tokens_looked_up << " tokens looked up were known\n";
    return counts.tokens_found == 2 && cache.check() ? 0 : 1;
}

} // namespace

int main() {
    return support::guarded("02_policies", [&] { return program(); });
}
