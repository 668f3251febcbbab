// SPDX-License-Identifier: MIT
// Ten users share one system prompt, whose pages exist once. Then one conversation is forked; only new tokens run.
// test:
#include <kvcache/kvcache.hpp>
#include <kvcache/testing/random_weights.hpp>

#include <iostream>
#include <vector>

#include "support/guarded.hpp"

using namespace kvcache::literals;

namespace {

std::vector<kvcache::token_id> tokens(int first, int count) {
    std::vector<kvcache::token_id> made;
    for (int i = 0; i < count; ++i)
        made.push_back(kvcache::token_id{(first + 7 * i) % 101});
    return made;
}

int program() {
    const auto model = kvcache::make_random_model({.hidden_size = 64,
                                                   .intermediate_size = 128,
                                                   .layers = 2,
                                                   .heads = 4,
                                                   .kv_heads = 2,
                                                   .head_dim = 16,
                                                   .vocabulary = 101,
                                                   .tied_head = true},
                                                  1);
    auto cache = kvcache::make_cache({.shape = model.shape(16), .limit = {.bytes = 16_MiB}});
    kvcache::thread_pool threads(1);
    kvcache::pipeline pipeline(cache, model, threads);

    const auto system = tokens(0, 160); // ten pages
    std::vector<kvcache::prefill_result<decltype(cache)>> users;
    for (int user = 0; user < 10; ++user) {
        auto prompt = system;
        for (const auto token : tokens(user + 1, 5))
            prompt.push_back(token);
        auto turn = pipeline.prefill(prompt);
        if (!turn) {
            std::cerr << turn.error().message << '\n';
            return 1;
        }
        users.push_back(std::move(*turn));
    }
    const auto shared = cache.stats();
    std::cout << "10 users of a prompt of 10 pages hold " << shared.in_use << " pages\n";

    auto branch = users[0].sequence.fork(163); // inside a page: the first write copies it (copy-on-write)
    const auto other = pipeline.extend(branch, tokens(50, 8));
    const auto same = pipeline.extend(users[0].sequence, tokens(60, 8));
    if (!other || !same)
        return 1;
    std::cout << "a fork and both its answers: " << cache.stats().in_use - shared.in_use << " pages more\n";
    std::cout << "the first tokens are still one: "
              << (branch.table().front().page == users[9].sequence.table().front().page ? "yes\n" : "no\n");

    users.clear();
    return shared.in_use == 20 && cache.check() ? 0 : 1;
}

} // namespace

int main() {
    return support::guarded("03_shared_prefix", [&] { return program(); });
}
