// SPDX-License-Identifier: MIT
// Using your own model: a pipeline needs five functions of it. This toy is not a transformer. It predicts the most
// frequent token so far (a cache language model, Kuhn & De Mori 1990): every token writes its own vector as a value,
// a query of zeros attends to all tokens equally, and the result is the mean of the vectors.
// test:
#include <kvcache/kvcache.hpp>

#include <iostream>
#include <span>
#include <vector>

#include "support/guarded.hpp"

using namespace kvcache::literals;

namespace {

constexpr std::uint32_t letters = 32; // size of the vocabulary, and length of a token's vector

template <class Lease>
class parrot_pass {
public:
    void begin(std::span<const kvcache::batch_slice<Lease>> batch) { batch_.assign(batch.begin(), batch.end()); }

    void forward(kvcache::layer_id layer) {
        const std::vector<float> zeros(letters, 0.0f);
        for (const auto& part : batch_)
            for (std::size_t row = 0; row < part.tokens.size(); ++row) {
                std::vector<float> vector(letters, 0.0f);
                vector[static_cast<std::size_t>(kvcache::index_of(part.tokens[row]))] = 1.0f;
                part.lease->write(layer, part.row + row, zeros, vector);

                const kvcache::query_rows asked{.data = zeros.data(),
                                                .out = vector.data(),
                                                .stride = letters,
                                                .out_stride = letters,
                                                .position = part.lease->first() + part.row + row,
                                                .rows = 1};
                kvcache::paged_attention({.head_dim = letters}, kvcache::page_source(*part.lease),
                                         {part.lease->pages(), asked}, layer, kvcache::head_id{0});
                heard_.insert(heard_.end(), vector.begin(), vector.end());
            }
    }

    // The rows with logits are the last of each part, in order.
    void logits(std::span<float> out) {
        auto from = heard_.begin();
        auto to = out.begin();
        for (const auto& part : batch_) {
            from += static_cast<std::ptrdiff_t>((part.tokens.size() - part.wanted_rows()) * letters);
            for (std::size_t i = 0; i < part.wanted_rows() * letters; ++i)
                *to++ = *from++;
        }
        heard_.clear();
    }

private:
    std::vector<kvcache::batch_slice<Lease>> batch_;
    std::vector<float> heard_; // (rows, letters)
};

struct parrot {
    std::vector<kvcache::layer_id> only = {kvcache::layer_id{0}};

    std::span<const kvcache::layer_id> layers() const { return only; }
    std::size_t vocabulary() const { return letters; }
    std::size_t max_positions() const { return 1000000; }
    template <class Lease>
    parrot_pass<Lease> make_forward_pass(kvcache::thread_pool&) const {
        return {};
    }
};

int program() {
    const parrot model;
    auto cache = kvcache::make_cache(
        {.shape = {.layers = 1, .kv_heads = 1, .head_dim = letters, .tokens = 16}, .limit = {.bytes = 1_MiB}});
    kvcache::thread_pool threads(1);
    kvcache::pipeline pipeline(cache, model, threads);

    std::vector<kvcache::token_id> said;
    for (const char letter : std::string_view("a parrot repeats what a parrot hears"))
        said.push_back(kvcache::token_id{letter % 32});
    for (int turn = 0; turn < 2; ++turn) {
        const auto heard = pipeline.prefill(said);
        if (!heard) {
            std::cerr << heard.error().message << '\n';
            return 1;
        }
        Eigen::Index most = 0;
        const float share = heard->logits.row(0).tail(letters - 1).maxCoeff(&most); // letter 0 is the space
        std::cout << heard->reused << " of " << said.size() << " reused; heard most: '" << static_cast<char>('a' + most)
                  << "', " << share << " of all\n";
        if (most + 1 != 'r' % 32 && most + 1 != 'a' % 32)
            return 1;
    }
    return 0;
}

} // namespace

int main() {
    return support::guarded("05_own_model", [&] { return program(); });
}
