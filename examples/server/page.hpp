// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

namespace server {

/// The web page at /: a chat that shows what each turn reused. It loads nothing external.
inline constexpr std::string_view page = R"page(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>kvcache</title>
<link rel="icon" href="data:,">
<style>
:root { color-scheme: light dark; --back: #fff; --ink: #1b1f24; --soft: #59636e; --line: #d1d9e0;
        --reused: #b9e6c3; --recomputed: #ffd8a8; --fresh: #cfe2ff; }
@media (prefers-color-scheme: dark) {
  :root { --back: #0d1117; --ink: #e6edf3; --soft: #9198a1; --line: #3d444d;
          --reused: #1c4a2a; --recomputed: #5c3a10; --fresh: #173a69; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1rem; background: var(--back); color: var(--ink);
       font: 16px/1.5 system-ui, sans-serif; }
header { display: flex; flex-wrap: wrap; gap: .5rem 1.5rem; align-items: baseline; }
h1 { font-size: 1.2rem; margin: 0; }
#figures, .cost, .key { color: var(--soft); font-size: .85rem; }
.turn { border-top: 1px solid var(--line); padding: .6rem 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.who { color: var(--soft); font-size: .8rem; }
.tokens { font: .8rem/1.7 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
.tokens span, .key span { border-radius: 3px; padding: .05rem .1rem; }
.reused { background: var(--reused); }
.recomputed { background: var(--recomputed); text-decoration: underline dotted; }
.fresh { background: var(--fresh); text-decoration: underline; }
form { display: flex; gap: .5rem; position: sticky; bottom: 0; background: var(--back); padding: .6rem 0; }
textarea { flex: 1; font: inherit; padding: .4rem; min-height: 2.8rem; resize: vertical; color: inherit;
           background: transparent; border: 1px solid var(--line); border-radius: 6px; }
button { font: inherit; padding: .4rem .9rem; }
:focus-visible { outline: 3px solid #1f6feb; outline-offset: 1px; }
details summary { cursor: pointer; }
</style>
</head>
<body>
<header><h1>kvcache <span id="model"></span></h1><div id="figures" role="status" aria-live="off"></div></header>
<p class="key">The prompt of each turn, token by token: <span class="reused">reused</span>
<span class="recomputed">recomputed</span> <span class="fresh">fresh</span></p>
<main id="talk" aria-live="polite"></main>
<form id="form">
<textarea id="text" rows="2" aria-label="Message" placeholder="Say something (Enter sends, Shift+Enter breaks the line)"
 autofocus></textarea>
<button id="send">Send</button><button id="stop" type="button" disabled>Stop</button><button id="clear" type="button">Clear</button>
</form>
<script>
'use strict';
const $ = id => document.getElementById(id);
const user = 'page-' + Math.random().toString(36).slice(2);
let messages = [], running = null;
const put = (parent, tag, name, text) => {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text) made.textContent = text;
  parent.append(made);
  return made;
};
function show(turn, kv, usage) {
  const ms = kv.first_token_ms.toFixed(1);
  put(turn, 'div', 'cost', `first token after ${ms} ms; ${usage.prompt_tokens} tokens: ${kv.reused} reused, ` +
      `${kv.recomputed} recomputed, ${usage.prompt_tokens - kv.reused - kv.recomputed} fresh; ` +
      `${usage.completion_tokens} said`);
  const more = put(turn, 'details', '');
  put(more, 'summary', 'cost', 'tokens of the prompt');
  const list = put(more, 'div', 'tokens');
  kv.prompt.forEach((text, i) => {
    const how = i < kv.reused ? 'reused' : i < kv.reused + kv.recomputed ? 'recomputed' : 'fresh';
    put(list, 'span', how, text).title = how;
  });
}
async function say(text) {
  messages.push({role: 'user', content: text});
  const asked = put($('talk'), 'div', 'turn');
  put(asked, 'div', 'who', 'you');
  put(asked, 'div', '', text);
  const turn = put($('talk'), 'div', 'turn');
  put(turn, 'div', 'who', 'model');
  const answer = put(turn, 'div', '');
  running = new AbortController();
  $('send').disabled = true; $('stop').disabled = false;
  let whole = '', good = false;
  try {
    const response = await fetch('/v1/chat/completions', {method: 'POST', signal: running.signal,
      headers: Object.assign({'Content-Type': 'application/json'}, key()),
      body: JSON.stringify({messages, user, stream: true, temperature: 0, kvcache_tokens: true,
                            stream_options: {include_usage: true}})});
    if (!response.ok) throw new Error((await response.json()).error.message);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = ''; ;) {
      const {done, value} = await reader.read();
      if (done) break;
      rest += value;
      const events = rest.split('\n\n');
      rest = events.pop();
      for (const event of events) {
        if (event === 'data: [DONE]') { good = true; continue; }
        const said = JSON.parse(event.slice(6));
        if (said.error) throw new Error(said.error.message);
        if (said.choices.length) { whole += said.choices[0].delta.content || ''; answer.textContent = whole; }
        if (said.kvcache) show(turn, said.kvcache, said.usage);
      }
    }
  } catch (fault) {
    put(turn, 'div', 'cost', fault.name === 'AbortError' ? 'stopped; the turn was not said' : fault.message);
  }
  if (good) messages.push({role: 'assistant', content: whole}); else messages.pop();
  running = null;
  $('send').disabled = false; $('stop').disabled = true;
  turn.scrollIntoView({block: 'nearest'});
  figures();
}
const key = () => location.hash.length > 1 ? {Authorization: 'Bearer ' + decodeURIComponent(location.hash.slice(1))} : {};
async function figures() {
  try {
    const text = await (await fetch('/metrics', {headers: key()})).text();
    const at = name => Number((text.match(new RegExp('^' + name + '(?:{[^}]*})? (\\S+)', 'm')) || [0, 0])[1]);
    const asked = at('vllm:prefix_cache_queries_total'), hits = at('vllm:prefix_cache_hits_total');
    $('figures').textContent = `pages: ${at('kvcache_pages_in_use')} in use, ${at('kvcache_pages_evictable')} evictable, ` +
      `${at('kvcache_pages_free')} free; hit ratio ${asked ? (100 * hits / asked).toFixed(1) : '0.0'} %; ` +
      `${at('vllm:num_requests_running')} running, ${at('vllm:num_requests_waiting')} waiting`;
  } catch { $('figures').textContent = 'the server does not answer'; }
}
$('form').addEventListener('submit', event => {
  event.preventDefault();
  const text = $('text').value.trim();
  if (!text || running) return;
  $('text').value = '';
  say(text);
});
$('text').addEventListener('keydown', event => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); $('form').requestSubmit(); }
});
$('stop').addEventListener('click', () => running && running.abort());
$('clear').addEventListener('click', () => {
  if (running) running.abort();
  messages = [];
  $('talk').replaceChildren();
  $('text').focus();
});
fetch('/health').then(r => r.json()).then(h => { $('model').textContent = h.model; });
figures();
setInterval(figures, 2000);
</script>
</body>
</html>
)page";

} // namespace server
