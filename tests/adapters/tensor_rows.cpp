// SPDX-License-Identifier: MIT
// A cache for the runtime of another process: onnx_runtime.py. The arguments are the codec, the type of the tensors,
// their order, and the numbers of layers, of KV heads and of numbers in a row. The standard input has, in int32, 0 for
// a prompt or 1 for the next tokens of the last one, the number of tokens, and the tokens. The standard output then has
// the number of cached tokens, and for each layer of a prompt its past keys and past values. Last come, in the input,
// the present keys and present values of each layer.
#include <kvcache/adapters/tensors.hpp>
#include <kvcache/cache.hpp>
#include <kvcache/codec/row_major.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kv = kvcache;

namespace {

bool read(void* to, std::size_t bytes) {
    return bytes == 0 || std::fread(to, 1, bytes, stdin) == bytes;
}
bool write(const void* from, std::size_t bytes) {
    return bytes == 0 || std::fwrite(from, 1, bytes, stdout) == bytes;
}

/// The runtime at the other end of the pipes.
class piped_runtime {
public:
    piped_runtime(const kv::page_shape& shape, kv::tensor_type type, bool hnd)
        : shape_(shape), type_(type), hnd_(hnd), layers_(shape.layers) {}

    kv::past_tensors past(std::size_t, kv::layer_id layer, std::size_t tokens) {
        const auto [keys, values] = sides(layer, tokens);
        return {keys, values, layout(tokens)};
    }
    kv::result<void> run(std::span<const kv::token_id> tokens, std::size_t first) {
        const auto cached = static_cast<std::int32_t>(first);
        bool done = write(&cached, sizeof cached);
        for (const std::vector<std::byte>& past : layers_)
            done = done && write(past.data(), past.size());
        done = done && std::fflush(stdout) == 0;
        tokens_ = first + tokens.size();
        for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
            (void)sides(kv::layer_id{layer}, tokens_);
            done = done && read(layers_[layer].data(), layers_[layer].size());
        }
        return done ? kv::result<void>() : kv::error{kv::error_code::io, "run", "the other process has ended"};
    }
    kv::present_tensors present(std::size_t, kv::layer_id layer) {
        const auto [keys, values] = sides(layer, tokens_);
        return {keys, values, layout(tokens_)};
    }
    /// The next run has its past already.
    void forget() {
        for (std::vector<std::byte>& past : layers_)
            past.clear();
    }

private:
    [[nodiscard]] kv::tensor_layout layout(std::size_t tokens) const {
        return hnd_ ? kv::tensor_layout::hnd(type_, tokens, shape_.head_dim)
                    : kv::tensor_layout::nhd(type_, tokens, shape_.kv_heads, shape_.head_dim);
    }
    [[nodiscard]] std::pair<std::byte*, std::byte*> sides(kv::layer_id layer, std::size_t tokens) {
        const std::size_t number = type_ == kv::tensor_type::f32 ? 4 : 2;
        const std::size_t side = tokens * shape_.kv_heads * shape_.head_dim * number;
        auto& memory = layers_[kv::index_of(layer)];
        memory.resize(2 * side);
        return {memory.data(), memory.data() + side};
    }

    kv::page_shape shape_;
    kv::tensor_type type_;
    bool hnd_;
    std::size_t tokens_ = 0;
    std::vector<std::vector<std::byte>> layers_; // the keys of each, then its values
};

template <class Codec>
int serve(const kv::page_shape& shape, piped_runtime runtime) {
    auto cache = kv::make_cache({.shape = shape, .limit = {.bytes = std::size_t{16} << 20}}, Codec{});
    std::optional<typename decltype(cache)::sequence> last;
    for (std::int32_t head[2]; read(head, sizeof head);) {
        std::vector<std::int32_t> numbers(static_cast<std::size_t>(head[1]));
        if (!read(numbers.data(), numbers.size() * sizeof(std::int32_t)))
            return 1;
        std::vector<kv::token_id> tokens;
        for (const std::int32_t one : numbers)
            tokens.push_back(kv::token_id{one});
        if (head[0] == 0) {
            auto made = kv::run_prompt(cache, std::span<const kv::token_id>(tokens), runtime);
            if (!made)
                return std::fprintf(stderr, "%s\n", made.error().message.c_str()), 1;
            last.emplace(std::move(*made));
        } else {
            auto lease = cache.reserve(*last, tokens.size());
            runtime.forget();
            if (!lease || !kv::run_tokens(*lease, std::span<const kv::token_id>(tokens), runtime))
                return 1;
        }
    }
    return cache.check() ? 0 : 1;
}

} // namespace

int main(int count, char** words) {
    if (count != 7)
        return 2;
    const std::string codec = words[1], type = words[2], order = words[3];
    const auto number = [&](int i) { return static_cast<std::uint32_t>(std::strtoul(words[i], nullptr, 10)); };
    const kv::page_shape shape{.layers = number(4), .kv_heads = number(5), .head_dim = number(6), .tokens = 16};
    const piped_runtime runtime(shape, type == "f16" ? kv::tensor_type::f16 : kv::tensor_type::f32, order == "hnd");
    if (codec == "f32")
        return serve<kv::codec::f32>(shape, runtime);
    if (codec == "nhd_f32")
        return serve<kv::codec::nhd_f32>(shape, runtime);
    return codec == "hnd_f16" ? serve<kv::codec::hnd_f16>(shape, runtime) : 2;
}
