// SPDX-License-Identifier: MIT
#include "../../bench/traces/prompt_traces.hpp"

#include <kvcache/eviction/lru.hpp>

#include <algorithm>
#include <span>

#include "../../bench/replay/bounds.hpp"
#include "../../bench/replay/prefix_replay.hpp"
#include "../../bench/replay/workload.hpp"
#include "trace_files.hpp"
#include <catch2/catch.hpp>

using namespace trace_tests;

namespace {

constexpr auto* refused_mooncake = &refusal<bench::mooncake_trace, bench::prefix_request>;

std::string with_ids(const std::string& ids) {
    return R"({"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": )" + ids + "}\n";
}

constexpr auto* refused_bailian = &refusal<bench::bailian_trace, bench::prefix_request>;

constexpr auto* refused_weka = &refusal<bench::weka_trace, bench::prefix_request>;

std::vector<bench::prefix_request> requests_of(const std::string& text) {
    const auto [requests, error] = read_all<bench::weka_trace, bench::prefix_request>(text);
    INFO(refused_weka(text));
    REQUIRE_FALSE(error);
    return requests;
}

std::string session(const std::string& requests, const std::string& scope = "local") {
    return R"({"id": "a", "block_size": 64, "hash_id_scope": ")" + scope + R"(", "requests": [)" + requests + "]}\n";
}

std::string request(const std::string& t, const std::string& ids) {
    return R"({"t": )" + t + R"(, "type": "n", "in": 130, "out": 3, "hash_ids": )" + ids + "}";
}

std::string subagent(const std::string& t, const std::string& requests) {
    return R"({"t": )" + t + R"(, "type": "subagent", "agent_id": "b", "requests": [)" + requests + "]}";
}

} // namespace

TEST_CASE("a Mooncake request is read with the names of its blocks chained") {
    const std::string text =
        R"({"timestamp": 1500, "input_length": 1000, "output_length": 7, "hash_ids": [4, 9], "x": 1})"
        "\n\n"
        R"({"timestamp": 2000.5, "input_length": 513, "output_length": 0, "hash_ids": [4, 8]})";
    const auto [requests, error] = read_all<bench::mooncake_trace, bench::prefix_request>(gzipped(text));
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
    CHECK(requests[0].blocks[1] == bench::chained_block(bench::chained_block(0, 4), 9));
    CHECK(requests[0].blocks[1] != requests[1].blocks[1]);
}

TEST_CASE("a broken Mooncake line is refused by its line and field") {
    CHECK(refused_mooncake("") == "none");
    CHECK(refused_mooncake("\n \n") == "none");
    CHECK(refused_mooncake(with_ids("[]")) == "none");
    CHECK(refused_mooncake(with_ids("[1]") + with_ids("[-4]")) ==
          "hash_ids[0] | t, line 2: hash_ids[0] is -4, and has to be an integer from 0 to 18446744073709551615");
    CHECK(refused_mooncake(with_ids("[18446744073709551615]")) == "none");
    CHECK(refused_mooncake(with_ids("[1, 18446744073709551616]")).substr(0, 31) == "hash_ids[1] | t, line 1: hash_i");
    CHECK(refused_mooncake(with_ids("[1.5]")).substr(0, 11) == "hash_ids[0]");
    CHECK(refused_mooncake(with_ids("[\"1\"]")) == "hash_ids[0] | t, line 1: hash_ids[0] is string and no number");
    CHECK(refused_mooncake(with_ids("7")) == "hash_ids | t, line 1: hash_ids is number and no array");
    CHECK(refused_mooncake("[1]") == "t, line 1 | t, line 1: the record is array and no object");
    CHECK(refused_mooncake("{}") == "timestamp | t, line 1: timestamp is missing");
    CHECK(refused_mooncake(R"({"timestamp": -1})") ==
          "timestamp | t, line 1: timestamp is -1, which is no time since a start");
    CHECK(refused_mooncake(R"({"timestamp": 0, "input_length": 4294967296})").substr(0, 12) == "input_length");
    CHECK(refused_mooncake(R"({"timestamp": 0, "timestamp": 0})").substr(0, 14) == "t | t, line 1:");
    CHECK(refused_mooncake(R"({"timestamp": 0,)").substr(0, 14) == "t | t, line 1:");
    CHECK(refused_mooncake(std::string(100000, '[')).substr(0, 14) == "t | t, line 1:");
    CHECK(refused_mooncake(std::string("{\"timestamp\": 0\0}", 17)) == "t | t, line 1: the line has a NUL byte");
    const std::string whole = gzipped(with_ids("[1]"));
    CHECK(refused_mooncake(whole.substr(0, whole.size() - 3)) ==
          "t | t, byte " + std::to_string(whole.size() - 3) + " of the file: the compressed data end in the middle");
}

TEST_CASE("the Mooncake conversations give what others measured") {
    const auto path = shared_trace("conversation_trace.jsonl.gz");
    if (!path)
        return;
    const auto each = [&](auto&& use) {
        auto trace = bench::open_trace<bench::mooncake_trace>(*path);
        REQUIRE(trace);
        for (bench::prefix_request request; *trace->next(request);)
            use(request);
    };
    bench::next_uses next;
    std::uint32_t time = 0;
    each([&](const bench::prefix_request& request) {
        for (const std::uint64_t block : request.blocks)
            next.add(block, time);
        ++time;
    });

    const bench::prefill_work work;
    bench::infinite_replay infinite(work);
    std::vector<std::pair<bench::prefix_replay<kv::eviction::lru>, double>> replays;
    std::vector<std::pair<bench::prefix_clairvoyant, double>> bounds;
    for (const auto& [blocks, ratio] : {std::pair{1000u, 0.0445},
                                        {3000u, 0.0653},
                                        {10000u, 0.2116},
                                        {30000u, 0.3257},
                                        {50000u, 0.3546},
                                        {100000u, 0.3637}})
        replays.emplace_back(bench::prefix_replay<kv::eviction::lru>({}, blocks, 1, work), ratio);
    for (const auto& [blocks, ratio] : {std::pair{1000u, 0.1907}, {3000u, 0.2945}, {10000u, 0.3664}})
        bounds.emplace_back(bench::prefix_clairvoyant(blocks, work), ratio);
    std::span<const std::uint32_t> ahead = next.times();
    each([&](const bench::prefix_request& request) {
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

TEST_CASE("a Bailian request is read, with what a replay does not need or without it") {
    const std::string text =
        R"({"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40, "output_length": 132, )"
        R"("type": "text", "turn": 2, "hash_ids": [1089, 1090, 6326]})"
        "\n"
        R"({"timestamp": 62, "input_length": 16, "output_length": 1, "hash_ids": [1089]})"
        "\n";
    const auto [requests, error] = read_all<bench::bailian_trace, bench::prefix_request>(zstd_compressed(text));
    REQUIRE_FALSE(error);
    REQUIRE(requests.size() == 2);
    CHECK(requests[0].seconds == 61.114);
    CHECK(requests[0].block_tokens == 16);
    CHECK(requests[0].tokens_in(3) == 40);
    CHECK(requests[0].blocks.size() == 3);
    CHECK(requests[0].blocks[0] == requests[1].blocks[0]);
}

TEST_CASE("a broken Bailian line is refused by its line and field") {
    CHECK(refused_bailian(R"({"chat_id": "a"})") == "chat_id | t, line 1: chat_id is string, not an integer");
    CHECK(refused_bailian(R"({"turn": 1.5})") == "turn | t, line 1: turn is number, not an integer");
    CHECK(refused_bailian(R"({"type": 3})") == "type | t, line 1: type is number and no string");
    CHECK(refused_bailian(R"({"timestamp": "0"})") == "timestamp | t, line 1: timestamp is string and no number");
    CHECK(refused_bailian(R"({"timestamp": 1e400})").substr(0, 14) == "t | t, line 1:");
    CHECK(refused_bailian(R"({"timestamp": 0, "input_length": null})") ==
          "input_length | t, line 1: input_length is null and no number");
    CHECK(refused_bailian(R"({"timestamp": 0, "input_length": 1, "output_length": -1})").substr(0, 13) ==
          "output_length");
    CHECK(refused_bailian(R"({"timestamp": 0, "input_length": 1, "output_length": 1})") ==
          "hash_ids | t, line 1: hash_ids is missing");
}

TEST_CASE("sub-agents are read among their session's requests, by either clock") {
    for (const char* first : {"0.5", "10.5"}) { // relative to its own time, and to the session's
        const auto requests =
            requests_of(session(request("0", "[1, 2]") + "," + subagent("10", request(first, "[1, 3]")) + "," +
                                request("10.2", "[1, 2, 4]")));
        REQUIRE(requests.size() == 3);
        CHECK(requests[0].input_tokens == 130);
        CHECK(requests[0].block_tokens == 64);
        CHECK(requests[1].seconds == 10.2);
        CHECK(requests[1].blocks.size() == 3);
        CHECK(requests[2].seconds == 10.5);
        CHECK(requests[2].blocks[0] == requests[0].blocks[0]); // ids belong to the session, sub-agents included
        CHECK(requests[2].blocks[1] != requests[0].blocks[1]);
    }
    const auto nested =
        requests_of(session(subagent("10", request("1", "[1]") + "," + subagent("5", request("1", "[2]")))));
    REQUIRE(nested.size() == 2);
    CHECK(nested[1].seconds == 16.0);
}

TEST_CASE("local ids belong to one session, global ids to all") {
    const std::string one = request("0", "[1, 2]");
    const auto local = requests_of(session(one) + session(one));
    REQUIRE(local.size() == 2);
    CHECK(local[0].blocks[0] != local[1].blocks[0]);
    const auto global = requests_of(session(one, "global") + session(one, "global"));
    CHECK(global[0].blocks == global[1].blocks);
}

TEST_CASE("sessions may be pretty, with brackets in their strings") {
    const auto requests = requests_of("\n{\n \"id\": \"}]\\\"{\",\r\n \"block_size\": 64,\n\t\"requests\": [\n" +
                                      request("0", "[1]") + "\n]\n}\n\n" + session("") + session(request("1", "[]")));
    CHECK(requests.size() == 2);
}

TEST_CASE("a broken session is refused by its line and request") {
    CHECK(refused_weka("") == "none");
    CHECK(refused_weka("\n 7") == "t | t, line 2: no JSON object begins here");
    CHECK(refused_weka("[]") == "t | t, line 1: no JSON object begins here");
    CHECK(refused_weka("\n{\"a\": [") == "t | t, line 2: the object that begins here does not end");
    CHECK(refused_weka("{\"a\": ]}").substr(0, 46) == "t | t, line 1: of the object that begins here,");
    CHECK(refused_weka(session(request("0", "[1]")) + session(request("0", "[1, -1]"))).substr(0, 39) ==
          "hash_ids[1] | t, line 2, requests[0]: h");
    CHECK(refused_weka(session(subagent("3", request("0", "7")))) ==
          "hash_ids | t, line 1, requests[0].requests[0]: hash_ids is number and no array");
    CHECK(refused_weka(session(R"({"t": 0, "type": "x"})")).substr(0, 45) ==
          "type | t, line 1, requests[0]: type is none o");
    CHECK(refused_weka(session("3")) ==
          "t, line 1, requests[0] | t, line 1, requests[0]: the record is number and no object");
    CHECK(refused_weka(session("", "galaxy")) ==
          "hash_id_scope | t, line 1: hash_id_scope is neither \"local\" nor \"global\"");
    CHECK(refused_weka(R"({"block_size": 0, "requests": []})") == "block_size | t, line 1: block_size is 0");
    CHECK(refused_weka(R"({"block_size": 64})") == "requests | t, line 1: requests is missing");
    std::string deep = request("0", "[1]");
    for (int i = 0; i < 70; ++i)
        deep = subagent("0", deep);
    CHECK(refused_weka(session(deep)).find("is nested more than 64 levels deep") != std::string::npos);
    CHECK(refused_weka("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}").find("256 levels deep") !=
          std::string::npos);
}

TEST_CASE("the agentic sessions are read whole") {
    std::size_t requests = 0;
    for (const char* name : {"trace_0037.json", "trace_0072.json", "trace_0130.json"}) {
        const auto path = shared_trace(std::string("agentic/") + name);
        if (!path)
            return;
        auto trace = bench::open_trace<bench::weka_trace>(*path);
        REQUIRE(trace);
        double before = 0.0;
        for (bench::prefix_request request; *trace->next(request); before = request.seconds) {
            ++requests;
            CHECK(request.blocks.size() == request.input_tokens / 64);
            CHECK(request.seconds >= before);
        }
    }
    CHECK(requests == 26);
}
