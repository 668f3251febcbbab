// SPDX-License-Identifier: MIT
#pragma once

// For tests of a host and of its policies: the conformance tests of every role, oracles, random weights.

#include <kvcache/testing/all.hpp>
#include <kvcache/testing/random_weights.hpp>
#include <kvcache/testing/reference_attention.hpp>
