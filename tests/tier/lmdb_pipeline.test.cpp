// SPDX-License-Identifier: MIT
// Promise 1 through the disk: another process's pages give the logits of a cold run, bit for bit.
#include <kvcache/cache/any_codec.hpp>
#include <kvcache/cache/compose.hpp>
#include <kvcache/codec/all.hpp>
#include <kvcache/hash/sha256.hpp>
#include <kvcache/session/pipeline.hpp>
#include <kvcache/tier/lmdb.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "model/huggingface/files.hpp"
#include "session/small_model.hpp"
#include <catch2/catch.hpp>
#include <sys/wait.h>
#include <unistd.h>

namespace kv = kvcache;

namespace {

using tokens = std::vector<kv::token_id>;
using codecs = std::tuple<kv::int8_grouped, kv::sinks_exact<kv::int4>, kv::recent_exact<kv::int8>>;
using coded = kv::any_codec<codecs>;

using small::model;
using small::some;

struct said {
    kv::matrix logits;
    std::size_t reused = 0;
    kv::tier_stats tier = {};
};

template <class Codec>
said feed(const Codec& codec, const std::string& key, const std::filesystem::path& directory, const tokens& prompt) {
    const auto shape = model().shape(32);
    kv::team team(1);
    auto cache = kv::make_cache(model().id({1, 2}), shape, {.bytes = 40 * kv::plain{}.open(shape).page_bytes()}, codec,
                                kv::sha256{.key = key},
                                kv::lmdb<>{.directory = directory, .sync = kv::sync_policy::by_the_system});
    kv::pipeline through(cache, model(), team, 64);
    auto fed = through.feed(prompt, kv::logits_of::all);
    REQUIRE(fed);
    REQUIRE(cache.tier().flush());
    REQUIRE(cache.check());
    return {std::move(fed->logits), fed->reused, cache.tier_stats()};
}

template <class Codec>
void check_codec(const Codec& codec) {
    const testing_files::temporary_directory directory, elsewhere;
    const tokens prompt = some(150, 1);
    const said cold = feed(codec, "key", elsewhere.path(), prompt);
    const ::pid_t writer = ::fork();
    REQUIRE(writer >= 0);
    if (writer == 0)
        ::_exit(feed(codec, "key", directory.path(), prompt).tier.handed_over == 4 ? 0 : 1);
    int status = 1;
    REQUIRE(::waitpid(writer, &status, 0) == writer);
    REQUIRE(status == 0);
    const said warm = feed(codec, "key", directory.path(), prompt);
    CHECK(warm.reused == 128);
    CHECK(warm.tier.loaded_tokens == 128);
    REQUIRE(warm.logits.rows() == 22);
    CHECK(std::memcmp(warm.logits.data(), cold.logits.data() + 128 * cold.logits.cols(),
                      static_cast<std::size_t>(warm.logits.size()) * sizeof(float)) == 0);
    const said stranger = feed(codec, "another key", directory.path(), prompt);
    CHECK(stranger.reused == 0);
    CHECK(stranger.logits == cold.logits);
}

} // namespace

TEST_CASE("pages that another process has stored give the bits of a cold run") {
    check_codec(kv::plain{});
    for (const char* codec : {"int8_grouped", "sinks_exact<int4>", "recent_exact<int8>"}) {
        CAPTURE(codec);
        check_codec(*coded::named(codec));
    }
}
