"""Hooks of mkdocs: README.md is the first page, and every link of the built site is checked."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from linkcheck.cmdline import aggregate_url
from linkcheck.configuration import Configuration
from linkcheck.director import check_urls, get_aggregate
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from cutegemm.explore.static import write

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r'href="(?!\w+:)([^"#]+)\.(?:md|ipynb)(#[^"]*)?"')


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add README.md as index.md with links relative to docs/, the licence, and the explorer."""
    text = (ROOT / "README.md").read_text("utf-8").replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    files.append(File.generated(config, "LICENSE", content=(ROOT / "LICENSE").read_text("utf-8")))
    explorer = Path(mkdtemp(prefix="cutegemm-explorer-"))
    for path in write(explorer / "explore"):
        name = path.relative_to(explorer).as_posix()
        files.append(File.generated(config, name, content=path.read_bytes()))
    shutil.rmtree(explorer)
    return files


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """In a notebook, change links to pages into links to their built files, which mkdocs does only for Markdown."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    return _LINK.sub(lambda found: f'href="{found[1]}.html{found[2] or ""}"', html)


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Follow every link within the built site; raise PluginError if one is broken."""
    said = io.StringIO()
    settings = Configuration()
    settings["status"] = False
    settings["logger"] = settings.logger_new("text", fd=said, verbose=False, warnings=False)
    settings.sanitize()
    links = get_aggregate(settings)
    aggregate_url(links, (Path(config.site_dir) / "index.html").as_uri())
    check_urls(links)
    if settings["logger"].stats.errors:
        raise PluginError(f"links of the site are broken.\n{said.getvalue()}")
