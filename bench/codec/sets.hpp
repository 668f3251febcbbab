// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace bench {

/// A named set of rows to encode. (heads, tokens, dim)
struct number_set {
    std::string name;
    std::size_t heads = 1;
    std::size_t dim = 0;
    std::vector<float> numbers;

    [[nodiscard]] std::size_t tokens() const noexcept { return numbers.size() / dim / heads; }
};

/// The three synthetic sets: normal values; the same with four outlier channels of N(30, 20^2); the same with each
/// channel scaled by a lognormal factor. The int8 row error differs by a factor of two between draws of the 128 scales;
/// this draw reproduces the errors that the reference implementation's quantization formulas have.
[[nodiscard]] inline std::vector<number_set> synthetic_sets(std::size_t tokens, std::size_t dim, std::uint64_t seed) {
    std::mt19937_64 dice(seed);
    std::normal_distribution<double> normal;
    number_set plain{"normal", 1, dim, std::vector<float>(tokens * dim)};
    for (float& x : plain.numbers)
        x = static_cast<float>(normal(dice));
    number_set outliers = plain, lognormal = plain;
    outliers.name = "outlier channels";
    for (const std::size_t channel : {5u, 40u, 77u, 90u}) // in three groups of 32
        for (std::size_t t = 0; t < tokens; ++t)
            outliers.numbers[t * dim + channel % dim] = static_cast<float>(30.0 + 20.0 * normal(dice));
    lognormal.name = "lognormal channels";
    std::mt19937_64 sizes(seed + 32);
    normal.reset();
    for (std::size_t d = 0; d < dim; ++d) {
        const double size = std::exp(normal(sizes));
        for (std::size_t t = 0; t < tokens; ++t)
            lognormal.numbers[t * dim + d] = static_cast<float>(size * static_cast<double>(plain.numbers[t * dim + d]));
    }
    return {std::move(plain), std::move(outliers), std::move(lognormal)};
}

/// Reads a file of float32 rows of `dim` values, of one head. A file that begins with "QVKT" and four int32 (layer,
/// heads, tokens, dim) defines its own shape. Throws: runtime_error.
[[nodiscard]] inline number_set tensor_set(const std::string& file, std::size_t dim) {
    std::ifstream in(file, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    std::size_t skip = 0, heads = 1;
    if (bytes.size() >= 20 && bytes.compare(0, 4, "QVKT") == 0) {
        std::uint32_t says[4];
        std::memcpy(says, bytes.data() + 4, sizeof says);
        heads = says[1];
        dim = says[3];
        skip = 20;
    }
    if (!in || dim == 0 || bytes.size() == skip || heads == 0 ||
        (bytes.size() - skip) % (heads * dim * sizeof(float)) != 0)
        throw std::runtime_error(file + ": no float32 rows of " + std::to_string(dim));
    number_set set{file.substr(file.find_last_of('/') + 1), heads, dim, {}};
    set.numbers.resize((bytes.size() - skip) / sizeof(float));
    std::memcpy(set.numbers.data(), bytes.data() + skip, set.numbers.size() * sizeof(float));
    return set;
}

} // namespace bench
