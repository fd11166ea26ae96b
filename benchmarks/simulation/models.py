"""Networks as what data-parallel training sees of them: parameter tensors in the order of the forward pass.

Shapes follow the papers and the common implementations: ResNet (He et al. 2015, arXiv 1512.03385),
Inception V3 (Szegedy et al. 2015, arXiv 1512.00567), VGG-16 (Simonyan, Zisserman 2014, arXiv 1409.1556),
and a decoder-only transformer like GPT-2 (Radford et al. 2019). Each tensor carries the multiply-adds of
its layer for one sample, which is how the time of the backward pass is divided among layers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Network", "inception_v3", "resnet", "transformer", "vgg16"]


@dataclass
class Network:
    """Parameter tensors of a network: ``(elements, multiply-adds per sample)``, in forward order."""

    name: str
    tensors: list[tuple[int, float]] = field(default_factory=list)

    @property
    def parameters(self) -> int:
        return sum(elements for elements, _ in self.tensors)

    @property
    def multiply_adds(self) -> float:
        return sum(work for _, work in self.tensors)

    def conv(self, before: int, after: int, kernel: int | tuple[int, int], extent: int) -> int:
        """Add a convolution without bias and its batch normalisation, ``extent`` squared outputs."""
        height, width = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        weights = before * after * height * width
        self.tensors += [(weights, weights * extent**2), (after, 0.0), (after, 0.0)]
        return after

    def dense(self, before: int, after: int, times: int = 1, *, bias: bool = True) -> int:
        """Add a fully connected layer, applied ``times`` times per sample."""
        self.tensors.append((before * after, float(before * after * times)))
        if bias:
            self.tensors.append((after, 0.0))
        return after


def resnet(depth: int) -> Network:
    """Return ResNet-50, -101 or -152 for 224 × 224 images."""
    blocks = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}[depth]
    net = Network(f"ResNet-{depth}")
    net.conv(3, 64, 7, 112)
    before = 64
    for stage, count in enumerate(blocks):
        width, extent = 64 << stage, 56 >> stage
        for block in range(count):
            wide = extent * 2 if block == 0 and stage > 0 else extent  # the 3 × 3 has the stride
            net.conv(before, width, 1, wide)
            net.conv(width, width, 3, extent)
            net.conv(width, 4 * width, 1, extent)
            if block == 0:
                net.conv(before, 4 * width, 1, extent)
            before = 4 * width
    net.dense(before, 1000)
    return net


def vgg16() -> Network:
    """Return VGG-16 for 224 × 224 images: convolutions with bias, three wide dense layers."""
    net = Network("VGG-16")
    before, extent = 3, 224
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            weights = before * width * 9
            net.tensors += [(weights, float(weights * extent**2)), (width, 0.0)]
            before = width
        extent //= 2
    for after in (4096, 4096, 1000):
        before = net.dense(before * extent**2 if before == 512 else before, after)
    return net


def inception_v3() -> Network:
    """Return Inception V3 for 299 × 299 images, without the auxiliary classifier."""
    net = Network("Inception V3")
    for before, after, kernel, extent in (
        (3, 32, 3, 149),
        (32, 32, 3, 147),
        (32, 64, 3, 147),
        (64, 80, 1, 73),
        (80, 192, 3, 71),
    ):
        net.conv(before, after, kernel, extent)

    def chain(before: int, extent: int, *steps: tuple[int, int | tuple[int, int]]) -> int:
        for after, kernel in steps:
            before = net.conv(before, after, kernel, extent)
        return before

    before = 192
    for pool in (32, 64, 64):
        chain(before, 35, (64, 1))
        chain(before, 35, (48, 1), (64, 5))
        chain(before, 35, (64, 1), (96, 3), (96, 3))
        chain(before, 35, (pool, 1))
        before = 64 + 64 + 96 + pool
    chain(before, 17, (384, 3))
    net.conv(chain(before, 35, (64, 1), (96, 3)), 96, 3, 17)
    before = 384 + 96 + before
    row, column = (1, 7), (7, 1)
    for middle in (128, 160, 160, 192):
        chain(before, 17, (192, 1))
        chain(before, 17, (middle, 1), (middle, row), (192, column))
        chain(before, 17, (middle, 1), (middle, column), (middle, row), (middle, column), (192, row))
        chain(before, 17, (192, 1))
        before = 4 * 192
    net.conv(chain(before, 17, (192, 1)), 320, 3, 8)
    net.conv(chain(before, 17, (192, 1), (192, row), (192, column)), 192, 3, 8)
    before = 320 + 192 + before
    for _ in range(2):
        chain(before, 8, (320, 1))
        for middle in (chain(before, 8, (384, 1)), chain(before, 8, (448, 1), (384, 3))):
            net.conv(middle, 384, (1, 3), 8)
            net.conv(middle, 384, (3, 1), 8)
        chain(before, 8, (192, 1))
        before = 320 + 4 * 384 + 192
    net.dense(before, 1000)
    return net


def transformer(layers: int = 18, width: int = 2048, vocabulary: int = 50257, tokens: int = 1024) -> Network:
    """Return a decoder-only transformer; a sample is a sequence. The output layer shares the embedding."""
    net = Network("transformer, 1 B")
    net.tensors += [(vocabulary * width, float(vocabulary * width * tokens)), (tokens * width, 0.0)]
    for _ in range(layers):
        net.tensors += [(width, 0.0), (width, 0.0)]
        net.dense(width, 3 * width, tokens)
        net.dense(width, width, tokens)
        net.tensors += [(width, 0.0), (width, 0.0)]
        net.dense(width, 4 * width, tokens)
        net.dense(4 * width, width, tokens)
    net.tensors += [(width, 0.0), (width, 0.0)]
    return net
