// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../../bench/traces/byte_source.hpp"
#include "support/folders.hpp"
#include <zlib.h>
#include <zstd.h>

namespace trace_tests {

namespace kv = kvcache;

/// Returns a trace from the external data, or prints that it is missing.
inline std::optional<std::filesystem::path> shared_trace(const std::string& name) {
    const auto path = test_folders::data() / "traces" / name;
    if (std::filesystem::exists(path))
        return path;
    std::cout << "SKIPPED: " << path.string() << " is missing\n";
    return std::nullopt;
}

inline std::string gzipped(const std::string& text) {
    z_stream stream = {};
    deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
    std::string out(deflateBound(&stream, text.size()) + 64, '\0');
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    stream.avail_in = static_cast<uInt>(text.size());
    stream.next_out = reinterpret_cast<Bytef*>(out.data());
    stream.avail_out = static_cast<uInt>(out.size());
    deflate(&stream, Z_FINISH);
    out.resize(stream.total_out);
    deflateEnd(&stream);
    return out;
}

inline std::string zstd_compressed(const std::string& text) {
    std::string out(ZSTD_compressBound(text.size()), '\0');
    out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
    return out;
}

/// Returns all records of a text, and the error that ended them, if there was one.
template <class Trace, class Record>
std::pair<std::vector<Record>, std::optional<kv::error>> read_all(const std::string& text) {
    Trace trace(bench::byte_source::over(text, "t"));
    std::vector<Record> records;
    for (Record record;;) {
        const auto more = trace.next(record);
        if (!more)
            return {records, more.error()};
        if (!*more)
            return {records, std::nullopt};
        records.push_back(record);
    }
}

/// Returns the field and the message of the error that ends the reading.
template <class Trace, class Record>
std::string refusal(const std::string& text) {
    const auto [records, error] = read_all<Trace, Record>(text);
    return error ? error->field + " | " + error->message : "none";
}

} // namespace trace_tests
