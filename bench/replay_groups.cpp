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
    bool checks = false;
    CLI::App app{
        "Replays a trace of tokens: prints the seconds it took, then prompt and reused tokens of each request."};
    app.add_option("--trace", file, "Requests as bench/compare/block_managers.py writes them")->required();
    app.add_option("--model", model, "A layout of bench/replay/group_replay.hpp")
        ->required()
        ->check(CLI::IsMember(bench::model_layouts()));
    app.add_option("--bytes", of.bytes, "Of pages and blocks")->required()->check(CLI::PositiveNumber);
    app.add_option("--in-flight", of.in_flight, "Requests that hold blocks at a time")->check(CLI::PositiveNumber);
    app.add_option("--batch", of.batch, "Tokens computed at a time (2048)")->check(CLI::PositiveNumber);
    app.add_flag("--check", checks, "Check all invariants at the end");
    CLI11_PARSE(app, count, words);
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
    return checks && !to.check() ? 1 : 0;
}

} // namespace

int main(int count, char** words) {
    return support::guarded("replay_groups", [&] { return program(count, words); });
}
