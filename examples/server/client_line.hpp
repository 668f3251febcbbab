// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <chrono>
#include <filesystem>
#include <string>
#include <system_error>

#include "exchange.hpp"
#include <httplib.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

namespace server {

/// The connection that a request came over. cpp-httplib 0.11 does not tell a handler its socket, so it is looked for
/// among those that are open, by the client's address and port. Of the thread that answers the request, and no longer
/// than it does.
class client_line {
public:
    explicit client_line(const httplib::Request& of) {
        std::error_code gone;
        for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd", gone)) {
            const std::string name = each.path().filename().string();
            int open = -1;
            std::from_chars(name.data(), name.data() + name.size(), open);
            if (leads_to(open, of)) {
                socket_ = open;
                return;
            }
        }
    }

    /// Whether the client has closed its end, as who hangs up does. False where the socket was not found.
    [[nodiscard]] bool closed() const {
        pollfd ask{.fd = socket_, .events = POLLRDHUP, .revents = 0};
        return socket_ >= 0 && poll(&ask, 1, 0) > 0 && (ask.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    }

private:
    [[nodiscard]] static bool leads_to(int open, const httplib::Request& of) {
        sockaddr_storage peer{};
        socklen_t size = sizeof peer;
        auto* at = reinterpret_cast<sockaddr*>(&peer);
        char host[NI_MAXHOST], port[NI_MAXSERV];
        return getpeername(open, at, &size) == 0 && (peer.ss_family == AF_INET || peer.ss_family == AF_INET6) &&
               getnameinfo(at, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) == 0 &&
               of.remote_addr == host && std::to_string(of.remote_port) == port;
    }

    int socket_ = -1;
};

/// Waits until a request is over. It is cancelled when its client hangs up.
inline void attend(exchange& talk, const httplib::Request& in) {
    constexpr std::chrono::milliseconds moment(100);
    if (talk.wait(moment))
        return;
    const client_line line(in);
    while (!talk.wait(moment))
        if (line.closed())
            talk.abandon();
}

} // namespace server
