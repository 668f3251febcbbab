// SPDX-License-Identifier: MIT
#include <kvcache/attention/query_block.hpp>

namespace kvcache {

template void query_block::dispatch<detail::max_queries>(std::span<const attention_tile>, std::size_t, std::size_t,
                                                         bool);

} // namespace kvcache
