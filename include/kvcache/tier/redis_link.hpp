// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/digest.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/machine.hpp>
#include <kvcache/tier/resp.hpp>

#if !KVCACHE_POSIX
#error "kvcache: tier::redis needs the sockets of POSIX, which this system lacks: use tier::memory"
#endif

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace kvcache { inline namespace KVCACHE_ABI { namespace tier {

/// TLS options of a connection to a Redis server. A server without a certificate for its name is refused.
struct redis_security {
    bool on = false;
    std::string authority = {};   ///< File of the trusted CA certificates; empty: those of the system.
    std::string certificate = {}; ///< File of this host's own certificate, if the server requires one,
    std::string key = {};         ///< and of its private key.
    std::string name = {};        ///< Name that the server's certificate must match; empty: the host.
};

/// TLS 1.2 or later over a transport of the caller: put_in() takes received bytes, take_out() returns bytes to send.
class redis_tls {
public:
    /// Creates a client session. Errors: unsupported, for files that OpenSSL cannot read.
    [[nodiscard]] static result<redis_tls> open(const redis_security& how, const std::string& host) {
        redis_tls made;
        made.rules_.reset(SSL_CTX_new(TLS_client_method()));
        if (!made.rules_)
            return failure("there is no context");
        SSL_CTX* rules = made.rules_.get();
        SSL_CTX_set_verify(rules, SSL_VERIFY_PEER, nullptr);
        if (SSL_CTX_set_min_proto_version(rules, TLS1_2_VERSION) != 1)
            return failure("there is no TLS 1.2");
        const int believed = how.authority.empty()
                                 ? SSL_CTX_set_default_verify_paths(rules)
                                 : SSL_CTX_load_verify_locations(rules, how.authority.c_str(), nullptr);
        if (believed != 1)
            return failure("the authorities cannot be read");
        if (!how.certificate.empty() && (SSL_CTX_use_certificate_chain_file(rules, how.certificate.c_str()) != 1 ||
                                         SSL_CTX_use_PrivateKey_file(rules, how.key.c_str(), SSL_FILETYPE_PEM) != 1))
            return failure("the certificate or its key cannot be read");
        made.talk_.reset(SSL_new(rules));
        BIO* in = BIO_new(BIO_s_mem());
        BIO* out = BIO_new(BIO_s_mem());
        if (!made.talk_ || in == nullptr || out == nullptr) {
            BIO_free(in);
            BIO_free(out);
            return failure("there is no memory");
        }
        SSL_set_bio(made.talk_.get(), in, out);
        SSL_set_connect_state(made.talk_.get());
        const std::string& name = how.name.empty() ? host : how.name;
        X509_VERIFY_PARAM* wanted = SSL_get0_param(made.talk_.get());
        if (X509_VERIFY_PARAM_set1_ip_asc(wanted, name.c_str()) != 1 &&
            (SSL_set1_host(made.talk_.get(), name.c_str()) != 1 ||
             SSL_set_tlsext_host_name(made.talk_.get(), name.c_str()) != 1))
            return failure("the name cannot be asked for");
        return made;
    }

    /// Continues the handshake. Returns whether it is complete.
    [[nodiscard]] result<bool> shake() {
        ERR_clear_error();
        return over(SSL_do_handshake(talk_.get()));
    }

    /// Encrypts bytes for take_out().
    [[nodiscard]] result<void> write(std::span<const std::byte> bytes) {
        while (!bytes.empty()) {
            ERR_clear_error();
            std::size_t done = 0;
            const auto wrote = over(SSL_write_ex(talk_.get(), bytes.data(), bytes.size(), &done));
            if (!wrote)
                return wrote.error();
            if (!*wrote)
                return error{error_code::io, "redis", "redis: the server asks for a new handshake"};
            bytes = bytes.subspan(done);
        }
        return {};
    }

    /// Decrypts received bytes. Returns the number of bytes; 0 if more must be received first.
    [[nodiscard]] result<std::size_t> read(std::span<std::byte> to) {
        ERR_clear_error();
        std::size_t done = 0;
        const auto read = over(SSL_read_ex(talk_.get(), to.data(), to.size(), &done));
        if (!read)
            return read.error();
        return done;
    }

    /// Adds received bytes.
    [[nodiscard]] bool put_in(std::span<const std::byte> bytes) {
        const auto size = static_cast<int>(std::min<std::size_t>(bytes.size(), std::numeric_limits<int>::max()));
        return BIO_write(SSL_get_rbio(talk_.get()), bytes.data(), size) == size;
    }
    /// Takes bytes to send. Returns their number.
    [[nodiscard]] std::size_t take_out(std::span<std::byte> to) {
        const int taken = BIO_read(SSL_get_wbio(talk_.get()), to.data(), static_cast<int>(to.size()));
        return taken > 0 ? static_cast<std::size_t>(taken) : 0;
    }

private:
    redis_tls() = default;

    [[nodiscard]] static error failure(const std::string& what) {
        const char* why = ERR_reason_error_string(ERR_peek_last_error());
        ERR_clear_error();
        return {error_code::unsupported, "redis",
                "redis: TLS: " + what + (why != nullptr ? std::string(" (") + why + ")" : std::string())};
    }

    [[nodiscard]] result<bool> over(int code) {
        if (code == 1)
            return true;
        const int what = SSL_get_error(talk_.get(), code);
        if (what == SSL_ERROR_WANT_READ || what == SSL_ERROR_WANT_WRITE)
            return false;
        const long verified = SSL_get_verify_result(talk_.get());
        if (verified != X509_V_OK)
            return failure(std::string("the server is not believed: ") + X509_verify_cert_error_string(verified));
        return failure("the server does not keep to the protocol");
    }

    struct closer {
        void operator()(SSL_CTX* what) const noexcept { SSL_CTX_free(what); }
        void operator()(SSL* what) const noexcept { SSL_free(what); }
    };
    std::unique_ptr<SSL_CTX, closer> rules_;
    std::unique_ptr<SSL, closer> talk_;
};

/// The deadline of a call to a server: a fixed time, extended for every byte transferred at the minimum throughput. A
/// server that sends slowly therefore cannot stall a call.
class redis_deadline {
public:
    using clock = std::chrono::steady_clock;

    redis_deadline(std::chrono::milliseconds longest, std::size_t slowest)
        : end_(clock::now() + longest), second_(static_cast<double>(std::max<std::size_t>(slowest, 1))) {}

    void moved(std::size_t bytes) {
        end_ += std::chrono::duration_cast<clock::duration>(
            std::chrono::duration<double>(static_cast<double>(bytes) / second_));
    }
    /// Excludes time that the server did not use.
    void rested(clock::duration time) { end_ += time; }

    [[nodiscard]] clock::time_point end() const noexcept { return end_; }
    /// Returns the remaining time for poll, rounded up; 0 after the deadline.
    [[nodiscard]] int milliseconds() const {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - clock::now()).count();
        return static_cast<int>(std::clamp<long long>(left, 0, 1 << 30));
    }

private:
    clock::time_point end_;
    double second_; // bytes per second
};

/// A connection to a Redis server, with or without TLS. No call waits beyond its deadline.
class redis_link {
public:
    /// Opens a connection. Errors: io if the host is unknown, nothing listens there, or the deadline passes;
    /// unsupported if the TLS handshake finds no agreement.
    [[nodiscard]] static result<redis_link> open(const redis_address& to, const redis_security& how,
                                                 redis_deadline& patience) {
        addrinfo wanted{};
        wanted.ai_socktype = SOCK_STREAM;
        wanted.ai_flags = AI_ADDRCONFIG;
        addrinfo* found = nullptr;
        const std::string port = std::to_string(to.port);
        if (const int code = ::getaddrinfo(to.host.c_str(), port.c_str(), &wanted, &found); code != 0)
            return error{error_code::io, "redis", "redis: " + to.host + ": " + ::gai_strerror(code)};
        const std::unique_ptr<addrinfo, void (*)(addrinfo*)> all(found, ::freeaddrinfo);
        error last = failure(to.host, EADDRNOTAVAIL);
        for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
            redis_link made(::socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
            if (made.socket_ < 0) {
                last = failure(to.host, errno);
                continue;
            }
            if (const int code = made.connect(*one, patience); code != 0) {
                last = failure(to.host + ":" + port, code);
                continue;
            }
            if (how.on)
                if (auto agreed = made.secure(how, to.host, patience); !agreed)
                    return agreed.error();
            return made;
        }
        return last;
    }

    redis_link(redis_link&& other) noexcept : socket_(std::exchange(other.socket_, -1)), tls_(std::move(other.tls_)) {}
    redis_link& operator=(redis_link&& other) noexcept {
        std::swap(socket_, other.socket_);
        std::swap(tls_, other.tls_);
        return *this;
    }
    ~redis_link() {
        if (socket_ >= 0)
            ::close(socket_);
    }

    /// Sends all bytes. Errors: io.
    [[nodiscard]] result<void> send(std::span<const std::byte> bytes, redis_deadline& patience) {
        if (!tls_)
            return push(bytes, patience);
        while (!bytes.empty()) { // in pieces, so that encrypted bytes do not accumulate
            const auto piece = bytes.first(std::min<std::size_t>(bytes.size(), 64 << 10));
            if (auto done = tls_->write(piece); !done)
                return done;
            if (auto done = drain(patience); !done)
                return done;
            bytes = bytes.subspan(piece.size());
        }
        return {};
    }

    /// Waits for bytes. Returns the number received, at least one. Errors: io, also if the server has closed the
    /// connection.
    [[nodiscard]] result<std::size_t> receive(std::span<std::byte> to, redis_deadline& patience) {
        if (!tls_)
            return pull(to, patience);
        for (;;) {
            auto read = tls_->read(to);
            if (!read || *read > 0)
                return read;
            if (auto came = receive_tls(patience); !came)
                return came.error();
        }
    }

private:
    explicit redis_link(int socket) : socket_(socket) {}

    [[nodiscard]] static error failure(const std::string& where, int code) {
        return {error_code::io, "redis", "redis: " + where + ": " + std::generic_category().message(code)};
    }

    // Returns 0, or errno.
    [[nodiscard]] int connect(const addrinfo& to, redis_deadline& patience) {
        const int yes = 1;
        ::setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        if (::connect(socket_, to.ai_addr, to.ai_addrlen) == 0)
            return 0;
        if (errno != EINPROGRESS)
            return errno;
        if (!ready(POLLOUT, patience))
            return ETIMEDOUT;
        int code = 0;
        socklen_t size = sizeof code;
        return ::getsockopt(socket_, SOL_SOCKET, SO_ERROR, &code, &size) == 0 ? code : errno;
    }

    [[nodiscard]] bool ready(short what, redis_deadline& patience) const {
        for (;;) {
            pollfd one{socket_, what, 0};
            const int found = ::poll(&one, 1, patience.milliseconds());
            if (found >= 0 || errno != EINTR)
                return found > 0;
        }
    }

    [[nodiscard]] result<void> push(std::span<const std::byte> bytes, redis_deadline& patience) {
        while (!bytes.empty()) {
            const auto sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (sent > 0) {
                patience.moved(static_cast<std::size_t>(sent));
                bytes = bytes.subspan(static_cast<std::size_t>(sent));
            } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
                if (!ready(POLLOUT, patience))
                    return failure("sending", ETIMEDOUT);
            } else if (errno != EINTR) {
                return failure("sending", errno);
            }
        }
        return {};
    }

    [[nodiscard]] result<std::size_t> pull(std::span<std::byte> to, redis_deadline& patience) {
        for (;;) {
            const auto came = ::recv(socket_, to.data(), to.size(), 0);
            if (came > 0) {
                patience.moved(static_cast<std::size_t>(came));
                return static_cast<std::size_t>(came);
            }
            if (came == 0)
                return error{error_code::io, "redis", "redis: the server has closed the connection"};
            if (errno == EAGAIN || errno == EWOULDBLOCK) {
                if (!ready(POLLIN, patience))
                    return failure("receiving", ETIMEDOUT);
            } else if (errno != EINTR) {
                return failure("receiving", errno);
            }
        }
    }

    [[nodiscard]] result<void> secure(const redis_security& how, const std::string& host, redis_deadline& patience) {
        auto made = redis_tls::open(how, host);
        if (!made)
            return made.error();
        tls_.emplace(std::move(*made));
        for (;;) {
            const auto over = tls_->shake();
            if (auto gone = drain(patience); !gone) // sends the TLS alert too if the step failed
                return gone;
            if (!over)
                return over.error();
            if (*over)
                return {};
            if (auto came = receive_tls(patience); !came)
                return error{came.error().code, "redis", came.error().message + ", in the TLS handshake"};
        }
    }

    [[nodiscard]] result<void> drain(redis_deadline& patience) {
        std::array<std::byte, 16384> piece;
        while (const std::size_t size = tls_->take_out(piece))
            if (auto gone = push(std::span(piece).first(size), patience); !gone)
                return gone;
        return {};
    }
    [[nodiscard]] result<void> receive_tls(redis_deadline& patience) {
        std::array<std::byte, 16384> piece;
        const auto came = pull(piece, patience);
        if (!came)
            return came.error();
        if (!tls_->put_in(std::span(piece).first(*came)))
            return error{error_code::out_of_memory, "redis", "redis: there is no memory for what came"};
        return {};
    }

    int socket_ = -1;
    std::optional<redis_tls> tls_;
};

/// A connection with pipelined commands; replies are read in place.
class redis_channel {
public:
    redis_channel(redis_link link, const resp_limits& limits) : link_(std::move(link)), limits_(limits) {}

    /// The buffer for the text of the next command; see resp.hpp. send() sends it.
    [[nodiscard]] std::string& words() noexcept { return words_; }
    /// Appends bytes after the text so far, without a copy. They must stay valid until send().
    void append(std::span<const std::byte> bytes) { aside_.push_back({words_.size(), bytes}); }
    /// Counts one more expected reply.
    void expect() noexcept { ++expected_; }
    [[nodiscard]] std::size_t expected() const noexcept { return expected_; }

    /// Sends the commands written since the last call. Errors: io.
    [[nodiscard]] result<void> send(redis_deadline& patience) {
        const auto words = text_bytes(words_);
        std::size_t at = 0;
        for (const auto& [before, bytes] : aside_) {
            if (auto done = link_.send(words.subspan(at, before - at), patience); !done)
                return done;
            if (auto done = link_.send(bytes, patience); !done)
                return done;
            at = before;
        }
        if (auto done = link_.send(words.subspan(at), patience); !done)
            return done;
        words_.clear();
        aside_.clear();
        return {};
    }

    /// Returns the next reply, which is valid until the next call. Errors: io; malformed, if it is not a reply.
    [[nodiscard]] result<resp_value> reply(redis_deadline& patience) {
        for (;;) {
            resp_read read = read_resp({buffer_.get() + begin_, end_ - begin_}, limits_);
            if (read.now == resp_read::state::wrong)
                return error{error_code::malformed, "redis", "redis: what the server says is no reply"};
            if (read.now == resp_read::state::whole) {
                begin_ += read.used;
                if (--expected_ == 0 && begin_ < end_)
                    return error{error_code::malformed, "redis", "redis: the server says more than it was asked"};
                return std::move(read.value);
            }
            if (read.wanted > limits_.bytes + 2 * limits_.line)
                return error{error_code::malformed, "redis", "redis: the server says too much"};
            make_room(read.wanted);
            const std::size_t most = std::max(read.wanted - (end_ - begin_), std::size_t{64} << 10);
            const auto came = link_.receive({buffer_.get() + end_, std::min(size_ - end_, most)}, patience);
            if (!came)
                return came.error();
            end_ += *came;
        }
    }

    /// Sends one command and waits for its reply. Requires: no reply is expected.
    [[nodiscard]] result<resp_value> ask(std::initializer_list<std::string_view> arguments, redis_deadline& patience) {
        write_command(words_, arguments);
        expect();
        if (auto sent = send(patience); !sent)
            return sent.error();
        return reply(patience);
    }

private:
    // Makes room for `wanted` bytes from begin_ on, and one more.
    void make_room(std::size_t wanted) {
        if (begin_ == end_)
            begin_ = end_ = 0;
        if (begin_ + wanted < size_)
            return;
        const std::size_t have = end_ - begin_;
        if (wanted < size_) {
            std::memmove(buffer_.get(), buffer_.get() + begin_, have);
        } else {
            const std::size_t size = std::max({wanted + 1, size_ + size_ / 2, std::size_t{64} << 10});
            auto larger = std::make_unique_for_overwrite<std::byte[]>(size);
            if (have > 0)
                std::memcpy(larger.get(), buffer_.get() + begin_, have);
            buffer_ = std::move(larger);
            size_ = size;
        }
        begin_ = 0;
        end_ = have;
    }

    struct apart {
        std::size_t before; // offset in the text
        std::span<const std::byte> bytes;
    };

    redis_link link_;
    resp_limits limits_;
    std::string words_;
    std::vector<apart> aside_;
    std::size_t expected_ = 0;
    std::unique_ptr<std::byte[]> buffer_;
    std::size_t size_ = 0, begin_ = 0, end_ = 0;
};

}}} // namespace kvcache::tier
