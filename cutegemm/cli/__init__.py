"""Command line of cutegemm: `cutegemm gemm | show | plans | explain | check | explore | ranks | tune | ...`."""

from __future__ import annotations

import codecs
import sys
import unicodedata
from io import TextIOWrapper
from typing import Annotated

import typer

import cutegemm
from cutegemm.cli import ahead, explain, gemm, inspect, ranks
from cutegemm.cli.explore import explore
from cutegemm.errors import ended_in_words

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a paragraph
)
app.command("gemm", cls=gemm.Command)(gemm.command)
app.command("show")(inspect.show)
app.command("plans")(inspect.plans)
app.command("explain", cls=gemm.Command)(explain.explain)
app.command("check")(inspect.check)
app.command("explore")(explore)
app.command("ranks", cls=gemm.Command)(ranks.schedule)
app.command("profile")(inspect.profile)
app.command("figures")(inspect.figures)
app.command("tune")(ahead.tune)
app.command("prepare")(ahead.prepare)
app.command("export")(ahead.export)


def _print_version(is_requested: bool) -> None:
    """Callback of the option `--version`: print the version of cutegemm and exit.

    is_requested   True if the option was given; otherwise nothing happens
    """
    if is_requested:
        print(f"cutegemm {cutegemm.__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Check, simulate, analyse, draw, compile and run GEMM kernels that are described by layouts."""


_IN_ASCII = str.maketrans(
    "─━│┃┌┐└┘├┤┬┴┼╭╮╰╯→←×µ·…“”’−",
    '--||+++++++++++++><xu..""\'-',  # one character for one character, so that columns stay aligned
)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that the output encoding lacks by similar ASCII characters, or by a question mark.

    An error handler for `codecs.register_error`, so that printing "→" never fails.

    error     says which characters cannot be encoded
    returns   the replacement, and the index of the next character to encode
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    plain = unicodedata.normalize("NFKD", error.object[error.start : error.end]).translate(_IN_ASCII)
    return "".join([c if c.isascii() else "?" for c in plain if not unicodedata.combining(c)]), error.end


def _print_anywhere() -> None:
    """Make stdout and stderr replace characters that their encoding lacks by similar ones of ASCII, e.g. "→" by ">"."""
    codecs.register_error("cutegemm.in_ascii", _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="cutegemm.in_ascii")


def main() -> None:
    """Run the command line of cutegemm. An error that a user can correct prints its message and exits with status 2."""
    _print_anywhere()
    with ended_in_words("cutegemm"):
        app()
