"""Write the documentation as a site with search, for a browser without a network or a server.

``python deploy/site/build.py FOLDER``: open ``index.html`` in the folder. Any warning is an error: a dead link, a
heading that is not there, a page that is in no index.
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from sphinx.cmd.build import build_main

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
DOCS: Final = ROOT / "docs"
PAGES: Final = {
    "README.md": "start.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "RELIABILITY.md": "experiments.md",
    "SECURITY.md": "security-policy.md",
    "LICENSE": "license.md",
}
"""File at the top of the project -> its page."""
KINDS: Final = (".md", ".png", ".svg")
LINK: Final = re.compile(r"\]\(([^()\s]+)\)")
BARE: Final = re.compile(r"\[([^\[\]]*)\]\0")
"""The text of a link that leads to no page of the site."""
NAMED: Final = re.compile(r"^\| \[(.+?)\]\((.+?)\)", re.MULTILINE)
HEADING: Final = re.compile(r"^## (.+)$", re.MULTILINE)
HREF: Final = re.compile(r'<a [^>]*href="([^"]*)"')
ID: Final = re.compile(r' id="([^"]*)"')
FOREIGN: Final = re.compile(r'<(?:script|img|link rel="(?:stylesheet|icon)")[^>]*(?:src|href)="((?:https?:)?//[^"]*)"')
FENCED: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def main(arguments: list[str]) -> int:
    """The command line; returns the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python deploy/site/build.py FOLDER\n")
        return 2
    with TemporaryDirectory() as folder:
        stage(Path(folder))
        target = Path(arguments[0])
        if target.exists():
            shutil.rmtree(target)
        options = ["-b", "html", "-W", "--keep-going", "-q", "-c", str(HERE), "-d", f"{folder}/.doctrees"]
        status = build_main([*options, folder, str(target)])
    for problem in dead_links(target):
        sys.stderr.write(f"{problem}\n")
        status = 1
    if not status:
        sys.stdout.write(f"{target.resolve() / 'index.html'}\n")
    return status


def stage(folder: Path) -> None:
    """Gather the pages in a folder, with links that lead to pages of the site, and the contents of each part."""
    for path in sorted(DOCS.rglob("*")):
        name = path.relative_to(DOCS).as_posix()
        if path.suffix in KINDS:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".md":
                (folder / name).write_text(linked(path.read_text("utf-8"), f"docs/{name}", name), "utf-8")
            else:
                shutil.copyfile(path, folder / name)
    for file, page in PAGES.items():
        text = (ROOT / file).read_text("utf-8")
        text = linked(text, file, page) if file.endswith(".md") else f"# License\n\n```text\n{text}```\n"
        (folder / page).write_text(text, "utf-8")
    with (folder / "index.md").open("a", encoding="utf-8") as index:
        index.write(contents((DOCS / "index.md").read_text("utf-8")))


def contents(text: str) -> str:
    """The menu, from the text of the index: a part for each of its headings, and the pages at the top."""
    parts = HEADING.split(text)[1:]
    menu = {"Start": ["start.md"]}
    for heading, part in zip(parts[::2], parts[1::2], strict=True):
        menu[heading] = list(dict.fromkeys(target for _, target in NAMED.findall(part) if "#" not in target))
    menu["How-to guides"] += [f"how-to/runbooks/{path.name}" for path in sorted(DOCS.glob("how-to/runbooks/*.md"))]
    menu["Project"] += ["examples/README.md", *(page for page in PAGES.values() if page != "start.md")]
    return "".join(
        "\n```{toctree}\n:hidden:\n:caption: " + caption + "\n\n" + "\n".join(pages) + "\n```\n"
        for caption, pages in menu.items()
    )


def linked(text: str, file: str, page: str) -> str:
    """Have the links of a page lead to pages of the site; of a link to another file its text is left.

    Args:
        text: of the page, as Markdown. Blocks of code stay as they are.
        file: where it is in the project.
        page: where it is on the site.
    """

    def rewrite(link: re.Match[str]) -> str:
        path, mark, anchor = link[1].partition("#")
        if not path or ":" in path:
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), path))
        if target in PAGES:
            target = PAGES[target]
        elif target.startswith("docs/") and target.endswith(KINDS):
            target = target.removeprefix("docs/")
        elif (ROOT / target).exists():
            return "]\0"
        return f"]({posixpath.relpath(target, posixpath.dirname(page) or '.')}{mark}{anchor})"

    done, at = "", 0
    for block in FENCED.finditer(text):
        done += LINK.sub(rewrite, text[at : block.start()]) + block[0]
        at = block.end()
    return BARE.sub(r"\1", done + LINK.sub(rewrite, text[at:]))


def dead_links(site: Path) -> list[str]:
    """Links of the site's pages to a page or a place in one that is not there, and files of other hosts."""
    texts = {path.relative_to(site).as_posix(): path.read_text("utf-8") for path in sorted(site.rglob("*.html"))}
    places = {name: set(ID.findall(text)) for name, text in texts.items()}
    problems = []
    for name, text in texts.items():
        problems += [f"{name}: loads {file}" for file in FOREIGN.findall(text)]
        for link in HREF.findall(text):
            path, _, anchor = link.partition("#")
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
            if ":" in link or (target not in texts and (site / target).is_file()):
                continue
            if target not in texts:
                problems.append(f"{name}: there is no {link}")
            elif anchor and anchor not in places[target]:
                problems.append(f"{name}: {target} has no place {anchor!r}")
    return problems


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
