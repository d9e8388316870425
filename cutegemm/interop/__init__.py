"""Convert layouts from and to other libraries. `interop.operators` offers plans to NVIDIA's operator API.

| other library                             | to a layout                      | from a layout                       |
|-------------------------------------------|----------------------------------|-------------------------------------|
| strides of an array or tensor             | `from_strides(shape, strides)`   | `to_strides(layout)`                |
| numpy                                     | `from_numpy(array)`              | `to_numpy(layout, array)`: a view   |
| torch                                     | `from_torch(tensor)`             | `to_torch(layout, tensor)`: a view  |
| `cutlass.cute`, while it traces           | `from_cute(layout)`              | `to_cute(layout)`                   |
| C++ CuTe: types, calls and what it prints | `from_cpp(text)`                 | `to_cpp(layout)`                    |
| Triton's LinearLayout, over F2            | `from_linear(linear)`            | `to_linear(layout, ins, outs)`      |

Each pair is a round trip: a layout that is converted and converted back is the same function of the same coordinates.
A conversion is exact. If the other library cannot express a layout, the call raises an error that gives the reason.
"""

from cutegemm.interop.cpp import from_cpp, to_cpp
from cutegemm.interop.dsl import from_cute, to_cute
from cutegemm.interop.linear import LinearLayout, from_linear, to_linear
from cutegemm.interop.strides import (
    from_numpy,
    from_strides,
    from_torch,
    to_numpy,
    to_strides,
    to_torch,
)

__all__ = [
    "LinearLayout",
    "from_cpp",
    "from_cute",
    "from_linear",
    "from_numpy",
    "from_strides",
    "from_torch",
    "to_cpp",
    "to_cute",
    "to_linear",
    "to_numpy",
    "to_strides",
    "to_torch",
]
