// SPDX-License-Identifier: MIT
// limit: 3
#include <kvcache/cache.hpp>

// Opens a sequence, reserves, writes and commits its rows, and matches them again.
int main() {
    using namespace kvcache::literals;
    auto cache = kvcache::make_cache({.layers = 2, .kv_heads = 2, .head_dim = 32, .tokens = 16}, {.bytes = 1_MiB});
    const std::vector<kvcache::token_id> tokens(40, kvcache::token_id{7});
    const std::vector<float> row(64);
    for (std::size_t known = 0; known < tokens.size() - 1;) {
        auto found = cache.match(tokens);
        known = found.tokens();
        const kvcache::compute_range plan = cache.plan(found);
        auto sequence = cache.open(std::move(found), plan);
        auto lease = cache.reserve(sequence, plan.count);
        if (!lease)
            return 1;
        for (std::uint32_t layer = 0; layer < 2; ++layer)
            for (std::size_t i = 0; i < plan.count; ++i)
                lease->write(kvcache::layer_id{layer}, i, row, row);
        lease->commit(std::span(tokens).last(plan.count));
    }
}
