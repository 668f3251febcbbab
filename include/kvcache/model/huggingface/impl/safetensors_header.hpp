// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/compiled.hpp>
#include <kvcache/core/errors.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/model/huggingface/json.hpp>
#include <kvcache/model/huggingface/safetensors_header.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI {

namespace detail {

/// Handler for the JSON events of a header. It stores only the fields that the format defines.
///
///     { "__metadata__": { key: text }, tensor: { "dtype": text, "shape": [n], "data_offsets": [begin, end] } }
template <class...>
class safetensors_events final : public sax_events<> {
public:
    explicit safetensors_events(safetensors_header& header) : header_(header) {}

    bool on_start_object() override {
        switch (place_) {
        case place::file:
            place_ = place::tensors;
            return true;
        case place::tensor_name:
            place_ = place::tensor;
            seen_ = {};
            return true;
        case place::metadata_name:
            place_ = place::metadata;
            return true;
        default:
            return refuse_type("an object");
        }
    }
    bool on_end_object() override {
        if (place_ == place::tensor) {
            for (std::size_t field = 0; field != 3; ++field)
                if (!seen_[field])
                    return fail(error_code::malformed, shown(tensor_) + "." + std::string(fields[field]),
                                "the field is missing");
        }
        place_ = place_ == place::tensors ? place::done : place::tensors;
        return true;
    }
    bool on_key(std::string& key) override {
        switch (place_) {
        case place::tensors: {
            if (key == "__metadata__") {
                if (std::exchange(has_metadata_, true))
                    return fail(error_code::malformed, "__metadata__", "the key is there twice");
                place_ = place::metadata_name;
                return true;
            }
            tensor_ = std::move(key);
            const auto [at, added] = header_.entries.try_emplace(tensor_);
            entry_ = &at->second;
            place_ = place::tensor_name;
            return added || fail(error_code::malformed, shown(tensor_), "the tensor is there twice");
        }
        case place::tensor: {
            const auto at = std::find(fields.begin(), fields.end(), key);
            if (at == fields.end())
                return fail(error_code::malformed, shown(tensor_) + "." + shown(key), "the field is not of the format");
            field_ = static_cast<std::size_t>(at - fields.begin());
            if (std::exchange(seen_[field_], true))
                return fail(error_code::malformed, where(), "the field is there twice");
            place_ = place::value;
            return true;
        }
        case place::metadata:
            metadata_key_ = std::move(key);
            place_ = place::metadata_value;
            return true;
        default:
            return refuse_type("a key");
        }
    }
    bool on_string(std::string& text) override {
        if (place_ == place::metadata_value) {
            place_ = place::metadata;
            const std::string field = "__metadata__." + shown(metadata_key_);
            return header_.metadata.emplace(std::move(metadata_key_), std::move(text)).second ||
                   fail(error_code::malformed, field, "the key is there twice");
        }
        if (place_ != place::value || field_ != 0)
            return refuse_type("a text");
        place_ = place::tensor;
        if (!safetensors_bits(text))
            return fail(error_code::unsupported, where(),
                        detail::joined({"the dtype \"", shown(text), "\" is not of the format"}));
        entry_->dtype = std::move(text);
        return true;
    }
    bool on_start_array() override {
        if (place_ != place::value || field_ == 0)
            return refuse_type("an array");
        place_ = place::numbers;
        offsets_ = 0;
        return true;
    }
    bool on_end_array() override {
        place_ = place::tensor;
        return field_ == 1 || offsets_ == 2 ||
               fail(error_code::malformed, where(),
                    detail::joined({"the field needs two numbers, not ", std::to_string(offsets_)}));
    }
    bool on_unsigned(std::uint64_t value) override {
        if (place_ != place::numbers)
            return refuse_type("a number");
        if (field_ == 1)
            entry_->shape.push_back(value);
        else if (offsets_++ == 0)
            entry_->begin = value;
        else
            entry_->end = value;
        return true;
    }
    bool on_other(std::string_view what) override { return refuse_type(what); }

private:
    enum class place {
        file,
        tensors,
        tensor_name,
        tensor,
        value,
        numbers,
        metadata_name,
        metadata,
        metadata_value,
        done
    };
    static constexpr std::array<std::string_view, 3> fields = {"dtype", "shape", "data_offsets"};

    [[nodiscard]] std::string where() const {
        switch (place_) {
        case place::tensor_name:
            return shown(tensor_);
        case place::tensor:
        case place::value:
        case place::numbers:
            return shown(tensor_) + "." + std::string(fields[field_]);
        case place::metadata_name:
        case place::metadata:
            return "__metadata__";
        case place::metadata_value:
            return "__metadata__." + shown(metadata_key_);
        default:
            return "header";
        }
    }
    bool refuse_type(std::string_view what) {
        return fail(error_code::malformed, where(), detail::joined({what, " does not belong there"}));
    }

    safetensors_header& header_;
    safetensors_entry* entry_ = nullptr;
    std::string tensor_;
    std::string metadata_key_;
    place place_ = place::file;
    std::size_t field_ = 0;
    std::size_t offsets_ = 0;
    std::array<bool, 3> seen_ = {};
    bool has_metadata_ = false;
};

} // namespace detail

KVCACHE_BODY result<safetensors_header> safetensors_header::parse(std::span<const std::byte> file,
                                                                  const std::string& name) {
    const auto refuse = [&](error_code code, const std::string& field, const std::string& what) {
        return error{code, field, detail::joined({name, ": ", field, ": ", what})};
    };
    constexpr std::size_t prefix = 8;
    if (file.size() < prefix)
        return refuse(
            error_code::truncated, "header length",
            detail::joined({"the file has ", std::to_string(file.size()), " bytes, fewer than the 8 of the length"}));
    std::uint64_t length = 0;
    for (std::size_t i = 0; i != prefix; ++i)
        length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
    if (length > limit)
        return refuse(
            error_code::malformed, "header length",
            detail::joined({"it is ", std::to_string(length), "; the format allows ", std::to_string(limit)}));
    if (length > file.size() - prefix)
        return refuse(error_code::truncated, "header length",
                      detail::joined({"it is ", std::to_string(length), ", but only ",
                                      std::to_string(file.size() - prefix), " bytes follow"}));

    auto text = file.subspan(prefix, static_cast<std::size_t>(length));
    while (!text.empty() && text.back() == std::byte{' '})
        text = text.first(text.size() - 1);
    if (text.empty() || text.front() != std::byte{'{'} || text.back() != std::byte{'}'})
        return refuse(error_code::malformed, "header", "it must be one JSON object, padded with spaces only");

    safetensors_header header;
    header.buffer = prefix + static_cast<std::size_t>(length);
    detail::safetensors_events<> events(header);
    if (auto parsed = events.parse(text, name); !parsed)
        return parsed.error();

    const std::size_t buffer_bytes = file.size() - header.buffer;
    std::vector<const std::pair<const std::string, safetensors_entry>*> order;
    order.reserve(header.entries.size());
    for (const auto& item : header.entries) {
        const auto& [tensor, entry] = item;
        const auto bytes = detail::safetensors_bytes(entry);
        if (!bytes)
            return refuse(error_code::malformed, detail::shown(tensor) + ".shape",
                          detail::joined({"its extents do not multiply to a number of ", entry.dtype,
                                          " bytes that fits 64 bits"}));
        if (entry.begin > entry.end)
            return refuse(error_code::malformed, detail::shown(tensor) + ".data_offsets",
                          detail::joined({"they begin at ", std::to_string(entry.begin), " and end before, at ",
                                          std::to_string(entry.end)}));
        if (entry.end > buffer_bytes)
            return refuse(error_code::truncated, detail::shown(tensor) + ".data_offsets",
                          detail::joined({"they end at ", std::to_string(entry.end), ", but the buffer has ",
                                          std::to_string(buffer_bytes), " bytes"}));
        if (entry.end - entry.begin != *bytes)
            return refuse(error_code::malformed, detail::shown(tensor) + ".data_offsets",
                          detail::joined({"they hold ", std::to_string(entry.end - entry.begin),
                                          " bytes; dtype and shape need ", std::to_string(*bytes)}));
        order.push_back(&item);
    }

    ranges::sort(order, {}, [](const auto* item) { return std::pair(item->second.begin, item->second.end); });
    std::size_t covered = 0;
    for (const auto* item : order) {
        if (item->second.begin != covered)
            return refuse(error_code::malformed, detail::shown(item->first) + ".data_offsets",
                          detail::joined({item->second.begin < covered ? "they overlap another tensor"
                                                                       : "they leave a hole before them",
                                          ": the tensors before end at ", std::to_string(covered), ", this begins at ",
                                          std::to_string(item->second.begin)}));
        covered = item->second.end;
    }
    if (covered != buffer_bytes)
        return refuse(error_code::malformed, "buffer",
                      detail::joined({"its ", std::to_string(buffer_bytes),
                                      " bytes go on after the last tensor, which ends at ", std::to_string(covered)}));
    return header;
}

}} // namespace kvcache
