// SPDX-License-Identifier: MIT
#include <kvcache/model/packed_file.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <catch2/catch.hpp>
#include <model/huggingface/files.hpp>

namespace kv = kvcache;

namespace {

constexpr std::size_t header = 4096;

/// A file of packed weights, as written.
class sample {
public:
    sample() {
        kv::thread_pool alone;
        REQUIRE(kv::packed_file::write(path(), origin, testing_files::bytes_of(payload), alone));
        std::ifstream in(path(), std::ios::binary);
        whole = {std::istreambuf_iterator<char>(in), {}};
    }

    [[nodiscard]] std::filesystem::path path() const { return directory.path() / "packed"; }

    /// Field of the error for these bytes; "" if they are accepted, with the payload.
    [[nodiscard]] std::string refused(const std::string& bytes) const {
        directory.write("packed", bytes);
        kv::thread_pool alone;
        const auto opened = kv::packed_file::open(path(), origin, payload.size());
        if (!opened)
            return opened.error().field;
        const auto sound = opened->check_payload(alone);
        return sound ? "" : sound.error().field;
    }

    testing_files::temporary_directory directory;
    kv::packed_origin origin = {.config = {1, 2}, .layout = {3, 4}, .weights = {5, 6}, .files = {7, 8}};
    std::string payload = std::string(640, 'p') + "q";
    std::string whole;
};

void put(std::string& bytes, std::size_t word, std::uint64_t value) {
    std::memcpy(bytes.data() + 8 * word, &value, sizeof value);
}

/// Recomputes the checksum of a modified header.
std::string sealed(std::string bytes) {
    const auto sum = kv::digest_builder().bytes(testing_files::bytes_of(bytes).first(header - 16)).finish();
    put(bytes, header / 8 - 2, sum.low);
    put(bytes, header / 8 - 1, sum.high);
    return bytes;
}

} // namespace

TEST_CASE("packed weights come back as they were written, and outlive the file's name") {
    const sample s;
    kv::thread_pool alone;
    auto opened = kv::packed_file::open(s.path(), s.origin, s.payload.size());
    REQUIRE(opened);
    CHECK(opened->check_payload(alone));
    CHECK(opened->origin().weights == s.origin.weights);
    CHECK(opened->origin().files == s.origin.files);
    const auto payload = opened->payload();
    opened = kv::error{};
    std::filesystem::remove(s.path());
    CHECK(reinterpret_cast<std::uintptr_t>(payload.get()) % 64 == 0);
    CHECK(std::memcmp(payload.get(), s.payload.data(), s.payload.size()) == 0);
    CHECK(kv::packed_file::open(s.path(), s.origin, s.payload.size()).error().code == kv::error_code::not_found);
}

TEST_CASE("every flipped bit of packed weights is caught, and the error names where") {
    const sample s;
    for (std::size_t at = 0; at < s.whole.size(); ++at)
        for (const unsigned bit : {1u << at % 8, 255u}) {
            std::string flipped = s.whole;
            flipped[at] = static_cast<char>(static_cast<unsigned char>(flipped[at]) ^ bit);
            const std::string field = s.refused(flipped);
            INFO("byte " << at);
            REQUIRE(field == (at < 8        ? "magic"
                              : at < 16     ? "version"
                              : at < 24     ? "byte_order"
                              : at < header ? "header"
                                            : "payload"));
        }
    CHECK(s.refused(s.whole).empty());
}

TEST_CASE("every truncation of packed weights is refused, and so is a longer file") {
    const sample s;
    for (std::size_t size = 0; size < s.whole.size(); ++size) {
        const std::string field = s.refused(s.whole.substr(0, size));
        INFO(size << " bytes");
        REQUIRE(field == (size < header ? "header" : "payload"));
    }
    CHECK(s.refused(s.whole + "x") == "payload");
}

TEST_CASE("sound packed weights of something else are refused by what differs") {
    const sample s;
    const auto with = [&](std::size_t word, std::uint64_t value) {
        std::string bytes = s.whole;
        put(bytes, word, value);
        return s.refused(sealed(bytes));
    };
    CHECK(s.refused(sealed(s.whole)).empty());
    CHECK(with(1, 0) == "version"); // older
    CHECK(with(1, kv::packed_file::version + 1) == "version");
    CHECK(with(3, 32) == "strip_width");
    CHECK(with(4, 0) == "numeric_contract");
    CHECK(with(5, 1) == "payload_bytes");
    CHECK(with(6, 1) == "reserved");
    CHECK(with(9, 9) == "config");
    CHECK(with(12, 9) == "layout");
    CHECK(s.refused("GGUF" + std::string(8000, '\0')) == "magic");
    CHECK(s.refused(std::string(8000, '\0')) == "magic");
}

TEST_CASE("a file that shrinks under its mapping is refused before its payload is read") {
    const sample s;
    kv::thread_pool alone;
    const auto opened = kv::packed_file::open(s.path(), s.origin, s.payload.size());
    REQUIRE(opened);
    std::filesystem::resize_file(s.path(), header);
    CHECK(opened->check_payload(alone).error().code == kv::error_code::truncated);
}
