// SPDX-License-Identifier: MIT
#pragma once

// The reference transformer, its loaders, and what generates with it. Needs nlohmann-json besides.

#include <kvcache/attention.hpp>
#include <kvcache/model/huggingface/load.hpp>
#include <kvcache/model/transformer.hpp>
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
