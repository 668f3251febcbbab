// SPDX-License-Identifier: MIT
//
// Feeds arbitrary bytes to the trace readers, the first byte choosing the format, and replays what they give out:
//
//     clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -Iinclude tests/fuzz/traces.cpp -o fuzz -lz -lzstd
//     ./fuzz -max_len=4096 -max_total_time=60 corpus/

#include <kvcache/eviction/lru.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "../../bench/replay/object_replay.hpp"
#include "../../bench/replay/prefix_replay.hpp"
#include "../../bench/traces/object_traces.hpp"
#include "../../bench/traces/prompt_traces.hpp"

namespace {

constexpr std::size_t most_records = 100000; // a small input may decompress to a large trace

template <class Trace, class Record, class Use>
void read_all(std::string bytes, Use&& use) {
    Trace trace(bench::byte_source::over(std::move(bytes), "fuzz"));
    Record record;
    for (std::size_t count = 0; count < most_records; ++count) {
        const auto more = trace.next(record);
        if (!more && (more.error().field.empty() || more.error().message.find("fuzz") == std::string::npos))
            std::abort();
        if (!more || !*more)
            return;
        if (!(record.seconds >= 0.0))
            std::abort();
        use(record);
    }
}

template <class Trace>
void read_prompts(std::string bytes) {
    bench::prefix_replay<kvcache::eviction::lru> replay({}, 7, 64, {});
    read_all<Trace, bench::prefix_request>(std::move(bytes), [&](const bench::prefix_request& request) {
        if (request.block_tokens == 0 || replay.run(request) > request.blocks.size())
            std::abort();
    });
}

template <class Trace>
void read_objects(std::string bytes) {
    bench::object_replay<kvcache::eviction::lru> replay({}, 1 << 20, 7);
    read_all<Trace, bench::object_access>(std::move(bytes), [&](const bench::object_access& access) {
        if (access.bytes == 0)
            std::abort();
        replay.run(access);
    });
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size == 0)
        return 0;
    std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
    switch (data[0] % 6) {
    case 0:
        read_prompts<bench::mooncake_trace>(std::move(bytes));
        break;
    case 1:
        read_prompts<bench::bailian_trace>(std::move(bytes));
        break;
    case 2:
        read_prompts<bench::weka_trace>(std::move(bytes));
        break;
    case 3:
        read_objects<bench::libcachesim_trace>(std::move(bytes));
        break;
    case 4:
        read_objects<bench::csv_trace>(std::move(bytes));
        break;
    default:
        read_objects<bench::lirs_trace>(std::move(bytes));
        break;
    }
    return 0;
}
