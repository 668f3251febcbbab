// SPDX-License-Identifier: MIT
#include <kvcache/kernel/block_gemm.hpp>

namespace kvcache {

template void gemm<>(const rows_in&, const block_matrix&, const rows_out&, thread_pool&);

} // namespace kvcache
