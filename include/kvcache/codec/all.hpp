// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/bf16.hpp>
#include <kvcache/codec/codebook.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/f16.hpp>
#include <kvcache/codec/int4.hpp>
#include <kvcache/codec/int4_channels.hpp>
#include <kvcache/codec/int8.hpp>
#include <kvcache/codec/int8_grouped.hpp>
#include <kvcache/codec/plain.hpp>
#include <kvcache/codec/recent_exact.hpp>
#include <kvcache/codec/rotated.hpp>
#include <kvcache/codec/sinks_exact.hpp>
#include <kvcache/codec/split.hpp>

#include <tuple>

namespace kvcache::inline KVCACHE_ABI {

/// Every codec policy of the library, with its standard options.
using codec_policies =
    std::tuple<plain, bf16, f16, int8, int8_grouped, int4, int4_channels, rotated<int4>, codebook<4>, codebook<3>,
               codebook<2>, split<int4_channels, int4>, sinks_exact<int8>, recent_exact<int8>>;

} // namespace kvcache
