// SPDX-License-Identifier: MIT
#pragma once

// Everything that needs only Eigen, xsimd and xxhash. Checkpoints are read by <kvcache/model/huggingface/load.hpp>
// (component json); text is read by <kvcache/text/...>, and conversations are held by
// <kvcache/session/chat_session.hpp> (component text).

#include <kvcache/cache/compose.hpp>
#include <kvcache/codec/all.hpp>
#include <kvcache/core/version.hpp>
#include <kvcache/eviction/all.hpp>
#include <kvcache/hash/all.hpp>
#include <kvcache/index/all.hpp>
#include <kvcache/locking/all.hpp>
#include <kvcache/model/transformer.hpp>
#include <kvcache/observer/all.hpp>
#include <kvcache/recompute/all.hpp>
#include <kvcache/session/answering.hpp>
#include <kvcache/session/beam_search.hpp>
#include <kvcache/session/chunk_generate.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/session/engine.hpp>
#include <kvcache/session/generate.hpp>
#include <kvcache/session/generate_many.hpp>
#include <kvcache/session/log_probabilities.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/presets.hpp>
#include <kvcache/session/sampler.hpp>
#include <kvcache/session/session_table.hpp>
#include <kvcache/session/snapshot.hpp>
#include <kvcache/session/stop_strings.hpp>
#include <kvcache/session/verify.hpp>
#include <kvcache/storage/all.hpp>
#include <kvcache/testing/all.hpp>
#include <kvcache/tier/all.hpp>
