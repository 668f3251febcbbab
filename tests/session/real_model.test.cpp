// SPDX-License-Identifier: MIT
// Promise 1 on real weights: SmolLM2-135M-Instruct in blocks of Q4_1, if build/models has it (tools/fetch_model.py).
#include <kvcache/core/digest.hpp>
#include <kvcache/model/load.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/snapshot.hpp>
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

#include "promise_fixture.hpp"
#include <catch2/catch.hpp>

using namespace promise;

namespace {

const kv::transformer* real_model() {
    static const std::optional<kv::transformer> model = []() -> std::optional<kv::transformer> {
        const auto file =
            std::filesystem::path(KVCACHE_SOURCE_DIR) / "build" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf";
        if (!std::filesystem::exists(file))
            return std::nullopt;
        auto loaded = kv::load_model(file);
        REQUIRE((loaded ? std::string() : loaded.error().message) == "");
        return std::move(loaded->model);
    }();
    if (!model) {
        std::cout << "SKIPPED: no build/models/SmolLM2-135M-Instruct.Q4_1.gguf; tools/fetch_model.py downloads it\n";
        return nullptr;
    }
    return &*model;
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

} // namespace

TEST_CASE("real weights: a hit equals a miss, and every build has the same bits") {
    const kv::transformer* model = real_model();
    if (model == nullptr)
        return;
    const tokens prompt = some_tokens(*model, 70, 1);
    const kv::matrix want = cold(*model, prompt);
    kv::digest_builder builder; // of the last row; the same on a machine of any byte order
    for (const float x : kv::row_of(want, prompt.size() - 1))
        builder.number(std::bit_cast<std::uint32_t>(x));
    CHECK(kv::to_string(builder.finish()) == "5d6c4377ab7cee6b110364ae1f11910e");
    combine(*model, prompt, want, {7, 64}, {16, 64});
    come_and_go(*model, prompt, want);
}

TEST_CASE("real weights: any split, page size and number of threads", "[.long]") {
    const kv::transformer* model = real_model();
    if (model == nullptr)
        return;
    for (const std::size_t size : {333u, 1100u}) {
        const tokens prompt = some_tokens(*model, size, 2);
        const kv::matrix want = cold(*model, prompt);
        combine(*model, prompt, want, {1, 2, 3, 7, 16, 17, 64, 1000}, {16, 32, 64, 256});
        come_and_go(*model, prompt, want);
    }
}
