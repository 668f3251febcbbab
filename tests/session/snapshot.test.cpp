// SPDX-License-Identifier: MIT
#include <kvcache/cache.hpp>
#include <kvcache/cache/any_codec.hpp>
#include <kvcache/cache/compose.hpp>
#include <kvcache/codec/all.hpp>
#include <kvcache/index/chunk.hpp>
#include <kvcache/locking/mutex.hpp>
#include <kvcache/recompute/none.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/session/generate.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/snapshot.hpp>
#include <kvcache/testing/fault_injecting.hpp>
#include <kvcache/testing/random_weights.hpp>
#include <kvcache/testing/role_conformance.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "model/huggingface/files.hpp"
#include "session/small_model.hpp"
#include <catch2/catch.hpp>
#include <sys/wait.h>
#include <unistd.h>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;
using bytes = std::vector<std::byte>;
using codecs =
    std::tuple<kv::codec::int8_grouped, kv::codec::hadamard<kv::codec::int4>, kv::codec::keep_sinks<kv::codec::int4>,
               kv::codec::keep_recent<kv::codec::int8>, kv::codec::keep_recent<kv::codec::keep_sinks<kv::codec::int8>>>;
using quantized = kv::any_codec<codecs>;

kv::transformer made(double theta) {
    kv::model_config config = small::config();
    config.rope.theta = theta;
    return kv::make_random_model(config, 7);
}

const kv::transformer& model() {
    static const kv::transformer one = made(10000.0);
    return one;
}

kv::identity own_identity() {
    kv::identity id = model().id({1, 2});
    id.tokenizer = {3, 4};
    return id;
}

using small::some;

constexpr std::uint32_t page = 32;

template <class... Policies>
struct host {
    using cache = kv::cache<Policies...>;

    explicit host(Policies... policies) : host(own_identity(), 60, std::move(policies)...) {}
    host(kv::identity id, std::size_t pages, Policies... policies)
        : store(kv::make_cache({model().shape(page),
                                {.bytes = pages * kv::codec::f32{}.open(model().shape(page)).page_bytes()},
                                std::move(id)},
                               std::move(policies)...)) {}
    ~host() {
        const auto sound = store.check();
        CHECK((sound ? std::string() : sound.error().field + " " + sound.error().message) == "");
    }

    [[nodiscard]] kv::prefill_result<cache> prefill(const tokens& prompt) {
        auto done = pipeline.prefill(prompt, kv::logits_mode::all);
        REQUIRE(done.has_value());
        return std::move(*done);
    }
    [[nodiscard]] kv::matrix extend(typename cache::sequence& sequence, std::span<const kv::token_id> more) {
        auto rows = pipeline.extend(sequence, more, kv::logits_mode::all);
        REQUIRE(rows.has_value());
        return std::move(*rows);
    }
    [[nodiscard]] bytes saved(const typename cache::sequence& of, const kv::generation_state& state = {},
                              std::string_view secret = {}) const {
        bytes all;
        const auto done = kv::write_snapshot(store, of, state, secret, [&](auto pieces) -> kv::result<void> {
            for (const auto piece : pieces)
                all.insert(all.end(), piece.begin(), piece.end());
            return {};
        });
        REQUIRE(done);
        return all;
    }

    kv::thread_pool pool{1};
    cache store;
    kv::pipeline<cache, kv::transformer> pipeline{store, model(), pool, 64};
};

// Returns whether `rows` equal the last rows of the logits of a run that shares nothing.
bool same_tail(const kv::matrix& rows, const kv::matrix& whole) {
    const float* tail = whole.data() + whole.size() - rows.size();
    return rows.size() > 0 && rows.size() <= whole.size() &&
           std::memcmp(rows.data(), tail, static_cast<std::size_t>(rows.size()) * sizeof(float)) == 0;
}

bytes a_snapshot(std::size_t count = 75) {
    host<> here;
    const auto filled = here.prefill(some(count, 1));
    return here.saved(filled.sequence);
}

template <class Host>
std::string refusal(Host& to, const bytes& snapshot, std::string_view secret = {}) {
    const auto before = to.store.stats();
    const auto read = kv::read_snapshot(to.store, snapshot, secret);
    const std::string field = read ? std::string() : read.error().field;
    CHECK((read || to.store.stats() == before));
    return field;
}

} // namespace

TEST_CASE("a restored sequence continues with the bits of a cold run") {
    const tokens all = some(150, 2);
    const auto run = [&](const auto& policy) {
        using policy_type = std::decay_t<decltype(policy)>;
        const kv::matrix cold = host<policy_type>(policy).prefill(all).logits;
        for (const std::size_t count : {1u, 31u, 32u, 33u, 64u, 100u, 128u, 149u}) {
            CAPTURE(count);
            host<policy_type> from(policy), to(policy), warm(policy);
            const auto filled = from.prefill({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)});
            const bytes snapshot = from.saved(filled.sequence);
            const auto known = warm.prefill({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count / 2 + 1)});
            for (auto* loader : {&to, &warm}) {
                auto back = kv::read_snapshot(loader->store, snapshot);
                REQUIRE((back ? std::string() : back.error().message) == "");
                CHECK(back->sequence.size() == filled.sequence.size());
                CHECK(std::ranges::equal(back->sequence.tokens(), filled.sequence.tokens()));
                const auto rest = std::span(all).subspan(back->sequence.size());
                CHECK(same_tail(loader->extend(back->sequence, rest), cold));
                CHECK(loader->saved(back->sequence.fork(0)).size() < snapshot.size());
            }
            // Prompts find the loaded tokens too.
            const auto again = to.prefill(all);
            CHECK(again.reused >= count / page * page);
            CHECK(same_tail(again.logits, cold));
        }
    };
    run(kv::codec::f32{});
    for (const char* codec : {"int8_grouped", "hadamard<int4>", "keep_sinks<int4>", "keep_recent<int8>",
                              "keep_recent<keep_sinks<int8> >"}) {
        CAPTURE(codec);
        run(*quantized::named(codec));
    }
}

TEST_CASE("another process continues with the bits of a cold run") {
    const testing_files::temporary_directory directory;
    const auto file = directory.path() / "session.kvc";
    const tokens all = some(120, 3);
    const kv::matrix cold = host<>().prefill(all).logits;
    const ::pid_t writer = ::fork();
    REQUIRE(writer >= 0);
    if (writer == 0) {
        host<> here;
        auto filled = here.pipeline.prefill(std::span(all).first(70));
        ::_exit(filled && kv::save_snapshot(here.store, filled->sequence, {.next = 9}, file, "key") ? 0 : 1);
    }
    int status = 1;
    REQUIRE(::waitpid(writer, &status, 0) == writer);
    REQUIRE(status == 0);
    host<> to;
    auto back = kv::load_snapshot(to.store, file, "key");
    REQUIRE(back);
    CHECK(back->state.next == 9);
    CHECK(same_tail(to.extend(back->sequence, std::span(all).subspan(70)), cold));
    CHECK(kv::load_snapshot(to.store, directory.path() / "none").error().code == kv::error_code::not_found);
}

TEST_CASE("an answer continues with the tokens it would have had") {
    const kv::sampler sampling{.temperature = 0.9f, .seed = 11, .choice = 2};
    const tokens prompt = some(40, 4);
    host<> whole, from, to;
    const auto say = [](kv::token_id, std::span<const float>) { return true; };
    const auto want = kv::generate(whole.pipeline, prompt, sampling, {.max_tokens = 24}, say);
    REQUIRE(want);
    const auto begun = kv::generate(from.pipeline, prompt, sampling, {.max_tokens = 9}, say);
    REQUIRE(begun);
    const kv::generation_state state{sampling, 9, {begun->ids.back()}};
    std::stringstream stream;
    REQUIRE(kv::write_snapshot(from.store, begun->prompt.sequence, state, "", [&](auto pieces) -> kv::result<void> {
        for (const auto piece : pieces)
            stream.write(reinterpret_cast<const char*>(piece.data()), static_cast<std::streamsize>(piece.size()));
        return {};
    }));
    CHECK(kv::load_snapshot(to.store, stream, 1000).error().field == "total_bytes");
    stream.clear();
    stream.seekg(0);
    auto back = kv::load_snapshot(to.store, stream, 1 << 30);
    REQUIRE(back);
    tokens said = begun->ids, later;
    const kv::stop_criteria rest{.max_tokens = 15};
    auto next = to.pipeline.extend(back->sequence, back->state.pending);
    REQUIRE(next);
    const auto stopped = kv::decode_loop(to.pipeline, back->sequence, std::move(*next),
                                         kv::decode_state(back->state.sampling, rest, back->sequence.tokens(),
                                                          to.pipeline.max_positions(), back->state.next),
                                         later, say);
    CHECK((stopped && !*stopped));
    said.insert(said.end(), later.begin(), later.end());
    CHECK(said == want->ids);
}

TEST_CASE("a sequence in use is saved by way of a fork") {
    host<kv::locking::mutex> here(kv::locking::mutex{});
    const tokens all = some(200, 5);
    auto filled = here.prefill({all.begin(), all.begin() + 75});
    const bytes quiet = here.saved(filled.sequence);
    const auto fork = filled.sequence.fork(filled.sequence.size());
    bytes busy;
    std::thread saver([&] { busy = here.saved(fork); });
    for (std::size_t at = 75; at < all.size(); ++at)
        static_cast<void>(here.pipeline.extend(filled.sequence, std::span(all).subspan(at, 1)));
    saver.join();
    CHECK(busy == quiet);
    CHECK(here.saved(fork) == quiet);
}

TEST_CASE("a snapshot holds nothing of the pages' earlier users") {
    for (const char* codec : {"", "int8_grouped"}) {
        const auto run = [&](const auto& policy) {
            host<std::decay_t<decltype(policy)>> fresh(own_identity(), 6, policy), used(own_identity(), 6, policy);
            for (unsigned seed = 0; seed < 6; ++seed)
                static_cast<void>(used.prefill(some(90, 50 + seed)));
            const auto a = fresh.prefill(some(75, 6)), b = used.prefill(some(75, 6));
            CHECK(fresh.saved(a.sequence) == used.saved(b.sequence));
        };
        if (*codec == '\0')
            run(kv::codec::f32{});
        else
            run(*quantized::named(codec));
    }
}

TEST_CASE("wrong neighbours are refused by the field that differs") {
    const bytes snapshot = a_snapshot();
    const auto with = [](auto change) {
        kv::identity id = own_identity();
        change(id);
        return id;
    };
    const std::vector<std::pair<const char*, kv::identity>> neighbours = {
        {"weights", with([](auto& id) {
             id.weights = {1, 3};
         })},
        {"adapter", with([](auto& id) { id.adapter = "lora 1"; })},
        {"tokenizer", with([](auto& id) {
             id.tokenizer = {3, 5};
         })},
        {"config", with([](auto& id) { id.config += " "; })},
        {"rope", with([](auto& id) { id.rope = made(20000.0).id({}).rope; })},
        {"weight_format", with([](auto& id) { id.weight_format = "int8"; })},
        {"numeric_contract", with([](auto& id) { ++id.numeric_contract; })},
        {"backend", with([](auto& id) { id.backend = "cuda 1"; })},
        {"lineage", with([](auto& id) { id.lineage = "approximate"; })},
        {"tenant", with([](auto& id) { id.tenant = "bob"; })}};
    for (const auto& [field, id] : neighbours) {
        host<> to(id, 60);
        CHECK(refusal(to, snapshot) == field);
    }
    // What the cache itself says.
    host<quantized> other_codec(*quantized::named("int8_grouped")), other_options(*quantized::named("hadamard<int4>"));
    CHECK(refusal(other_codec, snapshot) == "codec");
    const auto filled = other_codec.prefill(some(75, 1));
    CHECK(refusal(other_options, other_codec.saved(filled.sequence)) == "codec");
    auto small = kv::make_cache({model().shape(16), {.bytes = 1 << 20}, own_identity()});
    CHECK(kv::read_snapshot(small, snapshot).error().field == "page_tokens");
    auto groups =
        kv::make_cache({model().shape(page), {.bytes = 1 << 20}, own_identity()}, kv::codec::int8_grouped{.group = 16});
    CHECK(kv::read_snapshot(groups, other_codec.saved(filled.sequence)).error().field == "codec");
    bytes older = snapshot;
    older[kv::record_layout::format] = {};
    host<> to;
    CHECK(refusal(to, older) == "format");
    CHECK(refusal(to, snapshot, "key") == "seal");
}

TEST_CASE("an approximate sequence is not saved, and its exact beginning is") {
    kv::thread_pool pool(1);
    auto cache = kv::make_cache({model().shape(16), {.bytes = 4 << 20}, own_identity()}, kv::index::chunk{.least = 8},
                                kv::recompute::none{});
    kv::chunk_pipeline pipeline(cache, model(), pool, {.split = {.size = 48, .least = 8}, .max_batch_tokens = 64});
    const tokens text = some(48, 8);
    REQUIRE(pipeline.warm(text, {}));
    tokens prompt = some(20, 9);
    prompt.insert(prompt.end(), text.begin(), text.end());
    const auto spliced = pipeline.prefill(prompt, kv::reuse_mode::chunks);
    REQUIRE(spliced);
    REQUIRE(spliced->sequence.exact() < spliced->sequence.size());
    const auto nowhere = [](auto) -> kv::result<void> { return {}; };
    const auto refused = kv::write_snapshot(cache, spliced->sequence, {}, "", nowhere);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().field == "lineage");
    CHECK(kv::write_snapshot(cache, spliced->sequence.fork(spliced->sequence.exact()), {}, "", nowhere));
    CHECK(cache.check());
}

TEST_CASE("every truncation and flipped bits are refused, and change nothing") {
    std::mt19937_64 dice(12);
    for (const std::string secret : {"", "key"}) {
        host<quantized> from(*quantized::named("keep_recent<int8>")), to(*quantized::named("keep_recent<int8>"));
        const auto filled = from.prefill(some(75, 1));
        bytes snapshot = from.saved(filled.sequence, {.pending = {kv::token_id{3}}}, secret);
        const std::size_t flips = secret.empty() ? 2000 : 100, cuts = secret.empty() ? 500 : 20;
        for (std::size_t i = 0; i < flips; ++i) {
            const std::size_t bit = i < 256 ? 8 * (snapshot.size() - 1 - i) : dice() % (8 * snapshot.size());
            snapshot[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
            if (refusal(to, snapshot, secret).empty())
                FAIL("bit " << bit << " of " << 8 * snapshot.size() << " may be flipped");
            snapshot[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
        }
        for (std::size_t i = 0; i < cuts; ++i) {
            const bytes cut(snapshot.begin(), snapshot.begin() + static_cast<std::ptrdiff_t>(dice() % snapshot.size()));
            CHECK_FALSE(refusal(to, cut, secret).empty());
        }
        CHECK(refusal(to, snapshot, secret).empty());
    }
}

TEST_CASE("full pools and failing storage refuse a snapshot and leak nothing") {
    const bytes snapshot = a_snapshot(150); // five pages
    host<> small(own_identity(), 4);
    CHECK(refusal(small, snapshot) == "pages");
    const auto filled = small.prefill(some(60, 20)); // holds two
    CHECK(refusal(small, snapshot) == "pages");
    for (std::uint64_t every = 1; every <= 7; ++every) {
        host<kv::testing::fault_injecting_storage<>> to(own_identity(), 6,
                                                        kv::testing::fault_injecting_storage<>{.every = every});
        for (int i = 0; i < 4; ++i) {
            const auto read = kv::read_snapshot(to.store, snapshot);
            CHECK((read || read.error().code == kv::error_code::out_of_memory));
            CHECK(to.store.check());
        }
        CHECK(to.store.stats().in_use == 0);
    }
}

TEST_CASE("a tenant's snapshot is that tenant's alone") {
    kv::thread_pool pool(1);
    auto all =
        kv::make_cache({.shape = model().shape(page), .limit = {.bytes = 4 << 20}, .id = own_identity(), .tenants = 2});
    const auto alice = all.open_tenant(kv::tenant_salt("alice"), 20), bob = all.open_tenant(kv::tenant_salt("bob"), 20);
    REQUIRE((alice && bob));
    kv::pipeline pipeline(all, model(), pool);
    const auto filled = pipeline.prefill(some(75, 1), kv::logits_mode::last, *alice);
    REQUIRE(filled);
    bytes snapshot;
    REQUIRE(kv::write_snapshot(all, filled->sequence, {}, "", [&](auto pieces) -> kv::result<void> {
        for (const auto piece : pieces)
            snapshot.insert(snapshot.end(), piece.begin(), piece.end());
        return {};
    }));
    CHECK(kv::read_snapshot(all, snapshot, {}, *bob).error().field == "tenant");
    CHECK(kv::read_snapshot(all, snapshot, {}, *alice));
    CHECK(all.lookup(some(75, 1), *bob).cached_tokens == 0);
    CHECK(all.check());
}
