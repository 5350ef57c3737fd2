"""Run directory of one training, with its lock, checkpoints and metrics.

runs/NAME/  config.yaml  metrics.csv  metrics.json  checkpoints/{last,previous,best,average}.ckpt
"""

import errno
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import yaml

from fourfold.atomic_files import set_aside
from fourfold.commands.config_files import fingerprints
from fourfold.errors import InputError

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

    fcntl = None  # type: ignore[assignment]

# Errors of PyYAML, besides its own, for values such as `!!int x`.
UNREADABLE = (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


class RunDirectory:
    """Directory of a run (one training with its tests). The directory need not exist yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"
        self.last = self.checkpoints / "last.ckpt"
        self.config = self.path / "config.yaml"
        self._lock_file = self.path / ".lock"
        self._is_new = not self.path.exists()
        self._new_parents = [folder for folder in self.path.parents if not folder.exists()]

    @classmethod
    def from_config(cls, config: Any) -> "RunDirectory":
        """Return the run directory of a parsed config.

        It is `run_dir`, `trainer.default_root_dir`, runs/FOLDER/STEM of the first config file, such
        as runs/gpt2/tiny, or runs/TASK with the class name of the task; the first that is given.
        """
        if named := config.get("run_dir") or config["trainer"].get("default_root_dir"):
            return cls(named)
        if files := [file for file in config.get("config") or [] if file is not None]:
            file = Path(str(files[0])).absolute()
            return cls(Path("runs") / file.parent.name / file.stem)
        return cls(Path("runs") / config["model"]["class_path"].rsplit(".", 1)[-1])

    def checkpoint_to_resume(self, resume: str, ckpt_path: str | None) -> Path | None:
        """Return the checkpoint that training resumes from; None to start from scratch.

        Args:
            resume: Value of `--resume`: "auto" resumes if this run directory contains a checkpoint,
                "must" requires a checkpoint, and "never" does not allow one.
            ckpt_path: Value of `--ckpt_path`: a checkpoint, or a run directory, whose newest
                checkpoint is used. None means this run directory, and another one is accepted if
                this one contains no checkpoints.

        Raises:
            InputError: This run directory contradicts `resume` or `ckpt_path`, or all checkpoints
                of the directory that is read are corrupted.
        """
        available = next(self.resume_candidates(), None)
        if resume == "never" and available:
            raise self._must_be_new("with --resume never", "without it")
        if ckpt_path is not None:
            from fourfold.checkpoints.files import is_run

            other = RunDirectory(ckpt_path) if is_run(ckpt_path) else None
            chosen = other._newest_complete() if other else self.find_checkpoint(ckpt_path)
            if available and not chosen.samefile(available):
                raise self._must_be_new(f"with --ckpt_path {ckpt_path}", "without --ckpt_path")
            return chosen
        if resume == "must" and not available:
            raise InputError(f"is must, but {self.last} does not exist", option="--resume")
        return self._newest_complete() if available else None

    def _must_be_new(self, because: str, otherwise: str) -> InputError:
        message = f"must be a new directory {because}, but {self.path} contains checkpoints;"
        return InputError(f"{message} {otherwise}, their training is resumed", option="--run_dir")

    def resume_candidates(self) -> Iterator[Path]:
        """Yield the checkpoints that training can resume from, the newest first.

        Corrupted ones are included, and those between two micro-batches of a step are not.
        """
        from fourfold.checkpoints.files import DamagedFile, read_file

        yield from (f for f in (self.last, self.checkpoints / "previous.ckpt") if f.exists())
        for file in sorted(self.checkpoints.glob("step=*.ckpt"), reverse=True):
            callbacks: Any = {}
            with suppress(DamagedFile):
                callbacks = read_file(file, meta=True).get("callbacks", {})
            # The gradient that has been accumulated between two micro-batches is not saved.
            if not callbacks.get("RunCheckpoints", {}).get("mid_accumulation"):
                yield file

    def _newest_complete(self) -> Path:
        """Return the newest checkpoint to resume from that is not corrupted.

        Newer ones are renamed, since the next last.ckpt would make them the previous one.
        """
        from fourfold.checkpoints.files import DamagedFile, read_file

        damaged: list[tuple[Path, str]] = []
        for chosen in self.resume_candidates():
            try:
                read_file(chosen, meta=True)
                break
            except DamagedFile as error:
                damaged.append((chosen, error.message))
        else:
            names = ", ".join(file.name for file, _ in damaged) or "none"
            message = "there is no checkpoint to resume from that is not corrupted; remove the run"
            message += " directory to start from scratch, or choose another one"
            raise InputError(f"{message} (corrupted: {names})", file=self.checkpoints)
        for file, reason in damaged:
            set_aside(file, reason, f"resuming from {chosen.name}")
        return chosen

    def set_aside_damaged(self) -> None:
        """Rename a damaged config.yaml, which a training could not read.

        Damaged checkpoints are renamed when `checkpoint_to_resume` chooses one, and a damaged
        metrics.csv by its logger.
        """
        try:
            self.recorded_config()
        except InputError as error:
            set_aside(self.config, error.message)

    def recorded_config(self) -> dict[str, Any]:
        """Return the content of config.yaml, an empty dict if the file does not exist.

        Raises:
            InputError: The file cannot be read, or does not hold a YAML mapping.
        """
        if not self.config.exists():
            return {}
        try:
            content = yaml.safe_load(self.config.read_text(encoding="utf-8"))
        except (*UNREADABLE, yaml.YAMLError) as error:
            message = f"the config file cannot be read: {error}"
            raise InputError(message, file=self.config) from error
        if not isinstance(content, dict):
            raise InputError("a config must be a mapping such as `model: ...`", file=self.config)
        return content

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock of the directory in a `with` block; InputError if another process does."""
        for attempts_left in reversed(range(100)):
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                opened = self._open_lock(os.O_CREAT)
            except (FileNotFoundError, FileExistsError):
                if attempts_left:  # another process may have just removed the directory
                    continue
                raise
            with opened as file:
                if not _try_lock(file):
                    self._is_new = False  # the other process made the directory
                    message = f"must not be in use, but another process trains in {self.path}"
                    raise InputError(message, option="--run_dir")
                # Another process may have removed the directory before the file was locked.
                if os.fstat(file.fileno()).st_nlink:
                    yield
                    return

    def _open_lock(self, flags: int = 0) -> IO[bytes]:
        """Open the lock file for reading and writing; never another file that it links to."""
        no_follow = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
        return os.fdopen(os.open(self._lock_file, os.O_RDWR | no_follow | flags, 0o666), "r+b")

    def is_locked(self) -> bool:
        """Return True if another process trains in this directory."""
        try:
            with self._open_lock() as file:
                return not _try_lock(file)
        except OSError:  # the directory does not exist, or belongs to somebody else
            return False

    def cleanup_if_empty(self) -> None:
        """Remove the run directory if this process created it and saved no checkpoint in it."""
        if self._is_new and self.path.exists():
            with suppress(InputError, OSError), self.lock():
                if not self.checkpoints.exists():
                    shutil.rmtree(self.path)
            for folder in self._new_parents:
                with suppress(OSError):  # not empty
                    folder.rmdir()

    def find_checkpoint(self, which: str | None) -> Path:
        """Return a checkpoint for evaluation.

        Args:
            which: "best", "average" or "last", the path of a checkpoint, or the path of another run
                directory; None means this one. The default of a directory is its best.ckpt,
                otherwise its average.ckpt, otherwise its last.ckpt.

        Raises:
            InputError: There is no such checkpoint.
        """
        from fourfold.checkpoints import files

        if which in files.CHECKPOINT_NAMES:
            file = self.checkpoints / f"{which}.ckpt"
        elif which is None or files.is_run(which):
            return files.find_checkpoint(Path(which or self.path))
        else:
            file = Path(which)
        if not files.is_checkpoint(file):
            names = ", ".join(files.CHECKPOINT_NAMES)
            message = f"must be {names} or an existing file, but {file} does not exist"
            raise InputError(message, option="--ckpt_path")
        return file

    @property
    def metrics(self) -> dict[str, Any] | None:
        """Content of metrics.json, or None if the file does not exist or is not readable.

        The key `run` holds the test's command, the path of the checkpoint that was tested, and the
        hashes of the config files.
        """
        try:
            content = json.loads((self.path / "metrics.json").read_text(encoding="utf-8"))
            shlex.split(content["run"]["command"])
        except UNREADABLE:
            return None
        return dict(content)

    def metrics_of(self, options: list[str]) -> dict[str, Any] | None:
        """Return `metrics`, and check that a test with given options of `fourfold test` wrote them.

        Raises:
            InputError: A test with other options wrote the file, or a config file has changed
                since the test.
        """
        content = self.metrics
        if content is None:
            return None
        file, origin = self.path / "metrics.json", content["run"]
        # Two paths may name the same directory.
        recorded = [os.path.realpath(word) for word in shlex.split(origin["command"])[2:]]
        if recorded != list(map(os.path.realpath, options)):
            message = f"the metrics are those of `{origin['command']}`; remove the file or choose"
            raise InputError(f"{message} another --run_dir", file=file)
        current = fingerprints(options).values()
        for (name, old), new in zip(origin.get("configs", {}).items(), current, strict=False):
            if old != new:
                message = f"the config has changed since {file} was written; remove {self.path} to"
                raise InputError(f"{message} train again, or choose another --run_dir", file=name)
        return content


def _try_lock(file: IO[bytes]) -> bool:
    """Lock an open file until it is closed; return False if another process has locked it."""
    try:
        if fcntl is None:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:  # lockf, not flock: data workers of a killed training would still hold a flock
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # other errors come from file systems without locks
        return error.errno not in (errno.EACCES, errno.EAGAIN)
    return True
