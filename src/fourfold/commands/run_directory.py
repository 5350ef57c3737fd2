"""One run, one directory: where it is, and which checkpoint a command begins with.

runs/NAME/  config.yaml  metrics.csv  metrics.json  checkpoints/{last,previous,best,average}.ckpt
"""

import errno
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from fourfold.commands.config_files import fingerprints
from fourfold.core.errors import InputError

try:
    import fcntl
except ImportError:  # a system without it has no such locks
    fcntl = None  # type: ignore[assignment]


class RunDirectory:
    """The directory of a run, which need not exist yet.

    Args:
        path: The directory.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.last = self.checkpoints / "last.ckpt"
        self.config = self.path / "config.yaml"
        self.is_new = not self.path.exists()
        self.new_parents = [folder for folder in self.path.parents if not folder.exists()]

    @classmethod
    def of(cls, config: Any) -> "RunDirectory":
        """The directory that the config names, or else its files, or else its task."""
        if named := config.get("run_dir") or config["trainer"].get("default_root_dir"):
            return cls(named)
        files = [file for file in config.get("config") or [] if file is not None]
        if files:
            file = Path(str(files[0])).absolute()
            return cls(Path("runs") / file.parent.name / file.stem)
        return cls(Path("runs") / config["model"]["class_path"].rsplit(".", 1)[-1])

    @classmethod
    def checkpoint_in(cls, place: str) -> Path:
        """The checkpoint that a path means: a file, or a run directory with one in it.

        Raises:
            InputError: There is none.
        """
        return cls(place).find(None) if Path(place).is_dir() else Path(place)

    def resume_from(self, resume: str, given: str | None) -> Path | None:
        """The checkpoint that training goes on from; None means from the beginning.

        Args:
            resume: auto, must or never.
            given: A checkpoint that the user named.

        Raises:
            InputError: The directory holds a training and that was not expected, or the reverse.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path}: is not a directory")
        there = next(self.resumable(), None)
        if resume == "never" and there:
            raise InputError(
                f"{self.path} already holds a training: give another --run_dir, or leave out"
                " `--resume never` to continue it"
            )
        if given is not None:
            run = RunDirectory(given)
            if run.path.is_dir() and not next(run.resumable(), None):
                raise InputError(f"{given}: there is no checkpoint to go on from")
            chosen = run._newest_whole() if run.path.is_dir() else self.find(given)
            if there and not chosen.samefile(there):
                raise InputError(
                    f"{self.path} already holds a training: leave out --ckpt_path to continue it,"
                    f" or give another --run_dir to start from {given}"
                )
            return chosen
        if resume == "must" and not there:
            raise InputError(f"{self.last}: there is nothing to resume")
        return self._newest_whole() if there else None

    def resumable(self) -> Iterator[Path]:
        """Checkpoints that training can go on from, the newest first."""
        yield from (f for f in (self.last, self.checkpoints / "previous.ckpt") if f.is_file())
        for file in sorted(self.checkpoints.glob("step=*.ckpt"), reverse=True):
            if not _in_window(file):  # known only once it is read
                yield file

    def _newest_whole(self) -> Path:
        """The first of them that is not damaged; those that are get another name."""
        from fourfold.tasks import is_whole

        damaged: list[Path] = []
        for chosen in self.resumable():
            if is_whole(chosen):
                break
            damaged.append(chosen)
        else:
            names = ", ".join(file.name for file in damaged)
            raise InputError(
                f"{self.checkpoints}: {names}: the checkpoint is broken or cut off; remove the run"
                " directory to start again, or give another --run_dir"
            )
        if chosen != self.last:
            found = "is broken or cut off" if self.last.is_file() else "is gone"
            print(f"{self.last} {found}: going on from {chosen.name}", file=sys.stderr)
        # Out of the way, or the next last.ckpt would make it the previous one.
        for broken in damaged:
            with suppress(FileNotFoundError):  # another process was first
                broken.rename(broken.with_name(broken.name + ".broken"))
        return chosen

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Meanwhile no other process may train in it.

        Raises:
            InputError: One is at work there.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as file:
            # Not `flock`, which the workers of a training that was killed would hold on to.
            if fcntl is not None:
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    if error.errno in (errno.EACCES, errno.EAGAIN):
                        self.is_new = False  # it is the other's, and not ours to remove
                        raise InputError(
                            f"{self.path}: another training is at work there: wait for it, or give"
                            " another --run_dir"
                        ) from error  # any other: a file system that knows no locks
            yield

    def remove_if_new(self) -> None:
        """Leave nothing of a run that ended before its first checkpoint, if this run made it."""
        if self.is_new and not self.checkpoints.exists():
            shutil.rmtree(self.path, ignore_errors=True)
            for folder in self.new_parents:
                with suppress(OSError):  # something else is there by now
                    folder.rmdir()

    def find(self, which: str | None) -> Path:
        """The checkpoint that `which` means: best, average, last or a path; None: the first there.

        Raises:
            InputError: There is no such checkpoint.
        """
        from fourfold.tasks.checkpoint import WORDS, checkpoint_of

        if which in WORDS:
            found = self.checkpoints / f"{which}.ckpt"
            if not found.is_file():
                raise InputError(f"{found}: there is no such checkpoint{self._others()}")
            return found
        if which is not None:
            if Path(which).is_dir():
                return checkpoint_of(Path(which))
            if not Path(which).is_file():
                raise InputError(
                    f"{which}: there is no such checkpoint file; give a path or one of"
                    f" {', '.join(WORDS)}"
                )
            return Path(which)
        return checkpoint_of(self.path)

    @property
    def metrics(self) -> dict[str, Any] | None:
        """What the last test found and, under `run`, how; None if there is none to be read."""
        try:
            content = json.loads((self.path / "metrics.json").read_text(encoding="utf-8"))
            shlex.split(content["run"]["command"])
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return dict(content)

    def metrics_of(self, options: list[str]) -> dict[str, Any] | None:
        """As `metrics`, of a test with these options.

        Raises:
            InputError: It was done with other options, or by a config that has changed.
        """
        if (content := self.metrics) is None:
            return None
        file, how = self.path / "metrics.json", content["run"]
        # A directory may be spelled in two ways.
        before = [os.path.realpath(word) for word in shlex.split(how["command"])[2:]]
        if before != list(map(os.path.realpath, options)):
            raise InputError(
                f"{file} was measured by `{how['command']}`: remove it to measure again, or name"
                " another directory"
            )
        configs = dict(how.get("configs", {}))
        for (name, then), now in zip(configs.items(), fingerprints(options).values(), strict=False):
            if then != now:
                raise InputError(
                    f"{name} has changed since {file} was measured: remove {self.path} to train"
                    " again, or name another directory"
                )
        return content

    def _others(self) -> str:
        from fourfold.tasks.checkpoint import WORDS

        words = [word for word in WORDS if (self.checkpoints / f"{word}.ckpt").is_file()]
        return f", only {', '.join(words)}" if words else ""

    def refuse_another_model(self, recipe: dict[str, Any]) -> None:
        """Make sure that a resumed run has the model, optimizer and schedule it began with.

        A restored optimizer would ignore another learning rate without a word.

        Raises:
            InputError: Names the first key that differs.
        """
        from fourfold.tasks.plain import flat

        if not self.config.is_file():
            return
        before = (yaml.safe_load(self.config.read_text(encoding="utf-8")) or {}).get("model")
        if before is None:
            return
        old, new = (flat({"model": tree}) for tree in (before, recipe))
        for key in sorted(old.keys() | new.keys()):
            # What the version that began it had no option for, neither has the training.
            is_known = key in old or any(key.startswith(f"{above}.") for above in old)
            if is_known and old.get(key) != new.get(key):
                raise InputError(
                    f"{self.path} was trained with {key} {old.get(key)}, and is now given"
                    f" {new.get(key)}: give another --run_dir to train another model"
                )


def _in_window(file: Path) -> bool:
    """Whether a validation saved it between two micro-batches: the gradient so far is lost."""
    from fourfold.tasks import is_whole, read_file

    if not is_whole(file):
        return False
    saved = read_file(file).get("callbacks", {}).get("Checkpoints", {})
    return bool(saved.get("in_window", False))
