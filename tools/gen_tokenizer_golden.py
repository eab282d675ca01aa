#!/usr/bin/env python3
"""Write tests/golden/tokenizer: texts and the ids that llama.cpp gives them.

Usage: gen_tokenizer_golden.py LLAMA_SERVER NAME=MODEL.gguf [NAME=MODEL.gguf ...]

For every model a llama-server is started on 127.0.0.1, asked by /tokenize with add_special and parse_special off
and on, and stopped. ``texts.json`` holds the texts (a pair [piece, count] is a repetition); ``NAME.json.gz`` the
ids: per text a list of four, in the order of VARIANTS, where a number points to an equal earlier one.
"""

# ruff: noqa: E501 - one text, one line
from __future__ import annotations

import contextlib
import gzip
import json
import random
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

GOLDEN_DIR = Path(__file__).resolve().parent.parent / "tests" / "golden" / "tokenizer"
VARIANTS = [(False, False), (False, True), (True, False), (True, True)]
"""(add_special, parse_special)."""

PROSE = r"""Hello
Hello world
 Hello world
Hello world\x20
  two leading spaces
trailing tab\t
The quick brown fox jumps over the lazy dog.
I'm you're he's we'd they've I'll don't CAN'T WON'T it'S 'tis ''quoted'' rock'n'roll
In 1969, Apollo 11 landed; in 2024 nothing did. 3.14159 1,000,000 0x1F4A9 1e-9 007
Mr. O'Neill's cat--the grey one--said: "meow!" (twice) [sic] {really} <ok>
“Smart quotes” ‘single’ – en dash — em dash … ellipsis
Pneumonoultramicroscopicsilicovolcanoconiosis antidisestablishmentarianism
Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft
Zażółć gęślą jaźń. Příliš žluťoučký kůň úpěl ďábelské ódy.
Voix ambiguë d’un cœur qui, au zéphyr, préfère les jattes de kiwis.
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío.
Съешь же ещё этих мягких французских булок, да выпей чаю.
Ξεσκεπάζω τὴν ψυχοφθόρα βδελυγμία.
いろはにほへと ちりぬるを わかよたれそ つねならむ
日本語の文章です。漢字とカタカナとひらがな、１２３。
天地玄黃，宇宙洪荒。日月盈昃，辰宿列張。
中文和English混合123測試
키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.
صِف خَلقَ خَودٍ كَمِثلِ الشَمسِ إِذ بَزَغَت
نص حكيم له سر قاطع وذو شأن عظيم ١٢٣٤٥
דג סקרן שט בים מאוכזב ולפתע מצא חברה
שָׁלוֹם עֲלֵיכֶם
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले
नमस्ते दुनिया १२३
বাংলা ভাষায় লেখা
தமிழ் மொழி
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า
ភាសាខ្មែរ
ქართული ენა
Հայերեն լեզու
አማርኛ ቋንቋ
Tiếng Việt có dấu: Đường phố
ÀÁÂÃÄÅ àáâãäå ÇçÑñ ØøÆæ ßẞ ŒœĲĳ
e\u0301 a\u0308 o\u0302\u0323 n\u0303 Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324\u031e\u0349\u035a\u032f\u031e\u0320\u034dA\u036b\u0357\u0334\u0362
\u0301alone \u0308\u0308
🙂
🙂🙃😉 mixed 🎉 text
👩‍👩‍👧‍👦 family, 👩🏽‍💻 coder, 🏳️‍🌈 flag, 🇩🇪🇫🇷🇯🇵 flags
❤️ ☺︎ ✔️ #️⃣ 1️⃣\x20
👍🏻👍🏼👍🏽👍🏾👍🏿
🏴󠁧󠁢󠁥󠁮󠁧󠁿 England
𝕳𝖊𝖑𝖑𝖔 𝓦𝓸𝓻𝓵𝓭 𝟘𝟙𝟚𝟛
𐍈𐌰𐌹 𓀀𓁐 𒀀𒁀 𠜎𠜱
½ ¼ ² ³ ¹ ① ⅷ Ⅳ 〇 ٣ ४ 零
± × ÷ ≈ ≠ ≤ ∞ ∑ ∫ √ ∂ → ⇒ ⊕
$100 €50 £20 ¥1000 ₹500 ₿1
©®™ §¶†‡ •◦▪ ░▒▓█
a_b__c___d -e--f---g ~~h~~ `i` **j** *k*
!!! ??? ... ,,, ;;; ::: ??!! ?!?! /// \\\\\\ ||| &&& === +++ ---
tab\tseparated\tvalues\there
line1\nline2\nline3
line1\r\nline2\r\nline3\r\n
mixed\nnew\r\nlines\rhere\n\r\n\n
\n
\r\n
\r
\n\n\n
\n \n \n
 \n
\t
\t\t\t\tdeep
\x20
\x20\x20
\x20\x20\x20
\x20\x20\x20\x20
x    y     z      w
   \n   \n\t\t\n  x
a\u00a0b\u2003c\u3000d\u202fe\u205ff\u1680g
\u200bzero\u200bwidth\u200cnon\u200djoin\ufeffbom\u2060wj
\u202eright to left\u202c \u200f\u200e
\x00\x01\x02\x03
bell\x07 esc\x1b[31mred\x1b[0m del\x7f nel\x85 x
\x0b\x0c vertical\x0bform\x0cfeed
\ufffd replacement \ufffe \uffff
\ue000 private \uf8ff
\u2028line sep\u2029para sep
https://example.com/path/to/page.html?query=value&other=%20x#fragment
http://user:pass@127.0.0.1:8080/~home/../x;y=1,2
mailto:first.last+tag@sub.example.co.uk
/usr/local/lib/python3.11/site-packages/__init__.py
C:\\Program Files\\Some App\\app.exe --flag="a b"
550e8400-e29b-41d4-a716-446655440000
d41d8cd98f00b204e9800998ecf8427e
TWFueSBoYW5kcyBtYWtlIGxpZ2h0IHdvcmsu/+8=
2024-02-29T23:59:60.123456Z +01:00
192.168.0.1 fe80::1%eth0 00:1A:2B:3C:4D:5E
+1 (555) 123-4567 ext. 89
1234567890 12345 123 12 1 0 00 000 0000
1 2 3 4 5 6 7 8 9 10 11 12
3.14 2,718 1'000'000 1_000_000 -5 +7 5% #1 №2
v1.2.3-rc.4+build.5
camelCaseIdentifier PascalCase snake_case SCREAMING_SNAKE kebab-case dot.case
HTMLParser XMLHttpRequest iOS macOS eBay LaTeX
aAbBcC AAAaaaBBBbbb ABCdefGHI
{"key": "value", "n": [1, 2.5, -3e10], "t": true, "x": null}
<a href="x">link</a> <br/> <div class='y'></div><!-- c -->
<table><tr><td>1</td></tr></table>
<s>struck</s> <b>bold</b></s> <u>
SELECT * FROM "t" WHERE a >= 1 AND b <> 'x''y' -- comment
# Title\n\n- item 1\n- item 2\n  - nested\n\n1. one\n2. two\n\n```py\nx = 1\n```\n
| a | b |\n|---|---|\n| 1 | 2 |
---\nkey: value\nlist:\n  - a\n  - b: c\n
E = mc^2, \\frac{a}{b} \\sum_{i=0}^{n} x_i \\alpha\\beta
<|endoftext|>
<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n
<|im_end|>
text<|im_end|>text
<|im_end|><|im_end|>
 <|im_start|> spaced <|im_end|>\x20
<|im_start <|im_end| |im_end|> im_end|>
<<|im_end|>>
<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n
<end_of_turn>
x<end_of_turn>y<eos>
a<bos>b <pad> <unk> <mask> </s> <s> [INST] [/INST]
<unused0><unused99> [multimodal] <start_of_image>
<repo_name>x<file_sep>y<reponame>z<filename>
<gh_stars><issue_start><jupyter_code><empty_output>
<0x0A> <0xFF> <0xE2><0x96><0x81>
\u2581 \u2581\u2581 a\u2581b \u2581x
Ġ Ġhello Ċ ĉ Ã©
<end_of_turn\u200b> <|im_\u200bend|>
<|IM_END|> <|Im_End|>
>\u2581</ > </ > <
a> b> c>d >e > f>> g >>h
x</td><td> y </td>\n<td>
lol looool hahahahaha zzzzzzzz ababababab abcabcabc
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
==================================================
--------------------------------------------------
..................................................
__________________________________________________
\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2500\u2550\u2550\u2550\u2550
ＦＵＬＬＷＩＤＴＨ ｔｅｘｔ １２３
ﬁ ﬂ ﬀ ĳ ǆ
ſ İ ı K Å ʼn
it’s don’t I’m ‘90s
'S 'T 'RE 'VE 'M 'LL 'D 's 't 're 've 'm 'll 'd 'x
' ' '' ''' 's'
a's b't c'd1 5's
\u0915\u094d\u0937 \u0928\u0940 \u0915\u093f
a\u200db \u200d \u200d\u200d
"""

CODE = [
    'def f(x: int) -> str:\n    """Doc."""\n    if x > 1:\n        return f"{x!r:>10}"\n    return None\n\n\n'
    "class A(B):\n\tdef __init__(self, *a, **k):\n\t\tsuper().__init__(*a, **k)\n",
    "for i in range(10):\n    print(i, end='')\n    # comment\n\nprint([x**2 for x in y if x % 2 == 0])",
    '#include <stdio.h>\nint main(void) {\n    printf("Hello, %s!\\n", "world");\n    return 0;\n}\n',
    "template <typename T>\nauto f(T&& x) -> decltype(auto) { return std::forward<T>(x); } // c++\n",
    "fn main() {\n    let mut v: Vec<u8> = vec![1, 2, 3];\n    v.iter().map(|x| x + 1).for_each(drop);\n}\n",
    'package main\n\nimport "fmt"\n\nfunc main() {\n\tfmt.Println("hi")\n\tif err != nil {\n\t\treturn err\n\t}\n}\n',
    "const f = async (x) => { await g(x?.y ?? `t${z}`); };\nexport default f;\n",
    "interface A<T extends object> { readonly x: T[]; y?: (a: string) => void }\n",
    'public static void main(String[] args) {\n    System.out.println("x" + 1);\n}\n',
    "SELECT a.id, COUNT(*) AS n\nFROM t a\nLEFT JOIN u b ON a.id = b.id\nGROUP BY 1\nHAVING n > 5;\n",
    "#!/bin/bash\nset -euo pipefail\nfor f in *.txt; do\n  echo \"${f%.txt}\" | sed 's/a/b/g' >> out 2>&1\ndone\n",
    "<!DOCTYPE html>\n<html>\n<head><title>T</title></head>\n<body>\n<h1>H</h1>\n<ul>\n<li>a</li>\n</ul>\n</body>\n</html>\n",
    "body { color: #ff00ff; margin: 0 auto !important; }\n@media (max-width: 600px) { a:hover::after { content: '\\201C'; } }\n",
    "main :: IO ()\nmain = mapM_ print $ filter even [1..10] >>= \\x -> [x, x * 2]\n",
    "(defun fact (n) (if (<= n 1) 1 (* n (fact (- n 1)))))\n",
    "all: build test\n\nbuild:\n\tgcc -O2 -o $@ $<\n\n.PHONY: all\n",
    "FROM python:3.11-slim\nRUN pip install -r requirements.txt && rm -rf /var/lib/apt/lists/*\n",
    "diff --git a/x b/x\n@@ -1,3 +1,4 @@\n context\n-old\n+new\n+\tadded\n",
    '{\n  "a": [\n    1,\n    2\n  ],\n  "b": {}\n}\n',
    "\\documentclass{article}\n\\begin{document}\n$\\int_0^\\infty e^{-x^2} dx$\n\\end{document}\n",
    "x <- c(1, 2, 3)\nmean(x) %>% print()\n",
    "fun String.f(): Int = this.length.let { it * 2 }\n",
    'BEGIN { FS="," } $1 ~ /^[A-Z]+$/ { sum += $2 } END { print sum }\n',
    "mov eax, [ebx+4*ecx]\njmp .L2 ; comment\n",
    "import React from 'react';\nexport const X = () => <div className=\"a\">{items.map(i => <li key={i}>{i}</li>)}</div>;\n",
]

REPEATS = [
    ("a", 40_000),
    (" ", 40_000),
    ("\n", 40_000),
    ("\t", 5_000),
    ("0", 40_000),
    ("-", 40_000),
    ("é", 5_000),
    ("字", 5_000),
    ("🙂", 2_000),
    ("ab", 20_000),
    ("a ", 5_000),
    ("\r\n", 3_000),
    ("\u0301", 3_000),
    ("<", 5_000),
    (" \n", 3_000),
    ("\u200b", 1_000),
    ("'", 5_000),
]

ALPHABETS = [
    "abc XYZ 019",
    "ab  \t\n\r",
    "'stmdrevl \n",
    "<>/|_imendstaruof ",
    "éßñø ÀÉ'’",
    "日本語中文テスト 、。a1",
    "🙂👩‍💻🏽🇩🇪❤️ a",
    "שלוםعربي १२ क्षि ",
    "\x00\x01\x1f\x7f\x85\xa0 a",
    "0123456789.,-+ ",
    "{}[]()<>=+-*/%!&|^~;:,.#@$?\\\"'` \n\tifx1",
    "\u0300\u0301\u0308\u200b\u200d\ufe0faeo ",
    "aA1 \n<\u2581ĠÃ",
]


def make_texts() -> list[str | list[str | int]]:
    """The committed texts: written by hand, repetitions, and random mixtures from a fixed seed."""
    texts: list[str | list[str | int]] = ["", *_unescaped(PROSE), *CODE]
    texts += [[piece, count] for piece, count in REPEATS]
    rng = random.Random(20240229)
    for alphabet in ALPHABETS:
        for _ in range(11):
            texts.append("".join(rng.choices(alphabet, k=rng.randint(2, 60))))
    words = [text for text in texts if isinstance(text, str) and text]
    for _ in range(25):
        texts.append("".join(rng.choice(words)[:40] for _ in range(rng.randint(2, 5))))
    return texts


def _unescaped(block: str) -> list[str]:
    """One text per line; backslash escapes are those of Python."""
    pattern = re.compile(r"\\(u[0-9a-f]{4}|x[0-9a-f]{2}|.)")
    names = {"n": "\n", "r": "\r", "t": "\t"}

    def decode(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else names.get(code, code)

    return [pattern.sub(decode, line) for line in block.splitlines() if line]


@contextlib.contextmanager
def llama_server(binary: str, model: str) -> Iterator[str]:
    """A running llama-server; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        binary,
        "-m",
        model,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "-c",
        "256",
        "-np",
        "1",
        "-t",
        "1",
    ]
    process = subprocess.Popen(
        [*command, "--no-warmup"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                if process.poll() is not None:
                    raise SystemExit(f"llama-server ended with {process.returncode}") from None
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def tokenize(address: str, text: str, add_special: bool, parse_special: bool) -> list[int]:
    body = json.dumps({"content": text, "add_special": add_special, "parse_special": parse_special})
    with urllib.request.urlopen(f"{address}/tokenize", body.encode(), timeout=300) as reply:
        tokens: list[int] = json.load(reply)["tokens"]
    return tokens


def main(arguments: list[str]) -> None:
    if len(arguments) < 2 or not all("=" in model for model in arguments[1:]):
        raise SystemExit(__doc__)
    texts = make_texts()
    GOLDEN_DIR.mkdir(parents=True, exist_ok=True)
    written = "[\n" + ",\n".join(json.dumps(text) for text in texts) + "\n]\n"
    (GOLDEN_DIR / "texts.json").write_text(written)
    for name, _, model in (argument.partition("=") for argument in arguments[1:]):
        rows = []
        with llama_server(arguments[0], model) as address:
            for text in texts:
                whole = text if isinstance(text, str) else str(text[0]) * int(text[1])
                row: list[list[int] | int] = []
                for variant in VARIANTS:
                    ids = tokenize(address, whole, *variant)
                    row.append(row.index(ids) if ids in row else ids)
                rows.append(row)
        data = json.dumps(rows, separators=(",", ":")).encode()
        (GOLDEN_DIR / f"{name}.json.gz").write_bytes(gzip.compress(data, 9, mtime=0))
        print(f"{name}: {len(rows)} texts")


if __name__ == "__main__":
    main(sys.argv[1:])
