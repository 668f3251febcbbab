// SPDX-License-Identifier: MIT
#include <kvcache/adapters/replay/infinite_replay.hpp>
#include <kvcache/adapters/replay/next_uses.hpp>
#include <kvcache/adapters/replay/prefix_clairvoyant.hpp>
#include <kvcache/adapters/replay/prefix_replay.hpp>
#include <kvcache/adapters/traces/mooncake_trace.hpp>
#include <kvcache/eviction/lru.hpp>

#include <span>

#include <adapters/traces/files.hpp>
#include <catch2/catch.hpp>

using namespace trace_tests;

namespace {

std::string refused(const std::string& text) {
    return refusal<kv::mooncake_trace, kv::prefix_request>(text);
}

std::string with_ids(const std::string& ids) {
    return R"({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": )" + ids + "}\n";
}

} // namespace

TEST_CASE("a Mooncake request is read with the names of its blocks chained") {
    const std::string text =
        R"({"timestamp": 1500, "input_length": 1000, "output_length": 7, "hash_ids": [4, 9], "x": 1})"
        "\n\n"
        R"({"timestamp": 2000.5, "input_length": 513, "output_length": 0, "hash_ids": [4, 8]})";
    const auto [requests, error] = read_all<kv::mooncake_trace, kv::prefix_request>(gzipped(text));
    REQUIRE_FALSE(error);
    REQUIRE(requests.size() == 2);
    CHECK(requests[0].seconds == 1.5);
    CHECK(requests[1].seconds == 2.0005);
    CHECK(requests[0].input_tokens == 1000);
    CHECK(requests[0].output_tokens == 7);
    CHECK(requests[0].block_tokens == 512);
    CHECK(requests[0].tokens_in(1) == 512);
    CHECK(requests[0].tokens_in(2) == 1000);
    CHECK(requests[0].blocks[0] == requests[1].blocks[0]);
    CHECK(requests[0].blocks[1] == kv::chained_block(kv::chained_block(0, 4), 9));
    CHECK(requests[0].blocks[1] != requests[1].blocks[1]);
}

TEST_CASE("a broken Mooncake line is refused by its line and field") {
    CHECK(refused("") == "none");
    CHECK(refused("\n \n") == "none");
    CHECK(refused(with_ids("[]")) == "none");
    CHECK(refused(with_ids("[1]") + with_ids("[-4]")) ==
          "hash_ids[0] | t, line 2: hash_ids[0] is -4, and has to be an integer from 0 to 18446744073709551615");
    CHECK(refused(with_ids("[18446744073709551615]")) == "none");
    CHECK(refused(with_ids("[1, 18446744073709551616]")).substr(0, 31) == "hash_ids[1] | t, line 1: hash_i");
    CHECK(refused(with_ids("[1.5]")).substr(0, 11) == "hash_ids[0]");
    CHECK(refused(with_ids("[\"1\"]")) == "hash_ids[0] | t, line 1: hash_ids[0] is string and no number");
    CHECK(refused(with_ids("7")) == "hash_ids | t, line 1: hash_ids is number and no array");
    CHECK(refused("[1]") == "t, line 1 | t, line 1: the record is array and no object");
    CHECK(refused("{}") == "timestamp | t, line 1: timestamp is missing");
    CHECK(refused(R"({"timestamp": -1})") == "timestamp | t, line 1: timestamp is -1, which is no time since a start");
    CHECK(refused(R"({"timestamp": 0, "input_length": 4294967296})").substr(0, 12) == "input_length");
    CHECK(refused(R"({"timestamp": 0, "timestamp": 0})").substr(0, 14) == "t | t, line 1:");
    CHECK(refused(R"({"timestamp": 0,)").substr(0, 14) == "t | t, line 1:");
    CHECK(refused(std::string(100000, '[')).substr(0, 14) == "t | t, line 1:");
    CHECK(refused(std::string("{\"timestamp\": 0\0}", 17)) == "t | t, line 1: the line has a NUL byte");
    const std::string whole = gzipped(with_ids("[1]"));
    CHECK(refused(whole.substr(0, whole.size() - 3)) ==
          "t | t, byte " + std::to_string(whole.size() - 3) + " of the file: the compressed data end in the middle");
}

TEST_CASE("the Mooncake conversations give what others measured") {
    const auto path = shared_trace("conversation_trace.jsonl.gz");
    if (!path)
        return;
    const auto each = [&](auto&& use) {
        auto trace = kv::mooncake_trace::open(*path);
        REQUIRE(trace);
        for (kv::prefix_request request; *trace->next(request);)
            use(request);
    };
    kv::next_uses next;
    std::uint32_t time = 0;
    each([&](const kv::prefix_request& request) {
        for (const std::uint64_t block : request.blocks)
            next.add(block, time);
        ++time;
    });

    const kv::prefill_work work;
    kv::infinite_replay infinite(work);
    std::vector<std::pair<kv::prefix_replay<kv::eviction::lru>, double>> replays;
    std::vector<std::pair<kv::prefix_clairvoyant, double>> bounds;
    for (const auto& [blocks, ratio] : {std::pair{1000u, 0.0445},
                                        {3000u, 0.0653},
                                        {10000u, 0.2116},
                                        {30000u, 0.3257},
                                        {50000u, 0.3546},
                                        {100000u, 0.3637}})
        replays.emplace_back(kv::prefix_replay<kv::eviction::lru>({}, blocks, 1, work), ratio);
    for (const auto& [blocks, ratio] : {std::pair{1000u, 0.1907}, {3000u, 0.2945}, {10000u, 0.3664}})
        bounds.emplace_back(kv::prefix_clairvoyant(blocks, work), ratio);
    std::span<const std::uint32_t> ahead = next.times();
    each([&](const kv::prefix_request& request) {
        for (auto& [replay, ratio] : replays)
            replay.run(request);
        for (auto& [bound, ratio] : bounds)
            bound.run(request, ahead.first(request.blocks.size()));
        infinite.run(request);
        ahead = ahead.subspan(request.blocks.size());
    });

    CHECK(infinite.counts().requests == 12031);
    CHECK(infinite.counts().accesses == 288500);
    CHECK(infinite.counts().hit_ratio() == Approx(0.3664).margin(0.0005));
    CHECK(infinite.counts().token_hit_ratio() == Approx(0.3736).margin(0.0005));
    for (const auto& [replay, ratio] : replays)
        CHECK(replay.counts().hit_ratio() == Approx(ratio).margin(0.0005));
    for (const auto& [bound, ratio] : bounds)
        CHECK(bound.counts().hit_ratio() == Approx(ratio).margin(0.0005));
}
