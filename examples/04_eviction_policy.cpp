// SPDX-License-Identifier: MIT
// Write your own eviction policy: an aggregate of options, a state of four functions. The laws say whether it keeps the
// contract, and then it is a policy like any other.
// test:
#include <kvcache/kvcache.hpp>
#include <kvcache/testing/eviction_laws.hpp>

#include <iostream>
#include <map>
#include <vector>

using namespace kvcache::literals;

/// The entry that was used least often leaves first; among equals the one with the smallest slot.
struct least_used {
    using role = kvcache::eviction_role;

    struct state {
        std::map<kvcache::slot_id, std::size_t> uses;

        void admit(kvcache::slot_id slot, const kvcache::entry&) { uses[slot] = 0; }
        void touch(kvcache::slot_id slot) { ++uses[slot]; }
        void erase(kvcache::slot_id slot) { uses.erase(slot); }
        template <class MayLeave>
        std::optional<kvcache::slot_id> victim(MayLeave&& may_leave) {
            std::optional<kvcache::slot_id> least;
            for (const auto& [slot, count] : uses)
                if (may_leave(slot) && (!least || count < uses[*least]))
                    least = slot;
            return least;
        }
    };
    [[nodiscard]] state open(kvcache::eviction_room) const { return {}; }
};
static_assert(kvcache::eviction_policy<least_used>);

int main() {
    const auto broken = kvcache::testing::eviction_laws(least_used{}, 1);
    for (const std::string& law : broken)
        std::cout << "broken: " << law << '\n';
    std::cout << (broken.empty() ? "every law of eviction holds\n" : "");

    // Room for four pages. One prompt is asked for again and again, others once.
    const kvcache::page_shape shape{.layers = 1, .kv_heads = 1, .head_dim = 16, .tokens = 16};
    auto cache = kvcache::make_cache(shape, {.bytes = 4 * 2 * 16 * 16 * 4}, least_used{});
    std::vector<kvcache::token_id> prompt(16);
    for (int round = 0; round < 20; ++round) {
        prompt[0] = kvcache::token_id{round % 2 == 0 ? 7 : 100 + round};
        auto known = cache.match(prompt);
        const std::size_t missing = prompt.size() - known.tokens();
        auto sequence = cache.open(std::move(known), {prompt.size() - missing, missing});
        auto lease = cache.reserve(sequence, missing);
        if (!lease)
            return 1;
        lease->commit(std::span(prompt).last(missing));
    }
    prompt[0] = kvcache::token_id{7};
    std::cout << "the popular prompt: " << cache.match(prompt).explain() << '\n' << cache.describe() << '\n';
    return broken.empty() && cache.match(prompt).tokens() == 16 && cache.check() ? 0 : 1;
}
