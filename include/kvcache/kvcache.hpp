// SPDX-License-Identifier: MIT
#pragma once

// Everything that needs only Eigen, xsimd and xxhash. Checkpoints are read by <kvcache/model/huggingface/load.hpp>
// (component json), text by <kvcache/text/...> (component text).

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
#include <kvcache/session/chunk_generate.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/session/generate.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/sampler.hpp>
#include <kvcache/session/snapshot.hpp>
#include <kvcache/session/verify.hpp>
#include <kvcache/storage/all.hpp>
#include <kvcache/testing/all.hpp>
#include <kvcache/tier/all.hpp>
