// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/core/file.hpp>
#include <kvcache/core/id.hpp>
#include <kvcache/formats/json.hpp>
#include <kvcache/index/chunking.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flags.hpp"
#include "model_directory.hpp"
#include "reuse_flags.hpp"
#include <CLI/CLI.hpp>

namespace support {

/// What a prompt reuses, and the documents that it begins with.
struct document_flags {
    std::string mode = "prefix", recompute = "head:16";
    std::vector<std::string> documents = {}; ///< Files.
    std::size_t chunk_size = 0;              ///< Tokens; 0: a document is one chunk.
    std::size_t boundary_window = 0, overlap = 0, sinks = 0;

    [[nodiscard]] kvcache::reuse_mode how() const { return *read_mode(mode); }
};

/// Adds `--document`, `--mode`, `--recompute`, and how documents are divided and computed.
inline void add_document_flags(CLI::App& app, document_flags& f) {
    auto* documents = app.add_option("--document", f.documents, "A text file that stands before the prompt; repeatable")
                          ->check(CLI::ExistingFile);
    add_reuse_flags(app, f.mode, f.recompute);
    app.add_option("--chunk-size", f.chunk_size, "Divide documents into chunks of so many tokens; 0: a document is one")
        ->check(whole(0, 1u << 20))
        ->needs(documents)
        ->capture_default_str();
    app.add_option("--boundary-window", f.boundary_window,
                   "End a chunk up to so many tokens earlier or later, where a sentence ends")
        ->check(whole(0, 1u << 20))
        ->needs(documents)
        ->capture_default_str();
    app.add_option("--overlap", f.overlap, "Compute a chunk after so many tokens that precede it in its document")
        ->check(whole(0, 1u << 20))
        ->needs(documents)
        ->capture_default_str();
    app.add_option("--sinks", f.sinks, "Compute a chunk after the first so many tokens of its document")
        ->check(whole(0, 1u << 20))
        ->needs(documents)
        ->capture_default_str();
}

/// The texts of files. Errors: those of read_file.
[[nodiscard]] inline kvcache::result<std::vector<std::string>> read_texts(const std::vector<std::string>& files) {
    std::vector<std::string> made;
    for (const std::string& file : files) {
        auto text = kvcache::read_file(file, std::size_t{1} << 30);
        if (!text)
            return text.error();
        made.push_back(std::move(*text));
    }
    return made;
}

/// The tokens of each document. Errors: those of read_file and of the tokenizer, with the file.
[[nodiscard]] inline kvcache::result<std::vector<std::vector<kvcache::token_id>>>
read_documents(const document_flags& f, const kvcache::tokenizer& words) {
    std::vector<std::vector<kvcache::token_id>> made;
    const auto texts = read_texts(f.documents);
    if (!texts)
        return texts.error();
    for (std::size_t i = 0; i < texts->size(); ++i) {
        auto ids = words.encode((*texts)[i], {.add_special_tokens = false, .parse_special = false});
        if (!ids)
            return kvcache::error{ids.error().code, f.documents[i], f.documents[i] + ": " + ids.error().message};
        made.push_back(std::move(*ids));
    }
    return made;
}

/// How documents are divided: at the ends of sentences, if a window is given.
[[nodiscard]] inline kvcache::index::chunking chunking_of(const document_flags& f, const kvcache::tokenizer& words) {
    kvcache::index::chunking made{.size = f.chunk_size, .window = f.boundary_window};
    if (f.boundary_window > 0)
        for (const std::string_view end : {".", ";", "?", "!", "\n", "\n\n"})
            if (const auto ids = words.encode(end, {.add_special_tokens = false}); ids && !ids->empty())
                made.ends.push_back(ids->back());
    std::ranges::sort(made.ends);
    return made;
}

/// Computes the documents by themselves, so that a prompt finds them at any position; nothing but in mode `chunks`.
/// What the cache or its tier has is not computed. Errors: those of the pipeline.
template <class Cache, class Model>
[[nodiscard]] kvcache::result<void> warm_documents(Cache& cache, kvcache::chunk_pipeline<Cache, Model>& pipeline,
                                                   const document_flags& f, const kvcache::index::chunking& split,
                                                   const std::vector<std::vector<kvcache::token_id>>& documents) {
    if (f.how() != kvcache::reuse_mode::chunks)
        return {};
    kvcache::chunk_reuse<Cache> chunks(cache);
    for (const auto& one : documents) {
        const auto parts = split.split(one);
        if (std::ranges::all_of(parts, [&](const kvcache::index::token_run& part) {
                return chunks.contains(std::span(one).subspan(part.first, part.count));
            }))
            continue;
        if (auto warmed = pipeline.warm(one, {.sink_tokens = f.sinks, .overlap = f.overlap}); !warmed)
            return warmed.error();
    }
    return {};
}

/// The counts of a prompt, with KVBoost's and this library's names.
inline void add_counts(kvcache::json& to, const document_flags& f, const kvcache::reuse_counts& counts) {
    to["mode"] = f.mode;
    to["approximate"] = counts.approximate > 0;
    to["kv_reuse_ratio"] = counts.reuse_ratio();
    to["exact_tokens"] = counts.exact;
    to["approximate_tokens"] = counts.approximate;
    to["recomputed_tokens"] = counts.recomputed;
    to["prefilled_tokens"] = counts.prefilled;
}

} // namespace support
