"""Plug-ins to copy: each file would work as well outside fedio, beside your experiment."""
