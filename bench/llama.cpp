// SPDX-License-Identifier: MIT
//
// The prefix cache under llama.cpp: conversations that do not fit into a context, with the cache and without; the first
// token after a restart, from a tier; and what storing costs. One JSON object a line.
#include <kvcache/adapters/llama.hpp>
#include <kvcache/tier.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../examples/support/guarded.hpp"
#include "../examples/support/tier_flag.hpp"
#include <CLI/CLI.hpp>
#include <llama.h>

namespace {

using tokens = std::vector<llama_token>;

struct settings {
    std::string model, tier, part = "conversations";
    std::uint32_t cells = 2432, talks = 12, turns = 4, slots = 3, prompt = 2000, answer = 16, question = 150;
    std::size_t mebibytes = 256, batch = 512, rounds = 20, edits = 0;
    int threads = 2;
    bool plain = false;
};

struct freed {
    void operator()(llama_model* model) const { llama_model_free(model); }
    void operator()(llama_context* context) const { llama_free(context); }
};

double now_ms() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Token ids that bench/compare/llama_conversations.py makes too.
class ids {
public:
    explicit ids(std::uint32_t seed) : state_(seed) {}
    void append(tokens& to, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) {
            state_ = static_cast<std::uint32_t>(std::uint64_t{state_} * 48271 % 2147483647);
            to.push_back(static_cast<llama_token>(state_ % 30000));
        }
    }

private:
    std::uint32_t state_;
};

llama_token likeliest(llama_context* context) {
    const float* const all = llama_get_logits_ith(context, -1);
    const auto count = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
    return static_cast<llama_token>(std::max_element(all, all + count) - all);
}

/// A program without a cache: it evaluates all tokens of a prompt in an empty sequence, in batches.
bool evaluate(llama_context* context, std::span<const llama_token> prompt, std::size_t from, std::size_t most) {
    if (from == 0)
        llama_memory_seq_rm(llama_get_memory(context), 0, -1, -1);
    llama_batch batch = llama_batch_init(static_cast<std::int32_t>(most), 0, 1);
    bool right = true;
    for (std::size_t at = from; right && at < prompt.size(); at += static_cast<std::size_t>(batch.n_tokens)) {
        batch.n_tokens = static_cast<std::int32_t>(std::min(most, prompt.size() - at));
        for (std::size_t i = 0; i < static_cast<std::size_t>(batch.n_tokens); ++i) {
            batch.token[i] = prompt[at + i];
            batch.pos[i] = static_cast<llama_pos>(at + i);
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = at + i + 1 == prompt.size();
        }
        right = llama_decode(context, batch) == 0;
    }
    llama_batch_free(batch);
    return right;
}

// Turns of all conversations, one after the other.
template <class Cache>
int conversations(const settings& how, llama_context* context, Cache& cache) {
    std::vector<tokens> talks(how.talks);
    ids words(7);
    for (std::uint32_t turn = 0; turn < how.turns; ++turn)
        for (std::uint32_t talk = 0; talk < how.talks; ++talk) {
            tokens& own = talks[talk];
            if (how.edits > 0 && turn + 1 == how.turns && own.size() > how.edits)
                own[own.size() / 2] = 5; // an edit in the middle
            words.append(own, how.question);
            const double began = now_ms();
            std::size_t evaluated = own.size();
            if (how.plain) {
                if (!evaluate(context, own, 0, how.batch))
                    return 1;
            } else {
                const auto done = cache.decode(static_cast<llama_seq_id>(talk % how.slots), own, how.batch);
                if (!done)
                    return std::fprintf(stderr, "%s\n", done.error().message.c_str()), 1;
                evaluated = done->evaluated;
            }
            std::printf("{\"turn\": %u, \"talk\": %u, \"tokens\": %zu, \"evaluated\": %zu, \"ms\": %.2f}\n", turn, talk,
                        own.size(), evaluated, now_ms() - began);
            for (std::uint32_t step = 0; step < how.answer; ++step) {
                own.push_back(likeliest(context));
                if (how.plain ? !evaluate(context, own, own.size() - 1, how.batch)
                              : !cache.decode(static_cast<llama_seq_id>(talk % how.slots), own, how.batch))
                    return 1;
            }
        }
    return 0;
}

// The first token of a prompt that an earlier process has stored, and cold.
template <class Cache>
int restart(const settings& how, llama_context* context, Cache& cache) {
    tokens prompt;
    ids(11).append(prompt, how.prompt);
    const auto warm = [&] {
        const double began = now_ms();
        const auto done = cache.decode(0, prompt, how.batch);
        const double took = now_ms() - began;
        return std::pair(done ? done->restored : 0, took);
    };
    const auto first = warm();
    if (const auto written = cache.cache().tier().flush(); !written)
        return std::fprintf(stderr, "llama: %s\n", written.error().message.c_str()), 1;
    for (std::size_t round = 0; round < how.rounds; ++round) {
        cache.clear(0);
        cache.cache().clear_all();
        const auto [restored, ms] = warm();
        cache.clear(0);
        const double began = now_ms();
        if (!evaluate(context, prompt, 0, how.batch))
            return 1;
        std::printf(
            "{\"round\": %zu, \"restored\": %zu, \"ms\": %.2f, \"cold_ms\": %.2f, \"restored_at_start\": %zu}\n", round,
            restored, ms, now_ms() - began, first.first);
        cache.clear(0);
    }
    return 0;
}

// Prompts that have nothing in common, with the cache and without, in turn.
template <class Cache>
int zero(const settings& how, llama_context* context, Cache& cache) {
    ids words(13);
    for (std::size_t round = 0; round < how.rounds; ++round) {
        double took[2] = {};
        for (const std::size_t which : {round % 2, 1 - round % 2}) {
            tokens prompt;
            words.append(prompt, how.prompt);
            const double began = now_ms();
            const bool done =
                which == 0 ? evaluate(context, prompt, 0, how.batch) : cache.decode(0, prompt, how.batch).has_value();
            cache.clear(0); // with the cache it stores the last page
            took[which] = now_ms() - began;
            if (!done)
                return 1;
        }
        std::printf("{\"round\": %zu, \"plain_ms\": %.2f, \"cache_ms\": %.2f}\n", round, took[0], took[1]);
    }
    return 0;
}

template <class Tier>
int run(const settings& how, Tier tier) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    const std::unique_ptr<llama_model, freed> model(
        llama_model_load_from_file(how.model.c_str(), llama_model_default_params()));
    llama_context_params form = llama_context_default_params();
    form.n_ctx = how.cells;
    form.n_batch = static_cast<std::uint32_t>(how.batch);
    form.n_seq_max = how.slots + 2;
    form.kv_unified = true;
    form.n_threads = form.n_threads_batch = how.threads;
    const std::unique_ptr<llama_context, freed> context(model ? llama_init_from_model(model.get(), form) : nullptr);
    if (!context)
        return std::fprintf(stderr, "llama: llama.cpp cannot open %s\n", how.model.c_str()), 1;
    kvcache::llama_prefix_cache cache(
        context.get(), {.bytes = how.mebibytes << 20, .model = how.model, .settings = form}, std::move(tier));
    if (!cache.status())
        return std::fprintf(stderr, "llama: %s\n", cache.status().error().message.c_str()), 1;
    if constexpr (decltype(cache)::cache_type::has_tier)
        if (how.part == "restart")
            return restart(how, context.get(), cache);
    return how.part == "zero" ? zero(how, context.get(), cache) : conversations(how, context.get(), cache);
}

} // namespace

int main(int argc, char** argv) {
    settings how;
    CLI::App app{"What the prefix cache saves under llama.cpp, and costs."};
    app.add_option("part", how.part, "conversations, restart or zero")
        ->check(CLI::IsMember({"conversations", "restart", "zero"}));
    app.add_option("--model", how.model, "a GGUF file")->required()->check(CLI::ExistingFile);
    app.add_option("--cells", how.cells, "tokens that the context holds");
    app.add_option("--talks", how.talks);
    app.add_option("--turns", how.turns);
    app.add_option("--slots", how.slots);
    app.add_option("--question", how.question, "tokens of a turn");
    app.add_option("--answer", how.answer, "tokens of an answer");
    app.add_option("--prompt", how.prompt, "tokens of a prompt, for restart and zero");
    app.add_option("--cache-mib", how.mebibytes);
    app.add_option("--batch", how.batch);
    app.add_option("--rounds", how.rounds);
    app.add_option("--threads", how.threads);
    app.add_option("--edits", how.edits, "edits the middle of longer conversations in the last turn");
    app.add_flag("--plain", how.plain, "conversations without a cache");
    support::add_tier_flag(app, how.tier);
    CLI11_PARSE(app, argc, argv);
    return support::guarded("llama", [&] {
        return support::with_tier("llama", how.tier, [&](auto tier) { return run(how, std::move(tier)); });
    });
}
