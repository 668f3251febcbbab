// SPDX-License-Identifier: MIT
// Promise 1 on real weights, where build/models has them (tools/fetch_model.py): SmolLM2-135M-Instruct in Q4_1, and
// Gemma 3 270M in Q4_K_M, whose layers have windows.
#include <kvcache/core/digest.hpp>
#include <kvcache/layer_groups.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/snapshot.hpp>
#include <kvcache/tier/lmdb.hpp>
#include <kvcache/tier/memory.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/huggingface/files.hpp"
#include "promise_fixture.hpp"
#include "support/folders.hpp"
#include <catch2/catch.hpp>

using namespace promise;

namespace {

struct real_model {
    const char* file;
    const char* named;              // by tools/fetch_model.py
    const char* digest;             // of the logits after 70 tokens, the same on every machine
    std::vector<std::size_t> sizes; // of long prompts
};

const real_model models[] = {
    {"SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2", "5d6c4377ab7cee6b110364ae1f11910e", {333, 1100}},
    {"gemma-3-270m-q4_k_m.gguf", "gemma", "06b518cb2bd06d7ea2226a6234438b26", {333, 700}}};

// The model, if build/models has it.
std::optional<kv::transformer> open(const real_model& which) {
    const auto file = test_folders::project() / "build" / "models" / which.file;
    if (!std::filesystem::exists(file)) {
        std::cout << "SKIPPED: no build/models/" << which.file << "; tools/fetch_model.py " << which.named
                  << " downloads it\n";
        return std::nullopt;
    }
    auto loaded = kv::load_model(file);
    REQUIRE((loaded ? std::string() : loaded.error().message) == "");
    return std::move(loaded->model);
}

tokens first_of(const tokens& all, std::size_t n) {
    return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n)};
}

// The combinations of splits, pages and threads, for a prompt of which `known` tokens are cached.
void combine(const kv::transformer& model, const tokens& prompt, const kv::matrix& want,
             const std::vector<std::size_t>& splits, const std::vector<std::uint32_t>& pages) {
    for (const std::uint32_t page : pages)
        for (const std::size_t split : splits) {
            const std::size_t known = prompt.size() / 2 + 3, threads = 1 + split % 2;
            CAPTURE(page, split, threads);
            host here(model, page, threads, split, 64 + 4096 / page);
            (void)here.prefill(first_of(prompt, known), kv::logits_mode::last);
            const prefill_result warm = here.prefill(prompt);
            CHECK(warm.reused == known);
            CHECK(same_bits(warm.logits, want));
        }
}

// Forks, truncates, evicts, and restores from a tier and a snapshot.
void come_and_go(const kv::transformer& model, const tokens& prompt, const kv::matrix& want) {
    const std::size_t half = prompt.size() / 2;
    const tokens rest(prompt.begin() + static_cast<std::ptrdiff_t>(half), prompt.end());
    host here(model, 16, 2);
    {
        prefill_result trunk = here.prefill(prompt, kv::logits_mode::last);
        auto branch = trunk.sequence.fork(half);
        CHECK(same_bits(here.extend(branch, rest), want));
        trunk.sequence.truncate(half);
        kv::matrix row;
        for (const kv::token_id token : rest) // one at a time, like decoding
            row = here.extend(trunk.sequence, {token});
        CHECK(same_bits(row, want));

        std::vector<std::byte> snapshot;
        REQUIRE(kv::write_snapshot(here.store, here.prefill(first_of(prompt, half)).sequence, {}, "", [&](auto pieces) {
            for (const auto piece : pieces)
                snapshot.insert(snapshot.end(), piece.begin(), piece.end());
            return kv::result<void>{};
        }));
        host elsewhere(model, 16);
        auto restored = kv::read_snapshot(elsewhere.store, snapshot, "");
        REQUIRE(restored);
        CHECK(same_bits(elsewhere.extend(restored->sequence, rest), want));
    }
    const std::size_t bytes = (prompt.size() / 16 + 4) * host::bytes(model, 16);
    auto store = kv::make_cache({model.shape(16), {.bytes = bytes}, model.id({1, 2})},
                                kv::tier::memory<>{.bytes = 5 * bytes}); // all four prompts
    kv::pipeline<decltype(store), kv::transformer> pipeline(store, model, here.pool, 64);
    for (unsigned seed = 0; seed < 3; ++seed) { // the cache has room for one of the prompts
        {
            const auto warm = pipeline.prefill(prompt, kv::logits_mode::all);
            REQUIRE(warm);
            CHECK((warm->reused > 0) == (seed > 0));
            CHECK(same_bits(warm->logits, want));
        }
        REQUIRE(pipeline.prefill(some_tokens(model, prompt.size(), 10 + seed)));
    }
    CHECK(kv::tier_stats_of(store).loaded_tokens > 0);
}

// The same in caches of layer groups, with records on a disk that a second cache opens.
void in_groups(const kv::transformer& model, const tokens& prompt, const kv::matrix& want) {
    const std::size_t known = prompt.size() / 2 + 3, bytes = (prompt.size() / 16 + 8) * host::bytes(model, 16);
    const testing_files::temporary_directory directory;
    const kv::tier::lmdb<> disk{.directory = directory.path() / "pages"};
    for (int opened = 0; opened < 2; ++opened) {
        auto cache = kv::make_cache({.limit = {.bytes = bytes}, .id = model.id({1, 2})},
                                    kv::layers::grouped{.layout = model.layout(16)}, disk);
        for (const std::size_t split : {7u, 64u}) {
            CAPTURE(opened, split);
            kv::thread_pool threads(1 + split % 2);
            kv::pipeline pipeline(cache, model, threads, split);
            REQUIRE(pipeline.prefill(first_of(prompt, known), kv::logits_mode::last));
            auto warm = pipeline.prefill(prompt, kv::logits_mode::all);
            REQUIRE(warm);
            CHECK(warm->reused > 0);
            CHECK(same_bits(warm->logits, want));
            const std::size_t half = prompt.size() - 7;
            auto branch = warm->sequence.fork(half);
            const auto rest = pipeline.extend(branch, std::span(prompt).subspan(branch.size()), kv::logits_mode::all);
            REQUIRE(rest);
            CHECK(same_bits(*rest, want));
        }
        CHECK((kv::tier_stats_of(cache).loaded_tokens > 0) == (opened > 0));
        REQUIRE(cache.tier().flush());
        const auto sound = cache.check();
        CHECK((sound ? std::string() : sound.error().message) == "");
    }
}

} // namespace

TEST_CASE("real weights: a hit equals a miss, and every build has the same bits") {
    for (const real_model& which : models) {
        const auto model = open(which);
        if (!model)
            continue;
        CAPTURE(which.file);
        const tokens prompt = some_tokens(*model, 70, 1);
        const kv::matrix want = cold(*model, prompt);
        kv::digest_builder builder; // of the last row; the same on a machine of any byte order
        for (const float x : kv::row_of(want, prompt.size() - 1))
            builder.number(std::bit_cast<std::uint32_t>(x));
        CHECK(kv::to_string(builder.finish()) == which.digest);
        combine(*model, prompt, want, {7, 64}, {16, 64});
        come_and_go(*model, prompt, want);
        in_groups(*model, prompt, want);
    }
}

TEST_CASE("real weights: any split, page size and number of threads", "[.long]") {
    for (const real_model& which : models) {
        const auto model = open(which);
        if (!model)
            continue;
        for (const std::size_t size : which.sizes) {
            CAPTURE(which.file, size);
            const tokens prompt = some_tokens(*model, size, 2);
            const kv::matrix want = cold(*model, prompt);
            combine(*model, prompt, want, {1, 2, 3, 7, 16, 17, 64, 1000}, {16, 32, 64, 256});
            come_and_go(*model, prompt, want);
            in_groups(*model, prompt, want);
        }
    }
}
