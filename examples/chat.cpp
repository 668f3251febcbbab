// SPDX-License-Identifier: MIT
// A terminal chat with any model directory or GGUF file. Each turn prints how many tokens were reused and how many were
// computed.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "support/bars.hpp"
#include "support/codec_flag.hpp"
#include "support/conversation.hpp"
#include "support/flags.hpp"
#include "support/kept_layers.hpp"
#include "support/model_directory.hpp"
#include "support/saved_context.hpp"
#include "support/script.hpp"
#include <CLI/CLI.hpp>
#include <unistd.h>

namespace {

using support::report;
using support::turn_report;

struct flags : support::generation_flags, support::document_flags {
    std::string model, form, replay, system, svg, codec = "f32", save, load;
    std::size_t memory = 1024;
    bool demo = false, no_cache = false;
};

template <class Layers>
struct host {
    using conversation = support::conversation<Layers>;
    using cache = typename conversation::cache;

    const support::speaker& speaker;
    kvcache::cache_config config;
    Layers layers;

    // Returns a new cache, on the heap because a cache is not movable.
    [[nodiscard]] std::unique_ptr<cache> open() const {
        return std::unique_ptr<cache>(
            new cache(support::make_cache_of(layers, config, *kvcache::any_recompute::named(speaker.reuse.recompute))));
    }
};

void on_text(const std::string& piece) {
    std::cout << piece << std::flush;
}

void say_cost(const turn_report& turn) {
    std::printf("\n[%zu tokens: %zu reused, %zu prefilled; first token after %.1f ms]\n", turn.prompt, turn.reused,
                turn.prefilled, turn.first_token_ms);
    if (turn.approximate > 0)
        std::printf("[approximate: %zu of the reused tokens were computed after other tokens]\n", turn.approximate);
}

// Chats with a person, or with the lines of a file, until the input ends.
template <class Layers>
int converse(const host<Layers>& at, std::unique_ptr<typename host<Layers>::cache>& store,
             typename host<Layers>::conversation& chat, const support::script& lines, const flags& f) {
    const bool scripted = !f.replay.empty();
    const bool reuse = !f.no_cache && f.how() != kvcache::reuse_mode::baseline;
    const bool person = !scripted && isatty(STDIN_FILENO) != 0;
    if (person)
        std::cout << "(/clear forgets, /stats tells of the cache, /quit ends)\n";
    std::string text;
    int status = 0; // for a script or a pipe: 1 if any turn failed
    for (std::size_t i = 0;; ++i) {
        if (scripted) {
            if (i == lines.turns.size())
                return status;
            text = lines.turns[i];
            std::cout << "> " << text << '\n';
        } else {
            if (person)
                std::cout << "> " << std::flush;
            if (!std::getline(std::cin, text))
                return status;
            if (text.ends_with('\r'))
                text.pop_back();
            if (text == "/quit")
                return status;
        }
        if (text.empty())
            continue;
        if (!reuse)
            store = at.open();
        if (text == "/clear" && !scripted) {
            chat.clear();
            continue;
        }
        if (text == "/stats" && !scripted) {
            std::cout << kvcache::describe(*store) << '\n';
            continue;
        }
        const auto turn = chat.say(text, *store, on_text);
        if (turn)
            say_cost(*turn);
        else if (const int failed = report("chat", turn.error()); !person)
            status = failed;
    }
}

// The same, after the conversation of a file, and saved to a file at the end.
template <class Layers>
int talk(const host<Layers>& at, const support::script& lines, const flags& f) {
    auto store = at.open();
    typename host<Layers>::conversation chat(at.speaker, lines.system);
    if (!f.load.empty())
        if (auto loaded = chat.load(*store, f.load); !loaded)
            return report("chat", support::in_file("--load", f.load, loaded.error()));
    const int status = converse(at, store, chat, lines, f);
    if (!f.save.empty())
        if (auto saved = chat.save(*store, f.save); !saved)
            return report("chat", support::in_file("--save", f.save, saved.error()));
    return status;
}

// Plays a script `times` times and keeps the best times. Each run has a new cache; without reuse, each turn has one.
template <class Layers>
kvcache::result<std::vector<turn_report>> play(const host<Layers>& at, const support::script& lines, bool reuse,
                                               int times) {
    std::vector<turn_report> best;
    for (int time = 0; time < times; ++time) {
        auto store = at.open();
        typename host<Layers>::conversation chat(at.speaker, lines.system);
        for (std::size_t i = 0; i < lines.turns.size(); ++i) {
            if (!reuse)
                store = at.open();
            auto turn = chat.say(lines.turns[i], *store, [](const std::string&) {});
            if (!turn)
                return turn.error();
            if (time == 0)
                best.push_back(std::move(*turn));
            else
                best[i].first_token_ms = std::min(best[i].first_token_ms, turn->first_token_ms);
        }
        if (auto sound = store->check(); !sound)
            return sound.error();
    }
    return best;
}

template <class Layers>
int demo(const host<Layers>& at, const support::script& lines, const std::string& svg, const std::string& command) {
    constexpr int times = 3;
    std::printf("The same conversation twice: with its past in the cache, and computed anew every turn.\n\n");
    const auto warm = play(at, lines, true, times);
    const auto cold = play(at, lines, false, times);
    if (!warm || !cold)
        return report("chat", warm ? cold.error() : warm.error());

    std::printf("%4s %14s %8s %10s %10s %10s %7s  %s\n", "turn", "prompt tokens", "reused", "prefilled", "TTFT warm",
                "TTFT cold", "ratio", "same bits");
    support::bar_pairs bars{"Milliseconds to the first token, turn by turn", command, "computed anew",
                            "past in the cache"};
    bool same = true;
    for (std::size_t i = 0; i < warm->size(); ++i) {
        const turn_report &w = (*warm)[i], &c = (*cold)[i];
        const bool equal = w.logits == c.logits && w.ids == c.ids;
        same = same && equal;
        std::printf("%4zu %14zu %8zu %10zu %7.2f ms %7.2f ms %6.1fx  %s\n", i + 1, w.prompt, w.reused, w.prefilled,
                    w.first_token_ms, c.first_token_ms, c.first_token_ms / w.first_token_ms, equal ? "yes" : "NO");
        bars.firsts.push_back(c.first_token_ms);
        bars.seconds.push_back(w.first_token_ms);
    }
    const turn_report& last = warm->back();
    std::printf("\nLast turn\n  > %s\n  %s\n", lines.turns.back().c_str(), last.text.c_str());
    std::printf(
        "\nOne clock, from the request to the first token, best of %d. Same bits: the logits of every token said.\n",
        times);
    if (!svg.empty() && !support::write_svg(svg, bars))
        return report("chat", {kvcache::error_code::io, "--svg", "--svg: " + svg + " cannot be written"});
    if (!svg.empty())
        std::printf("Picture: %s\n", svg.c_str());
    std::puts(same ? "A hit equals a miss, bit for bit." : "FAILED: a bit differs.");
    return same ? 0 : 1;
}

// The template of a file. Errors: io; those of chat_template::parse, with the file's name.
kvcache::result<kvcache::chat_template> parsed_template(const std::string& file, const kvcache::tokenizer& words) {
    std::ifstream in(file, std::ios::binary);
    std::string source{std::istreambuf_iterator<char>(in), {}};
    if (!in)
        return kvcache::error{kvcache::error_code::io, "--template", file + " cannot be read"};
    if (source.ends_with('\n')) // as for every template
        source.pop_back();
    auto made = kvcache::chat_template::parse(source, words.config().special_tokens());
    if (!made)
        return kvcache::error{made.error().code, made.error().field, file + ": " + made.error().message};
    return made;
}

int run(const flags& f, const std::string& command) {
    const auto loaded = support::open_model(f.model, f.packed_cache, f.int8);
    if (!loaded)
        return report("chat", loaded.error());
    const auto words = kvcache::tokenizer::open(f.model);
    if (!words)
        return report("chat", words.error());
    const auto form =
        f.form.empty() ? kvcache::chat_template::open(*words, "default") : parsed_template(f.form, *words);
    if (!form)
        return report("chat", form.error());
    support::script lines{.system = f.system};
    if (f.demo || !f.replay.empty()) {
        auto read = support::read_script(f.replay.empty() ? f.model + "/conversation.json" : f.replay);
        if (!read)
            return report("chat", read.error());
        lines.turns = std::move(read->turns);
        if (f.system.empty())
            lines.system = std::move(read->system);
    }

    auto documents = support::read_texts(f.documents);
    if (!documents)
        return report("chat", documents.error());
    kvcache::thread_pool threads(f.threads);
    support::speaker speaker{.model = loaded->model, .words = *words, .form = *form, .threads = threads};
    speaker.sampling.temperature = f.temperature;
    speaker.sampling.seed = f.seed;
    speaker.max_tokens = f.max_tokens;
    speaker.max_batch_tokens = f.max_batch_tokens;
    speaker.reuse = f;
    speaker.documents = std::move(*documents);
    kvcache::identity id = loaded->model.id(loaded->weights);
    id.tokenizer = words->digest();
    const kvcache::cache_config config{
        .shape = loaded->model.shape(f.page), .limit = {.bytes = f.memory << 20}, .id = id};
    return support::with_layers(
        loaded->model, f.page, f.codec, f.how(),
        [&](const auto& layers) {
            const host<std::decay_t<decltype(layers)>> at{speaker, config, layers};
            return f.demo ? demo(at, lines, f.svg, command) : talk(at, lines, f);
        },
        [](const kvcache::error& fault) { return report("chat", fault); });
}

} // namespace

int main(int argc, char** argv) {
    flags f;
    f.max_tokens = 128;
    CLI::App app{"Chats with a model directory or a GGUF file; the past of a conversation is computed once."};
    app.add_option("--model", f.model, "Hugging Face model directory, or GGUF file")
        ->required()
        ->check(CLI::ExistingPath);
    app.add_option("--template", f.form, "Chat template in Jinja, for a model that has none or instead of its own")
        ->check(CLI::ExistingFile);
    app.add_option("--replay", f.replay, "Play a file: {\"system\", \"turns\"} in JSON, or a turn a line");
    auto* demo = app.add_flag("--demo", f.demo,
                              "Play it (or the model's conversation.json) with and without reuse, and compare bits");
    app.add_option("--svg", f.svg, "With --demo: write a picture");
    auto* system = app.add_option("--system", f.system, "System prompt");
    support::add_flags(app, f);
    support::add_codec_flag(app, f.codec);
    support::add_document_flags(app, f);
    app.add_option("--memory", f.memory, "MiB for pages")->check(support::whole(1, 1u << 20))->capture_default_str();
    auto* no_cache = app.add_flag("--no-cache", f.no_cache, "Compute the whole past anew every turn");
    app.add_option("--save", f.save, "Write the conversation and its pages to a file at the end")
        ->excludes(demo)
        ->excludes(no_cache);
    app.add_option("--load", f.load, "Go on with the conversation of a file")
        ->excludes(demo)
        ->excludes(no_cache)
        ->excludes(system)
        ->excludes("--document");
    demo->excludes("--mode");
    return support::guarded("chat", app, argc, argv, [&] {
        std::string command = "chat";
        for (int i = 1; i < argc; ++i)
            command += std::string(" ") + argv[i];
        return run(f, command);
    });
}
