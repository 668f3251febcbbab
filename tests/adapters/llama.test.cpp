// SPDX-License-Identifier: MIT
// The cache under the real libllama, on the model files that KVCACHE_LLAMA_MODELS names, with ':' between them.
#include <kvcache/adapters/llama.hpp>
#include <kvcache/tier.hpp>
#include <kvcache/tier/lmdb.hpp>
#include <kvcache/tier/memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "model/huggingface/files.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
namespace fs = std::filesystem;

namespace {

using tokens = std::vector<llama_token>;
using bytes = std::vector<std::uint8_t>;

std::vector<fs::path> models() {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    std::vector<fs::path> made;
    const char* const given = std::getenv("KVCACHE_LLAMA_MODELS");
    std::istringstream words(given == nullptr ? "" : given);
    for (std::string path; std::getline(words, path, ':');)
        made.emplace_back(path);
    if (made.empty())
        WARN("SKIPPED: KVCACHE_LLAMA_MODELS names no model file");
    return made;
}

struct freed {
    void operator()(llama_model* model) const { llama_model_free(model); }
    void operator()(llama_context* context) const { llama_free(context); }
};
using model_pointer = std::unique_ptr<llama_model, freed>;
using context_pointer = std::unique_ptr<llama_context, freed>;

model_pointer load(const fs::path& path) {
    llama_model_params how = llama_model_default_params();
    model_pointer made(llama_model_load_from_file(path.c_str(), how));
    REQUIRE(made);
    return made;
}

llama_context_params settings(std::uint32_t cells = 4096) {
    llama_context_params made = llama_context_default_params();
    made.n_ctx = cells;
    made.n_batch = 512;
    made.n_seq_max = 6;
    made.kv_unified = true;
    made.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    made.n_threads = made.n_threads_batch = 2;
    made.no_perf = true;
    return made;
}

context_pointer open(llama_model* model, const llama_context_params& how) {
    context_pointer made(llama_init_from_model(model, how));
    REQUIRE(made);
    return made;
}

tokens words(const llama_model* model, std::size_t count, unsigned seed) {
    std::minstd_rand dice(seed);
    const auto most = static_cast<unsigned>(std::min(llama_vocab_n_tokens(llama_model_get_vocab(model)), 30000));
    tokens made(count);
    for (llama_token& one : made)
        one = static_cast<llama_token>(dice() % most);
    return made;
}

std::vector<float> logits(llama_context* context) {
    const float* const all = llama_get_logits_ith(context, -1);
    REQUIRE(all != nullptr);
    return {all, all + llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)))};
}

bytes state(llama_context* context, llama_seq_id of) {
    bytes made(llama_state_seq_get_size(context, of));
    REQUIRE(llama_state_seq_get_data(context, made.data(), made.size(), of) == made.size());
    return made;
}

/// Evaluates tokens [at, end) without a cache.
void evaluate(llama_context* context, std::span<const llama_token> all, std::size_t at, std::size_t end) {
    llama_batch batch = llama_batch_init(static_cast<std::int32_t>(end - at), 0, 1);
    for (std::size_t i = at; i < end; ++i) {
        batch.token[i - at] = all[i];
        batch.pos[i - at] = static_cast<llama_pos>(i);
        batch.n_seq_id[i - at] = 1;
        batch.seq_id[i - at][0] = 0;
        batch.logits[i - at] = i + 1 == end;
    }
    batch.n_tokens = static_cast<std::int32_t>(end - at);
    REQUIRE(llama_decode(context, batch) == 0);
    llama_batch_free(batch);
}

} // namespace

TEST_CASE("what is restored has the bytes that were stored, and the next logits the bits of a run without a break") {
    for (const fs::path& path : models()) {
        INFO(path);
        const auto model = load(path);
        const auto how = settings();
        const auto context = open(model.get(), how);
        kv::llama_prefix_cache cache(context.get(), {.settings = how});
        INFO((cache.status() ? "" : cache.status().error().message));
        REQUIRE(cache.status());
        for (const std::size_t length : {640u, 1000u, 1601u}) {
            const tokens prompt = words(model.get(), length, static_cast<unsigned>(length));
            const auto cold = cache.decode(0, prompt);
            REQUIRE(cold);
            REQUIRE(cold->evaluated == length);
            const std::size_t whole = (length - 1) / 64 * 64;

            // A run without a break, in the batches that the cache makes.
            const auto alone = open(model.get(), how);
            kv::llama_prefix_cache other(alone.get(), {.settings = how});
            for (std::size_t at = 0, end = 0; at < length; at = end) {
                end = std::min(at + 512, at < whole ? whole : length);
                evaluate(alone.get(), prompt, at, end);
                if (end == whole) {
                    const bytes before = state(alone.get(), 0);
                    cache.clear(0);
                    const auto got = cache.restore(0, prompt);
                    INFO(got.why);
                    REQUIRE(got.restored == whole);
                    CHECK((state(context.get(), 0) == before));
                }
            }
            const auto warm = cache.decode(0, prompt);
            REQUIRE(warm);
            CHECK(warm->evaluated == length - whole);
            CHECK((logits(context.get()) == logits(alone.get())));
            CHECK(cache.cache().check());
            cache.clear(0);
        }
    }
}
