// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/result.hpp>

#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

/// A model.safetensors.index.json: the shard of each tensor.
struct shard_index {
    std::map<std::string, std::string, std::less<>> shard_of = {}; ///< File name by tensor name, in the same directory.

    /// Distinct file names, in order.
    KVCACHE_LAZY [[nodiscard]] std::vector<std::string> shards() const {
        std::set<std::string> distinct;
        for (const auto& [tensor, file] : shard_of)
            distinct.insert(file);
        return {distinct.begin(), distinct.end()};
    }

    /// Reads and checks an index. Errors: those of mapped_file::open; malformed, for invalid JSON, a missing or empty
    /// "weight_map", a duplicate key, or a file name with a path. The field is "weight_map.<tensor>" or similar.
    KVCACHE_ONCE [[nodiscard]] static result<shard_index> read(const std::filesystem::path& file);
};

}} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/model/huggingface/impl/shard_index.hpp>
#endif
