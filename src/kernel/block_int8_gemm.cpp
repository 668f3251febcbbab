// SPDX-License-Identifier: MIT
#include <kvcache/kernel/block_int8_gemm.hpp>

namespace kvcache {

template void gemm<>(const rows_in&, const block_matrix&, const rows_out&, thread_pool&, int8_block_rows&);

} // namespace kvcache
