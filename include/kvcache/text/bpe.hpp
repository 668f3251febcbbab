// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/merge_table.hpp>
#include <kvcache/text/unicode.hpp>
#include <kvcache/text/vocabulary.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace kvcache::text {

/// Byte-pair encoding: the `model` of tokenizer.json. A piece starts as its characters (unknown ones as their bytes or
/// as the unknown token); then the pair of neighbours that was learnt first merges, the leftmost of equals, until none
/// is left. Cost: O(n log n) for a piece of n bytes; a piece seen before in one `run` costs a look-up.
class bpe {
public:
    class run;

    /// Reads the model. Refuses a merge of unknown tokens, dropout, and every model type but BPE.
    [[nodiscard]] static bpe open(const json_reader& at) {
        bpe made;
        const std::string type = at.text_or("type", "BPE");
        if (type != "BPE") {
            at.refuse(error_code::unsupported, "type", "the model \"" + type + "\" is not known");
            return made;
        }
        if (at.has("dropout") && !(at.member("dropout").value().is_number() && at.member("dropout").value() == 0))
            at.refuse(error_code::unsupported, "dropout", "encodes at random, which this library does not");
        made.fuse_unknown_ = at.flag_or("fuse_unk", false);
        made.ignore_merges_ = at.flag_or("ignore_merges", false);
        made.prefix_ = at.text_or("continuing_subword_prefix", "");
        made.suffix_ = at.text_or("end_of_word_suffix", "");
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

    [[nodiscard]] const vocabulary& tokens() const noexcept { return vocabulary_; }

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
                    return one.refuse(error_code::malformed, "", "\"" + *line + "\" is not two tokens");
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
        const std::string whole = std::string(left) + std::string(right.substr(prefix_.size()));
        const auto a = vocabulary_.try_id(left);
        const auto b = vocabulary_.try_id(right);
        const auto made = vocabulary_.try_id(whole);
        if (!a || !b || !made) {
            const std::string_view missing = !a ? left : !b ? right : std::string_view(whole);
            return at.refuse(error_code::malformed, "",
                             "merges to or from \"" + std::string(missing) + "\", which is no token of the vocabulary");
        }
        merges_.set(*a, *b, {rank, *made});
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
    std::unordered_set<std::uint64_t> neighbours_; ///< Characters that stand side by side in what merges make.
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

/// The working state of one encoding: memory that is used again, and the pieces already seen.
class bpe::run {
public:
    /// `forbidden`, if given, has one entry an id: a token that text must not become, but by being unknown.
    run(const bpe& model, const std::vector<bool>* forbidden) : model_(&model), forbidden_(forbidden) {}

    /// Appends the tokens of one piece. Requires: UTF-8.
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
        // Where no merge makes a token with these two neighbours, none ever crosses: the sides are apart for good.
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
        friend bool operator<(const candidate& a, const candidate& b) noexcept { // the greatest leaves a queue first
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
        constexpr std::size_t longest = 128; // longer pieces hardly ever come twice
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

    /// The piece as single characters.
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
        for (const char b : written) {
            const auto id = model_->byte_tokens_[static_cast<unsigned char>(b)];
            if (id < 0)
                return false;
        }
        for (const char b : written)
            add(model_->byte_tokens_[static_cast<unsigned char>(b)]);
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
            if (!m || m->made != best.made) // an entry of a pair that is no more
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

    const bpe* model_;
    const std::vector<bool>* forbidden_;
    std::vector<symbol> symbols_;
    std::vector<candidate> queue_storage_;
    std::unordered_map<std::string, std::pair<std::size_t, std::size_t>, text_hash, std::equal_to<>> seen_;
    std::vector<std::int32_t> made_;
};

} // namespace kvcache::text
