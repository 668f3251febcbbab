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

namespace kvcache::inline KVCACHE_ABI {

/// A model.safetensors.index.json: which shard holds which tensor.
struct shard_index {
    std::map<std::string, std::string, std::less<>> shard_of = {}; ///< Tensor to file name, in the same directory.

    /// The distinct file names, in order.
    KVCACHE_LAZY [[nodiscard]] std::vector<std::string> shards() const {
        std::set<std::string> distinct;
        for (const auto& [tensor, file] : shard_of)
            distinct.insert(file);
        return {distinct.begin(), distinct.end()};
    }

    /// Reads and checks an index.
    /// Errors: mapped_file::open's; malformed, for what is no JSON, a missing or empty "weight_map", a key that is
    /// there twice, or a file name that is more than a name. The field is "weight_map.<tensor>" and the like.
    KVCACHE_ONCE [[nodiscard]] static result<shard_index> read(const std::filesystem::path& file);
};

} // namespace kvcache

#if !KVCACHE_COMPILED
#include <kvcache/model/huggingface/impl/shard_index.hpp>
#endif
