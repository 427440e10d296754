"""Calls sys.exit."""

import sys

EXPECTED = "crash"
DETAIL = "SystemExit"


def entry(folder, request):
    sys.exit(0)
