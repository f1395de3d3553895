"""A linear layer of PyTorch by tiledsl's `gemm`: trained, compiled by torch.compile, and compared with torch's own.

    python examples/torch_linear.py

Needs torch. Without a GPU its products run on the emulator, and nothing is compiled by Inductor.
"""

# pyright: basic, reportMissingImports=false
# torch need not be installed where this is checked.

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from tiledsl.torch import gemm

__all__ = ["Linear"]


class Linear(nn.Module):
    """y = x W^T + b, as `torch.nn.Linear`, of bf16, f16 or f32.

    The bias is f32 in any case, as sums are: `gemm` adds it before it rounds. So convert a model to bf16 first, and
    then its layers by `Linear.of`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)
        self.bias = None if bias is None else nn.Parameter(bias.float())

    @classmethod
    def of(cls, layer: nn.Linear) -> Linear:
        """A layer with the values of `layer`."""
        return cls(layer.weight.detach().clone(), None if layer.bias is None else layer.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        y = gemm(x.flatten(0, -2), self.weight.mT, self.bias)  # [rows, in] times [in, out]: a view, no copy
        return y.unflatten(0, x.shape[:-1])


def replace_linear(model: nn.Module) -> nn.Module:
    """Replace every `torch.nn.Linear` of a model by `Linear`, in place."""
    for name, child in model.named_children():
        setattr(model, name, Linear.of(child) if isinstance(child, nn.Linear) else replace_linear(child))
    return model


def main() -> None:
    torch.manual_seed(0)
    on = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    theirs = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 16)).to(on, torch.bfloat16)
    ours = replace_linear(copy.deepcopy(theirs))
    x = torch.randn(4, 33, 64, device=on, dtype=torch.bfloat16)
    print(f"the largest difference of two networks: {(ours(x) - theirs(x)).abs().max().item():.4f}")

    step = torch.compile(ours, fullgraph=True, backend="inductor" if on.type == "cuda" else "aot_eager")
    target = torch.randn(4, 33, 16, device=on, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.5)
    for number in range(20):
        loss = (step(x) - target).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 5 == 0:
            print(f"step {number}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
