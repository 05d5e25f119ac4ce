"""Generate a client, build it with the program of the documentation, and run that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gateway.api.app import openapi_octets

EXAMPLES: Final = Path(__file__).parent.parent.parent / "docs" / "examples" / "generated"
TOOLS: Final = Path(os.environ.get("GATEWAY_TOOLS") or Path.home() / ".cache" / "gateway-tools")
JAVA: Final = ("java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
AUTOLOAD: Final = r"""<?php
require '/usr/share/php/GuzzleHttp/autoload.php';
spl_autoload_register(function ($name) {
    if (str_starts_with($name, 'Gateway\\')) {
        require __DIR__ . '/../client/lib/' . str_replace('\\', '/', substr($name, 8)) . '.php';
    }
});
"""
"""What Composer would write."""


@dataclass(frozen=True)
class Language:
    """How one language does it. The folder of a client has ``client/``, the program, and what is built."""

    options: str
    """Of the generator, as docs/how-to/generate-a-client.md has them."""
    program: str
    build: Sequence[Sequence[str]]
    run: Sequence[str]


LANGUAGES: Final[Mapping[str, Language]] = {
    "python": Language(
        "-g python --package-name gateway_client",
        "main.py",
        [
            [sys.executable, "-m", "venv", "--without-pip", "venv"],
            ["uv", "pip", "install", "--quiet", "--python", "venv/bin/python", "-r", "client/requirements.txt"],
        ],
        ["venv/bin/python", "main.py"],
    ),
    "typescript": Language(
        "-g typescript-fetch",
        "main.ts",
        [
            [
                str(TOOLS / "typescript/node_modules/.bin/tsc"),
                "--strict", "--skipLibCheck", "--target", "es2022", "--lib", "es2022,dom",
                "--module", "commonjs", "--moduleResolution", "node", "--outDir", "out", "main.ts",
            ]
        ],
        ["node", "out/main.js"],
    ),
    "java": Language(
        "-g java --library native --invoker-package gateway --api-package gateway.api --model-package gateway.model "
        "--additional-properties useSingleRequestParameter=true,containerDefaultToNull=true",
        "Main.java",
        [
            [
                "javac", "-nowarn", "-J-XX:+UseSerialGC", "-J-XX:TieredStopAtLevel=1", "-d", "out",
                "-cp", f"{TOOLS}/generated-java/*", "Main.java", "@sources",
            ]
        ],
        [*JAVA, "-cp", f"out:{TOOLS}/generated-java/*", "Main"],
    ),
    "go": Language(
        "-g go --package-name gateway --git-host example.com --git-user-id clients --git-repo-id gateway",
        "main.go",
        [
            ["go", "mod", "init", "example.com/clients/main"],
            ["go", "mod", "edit", "-replace", "example.com/clients/gateway=./client"],
            ["go", "mod", "tidy"],
            ["go", "build", "-o", "main", "."],
        ],
        ["./main"],
    ),
    "php": Language("-g php --invoker-package Gateway", "main.php", [], ["php", "main.php"]),
}  # fmt: skip


def build(name: str, folder: Path) -> None:
    """Generate the client of a language in the folder, and build it together with the program."""
    language = LANGUAGES[name]
    (folder / "openapi.json").write_bytes(openapi_octets())
    (jar,) = (TOOLS / "openapi-generator").glob("lib/python*/site-packages/openapi_generator_cli/openapi-generator.jar")
    call([*JAVA, "-jar", str(jar), "generate", "-i", "openapi.json", "-o", "client", *language.options.split()], folder)
    shutil.copy(EXAMPLES / language.program, folder)
    if name == "java":
        sources = (folder / "client/src/main/java").rglob("*.java")
        (folder / "sources").write_text("\n".join(str(path) for path in sources))
    if name == "php":
        (folder / "vendor").mkdir()
        (folder / "vendor" / "autoload.php").write_text(AUTOLOAD)
    for command in language.build:
        call(command, folder)


def call(command: Sequence[str], folder: Path, **environ: str) -> str:
    """Run a command in the folder; returns what it printed. Fails with it where the command fails."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": path, "GOFLAGS": "-mod=mod", **environ},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{' '.join(command)[:200]}: {(done.stdout + done.stderr)[-3000:]}"
    return done.stdout


def main_job(name: str, folder: Path, url: str) -> list[str]:
    """Run the program; returns the lines that it printed."""
    environ = {"GATEWAY_URL": url} | ({"PYTHONPATH": "client"} if name == "python" else {})
    return call([*LANGUAGES[name].run, f"orders-{name}"], folder, **environ).splitlines()
