"""The package itself: what is public is documented, typed and tested; the program is found."""

import ast
import inspect
import os
import pathlib
import subprocess
import sys

import harness
import pytest

import weightfs
from weightfs import binary

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE.parents[1] / "scripts" / "python"
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(PACKAGE)}


def public():
    """(name, object) of all that is public, with the methods of its classes."""
    for name in weightfs.__all__:
        found = getattr(weightfs, name)
        yield name, found
        if inspect.isclass(found):
            for method, value in vars(found).items():
                if not method.startswith("_") and (callable(value) or isinstance(value, property)):
                    yield f"{name}.{method}", value


def function_of(value):
    return value.fget if isinstance(value, property) else value


@pytest.mark.parametrize("name, value", list(public()), ids=lambda one: str(one)[:40])
def test_every_public_name_has_a_docstring_a_type_and_a_test(name, value):
    assert inspect.getdoc(value), f"{name} has no docstring"
    function = function_of(value)
    if inspect.isfunction(function):
        signature = inspect.signature(function)
        untyped = [one for one in signature.parameters.values()
                   if one.name != "self" and one.annotation is inspect.Parameter.empty]
        assert not untyped and signature.return_annotation is not inspect.Signature.empty, name
    word = name.split(".")[-1]
    used = set()
    for path in HERE.glob("*_test.py"):
        if path.name != pathlib.Path(__file__).name or name in ("find_binary", "NoBinaryError"):
            used |= {node.attr for node in ast.walk(ast.parse(path.read_text()))
                     if isinstance(node, ast.Attribute)}
    if name not in ("Error", "Change"):  # a base, and what Delta gives
        assert word in used, f"no test uses {name}"


def test_every_module_has_a_docstring():
    for path in PACKAGE.rglob("*.py"):
        if "vllm" not in path.parts:
            assert ast.get_docstring(ast.parse(path.read_text())), path


def test_importing_it_imports_neither_numpy_nor_torch():
    code = ("import sys, weightfs; "
            "print([one for one in ('numpy', 'torch', 'tqdm') if one in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, text=True,
                          capture_output=True, check=True)
    assert done.stdout == "[]\n"


def test_a_vllm_that_cannot_have_the_backend_starts_without(tmp_path):
    """Each process of vLLM calls register(), and dies of what it raises."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    done = subprocess.run([sys.executable, "-c", "import weightfs.vllm as w; w.register()"],
                          env={**ENVIRONMENT, "PYTHONPATH": f"{tmp_path}:{PACKAGE}"}, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ("this vLLM takes no version in place, which vLLM 0.32 or later does: "
                           "No module named 'vllm.distributed'\n")


def test_versions_agree():
    done = subprocess.run([harness.BINARY, "--version"], text=True, capture_output=True, check=True)
    assert done.stdout.split() == ["weightfs", weightfs.__version__]
    assert f'version = "{weightfs.__version__}"' in (PACKAGE / "pyproject.toml").read_text()


# ---- the program ---------------------------------------------------------------------------------

def program(folder, text="\x7fELF"):
    path = folder / "weightfs"
    folder.mkdir(exist_ok=True)
    path.write_bytes(text.encode("latin1"))
    path.chmod(0o755)
    return str(path)


def test_the_program_is_found_in_the_package_then_by_the_variable_then_in_path(
        tmp_path, monkeypatch):
    monkeypatch.setattr(binary, "BUNDLED", str(tmp_path / "none"))
    script = program(tmp_path / "venv", "#!/usr/bin/python3\n")  # this package's own
    in_path = program(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{os.path.dirname(script)}:{os.path.dirname(in_path)}")
    monkeypatch.delenv("WEIGHTFS_BIN")
    assert weightfs.find_binary() == in_path
    named = program(tmp_path / "named")
    monkeypatch.setenv("WEIGHTFS_BIN", named)
    assert weightfs.find_binary() == named
    bundled = program(tmp_path / "bundled")
    monkeypatch.setattr(binary, "BUNDLED", bundled)
    assert weightfs.find_binary() == bundled


def test_the_message_says_what_to_do_if_there_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(binary, "BUNDLED", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", os.path.dirname(program(tmp_path / "venv", "#!/bin/sh\n")))
    monkeypatch.delenv("WEIGHTFS_BIN")
    with pytest.raises(weightfs.NoBinaryError, match="WEIGHTFS_BIN=/path/to/weightfs"):
        weightfs.log("file:///x")
    monkeypatch.setenv("WEIGHTFS_BIN", str(tmp_path))
    with pytest.raises(weightfs.NoBinaryError, match="is not a program"):
        weightfs.find_binary()


def run_module(*arguments, **variables):
    return subprocess.run([sys.executable, "-m", "weightfs", *arguments], text=True,
                          capture_output=True, env={**ENVIRONMENT, **variables})


def test_the_console_script_is_the_program():
    done = run_module("--version", WEIGHTFS_BIN=harness.BINARY)
    assert (done.returncode, done.stdout.split()[0]) == (0, "weightfs")
    assert run_module("publish", WEIGHTFS_BIN=harness.BINARY).returncode == 2
    missing = run_module("--version", WEIGHTFS_BIN="/nowhere")
    assert missing.returncode == 2 and missing.stderr.startswith("weightfs: WEIGHTFS_BIN")


def test_a_program_that_dies_is_an_error_with_its_words(tmp_path, monkeypatch):
    for script, message in (("echo no; kill -9 $$", "signal 9"), ("echo broken >&2; exit 1",
                            "broken"), ("echo nonsense", "nothing that can be read")):
        path = tmp_path / "fake"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(binary, "find_binary", lambda path=path: str(path))
        with pytest.raises(weightfs.FailedError, match=message):
            weightfs.status("/mnt/w")
