// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/model/load.hpp>
#include <kvcache/text/tokenizer.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include <unistd.h>

namespace support {

/// Milliseconds since its construction, on the steady clock.
class stopwatch {
public:
    [[nodiscard]] double milliseconds() const {
        return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began_).count();
    }

private:
    std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

/// A progress bar on standard error, for work that takes over a second; shown on a terminal only.
class progress_bar {
public:
    explicit progress_bar(std::string_view what) : what_(what), watched_(isatty(STDERR_FILENO) != 0) {}
    progress_bar(const progress_bar&) = delete;
    progress_bar& operator=(const progress_bar&) = delete;
    ~progress_bar() {
        if (shown_)
            std::fputs("\r\033[K", stderr);
    }

    void operator()(std::size_t done, std::size_t of) {
        if (!watched_ || of == 0 || (!shown_ && since_.milliseconds() < 1000.0))
            return;
        constexpr std::size_t width = 40;
        const std::string bar(done * width / of, '#');
        std::fprintf(stderr, "\r%s [%-40s] %zu/%zu", what_.c_str(), bar.c_str(), done, of);
        shown_ = true;
    }

private:
    std::string what_;
    bool watched_;
    bool shown_ = false;
    stopwatch since_;
};

/// Reports an error on standard error and returns the exit status for it.
inline int report(std::string_view program, const kvcache::error& problem) {
    std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(program.size()), program.data(),
                 problem.message.find(problem.field) != std::string::npos
                     ? problem.message.c_str()
                     : (problem.field + ": " + problem.message).c_str());
    return 1;
}

/// Opens a model directory or a GGUF file with a progress bar. `keep` stores the packed weights next to it for the next
/// start; `int8` quantizes them. A packed file that cannot be used or written is reported on standard error.
inline kvcache::result<kvcache::loaded_model> open_model(const std::filesystem::path& directory, bool keep, bool int8) {
    progress_bar bar("packing weights");
    kvcache::load_options options;
    options.int8 = int8;
    if (keep)
        options.packed = kvcache::packed_path(directory);
    auto loaded = kvcache::load_model(directory, options, [&](std::size_t done, std::size_t of) { bar(done, of); });
    if (loaded)
        for (const auto& problem : {loaded->report.refused, loaded->report.not_kept})
            if (problem)
                std::fprintf(stderr, "packed weights: %s\n", problem->message.c_str());
    return loaded;
}

} // namespace support
