"""The fastest with mma.sync: the library's kernel, defined in tiledsl/gemm/mma.py."""

from tiledsl.gemm.mma import choose, mma_fastest

__all__ = ["choose", "mma_fastest"]

if __name__ == "__main__":
    from gallery import main

    main(mma_fastest)
