// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/json_reader.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// Adds special tokens around the tokens of one text: the `post_processor` of tokenizer.json.
template <class...>
class basic_post_processor {
public:
    basic_post_processor() = default;

    /// Reads a post-processor for single texts; null is none. Token ids in it are less than `size`.
    [[nodiscard]] static basic_post_processor open(const json_reader& at, std::size_t size) {
        basic_post_processor made;
        made.add(at, size);
        return made;
    }

    [[nodiscard]] const std::vector<std::int32_t>& before() const noexcept { return before_; }
    [[nodiscard]] const std::vector<std::int32_t>& after() const noexcept { return after_; }

private:
    void add(const json_reader& at, std::size_t size) {
        if (at.value().is_null())
            return;
        const std::string type = at.text("type");
        if (type == "Sequence")
            at.member("processors").each([&](const json_reader& one) { add(one, size); });
        else if (type == "TemplateProcessing")
            add_template(at, size);
        else if (type == "BertProcessing" || type == "RobertaProcessing") {
            check_count(at, before_.size() + after_.size() + 2);
            wrap({pair_id(at.member("cls"), size)}, {pair_id(at.member("sep"), size)});
        } else if (type != "ByteLevel") // it only changes offsets
            at.refuse(error_code::unsupported, "type", {"the post-processor \"", type, "\" is not known"});
    }

    void add_template(const json_reader& at, std::size_t size) {
        std::vector<std::int32_t> before;
        std::vector<std::int32_t> after;
        bool seen = false;
        at.member("single").each([&](const json_reader& part) {
            if (part.has("Sequence")) {
                if (part.member("Sequence").text("id") != "A" || seen)
                    part.refuse(error_code::unsupported, "Sequence.id", "a single text is the sequence A, once");
                seen = true;
                return;
            }
            const std::string name = part.member("SpecialToken").text("id");
            if (part.failed())
                return;
            at.member("special_tokens").member(name).member("ids").each([&](const json_reader& id) {
                (seen ? after : before).push_back(read_id(id, size));
                check_count(at, before_.size() + after_.size() + before.size() + after.size());
            });
        });
        if (!seen && !at.failed())
            at.refuse(error_code::unsupported, "single", "the text itself, the sequence A, is not in the template");
        wrap(std::move(before), after);
    }

    [[nodiscard]] static std::int32_t pair_id(const json_reader& at, std::size_t size) {
        std::int32_t id = 0;
        std::size_t i = 0;
        at.each([&](const json_reader& part) {
            if (i++ == 1)
                id = read_id(part, size);
        });
        if (i != 2)
            at.refuse(error_code::malformed, "", "is not a token and its id");
        return id;
    }
    [[nodiscard]] static std::int32_t read_id(const json_reader& at, std::size_t size) {
        return static_cast<std::int32_t>(at.number(size == 0 ? 0 : size - 1));
    }

    static void check_count(const json_reader& at, std::size_t tokens) {
        constexpr std::size_t most = 1024;
        if (tokens > most)
            at.refuse(error_code::out_of_range, "", {"adds more than ", std::to_string(most), " tokens to a text"});
    }
    void wrap(std::vector<std::int32_t> before, const std::vector<std::int32_t>& after) {
        before.insert(before.end(), before_.begin(), before_.end());
        before_ = std::move(before);
        after_.insert(after_.end(), after.begin(), after.end());
    }

    std::vector<std::int32_t> before_;
    std::vector<std::int32_t> after_;
};
using post_processor = basic_post_processor<>;

}}} // namespace kvcache::text
