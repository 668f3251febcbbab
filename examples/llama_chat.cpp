// SPDX-License-Identifier: MIT
// A chat over any model file that llama.cpp runs, with the prefix cache under it. "/talk NAME" goes to another
// conversation. With --tier and --folder all of them go on after a restart.
#include <kvcache/adapters/llama.hpp>
#include <kvcache/tier.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/guarded.hpp"
#include "support/tier_flag.hpp"
#include <CLI/CLI.hpp>
#include <llama.h>

namespace {

struct settings {
    std::string model, tier, folder, chat_template;
    std::uint32_t cells = 4096, slots = 1, answer = 256;
};

struct freed {
    void operator()(llama_model* model) const { llama_model_free(model); }
    void operator()(llama_context* context) const { llama_free(context); }
    void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};

/// What was said, and the tokens that the model has read and written of it.
struct conversation {
    std::vector<std::pair<std::string, std::string>> said; ///< Who, and what.
    std::vector<llama_token> tokens;
    llama_seq_id slot = 0;
};

class chat {
public:
    chat(const settings& how, llama_model* model)
        : how_(how), model_(model), vocabulary_(llama_model_get_vocab(model)), sampler_(llama_sampler_init_greedy()) {}

    /// Answers lines of standard input until it ends.
    template <class Cache>
    int run(llama_context* context, Cache& cache) {
        std::string line, name = "first";
        enter(name);
        while (std::getline(std::cin, line)) {
            if (line.rfind("/talk ", 0) == 0) {
                enter(name = line.substr(6));
                continue;
            }
            if (!ask(context, cache, talks_[name], line))
                return 1;
            leave(name);
        }
        return 0;
    }

private:
    // Prints an answer as the model would continue.
    template <class Cache>
    bool ask(llama_context* context, Cache& cache, conversation& now, const std::string& question) {
        const std::size_t count = now.said.size();
        const std::size_t before = count == 0 ? 0 : formatted(now, count - 1).size() + now.said.back().second.size();
        now.said.emplace_back("user", question);
        tokenize(formatted(now, count + 1).substr(before), now.tokens);
        const auto began = std::chrono::steady_clock::now();
        auto done = cache.decode(now.slot, now.tokens); // instead of a loop over llama_decode
        const std::chrono::duration<double, std::milli> first = std::chrono::steady_clock::now() - began;
        std::string answer;
        for (std::size_t step = 0; done && step < how_.answer; ++step) {
            const llama_token token = llama_sampler_sample(sampler_.get(), context, -1);
            if (llama_vocab_is_eog(vocabulary_, token))
                break;
            char piece[256];
            const int size = llama_token_to_piece(vocabulary_, token, piece, sizeof piece, 0, true);
            answer.append(piece, static_cast<std::size_t>(std::max(size, 0)));
            now.tokens.push_back(token);
            if (step == 0)
                std::fprintf(stderr, "[%zu tokens: %zu kept, %zu restored, %zu evaluated in %.0f ms; %s]\n",
                             done->tokens, done->kept, done->restored, done->evaluated, first.count(),
                             done->why.c_str());
            done = cache.decode(now.slot, now.tokens);
        }
        std::cout << answer << std::endl;
        now.said.emplace_back("assistant", answer);
        if (!done)
            std::fprintf(stderr, "llama_chat: %s\n", done.error().message.c_str());
        return done.has_value();
    }

    // The first messages of a conversation, up to where an answer begins.
    [[nodiscard]] std::string formatted(const conversation& of, std::size_t count) const {
        std::vector<llama_chat_message> messages;
        std::size_t most = 64;
        for (std::size_t i = 0; i < count; ++i) {
            messages.push_back({of.said[i].first.c_str(), of.said[i].second.c_str()});
            most += 2 * of.said[i].second.size() + 256;
        }
        const char* own = llama_model_chat_template(model_, nullptr);
        const char* form = !how_.chat_template.empty() ? how_.chat_template.c_str() : own != nullptr ? own : "chatml";
        std::string text(most, '\0');
        const int size =
            llama_chat_apply_template(form, messages.data(), count, true, text.data(), static_cast<std::int32_t>(most));
        text.resize(static_cast<std::size_t>(std::clamp(size, 0, static_cast<std::int32_t>(most))));
        return text;
    }
    void tokenize(const std::string& text, std::vector<llama_token>& onto) const {
        const std::size_t before = onto.size();
        onto.resize(before + text.size() + 8);
        const int count =
            llama_tokenize(vocabulary_, text.data(), static_cast<std::int32_t>(text.size()), onto.data() + before,
                           static_cast<std::int32_t>(onto.size() - before), before == 0, true);
        onto.resize(before + static_cast<std::size_t>(std::max(count, 0)));
    }

    // A conversation's file: its tokens, then who said what, a line each.
    void enter(const std::string& name) {
        const auto [at, fresh] = talks_.try_emplace(name);
        if (!fresh)
            return;
        conversation& now = at->second;
        now.slot = static_cast<llama_seq_id>((talks_.size() - 1) % how_.slots);
        std::ifstream file(how_.folder.empty() ? "" : file_of(name));
        std::string line;
        std::getline(file, line);
        std::istringstream numbers(line);
        for (llama_token token = 0; numbers >> token;)
            now.tokens.push_back(token);
        for (std::string who; std::getline(file, who, '\t') && std::getline(file, line, '\1'); file.ignore())
            now.said.emplace_back(who, line);
    }
    void leave(const std::string& name) {
        if (how_.folder.empty())
            return;
        std::ofstream file(file_of(name));
        for (const llama_token token : talks_[name].tokens)
            file << token << ' ';
        file << '\n';
        for (const auto& [who, what] : talks_[name].said)
            file << who << '\t' << what << "\1\n";
    }
    [[nodiscard]] std::string file_of(const std::string& name) const { return how_.folder + "/" + name + ".talk"; }

    const settings& how_;
    llama_model* model_;
    const llama_vocab* vocabulary_;
    std::unique_ptr<llama_sampler, freed> sampler_;
    std::map<std::string, conversation> talks_;
};

template <class Tier>
int start(const settings& how, Tier tier) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    const std::unique_ptr<llama_model, freed> model(
        llama_model_load_from_file(how.model.c_str(), llama_model_default_params()));
    llama_context_params form = llama_context_default_params();
    form.n_ctx = how.cells;
    form.n_seq_max = how.slots + 2; // two for the cache
    form.kv_unified = true;
    const std::unique_ptr<llama_context, freed> context(model ? llama_init_from_model(model.get(), form) : nullptr);
    if (!context) {
        std::fprintf(stderr, "llama_chat: llama.cpp cannot open %s\n", how.model.c_str());
        return 1;
    }
    kvcache::llama_prefix_cache cache(context.get(), {.page_tokens = 16, .model = how.model, .settings = form},
                                      std::move(tier));
    if (!cache.status())
        std::fprintf(stderr, "llama_chat: without the cache: %s\n", cache.status().error().message.c_str());
    return chat(how, model.get()).run(context.get(), cache);
}

} // namespace

int main(int argc, char** argv) {
    settings how;
    CLI::App app{"A chat over a model file of llama.cpp, whose conversations are kept."};
    app.add_option("model", how.model, "a GGUF file")->required()->check(CLI::ExistingFile);
    app.add_option("--folder", how.folder, "where conversations are written, to go on after a restart")
        ->check(CLI::ExistingDirectory);
    app.add_option("--cells", how.cells, "tokens that the context holds")->capture_default_str();
    app.add_option("--slots", how.slots, "conversations that the context holds at a time")->capture_default_str();
    app.add_option("--answer", how.answer, "the most tokens of an answer")->capture_default_str();
    app.add_option("--template", how.chat_template, "a chat template, or a name that llama.cpp knows");
    support::add_tier_flag(app, how.tier);
    CLI11_PARSE(app, argc, argv);
    return support::guarded("llama_chat", [&] {
        return support::with_tier("llama_chat", how.tier, [&](auto tier) { return start(how, std::move(tier)); });
    });
}
