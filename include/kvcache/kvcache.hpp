// SPDX-License-Identifier: MIT
#pragma once

// All that needs no more than Eigen, xsimd and xxHash: the cache with every policy, tiers, attention, the transformer
// and what generates with it. Loaders are in <kvcache/model.hpp>, text in <kvcache/chat.hpp>, since JSON, PCRE2 and
// utf8proc compile as long as all of this; conformance tests in <kvcache/testing.hpp>.

#if __cplusplus < 202002L
#error "kvcache: C++20 is needed; compile with -std=c++20"
#else
#include <kvcache/attention.hpp>
#include <kvcache/eviction/all.hpp>
#include <kvcache/hash/all.hpp>
#include <kvcache/index/all.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/locking/all.hpp>
#include <kvcache/model/transformer.hpp>
#include <kvcache/observer/all.hpp>
#include <kvcache/recompute/all.hpp>
#include <kvcache/session/beam_search.hpp>
#include <kvcache/session/chunk_generate.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/session/decode_state.hpp>
#include <kvcache/session/engine.hpp>
#include <kvcache/session/generate.hpp>
#include <kvcache/session/generate_many.hpp>
#include <kvcache/session/log_probabilities.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/reuse_quality.hpp>
#include <kvcache/session/sampler.hpp>
#include <kvcache/session/session_table.hpp>
#include <kvcache/session/snapshot.hpp>
#include <kvcache/session/stop_strings.hpp>
#include <kvcache/storage/all.hpp>
#include <kvcache/tier.hpp>
#endif
