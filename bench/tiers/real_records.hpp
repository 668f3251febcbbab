// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/cache/any_codec.hpp>
#include <kvcache/kvcache.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/text/tokenizer.hpp>
#include <kvcache/tier.hpp>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace bench {

/// A tier that appends every record it is given to a list, and finds none.
struct collecting_tier {
    using role = kvcache::tier_role;
    std::vector<std::vector<std::byte>>* records = nullptr;

    struct state {
        std::vector<std::vector<std::byte>>* records;
        template <class Use>
        [[nodiscard]] kvcache::result<bool> read(const kvcache::sha256_digest&, Use&&) {
            return false;
        }
        [[nodiscard]] kvcache::result<void> put(const kvcache::tier_entry&,
                                                std::span<const std::span<const std::byte>> pieces) {
            auto& one = records->emplace_back();
            for (const auto piece : pieces)
                one.insert(one.end(), piece.begin(), piece.end());
            return {};
        }
        [[nodiscard]] bool contains(const kvcache::sha256_digest&) const noexcept { return false; }
        [[nodiscard]] kvcache::result<void> erase(const kvcache::sha256_digest&) { return {}; }
        [[nodiscard]] kvcache::result<void> flush() { return {}; }
        [[nodiscard]] kvcache::result<void> status() const { return {}; }
        [[nodiscard]] kvcache::tier_counts counts() const noexcept { return {}; }
    };
    [[nodiscard]] state open() const { return {records}; }
};
static_assert(kvcache::tier_policy<collecting_tier>);

/// Codecs whose pages are stored, besides f32.
using stored_codecs = std::tuple<kvcache::codec::bf16, kvcache::codec::f16, kvcache::codec::int8, kvcache::codec::int4,
                                 kvcache::codec::hadamard<kvcache::codec::int4>>;

/// A model and the first tokens of a text.
struct model_and_text {
    kvcache::loaded_model loaded;
    std::vector<kvcache::token_id> tokens;
};

/// Loads a model and tokenizes the beginning of a text. Throws: runtime_error.
[[nodiscard]] inline model_and_text load_model_and_text(const std::string& path, const std::string& text,
                                                        std::size_t tokens) {
    const auto must = [](auto made) {
        if (!made)
            throw std::runtime_error(made.error().message);
        return std::move(*made);
    };
    std::ifstream in(text);
    const std::string all((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    model_and_text made{
        must(kvcache::load_model(path)),
        must(must(kvcache::tokenizer::open(path)).encode(std::string_view(all).substr(0, 16 * tokens), {}))};
    if (made.tokens.size() < tokens)
        throw std::runtime_error(text + ": fewer than " + std::to_string(tokens) + " tokens");
    made.tokens.resize(tokens);
    return made;
}

/// Prefills the text with pages of 64 tokens, and returns the records that a tier receives, one for each page.
template <class Codec>
[[nodiscard]] std::vector<std::vector<std::byte>> records_of(const model_and_text& from, kvcache::thread_pool& pool,
                                                             const Codec& codec) {
    const auto shape = from.loaded.model.shape(64);
    std::vector<std::vector<std::byte>> records;
    const std::size_t pages = from.tokens.size() / 64 + 4;
    const std::size_t exact = 300 * kvcache::codec::residual_page::bytes_for(shape);
    auto cache = kvcache::make_cache({.shape = shape,
                                      .limit = {.bytes = pages * codec.open(shape).page_bytes() + exact},
                                      .id = from.loaded.model.id(from.loaded.weights)},
                                     codec, collecting_tier{&records});
    kvcache::pipeline pipeline(cache, from.loaded.model, pool);
    if (const auto filled = pipeline.prefill(from.tokens); !filled)
        throw std::runtime_error(filled.error().message);
    return records;
}

/// Calls `use(codec, records)` with the records of the text under each codec.
template <class Use>
void for_records(const model_and_text& from, Use use) {
    kvcache::thread_pool pool(2);
    use("f32", records_of(from, pool, kvcache::codec::f32{}));
    const auto one = [&](const auto& policy) {
        const auto name = kvcache::type_name<std::decay_t<decltype(policy)>>();
        use(std::string(name), records_of(from, pool, *kvcache::any_codec<stored_codecs>::named(name)));
    };
    std::apply([&](const auto&... policy) { (one(policy), ...); }, stored_codecs{});
}

} // namespace bench
