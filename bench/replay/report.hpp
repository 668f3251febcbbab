// SPDX-License-Identifier: MIT
#pragma once

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "capacity.hpp"
#include "workload.hpp"
#include <nlohmann/json.hpp>

namespace bench {

/// The result of one policy with one capacity.
struct replay_row {
    std::string policy;
    bench::capacity capacity;
    bench::replay_counts counts;
    std::optional<double> clairvoyant; ///< The hit ratio of the clairvoyant bound; nullopt: not requested.
};

/// Prints the rows as a table. `prefix`: the trace has prompts; otherwise it has objects, whose token counts are bytes
/// and which have no prefill work.
inline void print_table(const std::vector<replay_row>& rows, bool prefix) {
    std::printf("%-20s %12s %10s %12s %12s %12s %8s %8s %8s %12s\n", "policy", "capacity", "requests", "accesses",
                "hits", "misses", prefix ? "blocks" : "objects", prefix ? "tokens" : "bytes", prefix ? "flops" : "",
                "clairvoyant");
    for (const replay_row& row : rows) {
        const auto& c = row.counts;
        std::printf("%-20s %12s %10" PRIu64 " %12" PRIu64 " %12" PRIu64 " %12" PRIu64 " %8.4f %8.4f ",
                    row.policy.c_str(), row.capacity.words.c_str(), c.requests, c.accesses, c.hits, c.misses(),
                    c.hit_ratio(), c.token_hit_ratio());
        if (prefix)
            std::printf("%8.4f ", c.work_hit_ratio());
        else
            std::printf("%8s ", "");
        if (row.clairvoyant)
            std::printf("%12.4f\n", *row.clairvoyant);
        else
            std::printf("%12s\n", "-");
    }
}

/// Writes the rows as a JSON array. Returns false if the file cannot be written.
[[nodiscard]] inline bool write_json(const std::string& file, const std::vector<replay_row>& rows, bool prefix) {
    auto list = nlohmann::ordered_json::array();
    for (const replay_row& row : rows) {
        const auto& c = row.counts;
        nlohmann::ordered_json one = {{"policy", row.policy},
                                      {"capacity", "infinite"},
                                      {"requests", c.requests},
                                      {"accesses", c.accesses},
                                      {"hits", c.hits},
                                      {"misses", c.misses()},
                                      {"hit_ratio", c.hit_ratio()},
                                      {"token_hit_ratio", c.token_hit_ratio()},
                                      {"flop_hit_ratio", nullptr},
                                      {"clairvoyant_hit_ratio", nullptr}};
        if (row.capacity.units)
            one["capacity"] = *row.capacity.units;
        if (prefix)
            one["flop_hit_ratio"] = c.work_hit_ratio();
        if (row.clairvoyant)
            one["clairvoyant_hit_ratio"] = *row.clairvoyant;
        list.push_back(std::move(one));
    }
    std::ofstream out(file);
    out << list.dump(1) << '\n';
    out.close();
    return !out.fail();
}

} // namespace bench
