"""The part of a kubelet that a test can play: pods of rendered manifests as processes, with their probes.

What is done as the manifest says: init containers first, command, arguments, environment (values, keys of Secrets, the
pod's address), files of ConfigMaps and Secrets, ports by name, the three probes with their periods and thresholds,
SIGTERM and the grace time. What cannot be so: a pod is no container, so its files lie in a folder of its own instead of
at the root, and its address is one of the loopback network's, which it listens on instead of on all.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from base64 import b64decode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.deploy.helm import Object
from tests.faults.http import Http, NoAnswer, NotSent

BIN = Path(sys.executable).parent
ANY = ("0.0.0.0", "::")


class PodFailed(Exception):
    """A pod did not do what it should."""


class PodHttp(Http):
    """A client of one port of one pod."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(port)
        self.host = host

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is not None and self._reader.at_eof():
            self.close()
        if self._reader is None or self._writer is None:
            try:
                self._reader, self._writer = await asyncio.open_connection(self.host, self.port, limit=1 << 20)
            except OSError as error:
                raise NotSent(str(error)) from error
        self._busy = True
        return self._reader, self._writer


class Cluster:
    """What the pods find there: Secrets and ConfigMaps."""

    def __init__(self, folder: Path, objects: Sequence[Object], secrets: Mapping[str, Mapping[str, str]]) -> None:
        self.folder = folder
        self.secrets = {name: dict(values) for name, values in secrets.items()}
        self.maps: dict[str, dict[str, str]] = {}
        for each in objects:
            name = each["metadata"]["name"]
            if each["kind"] == "Secret":
                data = {key: b64decode(value).decode() for key, value in each.get("data", {}).items()}
                self.secrets[name] = {**data, **each.get("stringData", {})}
            elif each["kind"] == "ConfigMap":
                self.maps[name] = each["data"]
        self._made = 0

    def address(self) -> str:
        """One that no other pod has."""
        self._made += 1
        return f"127.0.77.{self._made}"


class Pod:
    """One pod. ``template``: of its Deployment or Job."""

    def __init__(self, cluster: Cluster, name: str, template: Object) -> None:
        self.cluster = cluster
        self.address = cluster.address()
        self.name = f"{name}-{self.address.rpartition('.')[2]}"
        self.spec: Object = template["spec"]
        self.folder = cluster.folder / self.name
        self.folder.mkdir(parents=True)
        self.ready = False
        self.was_ready = False
        self.failed_liveness = 0
        self._process: asyncio.subprocess.Process | None = None
        self._prober: asyncio.Task[None] | None = None
        self._mount()

    # ------------------------------------------------------------------------------------------------ files

    def _mount(self) -> None:
        volumes = {volume["name"]: volume for volume in self.spec.get("volumes", ())}
        for container in (*self.spec.get("initContainers", ()), *self.spec["containers"]):
            for mount in container["volumeMounts"]:
                volume, place = volumes[mount["name"]], self._place(mount["mountPath"])
                files: Mapping[str, str] = {}
                if "configMap" in volume:
                    files = self.cluster.maps[volume["configMap"]["name"]]
                elif "secret" in volume:
                    files = self.cluster.secrets[volume["secret"]["secretName"]]
                    if items := volume["secret"].get("items"):
                        files = {item["path"]: files[item["key"]] for item in items}
                if "subPath" in mount:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    place.write_text(self._settings(files[mount["subPath"]]))
                    continue
                place.mkdir(parents=True, exist_ok=True)
                for file, text in files.items():
                    (place / file).write_text(text)

    def _place(self, path: str) -> Path:
        return self.folder / path.lstrip("/")

    def _settings(self, text: str) -> str:
        """The settings, with files where they are here."""

        def moved(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: moved(each) for name, each in value.items()}
            if isinstance(value, list):
                return [moved(each) for each in value]
            ours = isinstance(value, str) and (value.startswith("/etc/amqp-gateway/") or value == "/data")
            return str(self._place(value)) if ours else value

        return json.dumps(moved(json.loads(text)))

    # --------------------------------------------------------------------------------------------- processes

    async def _spawn(self, container: Object) -> asyncio.subprocess.Process:
        environ = {"PATH": f"{BIN}:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": str(self.folder)}
        for each in container.get("env", ()):
            environ[each["name"]] = self._value(each)
        arguments = [
            str(self._place(text)) if text.startswith("/etc/amqp-gateway/") else text
            for text in (*container["command"], *container.get("args", ()))
        ]
        with (self.folder / f"{container['name']}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *arguments,
                cwd=self._place("/tmp"),
                env=environ,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _value(self, variable: Object) -> str:
        if "value" in variable:
            value: str = variable["value"]
            if value in ANY:
                return self.address
            return str(self._place(value)) if value == "/tmp" or value.startswith("/etc/amqp-gateway/") else value
        source = variable["valueFrom"]
        if "secretKeyRef" in source:
            return self.cluster.secrets[source["secretKeyRef"]["name"]][source["secretKeyRef"]["key"]]
        assert source == {"fieldRef": {"fieldPath": "status.podIP"}}
        return self.address

    async def run(self, within: float) -> int:
        """All its containers, one after the other, as a Job's; the last one's status."""
        status = 0
        for container in (*self.spec.get("initContainers", ()), *self.spec["containers"]):
            process = await self._spawn(container)
            status = await asyncio.wait_for(process.wait(), within)
        return status

    async def start(self) -> None:
        """Init containers, the process, its probes.

        Raises:
            PodFailed: an init container failed.
        """
        for container in self.spec.get("initContainers", ()):
            if status := await (await self._spawn(container)).wait():
                raise PodFailed(f"{self.name}: {container['name']} ended with {status}")
        self._process = await self._spawn(self.container)
        self._prober = asyncio.get_running_loop().create_task(self._probe())

    @property
    def container(self) -> Object:
        """The one that stays."""
        (container,) = self.spec["containers"]
        found: Object = container
        return found

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    def port(self, name: str) -> int:
        """A port by its name."""
        return next(int(port["containerPort"]) for port in self.container["ports"] if port["name"] == name)

    def log(self) -> str:
        """What it wrote."""
        return (self.folder / "gateway.log").read_text(errors="replace")

    # ------------------------------------------------------------------------------------------------ probes

    async def _probe(self) -> None:
        startup, liveness, readiness = (self.container[f"{name}Probe"] for name in ("startup", "liveness", "readiness"))
        failures = 0
        while not await self._asks(startup):
            failures += 1
            if failures >= startup["failureThreshold"]:
                raise PodFailed(f"{self.name}: it did not start")
            await asyncio.sleep(startup["periodSeconds"])
        await asyncio.gather(self._is_alive(liveness), self._is_ready(readiness))

    async def _is_alive(self, probe: Object) -> None:
        while True:
            if not await self._asks(probe):
                self.failed_liveness += 1
            await asyncio.sleep(probe["periodSeconds"])

    async def _is_ready(self, probe: Object) -> None:
        failures = 0
        while True:
            if await self._asks(probe):
                failures, self.ready, self.was_ready = 0, True, True
            else:
                failures += 1
                if failures >= probe.get("failureThreshold", 3):
                    self.ready = False
            await asyncio.sleep(probe["periodSeconds"])

    async def _asks(self, probe: Object) -> bool:
        client = PodHttp(self.address, self.port(probe["httpGet"]["port"]))
        try:
            answer = await client.request("GET", probe["httpGet"]["path"], within=probe.get("timeoutSeconds", 1))
        except (NoAnswer, NotSent):
            return False
        finally:
            client.close()
        return answer.status == 200

    async def wait_ready(self, within: float = 90.0) -> None:
        """Until it is.

        Raises:
            PodFailed: it is not, or it ended.
        """
        deadline = time.monotonic() + within
        while not self.ready:
            assert self._process is not None
            assert self._prober is not None
            if self._process.returncode is not None:
                raise PodFailed(f"{self.name} ended with {self._process.returncode}:\n{self.log()[-2000:]}")
            if self._prober.done():
                self._prober.result()
            if time.monotonic() > deadline:
                raise PodFailed(f"{self.name} is not ready:\n{self.log()[-2000:]}")
            await asyncio.sleep(0.05)

    async def metrics(self) -> str:
        """What it tells Prometheus."""
        client = PodHttp(self.address, self.port("ops"))
        try:
            return (await client.request("GET", "/metrics")).body.decode()
        finally:
            client.close()

    # --------------------------------------------------------------------------------------------------- end

    async def terminate(self) -> float:
        """SIGTERM, and the grace time; how long it took, in seconds.

        Raises:
            PodFailed: it had to be killed, or ended with a status.
        """
        process = self._process
        assert process is not None
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), self.spec["terminationGracePeriodSeconds"])
        except TimeoutError:
            await self.close()
            raise PodFailed(f"{self.name} was killed at the end of its grace time") from None
        seconds = time.monotonic() - began
        await self.close()
        if process.returncode != 0:
            raise PodFailed(f"{self.name} ended with {process.returncode}")
        return seconds

    async def close(self) -> None:
        """Kill what is left."""
        self.ready = False
        if self._prober is not None:
            self._prober.cancel()
            await asyncio.gather(self._prober, return_exceptions=True)
            self._prober = None
        if self._process is not None and self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGKILL)
            await self._process.wait()
