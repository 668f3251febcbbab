// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "http_message.hpp"
#include "preparation.hpp"
#include "problem.hpp"
#include "router.hpp"
#include <strings.h>

namespace server {

/// What a connection's requests are checked and answered with.
struct request_rules {
    std::size_t body_bytes = 0;               ///< The largest body.
    std::shared_ptr<byte_budget> bodies = {}; ///< For all bodies of more than preparation::large bytes together.
    /// Returns the reply to a request that is refused before its body is read.
    std::function<std::optional<problem>(const http_request&)> guard;
    /// Adds headers to the response of a request that could be read.
    std::function<void(const http_request&, http_response&)> finish;
    router routes;
};

namespace detail {

// Returns the reply to a request that could not be read; none if the client is gone.
inline std::optional<problem> problem_of(const boost::system::error_code& fault, bool in_body) {
    const auto refused = [](int status, const std::string& why) {
        return problem{.status = status, .code = std::to_string(status), .message = why};
    };
    if (fault == boost::asio::error::timed_out)
        return refused(408, "the request did not arrive in time");
    if (fault == http::error::body_limit || (fault == boost::asio::error::message_size && in_body))
        return refused(413, "the body is too large");
    if (fault == boost::asio::error::message_size || fault == http::error::header_limit ||
        fault == http::error::buffer_overflow)
        return refused(431, "the headers are too large");
    if (fault == http::error::bad_version)
        return refused(505, "this server speaks HTTP/1.1");
    if (fault.category() == http::make_error_code(http::error::bad_method).category() &&
        fault != http::error::end_of_stream && fault != http::error::partial_message)
        return refused(400, "the request could not be read: " + fault.message());
    return std::nullopt;
}

// The time now, as the Date header has it (RFC 9110, 6.6.1).
inline std::string http_date() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    std::array<char, 64> text{};
    return {text.data(), std::strftime(text.data(), text.size(), "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

// Writes a response. Returns whether the client has all of it. `in` is null for a request that could not be read.
inline bool send(connection& client, const http_request* in, http_response& out, bool keep) {
    http::response<http::string_body> message;
    message.version(11);
    message.result(out.status);
    for (const auto& each : out.headers)
        message.insert(each.name_string(), each.value());
    message.set(http::field::date, http_date());
    if (!out.type.empty())
        message.set(http::field::content_type, out.type);
    message.keep_alive(keep);
    const bool chunked = out.stream && (in == nullptr || !in->http_1_0());
    if (!out.stream) {
        message.body() = std::move(out.body);
        message.prepare_payload();
    } else {
        message.chunked(chunked);
    }
    http::response_serializer<http::string_body> write(message);
    boost::system::error_code fault;
    if (out.stream || (in != nullptr && in->is_head()))
        http::write_header(client, write, fault);
    else
        http::write(client, write, fault);
    if (fault || !out.stream || in->is_head())
        return !fault;
    chunk_writer parts(client, chunked);
    return out.stream(parts) && parts.end();
}

// Takes the memory for a large body. Returns false if there is none left.
inline bool take_share(const http_request& in, std::uint64_t bytes, const request_rules& with) {
    if (bytes <= preparation::large)
        return true;
    auto share = byte_budget::take(with.bodies, bytes);
    if (share)
        in.body_share = std::move(*share);
    return share.has_value();
}

// Reads a request and answers it. Returns whether the connection can take another one.
inline bool serve_request(connection& client, const request_rules& with) {
    http::request_parser<http::string_body> parser;
    parser.header_limit(connection::head_bytes);
    parser.body_limit(with.body_bytes);
    boost::system::error_code fault;
    http::read_header(client, client.kept(), parser, fault);
    http_response out;
    if (!fault) {
        const http_request in(parser.get(), client);
        auto refused = with.guard(in);
        if (!refused && !take_share(in, parser.chunked() ? with.body_bytes : parser.content_length().value_or(0), with))
            refused = problem{503, "overloaded_error", "bodies", "too many large bodies are being received"};
        if (refused) {
            client.close_after_response();
            client.end_request();
            refuse(out, *refused);
            with.finish(in, out);
            (void)send(client, &in, out, false);
            return false;
        }
        if (::strcasecmp(in.header("Expect").c_str(), "100-continue") == 0 && !parser.is_done()) {
            constexpr std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";
            boost::asio::write(client, boost::asio::buffer(go_on.data(), go_on.size()), fault);
        }
        if (!fault)
            http::read(client, client.kept(), parser, fault);
        if (!fault) {
            client.end_request();
            with.routes.answer(in, out);
            with.finish(in, out);
            const bool keep = parser.get().keep_alive() && !in.http_1_0() && !client.must_close();
            return send(client, &in, out, keep) && keep;
        }
    }
    client.end_request();
    if (const auto why = problem_of(fault, parser.is_header_done())) {
        client.close_after_response(); // where the next request begins is unknown
        refuse(out, *why);
        (void)send(client, nullptr, out, false);
    }
    return false;
}

} // namespace detail

/// Answers the requests of a connection until it ends.
inline void serve_client(connection& client, const request_rules& with) {
    while (client.next() && detail::serve_request(client, with)) {
    }
    client.finish();
}

} // namespace server
