// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/mapped_file.hpp>
#include <kvcache/core/result.hpp>
#include <kvcache/model/huggingface/rope.hpp>
#include <kvcache/model/huggingface/shard_index.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// Handler that reads the top-level "weight_map", an object of strings, and skips all other fields.
template <class...>
class shard_index_events final : public sax_events<> {
public:
    explicit shard_index_events(shard_index& index) : index_(index) {}

    [[nodiscard]] bool found() const noexcept { return found_; }

    bool on_start_object() override {
        ++depth_;
        if (inside_)
            return refuse_type("an object");
        if (depth_ == 2 && key_ == "weight_map")
            inside_ = true;
        return true;
    }
    bool on_end_object() override {
        inside_ = false;
        --depth_;
        return true;
    }
    bool on_key(std::string& key) override {
        key_ = std::move(key);
        if (depth_ == 1 && key_ == "weight_map" && std::exchange(found_, true))
            return fail(error_code::malformed, "weight_map", "the key is there twice");
        return true;
    }
    bool on_string(std::string& text) override {
        if (!inside_)
            return on_other("a text");
        const std::string field = "weight_map." + shown(key_);
        // Only a plain file name in the same directory: no separator, no parent, not empty, no NUL.
        if (text.empty() || text == "." || text == ".." ||
            text.find_first_of(std::string_view("/\\\0", 3)) != text.npos)
            return fail(error_code::malformed, field,
                        detail::joined({"\"", shown(text), "\" is not the name of a file next to the index"}));
        return index_.shard_of.emplace(std::move(key_), std::move(text)).second ||
               fail(error_code::malformed, field, "the tensor is there twice");
    }
    bool on_start_array() override {
        const bool fits = on_other("an array");
        ++depth_;
        return fits;
    }
    bool on_end_array() override {
        --depth_;
        return true;
    }
    bool on_unsigned(std::uint64_t) override { return on_other("a number"); }
    bool on_other(std::string_view what) override {
        const bool skipped = depth_ > 1 || (depth_ == 1 && key_ != "weight_map");
        return (skipped && !inside_) || refuse_type(what);
    }

private:
    bool refuse_type(std::string_view what) {
        return fail(error_code::malformed,
                    inside_       ? "weight_map." + shown(key_)
                    : depth_ == 0 ? "JSON"
                                  : "weight_map",
                    detail::joined({what, " does not belong there"}));
    }

    shard_index& index_;
    std::string key_;
    std::size_t depth_ = 0;
    bool inside_ = false;
    bool found_ = false;
};

} // namespace detail

KVCACHE_BODY result<shard_index> shard_index::read(const std::filesystem::path& file) {
    const auto mapped = mapped_file::open(file);
    if (!mapped)
        return mapped.error();
    shard_index index;
    detail::shard_index_events<> events(index);
    if (auto parsed = events.parse(mapped->bytes(), mapped->name()); !parsed)
        return parsed.error();
    if (index.shard_of.empty())
        return error{error_code::malformed, "weight_map",
                     detail::joined({mapped->name(), ": weight_map: ",
                                     events.found() ? "it names no tensor" : "the field is missing"})};
    return index;
}

}} // namespace kvcache
