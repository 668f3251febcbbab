// SPDX-License-Identifier: MIT
//
// Changes bytes of an LMDB file, in four bytes of input each: page, offset (two bytes), value. A file that passes the
// check is used through LMDB, which must not crash, loop, or leave a file that fails the check.
//
//     clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -Iinclude tests/fuzz/lmdb.cpp -o fuzz -llmdb
//     -lxxhash
//     ./fuzz -max_len=64 -max_total_time=60

#include <kvcache/testing/tier_conformance.hpp>
#include <kvcache/tier/lmdb.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

namespace {

namespace kv = kvcache;
namespace conformance = kvcache::testing::detail;
constexpr std::size_t page_bytes = 4096;

kv::tier::lmdb<> small(const std::filesystem::path& directory) {
    return {.directory = directory,
            .bytes = std::size_t{2} << 20,
            .records = 120,
            .queue_bytes = std::size_t{1} << 20,
            .sync = kv::tier::sync_policy::by_the_system,
            .gather = std::chrono::milliseconds(0)};
}

void require(bool holds) {
    if (!holds)
        std::abort();
}

// A directory, and the pages of a sound store that LMDB itself reads.
struct store {
    std::filesystem::path directory;
    std::string bytes;
    std::vector<std::size_t> pages;

    store() {
        std::string pattern = (std::filesystem::temp_directory_path() / "kvcache-fuzz-XXXXXX").string();
        require(::mkdtemp(pattern.data()) != nullptr);
        directory = pattern;
        {
            auto tier = small(directory).open();
            for (std::uint64_t n = 0; n < 160; ++n) {
                require(conformance::put_record(tier, n));
                require(n % 20 != 0 || tier.flush());
            }
            require(tier.flush().has_value());
        }
        std::ifstream in(directory / "data.mdb", std::ios::binary);
        bytes.assign(std::istreambuf_iterator<char>(in), {});
        for (std::size_t at = 0; at < bytes.size(); at += page_bytes)
            if (const char type = bytes[at + 10]; type == 1 || type == 2 || type == 8)
                pages.push_back(at);
        require(!pages.empty());
    }
    ~store() {
        std::error_code ignored;
        std::filesystem::remove_all(directory, ignored);
    }
};

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const store sound;
    std::string bytes = sound.bytes;
    for (std::size_t i = 0; i + 4 <= size; i += 4) {
        const std::size_t page = sound.pages[data[i] % sound.pages.size()];
        const std::size_t at = data[i + 1] + std::size_t{data[i + 2]} * 256;
        bytes[page + at % page_bytes] = static_cast<char>(data[i + 3]);
    }
    const auto file = sound.directory / "data.mdb";
    for (const auto& old : std::filesystem::directory_iterator(sound.directory))
        std::filesystem::remove(old);
    std::ofstream(file, std::ios::binary) << bytes;
    {
        auto tier = small(sound.directory).open();
        if (!tier.status()) { // of another format
            require(tier.status().error().code == kv::error_code::unsupported);
            return 0;
        }
        for (std::uint64_t n = 40; n < 200; n += 5)
            static_cast<void>(conformance::read_record(tier, n));
        for (std::uint64_t n = 150; n < 190; n += 3)
            require(conformance::put_record(tier, n));
        static_cast<void>(tier.erase(conformance::tier_name(155).name));
        require(tier.flush().has_value());
    }
    auto again = small(sound.directory).open();
    require(again.status().has_value() && !again.damage());
    return 0;
}
