// SPDX-License-Identifier: MIT
// Writing an eviction policy: an aggregate of options, and a state with four functions. The conformance tests check
// it; then it is used like any other policy.
// test:
#include <kvcache/kvcache.hpp>
#include <kvcache/testing/eviction_conformance.hpp>

#include <iostream>
#include <map>
#include <vector>

#include "support/guarded.hpp"

using namespace kvcache::literals;

/// Evicts the entry with the fewest uses, among equals the one with the smallest slot.
struct least_used {
    using role = kvcache::eviction_role;

    struct state {
        std::map<kvcache::slot_id, std::size_t> uses;

        void admit(kvcache::slot_id slot, const kvcache::eviction_entry&) { uses[slot] = 0; }
        void touch(kvcache::slot_id slot) { ++uses[slot]; }
        void erase(kvcache::slot_id slot) { uses.erase(slot); }
        template <class IsEvictable>
        std::optional<kvcache::slot_id> victim(IsEvictable&& is_evictable) {
            std::optional<kvcache::slot_id> least;
            for (const auto& [slot, count] : uses)
                if (is_evictable(slot) && (!least || count < uses[*least]))
                    least = slot;
            return least;
        }
    };
    [[nodiscard]] state open(kvcache::eviction_capacity) const { return {}; }
};
static_assert(kvcache::eviction_policy<least_used>);

namespace {

int program() {
    const auto broken = kvcache::testing::eviction_conformance(least_used{}, 1);
    for (const std::string& property : broken)
        std::cout << "broken: " << property << '\n';
    std::cout << (broken.empty() ? "all conformance tests pass\n" : "");

    // A cache of four pages. One prompt is repeated, the others occur once.
    const kvcache::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 16, .tokens = 16};
    auto cache = kvcache::make_cache({.shape = shape, .limit = {.bytes = 4 * 2 * 16 * 16 * 4}}, least_used{});
    std::vector<kvcache::token_id> prompt(16);
    for (int round = 0; round < 20; ++round) {
        prompt[0] = kvcache::token_id{round % 2 == 0 ? 7 : 100 + round};
        auto request = cache.acquire(prompt);
        if (!request)
            return 1;
        request->lease.declare_written(); // an eviction policy never looks at the rows
        request->lease.commit(std::span(prompt).subspan(request->lease.first()));
    }
    prompt[0] = kvcache::token_id{7};
    std::cout << "the popular prompt: " << cache.lookup(prompt).explain() << '\n' << kvcache::describe(cache) << '\n';
    return broken.empty() && cache.lookup(prompt).cached_tokens == 16 && cache.check() ? 0 : 1;
}

} // namespace

int main() {
    return support::guarded("04_eviction_policy", [&] { return program(); });
}
