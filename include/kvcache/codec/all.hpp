// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/codec/concept.hpp>
#include <kvcache/codec/plain.hpp>

#include <tuple>

namespace kvcache {

/// Every codec policy of the library, with its standard options.
using codec_policies = std::tuple<plain>;

} // namespace kvcache
