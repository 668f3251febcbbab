// SPDX-License-Identifier: MIT
//
// What speculative decoding gains on a real model: tokens a second with and without a drafter, and the tokens that were
// accepted. The model that drafts has the same weights, with activations in int8.
#include <kvcache/kvcache.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../examples/support/guarded.hpp"
#include "../examples/support/model_directory.hpp"
#include "support/must.hpp"
#include "support/rows.hpp"
#include <CLI/CLI.hpp>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;
using bench::must;
using store = kv::cache<>;

struct flags {
    std::string model, text;
    std::size_t questions = 10, answer = 96, threads = 1;
    std::vector<std::size_t> drafts{2, 4};
};

/// Chats in ChatML: questions whose answers repeat nothing, and passages of a text that are to be repeated.
std::map<std::string, std::vector<tokens>> prompts_of(const flags& f, const kv::tokenizer& words) {
    std::ifstream file(f.text);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    static const char* const subjects[] = {"the sea",   "bread",    "clocks",  "a journey",          "rain",
                                           "mountains", "a garden", "bridges", "the printing press", "sleep"};
    const std::size_t passage = 900; // characters
    if (text.size() < (f.questions + 1) * passage)
        throw std::runtime_error(f.text + " is too short");
    std::map<std::string, std::vector<tokens>> made;
    const auto chat = [&](const std::string& said) {
        return must(words.encode("<|im_start|>user\n" + said + "<|im_end|>\n<|im_start|>assistant\n",
                                 {.add_special_tokens = false}));
    };
    for (std::size_t i = 0; i < f.questions; ++i) {
        made["chat"].push_back(chat("Explain something about " + std::string(subjects[i % std::size(subjects)]) +
                                    ", in paragraph " + std::to_string(i + 1) + " of a book for children."));
        const std::size_t at = text.find(' ', text.size() / 10 + i * (text.size() / 2) / f.questions) + 1;
        made["quote"].push_back(chat("Repeat this passage word for word.\n\n" + text.substr(at, passage)));
    }
    return made;
}

struct said {
    tokens ids;
    double seconds = 0.0; // from the first token to the last
    std::size_t drafted = 0, accepted = 0;
};

/// Answers one prompt.
class subject {
public:
    subject(const kv::transformer& model, const kv::transformer& small, std::size_t threads)
        : cache_(kv::make_cache({.shape = model.shape(64), .limit = {.pages = 64}})),
          drafts_(kv::make_cache({.shape = small.shape(64), .limit = {.pages = 64}})),
          threads_(threads),
          pipeline_(cache_, model, threads_),
          drafter_(drafts_, small, threads_),
          eos_(model.config().eos),
          engine_(cache_, model, pipeline_) {}

    said ask(const tokens& prompt, const flags& f, const kv::sampler& sampling, std::size_t draft, bool by_model) {
        said heard;
        std::chrono::steady_clock::time_point first, last;
        kv::engine_request<store> request{
            .prompt = prompt, .sampling = sampling, .stop = {.max_tokens = f.answer, .stop_tokens = eos_}};
        request.draft = draft;
        if (by_model)
            request.drafter = [this](const kv::draft_question& of, tokens& drafted) { drafter_(of, drafted); };
        request.on_token = [&](const kv::generated_token& token) {
            last = std::chrono::steady_clock::now();
            if (heard.ids.empty())
                first = last;
            heard.ids.push_back(token.token);
            return kv::token_action::go_on;
        };
        request.on_finish = [&](kv::engine_outcome<store>&& end) {
            heard.drafted = end.drafted;
            heard.accepted = end.accepted;
        };
        static_cast<void>(must(engine_.submit(std::move(request))));
        while (engine_.step(std::chrono::steady_clock::now())) {
        }
        heard.seconds = std::chrono::duration<double>(last - first).count();
        return heard;
    }

private:
    store cache_, drafts_;
    kv::thread_pool threads_;
    kv::pipeline<store, kv::transformer> pipeline_;
    kv::model_drafter<store, kv::transformer> drafter_;
    tokens eos_;
    kv::engine<store, kv::transformer> engine_;
};

int run(const flags& f) {
    const auto words = must(kv::tokenizer::open(f.model));
    auto model = must(support::open_model(f.model, false, false));
    auto small = must(support::open_model(f.model, false, true));
    subject at(model.model, small.model, f.threads);
    std::printf("%-8s %-8s %-9s %6s %10s %8s %16s %9s %9s\n", "text", "tokens", "drafter", "draft", "tokens/s",
                "faster", "range", "accepted", "a pass");
    for (const auto& [kind, prompts] : prompts_of(f, words))
        for (const float temperature : {0.0f, 0.8f})
            for (const bool by_model : {false, true})
                for (const std::size_t draft : f.drafts) {
                    bench::samples rates, ratios;
                    std::size_t drafted = 0, accepted = 0, generated = 0;
                    for (std::size_t round = 0; round < 2; ++round)
                        for (std::size_t i = 0; i < prompts.size(); ++i) {
                            const kv::sampler sampling{.temperature = temperature, .seed = i};
                            const bool plain_first = (i + round) % 2 == 0;
                            said plain, guessed;
                            if (plain_first)
                                plain = at.ask(prompts[i], f, sampling, 0, false);
                            guessed = at.ask(prompts[i], f, sampling, draft, by_model);
                            if (!plain_first)
                                plain = at.ask(prompts[i], f, sampling, 0, false);
                            if (plain.ids != guessed.ids)
                                throw std::runtime_error("an answer depends on its drafter");
                            if (plain.ids.size() < 8)
                                continue;
                            rates.add(static_cast<double>(guessed.ids.size() - 1) / guessed.seconds);
                            ratios.add(plain.seconds / guessed.seconds);
                            drafted += guessed.drafted;
                            accepted += guessed.accepted;
                            generated += guessed.ids.size();
                        }
                    if (ratios.empty())
                        throw std::runtime_error("all answers are short");
                    std::printf("%-8s %-8s %-9s %6zu %10.1f %8.2f %7.2f to %5.2f %8.1f%% %9.2f\n", kind.c_str(),
                                temperature > 0 ? "sampled" : "greedy", by_model ? "model" : "lookup", draft,
                                rates.median(), ratios.median(), ratios.least(), ratios.most(),
                                drafted ? 100.0 * static_cast<double>(accepted) / static_cast<double>(drafted) : 0.0,
                                static_cast<double>(generated) / static_cast<double>(generated - accepted));
                    std::fflush(stdout);
                }
    return 0;
}

int program(int count, char** words) {
    flags f;
    CLI::App app("What speculative decoding gains");
    app.add_option("--model", f.model, "A GGUF file, or a directory, of a model of ChatML")->required();
    app.add_option("--text", f.text, "A text to take passages from")->required();
    app.add_option("--questions", f.questions, "Of each kind; each is asked twice")
        ->check(CLI::Range(1, 1000))
        ->capture_default_str();
    app.add_option("--answer", f.answer, "Most tokens of an answer")->check(CLI::Range(2, 4096))->capture_default_str();
    app.add_option("--drafts", f.drafts, "Most tokens drafted at a time")->delimiter(',')->capture_default_str();
    app.add_option("--threads", f.threads)->check(CLI::Range(1, 1024))->capture_default_str();
    CLI11_PARSE(app, count, words);
    return run(f);
}

} // namespace

int main(int count, char** words) {
    return support::guarded("drafts", [&] { return program(count, words); });
}
