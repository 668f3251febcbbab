// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/id.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <ios>
#include <stdexcept>
#include <string>
#include <vector>

namespace bench {

/// A request of a trace of tokens: the prompt, and the tokens that are generated after it.
struct block_request {
    std::vector<kvcache::token_id> tokens = {}; ///< Of the prompt, then of the answer.
    std::size_t prompt = 0;                     ///< The number of prompt tokens, at least one.
};

/// Reads requests, each as two counts (tokens of the prompt and of the answer) and its tokens, of 32 bits each in the
/// machine's order of bytes. Throws: runtime_error if the file cannot be read or ends inside a request.
inline std::vector<block_request> read_requests(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    const auto read = [&in](auto* to, std::size_t count) {
        return bool(in.read(reinterpret_cast<char*>(to), static_cast<std::streamsize>(count * sizeof(*to))));
    };
    std::vector<block_request> requests;
    std::array<std::uint32_t, 2> counts = {};
    while (read(counts.data(), counts.size())) {
        block_request& one = requests.emplace_back();
        one.prompt = counts[0];
        one.tokens.resize(std::size_t{counts[0]} + counts[1]);
        if (one.prompt == 0 || !read(one.tokens.data(), one.tokens.size()))
            throw std::runtime_error(file + ": request " + std::to_string(requests.size()) + " is not complete");
    }
    if (!in.eof() || in.gcount() > 0 || requests.empty())
        throw std::runtime_error(file + " is not a trace of tokens");
    return requests;
}

} // namespace bench
