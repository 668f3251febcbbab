// SPDX-License-Identifier: MIT
#include <kvcache/core/digest.hpp>
#include <kvcache/kernel/recurrence.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "numbers.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;

namespace {

double off(std::span<const float> made, std::span<const double> want) {
    double most = 0.0;
    for (std::size_t i = 0; i < want.size(); ++i)
        most = std::max(most, std::abs(static_cast<double>(made[i]) - want[i]) / std::max(1.0, std::abs(want[i])));
    return most;
}

} // namespace

TEST_CASE("a convolution over a few tokens is that of double precision, in one step or many, with a state between") {
    for (const std::size_t channels : {1u, 15u, 16u, 33u, 64u})
        for (const std::size_t taps : {1u, 2u, 3u, 4u, 7u}) {
            CAPTURE(channels, taps);
            constexpr std::size_t tokens = 11;
            const auto weights = numbers::uniforms(1, taps * channels), x = numbers::uniforms(2, tokens * channels);
            const auto bias = numbers::uniforms(3, taps % 2 == 0 ? channels : 0);
            std::vector<float> state((taps - 1) * channels, 0.0F);
            for (std::size_t t = 0; t < tokens; ++t) {
                std::vector<float> out(x.begin() + static_cast<std::ptrdiff_t>(t * channels),
                                       x.begin() + static_cast<std::ptrdiff_t>((t + 1) * channels));
                kv::causal_convolution(weights, bias, state, out, out);
                std::vector<double> want(channels, 0.0);
                for (std::size_t c = 0; c < bias.size(); ++c)
                    want[c] = static_cast<double>(bias[c]);
                for (std::size_t j = 0; j < taps; ++j)
                    for (std::size_t c = 0; t + j + 1 >= taps && c < channels; ++c)
                        want[c] += static_cast<double>(weights[j * channels + c]) *
                                   static_cast<double>(x[(t + j + 1 - taps) * channels + c]);
                CHECK(off(out, want) < 1e-6);
            }
        }
}

TEST_CASE("the gated delta rule is that of double precision, and forgets and overwrites") {
    for (const std::size_t values : {1u, 16u, 24u, 64u, 72u, 128u, 200u})
        for (const std::size_t keys : {1u, 8u, 33u}) {
            CAPTURE(values, keys);
            std::vector<float> state(keys * values, 0.0F);
            std::vector<double> exact(keys * values, 0.0);
            for (unsigned t = 0; t < 20; ++t) {
                auto q = numbers::uniforms(10 + t, keys), k = numbers::uniforms(40 + t, keys),
                     v = numbers::uniforms(70 + t, values);
                kv::l2_norm(k, 1e-6F, 1.0F, k);
                const float decay = t == 13 ? 0.0F : 0.9F, beta = t == 7 ? 1.0F : 0.4F;
                std::vector<double> want(values, 0.0);
                for (std::size_t c = 0; c < values; ++c) {
                    double known = 0.0;
                    for (std::size_t r = 0; r < keys; ++r) {
                        exact[r * values + c] *= static_cast<double>(decay);
                        known += exact[r * values + c] * static_cast<double>(k[r]);
                    }
                    const double change = (static_cast<double>(v[c]) - known) * static_cast<double>(beta);
                    for (std::size_t r = 0; r < keys; ++r) {
                        exact[r * values + c] += change * static_cast<double>(k[r]);
                        want[c] += exact[r * values + c] * static_cast<double>(q[r]);
                    }
                }
                kv::gated_delta_step(state, q, k, v, {decay, beta}, v);
                CHECK(off(v, want) < 1e-5);
                CHECK(off(state, exact) < 1e-5);
            }
        }
}

TEST_CASE("a selective state space is that of double precision") {
    for (const std::size_t values : {1u, 16u, 36u, 64u})
        for (const std::size_t keys : {1u, 12u, 128u}) {
            CAPTURE(values, keys);
            std::vector<float> state(keys * values, 0.0F);
            std::vector<double> exact(keys * values, 0.0);
            for (unsigned t = 0; t < 20; ++t) {
                auto q = numbers::uniforms(10 + t, keys), k = numbers::uniforms(40 + t, keys),
                     x = numbers::uniforms(70 + t, values);
                const kv::selective_step by{t == 13 ? 0.0F : 0.9F, 0.1F * static_cast<float>(t), 0.7F};
                std::vector<double> want(values, 0.0);
                for (std::size_t c = 0; c < values; ++c) {
                    want[c] = static_cast<double>(by.skip) * static_cast<double>(x[c]);
                    for (std::size_t r = 0; r < keys; ++r) {
                        double& one = exact[r * values + c];
                        one = one * static_cast<double>(by.decay) +
                              static_cast<double>(by.time) * static_cast<double>(k[r]) * static_cast<double>(x[c]);
                        want[c] += one * static_cast<double>(q[r]);
                    }
                }
                kv::selective_state_step(state, q, k, x, by, x);
                CHECK(off(x, want) < 1e-5);
                CHECK(off(state, exact) < 1e-5);
            }
        }
}

TEST_CASE("lengths, gates and softplus are those of double precision") {
    auto x = numbers::uniforms(3, 37);
    double squares = 0.0;
    for (const float one : x)
        squares += static_cast<double>(one) * static_cast<double>(one);
    std::vector<float> unit(x.size()), gated = x, product(x.size());
    kv::l2_norm(x, 1e-6F, 0.25F, unit);
    kv::gate_by_sigmoid(unit, gated);
    kv::multiply(x, unit, product);
    auto curved = x;
    kv::silu(curved);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const auto one = static_cast<double>(x[i]);
        CHECK(unit[i] == Approx(0.25 * one / std::sqrt(squares + 1e-6)).margin(1e-6));
        CHECK(gated[i] == Approx(one / (1.0 + std::exp(-static_cast<double>(unit[i])))).margin(1e-6));
        CHECK(product[i] == x[i] * unit[i]);
        CHECK(curved[i] == Approx(one / (1.0 + std::exp(-one))).margin(1e-6));
    }
    for (const double at : {-60.0, -20.0, -3.0, -0.1, 0.0, 0.5, 4.0, 19.9, 20.1, 50.0}) {
        CHECK(kv::softplus(static_cast<float>(at)) == Approx(std::log1p(std::exp(at))).epsilon(1e-6).margin(1e-9));
        CHECK(kv::sigmoid(static_cast<float>(at)) == Approx(1.0 / (1.0 + std::exp(-at))).epsilon(1e-6).margin(1e-30));
    }
}
