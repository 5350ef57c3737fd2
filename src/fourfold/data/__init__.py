"""DataModules for text and images. A class is imported when it is first accessed."""

from fourfold import lazy_names

__all__, __getattr__ = lazy_names(__name__, __file__)
