// SPDX-License-Identifier: MIT
#pragma once

// Conformance tests for the policies of every role, the library's and yours. Each takes a policy and returns the laws
// that it violates.

#include <kvcache/testing/codec_laws.hpp>
#include <kvcache/testing/eviction_laws.hpp>
#include <kvcache/testing/hash_laws.hpp>
#include <kvcache/testing/index_laws.hpp>
#include <kvcache/testing/locking_laws.hpp>
#include <kvcache/testing/recompute_laws.hpp>
#include <kvcache/testing/storage_laws.hpp>
#include <kvcache/testing/tier_laws.hpp>
#include <kvcache/testing/violations.hpp>
