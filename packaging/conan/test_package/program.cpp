// SPDX-License-Identifier: MIT
#include <kvcache/cache.hpp>

#include <iostream>
#include <vector>

// Stores a prompt and finds it again.
int main() {
    auto cache = kvcache::make_cache(
        {.shape = {.layers = 1, .kv_heads = 1, .head_dim = 8, .tokens = 16}, .limit = {.pages = 8}});
    const std::vector<kvcache::token_id> prompt(32, kvcache::token_id{7});
    {
        auto request = cache.acquire(prompt);
        if (!request)
            return 1;
        request->lease.declare_written();
        request->lease.commit(prompt);
    }
    std::cout << cache.lookup(prompt).cached_tokens << " of 32 tokens are cached\n";
    return cache.contains(prompt) ? 0 : 1;
}
