// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/architectures/architecture.hpp>
#include <kvcache/model/architectures/gemma.hpp>
#include <kvcache/model/architectures/gemma2.hpp>
#include <kvcache/model/architectures/gemma3.hpp>
#include <kvcache/model/architectures/gemma4.hpp>
#include <kvcache/model/architectures/gpt_oss.hpp>
#include <kvcache/model/architectures/granite.hpp>
#include <kvcache/model/architectures/granitehybrid.hpp>
#include <kvcache/model/architectures/lfm2.hpp>
#include <kvcache/model/architectures/llama.hpp>
#include <kvcache/model/architectures/mistral.hpp>
#include <kvcache/model/architectures/mixtral.hpp>
#include <kvcache/model/architectures/olmo2.hpp>
#include <kvcache/model/architectures/phi3.hpp>
#include <kvcache/model/architectures/qwen2.hpp>
#include <kvcache/model/architectures/qwen3.hpp>
#include <kvcache/model/architectures/qwen35.hpp>
#include <kvcache/model/architectures/qwen35moe.hpp>
#include <kvcache/model/architectures/qwen3moe.hpp>
#include <kvcache/model/architectures/qwen3next.hpp>
#include <kvcache/model/architectures/smollm3.hpp>

#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI {

/// All architectures.
inline constexpr architecture known_architectures[] = {
    architectures::llama,     architectures::mistral,       architectures::qwen2,   architectures::qwen3,
    architectures::gemma2,    architectures::gemma3,        architectures::granite, architectures::olmo2,
    architectures::phi3,      architectures::smollm3,       architectures::mixtral, architectures::qwen3moe,
    architectures::lfm2,      architectures::qwen35,        architectures::gpt_oss, architectures::qwen35moe,
    architectures::qwen3next, architectures::granitehybrid, architectures::gemma4,  architectures::gemma,
};

/// The architecture of this name, or null.
[[nodiscard]] constexpr const architecture* find_architecture(std::string_view name) noexcept {
    for (const architecture& one : known_architectures)
        if (one.name == name)
            return &one;
    return nullptr;
}

/// The names of all architectures in a sentence, by a member: "llama, mistral and qwen2".
[[nodiscard]] inline std::string list_of_architectures(std::string_view architecture::*name) {
    std::string all;
    std::size_t left = std::size(known_architectures);
    for (const architecture& one : known_architectures) {
        all += one.*name;
        all += --left > 1 ? ", " : left == 1 ? " and " : "";
    }
    return all;
}

}} // namespace kvcache
