// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/jinja/value.hpp>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text::jinja {

struct expression;
/// An expression that its parent owns.
using expression_pointer = std::unique_ptr<expression>;

/// Kinds of expressions.
enum class expression_kind {
    constant,   ///< `constant`
    name,       ///< `text`
    sequence,   ///< `parts`, a list
    tuple,      ///< `parts`
    mapping,    ///< `parts`: key, value, key, value
    attribute,  ///< parts[0].text
    item,       ///< parts[0][parts[1]]
    slice,      ///< parts[0][parts[1]:parts[2]:parts[3]], each may be null
    call,       ///< parts[0](arguments)
    filter,     ///< parts[0] | text(arguments)
    test,       ///< parts[0] is text(arguments)
    unary,      ///< text parts[0]
    binary,     ///< parts[0] text parts[1]
    comparison, ///< parts[0] operators[0] parts[1] operators[1] parts[2]
    spread,     ///< `text` parts[0]: an argument that is several, after * or **
    body,       ///< The text of the block that a filter is applied to.
    condition,  ///< parts[1] if parts[0] else parts[2], which may be null
};

/// A node of a template that has a value.
struct expression {
    expression_kind kind = expression_kind::constant;
    std::size_t line = 0;
    std::size_t height = 1; ///< Height of the tree under it.
    std::string text = {};
    value constant = {};
    std::vector<expression_pointer> parts = {};
    std::vector<std::string> operators = {};
    std::vector<expression_pointer> arguments = {};
    std::vector<std::pair<std::string, expression_pointer>> named_arguments = {};
};

struct statement;
/// Statements in order: the body of a branch, a loop or a macro.
using block = std::vector<std::unique_ptr<statement>>;

/// Kinds of statements.
enum class statement_kind { data, print, branch, loop, set, set_block, macro, call, filter, with, leave, next };

/// A node of a template that is executed.
struct statement {
    statement_kind kind = statement_kind::data;
    std::size_t line = 0;
    std::string text = {};                 ///< Text to output, or the name of a macro.
    std::vector<std::string> targets = {}; ///< Names assigned by a loop, set or with; "a.b" for a namespace.
    std::vector<expression_pointer> values = {};
    std::vector<block> bodies = {}; ///< The bodies of the branches; of a loop and its else.
    std::vector<std::pair<std::string, expression_pointer>> parameters = {}; ///< Of a macro or a call block.
    bool takes_varargs = false; ///< A macro that names its further arguments `varargs`, or `kwargs`.
    bool takes_kwargs = false;
};

}}} // namespace kvcache::text::jinja
