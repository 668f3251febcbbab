// SPDX-License-Identifier: MIT
#include <kvcache/kernel/product.hpp>

namespace kvcache {

template void product(const rows_in&, const packed_matrix<float>&, const rows_out&, team&);
template void product(const rows_in&, const packed_matrix<bfloat16>&, const rows_out&, team&);
template void product(const rows_in&, const packed_matrix<half>&, const rows_out&, team&);

} // namespace kvcache
