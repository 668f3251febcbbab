// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>

#include <memory>
#include <string>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace server {

/// A listening socket.
class listener {
public:
    /// Listens at a name or an address, and a port; 0: any that is free. Errors: io, if that cannot be had.
    [[nodiscard]] static kvcache::result<listener> open(const std::string& host, int port) {
        addrinfo wanted{};
        wanted.ai_flags = AI_PASSIVE;
        wanted.ai_socktype = SOCK_STREAM;
        addrinfo* found = nullptr;
        if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) == 0) {
            const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
            for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
                listener made(
                    ::socket(each->ai_family, each->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, each->ai_protocol));
                const int yes = 1;
                if (made.socket_ >= 0 && ::setsockopt(made.socket_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                    ::bind(made.socket_, each->ai_addr, each->ai_addrlen) == 0 && ::listen(made.socket_, 1024) == 0)
                    return made;
            }
        }
        return kvcache::error{kvcache::error_code::io, "--port",
                              "--port: " + host + ":" + std::to_string(port) + " cannot be had"};
    }
    listener(listener&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
    listener& operator=(listener&&) = delete;
    ~listener() {
        if (socket_ >= 0)
            ::close(socket_);
    }

    [[nodiscard]] int socket() const noexcept { return socket_; }
    [[nodiscard]] int port() const {
        sockaddr_storage at{};
        socklen_t size = sizeof at;
        if (::getsockname(socket_, reinterpret_cast<sockaddr*>(&at), &size) != 0)
            return -1;
        return ntohs(at.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(at).sin6_port
                                              : reinterpret_cast<const sockaddr_in&>(at).sin_port);
    }

private:
    explicit listener(int open) : socket_(open) {}

    int socket_;
};

} // namespace server
