// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/result.hpp>

#include <initializer_list>
#include <string_view>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// Aborts a parse or a rendering; it is caught where the template is opened or rendered.
struct failure {
    error reason = {};
};

/// Returns the failure with the line of the template in its message, unless it has one or a line does not matter.
KVCACHE_LAZY [[nodiscard]] inline failure at_line(failure f, std::size_t line) {
    const bool known = f.reason.message.starts_with("line ") || f.reason.code == error_code::cancelled;
    if (f.reason.field == "chat_template" && !known)
        f.reason.message = kvcache::detail::joined({"line ", std::to_string(line), ": ", f.reason.message});
    return f;
}

/// Throws `failure` with error_code::unsupported; the message is the joined words.
KVCACHE_LAZY [[noreturn]] inline void refuse(std::initializer_list<std::string_view> words) {
    throw failure{{error_code::unsupported, "chat_template", kvcache::detail::joined(words)}};
}
/// Throws `failure` with error_code::unsupported.
KVCACHE_LAZY [[noreturn]] inline void refuse(std::string_view words) {
    refuse({words});
}
/// Throws `failure` with error_code::cancelled.
KVCACHE_LAZY [[noreturn]] inline void give_up() {
    throw failure{{error_code::cancelled, "chat_template", "the caller cancelled the rendering"}};
}
/// Throws `failure` with error_code::mismatched; the message is the joined words.
KVCACHE_LAZY [[noreturn]] inline void mistake(std::initializer_list<std::string_view> words) {
    throw failure{{error_code::mismatched, "chat_template", kvcache::detail::joined(words)}};
}
/// Throws `failure` with error_code::mismatched.
KVCACHE_LAZY [[noreturn]] inline void mistake(std::string_view words) {
    mistake({words});
}

}}} // namespace kvcache::text::jinja
