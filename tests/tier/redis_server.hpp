// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/redis_link.hpp>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "model/huggingface/files.hpp"
#include <arpa/inet.h>
#include <catch2/catch.hpp>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace testing_redis {

/// Returns whether redis-server is missing; the test then prints that and returns.
inline bool missing() {
    static const bool there = std::system("command -v redis-server >/dev/null 2>&1") == 0;
    if (!there)
        WARN("SKIPPED: there is no redis-server");
    return !there;
}

/// Returns a loopback port on which nothing listens.
inline std::uint16_t free_port() {
    const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    REQUIRE(::bind(socket, reinterpret_cast<sockaddr*>(&at), size) == 0);
    REQUIRE(::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &size) == 0);
    ::close(socket);
    return ntohs(at.sin_port);
}

/// Waits at most ten seconds until a condition holds.
template <class Holds>
bool soon(Holds holds) {
    for (int i = 0; i < 2000; ++i) {
        if (holds())
            return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
}

/// A server on loopback that ends with the test.
class server {
public:
    explicit server(std::vector<std::string> options = {}, std::uint16_t port = free_port(), std::string password = {})
        : port_(port), options_(std::move(options)), password_(std::move(password)) {
        start();
    }
    ~server() { kill(); }
    server(const server&) = delete;
    server& operator=(const server&) = delete;

    [[nodiscard]] std::uint16_t port() const { return port_; }
    void signal(int what) const { ::kill(process_, what); }

    void kill() {
        if (process_ <= 0)
            return;
        ::kill(process_, SIGKILL);
        ::waitpid(process_, nullptr, 0);
        process_ = 0;
    }

    void start() {
        std::vector<std::string> words = {"redis-server",
                                          "--port",
                                          std::to_string(port_),
                                          "--bind",
                                          "127.0.0.1",
                                          "--save",
                                          "",
                                          "--appendonly",
                                          "no",
                                          "--dir",
                                          directory_.path().string(),
                                          "--logfile",
                                          "log"};
        words.insert(words.end(), options_.begin(), options_.end());
        std::vector<char*> arguments;
        for (std::string& one : words)
            arguments.push_back(one.data());
        arguments.push_back(nullptr);
        process_ = ::fork();
        REQUIRE(process_ >= 0);
        if (process_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            const int nowhere = ::open("/dev/null", O_RDWR);
            ::dup2(nowhere, 1);
            ::dup2(nowhere, 2);
            ::execvp(arguments.front(), arguments.data());
            ::_exit(127);
        }
        REQUIRE(soon([&] { return answers("PING") == "PONG"; }));
    }

    /// Returns the server's reply to a command: its text, number or bytes, or "" if there is none.
    [[nodiscard]] std::string ask(std::initializer_list<std::string_view> command) const {
        kvcache::tier::redis_deadline patience(std::chrono::seconds(5), 1 << 20);
        auto link = kvcache::tier::redis_link::open({"127.0.0.1", port_}, {}, patience);
        if (!link)
            return {};
        kvcache::tier::redis_channel channel(std::move(*link), {});
        if (!password_.empty() && !channel.ask({"AUTH", password_}, patience))
            return {};
        const auto said = channel.ask(command, patience);
        return said ? std::string(said->words) : std::string();
    }
    [[nodiscard]] std::string answers(std::string_view word) const { return ask({word}); }

private:
    testing_files::temporary_directory directory_;
    std::uint16_t port_;
    std::vector<std::string> options_;
    std::string password_;
    ::pid_t process_ = 0;
};

} // namespace testing_redis
