#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds tests/data/text/templates.json: small chat templates, and what Jinja makes of them.

Needs the Python package `jinja2`, which says what is right. Run it from anywhere:
    python3 tools/goldens/templates.py
"""
import json
import pathlib
import sys

HOME = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(HOME / "tests" / "text"))

import real_templates

CASE = {
    "messages": [{"role": "user", "content": "Hi <b>"},
                 {"role": "assistant", "content": "yo", "n": 3, "f": 1.5, "l": [1, "a", None, True, {"k": "é\u00a0\u200b'"}]}],
    "add_generation_prompt": True,
    "variables": {"tools": real_templates.TOOLS, "big": {"b": 1, "A": 2, "a": [3], "c": {"y": 1, "x": 0.1}}},
}

# Each may use all that is in the case.
TEMPLATES = r"""
{{ tools | tojson }}
===
{{ tools | tojson(indent=2) }}
===
{{ tools | tojson(indent=4, ensure_ascii=true, sort_keys=true) }}
===
{{ tools | tojson(true, 3) }}
===
{{ big | tojson(separators=(',', ':'), sort_keys=True) }}
===
{{ big | tojson(separators=[';', '='], indent='--') }}
===
{{ [1.0, 1e22, 1e-7, 0.1, 100000000000000000000.0, 1.5e300, -0.0] | tojson }} {{ [1.0, 1e22, 1e-7, 0.1] }}
===
{{ "\u0001\x7f\u2028é😀\"\\" | tojson }} {{ "\u0001\x7f\u2028é😀\"\\" | tojson(ensure_ascii=true) }}
===
{{ ["\u0001\x7f\u2028é😀\"\\\n'\xa0\u200b\u0378"] }}
===
{{ ("a'b", 'c"d', "e'f\"g") }} {{ (1,) }} {{ () }} {{ [] }} {{ {} }}
===
{{ {'a': (1, 2), 1: 'x', none: 2, 1.5: 4} }} {{ {'a': (1, 2), 2: 'x', none: 2, true: 3, 1.5: 4} | tojson }}
===
{{ big | dictsort }} {{ big | dictsort(true) }} {{ big | dictsort(false, 'key', true) }} {{ {'a': 2, 'b': 1} | dictsort(by='value') }} {{ {'a': 'B', 'b': 'a'} | dictsort(by='value', reverse=true) }}
===
{{ [3,1,2] | min }} {{ [3,1,2] | max }} {{ ['b','A','c'] | min }} {{ ['b','A','C'] | max(case_sensitive=true) }} {{ tools | map(attribute='function.name') | max }} {{ [] | min }}x
===
{{ [{'n': 2}, {'n': 1}] | min(attribute='n') }} {{ [{'n': 2}, {'n': 1}] | max(attribute='n') }}
===
{{ [3,1,2] | sort }} {{ ['b','A','c'] | sort }} {{ ['b','A','c'] | sort(case_sensitive=true) }} {{ [3,1,2] | sort(reverse=true) }} {{ [3,1,2] | sort(true) }}
===
{{ [{'n': 2, 'm': 'x'}, {'n': 1, 'm': 'y'}, {'n': 2, 'm': 'a'}] | sort(attribute='n,m') }} {{ [{'n': 2}, {'n': 1}] | sort(attribute='n', reverse=true) }}
===
{{ 'abc' | sort }} {{ {'b': 1, 'a': 2} | sort }}
===
{% filter upper %}abc{{ 'def' }}{% endfilter %} {% filter trim | replace('a', 'b') %}  aaa {% endfilter %}x
===
{% filter indent(2, true) %}a
b

c
{% endfilter %}|
===
{{ '{} and {}'.format(1, 'x') }} {{ '{0} {1} {0}'.format('a', 'b') }} {{ '{a} {b!r}'.format(a=1, b='x') }} {{ '{:>5}|{:<5}|{:^5}|{:*^7}|{:05d}|{:+d}|{:,}'.format('a', 'b', 'c', 'd', 42, 7, 1234567) }}
===
{{ '{:.2f} {:10.3f}| {:e} {:g} {:%} {:.1%} {:x} {:#x} {:X} {:b} {:o} {:c}'.format(1.5, 3.14159, 12345.678, 0.0001, 0.5, 0.123, 255, 255, 255, 5, 8, 65) }}
===
{{ '{{}} {}'.format(1) }} {{ '{0[a]} {0[b]}'.format({'a': 1, 'b': 2}) }} {{ '{:s} {:.2}'.format('abc', 'xyz') }} {{ '{}'.format([1, 'a']) }} {{ '{}'.format(none) }} {{ '{:>10}'.format(true) }}
===
{{ '%s %d %5.2f %r %x %%' % ('a', 3, 2.5, 'q', 255) }} {{ '%s' % 'x' }} {{ '%s' % [1,2] }} {{ '%(a)s-%(b)03d' % {'a': 1, 'b': 2} }} {{ '%-5s|%5s|%05d|%+d' % ('a', 'b', 3, 4) }}
===
{{ '%s-%s' | format('a', 1) }} {{ '%(x)s' | format(x=3) }} {{ '%d' | format(3.7) }} {{ '%.3s' | format('abcdef') }} {{ '%i' % 3 }}
===
{{ none | selectattr('x') | list }} {{ none | map('upper') | list }} {{ none | select | list }} {{ undefinedx | reject | list }}
===
{{ ('<' | safe) + '<' }} {{ '<' + ('&' | safe) }} {{ ('<b>' | safe) ~ '<' }} {{ ('<' | e) ~ '>' }} {{ '<>&"\'' | escape }} {{ ('<' | safe) | e }} {{ '<' | e | forceescape }}
===
{{ (tools[0] | tojson | safe) + ' <x>' }}
===
{{ ('<%s>' | safe) % '<a>' }} {{ ('<{}>' | safe).format('<a>') }} {{ ('<' | safe).join(['<', '>']) }} {{ ('a' | safe).replace('a', '<') }} {{ ('a' | safe | upper) + '<' }} {{ ('ab' | safe)[0] + '<' }} {{ ('ab' | safe) * 2 + '<' }} {{ ('a b' | safe).split()[0] + '<' }} {{ ('a' | safe) | replace('a', '<') }}
===
{% macro m(a, b='y', c=none) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }} {{ m(1, 2, 3, 4, 5) }} {{ m(1, z=3) }} {{ m(b=2, a=1) }} {{ m() }}
===
{% macro w(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call w('b') %}hello{% endcall %}
===
{% macro w() %}{{ caller(1) }}{{ caller(2) }}{% endmacro %}{% call(x) w() %}[{{ x }}]{% endcall %}
===
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
===
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}
===
{% macro fact(n) %}{% if n > 1 %}{{ n }}*{{ fact(n-1) }}{% else %}1{% endif %}{% endmacro %}{{ fact(5) }}
===
{% set x %}  hi {{ 1 + 1 }} {% endset %}[{{ x }}] {% set y | trim | upper %}  abc {% endset %}[{{ y }}]
===
{% set x = 1 %}{% set y %}{% set x = 2 %}{{ x }}{% endset %}{{ x }}{{ y }}
===
{% with a=1, b=2 %}{{ a + b }}{% endwith %}{{ a }} {% with %}{% set q = 3 %}{{ q }}{% endwith %}{{ q }}
===
{% generation %}a{% set z = 1 %}{{ z }}{% endgeneration %}{{ z }}
===
{% for i in range(4) %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(i // 2) }}{{ loop.depth }}{{ loop.depth0 }} {% endfor %}
===
{% for i in range(2) %}{% for j in range(2) %}{{ loop.depth }}{{ loop.changed('x') }}{% endfor %}{{ loop.depth }}{% endfor %}
===
{% for i in [1,2,3,4,5,6] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% else %}E{% endfor %} {% for i in [] %}x{% else %}E{% endfor %}
===
{% for k, v in big.items() %}{{ k }}={{ v }};{% endfor %} {% for k in big %}{{ k }}{% endfor %} {% for k, v in big | dictsort %}{{ k }}{% endfor %} {% for k, v in big | items %}{{ k }}{% endfor %}
===
{% for x in [1,2,3] if x > 1 %}{{ loop.index }}{{ x }}{% endfor %}
===
{% for x in messages | selectattr('role', 'equalto', 'user') %}{{ x.role }}{% endfor %} {{ messages | selectattr('role', 'in', ['user', 'tool']) | list | length }} {{ messages | rejectattr('role', '==', 'user') | map(attribute='role') | join(',') }} {{ messages | map(attribute='n', default=7) | list }}
===
{{ 'y' if messages | selectattr('role', 'equalto', 'nobody') else 'n' }} {{ 'y' if messages | selectattr('role', 'equalto', 'nobody') | list else 'n' }}
===
{{ [1,2,3] | map('string') | join('-') }} {{ ['a','b'] | map('upper') | list }} {{ ['a b'] | map('replace', ' ', '_') | list }} {{ [[1,2],[3]] | map('length') | sum }} {{ [[1,2],[3,4]] | map(attribute=1) | list }} {{ [[1,2],[3,4]] | map(attribute='0') | list }}
===
{{ [1,2,3,4] | select('odd') | list }} {{ [1,2,3,4] | reject('divisibleby', 2) | list }} {{ [0,1,'',none,'a'] | select | list }} {{ [1,5,3] | select('gt', 2) | list }} {{ [1,5] | select('in', [5]) | list }}
===
{{ [1,2,2,'a','A',3] | unique | list }} {{ ['a','A'] | unique(case_sensitive=true) | list }} {{ [{'a':1,'b':2},{'a':1}] | unique(attribute='a') | list }}
===
{% for g in [{'a':1,'b':2},{'a':2,'b':3},{'a':1,'b':4}] | groupby('a') %}{{ g[0] }}{{ g[1] | map(attribute='b') | list }}{% endfor %} {% for k, l in [{'a':'x'},{'a':'X'},{'a':'b'},{}] | groupby('a', default='b') %}{{ k }}{{ l }}{% endfor %}
===
{% for g in [{'a':1},{'a':2}] | groupby('a') %}{{ g.grouper }}{{ g.list }}{% endfor %}
===
{{ [1,2,3,4,5] | batch(2) | list }} {{ [1,2,3,4,5] | batch(2, 'x') | list }} {{ [1,2,3,4,5] | slice(3) | list }} {{ [1,2,3,4,5] | slice(3, 'x') | list }} {{ [1,2,3,4] | slice(2, 'x') | list }}
===
{{ undefinedx | default('d') }} {{ none | default('d') }} {{ '' | default('d', true) }} {{ '' | d('d') }}x {{ none | default('x', boolean=true) }} {{ undefinedx | default }}
===
{{ 'aaa' | replace('a', 'b') }} {{ 'aaa' | replace('a', 'b', 2) }} {{ 'aaa'.replace('a', 'b', 1) }} {{ 'ab' | replace('', '-') }} {{ 123 | replace(2, 'x') }} {{ 'ab'.replace('', '-', 2) }}
===
{{ 'a\nb\n\nc' | indent }}|{{ 'a\nb' | indent(2, true) }}|{{ 'a\n\nb' | indent(width=3, blank=true) }}|{{ 'a\nb' | indent('>> ') }}|{{ 'a\nb\n' | indent }}|{{ '' | indent(2, first=true) }}|
===
{{ 'Hello  world foo-bar' | wordcount }} {{ 'hello world-foo (bar) [baz] {qux} <x' | title }} {{ "it's".title() }} {{ 'hELLO wORLD' | capitalize }} {{ 'éa ÉB ß ǆ' | title }} {{ 'éa ÉB ß'.title() }} {{ 'aB'.swapcase() }} {{ '東a'.title() }}
===
{{ '  x ' | trim }}| {{ 'xxaxx' | trim('x') }} {{ '  a'.lstrip() }} {{ 'a  '.rstrip() }}| {{ 'abcba'.strip('ab') }} {{ '\u00a0x\u2003' | trim }}|
===
{{ 1 }} {{ 1.0 }} {{ 1.5 }} {{ 1e3 }} {{ 1_000 }} {{ 0x1f }} {{ 0b11 }} {{ 0o17 }} {{ 1e100 }} {{ 10 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ -7 % 3 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }} {{ -2 ** 2 }} {{ 1 / 3 }} {{ 0.1 + 0.2 }}
===
{{ 1 ~ 'a' ~ none ~ true ~ 1.5 ~ [1] }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ [1] * 3 }} {{ 'a' * 0 }}| {{ 'a' * -1 }}| {{ (1,) * 2 }} {{ [1] + [2] }} {{ (1,) + (2,) }}
===
{{ [1] + (2,) }}
===
{{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ [1,2] < [1,3] }} {{ 1 in [1] }} {{ 'a' in {'a': 1} }} {{ 'x' not in 'abc' }} {{ true == 1 }} {{ none == false }} {{ [1] == (1,) }} {{ (1,2) == (1,2) }}
===
{{ 'x' if false }}| {{ 'x' if true }}| {{ ('x' if false) is defined }} {{ ('x' if false) | default('z') }}
===
{{ {} is mapping }} {{ [] is mapping }} {{ [] is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ 'a' is sequence }} {{ {} is sequence }} {{ [] is sequence }} {{ none is none }} {{ 1 is number }} {{ true is number }} {{ 1.0 is float }} {{ 1 is integer }} {{ true is integer }} {{ true is boolean }} {{ 1 is boolean }} {{ x is undefined }} {{ messages is defined }} {{ range is callable }} {{ 'a' is string }} {{ ('a' | safe) is escaped }} {{ 'a' is escaped }} {{ none is sameas none }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ x is iterable }} {{ x is sequence }} {{ x is callable }} {{ (messages | map('string')) is iterable }} {{ (messages | map('string')) is sequence }}
===
{{ 'a' is lower }} {{ 'A' is upper }} {{ '1' is lower }} {{ 'a1' is lower }} {{ 3 is odd }} {{ 4 is even }} {{ 4 is divisibleby 2 }} {{ 4 is divisibleby(3) }} {{ 4 is eq 4 }} {{ 4 is ne 3 }} {{ 4 is gt 3 }} {{ 4 is ge 4 }} {{ 4 is lt 3 }} {{ 4 is le 4 }} {{ 4 is in [4] }} {{ 4 is not in [4] }} {{ 'x' is not none }} {{ 4 is greaterthan 3 }} {{ 4 is equalto 4 }}
===
{{ 'a b c'.split() }} {{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b  c '.rsplit(none, 1) }} {{ ' a b c '.rsplit(maxsplit=1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ 'a\nb\r\nc\x0bd'.splitlines() }} {{ 'a\nb'.splitlines(true) }} {{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('x') }} {{ 'abc'.rpartition('x') }} {{ '  a b '.split(none, 1) }} {{ ' '.split() }} {{ ''.split(',') }}
===
{{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('c') }} {{ 'abcabc'.find('x') }} {{ 'abcabc'.index('b') }} {{ 'abcabc'.rindex('b') }} {{ 'aaa'.count('a') }} {{ 'aaa'.count('aa') }} {{ 'abc'.count('') }} {{ 'abcabc'.find('a', 1) }} {{ 'abcabc'.find('c', -2) }} {{ 'abcabc'.count('a', 1, 4) }} {{ 'éaé'.find('é', 1) }} {{ 'abc'.find('', 2) }}
===
{{ 'abc'.startswith('a') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('c') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ '12'.isdigit() }} {{ '1a'.isalnum() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ 'A'.isupper() }} {{ 'a'.islower() }} {{ '²'.isdigit() }} {{ '²'.isdecimal() }} {{ '½'.isnumeric() }} {{ ''.isdigit() }} {{ ''.isascii() }} {{ 'é'.isascii() }}
===
{{ 'a'.center(5, '*') }} {{ 'ab'.center(5) }}| {{ 'a'.ljust(3, '.') }} {{ 'a'.rjust(3) }} {{ '5'.zfill(3) }} {{ '-5'.zfill(4) }} {{ 'a' | center(5) }}| {{ 'ab' | center(7) }}| {{ 'abc'.center(6) }}|
===
{{ big.get('b') }} {{ big.get('zz') }} {{ big.get('zz', 3) }} {{ big.keys() | list }} {{ big.values() | list }} {{ big.items() | list }} {{ big.copy() == big }} {{ [1,2,1].count(1) }} {{ [1,2].index(2) }} {{ big.get(none) }}
===
{{ messages[0]['content'] }} {{ messages[0].content }} {{ messages[-1].l[-1].k }} {{ messages[5] }}| {{ messages[0].nope }}| {{ messages[0]['nope'] }}| {{ 'abc'[1] }} {{ 'abc'[-1] }} {{ 'abc'[9] }}| {{ messages.0.role }}
===
{{ 'abcdef'[1:3] }} {{ 'abcdef'[:-2] }} {{ 'abcdef'[::2] }} {{ 'abcdef'[::-1] }} {{ [1,2,3,4][1:] }} {{ (1,2,3)[:2] }} {{ [1,2,3][::-1] }} {{ [1,2,3][5:] }} {{ 'éàü'[1:] }} {{ messages[1:] | length }}
===
{{ [1,2,3] | first }} {{ [1,2,3] | last }} {{ 'abc' | first }} {{ [] | first }}| {{ [1,2,3] | reverse | list }} {{ 'abc' | reverse }} {{ 'abc' | list }} {{ {'a':1} | list }} {{ 'abc' | length }} {{ undefinedx | length }} {{ [1,2] | sum }} {{ [{'a':1},{'a':2}] | sum(attribute='a') }} {{ [1] | sum(start=5) }} {{ [1.5, 2] | sum }}
===
{{ '12' | int }} {{ '1.9' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ '0x1f' | int(base=16) }} {{ 'ff' | int(0, 16) }} {{ 3.9 | int }} {{ ' 7 ' | int }} {{ true | int }} {{ none | int }} {{ '1.5' | float }} {{ 'x' | float }} {{ 3 | float }} {{ '1e3' | int }} {{ '+3' | int }}
===
{{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 1.234 | round(1, 'ceil') }} {{ 1.234 | round(1, 'floor') }} {{ 5 | round }} {{ -3.7 | abs }} {{ -3 | abs }} {{ 42.55 | round(1, 'floor') }} {{ 2.5 | round | int }} {{ -2.5 | round }} {{ 1234 | round(-2) }}
===
{{ 100 | filesizeformat }} {{ 1000 | filesizeformat }} {{ 1000000 | filesizeformat }} {{ 1024 | filesizeformat(true) }} {{ 1 | filesizeformat }} {{ 3000000000 | filesizeformat(true) }} {{ 999999 | filesizeformat }}
===
{{ 'foo bar baz qux' | truncate(9) }} {{ 'foo bar baz qux' | truncate(9, true) }} {{ 'foo bar baz qux' | truncate(11) }} {{ 'foo bar baz qux' | truncate(11, false, '...', 0) }} {{ 'foo' | truncate(3) }}
===
{{ [1,2,3] | join }} {{ [1,2,3] | join(', ') }} {{ messages | join('|', attribute='role') }} {{ 'abc' | join('-') }} {{ undefinedx | join('x') }}| {{ [none, 1.5, true] | join(' ') }} {{ ','.join(['a', 'b']) }} {{ ','.join('abc') }}
===
{% raw %}{{ x }} {% if %}{% endraw %} after
===
a
  {% raw %}
  {{ x }}
  {% endraw %}
b
===
a {%- raw -%}  {{ x }}  {%- endraw -%}  b
===
{% set ns = namespace(a=1, b='x') %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns.b }} {% set ns2 = namespace({'q': 1}, r=2) %}{{ ns2.q }}{{ ns2.r }}{{ ns.zzz }}|{{ ns.zzz is defined }}
===
{{ dict(a=1, b=2) }} {{ dict({'a': 1}, b=2) }} {{ dict([('a', 1)]) }} {{ dict(**{'x': 1}) }} {{ dict(messages[0], **{'content': 'z'}) }}
===
{{ range(3) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ range(3)[1] }} {{ range(0) | list }} {{ range(4) | length }}
===
{% macro m() %}{{ varargs | join(',') }}{{ kwargs.x }}{% endmacro %}{{ m(*[1,2], **{'x': 3}) }}
===
{{ strftime_now('%Y-%m-%d %H:%M:%S %b %d %B %A %j') }} {{ strftime_now("%d %b %Y") }}
===
{{ raise_exception('nope') }}
===
{{ 1 if messages | length > 1 and not (messages[0].role != 'user' or false) else 2 }}
===
{% if not messages[0].tool_calls is defined %}a{% endif %}{% if messages[0].tool_calls is not defined or messages[0].tool_calls is none %}b{% endif %}{% if not messages[0].tool_calls %}c{% endif %}
===
{% set x, y = 1, 2 %}{{ x }}{{ y }}{% set (a, b) = [3, 4] %}{{ a }}{{ b }}
===
{{ "a" "b" }} {{ 'a\
b' }} {{ '\t\x41\u00e9\101\'' }} {{ "\"q\"" }} {{ '\d' }}
===
{{ [1, 2, 3,] }} {{ {'a': 1,} }} {{ [[1, [2]], {'a': {'b': 'c'}}] }}
===
{{ messages[1].l }} {{ messages[1].l | string | length }} {{ messages[1].f }} {{ messages[1].n / 2 }}
===
  {% if true %}
    x
  {% endif %}
y {# c #}
  {# d #}
z {%- if true %} w {%- endif %}
{%+ if true %}v{% endif +%}
q
===
{{- 'a' -}}
   b
{{ 'c' }}
d
===
{% for i in [1,2] -%}
  {{ i }}
{%- endfor %}

x
===
{{ x.y }}
===
{{ messages.foo.bar }}
===
{{ undefinedx + 'a' }}
===
{{ 'a' + 1 }}
===
{{ 'a' | nofilter }}
===
{{ none | length }}
===
{% if false %}{{ 'a' | nofilter }}{% endif %}ok
===
{{ (messages | map('string')) | tojson }}
===
{{ (messages | selectattr('role'))[0] }}|
===
{{ big.items() | tojson }}
===
{{ none.x }}| {{ none['x'] }}|
===
{{ messages | map(attribute='role') | unique | sort | join(' ') }} {{ messages | map(attribute='content.0') | list }}
===
{{ 'abc' | attr('upper') is callable }} {{ messages[0] | attr('role') }}|
===
{{ {'a': none} | tojson }} {{ none | tojson }} {{ true | tojson }} {{ 'x' | tojson }} {{ 3 | tojson }}
===
{{ undefinedx | tojson }}
===
{{ not true }} {{ not not 1 }} {{ 1 and 'a' }} {{ 0 or 'b' }} {{ none or undefinedx or 'c' }} {{ '' and 1 }}
===
{{ -1 }} {{ +1 }} {{ - 1 | abs }} {{ (-1) | abs }} {{ -messages[1].n }} {{ not messages }}
===
{% set loop_messages = messages[1:] if messages[0].role == 'system' else messages %}{{ loop_messages | length }}
===
{% set ns = namespace(x=[]) %}{% for m in messages %}{% set ns.x = ns.x + [m.role] %}{% endfor %}{{ ns.x }}
===
{% for m in messages %}{% if loop.nextitem is defined and loop.nextitem.role == 'assistant' %}A{% endif %}{% if loop.previtem is undefined %}F{% endif %}{% endfor %}
===
{{ messages | selectattr('n', 'defined') | map(attribute='n') | first }} {{ messages | selectattr('content', 'string') | list | length }} {{ messages | rejectattr('n') | list | length }}
===
{{ 'Test' | lower }} {{ 'Test' | upper }} {{ 'straße' | upper }} {{ 'ǆ' | capitalize }} {{ 'İ' | lower }} {{ 5 | upper }}
===
{{ '%s' % none }} {{ '%s %s' % (1,) }}
===
{{ '%d' % 'x' }}
===
{{ '{} {}'.format(1) }}
===
{{ '%c%c' % (65, 'b') }} {{ '%e' % 12345.678 }} {{ '%g' % 0.00001 }} {{ '%.0f' % 2.5 }} {{ '%5s|%-5s|' % ('é', 'é') }} {{ '%o %X' % (8, 255) }} {{ '%#x' % 255 }} {{ '% d' % 5 }}
===
{{ '{:d}'.format(3) }} {{ '{:5}|{:<5}|'.format(3, 3) }} {{ '{:.3}'.format(3.14159) }} {{ '{:g}'.format(1e10) }} {{ '{:n}'.format(5) }} {{ '{:_}'.format(1000000) }} {{ '{:08.2f}'.format(-3.14159) }} {{ '{:,.2f}'.format(1234567.891) }} {{ '{:=+7}'.format(42) }} {{ '{:}'.format(1.5) }} {{ '{:10}|'.format('ab') }} {{ '{:10}|'.format(1.5) }} {{ '{:é>5}'.format('a') }}
===
{% set a = 1 %}{% if true %}{% set a = 2 %}{% endif %}{{ a }}{% for i in [1] %}{% set a = 3 %}{% endfor %}{{ a }}
===
{% for i in [1,2,3] %}{% if i == 2 %}{% set z = i %}{% endif %}{{ z }}{% endfor %}
===
{% set content = messages[0].content %}{{ content.split('</think>')[-1].lstrip('\n') }} {{ (content | string).split('b')[0].rstrip() }}
===
{{ messages | length - 1 }} {{ (messages | length) - 1 }} {{ 1 + messages | length }}
"""[1:-1].split("\n===\n")


def main():
    jinja = real_templates.environment()
    made = []
    for source in TEMPLATES:
        try:
            made.append({"template": source, **real_templates.by_jinja(jinja.from_string(source), CASE)})
        except Exception as problem:  # the template is wrong
            made.append({"template": source, "error": f"{type(problem).__name__}: {problem}"})
    path = HOME / "tests" / "data" / "text" / "templates.json"
    lines = ",\n".join(json.dumps(one) for one in made)
    case = json.dumps({**CASE, "now": real_templates.NOW, "special_tokens": real_templates.SPECIAL})
    path.write_text(f'{{"case": {case},\n"cases": [\n{lines}\n]}}\n', encoding="utf-8")


main()
