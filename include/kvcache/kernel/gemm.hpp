// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/kernel/gemm_macrokernel.hpp>
#include <kvcache/kernel/gemm_microkernel.hpp>
#include <kvcache/kernel/gemm_packed_rows.hpp>
#include <kvcache/kernel/packed_matrix.hpp>
#include <kvcache/kernel/simd.hpp>
#include <kvcache/kernel/strided_rows.hpp>
#include <kvcache/kernel/thread_pool.hpp>

#include <algorithm>
#include <cstddef>

namespace kvcache { inline namespace KVCACHE_ABI {

/// GEMM y = x W^T with packed weights. (rows, inputs) x (outputs, inputs) -> (rows, outputs)
/// Each output is one chain of fused multiply-adds over ascending inputs, so its bits depend neither on the number of
/// rows nor on threads nor on the vector width. Blocking follows Goto & van de Geijn 2008: a block of rows stays in the
/// L2 cache while the strips of weights stream past it.
/// Cost: rows * inputs * outputs multiply-adds, near the machine's peak from some tens of rows on. With few rows,
/// reading the weights dominates.
template <weight_format Weight>
void gemm(const rows_in& x, const packed_matrix<Weight>& w, const rows_out& y, thread_pool& threads) {
    const detail::gemm_macrokernel<packed_matrix<Weight>> block(x, w, y);
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
    const detail::row_blocks rows(x.rows);
    detail::gemm_of_packed_rows(x, w, rows, block, threads);
    if (const std::size_t k = w.inputs() / 4 * 4; k < w.inputs() || k == 0)
        threads.parallel_for_strided(rows.count() * strips, 1, work, [&](std::size_t begin, std::size_t end) {
            detail::row_blocks::each(strips, begin, end, [&](std::size_t b, std::size_t strip, std::size_t last) {
                block.run_rest(rows.of(b), strip, last, k);
            });
        });
}

#if KVCACHE_COMPILED
extern template void gemm(const rows_in&, const packed_matrix<float>&, const rows_out&, thread_pool&);
extern template void gemm(const rows_in&, const packed_matrix<bfloat16>&, const rows_out&, thread_pool&);
extern template void gemm(const rows_in&, const packed_matrix<half>&, const rows_out&, thread_pool&);
#endif

}} // namespace kvcache
