"""Linear layers of public models: the choice of a plan is judged by them, and kernels are prebuilt for them.

A layer with a weight w of shape (N, K), row-major as torch keeps it, takes `rows` rows of x. Training multiplies three
times, and the matrices are read as they lie in memory:

    forward           y  = x w^T       rows x N x K   layout "nt": w is K-major
    data gradient     dx = dy w        rows x K x N   layout "nn": w is N-major, seen from this product
    weight gradient   dw = dy^T x      N x K x rows   layout "tn": dy is M-major, x is N-major
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

GATED = ("swiglu", "geglu", "geglu_tanh")
MOST_ROWS = 16384


@dataclass(frozen=True)
class Model:
    """The shapes of a transformer's linear layers, i.e. the GEMMs for which kernels are to be prepared.

    weights      shapes (N, K) of the weights: N output features, K input features
    tokens       rows of A that one image or sequence has; 1 if any number of rows is usual
    up           index in `weights` of the first layer of the MLP. In a gated MLP, this weight holds the gate and the up
                 projection
    activation   activation of the MLP, by the name that `cutegemm.mlp` takes, such as "swiglu"
    """

    weights: tuple[tuple[int, int], ...]
    tokens: int = 1
    up: int = -1
    activation: str = "swiglu"

    @property
    def hidden(self) -> tuple[int, int]:
        """Return the shape (N, K) of the first weight of the MLP, whose result the activation is applied to."""
        return self.weights[self.up]

    @property
    def is_gated(self) -> bool:
        """Return whether the MLP is gated, i.e. whether its first layer computes gate and up projection."""
        return self.activation in GATED


def decoder(width: int, heads: int, groups: int, hidden: int, vocabulary: int, activation: str = "swiglu") -> Model:
    """Return the layer shapes of a decoder (language model) with a gated MLP.

    width        features of a token
    heads        features of all queries together
    groups       features of all keys together, and of all values
    hidden       features between the two layers of the MLP
    vocabulary   output features of the last layer
    activation   activation of the MLP, as `cutegemm.mlp` names it
    """
    attention = (heads, width), (groups, width), (heads + 2 * groups, width), (width, heads)
    others = (hidden, width), (2 * hidden, width), (width, hidden), (vocabulary, width)
    return Model(attention + others, up=5, activation=activation)


def encoder(width: int, tokens: int, outputs: int, activation: str = "gelu") -> Model:
    """Return the layer shapes of an encoder: a transformer with an ungated MLP that is four times as wide as a token.

    width        features of a token
    tokens       rows of A that one image or sequence has
    outputs      output features of the last layer
    activation   activation of the MLP, as `cutegemm.mlp` names it
    """
    weights = (width, width), (3 * width, width), (4 * width, width), (width, 4 * width), (outputs, width)
    return Model(weights, tokens, up=2, activation=activation)


MODELS: Mapping[str, Model] = {
    "Llama 3.2 1B": decoder(2048, 2048, 512, 8192, 128256),
    "Llama 3.2 3B": decoder(3072, 3072, 1024, 8192, 128256),
    "Llama 3.1 8B": decoder(4096, 4096, 1024, 14336, 128256),
    "Llama 3.1 70B": decoder(8192, 8192, 1024, 28672, 128256),
    "Qwen 2.5 0.5B": decoder(896, 896, 128, 4864, 151936),
    "Qwen 2.5 1.5B": decoder(1536, 1536, 256, 8960, 151936),
    "Qwen 2.5 7B": decoder(3584, 3584, 512, 18944, 152064),
    "Qwen 2.5 32B": decoder(5120, 5120, 1024, 27648, 152064),
    "Qwen 3 8B": decoder(4096, 4096, 1024, 12288, 151936),
    "Gemma 2 2B": decoder(2304, 2048, 1024, 9216, 256000, "geglu_tanh"),
    "Gemma 2 9B": decoder(3584, 4096, 2048, 14336, 256000, "geglu_tanh"),
    "Gemma 2 27B": decoder(4608, 4096, 2048, 36864, 256000, "geglu_tanh"),
    "Phi 3 mini": decoder(3072, 3072, 3072, 8192, 32064),
    "Phi 4": decoder(5120, 5120, 1280, 17920, 100352),
    "ViT-B/16": encoder(768, 197, 1000),
    "ViT-L/16": encoder(1024, 197, 1000),
    "ViT-H/14": encoder(1280, 257, 1000),
    "BERT base": encoder(768, 128, 30522),
    "BERT large": encoder(1024, 512, 30522),
    "SD3.5 medium, image": encoder(1536, 4096, 64, "gelu_tanh"),
    "SD3.5 medium, text": encoder(1536, 333, 9216, "gelu_tanh"),
    "SD3.5 large, image": encoder(2432, 4096, 64, "gelu_tanh"),
    "SD3.5 large, text": encoder(2432, 333, 14592, "gelu_tanh"),
}
