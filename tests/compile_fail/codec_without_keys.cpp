// SPDX-License-Identifier: MIT
// message: mine.*a codec's state needs: const float\* keys
// within: 5
#include <kvcache/cache.hpp>

struct mine {
    using role = kvcache::codec_role;
    struct state {
        std::size_t page_bytes() const { return 64; }
        std::string name() const { return "mine"; }
        void encode(std::span<std::byte>, kvcache::page_row, std::span<const float>, std::span<const float>) const {}
        void copy(std::span<const std::byte>, std::span<std::byte>, std::size_t) const {}
#ifndef KVCACHE_MUST_FAIL
        const float* keys(std::span<const std::byte>, kvcache::page_tile, std::span<float>) const {
            return nullptr;
        }
#endif
        const float* values(std::span<const std::byte>, kvcache::page_tile, std::span<float>) const {
            return nullptr;
        }
    };
    state open(kvcache::page_shape) const {
        return {};
    }
};
static_assert(!kvcache::cache<mine>::has_tier);
