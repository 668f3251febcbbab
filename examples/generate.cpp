// SPDX-License-Identifier: MIT
// Continues a prompt with any Hugging Face model directory.
// test: --model tests/data/checkpoints/llama-gqa-tied --ids 1,2,3 --max-tokens 4 --json
#include <kvcache/core/json.hpp>
#include <kvcache/kvcache.hpp>

#include <cstdint>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "support/model_directory.hpp"
#include <CLI/CLI.hpp>

namespace {

struct flags {
    std::string model, prompt, warm, logits;
    std::vector<std::int32_t> ids, warm_ids;
    std::size_t max_tokens = 64, threads = 1, split = 256;
    std::uint32_t page = 64;
    float temperature = 0.0f;
    std::uint64_t seed = 0;
    bool no_cache = false, json = false, ignore_eos = false;
};

using tokens = std::vector<kvcache::token_id>;

tokens to_tokens(const std::vector<std::int32_t>& ids) {
    tokens made;
    for (const std::int32_t id : ids)
        made.push_back(kvcache::token_id{id});
    return made;
}

bool write_rows(const std::string& file, const kvcache::matrix& rows) {
    std::ofstream out(file, std::ios::binary);
    out.write(reinterpret_cast<const char*>(rows.data()), static_cast<std::streamsize>(rows.size() * 4));
    return out.flush().good();
}

// Says tokens one by one, each from a prefill of everything before it: the run that a cache must equal.
template <class Cache>
kvcache::result<kvcache::answer<Cache>>
generate_without_cache(Cache& cache, const kvcache::transformer& model, kvcache::team& team, const flags& f,
                       const tokens& prompt, const kvcache::sampler& draw, const kvcache::stopping& until) {
    kvcache::pipeline through(cache, model, team, f.split);
    auto sequence = cache.open();
    auto logits = through.extend(sequence, prompt, kvcache::logits_of::all);
    if (!logits)
        return logits.error();
    kvcache::answer<Cache> made{{std::move(sequence), std::move(*logits), 0, prompt.size(), "nothing was looked up"}};
    tokens past = prompt;
    kvcache::matrix next = made.prompt.logits.bottomRows(1);
    while (made.ids.size() < until.max_tokens && !made.stopped) {
        const auto token = draw.draw(kvcache::row_of(std::as_const(next), 0), made.ids.size());
        made.ids.push_back(token);
        past.push_back(token);
        made.stopped = std::ranges::find(until.stop, token) != until.stop.end();
        auto again = cache.open();
        auto row = through.extend(again, past);
        if (!row)
            return row.error();
        next = std::move(*row);
    }
    return made;
}

int run(const flags& f) {
    const auto loaded = support::open_model(f.model);
    if (!loaded)
        return support::report("generate", loaded.error());
    const kvcache::transformer& model = loaded->model;

    std::optional<kvcache::tokenizer> words;
    if (auto opened = kvcache::tokenizer::open(f.model))
        words = std::move(*opened);
    else if (f.ids.empty() || !f.warm.empty())
        return support::report("generate", opened.error());
    const auto encode = [&](const std::string& text, const std::vector<std::int32_t>& ids) -> kvcache::result<tokens> {
        if (!ids.empty())
            return to_tokens(ids);
        return words->encode(text, {});
    };

    const support::stopwatch clock;
    const auto prompt = encode(f.prompt, f.ids);
    if (!prompt)
        return support::report("generate", prompt.error());
    tokens warm;
    if (!f.warm_ids.empty() || !f.warm.empty()) {
        auto encoded = encode(f.warm, f.warm_ids);
        if (!encoded)
            return support::report("generate", encoded.error());
        warm = std::move(*encoded);
    }

    // Room for the prompt, the answer and what was said to warm it; without a cache for one more past.
    const auto shape = model.shape(f.page);
    const std::size_t page_bytes = kvcache::plain{}.open(shape).page_bytes();
    const std::size_t rows = 2 * (prompt->size() + f.max_tokens) + warm.size();
    const std::size_t pages = rows / f.page + 4;
    auto cache = kvcache::make_cache(model.id(loaded->weights), shape, {.bytes = pages * page_bytes});
    kvcache::team team(f.threads);
    kvcache::pipeline through(cache, model, team, f.split);
    if (!warm.empty() && !f.no_cache)
        if (auto said = through.feed(warm, kvcache::logits_of::none); !said)
            return support::report("generate", said.error());

    const kvcache::sampler draw{.temperature = f.temperature, .seed = f.seed};
    const kvcache::stopping until{f.max_tokens, f.ignore_eos ? tokens{} : model.config().eos};
    const auto wanted = f.logits.empty() ? kvcache::logits_of::last : kvcache::logits_of::all;
    double first_token = 0.0;
    const support::stopwatch request;
    auto made = f.no_cache ? generate_without_cache(cache, model, team, f, *prompt, draw, until)
                           : kvcache::generate(
                                 through, *prompt, draw, until,
                                 [&](kvcache::token_id, std::span<const float>) {
                                     if (first_token == 0.0)
                                         first_token = request.milliseconds();
                                     return true;
                                 },
                                 wanted);
    if (!made)
        return support::report("generate", made.error());
    const double total = request.milliseconds();
    if (!f.logits.empty() && !write_rows(f.logits, made->prompt.logits))
        return support::report("generate", {kvcache::error_code::io, f.logits, "the logits could not be written"});

    const std::string text = words ? words->decode(made->ids, {.skip_special = true}) : std::string();
    if (!f.json) {
        std::cout << text << '\n';
        return 0;
    }
    kvcache::json out{{"prompt_tokens", prompt->size()},
                      {"reused", made->prompt.reused},
                      {"prefilled", made->prompt.prefilled},
                      {"ids", kvcache::json::array()},
                      {"text", text},
                      {"ttft_ms", f.no_cache ? total : first_token},
                      {"total_ms", total}};
    for (const kvcache::token_id id : made->ids)
        out["ids"].push_back(kvcache::index_of(id));
    std::cout << out.dump() << '\n';
    return 0;
}

} // namespace

int main(int argc, char** argv) {
    flags f;
    CLI::App app{"Continues a prompt with a model directory (config.json, model.safetensors, tokenizer.json)."};
    app.add_option("--model", f.model, "Hugging Face model directory")->required()->check(CLI::ExistingDirectory);
    auto* prompt = app.add_option("--prompt", f.prompt, "Text to continue");
    auto* ids = app.add_option("--ids", f.ids, "Tokens to continue, instead of text")->delimiter(',');
    prompt->excludes(ids);
    auto* warm = app.add_option("--warm", f.warm, "Text to run first, so that the cache knows it");
    app.add_option("--warm-ids", f.warm_ids, "The same as tokens")->delimiter(',')->excludes(warm);
    app.add_option("--max-tokens", f.max_tokens, "Longest answer")->capture_default_str();
    app.add_option("--temperature", f.temperature, "0: the likeliest token")->capture_default_str();
    app.add_option("--seed", f.seed, "Of the draws")->capture_default_str();
    app.add_option("--threads", f.threads)->check(CLI::Range(1, 1024))->capture_default_str();
    app.add_option("--split", f.split, "Most rows in one forward pass")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--page", f.page, "Tokens a page, a multiple of 16")
        ->check(CLI::Range(16, 65536))
        ->capture_default_str();
    app.add_flag("--no-cache", f.no_cache, "Run the whole past again for every token");
    app.add_flag("--ignore-eos", f.ignore_eos, "Go on behind the model's end token");
    app.add_option("--logits", f.logits, "Write float32 logits of the prefilled positions: (prefilled, vocabulary)");
    app.add_flag("--json", f.json, "One JSON object on standard output");
    CLI11_PARSE(app, argc, argv);
    if (prompt->empty() && ids->empty())
        return support::report("generate", {kvcache::error_code::not_found, "--prompt", "--prompt or --ids is needed"});
    if (f.page % kvcache::tile_tokens != 0)
        return support::report("generate",
                               {kvcache::error_code::out_of_range, "--page", "--page must be a multiple of 16"});
    return run(f);
}
