// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/compressed.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/machine.hpp"
#include "real_records.hpp"
#include <zstd.h>

namespace bench {

/// zstd, as a code of records.
struct zstd_frames {
    int level = 1;
    [[nodiscard]] std::string name() const { return "zstd " + std::to_string(level); }
    [[nodiscard]] std::vector<std::byte> encode(std::span<const std::byte> bytes) const {
        std::vector<std::byte> made(ZSTD_compressBound(bytes.size()));
        const std::size_t taken = ZSTD_compress(made.data(), made.size(), bytes.data(), bytes.size(), level);
        if (ZSTD_isError(taken) != 0)
            throw std::bad_alloc();
        made.resize(taken);
        return made;
    }
    [[nodiscard]] bool decode(std::span<const std::byte> code, std::vector<std::byte>& to) const {
        const auto size = ZSTD_getFrameContentSize(code.data(), code.size());
        if (size > code.size() * 1024)
            return false;
        to.resize(size);
        return ZSTD_decompress(to.data(), to.size(), code.data(), code.size()) == size;
    }
};

/// What a code makes of the records of one codec: the best of several rounds, on one thread.
struct code_cost {
    std::string codec, code;
    std::size_t record_bytes = 0;
    double times_smaller = 0.0;
    double encode_gbps = 0.0, decode_gbps = 0.0; ///< 10^9 uncompressed bytes a second.

    /// The rate of a link, in 10^9 bytes a second, below which records come sooner compressed: reading takes 1 / rate
    /// a byte, and compressed 1 / (times_smaller * rate) + 1 / decode_gbps.
    [[nodiscard]] double pays_below() const { return std::max(0.0, (1.0 - 1.0 / times_smaller) * decode_gbps); }
};

/// Throws: runtime_error if a record does not come back.
template <class Code>
[[nodiscard]] code_cost cost_of(const Code& code, const std::string& codec,
                                const std::vector<std::vector<std::byte>>& records, std::size_t rounds) {
    double bytes = 0.0, kept = 0.0, encoding = 1e9, decoding = 1e9;
    std::vector<std::vector<std::byte>> codes(records.size());
    std::vector<std::byte> back;
    for (std::size_t round = 0; round < rounds; ++round) {
        const stopwatch to;
        for (std::size_t i = 0; i < records.size(); ++i)
            codes[i] = code.encode(records[i]);
        encoding = std::min(encoding, to.seconds());
        double spent = 0.0;
        bytes = kept = 0.0;
        for (std::size_t i = 0; i < records.size(); ++i) {
            const stopwatch from;
            const bool fine = code.decode(codes[i], back);
            spent += from.seconds();
            if (!fine || back != records[i])
                throw std::runtime_error(code.name() + ": a record does not come back");
            bytes += static_cast<double>(records[i].size());
            kept += static_cast<double>(codes[i].size());
        }
        decoding = std::min(decoding, spent);
    }
    return {codec, code.name(), records[0].size(), bytes / kept, 1e-9 * bytes / encoding, 1e-9 * bytes / decoding};
}

/// Measures each code on the records of each codec.
[[nodiscard]] inline std::vector<code_cost> code_costs(const model_and_text& from, std::size_t rounds) {
    std::vector<code_cost> rows;
    for_records(from, [&](const std::string& codec, const std::vector<std::vector<std::byte>>& records) {
        const auto add = [&](const auto& code) {
            const code_cost row = cost_of(code, codec, records, rounds);
            std::printf("| `%s` | %zu | `%s` | %.3f | %.2f | %.2f | %.2f |\n", codec.c_str(), row.record_bytes,
                        row.code.c_str(), row.times_smaller, row.encode_gbps, row.decode_gbps, row.pays_below());
            std::fflush(stdout);
            rows.push_back(row);
        };
        add(zstd_frames{1});
        add(kvcache::tier::shuffled_huffman{});
    });
    return rows;
}

} // namespace bench
