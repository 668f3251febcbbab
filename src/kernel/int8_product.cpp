// SPDX-License-Identifier: MIT
#include <kvcache/kernel/int8_product.hpp>

namespace kvcache::detail {

template void int8_tiles<int8_rows_together>(const int8_rows&, std::size_t, std::size_t, const int8_matrix&,
                                             std::size_t, const rows_out&);

} // namespace kvcache::detail
