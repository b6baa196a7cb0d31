"""Builds the driver. A vendor who has it already ships the library as package data, and needs no setup.py."""

from pathlib import Path

import torch_outrigger
from setuptools import Extension, setup

driver = Extension(
    "acme_outrigger.driver",
    # The example for drivers in C; setuptools takes paths from here.
    ["../driver-c/driver.c"],
    include_dirs=[str(torch_outrigger.include_folder())],
    extra_compile_args=["-std=c11", "-fvisibility=hidden", "-pthread"],
)
setup(ext_modules=[driver])
