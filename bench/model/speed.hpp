// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "subject.hpp"

namespace bench {

/// Appends tokens to a sequence, into a logits matrix that is reused.
inline void extend(const visit& at, sequence& past, std::span<const kvcache::token_id> more, kvcache::matrix& logits) {
    const kvcache::batch_entry<cache> one{&past, more};
    must(at.runner.extend({&one, 1}, logits));
}

/// Measures the tokens per second of a prefill of `count` tokens after a past.
inline void prefill(const visit& at, sequence& past, std::size_t count) {
    const std::size_t depth = past.size();
    const tokens prompt = at.of.fresh(count);
    kvcache::matrix logits;
    const stopwatch watch;
    extend(at, past, prompt, logits);
    const double seconds = watch.seconds();
    past.truncate(depth);
    at.rate("prefill_" + std::to_string(count) + "_d" + std::to_string(depth), seconds, static_cast<double>(count),
            [&of = at.of, &most = at.most, count, depth] { return of.bound(most, count, depth); });
}

/// Measures the tokens per second of generating `steps` tokens after a past, one forward pass each.
inline void generation(const visit& at, sequence& past, std::size_t steps) {
    const std::size_t depth = past.size();
    const tokens answer = at.of.fresh(steps);
    kvcache::matrix logits;
    extend(at, past, std::span(answer).first(1), logits); // wakes the threads
    past.truncate(depth);
    const stopwatch watch;
    for (std::size_t i = 0; i < steps; ++i)
        extend(at, past, {&answer[i], 1}, logits);
    const double seconds = watch.seconds();
    past.truncate(depth);
    at.rate("generation_d" + std::to_string(depth), seconds, static_cast<double>(steps),
            [&of = at.of, &most = at.most, depth, steps] {
                return static_cast<double>(steps) * of.bound(most, 1, depth + steps / 2);
            });
}

/// Measures the tokens per second of `users` concurrent generations after a past that they share, one token each per
/// forward pass.
inline void shared_generation(const visit& at, const sequence& past, std::size_t users, std::size_t steps) {
    const std::size_t depth = past.size();
    std::vector<sequence> forks;
    for (std::size_t user = 0; user < users; ++user)
        forks.push_back(past.fork(depth));
    const tokens said = at.of.fresh(users * (steps + 1));
    kvcache::matrix logits;
    double seconds = 0.0;
    for (std::size_t step = 0; step <= steps; ++step) {
        std::vector<kvcache::batch_entry<cache>> batch;
        for (std::size_t user = 0; user < users; ++user)
            batch.push_back({&forks[user], {&said[step * users + user], 1}});
        const stopwatch watch;
        must(at.runner.extend(batch, logits));
        seconds += step == 0 ? 0.0 : watch.seconds(); // the first step allocates pages
    }
    const auto count = static_cast<double>(users * steps);
    at.rate("generation_" + std::to_string(users) + "_users_d" + std::to_string(depth), seconds, count,
            [&of = at.of, &most = at.most, users, steps, depth] {
                const double bytes = of.weight_bytes() + of.position_bytes() * static_cast<double>(depth);
                const double step = std::max(bytes / most.stream.median(),
                                             static_cast<double>(users) * of.flops(1, depth) / most.peak.most());
                return static_cast<double>(steps) * step;
            });
}

} // namespace bench
