// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/type_name.hpp>
#include <kvcache/eviction/all.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "bounds.hpp"
#include "object_replay.hpp"
#include "prefix_replay.hpp"
#include "report.hpp"
#include "workload.hpp"

namespace bench {

/// The names of the library's eviction policies.
[[nodiscard]] inline std::vector<std::string> policy_names() {
    return []<class... P>(std::type_identity<std::tuple<P...>>) {
        return std::vector<std::string>{kvcache::type_name<P>()...};
    }(std::type_identity<kvcache::eviction_policies>{});
}

/// The result of a first pass over a trace.
struct survey {
    bench::next_uses next;
    std::uint64_t records = 0, accesses = 0, distinct = 0;
    std::uint64_t smallest = 0; ///< Bytes of the smallest object.
};

/// A comparison of policies and capacities over one trace, all replayed at once, so that the trace is read once.
template <class Record>
class contest {
public:
    static constexpr bool prefix = std::is_same_v<Record, bench::prefix_request>;

    struct terms {
        std::vector<std::string> policies = {};
        std::vector<bench::capacity> capacities = {};
        std::uint64_t unit = 1;        ///< Capacity units per block (prompts) or per byte (objects).
        std::uint64_t block_bytes = 1; ///< Bytes of a block, as reported to the policies.
        bench::prefill_work work = {};
        bool bound = true;
    };

    /// Throws: runtime_error for an unknown policy.
    contest(terms given, const survey& found) : terms_(std::move(given)), found_(found), infinite_(terms_.work) {
        for (const bench::capacity& one : terms_.capacities) {
            if (!one.units) {
                with_infinite_ = true;
                continue;
            }
            const std::uint64_t size = *one.units / terms_.unit;
            if (size == 0)
                throw std::runtime_error("--capacity: " + one.words + " is less than a block");
            for (const std::string& name : terms_.policies)
                add(name, one, size);
            if (terms_.bound)
                bounds_.push_back({one.words, bound_of(size)});
        }
    }

    void run(const Record& record) {
        for (contestant& one : contestants_)
            one.run(record);
        if (with_infinite_)
            infinite_.run(record);
        if (!terms_.bound)
            return;
        std::size_t count = 1;
        if constexpr (prefix)
            count = record.blocks.size();
        const auto next = found_.next.times().subspan(accesses_, count);
        accesses_ += count;
        for (auto& [words, bound] : bounds_)
            if constexpr (prefix)
                bound.run(record, next);
            else
                bound.run(record, next.front());
    }

    /// The results of every policy with every capacity, in the order given.
    [[nodiscard]] std::vector<replay_row> rows() const {
        std::vector<replay_row> rows;
        for (const std::string& name : terms_.policies)
            for (const bench::capacity& one : terms_.capacities) {
                replay_row row{name, one, infinite_.counts(), std::nullopt};
                for (const contestant& c : contestants_)
                    if (c.policy == name && c.words == one.words)
                        row.counts = c.counts();
                for (const auto& [words, bound] : bounds_)
                    if (words == one.words)
                        row.clairvoyant = bound.counts().hit_ratio();
                if (!one.units && terms_.bound)
                    row.clairvoyant = row.counts.hit_ratio();
                rows.push_back(std::move(row));
            }
        return rows;
    }

private:
    using clairvoyant = std::conditional_t<prefix, bench::prefix_clairvoyant, bench::object_clairvoyant>;

    struct contestant {
        std::string policy, words;
        std::function<void(const Record&)> run;
        std::function<bench::replay_counts()> counts;
    };

    [[nodiscard]] clairvoyant bound_of(std::uint64_t size) const {
        if constexpr (prefix)
            return clairvoyant(size, terms_.work);
        else
            return clairvoyant(size);
    }

    void add(const std::string& name, const bench::capacity& of, std::uint64_t size) {
        const bool known = [&]<class... P>(std::type_identity<std::tuple<P...>>) {
            return ((kvcache::type_name<P>() == name && (add(P{}, of, size), true)) || ...);
        }(std::type_identity<kvcache::eviction_policies>{});
        if (known)
            return;
        std::string words = "--policies: there is no eviction policy \"" + name + "\", but";
        for (const std::string& other : policy_names())
            words += " " + other;
        throw std::runtime_error(words);
    }

    template <class Policy>
    void add(const Policy& policy, const bench::capacity& of, std::uint64_t size) {
        constexpr std::uint64_t most = 0xfffffffeu; // slots
        const auto enter = [&](auto replay) {
            contestants_.push_back({kvcache::type_name<Policy>(), of.words,
                                    [replay](const Record& record) { replay->run(record); },
                                    [replay] { return replay->counts(); }});
        };
        if constexpr (prefix) {
            // Slots beyond the number of distinct blocks are never used and only cost memory.
            if (found_.distinct > 0 && size >= found_.distinct)
                size = found_.distinct;
            if (size > most)
                throw std::runtime_error("--capacity: " + of.words + " are more than 2^32 - 2 blocks");
            enter(std::make_shared<bench::prefix_replay<Policy>>(policy, size, terms_.block_bytes, terms_.work));
        } else {
            std::uint64_t objects = found_.distinct > 0 ? found_.distinct : found_.accesses;
            objects = std::min({objects, size / std::max<std::uint64_t>(found_.smallest, 1), most});
            enter(std::make_shared<bench::object_replay<Policy>>(policy, size, std::max<std::uint64_t>(objects, 1)));
        }
    }

    terms terms_;
    const survey& found_;
    std::vector<contestant> contestants_;
    std::vector<std::pair<std::string, clairvoyant>> bounds_;
    bench::infinite_replay infinite_;
    bool with_infinite_ = false;
    std::size_t accesses_ = 0;
};

} // namespace bench
