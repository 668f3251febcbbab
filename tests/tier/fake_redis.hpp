// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/resp.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace testing_redis {

/// A server on loopback that answers every command with scripted bytes, which need not be a valid reply, or closes
/// the connection. It counts connections and commands.
class fake {
public:
    using command = std::vector<std::string>;
    using script = std::function<std::optional<std::string>(const command&)>;

    explicit fake(script answers) : answers_(std::move(answers)) {
        listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in at{};
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof at;
        REQUIRE(::bind(listener_, reinterpret_cast<sockaddr*>(&at), size) == 0);
        REQUIRE(::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size) == 0);
        REQUIRE(::listen(listener_, 64) == 0);
        port = ntohs(at.sin_port);
        thread_ = std::thread([this] { run(); });
    }
    ~fake() {
        stop_ = true;
        ::shutdown(listener_, SHUT_RDWR);
        thread_.join();
        ::close(listener_);
    }
    fake(const fake&) = delete;
    fake& operator=(const fake&) = delete;

    /// Returns the reply of a server without a cluster to a handshake command; none for other commands.
    static std::optional<std::string> greeting(const command& said) {
        if (said.front() == "PING")
            return "+PONG\r\n";
        if (said.front() == "CLUSTER")
            return "-ERR This instance has cluster support disabled\r\n";
        return std::nullopt;
    }

    std::uint16_t port = 0;
    std::atomic<bool> hang_up{false}; ///< Close the connection after the next reply.
    std::atomic<std::uint64_t> connections{0}, commands{0};

private:
    struct peer {
        int socket;
        std::string came = {};
    };

    // Answers the complete commands. Returns false if the connection is to be closed.
    bool answer(peer& one) {
        for (;;) {
            const auto read = kvcache::tier::read_resp(std::as_bytes(std::span(one.came)), {});
            if (read.now != kvcache::tier::resp_read::state::whole)
                return read.now == kvcache::tier::resp_read::state::more;
            command said;
            for (const kvcache::tier::resp_value& word : read.value.items)
                said.emplace_back(word.words);
            ++commands;
            const auto reply = answers_(said);
            const bool closes = hang_up.exchange(false);
            one.came.erase(0, read.used);
            if (!reply)
                return false;
            for (std::size_t sent = 0; sent < reply->size();) {
                const auto now = ::send(one.socket, reply->data() + sent, reply->size() - sent, MSG_NOSIGNAL);
                if (now <= 0)
                    return false;
                sent += static_cast<std::size_t>(now);
            }
            if (closes)
                return false;
        }
    }

    void run() {
        std::vector<peer> peers;
        while (!stop_) {
            std::vector<pollfd> ready = {{listener_, POLLIN, 0}};
            for (const peer& one : peers)
                ready.push_back({one.socket, POLLIN, 0});
            if (::poll(ready.data(), ready.size(), 50) <= 0)
                continue;
            for (std::size_t i = peers.size(); i-- > 0;) {
                if (ready[i + 1].revents == 0)
                    continue;
                char bytes[65536];
                const auto came = ::recv(peers[i].socket, bytes, sizeof bytes, 0);
                if (came > 0)
                    peers[i].came.append(bytes, static_cast<std::size_t>(came));
                if (came <= 0 || !answer(peers[i])) {
                    ::close(peers[i].socket);
                    peers.erase(peers.begin() + static_cast<std::ptrdiff_t>(i));
                }
            }
            if (ready.front().revents != 0 && !stop_) {
                const int made = ::accept(listener_, nullptr, nullptr);
                if (made >= 0) {
                    const int yes = 1; // otherwise a reply waits for the acknowledgment of the previous one
                    ::setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
                    ++connections;
                    peers.push_back({made});
                }
            }
        }
        for (const peer& one : peers)
            ::close(one.socket);
    }

    script answers_;
    int listener_ = -1;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

} // namespace testing_redis
