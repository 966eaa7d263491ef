"""Of the wheel: what pyproject.toml cannot say. It contains a program, so it is of one platform,
and of any Python."""

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class OfOnePlatform(Distribution):
    def has_ext_modules(self):
        return True


class AnyPython(bdist_wheel):
    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(distclass=OfOnePlatform, cmdclass={"bdist_wheel": AnyPython})
