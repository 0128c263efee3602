"""The native kernel set: a model step in C++ for CPUs with AVX512-BF16, built where it runs."""
