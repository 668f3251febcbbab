// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/kernel/gemm_macrokernel.hpp>
#include <kvcache/kernel/gemm_microkernel.hpp>
#include <kvcache/kernel/packed_matrix.hpp>
#include <kvcache/kernel/simd.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <cstddef>

namespace kvcache::inline KVCACHE_ABI {

/// GEMM y = x W^T with packed weights. (rows, inputs) x (outputs, inputs) -> (rows, outputs)
/// Each output is one chain of fused multiply-adds over ascending inputs, so its bits depend neither on the number of
/// rows nor on threads nor on the vector width. Blocking follows Goto & van de Geijn 2008: a block of rows stays in the
/// L2 cache while the strips of weights stream past it.
/// Cost: rows * inputs * outputs multiply-adds, near the machine's peak from some tens of rows on. With few rows,
/// reading the weights dominates.
template <weight_format Weight>
void gemm(const rows_in& x, const packed_matrix<Weight>& w, const rows_out& y, thread_pool& threads) {
    const detail::gemm_macrokernel<Weight> block(x, w, y);
    const std::size_t work = x.rows * w.inputs() * w.outputs();
    if (x.rows == 0)
        return;
    const std::size_t strips = w.strips();
    if (x.rows <= detail::tallest_tile) {
        const std::size_t at_once = detail::strips_at_once(x.rows);
        threads.parallel_for_strided((strips + at_once - 1) / at_once, 1, work,
                                     [&](std::size_t begin, std::size_t end) {
                                         block.run_few(begin * at_once, std::min(end * at_once, strips));
                                     });
        return;
    }
    const std::size_t row_blocks = (x.rows + detail::block_rows - 1) / detail::block_rows;
    const auto block_at = [&](std::size_t b) { // multiples of a whole tile: short tiles leave the FMA pipes idle
        return std::min(x.rows, (x.rows * b / row_blocks + detail::packed_rows - 1) / detail::packed_rows *
                                    detail::packed_rows);
    };
    const auto rows_of = [&](std::size_t b) { return row_range{block_at(b), block_at(b + 1)}; };
    // Calls body(row block, first, last) for the jobs [begin, end), where each row block has `jobs` jobs.
    const auto each_block = [&](std::size_t jobs, std::size_t begin, std::size_t end, auto body) {
        for (std::size_t last; begin < end; begin = last) {
            const std::size_t b = begin / jobs;
            last = std::min(end, (b + 1) * jobs);
            body(b, begin - b * jobs, last - b * jobs);
        }
    };
    // One block of rows and inputs at a time stays in the L2 cache. With several threads, two blocks halve the number
    // of waits.
    constexpr std::size_t tiles = detail::block_rows / detail::packed_rows;
    constexpr std::size_t cut = 4; // pieces of a strip at the end of a loop, for load balancing
    constexpr std::size_t room = detail::block_inputs * detail::block_rows;
    const std::size_t at_once = std::min<std::size_t>(threads.threads() > 1 ? 2 : 1, row_blocks);
    float* const packed = threads.scratch(at_once * room);
    for (std::size_t first = 0; first < row_blocks; first += at_once) {
        const std::size_t blocks = std::min(at_once, row_blocks - first);
        for (std::size_t k = 0; k < block.packed_blocks(); ++k) {
            threads.parallel_for(blocks * tiles, x.rows * w.inputs(), [&](std::size_t begin, std::size_t end) {
                for (std::size_t t = begin; t < end; ++t)
                    block.pack_tile(rows_of(first + t / tiles), t % tiles, k, packed + t / tiles * room);
            });
            threads.parallel_for_strided(blocks * strips, cut, work, [&](std::size_t begin, std::size_t end) {
                each_block(strips * cut, begin, end, [&](std::size_t b, std::size_t piece, std::size_t last) {
                    const float* soon = k + 1 < block.packed_blocks()
                                            ? block.unpacked(block_at(first + b), k + 1)
                                            : block.unpacked(block_at(first + b + at_once), 0);
                    block.run_packed(block.packed(rows_of(first + b), k, packed + b * room, soon), piece, last, cut);
                });
            });
        }
    }
    if (const std::size_t k = w.inputs() / 4 * 4; k < w.inputs() || k == 0)
        threads.parallel_for_strided(row_blocks * strips, 1, work, [&](std::size_t begin, std::size_t end) {
            each_block(strips, begin, end, [&](std::size_t b, std::size_t strip, std::size_t last) {
                block.run_rest(rows_of(b), strip, last, k);
            });
        });
}

#if KVCACHE_COMPILED
extern template void gemm(const rows_in&, const packed_matrix<float>&, const rows_out&, thread_pool&);
extern template void gemm(const rows_in&, const packed_matrix<bfloat16>&, const rows_out&, thread_pool&);
extern template void gemm(const rows_in&, const packed_matrix<half>&, const rows_out&, thread_pool&);
#endif

} // namespace kvcache
