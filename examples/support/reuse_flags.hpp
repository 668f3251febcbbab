// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/session/any_recompute.hpp>
#include <kvcache/session/reuse_mode.hpp>

#include <optional>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

namespace support {

/// Parses a mode of reuse: baseline, prefix or chunks.
inline std::optional<kvcache::reuse_mode> read_mode(std::string_view text) {
    if (text == "baseline")
        return kvcache::reuse_mode::baseline;
    if (text == "prefix")
        return kvcache::reuse_mode::prefix;
    if (text == "chunks")
        return kvcache::reuse_mode::chunks;
    return std::nullopt;
}

[[nodiscard]] inline const char* name_of(kvcache::reuse_mode mode) noexcept {
    return mode == kvcache::reuse_mode::baseline ? "baseline"
           : mode == kvcache::reuse_mode::prefix ? "prefix"
                                                 : "chunks";
}

/// Adds the options `--mode` and `--recompute`.
inline void add_reuse_flags(CLI::App& app, std::string& mode, std::string& recompute) {
    app.add_option("--mode", mode,
                   "What is reused: nothing (baseline), prefixes, or cached chunks at any position too (approximate)")
        ->check(CLI::IsMember({"baseline", "prefix", "chunks"}))
        ->capture_default_str();
    app.add_option(
           "--recompute", recompute,
           "Which tokens of a chunk run again: none, head:ROWS, boundary:ROWS, blend:PERCENT, gradual:PERCENT, full")
        ->check(CLI::Validator(
            [](std::string& text) {
                const auto read = kvcache::any_recompute::named(text);
                return read ? std::string() : read.error().message;
            },
            "RECOMPUTE"))
        ->capture_default_str();
}

} // namespace support
