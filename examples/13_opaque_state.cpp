// SPDX-License-Identifier: MIT
// A host whose engine shows nothing of its memory: it serialises what it keeps for a run of tokens, and reads that
// back. The cache keeps these blobs as pages, and finds those that a prompt begins with. test:
#include <kvcache/cache.hpp>
#include <kvcache/cache/blobs.hpp>
#include <kvcache/codec/opaque.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "support/guarded.hpp"

namespace {

constexpr std::uint32_t page_tokens = 16;

/// An engine of another project: it takes tokens one by one, and can serialise what it keeps for some of them.
class engine {
public:
    void run(kvcache::token_id token) {
        const std::uint64_t before = memory_.empty() ? 1 : memory_.back();
        memory_.push_back(before * 6364136223846793005u + static_cast<std::uint64_t>(kvcache::index_of(token)) + 1);
        ++computed_;
    }
    [[nodiscard]] std::size_t computed() const { return computed_; }
    [[nodiscard]] std::uint64_t answer() const { return memory_.back(); }

    /// What it keeps for the tokens from `first` on.
    [[nodiscard]] std::vector<std::byte> serialise(std::size_t first) const {
        std::vector<std::byte> bytes((memory_.size() - first) * sizeof(std::uint64_t));
        std::memcpy(bytes.data(), memory_.data() + first, bytes.size());
        return bytes;
    }
    void append(std::span<const std::byte> bytes) {
        const std::size_t before = memory_.size();
        memory_.resize(before + bytes.size() / sizeof(std::uint64_t));
        std::memcpy(memory_.data() + before, bytes.data(), bytes.size());
    }

private:
    std::vector<std::uint64_t> memory_;
    std::size_t computed_ = 0;
};

using cache = kvcache::cache<kvcache::codec::opaque>;

/// Runs a prompt in a new engine: pages that are known are read, the others are kept for later prompts.
std::uint64_t ask(cache& kept, std::span<const kvcache::token_id> prompt, std::size_t& computed) {
    engine runs;
    auto sequence = kept.open(prompt); // whole pages, and not the last token
    for (std::size_t page = 0; page < sequence.table().size(); ++page)
        runs.append(kvcache::blob_of(kept, sequence, page));
    const std::size_t known = sequence.size(), whole = prompt.size() / page_tokens * page_tokens;
    auto lease = kept.reserve(sequence, whole - known); // without room nothing is kept
    for (std::size_t at = known; at < prompt.size(); ++at) {
        runs.run(prompt[at]);
        if (!lease || at >= whole || (at + 1) % page_tokens != 0)
            continue;
        const auto state = runs.serialise(at + 1 - page_tokens);
        const auto to = kvcache::blob_for(*lease, (at - known) / page_tokens, state.size());
        std::copy(state.begin(), state.end(), to.begin());
    }
    if (lease)
        lease->commit(prompt.subspan(known, lease->rows()));
    computed = runs.computed();
    return runs.answer();
}

int program() {
    const kvcache::codec::opaque codec{.blob_bytes = page_tokens * sizeof(std::uint64_t), .layout = "engine 1"};
    const kvcache::cache_config config{.shape = {1, 1, 1, page_tokens}, .limit = {.bytes = 64 << 10}};
    auto kept = kvcache::make_cache(config, codec);
    std::vector<kvcache::token_id> prompt;
    for (std::uint32_t i = 0; i < 100; ++i)
        prompt.push_back(kvcache::token_id(i * i % 71));
    bool right = true;
    for (const std::size_t length : {40u, 40u, 100u, 97u}) {
        auto alone = kvcache::make_cache(config, codec);
        const auto some = std::span(prompt).first(length);
        std::size_t computed = 0, all = 0;
        right = ask(kept, some, computed) == ask(alone, some, all) && right;
        std::cout << length << " tokens, " << computed << " computed: " << kept.lookup(some).explain() << '\n';
    }
    std::cout << (right ? "all answers are those of prompts that were computed alone\n" : "ANSWERS DIFFER\n");
    return right ? 0 : 1;
}

} // namespace

int main() {
    return support::guarded("13_opaque_state", [&] { return program(); });
}
