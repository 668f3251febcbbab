// SPDX-License-Identifier: MIT
#pragma once

// For tests of a host and of its policies: the conformance tests of every role, oracles, random weights.

#if __cplusplus < 202002L
#error "kvcache: C++20 is needed; compile with -std=c++20"
#else
#include <kvcache/testing/all.hpp>
#include <kvcache/testing/random_weights.hpp>
#include <kvcache/testing/reference_attention.hpp>
#endif
