// SPDX-License-Identifier: MIT
#include <kvcache/kernel/int8_gemm.hpp>

namespace kvcache::detail {

template void int8_tiles<int8_rows_together, int8_panels_together>(const int8_rows&, row_range, const int8_matrix&,
                                                                   std::size_t, std::size_t, const rows_out&);
template void int8_streams<int8_panels_of_one>(const int8_rows&, const int8_matrix&, std::size_t, std::size_t,
                                               const rows_out&);

} // namespace kvcache::detail
