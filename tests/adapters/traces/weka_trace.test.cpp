// SPDX-License-Identifier: MIT
#include <kvcache/adapters/traces/weka_trace.hpp>

#include <algorithm>

#include <adapters/traces/files.hpp>
#include <catch2/catch.hpp>

using namespace trace_tests;

namespace {

std::string refused(const std::string& text) {
    return refusal<kv::weka_trace, kv::prefix_request>(text);
}

std::vector<kv::prefix_request> requests_of(const std::string& text) {
    const auto [requests, error] = read_all<kv::weka_trace, kv::prefix_request>(text);
    INFO(refused(text));
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
    CHECK(refused("") == "none");
    CHECK(refused("\n 7") == "t | t, line 2: no JSON object begins here");
    CHECK(refused("[]") == "t | t, line 1: no JSON object begins here");
    CHECK(refused("\n{\"a\": [") == "t | t, line 2: the object that begins here does not end");
    CHECK(refused("{\"a\": ]}").substr(0, 46) == "t | t, line 1: of the object that begins here,");
    CHECK(refused(session(request("0", "[1]")) + session(request("0", "[1, -1]"))).substr(0, 39) ==
          "hash_ids[1] | t, line 2, requests[0]: h");
    CHECK(refused(session(subagent("3", request("0", "7")))) ==
          "hash_ids | t, line 1, requests[0].requests[0]: hash_ids is number and no array");
    CHECK(refused(session(R"({"t": 0, "type": "x"})")).substr(0, 45) ==
          "type | t, line 1, requests[0]: type is none o");
    CHECK(refused(session("3")) ==
          "t, line 1, requests[0] | t, line 1, requests[0]: the record is number and no object");
    CHECK(refused(session("", "galaxy")) ==
          "hash_id_scope | t, line 1: hash_id_scope is neither \"local\" nor \"global\"");
    CHECK(refused(R"({"block_size": 0, "requests": []})") == "block_size | t, line 1: block_size is 0");
    CHECK(refused(R"({"block_size": 64})") == "requests | t, line 1: requests is missing");
    std::string deep = request("0", "[1]");
    for (int i = 0; i < 70; ++i)
        deep = subagent("0", deep);
    CHECK(refused(session(deep)).find("is nested more than 64 levels deep") != std::string::npos);
    CHECK(refused("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}").find("256 levels deep") !=
          std::string::npos);
}

TEST_CASE("the agentic sessions are read whole") {
    std::size_t requests = 0;
    for (const char* name : {"trace_0037.json", "trace_0072.json", "trace_0130.json"}) {
        const auto path = shared_trace(std::string("agentic/") + name);
        if (!path)
            return;
        auto trace = kv::weka_trace::open(*path);
        REQUIRE(trace);
        double before = 0.0;
        for (kv::prefix_request request; *trace->next(request); before = request.seconds) {
            ++requests;
            CHECK(request.blocks.size() == request.input_tokens / 64);
            CHECK(request.seconds >= before);
        }
    }
    CHECK(requests == 26);
}
