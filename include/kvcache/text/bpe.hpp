// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/merge_table.hpp>
#include <kvcache/text/unicode.hpp>
#include <kvcache/text/vocabulary.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// Rules of a BPE model that is not read from tokenizer.json.
struct bpe_rules {
    bool ignore_merges = false; ///< A piece that is a token is that token.
    bool byte_fallback = false; ///< A character without a token becomes its bytes' tokens, "<0x0A>".
    bool fuse_unknown = false;  ///< Adjacent unknown characters become one unknown token.
    std::optional<std::int32_t> unknown = {};
};

/// Byte-pair encoding: the `model` of tokenizer.json. A piece starts as its characters (unknown ones as bytes or as
/// the unknown token). Then the adjacent pair with the lowest rank is merged, the leftmost of equals, until no merge
/// is left. Cost: O(n log n) for a piece of n bytes; a look-up for a piece seen before in the same `run`
/// (bpe_run.hpp).
template <class...>
class basic_bpe {
public:
    class run;

    /// Reads the model. Errors: a merge of unknown tokens, dropout, or a model type other than BPE.
    [[nodiscard]] static basic_bpe open(const json_reader& at) {
        basic_bpe made;
        const std::string type = at.text_or("type", "BPE");
        if (type != "BPE") {
            at.refuse(error_code::unsupported, "type", {"the model \"", type, "\" is not known"});
            return made;
        }
        if (at.has("dropout") &&
            !(at.member("dropout").value().is_number() && at.member("dropout").value().get<double>() == 0))
            at.refuse(error_code::unsupported, "dropout", "encodes at random, which this library does not");
        made.fuse_unknown_ = at.flag_or("fuse_unk", false);
        made.ignore_merges_ = at.flag_or("ignore_merges", false);
        made.prefix_ = at.text_or("continuing_subword_prefix", "");
        made.suffix_ = at.text_or("end_of_word_suffix", "");
        constexpr std::size_t longest = 64;
        if (made.prefix_.size() > longest || made.suffix_.size() > longest)
            at.refuse(error_code::out_of_range, "continuing_subword_prefix",
                      {"it, or end_of_word_suffix, has more than ", std::to_string(longest), " bytes"});
        made.vocabulary_ = vocabulary::open(at.member("vocab"));
        if (at.has("unk_token")) {
            made.unknown_ = made.vocabulary_.try_id(at.text("unk_token"));
            if (!made.unknown_)
                at.refuse(error_code::malformed, "unk_token", "is no token of the vocabulary");
        }
        if (at.flag_or("byte_fallback", false))
            made.find_byte_tokens();
        if (!at.failed())
            made.read_merges(at.member("merges"));
        if (!at.failed())
            made.index_characters();
        return made;
    }

    /// Builds a model of a vocabulary. `each_merge(tokens, set)` calls set(left, right, merge) at most `count` times,
    /// with ids of the vocabulary. Requires: the tokens are UTF-8.
    template <class EachMerge>
    [[nodiscard]] static basic_bpe of(vocabulary tokens, const bpe_rules& with, std::size_t count,
                                      EachMerge each_merge) {
        basic_bpe made;
        made.vocabulary_ = std::move(tokens);
        made.ignore_merges_ = with.ignore_merges;
        made.fuse_unknown_ = with.fuse_unknown;
        made.unknown_ = with.unknown;
        if (with.byte_fallback)
            made.find_byte_tokens();
        made.merges_ = merge_table(count);
        each_merge(std::as_const(made.vocabulary_), [&](std::int32_t left, std::int32_t right, merge one) {
            made.merges_.set(left, right, one);
            made.index_neighbours(*made.vocabulary_.try_token(one.made));
        });
        made.index_characters();
        return made;
    }

    [[nodiscard]] const vocabulary& tokens() const noexcept { return vocabulary_; }

    /// The longest text that is encoded, in bytes: its symbols, one for each byte with its prefix and suffix, are
    /// counted in 32 bits.
    [[nodiscard]] std::size_t longest_text() const noexcept {
        return std::numeric_limits<std::int32_t>::max() / (1 + prefix_.size() + suffix_.size());
    }

private:
    void find_byte_tokens() {
        constexpr std::string_view digits = "0123456789ABCDEF";
        for (std::size_t b = 0; b < 256; ++b) {
            const std::string name{'<', '0', 'x', digits[b >> 4], digits[b & 15], '>'};
            byte_tokens_[b] = vocabulary_.try_id(name).value_or(-1);
        }
    }

    void read_merges(const json_reader& at) {
        merges_ = merge_table(at.value().is_array() ? at.value().size() : 0);
        std::uint32_t rank = 0;
        at.each([&](const json_reader& one) {
            std::string_view left;
            std::string_view right;
            if (const auto* line = one.value().get_ptr<const std::string*>()) {
                if (line->starts_with("#version"))
                    return;
                const auto space = line->find(' ');
                if (space == line->npos || line->find(' ', space + 1) != line->npos)
                    return one.refuse(error_code::malformed, "", {"\"", *line, "\" is not two tokens"});
                left = std::string_view(*line).substr(0, space);
                right = std::string_view(*line).substr(space + 1);
            } else if (one.value().is_array() && one.value().size() == 2 && one.value()[0].is_string() &&
                       one.value()[1].is_string()) {
                left = *one.value()[0].get_ptr<const std::string*>();
                right = *one.value()[1].get_ptr<const std::string*>();
            } else {
                return one.refuse(error_code::mismatched, "", "is neither a string nor a pair of strings");
            }
            add_merge(one, rank++, left, right);
        });
    }

    void add_merge(const json_reader& at, std::uint32_t rank, std::string_view left, std::string_view right) {
        if (right.size() < prefix_.size())
            return at.refuse(error_code::malformed, "", "its right token is shorter than continuing_subword_prefix");
        const std::string whole = kvcache::detail::joined({left, right.substr(prefix_.size())});
        const auto a = vocabulary_.try_id(left);
        const auto b = vocabulary_.try_id(right);
        const auto made = vocabulary_.try_id(whole);
        if (!a || !b || !made) {
            const std::string_view missing = !a ? left : !b ? right : std::string_view(whole);
            return at.refuse(error_code::malformed, "",
                             {"merges to or from \"", missing, "\", which is no token of the vocabulary"});
        }
        merges_.set(*a, *b, {rank, *made});
        index_neighbours(whole);
    }
    void index_neighbours(std::string_view whole) {
        for (std::size_t i = 0; i < whole.size();) {
            const auto c = code_point_at(whole, i);
            i += c.bytes;
            if (i < whole.size())
                neighbours_.insert(neighbour_key(c.value, code_point_at(whole, i).value));
        }
    }

    void index_characters() {
        narrow_.fill(-1);
        for (std::int32_t id = 0; static_cast<std::size_t>(id) < vocabulary_.size(); ++id) {
            const std::string* token = vocabulary_.try_token(id);
            if (!token || token->empty() || code_point_at(*token, 0).bytes != token->size())
                continue;
            const char32_t c = code_point_at(*token, 0).value;
            if (c < narrow_.size())
                narrow_[c] = id;
            else
                wide_.emplace(c, id);
        }
    }

    [[nodiscard]] std::int32_t character(char32_t c) const {
        if (c < narrow_.size())
            return narrow_[c];
        const auto found = wide_.find(c);
        return found == wide_.end() ? -1 : found->second;
    }
    [[nodiscard]] static std::uint64_t neighbour_key(char32_t left, char32_t right) noexcept {
        return (std::uint64_t{left} << 32) | right;
    }

    vocabulary vocabulary_;
    merge_table merges_;
    std::unordered_set<std::uint64_t> neighbours_; ///< Pairs of adjacent characters in the tokens that merges make.
    std::array<std::int32_t, 2048> narrow_{};
    std::unordered_map<char32_t, std::int32_t> wide_;
    std::array<std::int32_t, 256> byte_tokens_ = [] {
        std::array<std::int32_t, 256> none{};
        none.fill(-1);
        return none;
    }();
    std::optional<std::int32_t> unknown_;
    std::string prefix_;
    std::string suffix_;
    bool fuse_unknown_ = false;
    bool ignore_merges_ = false;
};
using bpe = basic_bpe<>;

}}} // namespace kvcache::text
