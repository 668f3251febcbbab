// SPDX-License-Identifier: MIT
#pragma once

// The reference transformer, what generates with it, and the loaders of checkpoints, which need nlohmann-json besides.

#if __cplusplus < 202002L
#error "kvcache: C++20 is needed; compile with -std=c++20"
#else
#include <kvcache/kvcache.hpp>
#include <kvcache/model/load.hpp>
#endif
