"""The pytest plugin for `-p aiolocks.testing.plugin`, where pytest does not find it itself."""

pytest_plugins = ("_aiolocks_pytest",)
