// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/model/config.hpp>
#include <kvcache/model/tensor_view.hpp>
#include <kvcache/model/transformer.hpp>
#include <kvcache/model/weight_names.hpp>
#include <kvcache/model/weights.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Seeded weights in memory for any configuration: a model for tests, without a checkpoint. A weight is an integer
/// hash of (seed, name, index) times a power of two, so it has the same bits with every compiler and on every
/// machine. The standard deviation of a matrix is near 1 / sqrt(inputs), so that of logits and scores is near 1;
/// norms are near 1.
class random_weights {
public:
    /// Generates every weight that `config` requires. Requires: config.check() succeeds, and `format` is f32 or bf16.
    /// Cost: about 2 ns per weight; all weights stay in memory.
    random_weights(const model_config& config, std::uint64_t seed, dtype format) : format_(format) {
        expects(config.check().has_value(), "random weights are made for a configuration that can exist");
        expects(format != dtype::f16, "random weights are f32 or bf16");
        for (const weight_name& weight : weights_of(config))
            tensors_.emplace(weight.name, make(weight, seed));
    }

    /// Returns a weight of the model, valid as long as this source. Errors: not_found for a name the model does not
    /// have, mismatched for another shape.
    [[nodiscard]] result<tensor_view> tensor(std::string_view name, std::initializer_list<std::size_t> shape) const {
        const auto found = tensors_.find(name);
        if (found == tensors_.end())
            return error{error_code::not_found, std::string(name), "there is no such weight in this configuration"};
        const stored& own = found->second;
        if (!ranges::equal(own.shape, shape))
            return error{error_code::mismatched, std::string(name), "the weight has another shape"};
        return tensor_view{format_, own.shape, own.bytes};
    }

private:
    struct stored {
        std::vector<std::size_t> shape;
        std::vector<std::byte> bytes;
    };

    // The distribution of a tensor's values: (offset + noise) * 2^-shift.
    struct spread {
        std::int32_t offset = 0;
        int quieter = 0; // the noise is divided by 2^quieter
        int shift = 0;
    };

    // The finalizer of splitmix64 (Steele, Lea & Flood 2014).
    [[nodiscard]] static std::uint64_t mix(std::uint64_t x) noexcept {
        x += 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
    }

    // Approximately normal: the centered sum of four uniform 16-bit integers. Standard deviation 37837, within
    // +-131070.
    [[nodiscard]] static std::int32_t noise(std::uint64_t bits) noexcept {
        std::int32_t sum = -131070;
        for (int part = 0; part < 4; ++part)
            sum += static_cast<std::int32_t>(bits >> (16 * part) & 0xffff);
        return sum;
    }

    [[nodiscard]] static spread spread_of(std::span<const std::size_t> shape, std::string_view name) {
        if (shape.size() == 1)                                         // a vector:
            return name.ends_with(".bias")    ? spread{0, 0, 17}       // standard deviation 0.29
                   : name.ends_with(".A_log") ? spread{-131072, 1, 21} // -0.06: what a state forgets
                                              : spread{131072, 1, 17}; // 1, standard deviation 0.14
        // The power of two that brings the standard deviation closest to 1 / sqrt(inputs).
        const std::uint64_t variance = 1431655765u * static_cast<std::uint64_t>(shape.back());
        int shift = 0;
        while ((std::uint64_t{1} << (2 * shift + 1)) <= variance)
            ++shift;
        return {0, 0, shift};
    }

    [[nodiscard]] stored make(const weight_name& weight, std::uint64_t seed) const {
        std::uint64_t key = mix(seed);
        for (const char letter : weight.name)
            key = mix(key ^ static_cast<unsigned char>(letter));
        const spread of = spread_of(weight.shape, weight.name);
        const float unit = bit_cast<float>(static_cast<std::uint32_t>(127 - of.shift) << 23);

        std::size_t size = 1;
        for (const std::size_t extent : weight.shape)
            size *= extent;
        stored made{weight.shape, std::vector<std::byte>(size * bytes_of(format_))};
        for (std::size_t i = 0; i < size; ++i) {
            const std::int32_t whole = of.offset + noise(mix(key + i)) / (1 << of.quieter);
            put(made.bytes, i, static_cast<float>(whole) * unit); // exact: 18 bits, times a power of two
        }
        return made;
    }

    // Little-endian, as tensor_view reads it; bfloat16 rounds to nearest, ties to even.
    void put(std::span<std::byte> bytes, std::size_t index, float number) const {
        std::uint32_t bits = bit_cast<std::uint32_t>(number);
        if (format_ == dtype::bf16)
            bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        const std::size_t width = bytes_of(format_);
        for (std::size_t i = 0; i < width; ++i)
            bytes[index * width + i] = static_cast<std::byte>(bits >> (8 * i) & 0xff);
    }

    dtype format_;
    std::map<std::string, stored, std::less<>> tensors_;
};

static_assert(weight_source<random_weights>);

/// A transformer with random weights: the same bits in every build. Requires: as random_weights.
[[nodiscard]] inline transformer make_random_model(const model_config& config, std::uint64_t seed, dtype format) {
    auto weights = load_weights(config, random_weights(config, seed, format), [](std::size_t, std::size_t) {});
    expects(weights.has_value(), "random weights are complete");
    return transformer(config, std::move(*weights));
}

/// The same with float32 weights.
[[nodiscard]] inline transformer make_random_model(const model_config& config, std::uint64_t seed) {
    return make_random_model(config, seed, dtype::f32);
}

}} // namespace kvcache
