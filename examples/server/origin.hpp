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

/// Checks that a request does not come from a page of another site in a user's browser. Such a page has an Origin of
/// its own; or, after DNS rebinding, a name in Host that is not this server's. `names` are those that are; empty: any.
[[nodiscard]] inline std::optional<problem> check_origin(const http_request& in,
                                                         const std::vector<std::string>& names) {
    const std::string host = in.header("Host");
    const auto refused = [](const std::string& code, const std::string& why) {
        return problem{.status = 403, .type = "permission_error", .code = code, .message = why};
    };
    if (in.count("Origin") > 0)
        if (const std::string origin = in.header("Origin"); origin != "http://" + host && origin != "https://" + host)
            return refused("origin", "a page of another site may not use this server");
    if (const std::string name = host_name(host);
        !names.empty() && !name.empty() && !is_address(name) && std::ranges::find(names, name) == names.end())
        return refused("host", "this server is not called by the name in Host; --allow-host allows it");
    return std::nullopt;
}

} // namespace server
