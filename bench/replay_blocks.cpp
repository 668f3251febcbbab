// SPDX-License-Identifier: MIT
//
// Sends a trace of tokens through a cache without a model, and writes the reused tokens of each request:
// bench/compare/block_managers.py and radix_trees.py compare them with other engines'.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "../examples/support/guarded.hpp"
#include "replay/block_replay.hpp"
#include "support/machine.hpp"
#include <CLI/CLI.hpp>
#include <malloc.h>

namespace {

// What the program has allocated, in bytes.
double allocated() {
    const auto all = mallinfo2();
    return static_cast<double>(all.uordblks + all.hblkhd);
}

struct memory {
    std::size_t pages = 0, in_flight = 1;
    std::uint32_t page_tokens = 16;
    bool prints_bytes = false;
};

template <class Index>
void replay(const std::vector<bench::block_request>& requests, const memory& of) {
    const double before = allocated();
    bench::block_replay<Index> to(of.pages, of.in_flight, of.page_tokens);
    std::vector<std::size_t> reused;
    reused.reserve(requests.size());
    const bench::stopwatch watch;
    for (const bench::block_request& one : requests)
        reused.push_back(to.run(one));
    std::printf("%.9f\n", watch.seconds());
    if (of.prints_bytes)
        std::printf("%.1f\n", (allocated() - before) / static_cast<double>(of.pages * of.page_tokens));
    for (std::size_t i = 0; i < requests.size(); ++i)
        std::printf("%zu %zu\n", requests[i].prompt, reused[i]);
}

int program(int count, char** words) {
    std::string file;
    memory of;
    bool tokens = false;
    CLI::App app{
        "Replays a trace of tokens: prints the seconds it took, then prompt and reused tokens of each request."};
    app.add_option("--trace", file, "Requests as bench/compare/block_managers.py writes them")->required();
    app.add_option("--pages", of.pages, "Pages")->required()->check(CLI::PositiveNumber);
    app.add_option("--page-tokens", of.page_tokens, "Tokens of a page (16)")->check(CLI::PositiveNumber);
    app.add_option("--in-flight", of.in_flight, "Requests that hold pages at a time")->check(CLI::PositiveNumber);
    app.add_flag("--bytes", of.prints_bytes, "Print the bytes of the cache for each token, after the seconds");
    app.add_flag("--tokens", tokens, "Reuse parts of pages, too");
    CLI11_PARSE(app, count, words);
    const auto requests = bench::read_requests(file);
    if (tokens)
        replay<kvcache::index::radix>(requests, of);
    else
        replay<bench::full_pages>(requests, of);
    return 0;
}

} // namespace

int main(int count, char** words) {
    return support::guarded("replay_blocks", [&] { return program(count, words); });
}
