# SPDX-License-Identifier: MIT
"""Trains the byte-level BPE tokenizer of the worlds and writes its Hugging Face files."""

import argparse
import json
import pathlib
import random

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

import generate

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
            "+ '<|im_end|>' + '\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def texts(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        yield "".join(text for text, _ in generate.chat(rng, generate.Level(), 400))
    for _ in range(count):
        yield "".join(" " + word for group in generate.NAMES for word in group)
        yield "\n".join(generate.SHE + generate.HE + generate.TOWNS)


def train(vocabulary=1024, seed=1, count=400):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(texts(seed, count), trainer)
    return tokenizer


def save(tokenizer, folder, positions=2048):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {str(i): {"content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                      "special": True} for i, t in enumerate(SPECIAL)}
    config = {"add_prefix_space": False, "added_tokens_decoder": added, "bos_token": "<|endoftext|>",
              "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>",
              "model_max_length": positions, "pad_token": "<|endoftext|>",
              "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    special = {"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(special, indent=2) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--vocabulary", type=int, default=1024)
    args = parser.parse_args()
    tokenizer = train(args.vocabulary)
    save(tokenizer, args.folder)
    long = [w for w in next(iter([" ".join(texts(1, 1)).split()])) if len(tokenizer.encode(" " + w).ids) > 1]
    print("tokens:", tokenizer.get_vocab_size(), "words of several tokens:", sorted(set(long)))


if __name__ == "__main__":
    main()
