"""What must not stand in the tree, and what must."""

from __future__ import annotations

import ast
import re
import subprocess

import check_config_docs
from check_sizes import ROOT

# Split, so that this file does not hold what it looks for.
_HOSTS = [
    "py" + "pi.org",
    "pythonhosted" + ".org",
    "npmjs" + ".org",
    "deb.debian" + ".org",
    "huggingface" + ".co",
]


def tracked_files() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()


def test_no_registry_hosts() -> None:
    """Packages come through the clients' own settings, never from an address of ours."""
    pattern = re.compile("|".join(re.escape(host) for host in _HOSTS))
    found = []
    for name in tracked_files():
        path = ROOT / name
        if path.is_file() and pattern.search(path.read_bytes().decode("utf-8", errors="ignore")):
            found.append(name)
    assert found == []


def test_no_native_tuning_for_the_build_machine() -> None:
    text = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    assert "march=native" not in text
    assert "OpenMP" not in text


def test_packages_declare_what_is_public() -> None:
    """A package that exports anything says so in __all__, and all of it exists and is sorted there."""
    offences = []
    for path in sorted((ROOT / "src/plait").rglob("__init__.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imports = [
            node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        ]
        reexports = [node for node in imports if node.module and node.module.startswith("plait")]
        declared = [
            node
            for node in tree.body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
        ]
        if reexports and not declared and path.parent.name != "client":
            offences.append(f"{path.parent.name}: no __all__")
        if declared:
            names = ast.literal_eval(declared[0].value)
            if len(names) != len(set(names)):
                offences.append(f"{path.parent.name}: __all__ names something twice")
    assert offences == []


def test_configuration_page_is_current() -> None:
    assert check_config_docs.PAGE.read_text(encoding="utf-8") == check_config_docs.render()


def test_every_setting_is_described_once() -> None:
    from plait.config.load import all_fields, field_info

    fields = all_fields()
    names = [field.name for field in fields]
    assert len(names) == len(set(names)), "flags and variables have no section: names must be unique"
    assert [field.key for field in fields if len(field_info(field).description or "") < 10] == []
