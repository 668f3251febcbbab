// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/kernel/gemm_macrokernel.hpp>
#include <kvcache/kernel/gemm_microkernel.hpp>
#include <kvcache/kernel/pack_a.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <cstddef>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

// The blocks of rows of a GEMM: multiples of a whole tile, since short tiles leave the FMA pipes idle.
class row_blocks {
public:
    explicit row_blocks(std::size_t rows) : rows_(rows), count_((rows + block_rows - 1) / block_rows) {}

    [[nodiscard]] std::size_t count() const { return count_; }
    [[nodiscard]] std::size_t begin(std::size_t b) const {
        return std::min(rows_, (rows_ * b / count_ + packed_rows - 1) / packed_rows * packed_rows);
    }
    [[nodiscard]] row_range of(std::size_t b) const { return {begin(b), begin(b + 1)}; }

    // Calls body(row block, first, last) for the jobs [begin, end), where each row block has `jobs` jobs.
    template <class Body>
    static void each(std::size_t jobs, std::size_t begin, std::size_t end, Body body) {
        for (std::size_t last; begin < end; begin = last) {
            const std::size_t b = begin / jobs;
            last = std::min(end, (b + 1) * jobs);
            body(b, begin - b * jobs, last - b * jobs);
        }
    }

private:
    std::size_t rows_, count_;
};

// Products of packed rows with all strips, for the inputs that are packed. One block of rows and inputs at a time stays
// in the L2 cache. With several threads, two blocks halve the number of waits.
template <class Matrix>
void gemm_of_packed_rows(const rows_in& x, const Matrix& w, const row_blocks& rows,
                         const gemm_macrokernel<Matrix>& block, thread_pool& threads) {
    constexpr std::size_t tiles = block_rows / packed_rows;
    constexpr std::size_t cut = 4; // pieces of a strip at the end of a loop, for load balancing
    constexpr std::size_t room = block_inputs * block_rows;
    const std::size_t work = x.rows * w.inputs() * w.outputs(), strips = block.strips();
    const std::size_t at_once = std::min<std::size_t>(threads.threads() > 1 ? 2 : 1, rows.count());
    float* const packed = threads.scratch(at_once * room);
    for (std::size_t first = 0; first < rows.count(); first += at_once) {
        const std::size_t blocks = std::min(at_once, rows.count() - first);
        for (std::size_t k = 0; k < block.packed_blocks(); ++k) {
            threads.parallel_for(blocks * tiles, x.rows * w.inputs(), [&](std::size_t begin, std::size_t end) {
                for (std::size_t t = begin; t < end; ++t)
                    block.pack_tile(rows.of(first + t / tiles), t % tiles, k, packed + t / tiles * room);
            });
            threads.parallel_for_strided(blocks * strips, cut, work, [&](std::size_t begin, std::size_t end) {
                row_blocks::each(strips * cut, begin, end, [&](std::size_t b, std::size_t piece, std::size_t last) {
                    const float* soon = k + 1 < block.packed_blocks()
                                            ? block.unpacked(rows.begin(first + b), k + 1)
                                            : block.unpacked(rows.begin(first + b + at_once), 0);
                    block.run_packed(block.packed(rows.of(first + b), k, packed + b * room, soon), piece, last, cut);
                });
            });
        }
    }
}

}}} // namespace kvcache::detail
