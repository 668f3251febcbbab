// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/session/generate.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/snapshot.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace support {

/// A context that was loaded, and whose tokens have run.
template <class Cache>
struct loaded_context {
    kvcache::prefill_result<Cache> begun; ///< `reused`: tokens of the file. `prefilled`: tokens that ran after them.
    kvcache::generation_state state = {}; ///< The answer that the file ends with.
};

/// The same error with the name of the flag and of the file in front.
[[nodiscard]] inline kvcache::error in_file(const char* flag, const std::string& file, kvcache::error fault) {
    if (fault.message.find(fault.field) == fault.message.npos)
        fault.message = fault.field + ": " + fault.message;
    return {fault.code, flag, std::string(flag) + ": " + file + ": " + fault.message};
}

/// Bytes of pages that a saved context takes at most: those of its file, and of a page that is not full. 0 if there is
/// no such file.
[[nodiscard]] inline std::size_t context_bytes(const std::string& file, std::size_t page_bytes) {
    std::error_code fault;
    const auto bytes = std::filesystem::file_size(file, fault);
    return fault ? 0 : static_cast<std::size_t>(bytes) + page_bytes;
}

/// Loads a context and runs what follows it: the token that was drawn last and has not run, if there is one, and then
/// `more`. If that is nothing, the last token runs again, for its logits. Errors: those of load_snapshot and
/// pipeline::extend; out_of_range for a context without a token.
template <class Cache, class Model>
[[nodiscard]] kvcache::result<loaded_context<Cache>>
load_context(Cache& cache, kvcache::pipeline<Cache, Model>& pipeline, const std::filesystem::path& file,
             std::span<const kvcache::token_id> more, kvcache::logits_mode wanted) {
    auto loaded = kvcache::load_snapshot(cache, file);
    if (!loaded)
        return loaded.error();
    auto& sequence = loaded->sequence;
    std::vector<kvcache::token_id> rest = loaded->state.pending;
    rest.insert(rest.end(), more.begin(), more.end());
    if (rest.empty() && sequence.size() > 0) {
        const std::vector<kvcache::token_id> all(sequence.tokens().begin(), sequence.tokens().end());
        sequence.truncate(all.size() - 1); // in a page that is quantized, to the page's first token
        rest.assign(all.begin() + static_cast<std::ptrdiff_t>(sequence.size()), all.end());
    }
    const std::size_t reused = sequence.size();
    auto logits = pipeline.extend(sequence, rest, wanted);
    if (!logits)
        return logits.error();
    return loaded_context<Cache>{{std::move(sequence), std::move(*logits), reused, rest.size(), {}},
                                 std::move(loaded->state)};
}

/// Saves the context that an answer ends with: all tokens that ran, and its last token, which has not. `before`: draws
/// of the same answer before these. Errors: those of save_snapshot.
template <class Cache>
[[nodiscard]] kvcache::result<void> save_context(const Cache& cache, const kvcache::answer<Cache>& made,
                                                 const kvcache::sampler& sampling, std::uint64_t before,
                                                 const std::filesystem::path& file) {
    kvcache::generation_state state{sampling, before + made.ids.size(), {}};
    if (!made.ids.empty())
        state.pending.push_back(made.ids.back());
    return kvcache::save_snapshot(cache, made.prompt.sequence, state, file);
}

} // namespace support
