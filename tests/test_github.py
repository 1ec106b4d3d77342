"""What GitHub and Docker read: forms, workflows, the Dockerfile and the devcontainer."""

import dataclasses
import json
import re
import tomllib
from pathlib import Path

import pytest
import yaml

from algorithms import ppo
from algorithms.launch import flags

ROOT = Path(__file__).parents[1]
GITHUB, DOCKER = ROOT / ".github", ROOT / "docs" / "docker"
FORMS = sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml"))
PAGES = [*FORMS, *sorted(GITHUB.glob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("file", sorted(GITHUB.rglob("*.yml")), ids=lambda file: file.name)
def test_yaml_can_be_read(file):
    assert isinstance(yaml.safe_load(file.read_text()), dict)


def test_forms_have_what_github_asks_for():
    forms = {file.stem: yaml.safe_load(file.read_text()) for file in FORMS}
    assert set(forms) == {"algorithm", "bug", "question", "config"}
    for name, form in forms.items():
        if name == "config":
            continue
        assert {"name", "description", "body"} <= set(form)
        assert len({part["id"] for part in form["body"]}) == len(form["body"])
        for part in form["body"]:
            assert part["type"] in ("textarea", "input", "dropdown") and part["attributes"]["label"]
        assert any(part.get("validations", {}).get("required") for part in form["body"])
    asked = {part["id"]: part for part in forms["bug"]["body"]}
    assert "`single-file-rl --version`" in asked["versions"]["attributes"]["description"]


def test_pages_name_commands_and_files_that_exist():
    known = {f.name for kind in (ppo.Config, flags.Flags) for f in dataclasses.fields(kind)}
    for page in PAGES:
        text = page.read_text()
        for command in re.findall(
            r"(?:python (algorithms/\w+\.py)|single-file-rl) (--[^`\n]+)", text
        ):
            file, words = command
            assert not file or (ROOT / file).exists(), page.name
            named = {w[2:].replace("-", "_") for w in words.split() if w.startswith("--")}
            assert named <= known | {"help"}, f"{page.name}: {named - known}"
        for name in re.findall(r"\b[\w/]+\.md\b", text):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_the_dockerfile_copies_files_that_exist_and_installs_the_kit():
    lines = (DOCKER / "Dockerfile").read_text().splitlines()
    copied = [words.split()[1:-1] for words in lines if words.startswith("COPY ")]
    assert {"pyproject.toml", "algorithms", "envs"} <= {name for names in copied for name in names}
    assert all((ROOT / name).exists() for names in copied for name in names)
    assert {PROJECT["readme"], "LICENSE"} <= set(copied[0]), "pip needs them"
    (default,) = [line.split('"')[1] for line in lines if line.startswith("ARG JAX=")]
    (jax,) = [text for text in PROJECT["dependencies"] if text.startswith("jax>")]
    assert default.removeprefix("jax") == jax.rpartition(",")[2], "the same bound"
    for line in lines:
        for part in re.findall(r"docs/\S+|algorithms/\w+\.py", line):
            assert (ROOT / part).exists()


def test_the_devcontainer_builds_the_dockerfile_and_installs_the_tools():
    container = json.loads((DOCKER / "devcontainer.json").read_text())
    build = container["build"]
    assert (DOCKER / build["dockerfile"]).exists()
    assert (DOCKER / build["context"]).resolve() == ROOT
    (extra,) = re.findall(r"\[(\w+)\]", container["postCreateCommand"])
    assert extra in PROJECT["optional-dependencies"] and extra == "dev"
