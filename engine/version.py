"""The engine's version. The distribution releases app and engine together (a test holds them
equal).
"""

__version__ = "0.1.0"
