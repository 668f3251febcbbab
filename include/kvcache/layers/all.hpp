// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/layers/concept.hpp>
#include <kvcache/layers/grouped.hpp>
#include <kvcache/layers/uniform.hpp>

#include <tuple>

namespace kvcache { inline namespace KVCACHE_ABI {

/// Every layers policy of the library, with its default options.
using layers_policies = std::tuple<layers::uniform, layers::grouped>;

}} // namespace kvcache
