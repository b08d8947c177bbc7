"""The control groups of this process: on Linux, folders with files that hold limits and usage."""

from pathlib import Path


def control_groups(root: Path, controller: str) -> list[Path]:
    """Return the folders of this process's control groups and their ancestors that may limit a controller such as
    "memory".

    /proc/self/cgroup has a line `number:controllers:path` for each hierarchy. cgroup version 2 names no controllers and
    has one tree; version 1 has a tree for each controller. In a container, the process sees its own group as the root.
    """
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    trees = {"": top, controller: top / controller}
    folders = list(trees.values())
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            if name in trees:
                own = trees[name] / path.lstrip("/")
                folders += [own, *own.parents][: len(Path(path).parts) - 1]
    return folders
