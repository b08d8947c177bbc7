"""The control groups that the process is in: on Linux, folders whose files hold limits and what is used."""

from pathlib import Path


def control_groups(root: Path, controller: str) -> list[Path]:
    """The folders of the process's own groups and of those above them, in which the limits of a controller may stand.

    /proc/self/cgroup has a line `number:controllers:path` for each hierarchy, without controllers for version 2, whose
    folders begin at the top; version 1 has a tree for each controller. In a container the process's own group is the
    root of what it sees.
    """
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    trees = {"": top, controller: top / controller}
    found = list(trees.values())
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for name in controllers.split(","):
            if name in trees:
                own = trees[name] / path.lstrip("/")
                found += [own, *own.parents][: len(Path(path).parts) - 1]
    return found
