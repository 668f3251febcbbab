// SPDX-License-Identifier: MIT
// Choosing policies: by value, in any order; what is left out keeps its standard. The type of the cache is read off
// them. test:
#include <kvcache/kvcache.hpp>

#include <iostream>
#include <memory_resource>
#include <type_traits>

using namespace kvcache::literals;

// The order does not matter: these are one type.
static_assert(
    std::is_same_v<kvcache::cache<kvcache::lru, kvcache::counting>, kvcache::cache<kvcache::counting, kvcache::lru>>);

int main() {
    std::pmr::synchronized_pool_resource memory; // pages come from wherever you keep memory

    auto cache = kvcache::make_cache({.layers = 4, .kv_heads = 2, .head_dim = 64, .tokens = 32}, {.bytes = 64_MiB},
                                     kvcache::counting{},                // who watches
                                     kvcache::heap{.resource = &memory}, // where pages live
                                     kvcache::mutexed{});                // threads may share it

    // Without a model: reserve rows, (write them,) commit them as tokens. Then they are known.
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
        lease->commit(first);
    }
    std::cout << cache.match(second).explain() << '\n' << cache.describe() << '\n';

    const kvcache::event_counts& counts = cache.observer().counts();
    std::cout << counts.tokens_found << " of " << counts.tokens_looked_up << " tokens looked up were known\n";
    return counts.tokens_found == 2 && cache.check() ? 0 : 1;
}
