"""Find what mini-SWE-agent loads only when it runs, and write `harness/data/mini_preload.txt`.

Run it after changing the agent's lock file. It imports what a box imports, lets the real agent
do a scripted attempt of three commands outside any sandbox (they only print), and lists the
modules and completed pydantic models that were not there before. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent
_LIST = _ROOT / "src" / "armillary" / "harness" / "data" / "mini_preload.txt"
_COMMANDS = (
    "echo one",
    "echo 42 > answer.txt",
    None,  # a turn without a call: the agent's format-error path
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
)


class _Model(BaseHTTPRequestHandler):
    """Answers chat completions with the scripted commands in turn."""

    turn = 0
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        command = _COMMANDS[_Model.turn]
        _Model.turn += 1
        message: dict[str, Any] = {"role": "assistant", "content": "thinking"}
        if command is not None:
            function = {"name": "bash", "arguments": json.dumps({"command": command})}
            message["tool_calls"] = [
                {"id": f"call_{_Model.turn}", "type": "function", "function": function}
            ]
        finish = "stop" if command is None else "tool_calls"
        reply = {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "created": 0,
            "model": "armillary",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
        }
        data = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Quiet."""


def _probe(imports: list[str]) -> None:
    """Runs under the agent's own Python: import, run, report what came late."""
    import importlib

    for name in imports:
        importlib.import_module(name)
    pydantic = importlib.import_module("pydantic")
    before = set(sys.modules)
    incomplete = {model for model in _subclasses(pydantic.BaseModel) if not _complete(model)}
    app = importlib.import_module(imports[0]).app
    try:
        app()
    except SystemExit as ending:
        code = ending.code
    else:
        code = 0
    late = [n for n in list(sys.modules) if n not in before and _importable(n)]
    models = [_name(m) for m in incomplete if _complete(m)]
    print("\n" + json.dumps({"exit": code, "late": sorted(late), "models": sorted(models)}))


def _subclasses(root: type) -> set[type]:
    seen: set[type] = set()
    todo = [root]
    while todo:
        for child in type.__subclasses__(todo.pop()):
            if child not in seen:
                seen.add(child)
                todo.append(child)
    return seen


def _complete(model: type) -> bool:
    return bool(model.__dict__.get("__pydantic_complete__"))


def _importable(name: str) -> bool:
    return getattr(sys.modules[name], "__spec__", None) is not None


def _name(model: type) -> str:
    return f"{model.__module__}:{model.__qualname__}"


def _measure() -> dict[str, Any]:
    from armillary.harness import mini_program
    from armillary.harness.install import ensure_environment

    venv = ensure_environment("mini-swe-agent", _ROOT / "locks" / "mini-swe-agent.txt")
    program = mini_program.mini_warm_program(venv)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        env = mini_program.mini_env(server.server_port, "preload")
        env |= {"PATH": os.defpath, "HOME": folder, "LANG": "C.UTF-8", "TERM": "dumb"}
        env["MSWEA_GLOBAL_CONFIG_DIR"] = folder
        argv = mini_program.mini_argv("print something", step_limit=7)
        argv = [arg.replace(mini_program.TRAJECTORY, f"{folder}/t.json") for arg in argv]
        command = [str(venv / "bin" / "python"), __file__, "--probe", *program.imports, "--"]
        shown = subprocess.run(
            [*command, *argv[1:]], env=env, cwd=folder, capture_output=True, text=True, check=False
        )
    server.shutdown()
    if shown.returncode:
        raise SystemExit(f"the probe failed:\n{shown.stdout[-2000:]}{shown.stderr[-2000:]}")
    return json.loads(shown.stdout.splitlines()[-1])


def main() -> None:
    if sys.argv[1:2] == ["--probe"]:
        split = sys.argv.index("--")
        imports, sys.argv = sys.argv[2:split], ["mini", *sys.argv[split + 1 :]]
        _probe(imports)
        return
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "").parse_args()
    found = _measure()
    _LIST.write_text("".join(f"{name}\n" for name in [*found["late"], *found["models"]]))
    print(f"wrote {_LIST.relative_to(_ROOT)}")
    summary = {"exit": found["exit"], "modules": len(found["late"]), "models": len(found["models"])}
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
