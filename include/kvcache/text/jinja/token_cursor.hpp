// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/jinja/lexer.hpp>
#include <kvcache/text/jinja/syntax.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

/// A position in the tokens of a template, and the factory of its expressions.
template <class...>
class basic_token_cursor {
public:
    explicit basic_token_cursor(std::vector<token> tokens) : tokens_(std::move(tokens)) {}

protected:
    [[nodiscard]] const token& current() const { return tokens_[at_]; }
    [[nodiscard]] const token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
    token take() {
        token t = tokens_[at_];
        if (at_ + 1 < tokens_.size())
            ++at_;
        return t;
    }
    [[nodiscard]] bool is_sign(std::string_view s) const {
        return current().kind == token_kind::sign && current().text == s;
    }
    [[nodiscard]] bool is_name(std::string_view s) const {
        return current().kind == token_kind::name && current().text == s;
    }
    bool take_sign(std::string_view s) {
        const bool found = is_sign(s);
        if (found)
            take();
        return found;
    }
    bool take_name(std::string_view s) {
        const bool found = is_name(s);
        if (found)
            take();
        return found;
    }
    void expect_sign(std::string_view s) {
        if (!take_sign(s))
            unexpected(s);
    }
    [[nodiscard]] std::string expect_name() {
        if (current().kind != token_kind::name)
            unexpected("a name");
        return take().text;
    }
    [[noreturn]] void unexpected(std::string_view wanted) const {
        refuse({"line ", std::to_string(current().line), ": \"", current().text, "\" stands where ", wanted,
                " is expected"});
    }

    /// Counts the nesting depth of expressions and blocks, so that a hostile template cannot exhaust the stack.
    class level {
    public:
        explicit level(std::size_t& depth) : depth_(&depth) {
            constexpr std::size_t deepest = 100;
            if (++depth > deepest)
                refuse({"more than ", std::to_string(deepest), " levels are nested"});
        }
        level(const level&) = delete;
        level& operator=(const level&) = delete;
        ~level() { --*depth_; }

    private:
        std::size_t* depth_;
    };
    [[nodiscard]] level deeper() { return level(depth_); }

    [[nodiscard]] expression_pointer make(expression_kind kind, std::string text = {}) const {
        auto made = std::make_unique<expression>();
        made->kind = kind;
        made->line = current().line;
        made->text = std::move(text);
        return made;
    }
    template <class... Parts>
    [[nodiscard]] expression_pointer join(expression_kind kind, std::string text, Parts... parts) const {
        auto made = make(kind, std::move(text));
        (hold(*made, made->parts.emplace_back(std::move(parts))), ...);
        return made;
    }
    /// Limits the height of the tree, which is walked recursively.
    void hold(expression& parent, const expression_pointer& child) const {
        constexpr std::size_t highest = 400;
        if (child && child->height >= parent.height)
            parent.height = child->height + 1;
        if (parent.height > highest)
            refuse({"line ", std::to_string(parent.line), ": an expression has more than ", std::to_string(highest),
                    " operators in a row"});
    }

private:
    std::vector<token> tokens_;
    std::size_t at_ = 0;
    std::size_t depth_ = 0;
};
using token_cursor = basic_token_cursor<>;

}}} // namespace kvcache::text::jinja
