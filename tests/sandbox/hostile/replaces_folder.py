"""Tries to put something else in its own folder's place."""

EXPECTED = "ok"
ANSWER = {"replaced": False}


def entry(folder, request):
    try:
        folder.rename(folder.parent / "elsewhere")
        folder.symlink_to("/")
    except OSError:
        return {"replaced": False}
    return {"replaced": True}
