// SPDX-License-Identifier: MIT
// Continues a prompt with any Hugging Face model directory or GGUF file.
// test: --model tests/data/checkpoints/llama-gqa-tied --ids 1,2,3 --max-tokens 4 --json
#include <kvcache/formats/json.hpp>
#include <kvcache/kvcache.hpp>
#include <kvcache/session/any_recompute.hpp>
#include <kvcache/session/beam_search.hpp>
#include <kvcache/session/chunk_generate.hpp>
#include <kvcache/session/chunk_pipeline.hpp>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "server/chosen_tier.hpp"
#include "support/codec_flag.hpp"
#include "support/documents.hpp"
#include "support/flags.hpp"
#include "support/kept_layers.hpp"
#include "support/model_directory.hpp"
#include "support/perplexity.hpp"
#include "support/saved_context.hpp"
#include "support/tier_flag.hpp"
#include "support/tier_secret.hpp"
#include <CLI/CLI.hpp>

namespace {

struct flags : support::generation_flags, support::document_flags {
    std::string model, logits, tier, tier_secret_file, codec = "f32", save, load, perplexity;
    std::optional<std::string> prompt, ids, warm, warm_ids;
    bool no_cache = false, json = false, ignore_eos = false;
    std::size_t beams = 0, best = 1, window = 0, stride = 0;
    double length_penalty = 1.0;
};

using tokens = std::vector<kvcache::token_id>;

kvcache::error unwritable(const std::string& file) {
    return {kvcache::error_code::io, "--logits", "--logits: " + file + " cannot be written"};
}

// Generates each token from a full prefill of everything before it: the reference that a cache must equal.
template <class Cache>
kvcache::result<kvcache::answer<Cache>>
generate_without_cache(Cache& cache, const kvcache::transformer& model, kvcache::thread_pool& pool, const flags& f,
                       const tokens& prompt, const kvcache::sampler& sampling, const kvcache::stop_criteria& stop) {
    kvcache::pipeline pipeline(cache, model, pool, f.max_batch_tokens);
    auto sequence = cache.open();
    auto logits = pipeline.extend(sequence, prompt, kvcache::logits_mode::all);
    if (!logits)
        return logits.error();
    kvcache::answer<Cache> made{{std::move(sequence), std::move(*logits), 0, prompt.size(), {}}};
    tokens past = prompt;
    kvcache::matrix next = made.prompt.logits.bottomRows(1);
    const std::size_t most = std::min(stop.max_tokens, pipeline.max_positions() - prompt.size() + 1);
    while (made.ids.size() < most) {
        const auto token = sampling.draw(kvcache::row_of(std::as_const(next), 0), made.ids.size());
        made.ids.push_back(token);
        past.push_back(token);
        made.stopped = std::ranges::find(stop.stop_tokens, token) != stop.stop_tokens.end();
        if (made.stopped || made.ids.size() == most)
            break;
        auto again = cache.open();
        auto row = pipeline.extend(again, past);
        if (!row)
            return row.error();
        next = std::move(*row);
    }
    return made;
}

// Prints the answers of a beam search, one per line, best first.
template <class Cache>
int say_beams(kvcache::pipeline<Cache, kvcache::transformer>& pipeline, const flags& f, const tokens& prompt,
              const kvcache::stop_criteria& stop, const std::optional<kvcache::tokenizer>& words) {
    const support::stopwatch request;
    const auto found = kvcache::search_beams(pipeline, prompt, stop,
                                             {.beams = f.beams, .best = f.best, .length_penalty = f.length_penalty});
    if (!found)
        return support::report("generate", found.error());
    kvcache::json out{{"prompt_tokens", prompt.size()},
                      {"reused", found->reused},
                      {"prefilled", found->prefilled},
                      {"answers", kvcache::json::array()},
                      {"total_ms", request.milliseconds()}};
    for (const kvcache::beam_answer& each : found->answers) {
        const std::string text = words ? words->decode(each.ids, {.skip_special = true}) : std::string();
        if (!f.json)
            std::cout << each.score << '\t' << text << '\n';
        kvcache::json ids = kvcache::json::array();
        for (const kvcache::token_id id : each.ids)
            ids.push_back(kvcache::index_of(id));
        out["answers"].push_back({{"ids", std::move(ids)},
                                  {"text", text},
                                  {"log_probability", each.log_probability},
                                  {"score", each.score},
                                  {"stopped", each.stopped}});
    }
    if (f.json)
        std::cout << out.dump(-1, ' ', false, kvcache::json::error_handler_t::replace) << '\n';
    return 0;
}

// Runs `say(cache, from_tier)` with the cache that the flags select.
template <class Layers, class Say>
int with_cache(const flags& f, const kvcache::cache_config& config, const Layers& layers, Say say) {
    const auto tier = server::read_chosen_tier(f.tier, f.tier_secret_file);
    if (!tier)
        return support::report("generate", tier.error());
    auto cache = support::make_cache_of(layers, config, *tier, kvcache::hash::xxh3{tier->secret},
                                        *kvcache::any_recompute::named(f.recompute));
    if (const auto damage = cache.tier().damage())
        std::cerr << "generate: warning: " << damage->message << '\n';
    if (auto open = cache.tier().status(); !open)
        return support::report("generate", open.error());
    const int code = say(cache, [&] { return kvcache::tier_stats_of(cache).loaded_tokens; });
    if (auto written = cache.tier().flush(); !written && code == 0)
        return support::report("generate", written.error());
    return code;
}

// What is asked, in tokens.
struct question {
    const kvcache::transformer& model;
    const std::optional<kvcache::tokenizer>& words;
    kvcache::identity id;
    kvcache::page_shape shape;
    tokens prompt, warm;
    std::vector<tokens> documents; // the prompt begins with them
    double load_time = 0.0;
};

// Bytes for the pages of the context, the prompt, the answer and the warm-up text; a run without the cache needs a
// second copy of both, and each beam has pages of its own.
template <class Layers>
std::size_t page_memory(const flags& f, const question& of, const Layers& layers) {
    const std::size_t longest = of.prompt.size() + std::min(f.max_tokens, of.model.max_positions()); // no overflow
    std::size_t alone = of.warm.size(); // rows that are computed before
    for (const tokens& one : of.documents)
        alone +=
            one.size() + f.page + (f.chunk_size > 0 ? one.size() / f.chunk_size * (f.sinks + f.overlap + f.page) : 0);
    const std::size_t rows = 2 * longest + alone + f.beams * (longest - of.prompt.size() + f.page);
    const std::size_t page_bytes = layers.codec.open(of.shape).page_bytes();
    return layers.other_bytes(rows) + (rows / f.page + 4) * page_bytes +
           (f.load.empty() ? 0 : support::context_bytes(f.load, page_bytes)) +
           support::residual_bytes(layers.codec, of.shape, f.max_batch_tokens + (f.beams + 1) * f.page);
}

// An answer, and the state of its draws before it.
template <class Cache>
struct said {
    kvcache::answer<Cache> made;
    kvcache::sampler sampling;
    std::uint64_t before = 0;
};

// Goes on after the context of a file: with an answer to the prompt, or without a prompt with the answer of the file.
template <class Cache, class Say>
kvcache::result<said<Cache>> go_on(Cache& cache, kvcache::pipeline<Cache, kvcache::transformer>& pipeline,
                                   const flags& f, const question& of, kvcache::sampler sampling,
                                   const kvcache::stop_criteria& stop, kvcache::logits_mode wanted, Say say) {
    auto loaded = support::load_context(cache, pipeline, f.load, of.prompt, wanted);
    if (!loaded)
        return support::in_file("--load", f.load, loaded.error());
    const auto& ends = loaded->state.pending;
    std::uint64_t before = 0;
    if (of.prompt.empty()) {
        if (!ends.empty() && std::ranges::find(stop.stop_tokens, ends.back()) != stop.stop_tokens.end())
            return kvcache::error{kvcache::error_code::out_of_range, "--load",
                                  "--load: the answer in " + f.load + " has ended; --prompt or --ids goes on after it"};
        sampling = loaded->state.sampling;
        before = loaded->state.next;
        if (auto valid = sampling.check(of.model.vocabulary()); !valid)
            return support::in_file("--load", f.load, valid.error());
    }
    said<Cache> made{{std::move(loaded->begun)}, sampling, before};
    auto& prompt = made.made.prompt;
    const auto stopped = kvcache::decode_loop(
        pipeline, prompt.sequence, prompt.logits.bottomRows(1),
        kvcache::decode_state(made.sampling, stop, prompt.sequence.tokens(), pipeline.max_positions(), before),
        made.made.ids, say);
    if (!stopped)
        return stopped.error();
    made.made.stopped = *stopped;
    return made;
}

// Answers in mode `baseline` or `chunks`, and says what was reused.
template <class Cache, class FromTier>
int answer_in_mode(Cache& cache, kvcache::thread_pool& pool, const flags& f, const question& of, FromTier from_tier) {
    const auto split = of.words ? support::chunking_of(f, *of.words) : kvcache::index::chunking{};
    kvcache::chunk_pipeline<Cache, kvcache::transformer> pipeline(
        cache, of.model, pool, {.split = split, .store = false, .max_batch_tokens = f.max_batch_tokens});
    if (auto warmed = support::warm_documents(cache, pipeline, f, split, of.documents); !warmed)
        return support::report("generate", warmed.error());
    const auto made =
        kvcache::generate(pipeline, of.prompt, f.how(), kvcache::sampler{.temperature = f.temperature, .seed = f.seed},
                          {f.max_tokens, f.ignore_eos ? tokens{} : of.model.config().eos},
                          [](kvcache::token_id, std::span<const float>) { return true; });
    if (!made)
        return support::report("generate", made.error());
    const std::string text = of.words ? of.words->decode(made->ids, {.skip_special = true}) : std::string();
    if (!f.json) {
        std::cout << text << '\n';
        return 0;
    }
    kvcache::json out{{"prompt_tokens", of.prompt.size()},
                      {"reused", made->counts.exact + made->counts.approximate},
                      {"prefilled", made->counts.prefilled + made->counts.recomputed},
                      {"from_tier", from_tier()},
                      {"ids", kvcache::json::array()},
                      {"text", text},
                      {"load_ms", of.load_time},
                      {"ttft_ms", 1e3 * made->first_token},
                      {"total_ms", 1e3 * made->total}};
    support::add_counts(out, f, made->counts);
    for (const kvcache::token_id id : made->ids)
        out["ids"].push_back(kvcache::index_of(id));
    std::cout << out.dump() << '\n';
    return 0;
}

template <class Layers>
int answer(const flags& f, const question& of, const Layers& layers) {
    std::ofstream rows_out;
    if (!f.logits.empty()) {
        rows_out.open(f.logits, std::ios::binary);
        if (!rows_out)
            return support::report("generate", unwritable(f.logits));
    }
    kvcache::thread_pool pool(f.threads);
    const kvcache::cache_config config{.shape = of.shape, .limit = {.bytes = page_memory(f, of, layers)}, .id = of.id};
    return with_cache(f, config, layers, [&](auto& cache, auto from_tier) {
        using cache_type = std::remove_reference_t<decltype(cache)>;
        if constexpr (kvcache::knows_chunks<cache_type>)
            if (f.how() != kvcache::reuse_mode::prefix)
                return answer_in_mode(cache, pool, f, of, from_tier);
        kvcache::pipeline pipeline(cache, of.model, pool, f.max_batch_tokens);
        if (!of.warm.empty() && !f.no_cache)
            if (auto warmed = pipeline.prefill(of.warm, kvcache::logits_mode::none); !warmed)
                return support::report("generate", warmed.error());

        const kvcache::sampler sampling{.temperature = f.temperature, .seed = f.seed};
        const kvcache::stop_criteria stop{f.max_tokens, f.ignore_eos ? tokens{} : of.model.config().eos};
        if (f.beams > 0)
            return say_beams(pipeline, f, of.prompt, stop, of.words);
        const auto wanted = f.logits.empty() ? kvcache::logits_mode::last : kvcache::logits_mode::all;
        double first_token = 0.0;
        const support::stopwatch request;
        const auto on_token = [&](kvcache::token_id, std::span<const float>) {
            if (first_token == 0.0)
                first_token = request.milliseconds();
            return true;
        };
        const auto whole = [&]() -> kvcache::result<said<cache_type>> {
            if (!f.load.empty())
                return go_on(cache, pipeline, f, of, sampling, stop, wanted, on_token);
            auto one = f.no_cache ? generate_without_cache(cache, of.model, pool, f, of.prompt, sampling, stop)
                                  : kvcache::generate(pipeline, of.prompt, sampling, stop, on_token, wanted);
            if (!one)
                return one.error();
            return said<cache_type>{std::move(*one), sampling};
        }();
        if (!whole)
            return support::report("generate", whole.error());
        const kvcache::answer<cache_type>& made = whole->made;
        const double total = request.milliseconds();
        if (!f.logits.empty()) {
            const kvcache::matrix& rows_made = made.prompt.logits;
            rows_out.write(reinterpret_cast<const char*>(rows_made.data()),
                           static_cast<std::streamsize>(rows_made.size() * static_cast<Eigen::Index>(sizeof(float))));
            if (!rows_out.flush())
                return support::report("generate", unwritable(f.logits));
        }
        if (!f.save.empty())
            if (auto saved = support::save_context(cache, made, whole->sampling, whole->before, f.save); !saved)
                return support::report("generate", support::in_file("--save", f.save, saved.error()));

        const std::string text = of.words ? of.words->decode(made.ids, {.skip_special = true}) : std::string();
        if (!f.json) {
            std::cout << text << '\n';
            return 0;
        }
        kvcache::json out{{"prompt_tokens", of.prompt.size()},
                          {"reused", made.prompt.reused},
                          {"prefilled", made.prompt.prefilled},
                          {"from_tier", from_tier()},
                          {"ids", kvcache::json::array()},
                          {"text", text},
                          {"load_ms", of.load_time},
                          {"ttft_ms", f.no_cache ? total : first_token},
                          {"total_ms", total}};
        support::add_counts(out, f,
                            {.prompt = made.prompt.reused + made.prompt.prefilled,
                             .exact = made.prompt.reused,
                             .prefilled = made.prompt.prefilled});
        for (const kvcache::token_id id : made.ids)
            out["ids"].push_back(kvcache::index_of(id));
        std::cout << out.dump() << '\n';
        return 0;
    });
}

// Prints the perplexity of a text with pages of a codec, and its price: that with float32 pages.
template <class Codec>
int say_perplexity(const flags& f, const question& of, const Codec& codec) {
    const auto text = kvcache::read_file(f.perplexity, std::size_t{1} << 30);
    if (!text)
        return support::report("generate", support::in_file("--perplexity", f.perplexity, text.error()));
    const auto ids = of.words->encode(*text, {});
    if (!ids)
        return support::report("generate", support::in_file("--perplexity", f.perplexity, ids.error()));
    const std::size_t window = f.window != 0 ? f.window : std::min<std::size_t>(of.model.max_positions(), 2048);
    const support::perplexity_options with{window, f.stride != 0 ? f.stride : window, f.page, f.max_batch_tokens};
    if (window > of.model.max_positions() || with.stride > window)
        return support::report("generate",
                               {kvcache::error_code::out_of_range, "--window",
                                "--window is at most the model's " + std::to_string(of.model.max_positions()) +
                                    " positions, and --stride at most the window"});
    kvcache::thread_pool pool(f.threads);
    support::progress_bar bar("windows");
    const auto made = support::perplexity_of(of.model, pool, codec, *ids, with,
                                             [&](std::size_t done, std::size_t all) { bar(done, all); });
    if (!made)
        return support::report("generate", support::in_file("--perplexity", f.perplexity, made.error()));
    const double per_token = static_cast<double>(codec.open(of.shape).page_bytes()) / f.page;
    const double per_token_f32 = static_cast<double>(kvcache::codec::f32{}.open(of.shape).page_bytes()) / f.page;
    if (f.json) {
        std::cout << kvcache::json{{"codec", f.codec},
                                   {"perplexity", made->with.perplexity},
                                   {"perplexity_f32", made->exact},
                                   {"kl", made->with.divergence},
                                   {"same_token", made->with.agreement},
                                   {"bytes_per_token", per_token},
                                   {"bytes_per_token_f32", per_token_f32},
                                   {"tokens", ids->size()},
                                   {"predicted", made->predicted},
                                   {"windows", made->windows},
                                   {"window", window},
                                   {"stride", with.stride}}
                         .dump()
                  << '\n';
        return 0;
    }
    const auto line = [](const std::string& codec_name, double perplexity, double bytes) {
        std::printf("%-28s perplexity %10.4f  %10.1f bytes a token\n", codec_name.c_str(), perplexity, bytes);
    };
    line("f32", made->exact, per_token_f32);
    if (f.codec != "f32") {
        line(f.codec, made->with.perplexity, per_token);
        std::printf("price of %s: %+.3f %% perplexity, KL %.3g nats a token, same likeliest token %.2f %%\n",
                    f.codec.c_str(), 100.0 * (made->with.perplexity / made->exact - 1.0), made->with.divergence,
                    100.0 * made->with.agreement);
    }
    std::printf("%zu of %zu tokens predicted, in %zu windows of %zu tokens with stride %zu\n", made->predicted,
                ids->size(), made->windows, window, with.stride);
    return 0;
}

int run(const flags& f) {
    const support::stopwatch loading;
    const auto loaded = support::open_model(f.model, f.packed_cache, f.int8);
    if (!loaded)
        return support::report("generate", loaded.error());
    std::optional<kvcache::tokenizer> words;
    if (auto opened = kvcache::tokenizer::open(f.model))
        words = std::move(*opened);
    else if (f.prompt || f.warm || !f.perplexity.empty() || !f.documents.empty())
        return support::report("generate", opened.error());
    question of{loaded->model, words, loaded->model.id(loaded->weights), loaded->model.shape(f.page), {}, {}, {}};
    of.load_time = loading.milliseconds();
    if (words)
        of.id.tokenizer = words->digest();
    const auto encode = [&](const char* flag, const std::optional<std::string>& text,
                            const std::optional<std::string>& ids, bool begins) -> kvcache::result<tokens> {
        if (ids)
            return support::read_ids(flag, *ids);
        return text ? words->encode(*text, {.add_special_tokens = begins}) : tokens{};
    };
    auto prompt = encode("--ids", f.prompt, f.ids, f.load.empty() && f.documents.empty());
    auto warm = encode("--warm-ids", f.warm, f.warm_ids, true);
    if (!prompt || !warm)
        return support::report("generate", prompt ? warm.error() : prompt.error());
    if (!f.documents.empty()) { // what begins a text, the documents, the prompt
        auto begin = encode("--ids", "", {}, true);
        auto read = support::read_documents(f, *words);
        if (!begin || !read)
            return support::report("generate", begin ? read.error() : begin.error());
        of.documents = std::move(*read);
        for (const tokens& one : of.documents)
            begin->insert(begin->end(), one.begin(), one.end());
        begin->insert(begin->end(), prompt->begin(), prompt->end());
        prompt = std::move(begin);
    }
    of.prompt = std::move(*prompt);
    of.warm = std::move(*warm);
    const auto on_error = [](const kvcache::error& fault) { return support::report("generate", fault); };
    if (!f.perplexity.empty())
        return support::with_codec(
            f.codec, of.shape, [&](const auto& codec) { return say_perplexity(f, of, codec); }, on_error);
    return support::with_layers(
        of.model, f.page, f.codec, f.how(), [&](const auto& layers) { return answer(f, of, layers); }, on_error);
}

} // namespace

int main(int argc, char** argv) {
    flags f;
    CLI::App app{
        "Continues a prompt with a model directory (config.json, model.safetensors, tokenizer.json) or a GGUF file."};
    app.add_option("--model", f.model, "Hugging Face model directory, or GGUF file")
        ->required()
        ->check(CLI::ExistingPath);
    auto* prompt = app.add_option("--prompt", f.prompt, "Text to continue");
    auto* ids = app.add_option("--ids", f.ids, "Tokens to continue, as 1,2,3, instead of text");
    prompt->excludes(ids);
    auto* warm = app.add_option("--warm", f.warm, "Text to run first, so that the cache knows it");
    app.add_option("--warm-ids", f.warm_ids, "The same as tokens")->excludes(warm);
    support::add_flags(app, f);
    support::add_codec_flag(app, f.codec);
    support::add_document_flags(app, f);
    support::add_tier_flag(app, f.tier);
    support::add_tier_secret_flag(app, f.tier_secret_file);
    auto* no_cache = app.add_flag("--no-cache", f.no_cache, "Run the whole past again for every token");
    app.add_flag("--ignore-eos", f.ignore_eos, "Continue after the model's end token");
    auto* logits = app.add_option("--logits", f.logits,
                                  "Write float32 logits of the prefilled positions: (prefilled, vocabulary)");
    auto* beams =
        app.add_option("--beams", f.beams, "Search the likeliest answer with so many beams, and draw nothing");
    beams->check(support::whole(1, 1024))->excludes(no_cache)->excludes(logits)->excludes("--temperature");
    app.add_option("--best", f.best, "Answers of the search to say")->check(support::whole(1, 1024))->needs(beams);
    app.add_option("--length-penalty", f.length_penalty,
                   "An answer's score is its log-probability over its length to this")
        ->check(CLI::Range(-10.0, 10.0))
        ->needs(beams);
    app.add_option("--save", f.save, "Write the context after the answer to a file, for --load")
        ->excludes(no_cache)
        ->excludes(beams);
    app.add_option("--load", f.load,
                   "Go on after a saved context: with --prompt or --ids, or without either with its answer")
        ->excludes(no_cache)
        ->excludes(beams);
    auto* perplexity = app.add_option("--perplexity", f.perplexity,
                                      "Say the perplexity of a text file with the codec and with f32 instead");
    for (auto* other : {prompt, ids, warm, logits, no_cache, beams, app.get_option("--save"), app.get_option("--load")})
        perplexity->excludes(other);
    app.add_option("--window", f.window, "Tokens of each window of that text (2048, or the model's positions)")
        ->check(support::whole(2, 1u << 24))
        ->needs(perplexity);
    app.add_option("--stride", f.stride, "Tokens from one window to the next (the window: they do not overlap)")
        ->check(support::whole(1, 1u << 24))
        ->needs(perplexity);
    app.add_flag("--json", f.json, "One JSON object on standard output");
    return support::guarded("generate", app, argc, argv, [&] {
        if (!f.prompt && !f.ids && f.load.empty() && f.perplexity.empty())
            return support::report("generate", {kvcache::error_code::not_found, "--prompt",
                                                "--prompt, --ids, --load or --perplexity is needed"});
        if (f.how() != kvcache::reuse_mode::prefix &&
            (f.no_cache || f.beams > 0 || !f.logits.empty() || !f.save.empty() || !f.load.empty() ||
             !f.perplexity.empty() || f.warm || f.warm_ids))
            return support::report("generate", {kvcache::error_code::unsupported, "--mode",
                                                "--mode baseline and chunks take --prompt, --ids and --document; other "
                                                "ways to run are for prefix"});
        if (!f.documents.empty() && (!f.load.empty() || !f.perplexity.empty()))
            return support::report("generate", {kvcache::error_code::unsupported, "--document",
                                                "--document does not go with --load or --perplexity"});
        return run(f);
    });
}
