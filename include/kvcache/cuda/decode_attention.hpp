// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cuda/attention_table.hpp>
#include <kvcache/cuda/device_math.hpp>
#include <kvcache/cuda/page_layout.hpp>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace kvcache { inline namespace KVCACHE_ABI { namespace cuda {

/// Decode attention of one query a sequence over its pages, split by split: a partial softmax(q k) v for each split,
/// which `merge_splits` combines. A block processes one split of one sequence and up to `Queries` query heads of one KV
/// head, so that keys and values are read once. More query heads take more blocks, which read them again.
///
/// Tiles of 64 keys, then the same tiles of values, stream through a ring of three in shared memory. A score is one
/// chain of fused multiply-adds over head_dim, or an exact integer sum for int8. The maximum and the sum of weights of
/// a split are computed once, after its last key. The rows of a block and the order of all sums depend on the sequence
/// alone, so no bit depends on the rest of the batch. (Dao et al. 2023, Flash-Decoding)
template <row_format Format, unsigned Dim, unsigned Queries>
struct decode_attention {
    static constexpr unsigned threads = 128;
    static constexpr unsigned tile = 64, stages = 3;
    static constexpr bool integer_scores = Format == row_format::int8;
    static_assert(Queries == 1 || Queries == 2 || Queries == 4 || Queries == 8);
    static_assert(Format != row_format::int4_hadamard, "int4 pages are gathered, not attended");

    attention_arguments on = {};

    [[nodiscard]] std::uint64_t blocks() const noexcept {
        return std::uint64_t{on.split_count} * on.layout.shape.kv_heads * chunks();
    }
    [[nodiscard]] static constexpr std::size_t shared_bytes() noexcept { return ring_at + ring_bytes; }

    template <class Group>
    KVCACHE_HOST_DEVICE void operator()(Group& group) const {
        const std::uint32_t chunk = static_cast<std::uint32_t>(group.block() % chunks());
        const std::uint64_t rest = group.block() / chunks();
        const auto head = static_cast<std::uint32_t>(rest % on.layout.shape.kv_heads);
        const auto split = static_cast<std::uint32_t>(rest / on.layout.shape.kv_heads);
        const attention_split at = on.splits[split];
        const std::uint32_t left = on.rows[at.sequence] - at.first, rows = left < split_rows ? left : split_rows;
        const std::uint32_t tiles = (rows + tile - 1) / tile, steps = 2 * tiles;
        const std::uint32_t asked = heads_a_group();                      // query heads of this KV head
        const std::uint32_t first_query = head * asked + chunk * Queries; // of the chunk
        const std::uint32_t queries = asked - chunk * Queries < Queries ? asked - chunk * Queries : Queries;

        const block_memory memory{group.template shared<row_place>(0, split_rows),
                                  group.template shared<float>(scores_at, split_rows * Queries),
                                  group.template shared<float>(query_at, query_words),
                                  group.template shared<float>(partial_at, 2 * threads),
                                  group.template shared<float>(scales_at, scale_words),
                                  group.template shared<std::byte>(ring_at, ring_bytes)};

        group.each([&](unsigned thread) {
            for (std::uint32_t row = thread; row < rows; row += threads) {
                memory.places[row] = place_of(on, at.sequence, at.first + row, head);
                if constexpr (integer_scores)
                    for (unsigned side = 0; side < 2; ++side)
                        memory.scales[side * split_rows + row] = from_f16(*reinterpret_cast<const std::uint16_t*>(
                            memory.places[row].scales(on.layout) + side * on.layout.side_bytes()));
            }
        });

        const auto bring = [&](std::uint32_t step) {
            if (step < steps)
                group.alone([&](unsigned thread) {
                    const std::uint32_t first = (step < tiles ? step : step - tiles) * tile;
                    std::byte* const to = memory.slot(step);
                    KVCACHE_DEVICE_UNROLL
                    for (unsigned i = thread; i < tile * vectors; i += threads) {
                        const std::uint32_t row = i / vectors, part = i % vectors * 16;
                        const bool whole = first + row < rows;
                        const std::byte* const from = memory.places[whole ? first + row : first].codes +
                                                      (step < tiles ? 0 : on.layout.side_bytes());
                        group.copy_async(to + row * stride + part, from + part, whole);
                    }
                });
            group.commit();
        };
        bring(0);
        bring(1);

        std::uint32_t loaded = ~std::uint32_t{};
        for (std::uint32_t step = 0; step < tiles; ++step) {
            group.template arrive<1>();
            bring(step + 2);
            const std::uint32_t first = step * tile, last = first + tile < rows ? first + tile : rows;
            for (std::uint32_t run = memory.places[first].run; run <= memory.places[last - 1].run; ++run) {
                if (run != loaded) {
                    group.barrier();
                    load_query(group, memory.query, run, first_query, queries);
                    loaded = run;
                }
                group.alone([&](unsigned thread) { score(thread, run, first, rows, memory.slot(step), memory); });
            }
        }

        group.barrier();
        softmax_tile(group, rows, memory, split, first_query, queries);

        auto own = group.template own<gathered>();
        group.alone([&](unsigned thread) { own[thread] = {}; });
        for (std::uint32_t step = tiles; step < steps; ++step) {
            group.template arrive<1>();
            bring(step + 2);
            group.alone([&](unsigned thread) {
                gather(thread, (step - tiles) * tile, rows, memory.slot(step), memory.scores, own[thread]);
            });
        }

        group.barrier();
        float* const parts = reinterpret_cast<float*>(memory.ring); // (walkers, Queries, Dim)
        group.each([&](unsigned thread) {
            if (thread / lanes >= walkers)
                return;
            KVCACHE_DEVICE_UNROLL
            for (unsigned i = 0; i < Queries * 8; ++i)
                parts[(thread / lanes * Queries + i / 8) * Dim + thread % lanes * 8 + i % 8] =
                    own[thread].sums[i / 8][i % 8];
        });
        group.alone([&](unsigned thread) {
            for (unsigned i = thread; i < queries * Dim; i += threads) {
                float sum = parts[i];
                for (unsigned walker = 1; walker < walkers; ++walker)
                    sum = plus(sum, parts[walker * Queries * Dim + i]);
                on.sums[(std::uint64_t{split} * on.heads + first_query) * Dim + i] = sum;
            }
        });
    }

private:
    struct gathered {
        float sums[Queries][8] = {};
    };

    // Shared memory of a block.
    struct block_memory {
        row_place* places;
        float *scores, *query, *partial, *scales; // (rows, Queries), (Queries, Dim), (2, threads), (2, rows) for int8
        std::byte* ring;                          // (stages, tile, stride)
        KVCACHE_HOST_DEVICE std::byte* slot(std::uint32_t step) const { return ring + step % stages * tile * stride; }
    };

    static constexpr unsigned row_bytes = Format == row_format::f32 ? Dim * 4 : integer_scores ? Dim : Dim * 2;
    static_assert(row_bytes % 16 == 0);
    static constexpr unsigned vectors = row_bytes / 16;
    static constexpr unsigned stride = row_bytes + 16; // padded, so that adjacent threads use different banks
    static constexpr unsigned lanes = Dim / 8;         // threads that share a row of values
    static constexpr unsigned walkers = threads / lanes;
    static_assert(Dim % 8 == 0 && walkers > 0);
    // Query heads that one thread scores: with several, two threads share a key.
    static constexpr unsigned scored = Queries > 1 ? Queries / 2 : 1;

    static constexpr std::size_t scores_at = split_rows * sizeof(row_place);
    static constexpr std::size_t query_at = scores_at + split_rows * Queries * sizeof(float);
    static constexpr std::size_t query_words = integer_scores ? Queries * Dim / 2 + 16 : Queries * Dim;
    static constexpr std::size_t partial_at = query_at + query_words * sizeof(float);
    static constexpr std::size_t scales_at = partial_at + 2 * threads * sizeof(float);
    static constexpr std::size_t scale_words = integer_scores ? 2 * split_rows : 0;
    static constexpr std::size_t ring_at = (scales_at + scale_words * sizeof(float) + 15) / 16 * 16;
    static constexpr std::size_t tile_bytes = std::size_t{stages} * tile * stride;
    static constexpr std::size_t part_bytes = std::size_t{walkers} * Queries * Dim * sizeof(float);
    static constexpr std::size_t ring_bytes = tile_bytes > part_bytes ? tile_bytes : part_bytes;

    [[nodiscard]] KVCACHE_HOST_DEVICE std::uint32_t heads_a_group() const noexcept {
        return on.heads / on.layout.shape.kv_heads;
    }
    [[nodiscard]] KVCACHE_HOST_DEVICE std::uint32_t chunks() const noexcept {
        return (heads_a_group() + Queries - 1) / Queries;
    }

    template <class Group>
    KVCACHE_HOST_DEVICE void load_query(Group& group, float* query, std::uint32_t run, std::uint32_t first_query,
                                        std::uint32_t queries) const {
        const std::uint64_t from = std::uint64_t{run} * on.heads + first_query;
        group.each([&](unsigned thread) {
            if constexpr (integer_scores) {
                auto* const codes = reinterpret_cast<std::int16_t*>(query);
                for (unsigned i = thread; i < Queries * Dim; i += threads)
                    codes[i] = i < queries * Dim ? on.query_codes[from * Dim + i] : std::int16_t{0};
                if (thread < Queries)
                    query[Queries * Dim / 2 + thread] = thread < queries ? on.query_scales[from + thread] : 0.0f;
            } else {
                for (unsigned i = thread; i < Queries * Dim; i += threads)
                    query[i] = i < queries * Dim ? on.queries[from * Dim + i] : 0.0f;
            }
        });
    }

    KVCACHE_HOST_DEVICE static void score(unsigned thread, std::uint32_t run, std::uint32_t first, std::uint32_t rows,
                                          const std::byte* keys, const block_memory& memory) noexcept {
        const unsigned token = thread % tile, begin = thread / tile * scored;
        const std::uint32_t row = first + token;
        if (begin >= Queries || row >= rows || memory.places[row].run != run)
            return;
        const std::byte* const key = keys + token * stride;
        float* const out = memory.scores + row * Queries + begin;
        if constexpr (integer_scores) {
            std::int32_t sums[scored] = {};
            KVCACHE_DEVICE_UNROLL
            for (unsigned d = 0; d < Dim; d += 16) {
                const vector16 k = *reinterpret_cast<const vector16*>(key + d);
                KVCACHE_DEVICE_UNROLL
                for (unsigned q = 0; q < scored; ++q) {
                    const auto* const codes = reinterpret_cast<const vector16*>(
                        reinterpret_cast<const std::int16_t*>(memory.query) + (begin + q) * Dim + d);
                    const vector16 low = codes[0], high = codes[1];
                    sums[q] = dot_8_16(k.words[0], low.words[0], low.words[1], sums[q]);
                    sums[q] = dot_8_16(k.words[1], low.words[2], low.words[3], sums[q]);
                    sums[q] = dot_8_16(k.words[2], high.words[0], high.words[1], sums[q]);
                    sums[q] = dot_8_16(k.words[3], high.words[2], high.words[3], sums[q]);
                }
            }
            KVCACHE_DEVICE_UNROLL
            for (unsigned q = 0; q < scored; ++q)
                out[q] = times(times(static_cast<float>(sums[q]), memory.query[Queries * Dim / 2 + begin + q]),
                               memory.scales[row]);
        } else {
            float sums[scored] = {};
            KVCACHE_DEVICE_UNROLL
            for (unsigned d = 0; d < Dim; d += 8) {
                float k[8];
                row_numbers<Format>::load(key, d, k);
                KVCACHE_DEVICE_UNROLL
                for (unsigned q = 0; q < scored; ++q) {
                    float x[8];
                    load_floats(memory.query + (begin + q) * Dim + d, x);
                    KVCACHE_DEVICE_UNROLL
                    for (unsigned i = 0; i < 8; ++i)
                        sums[q] = fused(x[i], k[i], sums[q]);
                }
            }
            KVCACHE_DEVICE_UNROLL
            for (unsigned q = 0; q < scored; ++q)
                out[q] = sums[q];
        }
    }

    // Scores become weights: 2^(score - maximum). A NaN score gives a NaN maximum.
    template <class Group>
    KVCACHE_HOST_DEVICE void softmax_tile(Group& group, std::uint32_t rows, const block_memory& memory,
                                          std::uint32_t split, std::uint32_t first_query, std::uint32_t queries) const {
        constexpr unsigned shares = threads / Queries;
        const std::uint64_t to = std::uint64_t{split} * on.heads + first_query;
        group.each([&](unsigned thread) {
            float most = -INFINITY;
            for (std::uint32_t row = thread / Queries; row < rows; row += shares)
                most = larger_or_none(memory.scores[row * Queries + thread % Queries], most);
            memory.partial[thread] = most;
        });
        group.each([&](unsigned thread) {
            float most = -INFINITY, total = 0.0f;
            for (unsigned share = 0; share < shares; ++share)
                most = larger_or_none(memory.partial[share * Queries + thread % Queries], most);
            for (std::uint32_t row = thread / Queries; row < rows; row += shares) {
                float& own = memory.scores[row * Queries + thread % Queries];
                const float weight = power_of_two(plus(own, -most));
                total = plus(total, weight);
                own = integer_scores ? times(weight, memory.scales[split_rows + row]) : weight;
            }
            memory.partial[threads + thread] = total;
            if (thread < queries)
                on.largest[to + thread] = most;
        });
        group.alone([&](unsigned thread) {
            if (thread >= queries)
                return;
            float total = 0.0f;
            for (unsigned share = 0; share < shares; ++share)
                total = plus(total, memory.partial[threads + share * Queries + thread]);
            on.totals[to + thread] = total;
        });
    }

    KVCACHE_HOST_DEVICE static void gather(unsigned thread, std::uint32_t first, std::uint32_t rows,
                                           const std::byte* values, const float* weights, gathered& own) noexcept {
        const unsigned walker = thread / lanes, d = thread % lanes * 8;
        if (walker >= walkers)
            return;
        const std::uint32_t here = rows - first < tile ? rows - first : tile;
        KVCACHE_DEVICE_UNROLL_4
        for (unsigned token = walker; token < here; token += walkers) {
            float v[8];
            row_numbers<Format>::load(values + token * stride, d, v);
            float weight[Queries];
            load_floats(weights + (first + token) * Queries, weight);
            KVCACHE_DEVICE_UNROLL
            for (unsigned i = 0; i < Queries * 8; ++i)
                own.sums[i / 8][i % 8] = fused(weight[i / 8], v[i % 8], own.sums[i / 8][i % 8]);
        }
    }
};

}}} // namespace kvcache::cuda
