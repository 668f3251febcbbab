// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <string>
#include <utility>

#include <unistd.h>

namespace bench {

/// A progress bar on standard error while a trace is read; disabled if standard error is not a terminal.
class progress {
public:
    explicit progress(std::string what) : what_(std::move(what)), shown_(isatty(STDERR_FILENO) != 0) {}
    progress(const progress&) = delete;
    progress& operator=(const progress&) = delete;
    ~progress() {
        if (shown_)
            std::fputs("\r\033[K", stderr);
    }

    /// Updates the bar. `share` is from 0 to 1.
    void show(double share) {
        const int percent = static_cast<int>(share * 100.0);
        if (!shown_ || percent == percent_)
            return;
        percent_ = percent;
        constexpr int width = 40;
        const std::string done(static_cast<std::size_t>(percent * width / 100), '#');
        std::fprintf(stderr, "\r\033[K%s [%-*s] %d %%", what_.c_str(), width, done.c_str(), percent);
        std::fflush(stderr);
    }

private:
    std::string what_;
    bool shown_;
    int percent_ = -1;
};

} // namespace bench
