// SPDX-License-Identifier: MIT
#include <kvcache/adapters/traces/bailian_trace.hpp>

#include <adapters/traces/files.hpp>
#include <catch2/catch.hpp>

using namespace trace_tests;

namespace {

std::string refused(const std::string& text) {
    return refusal<kv::bailian_trace, kv::prefix_request>(text);
}

} // namespace

TEST_CASE("a Bailian request is read, with what a replay does not need or without it") {
    const std::string text =
        R"({"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40, "output_length": 132, )"
        R"("type": "text", "turn": 2, "hash_ids": [1089, 1090, 6326]})"
        "\n"
        R"({"timestamp": 62, "input_length": 16, "output_length": 1, "hash_ids": [1089]})"
        "\n";
    const auto [requests, error] = read_all<kv::bailian_trace, kv::prefix_request>(zstd_compressed(text));
    REQUIRE_FALSE(error);
    REQUIRE(requests.size() == 2);
    CHECK(requests[0].seconds == 61.114);
    CHECK(requests[0].block_tokens == 16);
    CHECK(requests[0].tokens_in(3) == 40);
    CHECK(requests[0].blocks.size() == 3);
    CHECK(requests[0].blocks[0] == requests[1].blocks[0]);
}

TEST_CASE("a broken Bailian line is refused by its line and field") {
    CHECK(refused(R"({"chat_id": "a"})") == "chat_id | t, line 1: chat_id is string, not an integer");
    CHECK(refused(R"({"turn": 1.5})") == "turn | t, line 1: turn is number, not an integer");
    CHECK(refused(R"({"type": 3})") == "type | t, line 1: type is number and no string");
    CHECK(refused(R"({"timestamp": "0"})") == "timestamp | t, line 1: timestamp is string and no number");
    CHECK(refused(R"({"timestamp": 1e400})").substr(0, 14) == "t | t, line 1:");
    CHECK(refused(R"({"timestamp": 0, "input_length": null})") ==
          "input_length | t, line 1: input_length is null and no number");
    CHECK(refused(R"({"timestamp": 0, "input_length": 1, "output_length": -1})").substr(0, 13) == "output_length");
    CHECK(refused(R"({"timestamp": 0, "input_length": 1, "output_length": 1})") ==
          "hash_ids | t, line 1: hash_ids is missing");
}
