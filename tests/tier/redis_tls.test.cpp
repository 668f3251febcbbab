// SPDX-License-Identifier: MIT
// TLS and passwords, with a redis-server that requires them; the certificates are generated here.
#include <kvcache/testing/tier_conformance.hpp>
#include <kvcache/tier/redis.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "model/huggingface/files.hpp"
#include "redis_server.hpp"
#include <catch2/catch.hpp>

namespace kv = kvcache;
namespace conformance = kvcache::testing::detail;

namespace {

using testing_redis::soon;

bool run(const std::string& command) {
    return std::system(("(" + command + ") >/dev/null 2>&1").c_str()) == 0;
}

// A certificate authority, and its certificates.
class authority {
public:
    explicit authority(std::filesystem::path directory) : at_(std::move(directory)) {
        std::filesystem::create_directories(at_);
        made = run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=authority "
                   "-keyout " +
                   file("authority.key") + " -out " + file("authority.crt"));
    }
    [[nodiscard]] std::string file(const std::string& name) const { return (at_ / name).string(); }

    // Creates a key and a certificate for names in OpenSSL's notation: "IP:127.0.0.1", "DNS:pages.example".
    void sign(const std::string& name, const std::string& names, int days = 2) {
        std::ofstream(at_ / "names") << "subjectAltName=" << names << '\n';
        made = made &&
               run("openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=" + name + " -keyout " +
                   file(name + ".key") + " -out " + file(name + ".csr")) &&
               run("openssl x509 -req -in " + file(name + ".csr") + " -CA " + file("authority.crt") + " -CAkey " +
                   file("authority.key") + " -CAcreateserial -days " + std::to_string(days) + " -extfile " +
                   file("names") + " -out " + file(name + ".crt"));
    }

    bool made = false;

private:
    std::filesystem::path at_;
};

// A server with a TLS port and a plaintext port.
struct secured {
    secured(const authority& of, const std::string& name, bool asks_clients, std::vector<std::string> more = {})
        : port(testing_redis::free_port()), plain([&] {
              std::vector<std::string> options = {
                  "--tls-port",         std::to_string(port),       "--tls-cert-file",    of.file(name + ".crt"),
                  "--tls-key-file",     of.file(name + ".key"),     "--tls-ca-cert-file", of.file("authority.crt"),
                  "--tls-auth-clients", asks_clients ? "yes" : "no"};
              options.insert(options.end(), more.begin(), more.end());
              return options;
          }()) {}
    std::uint16_t port;
    testing_redis::server plain;
};

kv::tier::redis at(std::uint16_t port, kv::tier::redis_security security) {
    return {.port = port,
            .security = std::move(security),
            .connect_timeout = std::chrono::seconds(5),
            .timeout = std::chrono::seconds(5),
            .retry = std::chrono::minutes(10),
            .longest_retry = std::chrono::minutes(10)};
}

// Returns why a server is not used; empty if it is.
std::string refusal(const kv::tier::redis& how) {
    auto tier = how.open();
    const auto now = tier.status();
    if (now) {
        REQUIRE(conformance::put_record(tier, 1));
        REQUIRE(tier.flush());
        REQUIRE(conformance::read_record(tier, 1) == conformance::tier_answer::right);
        return {};
    }
    CHECK(now.error().field == "redis");
    CHECK(conformance::read_record(tier, 1) == conformance::tier_answer::failed);
    CHECK(tier.attempts() == 1); // the request itself makes no attempt
    return now.error().message;
}

bool says(const std::string& message, const char* what) {
    UNSCOPED_INFO(message);
    return message.find(what) != std::string::npos;
}

// Returns whether a prerequisite is missing; the test then prints it.
bool missing() {
    if (testing_redis::missing())
        return true;
    if (!run("command -v openssl")) {
        WARN("SKIPPED: there is no openssl");
        return true;
    }
    if (!run("redis-server --port 0 --tls-port 1 | grep -q tls-cert-file")) { // it lacks a certificate
        WARN("SKIPPED: redis-server knows no TLS");
        return true;
    }
    return false;
}

} // namespace

TEST_CASE("a server is spoken to by TLS, if its certificate is believed and is its own") {
    if (missing())
        return;
    const testing_files::temporary_directory directory;
    authority own(directory.path() / "own"), stranger(directory.path() / "stranger");
    own.sign("server", "IP:127.0.0.1,DNS:pages.example");
    own.sign("elsewhere", "IP:127.0.0.2,DNS:other.example");
    own.sign("client", "DNS:client.example");
    stranger.sign("client", "DNS:client.example");
    REQUIRE((own.made && stranger.made));
    const kv::tier::redis_security believed{.on = true, .authority = own.file("authority.crt")};
    const auto with = [&](auto change) {
        kv::tier::redis_security made = believed;
        change(made);
        return made;
    };

    const secured here(own, "server", false);
    CHECK(refusal(at(here.port, believed)).empty());
    CHECK(refusal(at(here.plain.port(), {})).empty());
    auto how = at(here.port, with([](auto& s) { s.name = "pages.example"; }));
    how.prefix = "conformance:";
    CHECK(kv::testing::tier_conformance(how, 4).empty());

    // Untrusted: another authority, the system's, another name.
    CHECK(says(refusal(at(here.port, with([&](auto& s) { s.authority = stranger.file("authority.crt"); }))),
               "the server is not believed"));
    CHECK(says(refusal(at(here.port, with([](auto& s) { s.authority.clear(); }))), "the server is not believed"));
    CHECK(says(refusal(at(here.port, with([](auto& s) { s.name = "other.example"; }))), "mismatch"));
    const secured elsewhere(own, "elsewhere", false);
    CHECK(says(refusal(at(elsewhere.port, believed)), "mismatch"));

    // Plaintext on either side.
    auto hasty = at(here.plain.port(), believed); // waits for the timeout: Redis takes a handshake for half a line
    hasty.connect_timeout = std::chrono::milliseconds(200);
    CHECK(says(refusal(hasty), "in the TLS handshake"));
    CHECK(says(refusal(at(here.port, {})), "greeted without TLS"));

    // Invalid files.
    CHECK(says(refusal(at(here.port, with([](auto& s) { s.authority = "/nonexistent"; }))),
               "the authorities cannot be read"));
    CHECK(says(refusal(at(here.port, with([&](auto& s) { s.certificate = s.key = own.file("names"); }))),
               "the certificate or its key cannot be read"));
}

TEST_CASE("a server that requires certificates and passwords accepts the right ones only") {
    if (missing())
        return;
    const testing_files::temporary_directory directory;
    authority own(directory.path() / "own"), stranger(directory.path() / "stranger");
    own.sign("server", "IP:127.0.0.1");
    own.sign("client", "DNS:client.example");
    stranger.sign("client", "DNS:client.example");
    REQUIRE((own.made && stranger.made));
    const secured here(own, "server", true, {"--user", "pages", "on", ">secret", "~kvcache:*", "+@all"});
    kv::tier::redis how = at(here.port, {.on = true, .authority = own.file("authority.crt")});
    CHECK_FALSE(refusal(how).empty()); // without a certificate
    how.security.certificate = stranger.file("client.crt");
    how.security.key = stranger.file("client.key");
    CHECK_FALSE(refusal(how).empty());
    how.security.certificate = own.file("client.crt");
    how.security.key = own.file("client.key");
    CHECK(refusal(how).empty());
    how.user = "pages";
    how.password = "secret";
    CHECK(refusal(how).empty());
    how.password = "wrong";
    CHECK(says(refusal(how), "WRONGPASS"));
    how.user = "nobody";
    CHECK(says(refusal(how), "WRONGPASS"));
}
