// SPDX-License-Identifier: MIT
//
// Replays a recorded workload through eviction policies and reports the hits of each, compared with the clairvoyant
// bound: lab/replay.md.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../examples/support/guarded.hpp"
#include "replay/contest.hpp"
#include "replay/progress.hpp"
#include "replay/report.hpp"
#include "traces/object_traces.hpp"
#include "traces/prompt_traces.hpp"
#include <CLI/CLI.hpp>

namespace {

struct flags {
    std::vector<std::string> traces, policies = bench::policy_names(), capacities;
    std::string format, json;
    std::uint64_t block_bytes = 0;
    double crossover = bench::prefill_work{}.crossover;
    bool bytes = false, unit_size = false, no_bound = false;
};

using files = std::vector<std::filesystem::path>;

// Replaces a directory by its files, in order of name.
files expanded(const std::vector<std::string>& traces) {
    files all;
    for (const std::string& trace : traces) {
        if (!std::filesystem::is_directory(trace)) {
            all.emplace_back(trace);
            continue;
        }
        files inside;
        for (const auto& one : std::filesystem::directory_iterator(trace))
            if (one.is_regular_file())
                inside.push_back(one.path());
        std::ranges::sort(inside);
        all.insert(all.end(), inside.begin(), inside.end());
    }
    return all;
}

// Calls use(record) for every record of the traces until it returns false. Throws: runtime_error if a trace cannot be
// read.
template <class Trace, class Record, class Use>
void each_record(const files& traces, const flags& f, const char* doing, Use&& use) {
    bench::progress bar(doing);
    Record record;
    for (std::size_t i = 0; i < traces.size(); ++i) {
        auto trace = bench::open_trace<Trace>(traces[i]);
        if (!trace)
            throw std::runtime_error(trace.error().message);
        for (std::uint64_t count = 0;; ++count) {
            const auto more = trace->next(record);
            if (!more)
                throw std::runtime_error(more.error().message);
            if (!*more)
                break;
            if constexpr (std::is_same_v<Record, bench::object_access>)
                if (f.unit_size)
                    record.bytes = 1;
            if (!use(std::as_const(record)))
                return;
            if (count % 64 == 0)
                bar.show((static_cast<double>(i) + trace->share()) / static_cast<double>(traces.size()));
        }
    }
}

template <class Trace, class Record>
bench::survey surveyed(const files& traces, const flags& f, std::uint64_t& block_tokens) {
    bench::survey found;
    each_record<Trace, Record>(traces, f, "looking ahead", [&](const Record& record) {
        if (!f.no_bound && found.records >= bench::next_uses::never)
            throw std::runtime_error("the trace has 2^32 requests or more: --no-bound replays it");
        const auto time = static_cast<std::uint32_t>(found.records++);
        if constexpr (std::is_same_v<Record, bench::prefix_request>) {
            block_tokens = std::max<std::uint64_t>(block_tokens, record.block_tokens);
            for (const std::uint64_t block : record.blocks)
                if (!f.no_bound)
                    found.next.add(block, time);
            found.accesses += record.blocks.size();
            return !f.no_bound; // without the bound, the first request is enough
        } else {
            found.smallest = found.records == 1 ? record.bytes : std::min(found.smallest, record.bytes);
            if (!f.no_bound)
                found.next.add(record.key, time);
            ++found.accesses;
            return true;
        }
    });
    if (!f.no_bound)
        found.distinct = found.next.distinct();
    found.next.forget_keys();
    return found;
}

template <class Trace, class Record>
int replay(const flags& f) {
    using contest = bench::contest<Record>;
    const files traces = expanded(f.traces);
    std::uint64_t block_tokens = 1;
    const bench::survey found = surveyed<Trace, Record>(traces, f, block_tokens);
    typename contest::terms terms{.policies = f.policies, .work = {.crossover = f.crossover}, .bound = !f.no_bound};
    for (const std::string& words : f.capacities)
        terms.capacities.push_back(bench::parse_capacity(words));
    if constexpr (contest::prefix) {
        constexpr std::uint64_t token_bytes =
            131072; // Llama 3.1 8B: 32 layers, 8 KV heads of 128, keys and values, BF16
        terms.block_bytes = f.block_bytes > 0 ? f.block_bytes : block_tokens * token_bytes;
        terms.unit = f.bytes ? terms.block_bytes : 1;
    }
    contest all(std::move(terms), found);
    each_record<Trace, Record>(traces, f, "replaying", [&](const Record& record) {
        all.run(record);
        return true;
    });

    const auto rows = all.rows();
    bench::print_table(rows, contest::prefix);
    if (!f.json.empty() && !bench::write_json(f.json, rows, contest::prefix))
        throw std::runtime_error("--json: " + f.json + " cannot be written");
    return 0;
}

int run(const flags& f) {
    if (f.format == "mooncake")
        return replay<bench::mooncake_trace, bench::prefix_request>(f);
    if (f.format == "weka")
        return replay<bench::weka_trace, bench::prefix_request>(f);
    if (f.format == "bailian")
        return replay<bench::bailian_trace, bench::prefix_request>(f);
    if (f.format == "libcachesim")
        return replay<bench::libcachesim_trace, bench::object_access>(f);
    if (f.format == "csv")
        return replay<bench::csv_trace, bench::object_access>(f);
    return replay<bench::lirs_trace, bench::object_access>(f);
}

int program(int count, char** words) {
    flags f;
    CLI::App app{"Replays a recorded workload through eviction policies."};
    app.add_option("--trace", f.traces, "A file, plain, gzip or zstd; or a directory of them")->required();
    app.add_option("--format", f.format, "What the trace is")
        ->required()
        ->check(CLI::IsMember({"mooncake", "weka", "bailian", "libcachesim", "csv", "lirs"}));
    app.add_option("--policies", f.policies, "By name; all of the library's if not given")->delimiter(',');
    app.add_option("--capacity", f.capacities, "10000, 10k, 512MiB, ... or infinite")->delimiter(',')->required();
    app.add_flag("--bytes", f.bytes, "Capacities are bytes also for prompts (objects are always counted in bytes)");
    app.add_option("--block-bytes", f.block_bytes, "Bytes of a block of a prompt; Llama 3.1 8B in BF16 if not given");
    app.add_flag("--unit-size", f.unit_size, "Every object counts as 1, whatever its size");
    app.add_option("--flop-crossover", f.crossover, "The position where attention costs as much as the projections")
        ->check(CLI::PositiveNumber);
    app.add_flag("--no-bound", f.no_bound, "Without the clairvoyant, which needs memory for each access");
    app.add_option("--json", f.json, "Write the rows to this file");
    CLI11_PARSE(app, count, words);
    return run(f);
}

} // namespace

int main(int count, char** words) {
    return support::guarded("replay_trace", [&] { return program(count, words); });
}
