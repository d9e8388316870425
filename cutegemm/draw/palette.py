"""The palette: eight hues of four shades each, for light and dark themes.

32 colours match the 32 banks of shared memory and the 32 lanes of a warp. A hue stands for four neighbours: the banks
of a 128-bit access, or the lanes of one row of an `mma.sync` fragment. The shade distinguishes these four.

The hues are distinct for readers with each of the three kinds of colour blindness. A test simulates all three kinds,
and checks the contrast of the ink on every colour.
"""

from __future__ import annotations

from math import cos, radians, sin

HUES = 8
SHADES = 4
COLOURS = HUES * SHADES
RAMP = 16

# OKLCH (lightness, chroma, hue angle) of each hue: Björn Ottosson, "A perceptual color space for image
# processing", 2020.
_LIGHT = (
    (0.870, 0.055, 28), (0.790, 0.105, 60), (0.862, 0.105, 111), (0.940, 0.060, 140),
    (0.895, 0.095, 196), (0.845, 0.080, 246), (0.785, 0.105, 292), (0.780, 0.070, 351),
)  # fmt: skip
_DARK = (
    (0.270, 0.098, 16), (0.363, 0.058, 71), (0.500, 0.086, 100), (0.422, 0.084, 160),
    (0.328, 0.056, 197), (0.500, 0.100, 250), (0.270, 0.115, 286), (0.443, 0.121, 331),
)  # fmt: skip
_SHADE_STEP = 0.022  # difference in lightness


def oklch(lightness: float, chroma: float, angle: float) -> str:
    """Return an OKLCH colour as "#rrggbb", with its chroma reduced until it is in the sRGB gamut.

    lightness   0 to 1
    chroma      0 for grey
    angle       hue angle in degrees

    >>> oklch(1, 0, 0), oklch(0.745, 0.123, 41)
    ('#ffffff', '#ee916e')
    """
    while True:
        linear = _linear(lightness, chroma * cos(radians(angle)), chroma * sin(radians(angle)))
        if chroma < 0.002 or all(-1e-4 <= x <= 1 + 1e-4 for x in linear):
            return "#" + "".join(f"{_encode(x):02x}" for x in linear)
        chroma *= 0.97


def _linear(lightness: float, a: float, b: float) -> tuple[float, float, float]:
    """Return an OKLab colour as the red, green and blue of linear sRGB.

    lightness   0 to 1
    a, b        the OKLab axes green to red, and blue to yellow
    """
    l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3  # noqa: E741 - the cones, as in the source
    m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    s = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
        -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
        -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s,
    )


def _encode(x: float) -> int:
    """Return a linear sRGB component, clamped to [0, 1], as a gamma-encoded integer from 0 to 255."""
    x = min(1.0, max(0.0, x))
    return round(255 * (12.92 * x if x < 0.0031308 else 1.055 * x ** (1 / 2.4) - 0.055))


def _shaded(hues: tuple[tuple[float, float, float], ...]) -> tuple[str, ...]:
    """Return all shades of each hue as "#rrggbb", hue by hue; the shades differ in lightness.

    hues   (lightness, chroma, hue angle in degrees) of each hue, in OKLCH
    """
    return tuple(
        oklch(lightness + (shade - 1.5) * _SHADE_STEP, chroma, angle)
        for lightness, chroma, angle in hues
        for shade in range(SHADES)
    )


LIGHT = _shaded(_LIGHT)
DARK = _shaded(_DARK)
# Colours of ordered values such as offsets, from low to high.
LIGHT_RAMP = tuple(oklch(0.97 - 0.25 * i / (RAMP - 1), 0.015 + 0.095 * i / (RAMP - 1), 245) for i in range(RAMP))
DARK_RAMP = tuple(oklch(0.27 + 0.24 * i / (RAMP - 1), 0.02 + 0.085 * i / (RAMP - 1), 245) for i in range(RAMP))

# name: (light, dark). `rule` colours thin lines. `empty` colours a cell without a colour of its own.
NAMED = {
    "paper": ("#ffffff", "#14171c"),
    "ink": ("#15181d", "#f4f6f8"),
    "muted": ("#5b6470", "#a3adb9"),
    "rule": ("#ffffff", "#14171c"),
    "faint": ("#c9d0d8", "#3b434d"),
    "empty": ("#f1f3f5", "#20252c"),
    "accent": ("#0b57d0", "#8ab4f8"),
}


def stylesheet(scope: str, used: frozenset[str] | set[str]) -> str:
    """Return the CSS rules of the colour classes that a drawing uses, for light and dark themes.

    A class sets the CSS property `color`; shapes are filled or stroked with `currentColor`.

    scope   CSS selector that precedes each class
    used    names of classes: c0 to c31 for distinct colours, s0 to s15 for a ramp from light to dark; other names are
            ignored
    """
    tables = {f"c{i}": (LIGHT[i], DARK[i]) for i in range(COLOURS)}
    tables |= {f"s{i}": (LIGHT_RAMP[i], DARK_RAMP[i]) for i in range(RAMP)}
    chosen = {name: pair for name, pair in (tables | NAMED).items() if name in used}
    light, dark = (
        "".join(f"{scope} .{name}{{color:{pair[theme]}}}" for name, pair in chosen.items()) for theme in (0, 1)
    )
    return f"{light}@media(prefers-color-scheme:dark){{{dark}}}"
