// SPDX-License-Identifier: MIT
#pragma once

// The reference transformer, what generates with it, and the loaders of checkpoints, which need nlohmann-json besides.

#include <kvcache/kvcache.hpp>
#include <kvcache/model/huggingface/load.hpp>
