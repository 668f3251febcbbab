// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/result.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

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

}}} // namespace kvcache::tier
