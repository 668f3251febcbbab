// SPDX-License-Identifier: MIT
//
// Documents are computed once, each alone, and then occur in a prompt in another order. The program shows what each
// reuse mode saves and what it changes. If every token is recomputed, or only prefixes are reused, the logits are
// those of a full prefill.
// test: examples/models/worlds-2m

#include <kvcache/kvcache.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <array>
#include <cstdio>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/guarded.hpp"

namespace {

using namespace kvcache::literals;
using tokens = std::vector<kvcache::token_id>;

constexpr std::array<std::string_view, 4> notes{
    "\n- Rosa was born in November. Rosa lives in Kelmo. Rosa works as a doctor.",
    "\n- The fair of Rondal is in September. Rondal is known for rope. The mayor of Rondal is Leon.",
    "\n- Leon keeps a parrot. The friend of Leon is Ella. Leon works as a tailor.",
    "\n- The map is made of paper. The map is painted grey. The map was made by Ella."};

template <class T>
T must(kvcache::result<T> made) {
    if (!made)
        throw std::runtime_error(made.error().field + ": " + made.error().message);
    return std::move(*made);
}

struct program {
    explicit program(const char* directory)
        : model(must(kvcache::load_model(directory)).model), words(must(kvcache::tokenizer::open(directory))) {}

    tokens encode(std::string_view text) const {
        return must(words.encode(std::string(text), {.add_special_tokens = false}));
    }

    // The notes in a new order, and a question.
    tokens prompt() const {
        tokens all = encode("<|im_start|>system\nYou answer questions about the notes.");
        for (const std::size_t note : {2u, 0u, 3u, 1u}) {
            const tokens more = encode(notes[note]);
            all.insert(all.end(), more.begin(), more.end());
        }
        const tokens question = encode(
            "<|im_end|>\n<|im_start|>user\nWhat does the mayor of Rondal work as?<|im_end|>\n<|im_start|>assistant\n");
        all.insert(all.end(), question.begin(), question.end());
        return all;
    }

    // Runs one reuse mode: a cache that holds each note, computed alone, and the same prompt.
    template <class Recompute>
    bool tell(const char* name, Recompute recompute, kvcache::reuse_mode mode) {
        using cache = kvcache::cache<kvcache::index::chunk, Recompute>;
        auto store = kvcache::make_cache({.shape = model.shape(16), .limit = {.bytes = 64_MiB}},
                                         kvcache::index::chunk{.least = 8}, recompute);
        kvcache::chunk_pipeline<cache, kvcache::transformer> reader(store, model, threads, {.split = {.size = 0}});
        for (const std::string_view note : notes)
            must(reader.warm(encode(note), {}));

        const auto end = encode("<|im_end|>");
        const auto answer =
            must(kvcache::generate(reader, prompt(), mode, kvcache::sampler{}, {.max_tokens = 32, .stop_tokens = end},
                                   [](kvcache::token_id, std::span<const float>) { return true; }));
        const auto& took = answer.counts;
        std::printf("%-22s %3zu exact  %3zu approximate  %3zu again  %3zu new  first token %6.2f ms  %s\n", name,
                    took.exact, took.approximate, took.recomputed, took.prefilled, 1e3 * answer.first_token,
                    words.decode(answer.ids, {.skip_special = true}).c_str());
        const auto seen = must(kvcache::verify(reader, prompt(), answer.ids, mode));
        std::printf("%22s %s, %.5f nats a token off\n", "", seen.same_bits ? "same bits" : "other bits", seen.kl);
        const bool exact = mode != kvcache::reuse_mode::chunks || std::is_same_v<Recompute, kvcache::recompute::full>;
        return !exact || seen.same_bits;
    }

    kvcache::transformer model;
    kvcache::tokenizer words;
    kvcache::thread_pool threads{1};
};

int compare(int count, char** arguments) {
    program here(count > 1 ? arguments[1] : "examples/models/worlds-2m");
    using enum kvcache::reuse_mode;
    const bool sound = here.tell("nothing reused", kvcache::recompute::exact_prefix{}, baseline) &&
                       here.tell("prefixes", kvcache::recompute::exact_prefix{}, prefix) &&
                       here.tell("chunks as they are", kvcache::recompute::none{}, chunks) &&
                       here.tell("chunks, seams again", kvcache::recompute::chunk_boundary{.rows = 2}, chunks) &&
                       here.tell("chunks, 15 % again", kvcache::recompute::blend{}, chunks) &&
                       here.tell("chunks, all again", kvcache::recompute::full{}, chunks);
    return sound ? 0 : 1;
}

} // namespace

int main(int count, char** arguments) {
    return support::guarded("06_documents", [&] { return compare(count, arguments); });
}
