"""How sentences and titles say how many there are."""


def counted(count: int, one: str, several: str | None = None) -> str:
    """Say how many: 1 task, 2 tasks; `several` is given where it is not `one` with an s."""
    return f"{count} {one if count == 1 else several or f'{one}s'}"
