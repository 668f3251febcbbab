// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/formats/json.hpp>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "../support/guarded.hpp"
#include "measured.hpp"
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

namespace load {

using kvcache::json;

/// Returns the measurements of a request as a line of JSON.
[[nodiscard]] inline std::string line_of(std::size_t request, const measured& one) {
    const json made{{"request", request},
                    {"due", one.due},
                    {"sent", one.sent},
                    {"ended", one.ended},
                    {"tokens", one.tokens},
                    {"prompt_tokens", one.prompt_tokens},
                    {"cached_tokens", one.cached_tokens},
                    {"output_tokens", one.output_tokens},
                    {"text", one.text},
                    {"failure", one.failure},
                    {"session", one.session},
                    {"turn", one.turn}};
    return made.dump(-1, ' ', false, json::error_handler_t::replace) + '\n';
}

/// Reads such a line, which a process of this program wrote. Returns the request's number.
[[nodiscard]] inline std::size_t read_line(std::string_view line, measured& to) {
    const json read = json::parse(line);
    to = {.due = read["due"].get<double>(),
          .sent = read["sent"].get<double>(),
          .ended = read["ended"].get<double>(),
          .tokens = read["tokens"].get<std::vector<double>>(),
          .prompt_tokens = read["prompt_tokens"].get<std::size_t>(),
          .cached_tokens = read["cached_tokens"].get<std::size_t>(),
          .output_tokens = read["output_tokens"].get<std::size_t>(),
          .text = read["text"].get<std::string>(),
          .failure = read["failure"].get<std::string>(),
          .session = read["session"].get<std::size_t>(),
          .turn = read["turn"].get<std::size_t>()};
    return read["request"].get<std::size_t>();
}

/// Runs `body(process, report)` in `count` processes, and passes what they report to `take(request, measured)`, in the
/// calling thread. `report(request, measured)` is for any thread of a process. Returns when all have ended. Throws:
/// system_error, if a process cannot be started. Requires: the calling process has no other thread.
template <class Body, class Take>
void run_processes(std::size_t count, Body body, Take take) {
    struct child {
        pid_t id = -1;
        int from = -1;
        std::string rest = {};
    };
    std::vector<child> all(count);
    for (std::size_t process = 0; process < count; ++process) {
        std::array<int, 2> ends{};
        if (::pipe(ends.data()) != 0)
            throw std::system_error(errno, std::generic_category(), "pipe");
        all[process] = {.id = ::fork(), .from = ends[0]};
        if (all[process].id < 0)
            throw std::system_error(errno, std::generic_category(), "fork");
        if (all[process].id == 0) {
            std::mutex lock;
            const auto report = [&](std::size_t request, const measured& one) {
                const std::string line = line_of(request, one);
                const std::lock_guard guard(lock);
                for (std::size_t done = 0; done < line.size();) {
                    const ssize_t put = ::write(ends[1], line.data() + done, line.size() - done);
                    if (put < 0 && errno != EINTR)
                        ::_exit(1);
                    done += put < 0 ? 0 : static_cast<std::size_t>(put);
                }
            };
            ::_exit(support::guarded("load", [&] {
                body(process, report);
                return 0;
            }));
        }
        ::close(ends[1]);
    }
    for (std::size_t open = count; open > 0;) {
        std::vector<pollfd> asks;
        for (const child& each : all)
            asks.push_back({.fd = each.from, .events = POLLIN, .revents = 0}); // -1 is left out
        (void)::poll(asks.data(), asks.size(), -1);
        for (std::size_t i = 0; i < count; ++i) {
            if (asks[i].revents == 0)
                continue;
            std::array<char, 65536> part;
            const ssize_t got = ::read(all[i].from, part.data(), part.size());
            if (got < 0 && errno == EINTR)
                continue;
            if (got <= 0) {
                ::close(std::exchange(all[i].from, -1));
                ::waitpid(all[i].id, nullptr, 0);
                --open;
                continue;
            }
            all[i].rest.append(part.data(), static_cast<std::size_t>(got));
            for (std::size_t end = all[i].rest.find('\n'); end != std::string::npos; end = all[i].rest.find('\n')) {
                measured one;
                const std::size_t request = read_line(std::string_view(all[i].rest).substr(0, end), one);
                take(request, std::move(one));
                all[i].rest.erase(0, end + 1);
            }
        }
    }
}

} // namespace load
