// SPDX-License-Identifier: MIT
#include <kvcache/model/expert_mlp.hpp>
#include <kvcache/testing/random_weights.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "session/promise_fixture.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

std::vector<kv::expert_share> chosen(const std::vector<float>& scores, std::size_t used, bool normalized) {
    std::vector<kv::expert_share> made(used);
    kv::choose_experts(scores, normalized, made);
    return made;
}

// By the definition, in double: sorted by score, then by number.
std::vector<std::pair<std::size_t, double>> expected(const std::vector<float>& scores, std::size_t used,
                                                     bool normalized) {
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    const double most = static_cast<double>(scores[order[0]]);
    const auto e = [&](std::size_t i) { return std::exp(static_cast<double>(scores[i]) - most); };
    double all = 0;
    for (std::size_t i = 0; i < (normalized ? used : scores.size()); ++i)
        all += e(order[i]);
    order.resize(used);
    std::sort(order.begin(), order.end());
    std::vector<std::pair<std::size_t, double>> made;
    for (const std::size_t i : order)
        made.emplace_back(i, e(i) / all);
    return made;
}

kv::model_config mixture() {
    kv::model_config made = small::config();
    made.architecture = "qwen3moe";
    made.experts = {.count = 6, .used = 2, .size = 40, .normalized = true};
    made.each_layer = {{.experts = true}, {.experts = true}};
    REQUIRE(made.check());
    return made;
}

} // namespace

TEST_CASE("experts with the highest scores are chosen, of equal ones the first") {
    for (const bool normalized : {true, false})
        for (std::size_t used = 1; used <= 4; ++used)
            for (std::uint32_t code = 0; code < 256; ++code) { // every four scores of four values
                std::vector<float> scores;
                for (std::uint32_t i = 0; i < 4; ++i)
                    scores.push_back(static_cast<float>(code >> (2 * i) & 3) * 1.5f - 2.0f);
                const auto got = chosen(scores, used, normalized);
                const auto want = expected(scores, used, normalized);
                for (std::size_t i = 0; i < used; ++i) {
                    REQUIRE(got[i].expert == want[i].first);
                    REQUIRE(std::abs(static_cast<double>(got[i].share) - want[i].second) < 1e-6);
                }
            }
    CHECK(chosen({1.0f, std::numeric_limits<float>::quiet_NaN(), -5.0f}, 2, true)[1].expert == 2);
}

TEST_CASE("a mixture of experts: a hit equals a miss, whatever rows share an expert") {
    const kv::transformer model = kv::make_random_model(mixture(), 11);
    const promise::tokens prompt = promise::some_tokens(model, 90, 1);
    const kv::matrix want = promise::cold(model, prompt);
    for (const std::size_t split : {1u, 7u, 64u})
        for (const std::size_t threads : {1u, 2u}) {
            CAPTURE(split, threads);
            promise::host here(model, 16, threads, split);
            (void)here.prefill({prompt.begin(), prompt.begin() + 50}, kv::logits_mode::last);
            const auto warm = here.prefill(prompt);
            CHECK(warm.reused == 50);
            CHECK(promise::same_bits(warm.logits, want));
        }
    promise::host here(model, 16, 2);
    std::vector<promise::cache::sequence> sequences;
    std::vector<kv::batch_entry<promise::cache>> batch;
    std::vector<promise::tokens> prompts;
    for (unsigned i = 0; i < 3; ++i) {
        sequences.push_back(here.store.open());
        prompts.push_back(promise::some_tokens(model, 20 + 11 * i, 30 + i));
    }
    for (std::size_t i = 0; i < prompts.size(); ++i)
        batch.push_back({&sequences[i], prompts[i], kv::logits_mode::all});
    kv::matrix all;
    REQUIRE(here.pipeline.extend(batch, all));
    Eigen::Index row = 0;
    for (const promise::tokens& one : prompts) {
        const auto rows = static_cast<Eigen::Index>(one.size());
        CHECK(promise::same_bits(all.middleRows(row, rows), promise::cold(model, one)));
        row += rows;
    }
}

TEST_CASE("rows that want no logits change those of the others by no bit") {
    for (const kv::model_config& config : {small::config(), mixture()}) {
        CAPTURE(config.architecture);
        const kv::transformer model = kv::make_random_model(config, 12);
        promise::host here(model, 16, 2);
        std::vector<promise::cache::sequence> sequences;
        std::vector<promise::tokens> prompts;
        std::vector<kv::batch_entry<promise::cache>> batch;
        for (unsigned i = 0; i < 4; ++i) {
            sequences.push_back(here.store.open());
            prompts.push_back(promise::some_tokens(model, 20 + 11 * i, 40 + i));
        }
        constexpr kv::logits_mode modes[] = {kv::logits_mode::none, kv::logits_mode::last, kv::logits_mode::all,
                                             kv::logits_mode::last};
        for (std::size_t i = 0; i < prompts.size(); ++i)
            batch.push_back({&sequences[i], prompts[i], modes[i]});
        kv::matrix some;
        REQUIRE(here.pipeline.extend(batch, some));
        const auto third = static_cast<Eigen::Index>(prompts[2].size());
        REQUIRE(some.rows() == third + 2);
        CHECK(promise::same_bits(some.topRows(1), promise::cold(model, prompts[1]).bottomRows(1)));
        CHECK(promise::same_bits(some.middleRows(1, third), promise::cold(model, prompts[2])));
        CHECK(promise::same_bits(some.bottomRows(1), promise::cold(model, prompts[3]).bottomRows(1)));
    }
}
