"""Our sandbox as an environment class of Harbor 0.26, for its agents, verifiers and trials.

Used by import path: `harbor run -e armillary.sandbox.harbor:BubblewrapEnvironment`, or
`environment.import_path` in a job. Harbor is in the `harbor` extra and nothing else imports this
file. Faults of the sandbox carry exception names from Harbor's own table, since Harbor counts an
exception it does not know as a valid reward.

Options (`--ek NAME=VALUE`): `show` = host folders to show read-only at the same path, separated by
`:`, such as an agent program's environment; `path` = folders before PATH; `forward` =
`PORT=HOST:PORT`: connections to that port of the sandbox's loopback are passed to the address,
so that an agent inside reaches its model and nothing else. There is no other network: a task that
asks for one is refused.
"""

# Harbor is not in the development environment.
# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import contextlib
import io
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harbor.agents.computer_1.runtime import RuntimeRequestError
from harbor.environments.base import (
    BaseEnvironment,
    ExecResult,
    SandboxBuildFailedError,
    transfer_tar_filter,
)
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.environments.singularity.singularity import MemoryLimitExceededError
from harbor.models.task.config import NetworkMode

from armillary.errors import SandboxError, TaskError
from armillary.sandbox.bubblewrap import BubblewrapProvider
from armillary.sandbox.dockerfile import image_spec
from armillary.sandbox.environment import BASE_PATH
from armillary.sandbox.forward import Forwarder
from armillary.sandbox.protocol import File, Limits, Sandbox, Spec

_FOLDERS = ("/logs/agent", "/logs/verifier", "/logs/artifacts", "/logs", "/tests", "/solution",
            "/installed-agent", "/app", "/root")  # fmt: skip
_LOOPBACK = {"127.0.0.1", "localhost"}
_ARCHIVE = "/tmp/.transfer.tar"
_MOST_BYTES = 1 << 30
_DAY = 86400.0


class BubblewrapEnvironment(BaseEnvironment):
    """One trial's sandbox."""

    def __init__(
        self, *args: Any, show: str = "", path: str = "", forward: str = "", **kwargs: Any
    ) -> None:
        shown = {folder: Path(folder) for folder in show.split(":") if folder}
        self._provider = BubblewrapProvider(mounts=shown)
        self._path = path
        self._forward = forward
        self._forwarder: Forwarder | None = None
        self._sandbox: Sandbox | None = None
        self._workdir = ""
        super().__init__(*args, **kwargs)

    @staticmethod
    def type() -> str:
        return "armillary-bubblewrap"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        # An agent with a base URL makes Harbor ask for an allowlist of that URL's host. The
        # sandbox's own loopback is such a list, kept exactly; `_image` refuses every other.
        return EnvironmentCapabilities(
            disable_internet=True,
            network_allowlist=True,
            network_allowlist_hostnames=True,
            network_allowlist_ipv4_addresses=True,
        )

    def _validate_definition(self) -> None:
        """Nothing: an error here would end the whole job, one in `start` ends this trial only."""

    def _image(self) -> Spec:
        """What the task asks for.

        Raises:
            SandboxBuildFailedError: it cannot be given; no valid reward comes of that trial.
        """
        for policy in (self._network_policy, *self._phase_network_policies):
            open_to = set(policy.allowed_hosts) - _LOOPBACK
            if policy.network_mode == NetworkMode.PUBLIC or open_to:
                raise SandboxBuildFailedError(
                    f"network_mode={policy.network_mode.value!r} {sorted(open_to)} is not "
                    "supported: these sandboxes have no network but their own loopback. Set "
                    'network_mode = "no-network" in the [environment] of task.toml if the task '
                    "can do without, and give agents a base URL on 127.0.0.1 (see `forward`)."
                )
        try:
            return image_spec(self.environment_dir)
        except TaskError as error:
            raise SandboxBuildFailedError(str(error)) from error

    async def start(self, force_build: bool) -> None:
        image = self._image()
        path = ":".join(part for part in (self._path, BASE_PATH) if part)
        env = {"PATH": path, **image.env, **self._startup_env()}
        self._workdir = self.task_env_config.workdir or image.workdir
        folders = (*image.folders, *_FOLDERS, *self._mount_targets())
        spec = Spec(image.files, env, folders, self._workdir, self._limits())
        try:
            self._sandbox = await self._provider.open(spec)
            if self._forward:
                self._forwarder = await Forwarder.start(self._sandbox, self._forward)
        except SandboxError as error:
            raise SandboxBuildFailedError(str(error)) from error
        await self._upload_environment_dir_after_start()

    def _limits(self) -> Limits:
        memory = self._effective_memory_mb or 4096
        disk = self._effective_storage_mb or 1024
        return Limits(memory, disk, processes=1024, output_bytes=16 << 20, file_mb=disk)

    async def stop(self, delete: bool) -> None:
        if self._forwarder:
            await self._forwarder.close()
        if self._sandbox:
            await self._sandbox.close()
        await self._provider.close()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command line with bash. There is one user in a sandbox, whoever is asked for."""
        async with self._started() as sandbox:
            done = await sandbox.exec(
                ["bash", "-c", command],
                timeout_sec or _DAY,
                env=self._merge_env(env) or {},
                cwd=cwd or self._workdir,
            )
        if done.timed_out:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        return ExecResult(
            stdout=done.out.decode(errors="replace"),
            stderr=done.err.decode(errors="replace"),
            return_code=done.code,
        )

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        source = Path(source_path)
        data = await asyncio.to_thread(source.read_bytes)
        async with self._started() as sandbox:
            await sandbox.write({target_path: File(data, source.stat().st_mode & 0o777)})

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        archive = await asyncio.to_thread(_pack, Path(source_dir))
        async with self._started() as sandbox:
            await sandbox.write({_ARCHIVE: File(archive)})
            unpack = 'mkdir -p "$1" && tar -xf "$0" -C "$1" --no-same-owner && rm "$0"'
            await self._must(sandbox, ["sh", "-c", unpack, _ARCHIVE, target_dir])

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        async with self._started() as sandbox:
            data = await sandbox.read(source_path, _MOST_BYTES)
        if data is None:
            raise FileNotFoundError(f"{source_path} is not a file in the sandbox")
        await asyncio.to_thread(_save, Path(target_path), data)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        async with self._started() as sandbox:
            await self._must(sandbox, ["tar", "-cf", _ARCHIVE, "-C", source_dir, "."])
            data = await sandbox.read(_ARCHIVE, _MOST_BYTES)
            await sandbox.exec(["rm", "-f", _ARCHIVE], _DAY)
        await asyncio.to_thread(_unpack, data or b"", Path(target_dir))

    async def _must(self, sandbox: Sandbox, argv: list[str]) -> None:
        done = await sandbox.exec(argv, _DAY)
        if done.code:
            raise RuntimeRequestError(
                f"`{argv[0]}` failed in the sandbox: {done.err.decode(errors='replace').strip()}"
            )

    @asynccontextmanager
    async def _started(self) -> AsyncIterator[Sandbox]:
        """The sandbox; its faults become the names that Harbor does not count as rewards."""
        if self._sandbox is None:
            raise RuntimeRequestError("the sandbox was not started")
        try:
            yield self._sandbox
        except SandboxError as error:
            if error.kind == "limit":
                raise MemoryLimitExceededError(str(error)) from error
            raise RuntimeRequestError(str(error)) from error


def _pack(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def _unpack(data: bytes, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(tarfile.open(fileobj=io.BytesIO(data))) as archive:
        archive.extractall(folder, filter=transfer_tar_filter)


def _save(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
