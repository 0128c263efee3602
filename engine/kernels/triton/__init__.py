"""The Triton set: kernels for CUDA and ROCm, which Triton's interpreter also runs on a CPU.

Importing a kernel imports triton, and that decides once per process whether kernels are compiled or
interpreted: `engine.kernels.triton.runtime` comes first.
"""
