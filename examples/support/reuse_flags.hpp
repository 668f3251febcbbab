// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/shape.hpp>
#include <kvcache/recompute/chunk_boundary.hpp>
#include <kvcache/recompute/chunk_head.hpp>
#include <kvcache/recompute/full.hpp>
#include <kvcache/session/engine_splice.hpp>
#include <kvcache/session/reuse_mode.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flags.hpp"
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

/// Which tokens of a chunk run again: none, head:ROWS (its first), boundary:ROWS (its last) or full.
struct recompute_choice {
    enum class kind { none, head, boundary, full } which = kind::head;
    std::size_t rows = 16;

    /// Returns what selects them, over pages of a shape.
    [[nodiscard]] kvcache::select_recomputed over(kvcache::page_shape shape) const {
        const auto with = [](auto state) -> kvcache::select_recomputed {
            return [state = std::move(state)](std::span<const kvcache::reused_span> runs,
                                              std::vector<std::size_t>& positions) { state.select(runs, positions); };
        };
        switch (which) {
        case kind::head:
            return with(kvcache::recompute::chunk_head{.rows = rows, .page_aligned = false}.open(shape));
        case kind::boundary:
            return with(kvcache::recompute::chunk_boundary{.rows = rows}.open(shape));
        case kind::full:
            return with(kvcache::recompute::full{}.open(shape));
        case kind::none:
            break;
        }
        return {};
    }
};

/// Errors: malformed.
inline kvcache::result<recompute_choice> read_recompute(std::string_view text) {
    using kind = recompute_choice::kind;
    const std::string_view name = text.substr(0, text.find(':'));
    recompute_choice made;
    bool known = true;
    if (name == "none" || name == "full") {
        made.which = name == "none" ? kind::none : kind::full;
        known = name == text;
    } else if (name == "head" || name == "boundary") {
        made.which = name == "head" ? kind::head : kind::boundary;
        if (name != text) {
            const auto rows = number_in<std::uint32_t>(text.substr(name.size() + 1));
            known = rows && *rows > 0;
            made.rows = rows.value_or(0);
        }
    } else {
        known = false;
    }
    if (!known)
        return kvcache::error{kvcache::error_code::malformed, "recompute",
                              "recompute is none, head:ROWS, boundary:ROWS or full"};
    return made;
}

/// Adds the options `--mode` and `--recompute`.
inline void add_reuse_flags(CLI::App& app, std::string& mode, std::string& recompute) {
    app.add_option("--mode", mode,
                   "What is reused: nothing (baseline), prefixes, or cached chunks at any position too (approximate)")
        ->check(CLI::IsMember({"baseline", "prefix", "chunks"}))
        ->capture_default_str();
    app.add_option("--recompute", recompute,
                   "Which tokens of a chunk run again: none, head:ROWS, boundary:ROWS or full")
        ->check(CLI::Validator(
            [](std::string& text) {
                const auto read = read_recompute(text);
                return read ? std::string() : read.error().message;
            },
            "RECOMPUTE"))
        ->capture_default_str();
}

} // namespace support
