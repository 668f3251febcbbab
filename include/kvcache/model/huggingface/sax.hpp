// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/joined.hpp>
#include <kvcache/core/json.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/core/shown.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI { namespace detail {

/// Strict JSON parser that emits events. Its memory does not grow with the nesting depth, and its time does not depend
/// on the number of keys of an object. Every on_ function returns false to stop; fail() records the reason.
template <class...>
class sax_events : private json_events {
public:
    /// Parses all of `text`. Returns: the error that stopped it, with `name` before the message.
    [[nodiscard]] result<void> parse(std::span<const std::byte> text, const std::string& name) {
        if (!tell_json({reinterpret_cast<const char*>(text.data()), text.size()}, *this) && !problem_)
            fail(error_code::malformed, "JSON", "the text is not JSON");
        if (!problem_)
            return {};
        problem_->message = joined({name, ": ", problem_->field, ": ", problem_->message});
        return *std::move(problem_);
    }

    /// Records the first error. Returns: false.
    bool fail(error_code code, std::string field, std::string message) {
        if (!problem_)
            problem_ = kvcache::error{code, std::move(field), std::move(message)};
        return false;
    }

    virtual bool on_start_object() = 0;
    virtual bool on_end_object() = 0;
    virtual bool on_key(std::string& name) = 0;
    virtual bool on_start_array() = 0;
    virtual bool on_end_array() = 0;
    virtual bool on_string(std::string& text) = 0;
    virtual bool on_unsigned(std::uint64_t value) = 0;
    virtual bool on_other(std::string_view what) = 0; ///< All other values: null, booleans, other numbers.

private:
    bool null() final { return on_other("null"); }
    bool boolean(bool) final { return on_other("a boolean"); }
    bool number_integer(std::int64_t) final { return on_other("a negative number"); }
    bool number_unsigned(std::uint64_t value) final { return on_unsigned(value); }
    bool number_float(double, const std::string&) final { return on_other("a number that is no 64-bit integer"); }
    bool string(std::string& text) final { return on_string(text); }
    bool binary(json::binary_t&) final { return on_other("binary"); }
    bool start_object(std::size_t) final { return on_start_object(); }
    bool key(std::string& name) final { return on_key(name); }
    bool end_object() final { return on_end_object(); }
    bool start_array(std::size_t) final { return on_start_array(); }
    bool end_array() final { return on_end_array(); }
    bool parse_error(std::size_t position, const std::string&, const json::exception& reason) final {
        return fail(error_code::malformed, "JSON",
                    joined({"at byte ", std::to_string(position), ": ", shown(reason.what())}));
    }

    std::optional<kvcache::error> problem_;
};

}}} // namespace kvcache::detail
