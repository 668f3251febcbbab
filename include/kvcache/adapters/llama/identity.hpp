// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/core/identity.hpp>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

#include <llama.h>

namespace kvcache { inline namespace KVCACHE_ABI {

/// The digest of a model file's bytes. It is computed once, and kept in a file with its name and ".kvcache-digest",
/// with a description of the file that it was computed of; where that cannot be written, it is computed each time.
/// Errors: those of mapped_file. Cost: reads the file, about a second for each 5 GB in memory.
[[nodiscard]] inline result<std::string> digest_of_model_file(const std::filesystem::path& path) {
    const auto file = mapped_file::open(path);
    if (!file)
        return file.error();
    const auto described = file->description(std::chrono::system_clock::now());
    const std::filesystem::path beside = path.string() + ".kvcache-digest";
    if (described) {
        std::ifstream kept(beside);
        std::string of, made;
        if (kept >> of >> made && of == to_string(*described) && made.size() == 32)
            return made;
    }
    const std::string made = to_string(digest_builder().bytes(file->bytes()).finish());
    if (described) {
        const std::filesystem::path part = beside.string() + ".part";
        if (std::ofstream(part, std::ios::trunc) << to_string(*described) << ' ' << made << '\n') {
            std::error_code ignored;
            std::filesystem::rename(part, beside, ignored);
        }
    }
    return made;
}

/// The identity of what a llama_context computes: the metadata and the size of its model, the digest of the model's
/// file, the settings of the context that change keys and values, the adapters, the library and the machine's
/// instruction set, and `evidence`, bytes that the context has computed for fixed tokens. `settings`: those that the
/// context was made with.
[[nodiscard]] inline identity llama_identity(const llama_context* context, const llama_context_params& settings,
                                             const std::string& adapters, const std::string& file_digest,
                                             std::span<const std::byte> evidence) {
    const llama_model* const model = llama_get_model(context);
    digest_builder metadata;
    std::string text(1 << 16, '\0');
    const std::int32_t count = llama_model_meta_count(model);
    for (std::int32_t i = 0; i < count; ++i) {
        for (const bool key : {true, false}) {
            const std::int32_t size = key ? llama_model_meta_key_by_index(model, i, text.data(), text.size())
                                          : llama_model_meta_val_str_by_index(model, i, text.data(), text.size());
            const std::size_t said = size < 0 ? 0 : static_cast<std::size_t>(size);
            metadata.number(said).text(std::string_view(text).substr(0, std::min(said, text.size() - 1)));
        }
    }
    metadata.text(file_digest).number(llama_model_size(model)).number(llama_model_n_params(model));

    const auto number = [](const char* name, auto value) {
        if constexpr (std::is_same_v<decltype(value), float>)
            return " " + std::string(name) + "=" + std::to_string(std::bit_cast<std::uint32_t>(value)); // all its bits
        else
            return " " + std::string(name) + "=" + std::to_string(value);
    };
    identity made;
    made.weights = metadata.finish();
    made.adapter = adapters;
    made.weight_format = llama_ftype_name(llama_model_ftype(model));
    made.rope = "llama.cpp" + number("base", settings.rope_freq_base) + number("scale", settings.rope_freq_scale) +
                number("scaling", static_cast<int>(settings.rope_scaling_type)) +
                number("yarn_ext", settings.yarn_ext_factor) + number("yarn_attn", settings.yarn_attn_factor) +
                number("yarn_fast", settings.yarn_beta_fast) + number("yarn_slow", settings.yarn_beta_slow) +
                number("yarn_ctx", settings.yarn_orig_ctx);
    made.config = "llama.cpp" + number("type_k", static_cast<int>(settings.type_k)) +
                  number("type_v", static_cast<int>(settings.type_v)) +
                  number("flash_attn", static_cast<int>(settings.flash_attn_type)) +
                  number("attention", static_cast<int>(settings.attention_type)) +
                  number("swa_full", static_cast<int>(settings.swa_full)) +
                  number("offload_kqv", static_cast<int>(settings.offload_kqv)) +
                  " evidence=" + to_string(digest_builder().bytes(evidence).finish());
    made.backend =
        std::string("llama.cpp state ") + std::to_string(LLAMA_STATE_SEQ_VERSION) + "; " + llama_print_system_info();
    return made;
}

}} // namespace kvcache
