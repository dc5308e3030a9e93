"""Property tests here have no deadline: this machine may be busy, and no test asserts on time."""

from hypothesis import settings

settings.register_profile("trainer", deadline=None)
settings.load_profile("trainer")
