// SPDX-License-Identifier: MIT
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <system_error>

#include "connection.hpp"
#include <httplib.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace server {

/// cpp-httplib's server with our own connections, because those of the library poll a hundred times a second each.
class web : public httplib::Server {
public:
    /// Throws: system_error.
    web() : ends_(::eventfd(0, EFD_CLOEXEC)) {
        if (ends_ < 0)
            throw std::system_error(errno, std::generic_category(), "eventfd");
    }
    web(const web&) = delete;
    web& operator=(const web&) = delete;
    ~web() override { ::close(ends_); }

    /// Accepts no further connections and waits for no client; running answers are sent.
    void end() {
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = ::write(ends_, &one, sizeof one);
        stop();
    }

private:
    bool process_and_close_socket(int open) override {
        using std::chrono::seconds;
        connection client(open, ends_, {.read = seconds(read_timeout_sec_), .write = seconds(write_timeout_sec_)});
        bool done = false;
        for (std::size_t left = keep_alive_max_count_; left > 0 && client.next(seconds(keep_alive_timeout_sec_));
             --left) {
            bool closed = false;
            client.begin_request();
            done = process_request(client, left == 1, closed, nullptr);
            if (!done || closed || client.must_close())
                break;
        }
        return done;
    }

    int ends_; // readable when the server ends
};

} // namespace server
