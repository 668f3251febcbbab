"""MkDocs hook: the pages of the site are the project's own Markdown files, at the paths that they have here."""

import re
from pathlib import Path

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
FILES = ("*.md", "docs/**/*.md", "lab/*.md", "examples/server/*.md", "docs/**/*.svg", "lab/*.svg")
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")
CODE = (".cpp", ".hpp", ".cu", ".cuh", ".py", ".json")
LARGEST_PAGE = 200_000  # bytes of a source; a larger one is a file to download


def source_of(page, target):
    """The file of code that a link on the page `page` leads to, relative to the root, or None."""
    path = (ROOT / page).parent / target
    return path.resolve().relative_to(ROOT) if path.suffix in CODE and path.is_file() else None


def is_page(source):
    return (ROOT / source).stat().st_size <= LARGEST_PAGE


def on_files(files, config):
    """Adds pages and pictures, and as pages the sources that they lead to."""

    def copied(path):
        return File(str(path), str(ROOT), config.site_dir, config.use_directory_urls)

    added = {path: copied(path) for pattern in FILES for path in (p.relative_to(ROOT) for p in sorted(ROOT.glob(pattern)))}
    added.setdefault(Path("LICENSE"), copied(Path("LICENSE")))
    for page in [path for path in added if path.suffix == ".md"]:
        for _, target, _ in LINK.findall((ROOT / page).read_text()):
            source = source_of(page, target)
            if source and is_page(source):
                text = (ROOT / source).read_text()
                added[source] = File.generated(
                    config, f"{source}.md", content=f"# {source}\n\n````{source.suffix[1:]}\n{text}\n````\n")
            elif source:
                added[source] = copied(source)
    return Files([*files, *added.values()])


def on_page_markdown(markdown, page, config, files):
    """Points links to sources at their pages. Sources are not searched."""
    here = page.file.src_uri
    if here.endswith(("_source.md", *(f"{suffix}.md" for suffix in CODE))):
        page.meta["search"] = {"exclude": True}

    def to_page(match):
        source = source_of(here, match[2])
        return f"{match[1]}{match[2]}.md{match[3]}" if source and is_page(source) else match[0]

    return LINK.sub(to_page, markdown)
