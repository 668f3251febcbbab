// SPDX-License-Identifier: MIT
// Promise 1 through a disk: the pages of another process give the logits of a cold run, bit for bit.
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
using codecs = std::tuple<kv::codec::int8_grouped, kv::codec::keep_sinks<kv::codec::int4>,
                          kv::codec::keep_recent<kv::codec::int8>>;
using quantized = kv::any_codec<codecs>;

using small::model;
using small::some;

struct said {
    kv::matrix logits;
    std::size_t reused = 0;
    kv::tier_stats tier = {};
};

template <class Codec>
said prefill(const Codec& codec, const std::string& key, const std::filesystem::path& directory, const tokens& prompt) {
    const auto shape = model().shape(32);
    kv::thread_pool pool(1);
    auto cache = kv::make_cache({shape, {.bytes = 40 * kv::codec::f32{}.open(shape).page_bytes()}, model().id({1, 2})},
                                codec, kv::hash::sha256{.key = key},
                                kv::tier::lmdb<>{.directory = directory, .sync = kv::tier::sync_policy::by_the_system});
    kv::pipeline pipeline(cache, model(), pool, 64);
    auto filled = pipeline.prefill(prompt, kv::logits_mode::all);
    REQUIRE(filled);
    REQUIRE(cache.tier().flush());
    REQUIRE(cache.check());
    return {std::move(filled->logits), filled->reused, kv::tier_stats_of(cache)};
}

template <class Codec>
void check_codec(const Codec& codec) {
    const testing_files::temporary_directory directory, elsewhere;
    const tokens prompt = some(150, 1);
    const said cold = prefill(codec, "key", elsewhere.path(), prompt);
    const ::pid_t writer = ::fork();
    REQUIRE(writer >= 0);
    if (writer == 0)
        ::_exit(prefill(codec, "key", directory.path(), prompt).tier.handed_over == 4 ? 0 : 1);
    int status = 1;
    REQUIRE(::waitpid(writer, &status, 0) == writer);
    REQUIRE(status == 0);
    const said warm = prefill(codec, "key", directory.path(), prompt);
    CHECK(warm.reused == 128);
    CHECK(warm.tier.loaded_tokens == 128);
    REQUIRE(warm.logits.rows() == 22);
    CHECK(std::memcmp(warm.logits.data(), cold.logits.data() + 128 * cold.logits.cols(),
                      static_cast<std::size_t>(warm.logits.size()) * sizeof(float)) == 0);
    const said stranger = prefill(codec, "another key", directory.path(), prompt);
    CHECK(stranger.reused == 0);
    CHECK(stranger.logits == cold.logits);
}

} // namespace

TEST_CASE("pages that another process has stored give the bits of a cold run") {
    check_codec(kv::codec::f32{});
    for (const char* codec : {"int8_grouped", "keep_sinks<int4>", "keep_recent<int8>"}) {
        CAPTURE(codec);
        check_codec(*quantized::named(codec));
    }
}
