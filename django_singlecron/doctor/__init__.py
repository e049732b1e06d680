"""Proves on a project's own stack, by connections of its own settings, that the lock excludes and the history holds.

It leaves nothing behind: no lock, no session, no row, no number of a sequence.
"""
