// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/adapters/replay/prefix_request.hpp>
#include <kvcache/adapters/traces/json_lines.hpp>
#include <kvcache/adapters/traces/json_record.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Requests in the format of the Qwen-Bailian traces (ATC'25): one JSON object per line,
///
///     {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132,
///      "type": "text", "turn": 2, "hash_ids": [1089, 1090, 6326]}
///
/// with times in seconds, and one id per block of 16 tokens. chat_id, parent_chat_id (-1 for none), type and turn are
/// not needed for a replay; if present they must be integers and a string.
class bailian_trace {
public:
    static constexpr std::uint32_t block_tokens = 16;
    static constexpr std::uint64_t most_tokens = 0xffffffffu; // maximum of a prompt

    explicit bailian_trace(byte_source source) : values_(std::move(source)) {}

    /// Opens a trace. Errors: those of byte_source::open.
    [[nodiscard]] static result<bailian_trace> open(const std::filesystem::path& file) {
        auto source = byte_source::open(file);
        if (!source)
            return source.error();
        return bailian_trace(*std::move(source));
    }

    /// Reads the next request. Returns: false at the end. Errors: those of the source; the first invalid field, with
    /// file and line.
    [[nodiscard]] result<bool> next(prefix_request& request) {
        const auto more = values_.next(value_);
        if (!more || !*more)
            return more;
        json_record record(value_, values_.where());
        for (const char* field : {"chat_id", "parent_chat_id", "turn"})
            if (record.has(field) && !value_[field].is_number_integer())
                record.fail(error_code::malformed, field,
                            std::string("is ") + value_[field].type_name() + ", not an integer");
        static_cast<void>(record.text("type", false));
        request.seconds = record.time("timestamp");
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
