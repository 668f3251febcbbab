// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstddef>
#include <functional>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "byte_budget.hpp"
#include "connection.hpp"
#include <boost/asio/write.hpp>
#include <boost/beast/http.hpp>

namespace server {

namespace http = boost::beast::http;

/// A request as handlers see it. It refers to the message, whose body may not have been read yet, and to its client.
class http_request {
public:
    using message_type = http::request<http::string_body>;

    http_request(message_type& message, connection& from)
        : client(from), message_(&message), path_(path_of(target())) {}

    [[nodiscard]] std::string method() const { return std::string(message_->method_string()); }
    /// The path of the target, with its percent encoding decoded; without the query.
    [[nodiscard]] const std::string& path() const noexcept { return path_; }
    [[nodiscard]] const std::string& body() const noexcept { return message_->body(); }
    /// Frees the memory of the body, once it has been read.
    void release_body() const {
        message_->body() = std::string();
        body_share = byte_budget::share();
    }
    [[nodiscard]] bool http_1_0() const noexcept { return message_->version() < 11; }
    /// Whether it is a HEAD request, whose response has no body.
    [[nodiscard]] bool is_head() const noexcept { return message_->method() == http::verb::head; }
    [[nodiscard]] std::string target() const { return std::string(message_->target()); }

    /// The value of a header; empty if there is none. Names are in any case.
    [[nodiscard]] std::string header(std::string_view name) const {
        return std::string((*message_)[boost::beast::string_view(name.data(), name.size())]);
    }
    [[nodiscard]] std::size_t count(std::string_view name) const {
        return message_->count(boost::beast::string_view(name.data(), name.size()));
    }

    connection& client;
    mutable byte_budget::share body_share; ///< What the body takes of the memory for bodies.

private:
    [[nodiscard]] static std::string path_of(const std::string& target) {
        const std::string_view raw = std::string_view(target).substr(0, target.find_first_of("?#"));
        std::string made;
        for (std::size_t i = 0; i < raw.size(); ++i) {
            unsigned value = 0;
            if (raw[i] == '%' && raw.size() - i > 2 &&
                std::from_chars(raw.data() + i + 1, raw.data() + i + 3, value, 16).ptr == raw.data() + i + 3) {
                made += static_cast<char>(value);
                i += 2;
            } else {
                made += raw[i];
            }
        }
        return made;
    }

    message_type* message_;
    std::string path_;
};

/// Sends a response in parts, as chunks where the client knows them (HTTP/1.1).
class chunk_writer {
public:
    chunk_writer(connection& to, bool chunked) : to_(to), chunked_(chunked) {}

    /// Returns false if the client has disconnected.
    [[nodiscard]] bool write(std::string_view part) {
        boost::system::error_code fault;
        const boost::asio::const_buffer bytes(part.data(), part.size());
        if (chunked_ && !part.empty())
            boost::asio::write(to_, http::make_chunk(bytes), fault);
        else
            boost::asio::write(to_, bytes, fault);
        return !fault;
    }
    /// Returns whether the client is still connected.
    [[nodiscard]] bool open() const { return !to_.closed(); }
    /// Marks the end of the response. Without it the client sees that the response is incomplete.
    [[nodiscard]] bool end() {
        boost::system::error_code fault;
        if (chunked_)
            boost::asio::write(to_, http::make_chunk_last(), fault);
        return !fault;
    }

private:
    connection& to_;
    bool chunked_;
};

/// The response of a handler: a body, or a function that sends one in parts.
struct http_response {
    unsigned status = 200;
    std::string type = {}; ///< Content-Type.
    std::string body = {};
    http::fields headers = {};                      ///< Further ones.
    std::function<bool(chunk_writer&)> stream = {}; ///< Sends the parts; false if it could not send all.
};

} // namespace server
