// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/formats/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../replay/workload.hpp"
#include "json_records.hpp"

namespace bench {

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

    /// Reads the next request. Returns: false at the end. Errors: those of the source; the first invalid field, with
    /// file and line.
    [[nodiscard]] kvcache::result<bool> next(prefix_request& request) {
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
        chain_blocks(request.blocks, 0);
        return true;
    }

    /// Returns the fraction of the file that has been read, from 0 to 1.
    [[nodiscard]] double share() const noexcept { return values_.source().share(); }

private:
    json_lines values_;
    nlohmann::json value_;
};

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

    /// Reads the next request. Returns: false at the end. Errors: those of the source; the first invalid field, with
    /// file and line.
    [[nodiscard]] kvcache::result<bool> next(prefix_request& request) {
        const auto more = values_.next(value_);
        if (!more || !*more)
            return more;
        json_record record(value_, values_.where());
        for (const char* field : {"chat_id", "parent_chat_id", "turn"})
            if (record.has(field) && !value_[field].is_number_integer())
                record.fail(kvcache::error_code::malformed, field,
                            std::string("is ") + value_[field].type_name() + ", not an integer");
        static_cast<void>(record.text("type", false));
        request.seconds = record.time("timestamp");
        request.input_tokens = record.count("input_length", most_tokens);
        request.output_tokens = record.count("output_length", most_tokens);
        request.block_tokens = block_tokens;
        record.numbers("hash_ids", request.blocks);
        if (record.error())
            return *record.error();
        chain_blocks(request.blocks, 0);
        return true;
    }

    /// Returns the fraction of the file that has been read, from 0 to 1.
    [[nodiscard]] double share() const noexcept { return values_.source().share(); }

private:
    json_lines values_;
    nlohmann::json value_;
};

/// Requests in the format of the agentic traces of kv-cache-tester: one JSON object per coding session,
///
///     {"id": "trace_0037", "block_size": 64, "hash_id_scope": "local", "requests": [
///         {"t": 0.0, "type": "n", "in": 1284, "out": 211, "hash_ids": [1, 2, 3]},
///         {"t": 9.5, "type": "subagent", "requests": [{"t": 0.0, "type": "s", "in": 70, "out": 5, "hash_ids": [9]}]}]}
///
/// separated by white space, on one or several lines each. The ids of a session with scope "local" are unique to it,
/// sub-agents included; those of scope "global" are shared by the whole file. The requests of a session are in the
/// order of their times, and sessions are in the order of the file. The times of a sub-agent are relative to its own
/// time if its first request has an earlier time, otherwise to the session; both occur in traces. The model of a
/// request is ignored.
class weka_trace {
public:
    static constexpr std::uint64_t most_tokens = 0xffffffffu; // maximum of a prompt
    static constexpr int deepest = 64;                        // maximum nesting of sub-agents

    explicit weka_trace(byte_source source) : sessions_(std::move(source)) {}

    /// Reads the next request. Returns: false at the end. Errors: those of the source; the first invalid field, with
    /// file, line and request.
    [[nodiscard]] kvcache::result<bool> next(prefix_request& request) {
        while (taken_ == requests_.size()) {
            nlohmann::json session;
            const auto more = sessions_.next(session);
            if (!more || !*more)
                return more;
            if (auto read = read_session(session); !read)
                return read.error();
        }
        request = std::move(requests_[taken_++]);
        return true;
    }

    /// Returns the fraction of the file that has been read, from 0 to 1.
    [[nodiscard]] double share() const noexcept { return sessions_.source().share(); }

private:
    [[nodiscard]] kvcache::result<void> read_session(const nlohmann::json& session) {
        requests_.clear();
        taken_ = 0;
        json_record record(session, sessions_.where());
        const std::string id = record.text("id", false), scope = record.text("hash_id_scope", false);
        const std::uint64_t tokens = record.count("block_size", 1u << 20);
        if (tokens == 0)
            record.fail(kvcache::error_code::out_of_range, "block_size", "is 0");
        if (!scope.empty() && scope != "local" && scope != "global")
            record.fail(kvcache::error_code::unsupported, "hash_id_scope", "is neither \"local\" nor \"global\"");
        const auto* requests = record.array("requests");
        if (record.error())
            return *record.error();
        const std::uint64_t space =
            scope == "global" ? 0 : chained_block(text_key(sessions_.source().name() + '\n' + id), sessions_.number());
        if (auto read = read_requests(
                *requests, {sessions_.where() + ", requests", 0.0, space, static_cast<std::uint32_t>(tokens), 0});
            !read)
            return read.error();
        std::ranges::stable_sort(requests_, {}, &prefix_request::seconds);
        return {};
    }

    struct nesting {
        std::string where;
        double start = 0.0; // origin of the times
        std::uint64_t space = 0;
        std::uint32_t block_tokens = 0;
        int depth = 0;
    };

    [[nodiscard]] kvcache::result<void> read_requests(const nlohmann::json& list, const nesting& at) {
        for (std::size_t i = 0; i < list.size(); ++i) {
            json_record record(list[i], at.where + "[" + std::to_string(i) + "]");
            const std::string type = record.text("type", true);
            const double time = record.time("t");
            if (type == "subagent") {
                const auto* nested = record.array("requests");
                if (at.depth == deepest)
                    record.fail(kvcache::error_code::out_of_range, "requests", "is nested more than 64 levels deep");
                if (record.error())
                    return *record.error();
                const bool own_clock = !nested->empty() && nested->front().is_object() &&
                                       nested->front().contains("t") && nested->front()["t"].is_number() &&
                                       nested->front()["t"].get<double>() < time;
                if (auto read = read_requests(*nested, {at.where + "[" + std::to_string(i) + "].requests",
                                                        own_clock ? at.start + time : at.start, at.space,
                                                        at.block_tokens, at.depth + 1});
                    !read)
                    return read.error();
                continue;
            }
            if (type != "n" && type != "s")
                record.fail(kvcache::error_code::unsupported, "type", R"(is none of "n", "s" and "subagent")");
            prefix_request request{.seconds = at.start + time,
                                   .input_tokens = record.count("in", most_tokens),
                                   .output_tokens = record.count("out", most_tokens),
                                   .block_tokens = at.block_tokens};
            record.numbers("hash_ids", request.blocks);
            if (record.error())
                return *record.error();
            chain_blocks(request.blocks, at.space);
            requests_.push_back(std::move(request));
        }
        return {};
    }

    json_documents sessions_;
    std::vector<prefix_request> requests_; // requests of the last session read
    std::size_t taken_ = 0;
};

} // namespace bench
