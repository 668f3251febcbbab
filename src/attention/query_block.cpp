// SPDX-License-Identifier: MIT
#include <kvcache/attention/query_block.hpp>

namespace kvcache {

template void query_block::dispatch<detail::most_together, true>(std::span<const attention_tile>, std::size_t,
                                                                 std::size_t);
template void query_block::dispatch<detail::most_together, false>(std::span<const attention_tile>, std::size_t,
                                                                  std::size_t);

} // namespace kvcache
