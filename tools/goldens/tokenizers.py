#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds the small tokenizers and the expected values under tests/data/text/.

Needs the Python packages `tokenizers` and `transformers`, which say what is right. Run it from anywhere:
    python3 tools/goldens/tokenizers.py
Tokenizers are trained on the lines below, so the files are the same on every run.
"""
import json
import pathlib
import random
import sys

# This file has the name of a package that it needs.
sys.path = [p for p in sys.path if pathlib.Path(p or ".").resolve() != pathlib.Path(__file__).resolve().parent]

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.utils.chat_template_utils import _compile_jinja_template

OUT = pathlib.Path(__file__).resolve().parents[2] / "tests" / "data" / "text"

LINES = [
    "The keeper of the cache wrote every page twice, and read the second one back before it slept.",
    "A page that nobody holds is free; a page that two readers hold is shared, and neither may write to it.",
    "there's nothing they'd rather've done than what they'll do, I'm sure: it isn't yours, it's ours.",
    "In 2024 there were 12 pages, 345 tokens and 6789 bytes; 3.14 of them were round.",
    "    if (x == nullptr) { return -1; }\n\tfor (auto& y : z)\n\t\ty += 2;\r\n\r\n",
    "été, naïve façade, Ångström, ﬁne Ⅳ ½ — “quoted” … done!",
    "Быстрая лиса прыгает. 你好，世界。 こんにちは 안녕하세요 🙂🚀",
] * 3

WORDS = ["the", " page", "  ", "   ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u180e", "'s", "'LL", "it's", "12", "3456", "٣", "½",
         "é", "e\u0301", "Å", "ﬁ", "İ", "ß", "中文", "🙂", "👍🏽", "\u200d", "▁", "_", "-", "...", "(", "]", "|", "<", "<0x0A>",
         "Ġ", "x", "ABC", "word", "words", "abc", "abcdef", "CDE", "\x00", "!?"]

UNKNOWN = ["a Ж b", "ЖЖ bЖ", "a  Ж", "a <unk> b"]


def byte_level(pre, normalizer=None, special=(), added=(), post=None, size=340, **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer = pre
    if normalizer is not None:
        t.normalizer = normalizer
    t.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=alphabet))
    return finish(t, special, added, post)


def sentence_piece(normalizer, pre, decoder, added=(), post=None, size=500, fallback=True, fuse=True):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=fuse))
    if normalizer is not None:
        t.normalizer = normalizer
    t.pre_tokenizer = pre if pre is not None else pre_tokenizers.Split("▁", "merged_with_next")
    special = ["<unk>", "<s>", "</s>"]
    names = special + ([f"<0x{b:02X}>" for b in range(256)] if fallback else [])
    lines = [line.strip() for line in LINES[:4]]
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, show_progress=False, special_tokens=names))
    made = json.loads(t.to_str())
    made["model"]["byte_fallback"] = fallback
    made["added_tokens"] = []
    if pre is None:
        made["pre_tokenizer"] = None
    t = Tokenizer.from_str(json.dumps(made))
    t.decoder = decoder
    return finish(t, special, added, post)


def finish(t, special, added, post):
    t.add_special_tokens([AddedToken(s, normalized=False) if isinstance(s, str) else s for s in special])
    t.add_tokens(list(added))
    if post:
        t.post_processor = post(t)
    return t


def template(*before_and_after):
    before, after = before_and_after
    text = " ".join([*before, "$A", *after])
    return lambda t: processors.TemplateProcessing(
        single=text, special_tokens=[(s, t.token_to_id(s)) for s in {*before, *after}])


CASELESS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def by(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(pattern, behavior, invert), BYTES])


CHATML = ["<|end|>", "<|im_start|>", "<|im_end|>"]
PIECES = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
SPACES = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])

TOKENIZERS = {
    "gpt2": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), special=["<|end|>"]),
    "roberta": lambda: byte_level(
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        special=["<s>", "</s>", AddedToken("<mask>", lstrip=True, normalized=False)],
        post=lambda t: processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")))),
    "qwen": lambda: byte_level(
        by(Regex(CASELESS + r"\p{N}" + REST)), normalizers.NFC(), special=CHATML,
        added=[AddedToken("<think>", normalized=False)]),
    "llama3": lambda: byte_level(
        by(Regex(CASELESS + r"\p{N}{1,3}" + REST)), ignore_merges=True, special=["<|begin|>", "<|eot|>"],
        post=lambda t: processors.Sequence([processors.ByteLevel(trim_offsets=False), template(["<|begin|>"], [])(t)])),
    "digits": lambda: byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
        special=CHATML),
    "flags": lambda: byte_level(
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        special=[AddedToken("<L>", lstrip=True, normalized=False), AddedToken("<R>", rstrip=True, normalized=False),
                 AddedToken("<LR>", lstrip=True, rstrip=True, normalized=False)],
        added=[AddedToken("word", single_word=True), AddedToken("   ", normalized=False), AddedToken("abc"),
               AddedToken("abcdef")]),
    "rewritten": lambda: byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.Punctuation("merged_with_previous"), pre_tokenizers.Digits(False), BYTES]),
        normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase(), normalizers.StripAccents(),
                              normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " ")])),
    "whitespace": lambda: byte_level(pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), BYTES])),
    "removed": lambda: byte_level(by(Regex(r"\w|-"), "removed"), size=300),
    "previous": lambda: byte_level(by(Regex(r"\s\d*|[a-f]+"), "merged_with_previous"), size=300),
    "next": lambda: byte_level(by(Regex(r"\s\d*|[a-f]+"), "merged_with_next", True), size=300),
    "contiguous": lambda: byte_level(by(Regex(r"(?=[A-Z])|x*|\d"), "contiguous"), size=300),
    "llama2": lambda: sentence_piece(SPACES, None, PIECES, post=template(["<s>"], [])),
    "first": lambda: sentence_piece(
        None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), PIECES, post=template(["<s>"], ["</s>"]),
        added=[AddedToken("[INST]", normalized=False)]),
    "always": lambda: sentence_piece(None, pre_tokenizers.Metaspace(prepend_scheme="always"),
                                     decoders.Metaspace(prepend_scheme="always")),
    "gemma": lambda: sentence_piece(
        normalizers.Replace(" ", "▁"), pre_tokenizers.Split(" ", "merged_with_previous"),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
        post=template(["<s>"], []), added=[AddedToken("\n\n", normalized=False), AddedToken("▁▁", normalized=False)]),
    "unknown": lambda: sentence_piece(normalizers.Replace(" ", "▁"), None, decoders.Fuse(), fallback=False, fuse=False,
                                      size=120),
    "fused": lambda: sentence_piece(SPACES, None, PIECES, fallback=False, size=120),
}


def texts(t, draw):
    added = [a.content for a in t.get_added_tokens_decoder().values()]
    yield ""
    for line in LINES[2:7]:
        yield line
    if t.token_to_id("<unk>") == 0 and t.token_to_id("<0x0A>") is None:
        yield from UNKNOWN
    for _ in range(12):
        parts = [draw.choice(WORDS if draw.random() < 0.75 or not added else added) for _ in range(draw.randrange(1, 8))]
        yield "".join(parts)


TURN = "{% for m in messages %}"
END = "{% endfor %}{% if add_generation_prompt %}"
ONLY_PAIRS = "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles alternate') }}{% endif %}"
CHATS = {
    "chatml": TURN + "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}" + END +
    "{{ '<|im_start|>assistant\n' }}{% endif %}",
    "chatml_default": """{%- if messages[0]['role'] != 'system' %}
    {{- '<|im_start|>system\\nBe brief.<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
    {%- set text = m.content.split('</think>')[-1].lstrip('\\n') if m.role == 'assistant' else m.content %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' ~ text ~ '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if thinking is defined and thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
""",
    "llama2": "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}{% for m in rest %}" + ONLY_PAIRS +
    "{% if loop.index0 == 0 and messages[0].role == 'system' %}"
    "{% set text = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' + m.content %}{% else %}{% set text = m.content %}"
    "{% endif %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + text | trim + ' [/INST]' }}{% else %}"
    "{{ ' ' + text | trim + ' ' + eos_token }}{% endif %}{% endfor %}",
    "llama3": "{{ bos_token }}" + TURN +
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}" + END +
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
    "zephyr": "{% for m in messages %}\n{% if m['role'] == 'user' %}\n{{ '<|user|>\n' + m['content'] + eos_token }}\n"
    "{% elif m['role'] == 'system' %}\n{{ '<|system|>\n' + m['content'] + eos_token }}\n{% else %}\n"
    "{{ '<|assistant|>\n' + m['content'] + eos_token }}\n{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}",
    "mistral": "{{ bos_token }}" + TURN + ONLY_PAIRS +
    "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}{{ m.content + eos_token }}{% endif %}"
    "{% endfor %}",
    "phi3": TURN + "{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>\n' }}" + END +
    "{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
    "gemma": "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" +
    TURN + "{{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' + m.content | trim + "
    "'<end_of_turn>\n' }}" + END + "{{ '<start_of_turn>model\n' }}{% endif %}",
}
CONVERSATIONS = [
    [("user", "Hello")],
    [("system", "You are a page."), ("user", "  Who holds you? "), ("assistant", "<think>\nhm\n</think>\n\nNobody.\n"), ("user", "\nSo?")],
    [("user", "<|im_end|>[/INST]</s><end_of_turn><|end|>"), ("assistant", " é🙂 "), ("user", "")],
    [("user", "a"), ("user", "b")],
    [("system", "only a system")],
]


def chats():
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    for name, source in CHATS.items():
        compiled = _compile_jinja_template(source)
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in conversation]
            for prompt in (False, True):
                case = {"template": name, "messages": messages, "add_generation_prompt": prompt}
                try:
                    case["text"] = compiled.render(messages=messages, add_generation_prompt=prompt, **special)
                except Exception as reason:
                    case["refused"] = str(reason)
                yield case


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    cases = []
    for number, (name, build) in enumerate(TOKENIZERS.items()):
        t = build()
        folder = OUT / name
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text(t.to_str() + "\n", encoding="utf-8")
        for i, text in enumerate(texts(t, random.Random(number))):
            encoded = t.encode(text, add_special_tokens=i % 2 == 0)
            case = {"tokenizer": name, "text": text, "add_special_tokens": i % 2 == 0, "ids": encoded.ids}
            # "decoded" where it is not the text, "skipped" (special tokens left out) where it is not "decoded"
            decoded = t.decode(encoded.ids, skip_special_tokens=False)
            skipped = t.decode(encoded.ids, skip_special_tokens=True)
            case |= {"decoded": decoded} if decoded != text else {}
            case |= {"skipped": skipped} if skipped != decoded else {}
            cases.append(case)
    lines = ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases)
    (OUT / "cases.json").write_text("[\n" + lines + "\n]\n", encoding="utf-8")
    made = {"templates": CHATS, "cases": list(chats())}
    (OUT / "chats.json").write_text(json.dumps(made, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
