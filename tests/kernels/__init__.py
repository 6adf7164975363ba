"""Run the kernel tests on the kernels of Debian's releases, as processes (User-Mode Linux): ./run
kernels.
"""
