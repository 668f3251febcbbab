// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "problem.hpp"
#include <arpa/inet.h>

namespace server {

/// Returns whether a listening address is reached from this machine only.
[[nodiscard]] inline bool is_loopback(std::string_view host) {
    return host == "localhost" || host == "::1" || host.starts_with("127.");
}

/// Returns the host of a Host header, without its port and the brackets of an IPv6 address, in lower case.
[[nodiscard]] inline std::string host_name(std::string_view header) {
    const bool bracketed = header.starts_with('[');
    const std::size_t end = std::min(header.find(bracketed ? ']' : ':'), header.size());
    std::string name(header.substr(bracketed ? 1 : 0, end - (bracketed ? 1 : 0)));
    std::ranges::transform(name, name.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    return name;
}

[[nodiscard]] inline bool is_address(const std::string& name) {
    std::array<unsigned char, 16> into{};
    return ::inet_pton(AF_INET, name.c_str(), into.data()) == 1 ||
           ::inet_pton(AF_INET6, name.c_str(), into.data()) == 1;
}

/// What Access-Control-Allow-Origin says to a page of another site; empty if the page may not read responses, or the
/// request is of no such page. `allowed`: origins, or "*" for all.
[[nodiscard]] inline std::string allowed_origin(const http_request& in, const std::vector<std::string>& allowed) {
    const std::string origin = in.count("Origin") == 1 ? in.header("Origin") : std::string();
    if (origin.empty())
        return origin;
    if (std::ranges::find(allowed, "*") != allowed.end())
        return "*";
    return std::ranges::find(allowed, origin) != allowed.end() ? origin : std::string();
}

/// Lets a page of another site read the response, if its origin is allowed (Fetch standard, CORS protocol).
inline void allow_origin(const http_request& in, http_response& out, const std::vector<std::string>& allowed) {
    if (allowed.empty())
        return;
    out.headers.set(http::field::vary, "Origin"); // for a proxy that keeps responses
    if (const std::string origin = allowed_origin(in, allowed); !origin.empty()) {
        out.headers.set(http::field::access_control_allow_origin, origin);
        out.headers.set(http::field::access_control_expose_headers, "Retry-After");
    }
}

/// Whether a browser asks with this request what a page of an allowed origin may send (a CORS preflight).
[[nodiscard]] inline bool is_preflight(const http_request& in, const std::vector<std::string>& allowed) {
    return in.method() == "OPTIONS" && in.count("Access-Control-Request-Method") > 0 &&
           !allowed_origin(in, allowed).empty();
}

/// Answers a preflight: every method of this server, and the headers that were asked for.
inline void answer_preflight(const http_request& in, http_response& out) {
    out.status = 204;
    out.headers.set(http::field::access_control_allow_methods, "GET, POST, DELETE");
    if (const std::string headers = in.header("Access-Control-Request-Headers"); !headers.empty())
        out.headers.set(http::field::access_control_allow_headers, headers);
    if (in.header("Access-Control-Request-Private-Network") == "true")
        out.headers.set("Access-Control-Allow-Private-Network", "true");
    out.headers.set(http::field::access_control_max_age, "600");
}

/// Checks that a request does not come from a page of another site in a user's browser. Such a page has an Origin of
/// its own; or, after DNS rebinding, a name in Host that is not this server's. `names` are those that are; empty: any.
/// `allowed`: origins whose pages may use it nevertheless.
[[nodiscard]] inline std::optional<problem> check_origin(const http_request& in, const std::vector<std::string>& names,
                                                         const std::vector<std::string>& allowed) {
    const std::string host = in.header("Host");
    const auto refused = [](const std::string& code, const std::string& why) {
        return problem{.status = 403, .type = "permission_error", .code = code, .message = why};
    };
    if (in.count("Origin") > 0 && allowed_origin(in, allowed).empty())
        if (const std::string origin = in.header("Origin"); origin != "http://" + host && origin != "https://" + host)
            return refused("origin", "a page of another site may not use this server; --allow-origin allows it");
    if (const std::string name = host_name(host);
        !names.empty() && !name.empty() && !is_address(name) && std::ranges::find(names, name) == names.end())
        return refused("host", "this server is not called by the name in Host; --allow-host allows it");
    return std::nullopt;
}

} // namespace server
