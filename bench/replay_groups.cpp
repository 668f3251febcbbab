// SPDX-License-Identifier: MIT
//
// Sends a trace of tokens through a cache of layer groups without a model, and writes the reused tokens of each
// request: bench/compare/layer_groups.py compares them with vLLM's.

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "../examples/support/guarded.hpp"
#include "replay/group_replay.hpp"
#include "support/machine.hpp"
#include <CLI/CLI.hpp>

namespace {

int program(int count, char** words) {
    std::string file, model;
    bench::group_replay::options of;
    bool checks = false, no_ends = false, no_branches = false, drops = false, groups = false, apart = false;
    CLI::App app{
        "Replays a trace of tokens: prints the seconds it took, then prompt and reused tokens of each request."};
    app.add_option("--trace", file, "Requests as bench/compare/block_managers.py writes them")->required();
    app.add_option("--model", model, "A layout of bench/replay/group_replay.hpp")
        ->required()
        ->check(CLI::IsMember(bench::model_layouts()));
    app.add_option("--bytes", of.bytes, "Of pages and blocks")->required()->check(CLI::PositiveNumber);
    app.add_option("--in-flight", of.in_flight, "Requests that hold blocks at a time")->check(CLI::PositiveNumber);
    app.add_option("--batch", of.batch, "Tokens computed at a time (2048)")->check(CLI::PositiveNumber);
    app.add_flag("--drop-released", drops, "Free window blocks as soon as no query reads them");
    app.add_flag("--no-ends", no_ends, "No snapshot where the last page of a prompt ends");
    app.add_flag("--no-branches", no_branches, "No snapshot where a prompt parts from a cached one");
    app.add_option("--every", of.snapshots.every, "Pages between two snapshots (0: no such snapshots)");
    app.add_flag("--doubling", of.snapshots.doubling, "Snapshots 1, 2, 4, ... pages before the last one");
    app.add_option("--before-end", of.snapshots.before_end, "A snapshot so many tokens before the last one too (512)");
    app.add_flag("--keep-equal", apart, "Merge no equal pages");
    app.add_flag("--groups", groups, "Print the bytes that each group holds in the end, too");
    app.add_flag("--check", checks, "Check all invariants at the end");
    CLI11_PARSE(app, count, words);
    of.keep_released = !drops;
    of.merge_equal_pages = !apart;
    of.snapshots.ends = !no_ends;
    of.snapshots.branches = !no_branches;
    const auto requests = bench::read_requests(file);
    bench::group_replay to(bench::model_layouts().at(model), of);
    std::vector<std::size_t> reused;
    reused.reserve(requests.size());
    const bench::stopwatch watch;
    for (const bench::block_request& one : requests)
        reused.push_back(to.run(one));
    std::printf("%.9f\n", watch.seconds());
    for (std::size_t i = 0; i < requests.size(); ++i)
        std::printf("%zu %zu\n", requests[i].prompt, reused[i]);
    if (groups) {
        for (const kvcache::layer_group_stats& one : to.groups())
            std::printf("%s: %zu bytes, %zu blocks\n", one.name.c_str(), one.bytes, one.in_use + one.evictable);
        std::printf("%zu snapshots refused\n", to.refused());
    }
    return checks && !to.check() ? 1 : 0;
}

} // namespace

int main(int count, char** words) {
    return support::guarded("replay_groups", [&] { return program(count, words); });
}
