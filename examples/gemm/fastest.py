"""The fastest in fp32: the library's kernel for FFMA, defined in tiledsl/gemm/ffma.py."""

from tiledsl.gemm.ffma import choose, fastest

__all__ = ["choose", "fastest"]

if __name__ == "__main__":
    from gallery import main

    main(fastest)
