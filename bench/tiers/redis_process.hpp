// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/tier/redis_link.hpp>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace bench {

/// A redis-server process on loopback without persistence, stopped by the destructor. Throws: runtime_error.
class redis_process {
public:
    explicit redis_process(std::uint16_t port) : port_(port) {
        process_ = ::fork();
        if (process_ == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            const int nowhere = ::open("/dev/null", O_RDWR);
            ::dup2(nowhere, 1);
            ::execlp("redis-server", "redis-server", "--port", std::to_string(port).c_str(), "--bind", "127.0.0.1",
                     "--save", "", "--appendonly", "no", nullptr);
            ::_exit(127);
        }
        for (int i = 0; i < 500; ++i) {
            kvcache::tier::redis_deadline patience(std::chrono::seconds(1), 1 << 20);
            if (auto link = kvcache::tier::redis_link::open({"127.0.0.1", port}, {}, patience)) {
                kvcache::tier::redis_channel channel(std::move(*link), {});
                if (channel.ask({"PING"}, patience))
                    return;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        end();
        throw std::runtime_error("there is no redis-server");
    }
    ~redis_process() { end(); }
    redis_process(const redis_process&) = delete;
    redis_process& operator=(const redis_process&) = delete;

    /// Returns the bytes per second that redis-benchmark reads, with values of `bytes` bytes and the tier's pipeline
    /// depth.
    [[nodiscard]] double benchmark(std::size_t bytes, std::size_t count) const {
        const std::string command = "redis-benchmark -h 127.0.0.1 -p " + std::to_string(port_) +
                                    " -t set,get -c 1 -P 16 --csv -d " + std::to_string(bytes) + " -n " +
                                    std::to_string(count) + " 2>/dev/null";
        std::FILE* from = ::popen(command.c_str(), "r");
        if (from == nullptr)
            throw std::runtime_error("there is no redis-benchmark");
        double rate = 0.0;
        char line[512];
        while (std::fgets(line, sizeof line, from) != nullptr)
            std::sscanf(line, "\"GET\",\"%lf\"", &rate);
        ::pclose(from);
        if (rate == 0.0)
            throw std::runtime_error("redis-benchmark says nothing");
        return rate * static_cast<double>(bytes);
    }

private:
    void end() const {
        ::kill(process_, SIGKILL);
        ::waitpid(process_, nullptr, 0);
    }

    std::uint16_t port_;
    ::pid_t process_ = 0;
};

} // namespace bench
