// SPDX-License-Identifier: MIT
// Snapshots of sequences whose layers keep different things: windows and states move with the pages.
#include <kvcache/layer_groups.hpp>
#include <kvcache/record/record.hpp>
#include <kvcache/record/record_writer.hpp>
#include <kvcache/session/snapshot.hpp>

#include <algorithm>
#include <cstddef>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "recurrent_fixture.hpp"
#include <catch2/catch.hpp>

using namespace recurrent;

namespace {

template <class Cache>
std::vector<std::byte> saved(const Cache& cache, const typename Cache::sequence& of) {
    std::vector<std::byte> all;
    const auto written = kv::write_snapshot(cache, of, {}, "", [&](auto pieces) -> kv::result<void> {
        for (const auto piece : pieces)
            all.insert(all.end(), piece.begin(), piece.end());
        return {};
    });
    REQUIRE((written ? std::string() : written.error().message) == "");
    return all;
}

} // namespace

TEST_CASE("layer groups: snapshots of sequences of any length continue elsewhere") {
    for (std::size_t which = 0; which < models; ++which) {
        const kv::transformer& model = recurrent_model(which);
        const tokens prompt = some_tokens(model, 100, 14);
        const kv::matrix want = alone(model, prompt);
        auto cache = cache_of(model, 16, 32u << 20);
        runner run(cache, model);
        auto sequence = cache.open();
        for (std::size_t at = 0; at < prompt.size(); ++at) {
            CAPTURE(which, at);
            const auto bytes = saved(cache, sequence);
            for (const std::size_t known : {0u, 40u, 48u, 100u}) { // tokens that the other cache has
                auto other = cache_of(model, 16, 32u << 20);
                runner there(other, model);
                if (known > 0)
                    there.prefill(part(prompt, 0, known));
                auto back = kv::read_snapshot(other, bytes);
                REQUIRE((back ? std::string() : back.error().message) == "");
                CHECK(back->sequence.size() == at);
                check(other);
                CHECK(same_bits(there.extend(back->sequence, part(prompt, at, prompt.size())), want));
            }
            run.extend(sequence, part(prompt, at, at + 1));
        }
    }
}

TEST_CASE("layer groups: a snapshot at the end of a page is one of the other cache's") {
    const kv::transformer& model = recurrent_model(1);
    const tokens prompt = some_tokens(model, 100, 15);
    auto cache = cache_of(model, 16, 32u << 20);
    auto sequence = cache.open();
    runner(cache, model).extend(sequence, part(prompt, 0, 64));
    auto other = cache_of(model, 16, 32u << 20);
    REQUIRE(kv::read_snapshot(other, saved(cache, sequence)));
    const auto made = runner(other, model).prefill(prompt);
    CHECK(made.reused == 64);
    CHECK(same_bits(made.logits, alone(model, prompt)));
}

TEST_CASE("layer groups: what a snapshot lacks is named, and nothing is kept of it") {
    const kv::transformer& model = recurrent_model(3); // states and a window
    const tokens prompt = some_tokens(model, 90, 16);
    auto cache = cache_of(model, 16, 32u << 20);
    runner run(cache, model);
    auto made = run.prefill(prompt);
    const auto whole = saved(cache, made.sequence);
    const auto record = kv::record::parse(whole, kv::record_authenticator(""));
    REQUIRE(record);

    // A record of the same parts but one, whole in itself.
    const kv::record_names names(cache.id(), "");
    auto other = cache_of(model, 16, 32u << 20);
    std::size_t blocks = 0;
    for (std::size_t without = 0; without < record->parts().size(); ++without) {
        std::vector<kv::part_source> parts;
        for (std::size_t i = 0; i < record->parts().size(); ++i)
            if (const kv::record_part& one = record->parts()[i]; i != without)
                parts.push_back({one.kind, one.index, one.rows, one.bytes});
        const kv::record_writer written({record->kind(), 0, prompt, names.root(), record->name(), parts}, names,
                                        kv::record_authenticator(""));
        std::vector<std::byte> bytes;
        for (const auto piece : written.pieces())
            bytes.insert(bytes.end(), piece.begin(), piece.end());
        const auto back = kv::read_snapshot(other, bytes);
        REQUIRE_FALSE(back);
        CHECK(back.error().code == kv::error_code::malformed);
        if (record->parts()[without].kind >= kv::part_kind::block) {
            ++blocks;
            CHECK(back.error().field == "block");
        }
        CHECK(other.stats().in_use == 0);
        check(other);
    }
    CHECK(blocks >= 3); // two blocks of the window at least, and the states

    // One bit in any part.
    std::mt19937 random(17);
    for (const kv::record_part& one : record->parts()) {
        auto bytes = whole;
        const auto at = static_cast<std::size_t>(one.bytes.data() - whole.data()) + random() % one.bytes.size();
        bytes[at] ^= std::byte{1};
        const auto back = kv::read_snapshot(other, bytes);
        REQUIRE_FALSE(back);
        CHECK(other.stats().in_use == 0);
        check(other);
    }
    CHECK(kv::read_snapshot(other, whole));
}

TEST_CASE("layer groups: without its states a sequence is not saved") {
    const kv::transformer& model = recurrent_model(0);
    const tokens prompt = some_tokens(model, 70, 18);
    auto cache = cache_of(model, 16, 32u << 20);
    runner run(cache, model);
    auto made = run.prefill(prompt);
    auto lease = cache.reserve(made.sequence, 4);
    REQUIRE(lease);
    const auto refused = [&](const auto& sequence) {
        const auto written = kv::write_snapshot(cache, sequence, {}, "", [](auto) -> kv::result<void> { return {}; });
        return written ? std::string() : written.error().message;
    };
    lease->declare_written();
    lease->commit(part(prompt, 0, 2)); // of four: the states are not known
    CHECK(refused(made.sequence) ==
          "groups[0]: the state after the last of 72 tokens is not known; a fork that ends at "
          "a snapshot can be saved");
    CHECK(refused(made.sequence.fork(70)) == "");
}

TEST_CASE("layer groups: a host's states move with a snapshot, opaque ones too") {
    const kv::layer_group rows{.layers = 1, .kv_heads = 1, .head_dim = 4};
    const kv::layers::grouped groups{
        .layout = {.tokens = 16, .groups = {rows, {.layers = 1, .state_bytes = 12}, {.layers = 1, .opaque = true}}}};
    auto cache = kv::make_cache({.limit = {.bytes = 1u << 20}}, groups);
    const tokens said(48, kv::token_id{3});
    auto got = cache.acquire(said);
    REQUIRE(got);
    const std::vector<float> numbers(4, 1.5F);
    for (std::size_t row = 0; row < said.size(); ++row)
        got->lease.write(0, kv::layer_id{0}, row, numbers, numbers);
    const auto fill = [](std::span<std::byte> to, int with) {
        std::fill(to.begin(), to.end(), static_cast<std::byte>(with));
    };
    fill(got->lease.state_after(1), 7);
    const auto blob = got->lease.snapshot(2, 48, 777);
    REQUIRE(blob);
    fill(got->lease.state_of(2, *blob), 9);
    got->lease.commit(said);
    const auto whole = got->sequence.fork(48); // holds the blob, which a committed sequence leaves to eviction
    CHECK(whole.state_of(2).size() == 777);

    auto other = kv::make_cache({.limit = {.bytes = 1u << 20}}, groups);
    const auto bytes = saved(cache, whole);
    {
        auto back = kv::read_snapshot(other, bytes);
        REQUIRE((back ? std::string() : back.error().message) == "");
        for (const std::size_t group : {1u, 2u})
            CHECK(std::ranges::equal(back->sequence.state_of(group), whole.state_of(group)));
        check(other);
    }
    const auto found = other.acquire(tokens(60, kv::token_id{3}));
    REQUIRE(found);
    CHECK(found->lease.first() == 48);
    CHECK(found->sequence.state_of(2).size() == 777);
    check(other);

    auto small = kv::make_cache({.limit = {.bytes = 1500}}, groups); // for the pages, and not for the blob
    const auto refused = kv::read_snapshot(small, bytes);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().code == kv::error_code::out_of_memory);
    CHECK(small.stats().in_use == 0);
    check(small);
}
