// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string>

#include "http_message.hpp"
#include "problem.hpp"
#include <strings.h>

namespace server {

/// Checks how long a request says that it is, before its body is read (RFC 9112, 6). Returns the reply to a request
/// whose end is ambiguous, which is too long, or whose body is encoded. The connection is closed after such a reply.
/// Otherwise the client may send the body, and no byte more.
[[nodiscard]] inline std::optional<problem> check_framing(const http_request& in, std::size_t most) {
    const auto refused = [](int status, const std::string& code, const std::string& why) {
        return problem{.status = status, .code = code, .message = why};
    };
    const auto lengths = in.count("Content-Length");
    const auto encodings = in.count("Transfer-Encoding");
    const auto hosts = in.count("Host");
    if (hosts > 1 || (hosts == 0 && !in.http_1_0()))
        return refused(400, "host", "a request has one Host header");
    if (in.count("Authorization") > 1)
        return refused(400, "authorization", "a request has one Authorization header");
    if (in.target().empty() || (in.target().front() != '/' && in.target() != "*"))
        return refused(400, "target", "the target of a request is a path");
    if (lengths + encodings > 1)
        return refused(400, "length", "a request has one Content-Length or one Transfer-Encoding, not both");
    if (encodings == 1 && (in.http_1_0() || ::strcasecmp(in.header("Transfer-Encoding").c_str(), "chunked") != 0))
        return refused(400, "transfer_encoding", "the only transfer encoding is chunked, of HTTP/1.1");
    if (const std::string coding = in.header("Content-Encoding");
        !coding.empty() && ::strcasecmp(coding.c_str(), "identity") != 0)
        return refused(415, "content_encoding", "a body has no content encoding");
    if (const std::string expected = in.header("Expect");
        !expected.empty() && ::strcasecmp(expected.c_str(), "100-continue") != 0)
        return refused(417, "expect", "the only expectation is 100-continue");
    std::size_t length = 0;
    if (lengths == 1) {
        const std::string text = in.header("Content-Length");
        const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), length);
        if (fault != std::errc() || end != text.data() + text.size())
            return refused(400, "length", "Content-Length is not a number");
    }
    if (length > most)
        return refused(413, "413", "the body is too large");
    const std::string method = in.method();
    const bool reads = method == "POST" || method == "PUT" || method == "PATCH";
    if (reads && lengths + encodings == 0)
        return refused(411, "length", "a request with a body has a Content-Length");
    if (!reads && (length > 0 || encodings > 0))
        return refused(400, "body", method + " has no body");
    // Chunks have lines of their own; what they add to a body of small chunks is limited as well.
    in.client.begin_body(encodings > 0 ? most + most / 8 + (std::size_t{64} << 10) : std::max<std::size_t>(length, 1));
    return std::nullopt;
}

} // namespace server
