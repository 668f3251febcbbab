// SPDX-License-Identifier: MIT
#include <kvcache/attention/quantized_tiles.hpp>

namespace kvcache::detail {

template void quantized_tiles<queries_of_codes>::score(std::span<const attention_tile>, const float*, std::size_t,
                                                       std::size_t, float*, const code_fetch&);
template void quantized_tiles<queries_of_codes>::add(std::span<const attention_tile>, std::size_t, const query_weights&,
                                                     std::size_t, rows_out, const code_fetch&) const;

} // namespace kvcache::detail
