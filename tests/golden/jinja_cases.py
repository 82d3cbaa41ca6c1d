"""Templates, contexts and what transformers' template engine makes of them.

    python tests/golden/jinja_cases.py > tests/golden/jinja_cases.jsonl

needs transformers (5.23) and jinja2 (3.1.6); the tests read only the result. A line is
{"template", "context", "rendered"} or {"template", "context", "error": {"type", "message"}}.
The clock stands at 2024-07-26 09:05:03.
"""
import datetime
import json
import sys

from transformers.utils import chat_template_utils as utils


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 9, 5, 3)


utils.datetime = Clock

MSGS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"}, {"role": "user", "content": "Bye"}]
USERS = [{"name": "Bo", "age": 40, "city": "Oslo", "tags": ["x", "y"]}, {"name": "al", "age": 31, "city": "oslo"},
         {"name": "Cy", "age": 40, "city": "Rome", "tags": []}]
TOOL = {"type": "function", "function": {"name": "get", "description": "A \"q\" & <b> \u4f60\u597d\n", "parameters": {
    "type": "object", "properties": {"a": {"type": "number", "default": 1.0, "minimum": -2.5}, "b": {"enum": [1, None, True]}},
    "required": []}}}
C = {"m": MSGS, "users": USERS, "tool": TOOL, "n": None, "t": True, "f": False, "i": 7, "x": 2.5, "e": "", "z": 0,
     "s": "Hello World", "u": "\u00e9t\u00e9 \u4f60\u597d \U0001f600", "ws": "  \n\u00a0pad\u3000\t ", "l": [3, 1, 2],
     "d": {"b": 1, "a": [1, 2], "C": None}, "nest": [{"v": 1, "kids": [{"v": 2, "kids": [{"v": 3, "kids": []}]}, {"v": 4, "kids": []}]}],
     "html": "<a href='x'>&\"</a>", "big": 9007199254740993, "whole": 3.0, "lines": "a\nb\r\nc\n\nd", "empty": [], "none_list": [None, 1]}

# Each line is one template, run with all of C.
PLAIN = r"""
plain text
{{ 1 }} {{ 1.0 }} {{ 1.5e3 }} {{ 1e20 }} {{ 1e-7 }} {{ 0.1 + 0.2 }} {{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }}
{{ true }} {{ True }} {{ false }} {{ none }} {{ None }}
{{ 'a' "b" 'c\n\t\\\'\"\x41\u00e9\U0001F600\101' }}
{{ "\q" }}
{{ big }} {{ whole }} {{ x }} {{ whole + 1 }} {{ [big, whole] }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 0.5 }}
{{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 1 + 2 * 3 - 4 }} {{ (1 + 2) * 3 }} {{ -2 ** 2 }} {{ 2 ** 3 ** 2 }} {{ - - 3 }} {{ +3 }}
{{ true + 1 }} {{ true == 1 }} {{ false == 0 }} {{ 1 == 1.0 }} {{ '1' == 1 }} {{ none == false }}
{{ 1 / 0 }}
{{ 1 + 'a' }}
{{ 'a' + 1 }}
{{ 'a' + none }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1] }}
{{ 'ab' * 3 }} {{ 2 * 'x' }} {{ [1, 2] * 2 }} {{ [1] + [2] }} {{ (1,) + (2,) }}
{{ [1] + (2,) }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1 != 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 2 >= 2.0 }} {{ 'B' <= 'a' }}
{{ 1 < 'a' }}
{{ none < 1 }}
{{ 1 in l }} {{ 9 not in l }} {{ 'ell' in s }} {{ 'a' in d }} {{ 1 in d }} {{ '' in '' }} {{ 1.0 in l }} {{ true in l }}
{{ 1 in 'a' }}
{{ 'a' in none }}
{{ 'a' in missing }} {{ missing == missing2 }} {{ missing != 1 }} {{ missing ~ '.' }} {{ missing is defined }} {{ not missing }}
{{ t and 'yes' or 'no' }} {{ f and 'yes' or 'no' }} {{ e or z or n or 'end' }} {{ 1 and 2 and 3 }} {{ not t }} {{ not not e }}
{{ 'a' if t else 'b' }} {{ 'a' if f else 'b' }} [{{ 'a' if f }}] {{ 'a' if f else 'b' if f else 'c' }}
{{ ('a' if f).x }}
{{ 1 if t and f or t else 2 }}
{{ missing.x }}
{{ missing['x'] }}
{{ missing() }}
{{ missing + 1 }}
{{ -missing }}
{{ d.nothing.more }}
{{ d.nothing }}|{{ n.x }}|{{ i.x }}|{{ s.nope }}|{{ l[99] }}|{{ l['a'] }}|{{ d[1] }}|{{ l.0 }}
{{ l[9].x }}
{{ none.x.y }}
{{ s.nope() }}
{{ d.a[0] }} {{ d['a'][1] }} {{ d.a[-1] }} {{ d["b"] }} {{ m[0].content }} {{ m[-1]['role'] }} {{ m.0.role }}
{{ l[0] }} {{ l[-1] }} {{ l[1:] }} {{ l[:-1] }} {{ l[::-1] }} {{ l[::2] }} {{ l[-2:] }} {{ l[5:] }} {{ l[1:2:1] }} {{ l[:] }} {{ l[none:2] }}
{{ s[0] }} {{ s[-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ s[-5:-1:2] }} {{ u[1] }} {{ u[4:6] }} {{ u[-1] }} {{ u[::-1] }} {{ u[::2] }} {{ u|length }}
{{ m[1:]|length }} {{ m[:0] }} {{ (1, 2, 3)[1:] }} {{ range(10)[2:5]|list }} {{ s[20:] }}
{{ l[::0] }}
{{ l['a':] }}
{{ n[1:] }}
{{ d[1:] }}
{{ [1, 'a', 2.0, none, true, [2], (3,), (), {'k': 'v'}, {}] }}
{{ ['it\'s', "q\"q", 'both\'"', 'n\nt\tr\r\\', '\x00\x1f\x7f', 'é你', '\u200b\u00a0\ufeff'] }}
{{ d }} {{ tool }}
{{ d.items() }} {{ d.keys() }} {{ d.values() }} {{ range(3) }} {{ range(1, 7, 2) }}
{{ {'a': 1, 'b': 2, 'a': 3} }} {{ {1: 'x', 1.0: 'y', true: 'z'} }} {{ {(1, 2): 3}[(1, 2)] }}
{{ {[1]: 2} }}
{{ d.get('b') }} {{ d.get('q') }} {{ d.get('q', 5) }} {{ d.get('C', 5) }} {{ d.copy() == d }} {{ d.keys()|list }} {{ d.values()|list }}
{{ d.get() }}
{{ d.pop('a') }}
{{ l.append(4) }}
{{ l.append }}|{{ d.update }}|{{ s.__class__ }}|{{ d._x }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}
{% for k, v in d|items %}{{ k }}{{ v }}{% endfor %}{% for k, v in missing|items %}x{% endfor %}
{{ l|items|list }}
{{ l.index(1) }} {{ l.count(3) }} {{ (1, 1).count(1) }}
{{ l.index(99) }}
{% set ns = namespace(a=1, b='x') %}{{ ns.a }}{% set ns.a = ns.a + 1 %}{{ ns.a }}{% set ns.c = [1] %}{{ ns.c }}{{ ns['b'] }}{{ ns.zzz }}{{ ns }}
{% set ns = namespace({'q': 1}, r=2) %}{{ ns.q }}{{ ns.r }}{% for i in l %}{% set ns.q = ns.q + i %}{% endfor %}{{ ns.q }}
{% set ns = namespace() %}{% set ns._x = 1 %}
{% set d.x = 1 %}
{{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }} {{ dict([('p', 1), ('q', 2)]) }} {{ dict() }}
{{ 'a' is string }} {{ 1 is string }} {{ n is none }} {{ 1 is number }} {{ true is number }} {{ 1.5 is float }} {{ 1 is float }} {{ 1.0 is float }} {{ 1 is integer }} {{ true is integer }} {{ true is boolean }} {{ 1 is boolean }}
{{ d is mapping }} {{ l is mapping }} {{ l is sequence }} {{ s is sequence }} {{ d is sequence }} {{ 1 is sequence }} {{ l is iterable }} {{ s is iterable }} {{ 1 is iterable }} {{ none is iterable }} {{ missing is iterable }} {{ missing is sequence }}
{{ d.items() is sequence }} {{ d.items() is iterable }} {{ (l|map('string')) is sequence }} {{ (l|map('string')) is iterable }} {{ range(2) is sequence }}
{{ 3 is odd }} {{ 3 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 1 is eq 1 }} {{ 1 is ne(1) }} {{ 1 is lt 2 }} {{ 1 is ge 2 }} {{ 2 is in l }} {{ 'q' is in 'pqr' }}
{{ s is lower }} {{ 'abc' is lower }} {{ 'ABC' is upper }} {{ '' is lower }} {{ n is sameas none }} {{ t is sameas true }} {{ 1 is sameas true }} {{ range is callable }} {{ s is callable }} {{ t is true }} {{ f is false }} {{ 1 is true }}
{{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }} {{ s is escaped }} {{ n is not none }} {{ missing is not defined }} {{ i is not string and t }} {{ missing is undefined or t }}
{{ 1 is nope }}
{{ 1 | nope }}
{% if f %}{{ 1 | nope }}{% endif %}ok
{% if t %}{{ 1 | nope }}{% endif %}ok
{{ (1 | nope) if f else 'ok' }}
{{ s|upper }} {{ s|lower }} {{ 'hello wORLD-foo (bar)\u00a0bAZ é<ü'|title }} {{ 'hELLO w'|capitalize }} {{ u|upper }} {{ 'straße'|upper }} {{ 'ÀÉ'|lower }} {{ 1|upper }} {{ none|lower }}
{{ "they're bill's friends"|title }} {{ "they're bill's".title() }} {{ 'a1b c'.title() }} {{ 'éa'.capitalize() }} {{ 'aB'.swapcase() }} {{ 'ß'.casefold() == 'ß' or true }}
[{{ ws|trim }}] [{{ ws.strip() }}] [{{ ws.lstrip() }}] [{{ ws.rstrip() }}] [{{ 'xxhixx'|trim('x') }}] [{{ 'abcba'.strip('ab') }}] [{{ 'abcba'.lstrip('ab') }}] [{{ '你a你'.rstrip('你') }}] [{{ '   '.strip() }}] [{{ 'aaa'.strip('a') }}]
{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a b  c '.split(none, 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b  c '.rsplit(none, 1) }} {{ ''.split(',') }} {{ ''.split() }} {{ 'a b c'.rsplit() }} {{ 'aaa'.rsplit('aa', 1) }} {{ 'a b'.split(maxsplit=1) }} {{ 'a--b'.split(sep='--') }} {{ 'x\u3000y z'.split() }}
{{ 'a'.split('') }}
{{ lines.splitlines() }} {{ lines.splitlines(true) }} {{ ''.splitlines() }} {{ 'a\x0bb\x0cc\x1cd\x85e\u2028f'.splitlines() }}
{{ 'k=v=w'.partition('=') }} {{ 'k=v=w'.rpartition('=') }} {{ 'k'.partition('=') }} {{ 'k'.rpartition('=') }}
{{ 'aXbX'.replace('X', '--') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'abc'.replace('', '-') }} {{ 'abc'.replace('', '-', 2) }} {{ 'abc'|replace('b', 'B') }} {{ 1221|replace(2, 3) }} {{ 'aaa'|replace('a', 'b', 1) }} {{ 'aaaa'.replace('aa', 'a') }}
{{ 'abc'.replace('a', none) }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('bc') }} {{ 'abc'.endswith('') }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.startswith('abcd') }}
{{ 'abc'.startswith(1) }}
{{ 'hello'.find('l') }} {{ 'hello'.rfind('l') }} {{ 'hello'.find('z') }} {{ 'hello'.index('e') }} {{ 'hello'.count('l') }} {{ u.find('好') }} {{ 'hello'.find('l', 3) }} {{ 'aaa'.count('aa') }} {{ 'abab'.rfind('ab') }} {{ 'x'.find('') }}
{{ 'hello'.index('z') }}
{{ 'a'.center(5) }}| {{ 'ab'.center(5, '*') }} {{ 'a'.ljust(3) }}| {{ 'a'.rjust(3, '.') }} {{ '-5'.zfill(4) }} {{ '你'.zfill(3) }} {{ 'abc'|center(8) }}|
{{ 'pre-x'.removeprefix('pre-') }} {{ 'x.txt'.removesuffix('.txt') }} {{ 'x'.removeprefix('y') }} {{ ', '.join(['a', 'b']) }} {{ ''.join([]) }} {{ '-'.join('abc') }}
{{ ','.join([1, 2]) }}
{{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ 'ab'.isalpha() }} {{ ' '.isspace() }} {{ ''.isdigit() }} {{ 'AB'.isupper() }} {{ 'ab1'.islower() }} {{ 'a b'.isalpha() }} {{ '你好'.isalpha() }} {{ 'abc'.isascii() }}
{{ '%s is %d and %.2f or %5s|%-5s|%05d|%x|%%' % ('a', 3, 1.5, 'r', 'l', 42, 255) }} {{ '%s' % 'x' }} {{ '%r' % 'x' }} {{ '%(a)s-%(b)03d' % {'a': 1, 'b': 2} }} {{ '%+d % d' % (3, 3) }} {{ '%s' % [1, 2] }} {{ '%e' % 12345.678 }} {{ '%g' % 0.0001 }} {{ '%c' % 'x' }} {{ '%.3s' % 'abcdef' }}
{{ '%s %s' % 'x' }}
{{ '%d' % 'x' }}
{{ 'x' % 1 }}
{{ '{} {}'.format('a', 1) }} {{ '{1} {0}'.format('a', 'b') }} {{ '{x}'.format(x=2) }} {{ '{:>5}|{:<5}|{:^5}|'.format('a', 'b', 'c') }} {{ '{:.2f} {:05d} {:,} {:x} {:%}'.format(3.14159, 42, 1234567, 255, 0.5) }} {{ '{{}} {!r}'.format('q') }} {{ '{0[a]} {0[b]}'.format(d) }} {{ '{:*^7}'.format('m') }} {{ '{:+}'.format(5) }}
{{ '{}'.format() }}
{{ '%s-%s'|format('a', 2) }} {{ '%(x)s'|format(x=1) }}
{{ l|length }} {{ d|length }} {{ s|length }} {{ missing|length }} {{ e|count }} {{ range(5)|length }} {{ d.items()|length }}
{{ n|length }}
{{ 5|length }}
{{ (l|map('string'))|length }}
{{ l|first }} {{ l|last }} {{ s|first }} {{ s|last }} {{ u|last }} [{{ empty|first }}] [{{ empty|last }}] {{ d|first }} {{ d|last }} {{ (l|map('string'))|first }} {{ d.items()|first }}
{{ n|first }}
{{ l|sort }} {{ l|sort(reverse=true) }} {{ ['b', 'A', 'c']|sort }} {{ ['b', 'A', 'c']|sort(case_sensitive=true) }} {{ users|sort(attribute='age')|map(attribute='name')|join(',') }} {{ users|sort(attribute='age,name')|map(attribute='name')|join(',') }} {{ users|sort(true, attribute='age')|map(attribute='name')|join(',') }} {{ 'hello'|sort }}
{{ [1, 'a']|sort }}
{{ l|reverse|list }} {{ s|reverse }} {{ u|reverse }} {{ (1, 2)|reverse|list }} {{ l|unique|list }} {{ ['a', 'A', 'b', 'a']|unique|list }} {{ ['a', 'A']|unique(true)|list }} {{ [1, 1.0, true, 2]|unique|list }} {{ users|unique(attribute='city')|map(attribute='name')|list }}
{{ l|min }} {{ l|max }} {{ ['b', 'A']|min }} {{ ['b', 'A']|max }} [{{ empty|min }}] {{ (users|max(attribute='age')).name }} {{ l|sum }} {{ users|sum(attribute='age') }} {{ l|sum(start=10) }} {{ [0.5, 0.5]|sum }}
{{ l|join }} {{ l|join(', ') }} {{ users|join('-', attribute='name') }} {{ [1, none, true, 'x']|join('|') }} {{ missing|join }} {{ d|join(',') }} {{ s|join('.') }}
{{ l|list }} {{ s[:3]|list }} {{ d|list }} {{ missing|list }} {{ range(3)|list }} {{ (l|map('string'))|list }} {{ u[:2]|list }}
{{ n|list }}
{{ l|map('string')|list }} {{ users|map(attribute='name')|list }} {{ users|map(attribute='tags', default='none')|list }} {{ users[:1]|map(attribute='tags.0')|list }} {{ ['a', 'b']|map('upper')|join }} {{ [' a ']|map('trim')|list }} {{ ['aXb']|map('replace', 'X', '-')|list }} {{ none|map('upper')|list }} {{ l|map('default', 5)|list }}
{{ users|map(attribute='tags.0')|list }}
{{ l|map('nope')|list }}
{{ l|map }}{{ l|map|list }}
{{ l|select('odd')|list }} {{ l|reject('odd')|list }} {{ l|select('gt', 1)|list }} {{ none_list|select|list }} {{ users|selectattr('tags')|map(attribute='name')|list }} {{ users|selectattr('age', 'equalto', 40)|map(attribute='name')|list }} {{ users|rejectattr('age', '==', 40)|map(attribute='name')|list }} {{ users|selectattr('tags', 'defined')|list|length }} {{ m|selectattr('role', 'in', ['user', 'system'])|list|length }} {{ m|rejectattr('role', 'equalto', 'user')|map(attribute='content')|join(' ') }}
{{ (m|selectattr('role', 'equalto', 'tool')) and 'truthy' }} {{ (m|selectattr('role', 'equalto', 'tool')|list) and 'x' or 'falsy' }} {{ (m|selectattr('role', 'equalto', 'user')|first).content }} {{ m|selectattr('role', 'equalto', 'tool')|first is defined }}
{{ l|select('nope')|list }}
{% set g = l|map('string') %}{{ g|first }}{{ g|list }}{{ g|list }}
{{ users|groupby('age')|list|length }} {% for g, items in users|groupby('city') %}{{ g }}:{{ items|map(attribute='name')|join('+') }};{% endfor %}{% for g in users|groupby('age') %}{{ g.grouper }}={{ g.list|length }} {% endfor %}
{{ d|dictsort }} {{ d|dictsort(true) }} {{ {'a': 2, 'b': 1}|dictsort(by='value') }} {{ {'a': 2, 'b': 1}|dictsort(reverse=true) }} {% for k, v in {'z': 1, 'y': 2}|dictsort %}{{ k }}{{ v }}{% endfor %}
{{ l|dictsort }}
{{ missing|default('x') }} {{ n|default('x') }} {{ e|default('x', true) }} {{ n|default('x', boolean=true) }} {{ missing|d }} {{ d.q|default([1]) }} {{ z|default(5, true) }}
{{ '42'|int }} {{ '4.7'|int }} {{ 'x'|int }} {{ 'x'|int(9) }} {{ 4.9|int }} {{ -4.9|int }} {{ true|int }} {{ none|int(3) }} {{ '0x1f'|int(0, 16) }} {{ ' 5 '|int }} {{ '1_000'|int }} {{ '101'|int(base=2) }} {{ '-7'|int }} {{ '1e3'|int }} {{ '12abc'|int }}
{{ missing|int }}
{{ '1.5'|float }} {{ '2'|float }} {{ 3|float }} {{ 'x'|float }} {{ 'x'|float(1.5) }} {{ '1e3'|float }} {{ 'inf'|float }} {{ '-.5'|float }} {{ '0x10'|float }} {{ 5|string ~ 'a' }} {{ 1.0|string }}
{{ 2.5|round }} {{ 3.5|round }} {{ 2.675|round(2) }} {{ 42.55|round(1, 'floor') }} {{ 42.51|round(1, 'ceil') }} {{ 7|round }} {{ 1234|round(-2) }} {{ 42.4|round|int }} {{ -2.5|round }} {{ 0.15|round(1) }}
{{ -5|abs }} {{ -5.5|abs }} {{ 5|abs }} {{ (-5)|abs }}
{{ 'a'|abs }}
{{ html|e }} {{ html|escape }} {{ html|safe }} {{ html|forceescape }}
{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent(2, blank=true) }}|{{ 'a\nb'|indent('> ') }}|{{ 'a\nb'|indent(width=1, first=true) }}|{{ ''|indent }}|{{ 'a\n'|indent }}
{{ 'foo bar baz qux'|truncate(9) }} {{ 'foo bar baz qux'|truncate(9, true) }} {{ 'foo bar baz qux'|truncate(11) }} {{ 'foo bar baz qux'|truncate(11, false, '...', 0) }} {{ 'foo bar baz'|truncate(5, end='!', leeway=0) }} {{ s|wordcount }}
{{ l|batch(2)|list }} {{ l|batch(2, 'x')|list }} {{ [1, 2, 3, 4, 5]|slice(2)|list }} {{ [1, 2, 3, 4, 5]|slice(3, 'x')|list }}
{{ tool|tojson }} {{ tool|tojson(indent=2) }}
{{ [1, 1.0, 2.5, none, true, 'é"\\/\n\t\x01\x7f', (1, 2), {}, []]|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ d|tojson(separators=(',', ':')) }} {{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }} {{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }} {{ [[], {}, [1]]|tojson(indent=1) }} {{ d|tojson(indent=0) }} {{ d|tojson(indent='\t') }} {{ big|tojson }} {{ 1e100|tojson }}
{{ missing|tojson }}
{{ (l|map('string'))|tojson }}
{{ d|attr('a') }}|{{ d|attr('items') is callable }}|{{ s|attr('upper')() }}
{{ -1|string }} {{ -1|abs }}
{{ -s|length }}
{{ s | upper | replace('O', '0') | length }} {{ (s | upper)[0] }} {{ [1, 2] | join(',') ~ '!' }} {{ 1 + 2 | string | length }} {{ 'a' ~ 'b' | upper }}
{{ 1, 2 }} {{ (1, 2) }} {{ () }} {{ (1,) }} {{ 1, }}
{{ range(3) == [0, 1, 2] }} {{ range(0) or 'none' }} {{ range(5, 0, -2)|list }} {{ range(3)[1] }} {{ 2 in range(3) }}
{{ range(200000) }}
{{ range('a') }}
{% for i in range(3) %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}
{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{% endfor %}{% for x in [1, 2, 3] %}{{ loop.previtem is defined }}{{ loop.nextitem|default('end') }}{% endfor %}
{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
{% for x in l if x > 1 %}{{ x }}{{ loop.index }}/{{ loop.length }}{% else %}none{% endfor %}{% for x in l if x > 9 %}{{ x }}{% else %}none{% endfor %}
{% for x in [] %}{% else %}empty{% endfor %}{% for x in missing %}{% else %}undef{% endfor %}{% for c in 'añ' %}[{{ c }}]{% endfor %}
{% for x in none %}{% endfor %}
{% for x in 5 %}{% endfor %}
{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for a, b in ['xy'] %}{{ b }}{{ a }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for a, b in [(1,)] %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% else %}else{% endfor %}{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}
{% for x in [1] %}{% break %}{% else %}else after break{% endfor %}{% for x in [1] %}{% continue %}{% else %}else after continue{% endfor %}
{% for x in l %}{% set q %}{{ x }}{% if x == 1 %}{% break %}{% endif %}{% endset %}{{ q }}{% endfor %}
{% break %}
{% for x in l %}{% macro q() %}{% break %}{% endmacro %}{% endfor %}
{% for item in nest recursive %}{{ item.v }}({{ loop.depth }}){% if item.kids %}[{{ loop(item.kids) }}]{% endif %}{% endfor %}
{% for x in l %}{{ loop(l) }}{% endfor %}
{% for item in nest recursive %}{{ item.v }}{{ loop(item.kids) if item.kids }}{% else %}leaf{% endfor %}
{% for x in l %}{% set y = x %}{% endfor %}{{ y is defined }}{% set y = 1 %}{% for x in l %}{{ y }}{% set y = x %}{{ y }}{% endfor %}{{ y }}
{% set a = 1 %}{% if t %}{% set a = 2 %}{% endif %}{{ a }}{% if f %}{% set b = 2 %}{% endif %}{{ b is defined }}{{ i }}{% if f %}{% set i = 9 %}{% endif %}{{ i }}
{% for x in [1, 2] %}{{ i }}{% endfor %}{% set i = 5 %}{{ i }}
{{ i }}{% for x in [1, 2] %}{{ i }}{% set i = x %}{{ i }}{% endfor %}{{ i }}
{% macro show() %}{{ late }}{% endmacro %}{% set late = 'set later' %}{{ show() }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (a, b) = (b, a) %}{{ a }}{{ b }}{% set x = [1, 2] %}{{ x }}{% set ns = namespace() %}{% set ns.a, q = 3, 4 %}{{ ns.a }}{{ q }}
{% set a = b = 1 %}
{% set a, b = 1 %}
{% set x %}block {{ i }}{% endset %}[{{ x }}]{% set y | upper | trim %} up {% endset %}[{{ y }}]
{% set loop = 1 %}{{ loop }}{% for x in l %}{{ loop.index }}{% endfor %}
{% for x in l %}{% set loop = 1 %}{% endfor %}
{% for loop in l %}{% endfor %}
{% with a = 1, b = 2 %}{{ a }}{{ b }}{% set a = 9 %}{{ a }}{% endwith %}{{ a is defined }}{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q is defined }}{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}
{% macro f(a, b='B', c=none) %}{{ a }}|{{ b }}|{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, 2) }}{{ f(c=3, a=1) }}{{ f() }}{{ f(1, b=none) }}{{ f(*[1, 2], **{'c': 3}) }}
{% macro f(a=false, b=none, c=0, d='') %}{{ a }}{{ b }}{{ c }}{{ d }}{{ a is defined }}{% endmacro %}{{ f() }}{{ f(a=true, c=false) }}
{% set q | default(false, true) %}{% endset %}{{ q }}{% set w | int %}12{% endset %}{{ w + 1 }}{{ [false]|first }}{{ [false, 1]|min }}{{ {'a': false}.get('a', 1) }}{{ {'a': false}.a }}{{ {'a': false}['a'] }}{{ [false][0] }}{{ missing|default(false) }}
{% set ns = namespace(a=false) %}{{ ns.a }}{{ ns['a'] }}{% for x in [false, none] %}{{ x }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle(false, true) }}{% endfor %}{% set x = false %}{{ x }}{% set a, b = false, none %}{{ a }}{{ b }}
{{ (false or 0) }}{{ (true and false) }}{{ (none and 1) }}{{ [false, 0] == [0, false] }}{{ dict(a=false) }}{{ [false, none]|map('string')|join }}{{ [{'a': false}]|map(attribute='a')|list }}{{ [{'a': false}]|selectattr('a', 'false')|list|length }}{{ '%s' % false }}{{ '{} {a}'.format(false, a=false) }}{{ [true, false]|sort }}{{ [false]|sum }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}
{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, x=3) }}{{ f() }}
{% macro f(a, b=a ~ '!') %}{{ b }}{% endmacro %}{{ f('x') }}
{% macro f(x) %}{% if x %}{{ x }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}
{% macro a() %}A{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}
{{ f() }}{% macro f() %}{% endmacro %}
{% macro f(x) %}[{{ caller() }}:{{ x }}]{% endmacro %}{% call f(1) %}body {{ i }}{% endcall %}{% macro g() %}{% for x in [1, 2] %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(v) g() %}<{{ v }}>{% endcall %}
{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}
{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}
{% filter upper %}abc {{ s }}{% endfilter %}{% filter replace('a', 'b') | trim %} aaa {% endfilter %}
{% if f %}1{% elif f %}2{% elif t %}3{% else %}4{% endif %}{% if n %}a{% else %}b{% endif %}{% if 1, 2 %}t{% endif %}
{% if x is defined and x > 2 %}yes{% endif %}{% if s.startswith('He') and 'W' in s %}yes{% endif %}{% if not (t and f) %}yes{% endif %}
{% generation %}gen {{ s }}{% set g = 1 %}{% endgeneration %}{{ g is defined }}
{% raw %}{{ not }} {% jinja %} {# here #}{% endraw %}|{%- raw -%} x {%- endraw -%}|
{# comment {{ x }} {% if %} #}a{# b #}c{#- d -#} e
{{ raise_exception('stop: ' ~ s) }}
{% if m|length > 2 %}{{ raise_exception('Conversation roles must alternate ' ~ m[0].role) }}{% endif %}
{{ raise_exception(1) }}
{{ strftime_now('%Y-%m-%d %H:%M:%S') }} {{ strftime_now('%d %b %Y') }} {{ strftime_now('%A, %B %d, %Y %j %y %I %p %a %%') }} {{ strftime_now('%-d %-m %e %F %T') }}
{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}{% set j = joiner('|') %}{{ j() }}{{ j() }}{{ j() }}
{% print s %}{% print 1, 2 %}
{% do 1 %}
{% include 'x' %}
{% if %}{% endif %}
{% if t %}
{% endif %}
{% for x in l %}{% endif %}
{% foo %}
{{ 1 + }}
{{ }}
{{ 'abc }}
{{ (1 }}
{{ 1) }}
{{ [1, 2 }}
{{ a b }}
{{ 1 is string is string }}
{{ f(a=1, 2) }}
{# unclosed
{% raw %} unclosed
{{ a ! b }}
{% set 1 = 2 %}
{% set a.b.c = 2 %}
{% macro f(a=1, b) %}{% endmacro %}
{{ "\u12" }}
{% for x in l -%} {{ x }} {%- endfor %}
{{ '}}' }} {{ "{{" }} {{ '%}' }} {{ {'a': {'b': 1}}['a']['b'] }} {{ {'a': {}} }}
{{ [1, 2,] }} {{ {'a': 1,} }} {{ f|default(1,) }}
{{ not t == f }} {{ not t in [f] }} {{ t if not f }} {{ 1 not in [2] }} {{ (not t) == f }}
{{ l.0 }}{{ nest[0].kids[1].v }}{{ nest[0]['kids'].0.v }}
{{ -1 ** 2 }} {{ 10 - 5 - 2 }} {{ 100 / 10 / 2 }} {{ 2 * 3 % 4 }}
{{ 1 ~ 2 + 3 }}
{{ 1 + 2 ~ 3 }}
{{ 'a' 'b' ~ 'c' * 2 }}
{{ m | map(attribute='content') | map('length') | list }} {{ m | map(attribute='role') | unique | join('/') }}
{{ m|length }} {{ m[-1] == m|last }} {{ m[::-1][0].content }} {% for x in m[::-1] %}{{ x.content[0] }}{% endfor %} {% for x in m|reverse %}{{ x.role[0] }}{% endfor %}
{{ tool.function.parameters.properties.items() | list | length }} {{ tool.function.name }} {{ tool['function']['parameters']['type'] }}
{{ tool.items is mapping }}{{ d.keys is callable }}
{{ [m, d] is sequence }} {{ {} is mapping }} {{ (1, 2) is sequence }}
{{ s.upper().lower().title()[::-1] }} {{ (s ~ '!').split('o')[-1] }} {{ s.split()[0].lower() }} {{ 'x=%s' % s.upper() }}
{{ "a</think>b".split('</think>')[-1].lstrip('\n') }} {{ 'x' in ['x', 'y'] and 'x' not in ['z'] }} {{ '</think>' in 'a</think>b' }}
{{ 1 in [true] }} {{ 'a' in ('a',) }} {{ [1] in [[1]] }} {{ {'a': 1} == {'a': 1.0} }} {{ [1, 2] == (1, 2) }} {{ none in none_list }}
{{ 5 if missing else 6 }} {{ missing or 'dflt' }} {{ (missing or {}).x }} {{ missing is none }} {{ d.C is none }} {{ d.C is defined }}
{{ m[0].content if m and m[0].role == 'system' else 'none' }} {{ m[0]['content'] | trim ~ '.' }}
{{ 'abc'[1:][0] }} {{ 'abc'['1'] }}|{{ 'abc'[1.0] }}| {{ l[true] }} {{ [[1, 2], [3]][0][1] }}
{{ 1.5.x }}
{{ 'a b '.split(none, 1) }}{{ ' a b'.rsplit(none, 1) }}{{ 'a b'.split(none, 0) }}{{ 0.125|round(2) }} {{ '%.0f' % 2.5 }} {{ '%.1f|%.2f' % (0.25, 0.375) }}
{{ x.y.z }}
{{ 9007199254740992 + 0 }} {{ 123456789 * 1000 }} {{ 1e15 }} {{ 1e16 }} {{ 123456789.125 }} {{ 1e300 * 10 }} {{ -0.0 }} {{ 0 * -1 }} {{ 5e-5 }} {{ 0.0001 }} {{ 100.0 }} {{ 1.10 }}
""".strip("\n").split("\n")

# Templates of several lines: white space control, tags on their own lines.
BLOCKS = [
    "a\n{% if t %}\nb\n{% endif %}\nc\n",
    "a\n  {% if t %}\n    b\n  {% endif %}\nc\n\n",
    "a\n  {%- if t %}\n    b\n  {%- endif %}\nc",
    "a\n  {% if t -%}\n    b\n  {% endif -%}\n c",
    "a\n  {%+ if t %}\n    b\n  {%+ endif +%}\nc",
    "a {% if t %} b {% endif %} c",
    "  {{ s }}  \n  {{- s -}}  \n  {{ s }}\n",
    "{{ s }}\n{{ s }}\n\n",
    "\n\n{% set a = 1 %}\n\n{{ a }}\n",
    "{% for x in l %}\n  - {{ x }}\n{% endfor %}\nend",
    "{%- for x in l -%}\n  {{ x }}\n{%- endfor -%}\nend",
    "{% for x in l %}{{ x }}\n{% endfor %}",
    "  {# c #}\nx {# c #}\n{#- c #} y\n  {#+ c +#}\nz",
    "x\n {#- c -#} \n y",
    "{% raw %}\n  {{ x }}\n{% endraw %}\ny\n  {% raw %}a{% endraw %}\n  b {%- raw %} c {% endraw -%} d",
    "a\r\nb\rc\n{% if t %}\r\nd{% endif %}\r\n",
    "\t {% if t %}x{% endif %}\n \t{% if t %}y{% endif %}\n",
    "text {% if t %}\nnext\n{% endif %} tail\n",
    "{% if t %}\n\n\nthree{% endif %}",
    "\u3000{%- if t %}x\u00a0{%- endif -%}\u2003y",
    "{{ 'a\nb' }}\n{{\n  s\n}}\n{%\n  if t\n%}z{% endif %}",
    "{% macro f(x) %}\n  <{{ x }}>\n{% endmacro %}\n{{ f(1) }}\n{{ f(2) }}",
    "{%- macro f(x) -%}\n  <{{ x }}>\n{%- endmacro -%}\n{{ f(1) }}\n{{- f(2) }}",
    "{% set x %}\n  in\n{% endset %}\n[{{ x }}]",
    "{% call(x) f() %}{% endcall %}",
    "line1\n{{ missing.x }}\n",
    "{% if t %}\n{% if t %}\n{{ missing.x }}{% endif %}{% endif %}",
    "{%if t%}x{%endif%}{{s}}{#c#}{%-if t-%} y {%-endif-%}",
    "{{-s}} {{s-}} ",
    "{{ - 1 }} {{-1}} {{- -1 }}",
    "x{% if t %}{% endif %}\ny",
    "{{ x }}{% if t %}\n{% endif %}\n{{ x }}",
    "",
    "\n",
    "\n\n",
    " ",
    "{% set ns = namespace(found=false) %}\n{% for u in users %}\n{% if u.age == 31 %}\n{% set ns.found = true %}\n{% endif %}\n{% endfor %}\n{{ ns.found }}\n",
    "{% for a in l %}{% for b in l %}{% if b == 1 %}{% break %}{% endif %}{{ a }}{{ b }} {% endfor %}{% if a == 1 %}{% continue %}{% endif %}|{% endfor %}",
    "{% macro outer() %}{% macro inner(x) %}({{ x }}{{ i }}){% endmacro %}{{ inner(1) }}{{ inner(2) }}{% endmacro %}{{ outer() }}",
    "{% macro t(role, text) %}<{{ role }}>{{ caller() if caller else text }}{% endmacro %}{{ t('a', 'b') }}{% call t('a', 'b') %}c{% endcall %}",
    "{% set x = 1 %}{% macro f() %}{{ x }}{% set x = 2 %}{{ x }}{% endmacro %}{{ f() }}{{ x }}{{ f() }}",
    "{% for x in l %}{% with y = x * 2 %}{% filter upper %}v{{ y }}{% endfilter %}{% endwith %}{% endfor %}",
    "{% set items = [] %}{% for x in l %}{% set items = items + [x] %}{% endfor %}{{ items }}",
    "{% for x in l %}{% if loop.first %}<{% endif %}{{ x }}{% if not loop.last %},{% else %}>{% endif %}{% endfor %}",
    "{% for x in users|selectattr('age', 'gt', 30) %}{{ loop.length }}{{ loop.last }}{{ x.name }}{% endfor %}",
    "{% for k, v in d.items() if v %}{{ k }}{{ loop.index }}{% endfor %}",
    "{% if missing %}{% elif missing2 is defined %}{% else %}{% set q = missing3 %}{{ q is undefined }}{% endif %}",
]


def case(template):
    row = {"template": template, "context": "C"}
    try:
        row["rendered"] = utils._compile_jinja_template(template).render(**C)
    except RecursionError:
        row["error"] = {"type": "RecursionError", "message": ""}
    except Exception as e:
        row["error"] = {"type": type(e).__name__, "message": str(e)}
    return row


print(json.dumps({"C": C}, ensure_ascii=False))
for template in PLAIN + BLOCKS:
    row = case(template)
    print(json.dumps(row, ensure_ascii=False))
print(f"{len(PLAIN + BLOCKS)} cases", file=sys.stderr)
