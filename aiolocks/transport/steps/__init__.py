"""The typed commands: one function a script, which says what goes in and what comes out.

Times in this package are whole milliseconds, as the server counts; the conversion is `aiolocks.lock.clock`.
"""
