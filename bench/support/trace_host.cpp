// SPDX-License-Identifier: MIT

// The host whose calls bench/trace_calls.py counts: four blocks of 16 tokens, prompts of 40. The first commit finds
// nothing cached; the second acquire finds one free block and needs three. Adapt it when the calls of a host change.
#include <kvcache/cache.hpp>
#include <kvcache/storage/external.hpp>

#include <vector>

// The tracer (bench/support/call_tracer.cpp) records the functions that are entered between the two.
void trace_begin(const char* name);
void trace_end();

int main() {
    auto cache = kvcache::make_cache({.shape = {.tokens = 16}, .limit = {.pages = 4}, .merge_equal_pages = false},
                                     kvcache::storage::external{.copy = [](auto, auto) { return true; }});
    const std::vector<kvcache::token_id> first(40, kvcache::token_id{1}), second(40, kvcache::token_id{2});
    {
        auto request = cache.acquire(first);
        if (!request)
            return 1;
        trace_begin("a cold commit");
        request->lease.commit(first);
        trace_end();
    }
    trace_begin("an acquire that evicts");
    auto request = cache.acquire(second);
    trace_end();
    return request ? 0 : 1;
}
