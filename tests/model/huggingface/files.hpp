// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>

namespace testing_files {

/// A temporary directory that is deleted with its contents at the end of the scope.
class temporary_directory {
public:
    temporary_directory() {
        std::random_device seed;
        do
            path_ = std::filesystem::temp_directory_path() / ("kvcache-test-" + std::to_string(seed()));
        while (!std::filesystem::create_directory(path_));
    }
    temporary_directory(const temporary_directory&) = delete;
    temporary_directory& operator=(const temporary_directory&) = delete;
    ~temporary_directory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }

    void write(const std::string& name, std::string_view bytes) const {
        std::ofstream out(path_ / name, std::ios::binary);
        out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        if (!out)
            throw std::runtime_error("cannot write " + name);
    }

private:
    std::filesystem::path path_;
};

/// The file [ 8 bytes of length ][ header ][ buffer ], with any header.
[[nodiscard]] inline std::string safetensors(std::string_view header, std::string_view buffer) {
    std::string file;
    for (std::size_t i = 0; i != 8; ++i)
        file += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * i) & 0xFF);
    return file.append(header).append(buffer);
}

[[nodiscard]] inline std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

/// Returns whether external test data is present, and prints a line if not. A test without it returns early.
[[nodiscard]] inline bool has_test_data(const std::filesystem::path& file) {
    if (std::filesystem::exists(file))
        return true;
    std::cout << "SKIPPED: " << file.string() << " is not there\n";
    return false;
}

} // namespace testing_files
