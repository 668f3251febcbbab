// SPDX-License-Identifier: MIT
// A cache under the uses that the input spells, compared with a naive model of it.
#include <kvcache/testing/fault_injecting.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "cache/host_rows.hpp"
#include "cache/model.hpp"

namespace kv = kvcache;

namespace {

/// Choices from bytes; two bytes where a bound needs them.
class spelled {
public:
    explicit spelled(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

    std::size_t operator()(std::size_t bound) {
        if (bound == 0)
            return 0;
        std::size_t number = take();
        if (bound > 256)
            number = number << 8 | take();
        return number % bound;
    }
    [[nodiscard]] bool done() const { return bytes_.empty(); }

private:
    std::size_t take() {
        if (bytes_.empty())
            return 0;
        const std::size_t byte = bytes_.front();
        bytes_ = bytes_.subspan(1);
        return byte;
    }

    std::span<const std::uint8_t> bytes_;
};

template <class... Policies>
void play(spelled choices, kv::page_shape shape, std::size_t pages, bool fails, Policies... policies) {
    auto cache = kv::make_cache({shape, {pages * kv::codec::f32{}.open(shape).page_bytes()}}, policies...);
    kvcache_test::cache_model<decltype(cache), spelled> model(cache, choices, {.longest = 40, .storage_fails = fails});
    try {
        model.run(200);
    } catch (const kvcache_test::model_broken& broken) {
        std::fprintf(stderr, "%s\n", broken.what());
        std::abort();
    }
}

void play_external(spelled choices, kv::page_shape shape, std::size_t pages, bool merge) {
    kvcache_test::host_tensor host(pages);
    auto cache = kv::make_cache({.shape = shape, .limit = {.pages = pages}, .merge_equal_pages = merge}, host.blocks());
    kvcache_test::cache_model<decltype(cache), spelled, kvcache_test::host_rows> model(cache, choices, {.longest = 40},
                                                                                       {&host, merge});
    try {
        model.run(200);
    } catch (const kvcache_test::model_broken& broken) {
        std::fprintf(stderr, "in external memory: %s\n", broken.what());
        std::abort();
    }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    spelled choices({data, size});
    const kv::page_shape shape{1, 1, 1, choices(2) == 0 ? 16u : 32u};
    const std::size_t pages = 1 + choices(12), kind = choices(6);
    if (kind > 3)
        play_external(choices, {1, 1, 1, kvcache_test::host_tensor::page_tokens}, pages, kind == 5);
    else if (kind > 0)
        play(choices, shape, pages, true, kv::testing::fault_injecting_storage<>{.every = kind});
    else
        play(choices, shape, pages, false);
    return 0;
}
