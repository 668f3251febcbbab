// SPDX-License-Identifier: MIT
#pragma once

// Conformance tests for the policies of every role, the library's and yours. Each takes a policy and returns the
// properties that it violates.

#include <kvcache/testing/codec_conformance.hpp>
#include <kvcache/testing/eviction_conformance.hpp>
#include <kvcache/testing/fault_injecting.hpp>
#include <kvcache/testing/index_conformance.hpp>
#include <kvcache/testing/role_conformance.hpp>
#include <kvcache/testing/tier_conformance.hpp>
#include <kvcache/testing/violations.hpp>
