// SPDX-License-Identifier: MIT
#pragma once

// The laws of every role, for policies of the library and yours. Each takes a policy and gives back the laws it broke.

#include <kvcache/testing/codec_laws.hpp>
#include <kvcache/testing/eviction_laws.hpp>
#include <kvcache/testing/hash_laws.hpp>
#include <kvcache/testing/index_laws.hpp>
#include <kvcache/testing/locking_laws.hpp>
#include <kvcache/testing/recompute_laws.hpp>
#include <kvcache/testing/storage_laws.hpp>
#include <kvcache/testing/tier_laws.hpp>
#include <kvcache/testing/violations.hpp>
