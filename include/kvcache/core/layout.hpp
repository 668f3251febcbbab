// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/shape.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// What the layers of a group keep of a sequence.
enum class group_kind {
    full,   ///< Keys and values of every token.
    window, ///< Keys and values of the last tokens.
    state,  ///< One state for all tokens so far: a recurrent or convolution state.
    alias,  ///< Nothing: the layers read the keys and values of another group.
};

/// Layers of a model that keep the same things of a sequence, and drop them together.
struct layer_group {
    std::string name = {}; ///< For people; empty for the name of its kind.
    std::uint32_t layers = 0;
    std::uint32_t kv_heads = 0;
    std::uint32_t head_dim = 0;
    std::uint32_t window = 0;    ///< Tokens that a query reads, its own included; 0 for all.
    std::size_t state_bytes = 0; ///< Bytes of a state of all its layers together, for layers that keep one.
    bool opaque = false;         ///< Its state is a blob of bytes, as many as each snapshot says.
    std::optional<std::uint32_t> alias_of = {}; ///< The group whose keys and values its layers read.

    friend bool operator==(const layer_group&, const layer_group&) = default;

    [[nodiscard]] group_kind kind() const noexcept {
        return alias_of                    ? group_kind::alias
               : opaque || state_bytes > 0 ? group_kind::state
               : window > 0                ? group_kind::window
                                           : group_kind::full;
    }
    /// Whether it keeps keys and values.
    [[nodiscard]] bool has_rows() const noexcept { return kind() == group_kind::full || kind() == group_kind::window; }

    /// The first token that a query at position `at` reads.
    [[nodiscard]] std::size_t first_read(std::size_t at) const noexcept {
        return window == 0 || at < window ? 0 : at - (window - 1);
    }
};

/// The occupancy of a layer group. Every block is free, in use or evictable. An alias has none.
struct layer_group_stats {
    std::string name = {};       ///< As cache_layout::name_of has it.
    group_kind kind = {};        ///< Of the first full group the blocks are the cache's pages.
    std::size_t block_bytes = 0; ///< Bytes of a block; 0 for opaque states, whose sizes differ.
    std::size_t blocks = 0;      ///< Number of blocks that the cache may have, if no other group takes their bytes.
    std::size_t in_use = 0;      ///< Blocks that sequences use, each counted once however many share it.
    std::size_t evictable = 0;   ///< Blocks that no sequence uses, cached for the next match.
    std::size_t bytes = 0;       ///< Bytes of both.

    friend bool operator==(const layer_group_stats&, const layer_group_stats&) = default;
};

/// The occupancy of a layer group in one line. An alias has no blocks of its own.
[[nodiscard]] inline std::string describe(const layer_group_stats& of) {
    if (of.kind == group_kind::alias)
        return of.name + ": the blocks of another group";
    return detail::joined({of.name, ": ", std::to_string(of.in_use), " blocks in use, ", std::to_string(of.evictable),
                           " evictable, ", std::to_string(of.bytes), " bytes in all"});
}

/// What the layers of a model keep of a sequence: groups of layers, in pages of equally many tokens.
struct cache_layout {
    std::uint32_t tokens = 64; ///< Tokens per page.
    std::vector<layer_group> groups = {};

    friend bool operator==(const cache_layout&, const cache_layout&) = default;

    /// The layout of one group of full attention.
    [[nodiscard]] static cache_layout of(const page_shape& shape) {
        return {shape.tokens, {{.layers = shape.layers, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim}}};
    }

    /// A group's own name, or that of its kind and its window.
    [[nodiscard]] std::string name_of(std::size_t group) const {
        const layer_group& of = groups[group];
        if (!of.name.empty())
            return of.name;
        switch (of.kind()) {
        case group_kind::full:
            return "full";
        case group_kind::window:
            return detail::joined({"window of ", std::to_string(of.window)});
        case group_kind::state:
            return "state";
        default:
            return detail::joined({"alias of ", name_of(*of.alias_of)});
        }
    }

    /// All groups in one line, for an identity: "3 layers of 1 x 256; 15 layers of 1 x 256, window of 512".
    [[nodiscard]] std::string name() const {
        std::string words;
        for (const layer_group& of : groups) {
            words += detail::joined({words.empty() ? "" : "; ", std::to_string(of.layers), " layers"});
            if (of.has_rows())
                words += detail::joined({" of ", std::to_string(of.kv_heads), " x ", std::to_string(of.head_dim)});
            if (of.window > 0)
                words += detail::joined({", window of ", std::to_string(of.window)});
            if (of.opaque)
                words += ", opaque state";
            if (of.state_bytes > 0)
                words += detail::joined({", state of ", std::to_string(of.state_bytes), " bytes"});
            if (of.alias_of)
                words += detail::joined({", as group ", std::to_string(*of.alias_of)});
        }
        return words;
    }

    /// The shape of a group's pages. Requires: it has rows.
    [[nodiscard]] page_shape shape(std::size_t group) const {
        const layer_group& of = groups[group];
        expects(of.has_rows(), "a group with pages keeps keys and values");
        return {of.layers, of.kv_heads, of.head_dim, tokens};
    }

    /// Whether the layout can be used. Errors: out_of_range, with the group and what is wrong with it.
    [[nodiscard]] result<void> check() const {
        if (groups.empty() || groups.size() > most_groups)
            return wrong("groups", "a layout has 1 to 64 groups");
        if (tokens == 0 || tokens > page_shape::most_tokens)
            return wrong("tokens", "a page has 1 to 65,536 tokens");
        bool keeps = false;
        for (std::size_t i = 0; i < groups.size(); ++i) {
            const layer_group& of = groups[i];
            const std::string field = detail::joined({"groups[", std::to_string(i), "]"});
            if (of.layers == 0)
                return wrong(field, "a group has at least one layer");
            if ((of.alias_of.has_value()) + of.opaque + (of.state_bytes > 0) + (of.window > 0) > 1)
                return wrong(field, "a group has a window, or a state, or an opaque state, or is an alias");
            if (of.alias_of && (*of.alias_of >= i || !groups[*of.alias_of].has_rows()))
                return wrong(field, "an alias names an earlier group that keeps keys and values");
            if (of.has_rows() && !shape(i).valid())
                return wrong(field, "a group that keeps keys and values has KV heads and a head dimension, none of "
                                    "them too large");
            if (!of.has_rows() && of.kv_heads + of.head_dim > 0)
                return wrong(field, "a state and an alias have no KV heads and no head dimension");
            keeps = keeps || of.kind() != group_kind::alias;
        }
        return keeps ? result<void>() : wrong("groups", "at least one group keeps something");
    }

    /// Bytes that a group holds for one sequence of `length` tokens, whole pages, with numbers of `number_bytes` bytes.
    /// A window holds the pages that the next query reads, a state group one state; of an opaque one they are unknown,
    /// and 0 here.
    [[nodiscard]] std::uint64_t bytes(std::size_t group, std::size_t length, std::size_t number_bytes) const {
        const layer_group& of = groups[group];
        if (of.kind() == group_kind::alias)
            return 0;
        if (of.kind() == group_kind::state)
            return of.state_bytes;
        const std::uint64_t pages = (length + tokens - 1) / tokens - std::min(of.first_read(length), length) / tokens;
        return pages * tokens * 2 * of.layers * of.kv_heads * of.head_dim * number_bytes;
    }
    /// The same of all groups.
    [[nodiscard]] std::uint64_t bytes(std::size_t length, std::size_t number_bytes) const {
        std::uint64_t all = 0;
        for (std::size_t group = 0; group < groups.size(); ++group)
            all += bytes(group, length, number_bytes);
        return all;
    }

    /// For people: a line for each group with its layers, what a hit of n tokens needs of it, and the MiB that one
    /// sequence of 8,192 and of 131,072 tokens holds with 16-bit numbers; then a line for all.
    [[nodiscard]] std::string describe() const {
        std::string words = detail::joined({"pages of ", std::to_string(tokens), " tokens\n"});
        for (std::size_t group = 0; group < groups.size(); ++group)
            words +=
                detail::joined({name_of(group), ": ", std::to_string(groups[group].layers), " layers, a hit needs ",
                                needs(groups[group]), ", ", mebibytes(bytes(group, 8192, 2)), " MiB at 8K, ",
                                mebibytes(bytes(group, 131072, 2)), " MiB at 128K\n"});
        return words + detail::joined({"all: ", mebibytes(bytes(8192, 2)), " MiB at 8K, ", mebibytes(bytes(131072, 2)),
                                       " MiB at 128K\n"});
    }

    static constexpr std::size_t most_groups = 64;

private:
    [[nodiscard]] static error wrong(std::string field, std::string words) {
        return {error_code::out_of_range, std::move(field), std::move(words)};
    }
    [[nodiscard]] static std::string needs(const layer_group& of) {
        switch (of.kind()) {
        case group_kind::full:
            return "all pages";
        case group_kind::window:
            return detail::joined({"the last ", std::to_string(of.window - 1), " tokens"});
        case group_kind::state:
            return "a snapshot at its last token";
        default:
            return "nothing";
        }
    }
    // With one decimal.
    [[nodiscard]] static std::string mebibytes(std::uint64_t bytes) {
        const std::uint64_t tenths = (bytes * 10 + (1u << 19)) >> 20;
        return detail::joined({std::to_string(tenths / 10), ".", std::to_string(tenths % 10)});
    }
};

}} // namespace kvcache
