// SPDX-License-Identifier: MIT
// limit: 2.5
#include <kvcache/cache.hpp>
#include <kvcache/eviction/lru.hpp>

// Opens a sequence, reserves, writes and commits its rows, and matches them again.
int main() {
    using namespace kvcache::literals;
    auto cache = kvcache::make_cache(
        {.shape = {.layers = 2, .kv_heads = 2, .head_dim = 32, .tokens = 16}, .limit = {.bytes = 1_MiB}},
        kvcache::eviction::lru{});
    const std::vector<kvcache::token_id> tokens(40, kvcache::token_id{7});
    const std::vector<float> row(64);
    for (std::size_t known = 0; known < tokens.size() - 1;) {
        auto request = cache.acquire(tokens);
        if (!request)
            return 1;
        known = request->lease.first();
        for (std::uint32_t layer = 0; layer < 2; ++layer)
            for (std::size_t i = 0; i < request->lease.rows(); ++i)
                request->lease.write(kvcache::layer_id{layer}, i, row, row);
        request->lease.commit(std::span(tokens).subspan(known));
    }
}
