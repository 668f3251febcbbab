// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace load {

/// The measurements of a request. Times are in seconds since the start of the run.
struct measured {
    double due = 0.0; ///< Scheduled time of sending.
    double sent = 0.0;
    double ended = 0.0;
    std::vector<double> tokens = {}; ///< Arrival time of each piece of text.
    std::size_t prompt_tokens = 0;
    std::size_t cached_tokens = 0;
    std::size_t output_tokens = 0;
    std::string text = {};
    std::string failure = {}; ///< A failure label; empty on success.
    std::size_t session = 0;
    std::size_t turn = 0; ///< Index in its conversation.
};

} // namespace load
