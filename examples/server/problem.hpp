// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/errors.hpp>
#include <kvcache/formats/json.hpp>

#include <string>
#include <utility>

#include "http_message.hpp"

namespace server {

using kvcache::json;

/// The error reply to a request.
struct problem {
    int status = 400;
    std::string type = "invalid_request_error";
    std::string code = {};
    std::string message = {};

    [[nodiscard]] json body() const {
        return {{"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", code}}}};
    }
};

/// Returns the reply to an error: status 400 for errors of the client, 429 if the client may retry, otherwise 500.
[[nodiscard]] inline problem problem_of(const kvcache::error& fault) {
    using enum kvcache::error_code;
    problem made{.code = fault.field, .message = fault.message};
    if (fault.message.find("maximum context length") != std::string::npos)
        made.code = "context_length_exceeded";
    else if (fault.message.find(fault.field) == std::string::npos)
        made.message = fault.field + ": " + fault.message;
    if (fault.code == out_of_memory || fault.field == "tenants") {
        made.status = fault.field == "queue" || fault.field == "sessions" || fault.field == "tenants" ? 429 : 503;
        made.type = made.status == 429 ? "rate_limit_error" : "overloaded_error";
    } else if (fault.code == cancelled) {
        made.status = 503;
        made.type = "server_error";
    } else if (fault.field == "logits") {
        made.status = 500;
        made.type = "server_error";
    }
    return made;
}

/// Returns the reply to a request for another model than the one that is served.
[[nodiscard]] inline problem no_model(const std::string& asked, const std::string& served) {
    return {404, "invalid_request_error", "model_not_found",
            "model not found: " + asked.substr(0, 256) + "; this server has " + served};
}

inline void reply(http_response& out, const json& body) {
    out.body = body.dump(-1, ' ', false, json::error_handler_t::replace);
    out.type = "application/json";
}

inline void refuse(http_response& out, const problem& why) {
    out.status = static_cast<unsigned>(why.status);
    if (why.status == 429 || why.status == 503)
        out.headers.set(http::field::retry_after, "1");
    if (why.status == 401)
        out.headers.set(http::field::www_authenticate, "Bearer");
    reply(out, why.body());
}

} // namespace server
