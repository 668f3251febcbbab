// SPDX-License-Identifier: MIT
// Reference results of the transformer: the logits of `transformers` for each architecture, and of llama2.c on real
// weights.
#include <kvcache/formats/json.hpp>
#include <kvcache/kvcache.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/model/transformer.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "support/folders.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
namespace fs = std::filesystem;

namespace {

using tokens = std::vector<kv::token_id>;

kv::loaded_model open(const fs::path& directory) {
    auto loaded = kv::load_model(directory);
    INFO((loaded ? std::string() : loaded.error().message));
    REQUIRE(loaded.has_value());
    return std::move(*loaded);
}

tokens ids_of(const kv::json& list) {
    tokens made;
    for (const auto& id : list)
        made.push_back(kv::token_id{id.get<std::int32_t>()});
    return made;
}

std::vector<float> read_floats(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    std::vector<float> numbers(bytes.size() / sizeof(float));
    std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(float));
    return numbers;
}

template <class Cache>
kv::matrix run_in(Cache cache, const kv::transformer& model, const tokens& prompt) {
    kv::thread_pool threads(1);
    kv::pipeline pipeline(cache, model, threads, 32);
    auto done = pipeline.prefill(prompt, kv::logits_mode::all);
    INFO((done ? std::string() : done.error().message));
    REQUIRE(done.has_value());
    return std::move(done->logits);
}

// Logits of every position, with the same bits in both kinds of caches.
kv::matrix run(const kv::transformer& model, const tokens& prompt) {
    const kv::matrix grouped =
        run_in(kv::make_cache({.limit = {.bytes = 64u << 20}}, kv::layers::grouped{.layout = model.layout(16)}), model,
               prompt);
    if (model.config().needs_groups()) // which the other kind refuses
        return grouped;
    kv::matrix all = run_in(kv::make_cache({model.shape(16), {.bytes = 64u << 20}}), model, prompt);
    CHECK(std::memcmp(all.data(), grouped.data(), static_cast<std::size_t>(all.size()) * sizeof(float)) == 0);
    return all;
}

double worst(std::span<const float> ours, std::span<const float> golden) {
    double most = 0.0;
    for (std::size_t i = 0; i < golden.size(); ++i)
        most = std::max(most, std::abs(static_cast<double>(ours[i]) - static_cast<double>(golden[i])) /
                                  std::max(1.0, std::abs(static_cast<double>(golden[i]))));
    return most;
}

// Directory of the real weights; prints a line if they are missing.
std::optional<fs::path> stories() {
    const fs::path directory = test_folders::data() / "models" / "stories260k";
    if (fs::exists(directory))
        return directory;
    std::cout << "SKIPPED: " << directory.string() << " is not here\n";
    return std::nullopt;
}

} // namespace

TEST_CASE("the frequencies of YaRN are those of transformers' formulas in double precision") {
    const auto check = [](const kv::rope_config& config, const std::vector<double>& wanted) {
        const kv::rope made = kv::make_rope(config, 16);
        REQUIRE(made.frequencies().size() == wanted.size());
        for (std::size_t i = 0; i < wanted.size(); ++i)
            CHECK(std::abs(made.frequencies()[i] - wanted[i]) < 1e-13 * wanted[i]);
    };
    using kind = kv::rope_config::kind;
    check({.theta = 1e6, .scaling = kind::yarn, .factor = 4.0, .original_max_positions = 32768.0},
          {1.0, 0.1778279410038923, 0.03162277660168379, 0.004217559938927619, 0.0005, 4.445698525097307e-05,
           7.905694150420949e-06, 1.4058533129758728e-06});
    check(
        {.theta = 150000.0, .scaling = kind::yarn, .factor = 32.0, .original_max_positions = 4096.0, .truncate = false},
        {1.0, 0.22541800020287084, 0.050813274815461475, 0.006794959489732219, 0.00045648391922324086,
         1.818833668168956e-05, 4.09997848180298e-06, 9.242089502428302e-07});
}

TEST_CASE("the logits of every architecture are those of transformers") {
    std::size_t models = 0;
    for (const auto& entry : fs::directory_iterator(test_folders::project() / "tests" / "data" / "checkpoints")) {
        if (!entry.is_directory())
            continue;
        CAPTURE(entry.path().filename().string());
        const auto golden = kv::read_json(entry.path() / "golden.json");
        REQUIRE(golden.has_value());
        const auto loaded = open(entry.path());
        const tokens prompt = ids_of((*golden)["tokens"]);
        const kv::matrix ours = run(loaded.model, prompt);
        const auto want = read_floats(entry.path() / "logits.f32");
        REQUIRE(want.size() == static_cast<std::size_t>(ours.size()));
        REQUIRE(want.size() == prompt.size() * loaded.model.vocabulary());
        CHECK(worst({ours.data(), want.size()}, want) <= 1e-4);
        ++models;
    }
    CHECK(models >= 57);
}

TEST_CASE("stories260k generates the 200 greedy tokens of llama2.c") {
    const auto directory = stories();
    if (!directory)
        return;
    const auto loaded = open(*directory);
    const auto golden = kv::read_json(*directory / "golden_llama2c.json");
    REQUIRE(golden.has_value());
    for (const auto& want : (*golden)["greedy"]) {
        auto cache = kv::make_cache({loaded.model.shape(32), {.bytes = 64u << 20}});
        kv::thread_pool threads(1);
        kv::pipeline pipeline(cache, loaded.model, threads);
        const auto made = kv::generate(pipeline, ids_of(want["prompt_ids"]), kv::sampler{}, {.max_tokens = 200},
                                       [](kv::token_id, std::span<const float>) { return true; });
        REQUIRE(made.has_value());
        CAPTURE(want["prompt"].get<std::string>());
        CHECK(made->ids == ids_of(want["greedy_ids"]));
        if (want["prompt_ids"].size() == 1) {
            const auto words = kv::tokenizer::open(*directory);
            REQUIRE(words.has_value());
            std::ifstream in(*directory / "expected_greedy_200.txt");
            std::string text{std::istreambuf_iterator<char>(in), {}};
            text.erase(text.find_last_not_of('\n') + 1);
            const std::string said = words->decode(made->ids, {.skip_special = true});
            CHECK(said.substr(said.find_first_not_of(' '), text.size()) == text);
            CHECK(said.size() <= text.size() + 1);
        }
    }
}

TEST_CASE("stories260k gives the logits and likelihoods of llama2.c") {
    const auto directory = stories();
    if (!directory)
        return;
    const auto loaded = open(*directory);
    const auto golden = kv::read_json(*directory / "golden_llama2c.json");
    REQUIRE(golden.has_value());
    for (const auto& want : (*golden)["last_position_logits"]) {
        const kv::matrix ours = run(loaded.model, ids_of(want["prompt_ids"]));
        const auto logits = want["logits"].get<std::vector<float>>();
        CHECK(worst(kv::row_of(ours, static_cast<std::size_t>(ours.rows()) - 1), logits) <= 1e-4);
    }
    for (const auto& want : (*golden)["nll"]) {
        const tokens ids = ids_of(want["ids"]);
        const kv::matrix ours = run(loaded.model, ids);
        double total = 0.0;
        for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
            const auto row = kv::row_of(ours, i);
            const double top = static_cast<double>(*std::max_element(row.begin(), row.end()));
            double sum = 0.0;
            for (const float x : row)
                sum += std::exp(static_cast<double>(x) - top);
            const double nll =
                std::log(sum) + top - static_cast<double>(row[static_cast<std::size_t>(kv::index_of(ids[i + 1]))]);
            CHECK(std::abs(nll - want["nll_per_token"][i].get<double>()) <= 1e-4 * std::max(1.0, nll));
            total += nll;
        }
        const double mean = total / static_cast<double>(ids.size() - 1);
        CHECK(std::abs(mean - want["mean_nll"].get<double>()) <= 1e-4);
    }
}
