// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/adapters/replay/prefix_request.hpp>
#include <kvcache/adapters/traces/json_lines.hpp>
#include <kvcache/adapters/traces/json_record.hpp>

#include <cstdint>
#include <filesystem>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Requests in the format of the Mooncake traces (FAST'25): one JSON object per line,
///
///     {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353, 2354]}
///
/// with times in milliseconds, and one id per block of 512 tokens, the last of which may be partial. Other fields are
/// ignored.
class mooncake_trace {
public:
    static constexpr std::uint32_t block_tokens = 512;
    static constexpr std::uint64_t most_tokens = 0xffffffffu; // maximum of a prompt

    explicit mooncake_trace(byte_source source) : values_(std::move(source)) {}

    /// Opens a trace. Errors: those of byte_source::open.
    [[nodiscard]] static result<mooncake_trace> open(const std::filesystem::path& file) {
        auto source = byte_source::open(file);
        if (!source)
            return source.error();
        return mooncake_trace(*std::move(source));
    }

    /// Reads the next request. Returns: false at the end. Errors: those of the source; the first invalid field, with
    /// file and line.
    [[nodiscard]] result<bool> next(prefix_request& request) {
        const auto more = values_.next(value_);
        if (!more || !*more)
            return more;
        json_record record(value_, values_.where());
        request.seconds = record.time("timestamp") / 1000.0;
        request.input_tokens = record.count("input_length", most_tokens);
        request.output_tokens = record.count("output_length", most_tokens);
        request.block_tokens = block_tokens;
        record.numbers("hash_ids", request.blocks);
        if (record.error())
            return *record.error();
        std::uint64_t parent = 0;
        for (std::uint64_t& block : request.blocks)
            block = parent = chained_block(parent, block);
        return true;
    }

    /// Returns the fraction of the file that has been read, from 0 to 1.
    [[nodiscard]] double share() const noexcept { return values_.source().share(); }

private:
    json_lines values_;
    nlohmann::json value_;
};

}} // namespace kvcache
