// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/core/little_endian.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/session/sampler.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The state of an unfinished answer: its sampler and its position.
struct generation_state {
    sampler draw = {};
    std::uint64_t next = 0;             ///< The place in the answer of the token that is drawn next.
    std::vector<token_id> pending = {}; ///< Tokens that were drawn and have not run: the last one, or none.
};

/// Returns the serialized state, as a record stores it (docs/format.md).
KVCACHE_LAZY [[nodiscard]] inline std::vector<std::byte> bytes_of(const generation_state& state) {
    std::vector<std::byte> made(40 + 4 * state.pending.size());
    const std::span<std::byte> to = made;
    store_little(to, 0, std::bit_cast<std::uint32_t>(state.draw.temperature));
    store_little(to, 8, state.draw.seed);
    store_little(to, 16, state.draw.choice);
    store_little(to, 24, state.next);
    store_little<std::uint64_t>(to, 32, state.pending.size());
    for (std::size_t i = 0; i < state.pending.size(); ++i)
        store_little(to, 40 + 4 * i, static_cast<std::uint32_t>(index_of(state.pending[i])));
    return made;
}

/// Returns the state that bytes_of serialized. Errors: malformed.
KVCACHE_LAZY [[nodiscard]] inline result<generation_state> generation_state_of(std::span<const std::byte> bytes) {
    const error broken{error_code::malformed, "speaking", "speaking: it is not how an answer is said"};
    if (bytes.size() < 40 || (bytes.size() - 40) % 4 != 0 || load_little<std::uint32_t>(bytes, 4) != 0 ||
        load_little<std::uint64_t>(bytes, 32) != (bytes.size() - 40) / 4)
        return broken;
    generation_state made{.draw = {.temperature = std::bit_cast<float>(load_little<std::uint32_t>(bytes, 0)),
                                   .seed = load_little<std::uint64_t>(bytes, 8),
                                   .choice = load_little<std::uint64_t>(bytes, 16)},
                          .next = load_little<std::uint64_t>(bytes, 24)};
    for (std::size_t at = 40; at < bytes.size(); at += 4)
        made.pending.push_back(token_id{static_cast<std::int32_t>(load_little<std::uint32_t>(bytes, at))});
    return made;
}

}} // namespace kvcache
