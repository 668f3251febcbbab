// SPDX-License-Identifier: MIT
#include <kvcache/cache/any_codec.hpp>
#include <kvcache/cache/compose.hpp>
#include <kvcache/cache/tenant_cache.hpp>
#include <kvcache/codec/all.hpp>
#include <kvcache/index/chunk.hpp>
#include <kvcache/locking/mutexed.hpp>
#include <kvcache/recompute/none.hpp>
#include <kvcache/session/chunk_pipeline.hpp>
#include <kvcache/session/generate.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/session/snapshot.hpp>
#include <kvcache/storage/failing.hpp>
#include <kvcache/testing/hash_laws.hpp>
#include <kvcache/testing/random_weights.hpp>

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
using codecs = std::tuple<kv::int8_grouped, kv::rotated<kv::int4>, kv::sinks_exact<kv::int4>,
                          kv::recent_exact<kv::int8>, kv::recent_exact<kv::sinks_exact<kv::int8>>>;
using coded = kv::any_codec<codecs>;

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
        : store(kv::make_cache(std::move(id), model().shape(page),
                               {.bytes = pages * kv::plain{}.open(model().shape(page)).page_bytes()},
                               std::move(policies)...)) {}
    ~host() {
        const auto sound = store.check();
        CHECK((sound ? std::string() : sound.error().field + " " + sound.error().message) == "");
    }

    [[nodiscard]] kv::fed<cache> feed(const tokens& prompt) {
        auto done = through.feed(prompt, kv::logits_of::all);
        REQUIRE(done.has_value());
        return std::move(*done);
    }
    [[nodiscard]] kv::matrix extend(typename cache::sequence& sequence, std::span<const kv::token_id> more) {
        auto rows = through.extend(sequence, more, kv::logits_of::all);
        REQUIRE(rows.has_value());
        return std::move(*rows);
    }
    [[nodiscard]] bytes saved(const typename cache::sequence& of, const kv::speaking& state = {},
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

    kv::team team{1};
    cache store;
    kv::pipeline<cache, kv::transformer> through{store, model(), team, 64};
};

// The logits of `rows` are those of the last rows of a run that shares nothing.
bool same_tail(const kv::matrix& rows, const kv::matrix& whole) {
    const float* tail = whole.data() + whole.size() - rows.size();
    return rows.size() > 0 && rows.size() <= whole.size() &&
           std::memcmp(rows.data(), tail, static_cast<std::size_t>(rows.size()) * sizeof(float)) == 0;
}

bytes a_snapshot(std::size_t count = 75) {
    host<> here;
    const auto fed = here.feed(some(count, 1));
    return here.saved(fed.sequence);
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

TEST_CASE("a sequence that was saved goes on with the bits of a cold run") {
    const tokens all = some(150, 2);
    const auto run = [&](const auto& policy) {
        using policy_type = std::decay_t<decltype(policy)>;
        const kv::matrix cold = host<policy_type>(policy).feed(all).logits;
        for (const std::size_t count : {1u, 31u, 32u, 33u, 64u, 100u, 128u, 149u}) {
            CAPTURE(count);
            host<policy_type> from(policy), to(policy), warm(policy);
            const auto fed = from.feed({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)});
            const bytes snapshot = from.saved(fed.sequence);
            const auto known = warm.feed({all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count / 2 + 1)});
            for (auto* loader : {&to, &warm}) {
                auto back = kv::read_snapshot(loader->store, snapshot);
                REQUIRE((back ? std::string() : back.error().message) == "");
                CHECK(back->sequence.size() == fed.sequence.size());
                CHECK(std::ranges::equal(back->sequence.tokens(), fed.sequence.tokens()));
                const auto rest = std::span(all).subspan(back->sequence.size());
                CHECK(same_tail(loader->extend(back->sequence, rest), cold));
                CHECK(loader->saved(back->sequence.fork(0)).size() < snapshot.size());
            }
            // What was loaded is known to prompts, too.
            const auto again = to.feed(all);
            CHECK(again.reused >= count / page * page);
            CHECK(same_tail(again.logits, cold));
        }
    };
    run(kv::plain{});
    for (const char* codec : {"int8_grouped", "rotated<int4>", "sinks_exact<int4>", "recent_exact<int8>",
                              "recent_exact<sinks_exact<int8> >"}) {
        CAPTURE(codec);
        run(*coded::named(codec));
    }
}

TEST_CASE("another process goes on with the bits of a cold run") {
    const testing_files::temporary_directory directory;
    const auto file = directory.path() / "session.kvc";
    const tokens all = some(120, 3);
    const kv::matrix cold = host<>().feed(all).logits;
    const ::pid_t writer = ::fork();
    REQUIRE(writer >= 0);
    if (writer == 0) {
        host<> here;
        auto fed = here.through.feed(std::span(all).first(70));
        ::_exit(fed && kv::save_snapshot(here.store, fed->sequence, {.next = 9}, file, "key") ? 0 : 1);
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

TEST_CASE("an answer goes on with the tokens it would have had") {
    const kv::sampler draw{.temperature = 0.9f, .seed = 11, .choice = 2};
    const tokens prompt = some(40, 4);
    host<> whole, from, to;
    const auto say = [](kv::token_id, std::span<const float>) { return true; };
    const auto want = kv::generate(whole.through, prompt, draw, {.max_tokens = 24}, say);
    REQUIRE(want);
    const auto begun = kv::generate(from.through, prompt, draw, {.max_tokens = 9}, say);
    REQUIRE(begun);
    const kv::speaking state{draw, 9, {begun->ids.back()}};
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
    tokens said = begun->ids;
    auto next = to.through.extend(back->sequence, back->state.said);
    REQUIRE(next);
    while (said.size() < 24) {
        said.push_back(back->state.draw.draw(kv::row_of(std::as_const(*next), 0), said.size()));
        next = to.through.extend(back->sequence, std::span(said).last(1));
    }
    CHECK(said == want->ids);
}

TEST_CASE("a busy session is saved by a fork while it goes on") {
    host<kv::mutexed> here(kv::mutexed{});
    const tokens all = some(200, 5);
    auto fed = here.feed({all.begin(), all.begin() + 75});
    const bytes quiet = here.saved(fed.sequence);
    const auto fork = fed.sequence.fork(fed.sequence.size());
    bytes busy;
    std::thread saver([&] { busy = here.saved(fork); });
    for (std::size_t at = 75; at < all.size(); ++at)
        static_cast<void>(here.through.extend(fed.sequence, std::span(all).subspan(at, 1)));
    saver.join();
    CHECK(busy == quiet);
    CHECK(here.saved(fork) == quiet);
}

TEST_CASE("a snapshot holds nothing of the pages' earlier users") {
    for (const char* codec : {"", "int8_grouped"}) {
        const auto run = [&](const auto& policy) {
            host<std::decay_t<decltype(policy)>> fresh(own_identity(), 6, policy), used(own_identity(), 6, policy);
            for (unsigned seed = 0; seed < 6; ++seed)
                static_cast<void>(used.feed(some(90, 50 + seed)));
            const auto a = fresh.feed(some(75, 6)), b = used.feed(some(75, 6));
            CHECK(fresh.saved(a.sequence) == used.saved(b.sequence));
        };
        if (*codec == '\0')
            run(kv::plain{});
        else
            run(*coded::named(codec));
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
    host<coded> other_codec(*coded::named("int8_grouped")), other_options(*coded::named("rotated<int4>"));
    CHECK(refusal(other_codec, snapshot) == "codec");
    const auto fed = other_codec.feed(some(75, 1));
    CHECK(refusal(other_options, other_codec.saved(fed.sequence)) == "codec");
    auto small = kv::make_cache(own_identity(), model().shape(16), {.bytes = 1 << 20});
    CHECK(kv::read_snapshot(small, snapshot).error().field == "page_tokens");
    auto groups =
        kv::make_cache(own_identity(), model().shape(page), {.bytes = 1 << 20}, kv::int8_grouped{.group = 16});
    CHECK(kv::read_snapshot(groups, other_codec.saved(fed.sequence)).error().field == "codec");
    bytes older = snapshot;
    older[kv::record_layout::format] = {};
    host<> to;
    CHECK(refusal(to, older) == "format");
    CHECK(refusal(to, snapshot, "key") == "seal");
}

TEST_CASE("an approximate sequence is not saved, and its exact beginning is") {
    kv::team team(1);
    auto cache =
        kv::make_cache(own_identity(), model().shape(16), {.bytes = 4 << 20}, kv::chunk{.least = 8}, kv::none{});
    kv::chunk_pipeline through(cache, model(), team, {.split = {.size = 48, .least = 8}, .rows = 64});
    const tokens text = some(48, 8);
    REQUIRE(through.warm(text, {}));
    tokens prompt = some(20, 9);
    prompt.insert(prompt.end(), text.begin(), text.end());
    const auto woven = through.feed(prompt, kv::reuse_mode::chunks);
    REQUIRE(woven);
    REQUIRE(woven->sequence.exact() < woven->sequence.size());
    const auto nowhere = [](auto) -> kv::result<void> { return {}; };
    const auto refused = kv::write_snapshot(cache, woven->sequence, {}, "", nowhere);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().field == "lineage");
    CHECK(kv::write_snapshot(cache, woven->sequence.fork(woven->sequence.exact()), {}, "", nowhere));
    CHECK(cache.check());
}

TEST_CASE("every truncation and flipped bits are refused, and change nothing") {
    std::mt19937_64 dice(12);
    for (const std::string secret : {"", "key"}) {
        host<coded> from(*coded::named("recent_exact<int8>")), to(*coded::named("recent_exact<int8>"));
        const auto fed = from.feed(some(75, 1));
        bytes snapshot = from.saved(fed.sequence, {.said = {kv::token_id{3}}}, secret);
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
    const auto fed = small.feed(some(60, 20)); // holds two
    CHECK(refusal(small, snapshot) == "pages");
    for (std::uint64_t every = 1; every <= 7; ++every) {
        host<kv::failing<>> to(own_identity(), 6, kv::failing<>{.every = every});
        for (int i = 0; i < 4; ++i) {
            const auto read = kv::read_snapshot(to.store, snapshot);
            CHECK((read || read.error().code == kv::error_code::out_of_memory));
            CHECK(to.store.check());
        }
        CHECK(to.store.stats().held == 0);
    }
}

TEST_CASE("a tenant's snapshot is that tenant's alone") {
    kv::team team(1);
    auto all = kv::make_tenant_cache(2, own_identity(), model().shape(page), {.bytes = 4 << 20});
    const auto alice = all.open(kv::tenant_salt("alice"), 20), bob = all.open(kv::tenant_salt("bob"), 20);
    REQUIRE((alice && bob));
    auto hers = *alice;
    auto his = *bob;
    kv::pipeline through(hers, model(), team);
    const auto fed = through.feed(some(75, 1));
    REQUIRE(fed);
    bytes snapshot;
    REQUIRE(kv::write_snapshot(hers, fed->sequence, {}, "", [&](auto pieces) -> kv::result<void> {
        for (const auto piece : pieces)
            snapshot.insert(snapshot.end(), piece.begin(), piece.end());
        return {};
    }));
    CHECK(kv::read_snapshot(his, snapshot).error().field == "tenant");
    CHECK(kv::read_snapshot(hers, snapshot));
    CHECK(his.match(some(75, 1)).tokens() == 0);
    CHECK(all.check());
}
