#!/usr/bin/env python3
"""The server as the `openai` package meets it.

    openai_client.py SERVER MODEL

./dev test installs the package (requirements.txt) where PyPI can be had; without it nothing is asked.
"""
import asyncio
import os
import sys

import running
from running import check

try:
    import openai
except ImportError:
    if running.CLIENTS.exists() and sys.executable != str(running.CLIENTS):
        os.execv(running.CLIENTS, [str(running.CLIENTS), *sys.argv])
    print("SKIPPED: the openai package is not installed, and ./dev test could not fetch it")
    sys.exit(0)

SERVER, MODEL = sys.argv[1:3]
GREEDY = {"model": "worlds", "temperature": 0}
ELLA = [{"role": "user", "content": "Where does Ella live?"}]


def raises(kind, status, call):
    try:
        call()
    except kind as fault:
        check(fault.status_code == status and fault.body["message"], fault)
        return fault
    raise SystemExit(f"FAILED: {kind.__name__} was not raised")


def chats(client):
    check([m.id for m in client.models.list()] == ["worlds"], "the model is listed")
    one = client.chat.completions.create(messages=ELLA, max_tokens=16, **GREEDY)
    text, usage = one.choices[0].message.content, one.usage
    check(text and one.choices[0].finish_reason in ("stop", "length"), one)
    check(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage)
    stream = client.chat.completions.create(messages=ELLA, max_tokens=16, stream=True,
                                            stream_options={"include_usage": True}, **GREEDY)
    chunks = list(stream)
    check("".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text, "streamed, the same words")
    check(chunks[-1].usage.completion_tokens == usage.completion_tokens, chunks[-1])
    check(chunks[-1].usage.prompt_tokens_details.cached_tokens > 0, "a second time is cached")
    parts = [{"role": "user", "content": [{"type": "text", "text": ELLA[0]["content"]}]}]
    check(client.chat.completions.create(messages=parts, max_tokens=16, **GREEDY).choices[0].message.content == text, "parts")
    scored = client.chat.completions.create(messages=ELLA, max_completion_tokens=3, logprobs=True, top_logprobs=2, **GREEDY)
    content = scored.choices[0].logprobs.content
    check(all(c.logprob == c.top_logprobs[0].logprob and bytes(c.bytes).decode() == c.token for c in content), content)
    drawn = dict(model="worlds", messages=ELLA, max_tokens=8, temperature=1.2, seed=11, top_p=0.9)
    several = client.chat.completions.create(n=3, **drawn)
    again = client.chat.completions.create(**drawn)
    check([c.index for c in several.choices] == [0, 1, 2], several)
    check(several.choices[0].message.content == again.choices[0].message.content, "a seed draws the same again")
    messages, known = [{"role": "system", "content": "You answer questions about the notes."}], 0
    for turn in range(4):
        messages.append({"role": "user", "content": f"Where is the kite, number {turn}?"})
        got = client.chat.completions.create(messages=messages, user="ann", max_tokens=12, **GREEDY)
        check(got.usage.prompt_tokens_details.cached_tokens >= known - 1, (turn, got.usage))
        known = got.usage.total_tokens
        messages.append(got.choices[0].message.model_dump(include={"role", "content"}))


def completes(client):
    done = client.completions.create(prompt="Ella lives in", max_tokens=5, logprobs=2, extra_body={"ignore_eos": True},
                                     **GREEDY)
    check(done.usage.completion_tokens == 5 and len(done.choices[0].logprobs.token_logprobs) == 5, done)
    chunks = list(client.completions.create(prompt="Ella lives in", max_tokens=5, stream=True,
                                            extra_body={"ignore_eos": True}, **GREEDY))
    check("".join(c.choices[0].text for c in chunks) == done.choices[0].text, chunks)
    stop = done.choices[0].text[3:5]
    cut = client.completions.create(prompt="Ella lives in", max_tokens=5, stop=[stop], **GREEDY)
    check(cut.choices[0].finish_reason == "stop" and stop not in cut.choices[0].text, cut)


def errors(client, port):
    raises(openai.NotFoundError, 404, lambda: client.chat.completions.create(model="other", messages=ELLA))
    raises(openai.BadRequestError, 400, lambda: client.chat.completions.create(messages=[], **GREEDY))
    long = raises(openai.BadRequestError, 400, lambda: client.completions.create(prompt="library " * 3000, **GREEDY))
    check("maximum context length" in str(long) and long.code == "context_length_exceeded", long)
    stranger = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="wrong", max_retries=0)
    raises(openai.AuthenticationError, 401, stranger.models.list)


async def crowd(client):
    """Many at once, some of whom hang up."""
    async def ask(n):
        stream = await client.chat.completions.create(messages=ELLA, max_tokens=24, stream=True, user=f"user {n % 5}",
                                                      extra_body={"ignore_eos": True}, **GREEDY)
        text = ""
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            if n % 4 == 3 and text:
                await stream.close()
                return None
        return text

    texts = await asyncio.gather(*(ask(n) for n in range(24)))
    check(len({t for t in texts if t is not None}) == 1 and texts.count(None) == 6, texts)


def main():
    at = running.Server(SERVER, MODEL, "--api-key", "secret", "--name", "worlds")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{at.port}/v1", api_key="secret", max_retries=0) as client:
        chats(client)
        completes(client)
        errors(client, at.port)

    async def many():
        async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{at.port}/v1", api_key="secret", max_retries=0) as client:
            await crowd(client)

    asyncio.run(many())
    at.stop()
    print(f"openai_client.py: {running.checks} checks hold with openai {openai.__version__}")


main()
