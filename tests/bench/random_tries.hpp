// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/testing/violations.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "../../bench/replay/workload.hpp"

namespace replay_tests {

/// Prompts that share prefixes: walks from the root of a small trie.
inline std::vector<bench::prefix_request> random_requests(std::uint64_t seed, std::size_t count, std::size_t longest) {
    kvcache::testing::detail::choices choose(seed);
    std::vector<bench::prefix_request> requests;
    for (std::size_t i = 0; i < count; ++i) {
        bench::prefix_request request{.seconds = static_cast<double>(i), .block_tokens = 4};
        std::uint64_t parent = 0;
        for (std::size_t blocks = choose.below(longest + 1); blocks > 0; --blocks)
            request.blocks.push_back(parent = bench::chained_block(parent, choose.below(2)));
        const std::size_t missing = request.blocks.empty() ? 0 : choose.below(4); // tokens missing in the last block
        request.input_tokens = request.blocks.size() * 4 - missing;
        requests.push_back(request);
    }
    return requests;
}

/// Returns, per request, the time of the next use of each block.
inline std::vector<std::vector<std::uint32_t>> next_of(const std::vector<bench::prefix_request>& requests) {
    std::vector<std::vector<std::uint32_t>> all;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        all.emplace_back();
        for (const std::uint64_t block : requests[i].blocks) {
            std::uint32_t next = bench::next_uses::never;
            for (std::size_t later = requests.size(); later-- > i + 1;)
                if (std::ranges::find(requests[later].blocks, block) != requests[later].blocks.end())
                    next = static_cast<std::uint32_t>(later);
            all.back().push_back(next);
        }
    }
    return all;
}

} // namespace replay_tests
