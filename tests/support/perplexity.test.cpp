// SPDX-License-Identifier: MIT
// Windows of a text, and the perplexity of the small model's predictions against a sum in extended precision.
#include "../../examples/support/perplexity.hpp"

#include <kvcache/model/load.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <random>
#include <span>
#include <vector>

#include "support/folders.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;

const kv::transformer& model() {
    static const kv::transformer made = [] {
        auto loaded = kv::load_model(test_folders::project() / "examples" / "models" / "worlds-2m");
        REQUIRE(loaded.has_value());
        return std::move(loaded->model);
    }();
    return made;
}

tokens some_text(std::size_t size) {
    std::mt19937 random(7);
    tokens made(size);
    for (auto& token : made)
        token = kv::token_id{static_cast<std::int32_t>(random() % 1000)};
    return made;
}

// Minus the logarithm of the probability of `next` after a text, from a prefill of the text alone.
long double surprise(const auto& codec, std::span<const kv::token_id> past, kv::token_id next) {
    const auto shape = model().shape(16);
    kv::thread_pool threads(1);
    auto store = kv::make_cache({.shape = shape, .limit = {.bytes = 64u << 20}}, codec);
    kv::pipeline<decltype(store), kv::transformer> pipeline(store, model(), threads);
    const auto ran = pipeline.prefill(past);
    REQUIRE(ran.has_value());
    long double most = -INFINITY, sum = 0.0L;
    for (Eigen::Index i = 0; i < ran->logits.cols(); ++i)
        most = std::max<long double>(most, ran->logits(0, i));
    for (Eigen::Index i = 0; i < ran->logits.cols(); ++i)
        sum += std::exp(static_cast<long double>(ran->logits(0, i)) - most);
    return std::log(sum) + most - static_cast<long double>(ran->logits(0, kv::index_of(next)));
}

template <class Codec>
void compare(const Codec& codec, std::size_t size, std::size_t window, std::size_t stride) {
    CAPTURE(size, window, stride);
    const tokens text = some_text(size);
    kv::thread_pool threads(1);
    std::vector<std::size_t> told;
    const auto made = support::perplexity_of(model(), threads, codec, text, {window, stride, 16, 10},
                                             [&](std::size_t done, std::size_t) { told.push_back(done); });
    REQUIRE(made.has_value());
    // Each token is predicted by the window in which it first appears, unless it is the first there.
    long double with = 0.0L, exact = 0.0L;
    std::size_t count = 0, windows = 0;
    for (std::size_t first = 0, known = 0; known < size; first += stride) {
        const std::size_t last = std::min(first + window, size), before = count;
        for (std::size_t t = std::max(known, first + 1); t < last; ++t, ++count) {
            const auto past = std::span(text).subspan(first, t - first);
            with += surprise(codec, past, text[t]);
            exact += surprise(kv::codec::f32{}, past, text[t]);
        }
        windows += count > before;
        known = last;
    }
    CHECK(made->predicted == count);
    CHECK(made->windows == windows);
    CHECK(told.back() == windows);
    CHECK(made->with.perplexity == Approx(static_cast<double>(std::exp(with / count))).epsilon(1e-12));
    CHECK(made->exact == Approx(static_cast<double>(std::exp(exact / count))).epsilon(1e-12));
    CHECK(made->with.divergence >= 0.0);
}

} // namespace

TEST_CASE("each token of a text is predicted once, in the first window that holds it") {
    for (std::size_t size = 0; size < 40; ++size)
        for (std::size_t window = 2; window < 12; ++window)
            for (std::size_t stride = 1; stride <= window; ++stride) {
                CAPTURE(size, window, stride);
                std::vector<int> times(size, 0);
                std::size_t longest = 0;
                for (const auto& at : support::windows_of(size, window, stride)) {
                    CHECK((at.first < at.scored && at.scored < at.last && at.last <= size));
                    CHECK(at.first % stride == 0);
                    longest = std::max(longest, at.last - at.first);
                    for (std::size_t t = at.scored; t < at.last; ++t)
                        ++times[t];
                }
                CHECK(longest <= window);
                for (std::size_t t = 0; t < size; ++t)
                    CHECK(times[t] == (stride == window ? t % window != 0 : t != 0));
            }
}

TEST_CASE("perplexity is that of the logits of each prefix, summed in extended precision") {
    compare(kv::codec::f32{}, 50, 64, 64);
    compare(kv::codec::f32{}, 75, 33, 33);
    compare(kv::any_kv_codec{*kv::any_side_codec<>::named("int4"), *kv::any_side_codec<>::named("codebook_2")}, 75, 40,
            25);
}

TEST_CASE("a text without a prediction has no perplexity") {
    kv::thread_pool threads(1);
    for (const std::size_t size : {0u, 1u})
        CHECK(support::perplexity_of(model(), threads, kv::codec::f32{}, some_text(size), {}, [](auto, auto) {})
                  .error()
                  .field == "text");
}
