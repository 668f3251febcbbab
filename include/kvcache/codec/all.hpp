// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/by_group.hpp>
#include <kvcache/codec/codebook.hpp>
#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/delta.hpp>
#include <kvcache/codec/external.hpp>
#include <kvcache/codec/f32.hpp>
#include <kvcache/codec/float16.hpp>
#include <kvcache/codec/hadamard.hpp>
#include <kvcache/codec/int4.hpp>
#include <kvcache/codec/int4_per_channel.hpp>
#include <kvcache/codec/int8.hpp>
#include <kvcache/codec/keep_exact.hpp>
#include <kvcache/codec/mixed_kv.hpp>
#include <kvcache/codec/opaque.hpp>
#include <kvcache/codec/row_major.hpp>

#include <tuple>

namespace kvcache { inline namespace KVCACHE_ABI {

/// All codec policies of the library, with their default options.
using codec_policies = std::tuple<
    codec::f32, codec::row_major<float, codec::kv_layout::nhd>, codec::row_major<half, codec::kv_layout::nhd>,
    codec::row_major<bfloat16, codec::kv_layout::nhd>, codec::row_major<float, codec::kv_layout::hnd>,
    codec::row_major<half, codec::kv_layout::hnd>, codec::row_major<bfloat16, codec::kv_layout::hnd>, codec::bf16,
    codec::f16, codec::int8, codec::int8_grouped, codec::int4, codec::int4_per_channel, codec::hadamard<codec::int4>,
    codec::codebook<5>, codec::codebook<4>, codec::codebook<3>, codec::codebook<2>, codec::delta<3>,
    codec::mixed_kv<codec::delta<3>, codec::codebook<3>>, codec::mixed_kv<codec::int4_per_channel, codec::int4>,
    codec::keep_sinks<codec::int8>, codec::keep_recent<codec::int8>>;

}} // namespace kvcache
