// SPDX-License-Identifier: MIT
#include <kvcache/kernel/gemm.hpp>

namespace kvcache {

template void gemm(const rows_in&, const packed_matrix<float>&, const rows_out&, thread_pool&);
template void gemm(const rows_in&, const packed_matrix<bfloat16>&, const rows_out&, thread_pool&);
template void gemm(const rows_in&, const packed_matrix<half>&, const rows_out&, thread_pool&);

} // namespace kvcache
