"""A shop: one application and one worker process, with every part of aiolocks on one session each."""
