# SPDX-License-Identifier: GPL-2.0
"""What the checks on Rust sources share: finding files, rooms, bare code."""

import os
import re

ROOMS = ["ctl", "smc_af", "smc_clc", "smc_cdc", "smc_llc", "smc_ib", "net_ctx"]
"""The shell's rooms; each may use only itself and what stands after it."""

TOKEN = re.compile(
    r"""
    (?P<line>//[^\n]*)
  | (?P<block>/\*.*?\*/)
  | (?P<raw>\bb?r(?P<h>\#*)".*?"(?P=h))
  | (?P<string>\b[bc]?"(?:\\.|[^"\\])*"|"(?:\\.|[^"\\])*")
  | (?P<char>b?'(?:\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.)|[^'\\\n])')
    """,
    re.S | re.X,
)


def checkout():
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def sources(top="rust"):
    """Paths of all written (not generated) Rust files below top, sorted."""
    base = checkout()
    found = []
    for where, dirs, files in os.walk(os.path.join(base, top)):
        dirs[:] = [d for d in dirs if d != "target"]
        for name in files:
            if name.endswith(".rs") and not name.endswith("_generated.rs"):
                found.append(os.path.relpath(os.path.join(where, name), base))
    return sorted(found)


def read(path):
    with open(os.path.join(checkout(), path), encoding="utf-8") as f:
        return f.read()


def bare(text):
    """The code with comments and literals blanked out, line for line."""

    def blank(m):
        kept = "".join("\n" if c == "\n" else " " for c in m.group(0))
        return kept

    return TOKEN.sub(blank, text)


def room(path):
    """The room a file of rust/ belongs to; "root" for the crate root."""
    parts = path.split("/")
    if parts[-1] == "smc_af.rs" and len(parts) == 2:
        return "root"
    return parts[1].removesuffix(".rs")


def module(path):
    """The module path of a file of rust/, as a list."""
    parts = path.removesuffix(".rs").split("/")[1:]
    if parts == ["smc_af"]:
        return []
    if parts[-1] == "mod":
        parts.pop()
    return parts


def expand(tree):
    """All paths of a use tree, as strings without "as" parts."""
    tree = tree.strip()
    at = tree.find("{")
    if at < 0:
        return [re.sub(r"\s+as\s+\w+$", "", tree).replace(" ", "")]
    head, inner = tree[:at].strip(), tree[at + 1:tree.rindex("}")]
    depth, start, items = 0, 0, []
    for i, c in enumerate(inner):
        if c == "{":
            depth += 1
        elif c == "}":
            depth -= 1
        elif c == "," and depth == 0:
            items.append(inner[start:i])
            start = i + 1
    items.append(inner[start:])
    return [head.replace(" ", "") + p for item in items if item.strip() for p in expand(item)]


def paths(code):
    """Every path that code names: (line number, path)."""
    found = []
    used = []
    for m in re.finditer(r"\buse\s+([^;]+);", code):
        line = code.count("\n", 0, m.start()) + 1
        flat = re.sub(r"\s+", " ", m.group(1))
        if flat.count("{") == flat.count("}"):
            found += [(line, p) for p in expand(flat)]
            used.append(m.span())
    for m in re.finditer(r"(?<![\w:])\$?(\w+)((?:\s*::\s*\w+)+)", code):
        if any(a <= m.start() < b for a, b in used):
            continue
        line = code.count("\n", 0, m.start()) + 1
        found.append((line, re.sub(r"\s", "", m.group(1) + m.group(2))))
    return found


def resolve(path, mod):
    """A path with self and super replaced, as seen from module mod."""
    parts = path.split("::")
    if parts[0] not in ("super", "self"):
        return parts
    here = list(mod)
    while parts and parts[0] in ("super", "self"):
        if parts.pop(0) == "super" and here:
            here.pop()
    return ["crate"] + here + parts
