// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>

#include <cstddef>
#include <fstream>
#include <ios>
#include <string>

namespace support {

/// Reads a file of at most a MiB that the option `flag` names: a longer one, such as a device without an end, is
/// refused. Errors: io.
inline kvcache::result<std::string> read_small_file(const std::string& flag, const std::string& file) {
    constexpr std::size_t most = 1 << 20;
    std::ifstream in(file, std::ios::binary);
    std::string text(most + 1, '\0');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(in.gcount()));
    if (in.bad() || !in.eof())
        return kvcache::error{kvcache::error_code::io, flag,
                              flag + ": " + file + (text.size() > most ? " has more than a MiB" : " cannot be read")};
    return text;
}

} // namespace support
