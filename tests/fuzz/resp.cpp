// SPDX-License-Identifier: MIT
//
// Feeds arbitrary bytes to all that reads a Redis server: replies, the ranges of a cluster and redirections. Every
// beginning of a whole reply must ask for more, and no more than the reply has.
//
//     clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -Iinclude tests/fuzz/resp.cpp -o fuzz
//     ./fuzz -max_len=4096 -max_total_time=60 tests/fuzz/corpus/resp

#include <kvcache/tier/resp.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <span>
#include <string_view>

namespace kv = kvcache;

namespace {

void require(bool holds) {
    if (!holds)
        std::abort();
}

// What a value says lies within the bytes it was read from.
void look_at(const kv::tier::resp_value& value, std::string_view from) {
    if (!value.words.empty()) {
        require(!std::less<>()(value.words.data(), from.data()));
        require(!std::less<>()(from.data() + from.size(), value.words.data() + value.words.size()));
    }
    if (value.what == kv::tier::resp_value::kind::error)
        if (const auto where = kv::tier::redirect_in(value.words))
            require(where->slot < kv::tier::redis_slot_count && where->to.port != 0);
    require(kv::tier::redis_slot(value.words) < kv::tier::redis_slot_count);
    for (const kv::tier::resp_value& one : value.items)
        look_at(one, from);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const kv::tier::resp_limits limits{.bytes = 1 << 12, .line = 256, .items = 512, .depth = 4};
    auto rest = std::as_bytes(std::span(data, size));
    for (;;) {
        const kv::tier::resp_read read = kv::tier::read_resp(rest, limits);
        if (read.now == kv::tier::resp_read::state::wrong)
            return 0;
        if (read.now == kv::tier::resp_read::state::more) {
            require(read.wanted > rest.size() && read.wanted <= rest.size() + limits.bytes + 2);
            return 0;
        }
        require(read.used > 0 && read.used <= rest.size());
        const auto whole = rest.first(read.used);
        look_at(read.value, {reinterpret_cast<const char*>(whole.data()), whole.size()});
        if (const auto ranges = kv::tier::ranges_in(read.value, "host"))
            for (const kv::tier::redis_range& range : *ranges)
                require(range.first <= range.last && range.last < kv::tier::redis_slot_count && range.at.port != 0);
        if (read.used <= 128)
            for (std::size_t part = 0; part < read.used; ++part) {
                const kv::tier::resp_read less = kv::tier::read_resp(whole.first(part), limits);
                require(less.now == kv::tier::resp_read::state::more && less.wanted > part && less.wanted <= read.used);
            }
        rest = rest.subspan(read.used);
    }
}
