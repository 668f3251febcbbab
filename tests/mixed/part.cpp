// SPDX-License-Identifier: MIT
// One object of a program whose objects are built differently: what a broken rule does in it, and how wide its vectors
// are. PART is part of the names of its two functions.
#include <kvcache/cache.hpp>
#include <kvcache/kernel/math.hpp>
#include <kvcache/kernel/simd.hpp>

#define JOINED(a, b) a##b
#define NAME(a, b) JOINED(a, b)

// Whether committing more tokens than were reserved is refused.
extern "C" bool NAME(PART, _checks)() {
    using namespace kvcache::literals;
    auto cache = kvcache::make_cache({{.layers = 1, .kv_heads = 1, .head_dim = 16, .tokens = 16}, {.bytes = 1_MiB}});
    auto sequence = cache.open();
    auto lease = cache.reserve(sequence, 1);
    try {
        kvcache::expects(!lease, "this rule is always broken");
    } catch (const kvcache::contract_violation&) {
        return true;
    }
    return false;
}

extern "C" std::size_t NAME(PART, _lanes)() {
    const kvcache::f32x16 two = kvcache::f32x16::broadcast(1.0f) + kvcache::f32x16::broadcast(1.0f);
    return kvcache::sum(two) == 32.0f ? sizeof two.part[0] / sizeof(float) : 0;
}
