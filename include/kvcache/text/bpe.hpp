// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/core/abi.hpp>
#include <kvcache/core/platform/standard.hpp>
#include <kvcache/text/unicode.hpp>
#include <kvcache/text/vocabulary.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

/// The merge of two adjacent tokens: its rank and the resulting token.
struct merge {
    std::uint32_t rank = 0;
    std::int32_t made = 0;
};

/// A hash table from a pair of tokens to their merge: open addressing, with one probe for most pairs.
template <class...>
class basic_merge_table {
public:
    basic_merge_table() : basic_merge_table(0) {}
    /// An empty table for up to `count` merges.
    explicit basic_merge_table(std::size_t count) : slots_(std::bit_ceil(2 * count + 2)) {}

    /// Sets the merge of a pair, and replaces an earlier one. Requires: room for it.
    void set(std::int32_t left, std::int32_t right, merge m) {
        slot& s = slots_[place(key_of(left, right))];
        s = {key_of(left, right), m};
    }
    [[nodiscard]] const merge* find(std::int32_t left, std::int32_t right) const noexcept {
        const slot& s = slots_[place(key_of(left, right))];
        return s.key == empty ? nullptr : &s.value;
    }

private:
    static constexpr std::uint64_t empty = ~std::uint64_t{0}; // not a key: token ids are not negative
    struct slot {
        std::uint64_t key = empty;
        merge value = {};
    };

    [[nodiscard]] static std::uint64_t key_of(std::int32_t left, std::int32_t right) noexcept {
        return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
    }
    [[nodiscard]] std::size_t place(std::uint64_t key) const noexcept {
        std::uint64_t h = key * 0x9e3779b97f4a7c15u; // multiplication by the golden ratio spreads adjacent ids
        h ^= h >> 32;
        const std::size_t mask = slots_.size() - 1;
        std::size_t i = static_cast<std::size_t>(h) & mask;
        while (slots_[i].key != empty && slots_[i].key != key)
            i = (i + 1) & mask;
        return i;
    }

    std::vector<slot> slots_;
};
using merge_table = basic_merge_table<>;

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
        each_code_point(whole, [&](code_point c, std::size_t at) {
            if (const std::size_t next = at + c.bytes; next < whole.size())
                neighbours_.insert(neighbour_key(c.value, code_point_at(whole, next).value));
        });
    }

    void index_characters() {
        narrow_.fill(-1);
        for (std::int32_t id = 0; static_cast<std::size_t>(id) < vocabulary_.size(); ++id) {
            const std::string* token = vocabulary_.try_token(id);
            if (!token || !is_one_code_point(*token))
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

/// The working state of one encoding: reused buffers, and a cache of the pieces already encoded.
template <class... Any>
class basic_bpe<Any...>::run {
public:
    /// `forbidden`, if given, has one entry per id: true for a token that text must not become (the unknown token
    /// excepted).
    run(const basic_bpe& model, const std::vector<bool>* forbidden) : model_(&model), forbidden_(forbidden) {}

    /// Appends the tokens of one piece. Requires: piece is UTF-8.
    void encode(std::string_view piece, std::vector<std::int32_t>& out) {
        if (piece.empty())
            return;
        if (model_->ignore_merges_) {
            const auto whole = model_->vocabulary_.try_id(piece);
            if (whole && allowed(*whole)) {
                out.push_back(*whole);
                return;
            }
        }
        if (!model_->prefix_.empty() || !model_->suffix_.empty())
            return encode_remembered(piece, out);
        // If no token made by a merge contains these two adjacent characters, no merge spans them, and the sides are
        // independent.
        std::size_t begin = 0;
        auto before = code_point_at(piece, 0);
        for (std::size_t i = before.bytes; i < piece.size();) {
            const auto c = code_point_at(piece, i);
            if (!model_->neighbours_.contains(neighbour_key(before.value, c.value)) && known(before.value) &&
                known(c.value)) {
                encode_remembered(piece.substr(begin, i - begin), out);
                begin = i;
            }
            before = c;
            i += c.bytes;
        }
        encode_remembered(piece.substr(begin), out);
    }

private:
    struct symbol {
        std::int32_t token = 0;
        std::int32_t previous = -1;
        std::int32_t next = -1;
        bool gone = false;
    };
    struct candidate {
        std::uint32_t rank = 0;
        std::int32_t at = 0;
        std::int32_t made = 0;
        friend bool operator<(const candidate& a, const candidate& b) noexcept { // for a max-heap
            return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
        }
    };

    [[nodiscard]] bool allowed(std::int32_t id) const {
        return !forbidden_ || static_cast<std::size_t>(id) >= forbidden_->size() ||
               !(*forbidden_)[static_cast<std::size_t>(id)];
    }
    [[nodiscard]] bool known(char32_t c) const {
        const auto id = model_->character(c);
        return id >= 0 && allowed(id);
    }
    [[nodiscard]] const merge* try_merge(std::int32_t left, std::int32_t right) const {
        const merge* m = model_->merges_.find(left, right);
        return m && allowed(m->made) ? m : nullptr;
    }

    void encode_remembered(std::string_view piece, std::vector<std::int32_t>& out) {
        constexpr std::size_t longest = 128; // longer pieces rarely repeat
        constexpr std::size_t most = 1u << 17;
        if (piece.size() > longest)
            return encode_afresh(piece, out);
        const auto seen = seen_.find(piece);
        if (seen != seen_.end()) {
            const auto begin = made_.begin() + static_cast<std::ptrdiff_t>(seen->second.first);
            out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(seen->second.second));
            return;
        }
        const std::size_t before = out.size();
        encode_afresh(piece, out);
        if (seen_.size() < most) {
            seen_.emplace(std::string(piece), std::pair(made_.size(), out.size() - before));
            made_.insert(made_.end(), out.begin() + static_cast<std::ptrdiff_t>(before), out.end());
        }
    }

    void encode_afresh(std::string_view piece, std::vector<std::int32_t>& out) {
        symbols_.clear();
        start(piece);
        merge_all();
        for (const symbol& s : symbols_)
            if (!s.gone)
                out.push_back(s.token);
    }

    void add(std::int32_t token) {
        const auto at = static_cast<std::int32_t>(symbols_.size());
        if (at > 0)
            symbols_.back().next = at;
        symbols_.push_back({token, at - 1, -1, false});
    }

    /// Splits the piece into single characters.
    void start(std::string_view piece) {
        std::int32_t pending_unknown = -1;
        for (std::size_t i = 0; i < piece.size();) {
            const auto c = code_point_at(piece, i);
            const std::string_view bytes = piece.substr(i, c.bytes);
            const bool first = i == 0;
            i += c.bytes;
            const auto id = initial(bytes, c.value, first, i == piece.size());
            if (id >= 0 && allowed(id)) {
                if (pending_unknown >= 0)
                    add(pending_unknown);
                pending_unknown = -1;
                add(id);
            } else if (!add_bytes(bytes, first, i == piece.size()) && model_->unknown_) {
                if (pending_unknown >= 0 && !model_->fuse_unknown_)
                    add(pending_unknown);
                pending_unknown = *model_->unknown_;
            }
        }
        if (pending_unknown >= 0)
            add(pending_unknown);
    }

    [[nodiscard]] std::int32_t initial(std::string_view bytes, char32_t c, bool first, bool last) const {
        if ((first || model_->prefix_.empty()) && (!last || model_->suffix_.empty()))
            return model_->character(c);
        return model_->vocabulary_.try_id(decorated(bytes, first, last)).value_or(-1);
    }
    [[nodiscard]] std::string decorated(std::string_view bytes, bool first, bool last) const {
        return (first ? "" : model_->prefix_) + std::string(bytes) + (last ? model_->suffix_ : "");
    }

    [[nodiscard]] bool add_bytes(std::string_view bytes, bool first, bool last) {
        const std::string written = decorated(bytes, first, last);
        const auto token_of = [&](char b) { return model_->byte_tokens_[static_cast<unsigned char>(b)]; };
        if (ranges::any_of(written, [&](char b) { return token_of(b) < 0; }))
            return false;
        for (const char b : written)
            add(token_of(b));
        return true;
    }

    void merge_all() {
        std::vector<candidate> storage = std::move(queue_storage_);
        storage.clear();
        for (std::size_t i = 0; i + 1 < symbols_.size(); ++i)
            if (const merge* m = try_merge(symbols_[i].token, symbols_[i + 1].token))
                storage.push_back({m->rank, static_cast<std::int32_t>(i), m->made});
        std::make_heap(storage.begin(), storage.end());
        const auto offer = [&](std::int32_t left, std::int32_t right) {
            if (left < 0 || right < 0)
                return;
            if (const merge* m = try_merge(at(left).token, at(right).token)) {
                storage.push_back({m->rank, left, m->made});
                std::push_heap(storage.begin(), storage.end());
            }
        };
        while (!storage.empty()) {
            std::pop_heap(storage.begin(), storage.end());
            const candidate best = storage.back();
            storage.pop_back();
            symbol& left = at(best.at);
            if (left.gone || left.next < 0)
                continue;
            symbol& right = at(left.next);
            const merge* m = try_merge(left.token, right.token);
            if (!m || m->made != best.made) // a stale queue entry
                continue;
            left.token = best.made;
            right.gone = true;
            left.next = right.next;
            if (left.next >= 0)
                at(left.next).previous = best.at;
            offer(left.previous, best.at);
            offer(best.at, left.next);
        }
        queue_storage_ = std::move(storage);
    }

    [[nodiscard]] symbol& at(std::int32_t i) { return symbols_[static_cast<std::size_t>(i)]; }

    struct text_hash {
        using is_transparent = void;
        [[nodiscard]] std::size_t operator()(std::string_view s) const noexcept {
            return std::hash<std::string_view>{}(s);
        }
    };

    const basic_bpe* model_;
    const std::vector<bool>* forbidden_;
    std::vector<symbol> symbols_;
    std::vector<candidate> queue_storage_;
    std::unordered_map<std::string, std::pair<std::size_t, std::size_t>, text_hash, std::equal_to<>> seen_;
    std::vector<std::int32_t> made_;
};

}}} // namespace kvcache::text
