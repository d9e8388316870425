"""What mkdocs asks while it builds the site: README.md is its first page, and no link of a built page is broken."""

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
    """README.md as index.md, whose links begin in docs/; the licence, which it names; and the explorer, as files."""
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
    """In a notebook, which is no Markdown to mkdocs, links to pages as their files are called on the site."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    return _LINK.sub(lambda found: f'href="{found[1]}.html{found[2] or ""}"', html)


def on_post_build(config: MkDocsConfig, **_: Any) -> None:
    """Follows every link of the built pages that stays on the site."""
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
