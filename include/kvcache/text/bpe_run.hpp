// SPDX-License-Identifier: MIT
#pragma once

#include <kvcache/text/bpe.hpp>
#include <kvcache/text/merge_table.hpp>
#include <kvcache/text/unicode.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvcache { inline namespace KVCACHE_ABI { namespace text {

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
