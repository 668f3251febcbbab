// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/digest.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/model/transformer.hpp>

#include <concepts>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory_resource>
#include <optional>
#include <utility>

namespace kvcache::inline KVCACHE_ABI {

/// How a model is loaded.
struct load_options {
    std::size_t threads = 0; ///< That read and pack; 0 means as many as the machine has. They end with the loading.

    /// Where the packed weights are kept for the next start, or nothing: they are then packed at every start.
    /// packed_path() is the usual place.
    std::optional<std::filesystem::path> packed = std::nullopt;

    /// Whether the digest of kept weights is checked before they are used: every one of them is read.
    bool check_payload = true;

    /// Whether files that the system describes as it did when the weights were packed (device, inode, size, times) are
    /// taken for the same; without it, and wherever the description differs, their content is read and compared.
    bool trust_description = true;

    bool int8 = false; ///< Whether the model computes in int8 (transformer::in_int8): approximate, and its own model.

    std::pmr::memory_resource* memory = nullptr; ///< Where weights packed now lie; null means new and delete.
};

/// The usual place of a model directory's packed weights: beside them.
KVCACHE_LAZY [[nodiscard]] inline std::filesystem::path packed_path(const std::filesystem::path& directory) {
    return directory / "model.kvcache-packed";
}

/// What became of load_options::packed.
struct load_report {
    bool reused = false;                          ///< The weights are those that an earlier start had packed, mapped.
    bool kept = false;                            ///< They were packed now, and kept for the next start.
    std::optional<error> refused = std::nullopt;  ///< Why a file that was there was not used.
    std::optional<error> not_kept = std::nullopt; ///< Why weights packed now could not be kept.
};

/// A model from a directory, and the identity of what it computes.
struct loaded_model {
    transformer model;
    digest weights; ///< Of the checkpoint's names, dtypes, shapes and bytes.
    load_report report = {};
};

namespace detail {

/// load_model(); `progress` may be empty.
KVCACHE_ONCE [[nodiscard]] result<loaded_model>
load_and_tell(const std::filesystem::path& directory, const load_options& options,
              const std::function<void(std::size_t, std::size_t)>& progress);

} // namespace detail

/// Opens a Hugging Face model directory: config.json and model.safetensors, or shards with an index. Weights are
/// mapped, packed once by all threads, and the files closed; or, if they were kept packed by an earlier start and are
/// still those of the directory, mapped as they are. Kept weights that are not used are packed again and replaced, and
/// the report says why. `progress(done, of)` is called after each layer that is packed.
/// Errors: what the model cannot run, by the field's name; missing, truncated or lying files; out_of_memory.
template <std::invocable<std::size_t, std::size_t> Progress>
[[nodiscard]] result<loaded_model> load_model(const std::filesystem::path& directory, const load_options& options,
                                              Progress progress) {
    return detail::load_and_tell(directory, options, [&](std::size_t done, std::size_t of) { progress(done, of); });
}

KVCACHE_LAZY [[nodiscard]] inline result<loaded_model> load_model(const std::filesystem::path& directory,
                                                                  const load_options& options) {
    return detail::load_and_tell(directory, options, {});
}

template <std::invocable<std::size_t, std::size_t> Progress>
[[nodiscard]] result<loaded_model> load_model(const std::filesystem::path& directory, Progress progress) {
    return load_model(directory, load_options{}, std::move(progress));
}

KVCACHE_LAZY [[nodiscard]] inline result<loaded_model> load_model(const std::filesystem::path& directory) {
    return load_model(directory, load_options{});
}

} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/model/huggingface/impl/load.hpp>
#endif
