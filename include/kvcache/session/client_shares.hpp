// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Something of which clients have some each: waiting requests, answers.
class client_counts {
public:
    void add(std::uint64_t client, std::size_t count = 1) { of_[client] += count; }
    void remove(std::uint64_t client) {
        if (const auto at = of_.find(client); at != of_.end() && --at->second == 0)
            of_.erase(at);
    }
    void clear() noexcept { of_.clear(); }

    [[nodiscard]] std::size_t clients() const noexcept { return of_.size(); }
    [[nodiscard]] std::size_t of(std::uint64_t client) const {
        const auto at = of_.find(client);
        return at == of_.end() ? 0 : at->second;
    }
    /// Calls f(client, count) for each client.
    template <class F>
    void for_each(const F& f) const {
        for (const auto& [client, count] : of_)
            f(client, count);
    }
    /// The client that has the most, and how many; the first of several.
    [[nodiscard]] std::pair<std::uint64_t, std::size_t> most() const {
        const auto at =
            std::max_element(of_.begin(), of_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
        return at == of_.end() ? std::pair<std::uint64_t, std::size_t>() : std::pair(at->first, at->second);
    }

private:
    std::map<std::uint64_t, std::size_t> of_;
};

/// The rows that each client's prompts have run, so that the client with the fewest comes first (fair queueing, Demers
/// et al. 1989). A client that comes back begins at the least of those that are there: it saves nothing up.
class served_rows {
public:
    /// Begins a step with these clients: forgets others, and adds those that are new.
    void follow(const client_counts& running) {
        for (auto at = of_.begin(); at != of_.end();)
            at = running.of(at->first) > 0 ? std::next(at) : of_.erase(at);
        const auto least =
            std::min_element(of_.begin(), of_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
        const std::uint64_t first = least == of_.end() ? 0 : least->second;
        running.for_each([&](std::uint64_t client, std::size_t) { of_.emplace(client, first); });
    }
    void add(std::uint64_t client, std::size_t rows) { of_[client] += rows; }
    [[nodiscard]] std::uint64_t of(std::uint64_t client) const {
        const auto at = of_.find(client);
        return at == of_.end() ? 0 : at->second;
    }

private:
    std::map<std::uint64_t, std::uint64_t> of_;
};

/// The clients whose requests were there in the last ten seconds.
class recent_clients {
public:
    using time = std::chrono::steady_clock::time_point;

    void note(std::uint64_t client, time now) { seen_[client] = now; }
    /// Whether there are several. Cost: O(clients).
    [[nodiscard]] bool several(time now) {
        for (auto at = seen_.begin(); at != seen_.end();)
            at = at->second + std::chrono::seconds(10) < now ? seen_.erase(at) : std::next(at);
        return seen_.size() > 1;
    }

private:
    std::map<std::uint64_t, time> seen_;
};

/// What clients owe of a limit of tokens a second: those of requests that began, less what has been repaid since. A
/// client that owes something begins nothing. It saves nothing up, so a limit is kept over any time that is longer than
/// that of one request. Without a limit (0) no client owes anything.
class token_debts {
public:
    using time = std::chrono::steady_clock::time_point;

    explicit token_debts(double per_second) : per_second_(per_second) {}

    [[nodiscard]] bool owes(std::uint64_t client) const { return of_.find(client) != of_.end(); }
    void charge(std::uint64_t client, double tokens) {
        if (per_second_ <= 0.0)
            return;
        double& debt = of_[client];
        debt += tokens;
        if (debt <= 0.0)
            of_.erase(client);
    }
    /// Repays what the limit allows since the last call.
    void repay(time now) {
        const double paid = per_second_ * std::chrono::duration<double>(now - last_).count();
        last_ = now;
        for (auto at = of_.begin(); paid > 0.0 && at != of_.end();)
            at = (at->second -= paid) <= 0.0 ? of_.erase(at) : std::next(at);
    }

private:
    double per_second_;
    time last_ = {};
    std::map<std::uint64_t, double> of_;
};

}}} // namespace kvcache::detail
