// SPDX-License-Identifier: MIT
#pragma once

#include <exception>
#include <functional>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "http_message.hpp"
#include "problem.hpp"

namespace server {

/// Finds the handler of a request.
class router {
public:
    using handler = std::function<void(const http_request&, http_response&)>;

    /// Adds a handler. A path that ends in /* stands for every path below it. A handler of GET answers HEAD too.
    void add(std::string method, std::string path, handler answer) {
        all_.push_back({std::move(method), std::move(path), std::move(answer)});
    }

    /// Calls the handler of a request. Replies 404 if there is none, and 500 or 503 if it throws.
    void answer(const http_request& in, http_response& out) const {
        try {
            for (const entry& each : all_)
                if (each.method == (in.is_head() ? "GET" : in.method()) && each.matches(in.path()))
                    return each.answer(in, out);
            refuse(out, {.status = 404,
                         .code = "404",
                         .message = "there is nothing at " + in.method() + " " + in.path().substr(0, 256)});
        } catch (const std::bad_alloc&) {
            refuse(out, {.status = 503, .type = "overloaded_error", .code = "memory", .message = "out of memory"});
        } catch (const std::exception& fault) {
            refuse(out, {.status = 500, .type = "server_error", .code = "internal", .message = fault.what()});
        }
    }

private:
    struct entry {
        std::string method, path;
        handler answer;

        [[nodiscard]] bool matches(std::string_view asked) const {
            const std::string_view above = std::string_view(path).substr(0, path.size() - 1);
            return path.ends_with("/*") ? asked.size() > above.size() && asked.starts_with(above) : asked == path;
        }
    };

    std::vector<entry> all_;
};

} // namespace server
