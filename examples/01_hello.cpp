// SPDX-License-Identifier: MIT
// Hello: open a model, open a cache, run the same prompt twice. The second time only one token is computed.
// test:
#include <kvcache/kvcache.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <iostream>

#include "support/guarded.hpp"

using namespace kvcache::literals;

namespace {

int program(int argc, char** argv) {
    const std::string directory = argc > 1 ? argv[1] : "examples/models/worlds-2m";
    const auto loaded = kvcache::load_model(directory);
    const auto words = kvcache::tokenizer::open(directory);
    if (!loaded || !words) {
        std::cerr << (loaded ? words.error() : loaded.error()).message << '\n';
        return 1;
    }
    const kvcache::transformer& model = loaded->model;

    auto cache = kvcache::make_cache({.shape = model.shape(64), .limit = {.bytes = 256_MiB}});
    kvcache::thread_pool threads(2);
    kvcache::pipeline pipeline(cache, model, threads);

    const auto prompt = words->encode("Hello, my dear cache. What do you know of me?", {});
    if (!prompt) {
        std::cerr << prompt.error().message << '\n';
        return 1;
    }
    kvcache::matrix logits[2];
    for (kvcache::matrix& said : logits) {
        auto turn = pipeline.prefill(*prompt);
        if (!turn) {
            std::cerr << turn.error().message << '\n';
            return 1;
        }
        std::cout << turn->found.explain() << ": " << turn->reused << " reused, " << turn->prefilled << " computed\n";
        said = turn->logits;
    }
    const bool same = logits[0] == logits[1];
    std::cout << (same ? "the logits are the same, bit for bit\n" : "THE LOGITS DIFFER\n");
    return same ? 0 : 1;
}

} // namespace

int main(int argc, char** argv) {
    return support::guarded("01_hello", [&] { return program(argc, argv); });
}
