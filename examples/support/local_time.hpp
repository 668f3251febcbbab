// SPDX-License-Identifier: MIT
#pragma once

#include <ctime>

namespace support {

/// Returns the current date and time of the machine's time zone.
[[nodiscard]] inline std::tm local_time() {
    const std::time_t now = std::time(nullptr);
    std::tm made{};
    ::localtime_r(&now, &made);
    return made;
}

} // namespace support
