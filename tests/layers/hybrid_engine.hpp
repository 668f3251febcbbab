// SPDX-License-Identifier: MIT
// A small engine over blocks of its own, of a model with layers of full attention, of a sliding window, with recurrent
// states, and one that reads the keys and values of another. It attends with the library's batch_attention.
#pragma once

#include <kvcache/attention/batch_attention.hpp>
#include <kvcache/codec/f32.hpp>
#include <kvcache/core/layout.hpp>
#include <kvcache/core/memory.hpp>
#include <kvcache/kernel/rope.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernel/numbers.hpp"

namespace kvcache_test {

namespace kv = kvcache;

/// The model's numbers, and the groups of its layers.
struct hybrid {
    static constexpr std::uint32_t width = 32, heads = 2, kv_heads = 1, head_dim = 16, window = 96, vocabulary = 24;
    static constexpr std::size_t full = 0, windowed = 1, recurrent = 2, alias = 3;

    /// What a recurrent layer keeps: its state, and the inputs of its convolution over four tokens.
    struct state {
        std::array<float, width> numbers = {};
        std::array<std::array<float, width>, 3> inputs = {};
    };

    [[nodiscard]] static kv::cache_layout layout(std::uint32_t page_tokens) {
        return {page_tokens,
                {{.layers = 2, .kv_heads = kv_heads, .head_dim = head_dim},
                 {.layers = 2, .kv_heads = kv_heads, .head_dim = head_dim, .window = window},
                 {.layers = 1, .state_bytes = sizeof(state)},
                 {.layers = 1, .alias_of = windowed}}};
    }
};

/// The memory of one group's blocks. Rows that are not in use are NaN.
class hybrid_blocks {
public:
    hybrid_blocks(kv::page_shape shape, std::size_t count)
        : codec_(kv::codec::f32{}.open(shape)), numbers_(count * block_numbers(), numbers::not_a_number) {}

    [[nodiscard]] const kv::codec::f32::state& codec() const { return codec_; }
    [[nodiscard]] std::size_t size() const { return numbers_.size() / block_numbers(); }

    // As a storage.
    [[nodiscard]] bool acquire(kv::page_id) noexcept { return true; }
    void release(kv::page_id) noexcept {}
    [[nodiscard]] std::span<std::byte> bytes(kv::page_id block) const {
        if (kv::index_of(block) >= size())
            throw std::out_of_range("a block is read that the host does not have");
        return std::as_writable_bytes(
            std::span(const_cast<float*>(numbers_.data()) + kv::index_of(block) * block_numbers(), block_numbers()));
    }

    bool copy(std::uint32_t from, std::uint32_t to, std::size_t rows) {
        free(to);
        codec_.copy(bytes(kv::page_id{from}), bytes(kv::page_id{to}), rows);
        return true;
    }
    void free(std::uint32_t block) {
        std::fill_n(numbers_.begin() + static_cast<std::ptrdiff_t>(block * block_numbers()), block_numbers(),
                    numbers::not_a_number);
    }

private:
    [[nodiscard]] std::size_t block_numbers() const { return codec_.page_bytes() / sizeof(float); }

    kv::codec::f32::state codec_;
    kv::aligned_vector<float> numbers_;
};

struct hybrid_memory {
    std::uint32_t page_tokens;
    std::array<hybrid_blocks, 2> rows; ///< Of the full group and of the window.
    std::vector<hybrid::state> states;

    hybrid_memory(std::uint32_t tokens, std::array<std::size_t, 3> blocks)
        : page_tokens(tokens),
          rows{hybrid_blocks(hybrid::layout(tokens).shape(hybrid::full), blocks[0]),
               hybrid_blocks(hybrid::layout(tokens).shape(hybrid::windowed), blocks[1])},
          states(blocks[2]) {}

    // As for every memory of the engine.

    /// Calls `f` with the codec and the storage of a group's blocks.
    template <class F>
    void with_source(std::size_t group, F&& f) {
        f(rows[group].codec(), rows[group]);
    }
    /// Writes a row of a layer: of part `part` of a batch the row `row`, which is a row of a block.
    void write(std::size_t group, kv::layer_id layer, std::size_t /*part*/, std::size_t /*row*/, kv::page_id block,
               std::uint32_t row_of_block, std::span<const float> keys, std::span<const float> values) {
        rows[group].codec().encode(rows[group].bytes(block), {layer, kv::head_id{0}, row_of_block}, keys, values);
    }
};

/// Consecutive rows of one sequence in a batch of the engine.
struct hybrid_part {
    std::span<const kv::token_id> tokens;
    std::size_t first = 0; ///< Position of the first row.
    /// By entry: the block of the full group, and of the window; -1 for none.
    std::array<std::vector<std::int32_t>, 2> tables = {};
    std::span<const kv::codec::residual_page* const> residual = {}; ///< Of the full group.
    hybrid::state* state = nullptr; ///< After the tokens before the rows; then after the rows.
    /// Where states are wanted too: after how many tokens of the sequence, in ascending order.
    std::vector<std::pair<std::size_t, hybrid::state*>> snapshots = {};
    std::vector<float> logits = {}; ///< (rows, vocabulary)
};

/// The model. The layers: window, full, recurrent, window, alias of the window's second, full.
class hybrid_engine {
public:
    explicit hybrid_engine(std::size_t threads = 1) : threads_(threads) {
        const auto matrix = [this](std::size_t rows) {
            return numbers::uniforms(seed_++, rows * hybrid::width, 0.25f);
        };
        embedding_ = numbers::uniforms(seed_++, hybrid::vocabulary * hybrid::width);
        head_ = matrix(hybrid::vocabulary);
        for (attending& one : layers_)
            one = {matrix(q_width), matrix(kv_width), matrix(kv_width), matrix(hybrid::width)};
        for (std::vector<float>* one : {&gate_, &input_, &output_})
            *one = matrix(hybrid::width);
        sinks_ = numbers::uniforms(seed_++, std::size_t{2} * hybrid::heads);
    }

    /// Computes the rows of a batch: writes their keys and values, states and logits. `Memory`: like hybrid_memory.
    template <class Memory>
    void run(std::span<hybrid_part> parts, Memory& memory) {
        begin(parts, memory.page_tokens);
        attend(parts, memory, layers_[0], {hybrid::windowed, 0, true});
        attend(parts, memory, layers_[1], {hybrid::full, 0, true});
        recur(parts);
        attend(parts, memory, layers_[2], {hybrid::windowed, 1, true});
        attend(parts, memory, layers_[3], {hybrid::windowed, 1, false});
        attend(parts, memory, layers_[4], {hybrid::full, 1, true});
        std::size_t row = 0;
        for (hybrid_part& part : parts) {
            part.logits.resize(part.tokens.size() * hybrid::vocabulary);
            for (std::size_t i = 0; i < part.tokens.size(); ++i, ++row)
                multiply(head_, x(row), std::span(part.logits).subspan(i * hybrid::vocabulary, hybrid::vocabulary));
        }
    }

private:
    static constexpr std::size_t q_width = std::size_t{hybrid::heads} * hybrid::head_dim,
                                 kv_width = std::size_t{hybrid::kv_heads} * hybrid::head_dim;

    struct attending {
        std::vector<float> queries = {}, keys = {}, values = {}, output = {};
    };
    struct place {
        std::size_t group = 0;
        std::uint32_t layer = 0;
        bool writes = true;
    };

    [[nodiscard]] std::span<float> x(std::size_t row) { return {x_.data() + row * hybrid::width, hybrid::width}; }

    // Every product is of one row, in one order: its bits depend on nothing else.
    static void multiply(std::span<const float> matrix, std::span<const float> x, std::span<float> out) {
        for (std::size_t i = 0; i < out.size(); ++i) {
            float sum = 0.0f;
            for (std::size_t j = 0; j < x.size(); ++j)
                sum = std::fma(matrix[i * x.size() + j], x[j], sum);
            out[i] = sum;
        }
    }
    static void normalise(std::span<const float> x, std::span<float> out) {
        float sum = 1e-3f;
        for (const float one : x)
            sum = std::fma(one, one, sum);
        const float scale = 1.0f / std::sqrt(sum / static_cast<float>(x.size()));
        for (std::size_t i = 0; i < x.size(); ++i)
            out[i] = x[i] * scale;
    }
    static void add(std::span<float> to, std::span<const float> what) {
        for (std::size_t i = 0; i < to.size(); ++i)
            to[i] += what[i];
    }

    void begin(std::span<const hybrid_part> parts, std::size_t page_tokens) {
        x_.clear();
        rotations_.clear();
        for (std::vector<std::vector<kv::page_entry>>& of : tables_)
            of.clear();
        for (const hybrid_part& part : parts) {
            const std::size_t end = part.first + part.tokens.size();
            for (std::size_t group = 0; group < 2; ++group) {
                std::vector<kv::page_entry>& table = tables_[group].emplace_back();
                for (std::size_t at = 0; at < end; at += page_tokens) // -1 becomes a block that does not exist
                    table.push_back(
                        {.page = kv::page_id{static_cast<std::uint32_t>(part.tables[group][at / page_tokens])},
                         .count = static_cast<std::uint32_t>(std::min(page_tokens, end - at))});
            }
            for (std::size_t i = 0; i < part.tokens.size(); ++i) {
                const auto token = static_cast<std::size_t>(kv::index_of(part.tokens[i])) % hybrid::vocabulary;
                const auto from = embedding_.begin() + static_cast<std::ptrdiff_t>(token * hybrid::width);
                x_.insert(x_.end(), from, from + hybrid::width);
                rotations_.resize(rotations_.size() + hybrid::head_dim);
                rope_.fill(static_cast<std::int64_t>(part.first + i),
                           std::span(rotations_).last(std::size_t{hybrid::head_dim}));
            }
        }
    }

    template <class Memory>
    void attend(std::span<const hybrid_part> parts, Memory& memory, const attending& by, const place& at) {
        const std::size_t rows = x_.size() / hybrid::width;
        queries_.resize(rows * q_width);
        out_.resize(rows * q_width);
        std::vector<kv::attention_part> asked;
        std::array<float, hybrid::width> normal;
        std::array<float, kv_width> key, rotated, value;
        std::size_t row = 0;
        for (std::size_t p = 0; p < parts.size(); ++p) {
            const hybrid_part& part = parts[p];
            asked.push_back({{.table = tables_[at.group][p],
                              .residual = at.group == hybrid::full ? part.residual : decltype(part.residual){},
                              .spliced = false},
                             {.data = queries_.data() + row * q_width,
                              .rotations = rotations_.data() + row * hybrid::head_dim,
                              .out = out_.data() + row * q_width,
                              .stride = q_width,
                              .out_stride = q_width,
                              .position = part.first,
                              .rows = part.tokens.size()}});
            for (std::size_t i = 0; i < part.tokens.size(); ++i, ++row) {
                normalise(x(row), normal);
                multiply(by.queries, normal, std::span(queries_).subspan(row * q_width, q_width));
                if (!at.writes)
                    continue;
                multiply(by.keys, normal, key);
                multiply(by.values, normal, value);
                kv::rotate_head(key, std::span(rotations_).subspan(row * hybrid::head_dim, hybrid::head_dim), rotated);
                const std::size_t position = part.first + i;
                const kv::page_id block = tables_[at.group][p][position / memory.page_tokens].page;
                memory.write(at.group, kv::layer_id{at.layer}, p, i, block,
                             static_cast<std::uint32_t>(position % memory.page_tokens), rotated, value);
            }
        }
        const bool windowed = at.group == hybrid::windowed;
        memory.with_source(at.group, [&](const auto& codec, const auto& storage) {
            auto& attention = attention_over(codec, storage);
            attention.plan({.heads = hybrid::heads,
                            .kv_heads = hybrid::kv_heads,
                            .head_dim = hybrid::head_dim,
                            .scale = 0.25f,
                            .rotation = &rope_,
                            .window = windowed ? hybrid::window : 0,
                            .sinks = windowed ? sinks_.data() : nullptr},
                           {codec, storage}, asked, threads_);
            attention.run(kv::layer_id{at.layer}, threads_);
        });
        for (row = 0; row < rows; ++row) {
            multiply(by.output, std::span(out_).subspan(row * q_width, q_width), normal);
            add(x(row), normal);
        }
    }

    template <class Codec, class Storage>
    [[nodiscard]] static kv::batch_attention<Codec, Storage>& attention_over(const Codec&, const Storage&) {
        static kv::batch_attention<Codec, Storage> made; // keeps its memory
        return made;
    }

    // A convolution of four tokens, then a gated linear recurrence, token by token.
    void recur(std::span<const hybrid_part> parts) {
        static constexpr std::array<float, 4> taps{0.125f, -0.25f, 0.5f, 1.0f};
        std::array<float, hybrid::width> mixed, gate, input, out;
        std::size_t row = 0;
        for (const hybrid_part& part : parts) {
            hybrid::state& state = *part.state;
            std::size_t next = 0; // snapshot
            for (std::size_t i = 0; i < part.tokens.size(); ++i, ++row) {
                std::array<float, hybrid::width> normal;
                normalise(x(row), normal);
                for (std::size_t j = 0; j < mixed.size(); ++j) {
                    mixed[j] = taps[3] * normal[j];
                    for (std::size_t back = 0; back < 3; ++back)
                        mixed[j] = std::fma(taps[back], state.inputs[back][j], mixed[j]);
                }
                state.inputs = {state.inputs[1], state.inputs[2], normal};
                multiply(gate_, mixed, gate);
                multiply(input_, mixed, input);
                for (std::size_t j = 0; j < gate.size(); ++j) {
                    const float keep = 1.0f / (1.0f + std::exp(-gate[j] - 2.0f));
                    state.numbers[j] = std::fma(keep, state.numbers[j], (1.0f - keep) * input[j]);
                }
                multiply(output_, state.numbers, out);
                add(x(row), out);
                for (; next < part.snapshots.size() && part.snapshots[next].first == part.first + i + 1; ++next)
                    *part.snapshots[next].second = state;
            }
        }
    }

    std::uint64_t seed_ = 1; // of the next weights
    kv::thread_pool threads_;
    kv::rope rope_{kv::rope::standard_frequencies(hybrid::head_dim, 10000.0)};
    std::vector<float> embedding_, head_, gate_, input_, output_, sinks_;
    std::array<attending, 5> layers_;
    std::vector<float> x_, rotations_, queries_, out_; // by row
    std::array<std::vector<std::vector<kv::page_entry>>, 2> tables_;
};

/// The logits of a prompt computed alone, at once, on one thread, without a cache. (tokens, vocabulary)
[[nodiscard]] inline std::vector<float> computed_alone(hybrid_engine& engine, std::span<const kv::token_id> tokens) {
    if (tokens.empty())
        return {};
    constexpr std::uint32_t page_tokens = 64;
    const std::size_t blocks = (tokens.size() + page_tokens - 1) / page_tokens;
    hybrid_memory memory(page_tokens, {blocks, blocks, 0});
    hybrid::state state;
    hybrid_part part{.tokens = tokens, .state = &state};
    for (std::vector<std::int32_t>& table : part.tables)
        for (std::size_t i = 0; i < blocks; ++i)
            table.push_back(static_cast<std::int32_t>(blocks - 1 - i));
    engine.run({&part, 1}, memory);
    return part.logits;
}

} // namespace kvcache_test
